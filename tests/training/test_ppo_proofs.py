"""Presets and settings of PPO on proofs."""

import pytest

from phalanx.config import list_presets
from phalanx.training import PPOConfig

pytestmark = pytest.mark.slow

SMALL = (
    "env.generated.num_families=2",
    "env.generated.generations=3",
    "env.max_actions=8",
    "env.max_goals=3",
    "env.max_episode_steps=4",
    "network.hidden_dim=4",
    "network.num_layers=1",
    "evaluation.max_positives=6",
)


def test_presets_have_the_padding_of_the_reference() -> None:
    names = [name for name in list_presets("ppo") if name.startswith("proofs")]
    max_actions = {name: PPOConfig.load(name).env.settings.max_actions for name in names}
    assert max_actions == {
        "proofs": 32,
        "proofs_family": 130,
        "proofs_wn18rr": 262,
    }


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("network.width=5", "unknown key 'network.width'"),
        ("network.hidden_dim=5", "hidden_dim must be even for atom_embedding=complex, got 5"),
        ("dataset=data", "unknown key 'dataset'; did you mean 'env.dataset'"),
        ("ppo.num_envs=5", "unknown key 'ppo.num_envs'; did you mean 'num_envs'"),
        ("num_env=5", "did you mean 'num_envs'"),
    ],
)
def test_invalid_setting_is_rejected_with_an_explanation(override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PPOConfig.load("proofs", (*SMALL, "network.atom_embedding=complex", override))
