"""The figures of training and ranking proofs: what a record tells, and when it is held to a target."""

import json

from phalanx.agents.proof_benchmark import measure_ppo, measure_ranking
from phalanx.agents.proof_training import ProofTrainingConfig
from phalanx.core.config import load_config

CONFIG = load_config(
    ProofTrainingConfig,
    None,
    (
        "generated.num_families=1",
        "generated.generations=3",
        "depth_limit=2",
        "proofs.padding_states=8",
        "proofs.max_depth=4",
        "network.width=4",
        "network.depth=1",
        "ppo.num_envs=4",
        "ppo.num_steps=4",
        "ppo.epochs=1",
        "ppo.minibatches=2",
    ),
)


def test_training_is_told_with_its_settings_and_beside_a_peer_where_one_is_known() -> None:
    known = measure_ppo("family", CONFIG, 2)
    assert json.loads(json.dumps(known)) == known
    assert (known["figure"], known["unit"], known["batch"], known["repeats"]) == ("ppo", "steps/s", 4, 2)
    assert 0 < known["worst"] <= known["value"]
    assert known["peers"] == {"eager": 33.0}
    assert known["passed"] == (known["times_eager"] >= 10)


def test_ranking_counts_candidates_that_were_all_searched() -> None:
    record = measure_ranking("generated", CONFIG, 1, judged=False)
    assert (record["figure"], record["unit"], record["candidates"]) == ("ranking", "candidates/s", 1200)
    assert record["value"] > 0
    assert "peers" not in record and "passed" not in record
