"""Time limits of exhaustive computations: they stop in time, report progress and return correct results."""

import itertools
import re

import numpy as np
import pytest

from phalanx.kg import KnowledgeBase, Prover, time_limit as time_limit_module
from phalanx.kg.chaining import chaining_rounds
from phalanx.kg.proof_depths import UNDECIDED, compute_proof_depths
from phalanx.kg.proving import parse_query
from phalanx.kg.time_limit import TimeLimit, TimeLimitExceeded
from phalanx.proofs import PositiveQueries, ProofConfig, ProofEnvironment, QueryConfig, env as environment


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
    """Advance the clock by one second at every call."""
    seconds = itertools.count()
    monkeypatch.setattr(time_limit_module.time, "monotonic", lambda: float(next(seconds)))


def test_time_limit_reports_progress_and_raises_when_exceeded(clock):
    messages: list[str] = []
    limit = TimeLimit(13, messages.append)
    with pytest.raises(TimeLimitExceeded):
        _ = [limit.check(f"at {number}") for number in range(100)]
    assert messages == ["at 1 (5 s)", "at 3 (9 s)", "at 5 (13 s)"]
    with pytest.raises(ValueError, match="seconds must be 0 or more, got -1"):
        TimeLimit(-1)


def test_zero_time_limit_leaves_all_depths_undecided_and_is_reported(queries, program):
    messages: list[str] = []
    depths = compute_proof_depths(queries, *program, 5, TimeLimit(0, messages.append))
    assert (depths == UNDECIDED).all()
    assert len(messages) == 1 and messages[0].startswith(
        "out of time after 0 s: the search for proofs of 1 and more steps is incomplete"
    )


def test_depths_decided_within_the_limit_are_exact_and_smallest_first(queries, program, clock):
    exact = compute_proof_depths(queries, *program, 5)
    shares = []
    for seconds in (20, 80, 320, 1280, 5120, 10_000_000):
        depths = compute_proof_depths(queries, *program, 5, TimeLimit(seconds))
        decided = depths != UNDECIDED
        assert np.array_equal(depths[decided], exact[decided])
        if not decided.all():
            assert exact[decided].max(initial=0) <= np.where(exact < 0, 9, exact)[~decided].min()
        shares.append(float(decided.mean()))
    assert shares == sorted(shares) and shares[-1] == 1
    assert any(0 < share < 1 for share in shares)


def test_unfinished_rounds_are_discarded(queries, program, clock):
    finished = set()
    for seconds in range(20, 400, 20):
        messages: list[str] = []
        found = chaining_rounds(queries, *program, None, TimeLimit(seconds, messages.append))
        if match := re.search(r"out of time .* need more than (\d+) rounds", messages[-1]):
            rounds = int(match[1])
            finished.add(rounds)
            reached = chaining_rounds(queries, *program)
            assert np.array_equal(found, np.where(reached <= rounds, reached, -1))
    assert {0, 1} <= finished


def test_prover_raises_when_its_time_limit_is_exceeded(data):
    query = parse_query(data, data.test[-1])
    with pytest.raises(TimeLimitExceeded):
        next(Prover(data.facts, data.rules, TimeLimit(0)).proofs(query))


def test_depths_are_not_computed_without_a_depth_limit(data, monkeypatch):
    monkeypatch.setattr(environment, "compute_proof_depths", None)
    without_depths = data.replace(split_depths={})
    config = ProofConfig(max_actions=8)
    assert (ProofEnvironment.from_knowledge_base(without_depths, config, "test").queries.depths == -1).all()
    known_depths = ProofEnvironment.from_knowledge_base(data, config, "test").queries.depths
    assert known_depths.tolist() == [data.depths("test")[query] for query in data.test]


def test_selecting_queries_by_unknown_depth_raises_error():
    queries = PositiveQueries.create(np.ones((3, 3), np.int32))
    with pytest.raises(ValueError, match="because no depth is known: set compute_depths_up_to"):
        queries.select(QueryConfig(max_depth=2))
    assert len(queries.select(QueryConfig())) == 3
