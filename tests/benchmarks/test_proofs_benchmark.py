"""The proof benchmark: legal actions, whole episodes, records with their conditions, and the command line."""

import json

import jax.numpy as jnp
import numpy as np
import proof_learning
import pytest

import proofs as benchmark
from phalanx import native
from phalanx.kg import KnowledgeBase, parse_atom, parse_rule
from phalanx.training import PPOConfig
from proofs import ProofBenchmark, Workload, _draw, engines_at_hand, record_of

FACTS = {"engine": "native", "worst": 590_000, "compile_seconds": 3.25, "peak_rss_mb": 386}
SMALL = PPOConfig.load(
    "proofs",
    (
        "env.generated.num_families=1",
        "env.generated.generations=3",
        "env.depth_limit=2",
        "env.max_actions=8",
        "env.max_episode_steps=4",
        "network.embedding_dim=4",
        "network.num_layers=1",
        "num_envs=4",
        "num_steps=4",
        "update_epochs=1",
        "num_minibatches=2",
    ),
)


@pytest.fixture(scope="module")
def data():
    facts = "wife(a,b). husband(b,a). wife(c,d). husband(d,c)."
    rules = ["r0:1:wife(Y,X) -> husband(X,Y)", "r1:1:husband(Y,X) -> wife(X,Y)"]
    return KnowledgeBase(tuple(map(parse_atom, facts.split())), tuple(map(parse_rule, rules)))


@pytest.fixture(scope="module")
def measurement(data):
    benchmark = ProofBenchmark(batch=8, repeats=2, steps=5, seconds=0.001)
    return benchmark.measure(Workload("couples", 4, (("eager", 1.0),)), engines_at_hand()[0], data, 0.25)


def test_episodes_are_played_to_their_ends_with_legal_actions(measurement):
    # A query has its rule and the end action, or no rule at all: then False is the only choice.
    assert 1 < measurement["choices_mean"] <= 2
    assert 0 < measurement["proved_rate"] < 1


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


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"repeats": 0}, {"steps": 0}])
def test_sizes_below_one_are_refused(wrong):
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        ProofBenchmark(**wrong)


def test_training_is_told_with_its_settings_and_beside_a_peer_where_one_is_known():
    known = proof_learning.measure_ppo("family", SMALL, 2)
    assert json.loads(json.dumps(known)) == known
    assert (known["figure"], known["unit"], known["batch"], known["repeats"]) == ("ppo", "steps/s", 4, 2)
    assert 0 < known["worst"] <= known["value"]
    assert known["peers"] == {"eager": 33.0}
    assert known["passed"] == (known["times_eager"] >= 10)


def test_ranking_counts_candidates_that_were_all_searched():
    record = proof_learning.measure_ranking("generated", SMALL, 1, judged=False)
    assert (record["figure"], record["unit"], record["candidates"]) == ("ranking", "candidates/s", 1200)
    assert record["value"] > 0
    assert "peers" not in record and "passed" not in record


@pytest.fixture
def measured(monkeypatch):
    """Figures without a measurement; what was asked for is kept."""
    asked = []

    def run(self):
        asked.append(self)
        yield record_of(
            "environment", "family", 620_000.4, "steps/s", peers={"eager": 62.0, "compiled": 175.0},
            facts=FACTS, targets={"times_eager": {"at_least": 100}, "compile_seconds": {"at_most": 15.0}},
        )  # fmt: skip
        yield record_of("ranking", "family", 12.5, "candidates/s", targets={"value": {"at_least": 14}})

    monkeypatch.setattr(ProofBenchmark, "run", run)
    return asked


def test_a_line_of_json_a_figure(program, measured):
    result = program(benchmark, "--json")
    assert (result.code, result.err) == (0, "")
    first, second = map(json.loads, result.out.splitlines())
    assert (first["value"], first["times_eager"], first["times_compiled"]) == (620_000, 10_000.0, 3_542.9)
    assert first["peer"] == "DeepProofLog, measured on 2 cores, shared reference"
    assert (first["passed"], second["passed"]) == (True, False)
    assert "nproc" in first and "load_average" in second
    assert measured[0] == ProofBenchmark(engines=engines_at_hand())


def test_a_table_has_the_peers_and_how_many_times_faster(program, measured):
    result = program(benchmark)
    figures = ["620,000 steps/s", "590,000", "eager 62", "10,000", "3.2", "386", "pass"]
    assert result.rows == [
        ["environment native", "family", *figures],
        ["", "", "", "", "compiled 175", "3,542.9", "", "", ""],
        ["ranking", "family", "12.5 candidates/s", "", "", "", "", "", "FAIL"],
    ]
    assert "Peer: DeepProofLog, measured on 2 cores, shared reference." in result.out


def test_options_are_passed_on(program, measured, tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(proof_learning, "run", lambda *asked: trained.append(asked) or iter(()))
    (tmp_path / "family").mkdir()
    (tmp_path / "family/train.txt").write_text("wife(a,b).\n")
    options = ("--engine", "xla", "--environments", 8, "--repeats", 2, "--data", tmp_path)
    assert program(benchmark, "--json", *options).code == 0
    (asked,) = measured
    assert asked == ProofBenchmark(tmp_path, ("xla",), batch=8, repeats=2)
    assert [workload.dataset for workload in asked.workloads] == ["family"]
    assert trained == [(tmp_path, 2, False)]


def test_a_folder_without_known_knowledge_bases_is_refused(program, measured, tmp_path):
    result = program(benchmark, "--data", tmp_path)
    assert result.code == 2
    assert "holds none of family, wn18rr, countries_s3" in result.err
    assert measured == []


def test_the_native_engine_is_refused_where_it_cannot_be_used(program, measured, monkeypatch):
    monkeypatch.setattr(native, "_load", lambda: "it is not built")
    result = program(benchmark, "--engine", "native")
    assert result.code == 2
    assert "the native engine cannot be used: it is not built" in result.err
