"""A guide as a run: it learns, stops and goes on to the same weights, and proves from the command line."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from phalanx.cli.app import app
from phalanx.kg.family_generator import generate_genealogy
from phalanx.proofs import BestFirstConfig, ProofConfig
from phalanx.proofs.search.heuristic_training import HeuristicConfig
from phalanx.training.run import train
from phalanx.training.search_heuristic import (
    HeuristicEvaluationConfig,
    HeuristicTraining,
    HeuristicTrainingConfig,
    load_heuristic,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    base, queries = generate_genealogy(600, distances=(3,), num_queries=400)
    half = len(queries) // 2
    path = tmp_path_factory.mktemp("genealogy")
    # Queries to learn from are facts; each is left out where it is itself proved.
    dataclasses.replace(base, train=(*base.train, *queries[:half]), valid=queries[half:]).save(path)
    return path


def config_of(folder) -> HeuristicTrainingConfig:
    return HeuristicTrainingConfig(
        dataset=str(folder),
        predicates=("ancestor",),
        guide=HeuristicConfig(
            queries=60,
            rounds=2,
            epochs=6,
            search=BestFirstConfig(max_expansions=60, max_depth=14, batch_size=64),
        ),
        environment=ProofConfig(max_actions=64),
        evaluation=HeuristicEvaluationConfig(queries=20, expansions=40),
    )


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    return train(HeuristicTraining(config_of(folder)), tmp_path_factory.mktemp("guide") / "whole")


def test_a_trained_guide_proves_more_for_each_node_than_it_did_and_than_uniform_search(whole):
    modes = [one["mode"] for one in whole.evaluations]
    assert modes == ["guide", "uniform", "confidence", "guide", "guide"]
    untrained, uniform, _, _, trained = (one["proofs_per_expansion"] for one in whole.evaluations)
    assert trained > 2 * max(untrained, uniform)


def test_a_run_that_was_stopped_goes_on_to_the_same_weights(folder, whole, tmp_path):
    config = config_of(folder)
    short = config.model_copy(update={"guide": config.guide.model_copy(update={"rounds": 1})})
    train(HeuristicTraining(short), tmp_path / "stopped")
    again = train(HeuristicTraining(config), tmp_path / "stopped", resume=True, extend=True)
    for one, other in zip(*(jax.tree.leaves(run.state.params) for run in (whole, again)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_command_proves_by_a_run_and_says_how_many_nodes_it_took(whole, folder):
    training, guide = load_heuristic(whole.run_dir)
    tried = training.search(guide, training.valid, 40, 14)
    row = int(np.flatnonzero(tried.proved)[0])
    query = str(training.data.names.decode_atom(training.valid[row]))

    def prove(*arguments: str):
        words = [
            "prove",
            *arguments,
            "--heuristic",
            str(whole.run_dir),
            "--max-depth",
            "14",
            "--max-expansions",
            "40",
        ]
        return CliRunner().invoke(app, words)

    told = json.loads(prove(query, "--json").stdout)
    assert told["proved"] and told["expansions"] == tried.expansions[row] and told["goals"][0] == query
    shown = prove(query)
    assert shown.exit_code == 0 and f"{told['expansions']} nodes expanded" in shown.stdout
    wrong = prove(query.replace("ancestor", "ancestr"))
    assert wrong.exit_code != 0 and "no predicate 'ancestr'" in str(wrong.exception)
    assert "has variables" in str(prove("ancestor(X,Y)").exception)
    assert "--heuristic can only be combined" in str(prove(query, "--data", str(folder)).exception)


def test_a_knowledge_base_without_rules_is_refused_with_what_to_do(tmp_path):
    (tmp_path / "train.txt").write_text("a\tr\tb\n")
    with pytest.raises(ValueError, match="has no rules to prove by: `phalanx kg mine"):
        HeuristicTraining(HeuristicTrainingConfig(dataset=str(tmp_path)))
