"""Training runs of the search heuristic, and proofs with it from the command line."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from benchmarks.genealogy import generate_genealogy
from typer.testing import CliRunner

from phalanx.cli.app import app
from phalanx.proofs import ProofConfig
from phalanx.training.run import train
from phalanx.training.search_heuristic import (
    HeuristicEvaluationConfig,
    HeuristicTrainingData,
    SearchHeuristicConfig,
    SearchHeuristicTrainer,
    load_heuristic,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    base, queries = generate_genealogy(600, distances=(3,), num_queries=400)
    half = len(queries) // 2
    path = tmp_path_factory.mktemp("genealogy")
    # Training queries are facts; each is excluded from its own proof.
    dataclasses.replace(base, train=(*base.train, *queries[:half]), valid=queries[half:]).save(path)
    return path


def config_of(folder) -> SearchHeuristicConfig:
    return SearchHeuristicConfig(
        env=ProofConfig(dataset=str(folder), max_actions=64),
        predicates=("ancestor",),
        num_updates=2,
        queries_per_update=60,
        update_epochs=6,
        max_expansions=60,
        max_depth=14,
        num_parallel_queries=64,
        evaluation=HeuristicEvaluationConfig(num_queries=20, max_expansions=40),
    )


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    return train(SearchHeuristicTrainer(config_of(folder)), tmp_path_factory.mktemp("heuristic") / "run")


def test_trained_heuristic_needs_fewer_expansions_than_the_baselines(run):
    assert [record["step"] for record in run.evaluations] == [0, 1, 2]
    untrained, _, trained = (record["proofs_per_expansion"] for record in run.evaluations)
    baselines = run.evaluations[0]["baselines"]
    assert set(baselines) == {"uniform", "confidence"}
    assert trained > 2 * max(untrained, baselines["uniform"])
    (summary,) = SearchHeuristicTrainer.summarize(None, run)
    assert summary.startswith("Validation: ") and f"untrained {untrained:.3f}, uniform" in summary


def test_resumed_run_has_the_same_weights(folder, run, tmp_path):
    config = config_of(folder)
    short = config.model_copy(update={"num_updates": 1})
    train(SearchHeuristicTrainer(short), tmp_path / "stopped")
    resumed = train(SearchHeuristicTrainer(config), tmp_path / "stopped", resume=True, extend=True)
    for one, other in zip(*(jax.tree.leaves(each.state.params) for each in (run, resumed)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_seeds_share_the_data_that_was_passed(folder):
    config = config_of(folder)
    data = HeuristicTrainingData.from_config(config)
    assert (
        SearchHeuristicTrainer(config, data)._replace_config(config.model_copy(update={"seed": 1})).data
        is data
    )


def test_weights_are_determined_by_the_seed(folder):
    config = config_of(folder).model_copy(update={"queries_per_update": 20, "update_epochs": 1})

    def weights(seed):
        trainer = SearchHeuristicTrainer(config.model_copy(update={"seed": seed}))
        state, _ = trainer.update(trainer.init(jax.random.key(0)))
        return np.asarray(state.params.last.weight)

    np.testing.assert_array_equal(weights(0), weights(0))
    assert not np.array_equal(weights(0), weights(1))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("dataset=data", "did you mean 'env.dataset'"),
        ("guide.search.expansions=4", "did you mean 'max_expansions'"),
        ("queries_per_updat=4", "did you mean 'queries_per_update'"),
    ],
)
def test_unknown_setting_is_rejected_with_a_suggestion(override, message):
    with pytest.raises(ValueError, match=message):
        SearchHeuristicConfig.load(None, [override])


def test_command_proves_with_a_run_and_prints_the_number_of_nodes(run, folder):
    trainer, heuristic = load_heuristic(run.run_dir)
    found = trainer.search(heuristic, trainer.data.valid, max_expansions=40, max_depth=14)
    row = int(np.flatnonzero(found.proved)[0])
    query = str(trainer.data.vocabulary.decode_atom(trainer.data.valid[row]))

    def prove(*arguments: str):
        command = [
            "prove",
            *arguments,
            "--heuristic",
            str(run.run_dir),
            "--max-depth",
            "14",
            "--max-expansions",
            "40",
        ]
        return CliRunner().invoke(app, command)

    record = json.loads(prove(query, "--json").stdout)
    assert record["proved"] and record["expansions"] == found.expansions[row] and record["goals"][0] == query
    output = prove(query)
    assert output.exit_code == 0 and f"{record['expansions']} nodes expanded" in output.stdout
    invalid = prove(query.replace("ancestor", "ancestr"))
    assert invalid.exit_code != 0 and "no predicate 'ancestr'" in str(invalid.exception)
    assert "has variables" in str(prove("ancestor(X,Y)").exception)
    assert "--heuristic can only be combined" in str(prove(query, "--data", str(folder)).exception)


def test_command_evaluates_a_run_with_other_settings(run):
    command = ["eval", str(run.run_dir), "num_queries=5", "max_expansions=40", "--json"]
    record = json.loads(CliRunner().invoke(app, command).stdout)
    assert (record["split"], record["num_queries"]) == ("valid", 5)
    assert 0 < record["num_expansions"] <= 5 * 40
    assert record["proofs_per_expansion"] > record["baselines"]["uniform"]


def test_knowledge_base_without_rules_is_rejected_with_a_hint(tmp_path):
    (tmp_path / "train.txt").write_text("a\tr\tb\n")
    with pytest.raises(ValueError, match="has no rules to prove with: mine some with `phalanx kg mine"):
        SearchHeuristicTrainer(SearchHeuristicConfig(env=ProofConfig(dataset=str(tmp_path))))
