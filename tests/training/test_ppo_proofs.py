"""Presets and settings of PPO on proofs."""

import pytest

from phalanx.config import list_presets
from phalanx.training.proof_training import load_proof_training

pytestmark = pytest.mark.slow

SMALL = (
    "proofs.generated.num_families=2",
    "proofs.generated.generations=3",
    "proofs.max_actions=8",
    "proofs.max_goals=3",
    "proofs.max_episode_steps=4",
    "network.embedding_dim=4",
    "network.num_layers=1",
    "evaluation.num_queries=6",
)


def test_every_preset_loads_and_has_the_padding_of_the_reference() -> None:
    assert list_presets("train/proofs") == ("countries", "default", "family", "umls", "wn18rr")
    states = {name: load_proof_training(name).proofs.max_actions for name in list_presets("train/proofs")}
    assert states == {"countries": 20, "default": 32, "family": 130, "umls": 64, "wn18rr": 262}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("network.width=5", "network.width was renamed to network.embedding_dim"),
        ("network.embedding_dim=5", "embedding_dim must be even for atom_embedding=complex, got 5"),
        ("dataset=data", "dataset was renamed to proofs.dataset"),
        ("ppo.num_env=5", "num_envs"),
    ],
)
def test_an_invalid_setting_is_rejected_with_an_explanation(override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_proof_training(None, (*SMALL, "network.atom_embedding=complex", override))
