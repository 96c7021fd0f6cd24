"""Exhaustive work ends when its time is up, says how far it came, and what it settled is right."""

import itertools
import re

import numpy as np
import pytest

from phalanx.kg import KnowledgeBase, Prover, time_limit as budgets
from phalanx.kg.chaining import chaining_rounds
from phalanx.kg.proof_depths import UNDECIDED, compute_proof_depths
from phalanx.kg.proving import parse_query
from phalanx.kg.time_limit import TimeLimit, TimeLimitExceeded
from phalanx.proofs import ProofConfig, ProofEnvironment, QueryConfig, QuerySet, env as environment
from phalanx.proofs.link_prediction import exact_scorer


@pytest.fixture(scope="module")
def data() -> KnowledgeBase:
    return KnowledgeBase.generate(num_families=2, generations=3)


@pytest.fixture(scope="module")
def program(data):
    index = data.vocabulary
    return index.encode(data.facts), index.encode_rules(data.rules)


@pytest.fixture
def queries(data):
    return data.vocabulary.encode((*data.test, *data.facts))


@pytest.fixture
def clock(monkeypatch):
    """A second passes with every look at the clock."""
    seconds = itertools.count()
    monkeypatch.setattr(budgets.time, "monotonic", lambda: float(next(seconds)))


def test_a_budget_speaks_every_four_seconds_and_ends_in_time(clock):
    said: list[str] = []
    budget = TimeLimit(13, said.append)
    with pytest.raises(TimeLimitExceeded):
        _ = [budget.check(f"at {number}") for number in range(100)]
    assert said == ["at 3 (4 s)", "at 7 (9 s)"]
    with pytest.raises(ValueError, match="seconds must be 0 or more, got -1"):
        TimeLimit(-1)


def test_without_time_nothing_is_settled_and_it_is_said(queries, program):
    said: list[str] = []
    depths = compute_proof_depths(queries, *program, 5, TimeLimit(0, said.append))
    assert (depths == UNDECIDED).all()
    assert len(said) == 1 and said[0].startswith(
        "out of time after 0 s: the search for proofs of 1 and more steps is incomplete"
    )


def test_what_is_settled_in_time_is_right_and_small_depths_come_first(queries, program, clock):
    exact = compute_proof_depths(queries, *program, 5)
    shares = []
    for seconds in (20, 80, 320, 1280, 5120, 10_000_000):
        depths = compute_proof_depths(queries, *program, 5, TimeLimit(seconds))
        settled = depths != UNDECIDED
        assert np.array_equal(depths[settled], exact[settled])
        if not settled.all():
            assert exact[settled].max(initial=0) <= np.where(exact < 0, 9, exact)[~settled].min()
        shares.append(float(settled.mean()))
    assert shares == sorted(shares) and shares[-1] == 1
    assert any(0 < share < 1 for share in shares)


def test_rounds_that_are_not_finished_in_time_do_not_count(queries, program, clock):
    finished = set()
    for seconds in range(20, 400, 20):
        said: list[str] = []
        found = chaining_rounds(queries, *program, None, TimeLimit(seconds, said.append))
        if told := re.search(r"out of time .* need more than (\d+) rounds", said[-1]):
            rounds = int(told[1])
            finished.add(rounds)
            reached = chaining_rounds(queries, *program)
            assert np.array_equal(found, np.where(reached <= rounds, reached, -1))
    assert {0, 1} <= finished


def test_the_exact_scorer_counts_what_is_not_found_in_time_as_unproved(data, program, capsys):
    queries = data.vocabulary.encode(data.test)
    assert exact_scorer(*program)(queries).proved.all()
    assert not exact_scorer(*program, max_seconds=0)(queries).proved.any()
    assert capsys.readouterr().err.count("out of time after 0 s") == 1


def test_a_prover_stops_when_its_time_is_up(data):
    query = parse_query(data, data.test[-1])
    with pytest.raises(TimeLimitExceeded):
        next(Prover(data.facts, data.rules, TimeLimit(0)).proofs(query))


def test_without_a_depth_limit_no_depth_is_computed(data, monkeypatch):
    monkeypatch.setattr(environment, "compute_proof_depths", None)
    bare = data.replace(split_depths={})
    config = ProofConfig(max_actions=8)
    assert (ProofEnvironment.from_knowledge_base(bare, config, "test").queries.depths == -1).all()
    given = ProofEnvironment.from_knowledge_base(data, config, "test").queries.depths
    assert given.tolist() == [data.depths("test")[query] for query in data.test]


def test_queries_of_unknown_depth_cannot_be_chosen_by_it():
    queries = QuerySet.create(np.ones((3, 3), np.int32))
    with pytest.raises(ValueError, match="because no depth is known: set depth_limit"):
        queries.select(QueryConfig(max_depth=2))
    assert len(queries.select(QueryConfig())) == 3
