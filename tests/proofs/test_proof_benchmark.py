"""The proof benchmark: legal actions, whole episodes, and records that say under which conditions."""

import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.proofs.benchmark import (
    PeakMemory,
    ProofBenchmark,
    Workload,
    _draw,
    engines_at_hand,
    record_of,
)
from phalanx.proofs.knowledge.atoms import parse_atom, parse_rule
from phalanx.proofs.knowledge.data import DataHandler
from phalanx.proofs.knowledge.files import KnowledgeBase


@pytest.fixture(scope="module")
def data():
    facts = "wife(a,b). husband(b,a). wife(c,d). husband(d,c)."
    rules = ["r0:1:wife(Y,X) -> husband(X,Y)", "r1:1:husband(Y,X) -> wife(X,Y)"]
    return DataHandler.from_knowledge(
        KnowledgeBase(tuple(map(parse_atom, facts.split())), tuple(map(parse_rule, rules)))
    )


@pytest.fixture(scope="module")
def measurement(data):
    benchmark = ProofBenchmark(batch=8, repeats=2, steps=5, seconds=0.001)
    return benchmark.measure(Workload("couples", 4, (("eager", 1.0),)), engines_at_hand()[0], data, 0.25)


def test_episodes_are_played_to_their_ends_with_legal_actions(measurement):
    # A query has its rule and the end action, or no rule at all: then False is the only choice.
    assert 1 < measurement["choices_mean"] <= 2
    assert 0 < measurement["proved_share"] < 1


def test_a_measurement_says_what_was_measured_and_how(measurement):
    assert (measurement["benchmark"], measurement["figure"]) == ("proofs", "environment")
    assert (measurement["dataset"], measurement["facts"], measurement["rules"]) == ("couples", 4, 2)
    assert (measurement["batch"], measurement["padding_states"], measurement["padding_atoms"]) == (8, 4, 6)
    assert (measurement["steps_per_call"], measurement["repeats"]) == (5, 2)
    assert measurement["value"] >= measurement["worst"] > 0
    assert measurement["end_action"] is True
    assert measurement["compile_seconds"] > 0 and measurement["compile_cpu_seconds"] > 0
    assert measurement["load_seconds"] == 0.25
    assert measurement["peak_rss_mb"] > 50
    assert measurement["times_eager"] == pytest.approx(measurement["value"], rel=0.01)
    assert measurement["targets"]["compile_seconds"] == {"at_most": 15.0}


def test_without_a_folder_the_generated_knowledge_base_is_measured(tmp_path):
    assert [workload.dataset for workload in ProofBenchmark().workloads] == ["generated"]
    (tmp_path / "wn18rr").mkdir()
    (tmp_path / "wn18rr/train.txt").write_text("p(a,b).")
    (workload,) = ProofBenchmark(tmp_path).workloads
    assert (workload.dataset, workload.padding_states) == ("wn18rr", 262)


def test_actions_are_legal_and_spread_over_what_is_legal():
    count = jnp.asarray([1, 2, 3, 5] * 64, jnp.int32)
    actions = np.stack([np.asarray(_draw(jnp.uint32(7), jnp.uint32(t), count)) for t in range(20)])
    assert (actions >= 0).all() and (actions < np.asarray(count)).all()
    shares = np.bincount(actions[:, 3::4].ravel(), minlength=5) / actions[:, 3::4].size
    assert shares == pytest.approx(np.full(5, 0.2), abs=0.04)


def test_targets_are_held_against_the_figure_and_its_ratios():
    def passed(figure, **targets):
        return record_of("f", "d", figure, "steps/s", peers={"eager": 10.0}, targets=targets)["passed"]

    assert passed(1000.0, times_eager={"at_least": 100})
    assert not passed(990.0, times_eager={"at_least": 100})
    assert passed(5.0, value={"at_most": 5})
    assert not passed(5.0, value={"at_most": 5}, times_eager={"at_least": 1})
    assert "passed" not in record_of("f", "d", 1.0, "s")


def test_the_peak_of_memory_starts_anew():
    before = PeakMemory()
    block = np.ones(40_000_000, np.uint8)
    high = before.megabytes()
    del block
    assert high - PeakMemory().megabytes() > 20


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"repeats": 0}, {"steps": 0}])
def test_sizes_below_one_are_refused(wrong):
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        ProofBenchmark(**wrong)
