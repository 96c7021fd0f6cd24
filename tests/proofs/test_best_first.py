"""Best-first search: found proofs and numbers of expansions with several heuristics."""

import numpy as np
import pytest
from benchmarks.genealogy import generate_genealogy

from phalanx.kg import KnowledgeBase, parse_atom, parse_rule
from phalanx.proofs import Program, ProofConfig
from phalanx.proofs.search.best_first import BestFirstConfig, best_first_search
from phalanx.proofs.search.goal_features import GoalFeatureExtractor
from phalanx.proofs.search.heuristics import (
    BreadthFirstHeuristic,
    ConfidenceHeuristic,
    RandomHeuristic,
    UniformPolicyHeuristic,
)
from phalanx.proofs.vocabulary import ProofVocabulary

pytestmark = pytest.mark.slow

CONFIG = ProofConfig(max_actions=32, max_goals=6)
SEARCH = BestFirstConfig(max_expansions=60, max_depth=14, num_parallel_queries=64)


@pytest.fixture(scope="module")
def genealogy():
    base, queries = generate_genealogy(600, distances=(3,), num_queries=400)
    index = ProofVocabulary(base)
    program = Program.from_knowledge_base(base, index)
    return program, GoalFeatureExtractor(program), index.encode(queries)


def small_program(*rules: str) -> tuple[Program, ProofVocabulary]:
    facts = tuple(map(parse_atom, ("parent(a,b)", "parent(b,c)", "friend(a,d)")))
    data = KnowledgeBase(train=facts, rules=tuple(parse_rule(rule) for rule in rules))
    index = ProofVocabulary(data)
    return Program.from_knowledge_base(data, index), index


def test_expansions_are_counted_and_unprovable_queries_end():
    program, index = small_program("r0:0.9:parent(X,Y), parent(Y,Z) -> friend(X,Z)")
    queries = index.encode(map(parse_atom, ("friend(a,c)", "friend(a,d)", "parent(a,d)")))
    found = best_first_search(CONFIG, program, BreadthFirstHeuristic(), queries, SEARCH)
    # The query and the goals parent(a,Y), parent(Y,c) are expanded. A query is not a fact in its own proof.
    assert found.proved.tolist() == [True, False, False]
    assert found.expansions.tolist() == [2, 3, 1] and found.length.tolist() == [2, -1, -1]
    assert [len(path) for path in found.trace.paths.values()] == [2]


def test_confidence_heuristic_tries_confident_rules_first():
    rules = [
        f"r{n}:{n / 10}:friend(X,Y), {'parent' if n == 8 else 'friend'}(Y,Z) -> parent(X,Z)" for n in (2, 5)
    ]
    program, index = small_program(*rules, "r8:0.8:parent(X,Y), parent(Y,Z) -> parent(X,Z)")
    features = GoalFeatureExtractor(program, np.array([0.2, 0.5, 0.8], np.float32))
    queries = index.encode([parse_atom("parent(a,c)")])
    by_confidence = best_first_search(
        CONFIG, program, ConfidenceHeuristic(features.confidence), queries, SEARCH
    )
    in_order = best_first_search(CONFIG, program, BreadthFirstHeuristic(), queries, SEARCH)
    assert by_confidence.expansions[0] == 2 < in_order.expansions[0]


def test_expansion_limit_is_respected(genealogy):
    program, _, queries = genealogy
    tight = SEARCH.model_copy(update={"max_expansions": 5})
    for heuristic in (UniformPolicyHeuristic(), RandomHeuristic(), BreadthFirstHeuristic()):
        found = best_first_search(CONFIG, program, heuristic, queries[:20], tight)
        assert (found.expansions <= 5).all() and not found.proved.any(), "a proof needs eight expansions"
