"""Best-first proof search with a trained heuristic, compared with heuristics that are not trained.

Every search expands at most 100 nodes per query. The score is the number of proofs that are found within
this limit, divided by the number of expanded nodes. Heuristics are trained on training queries, and all
results are on test queries. `genealogy` is a generated family tree whose queries need proofs of 8 or 11
steps. For the other datasets, rules are mined from the training triples.
"""

import json
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np

from benchmarks.datasets import load_knowledge_graph
from benchmarks.genealogy import generate_genealogy
from benchmarks.peers import REPOSITORY
from benchmarks.suite import Suite
from benchmarks.timing import Measurement
from phalanx.kg import MiningConfig, mine_rules
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.program import Program
from phalanx.proofs.search.best_first import (
    BestFirstConfig,
    Heuristic,
    SearchResults,
    SuccessorBatch,
    best_first_search,
)
from phalanx.proofs.search.goal_features import GoalFeatureExtractor
from phalanx.proofs.search.heuristics import (
    BreadthFirstHeuristic,
    ConfidenceHeuristic,
    UniformPolicyHeuristic,
)
from phalanx.proofs.vocabulary import ProofVocabulary
from phalanx.training.search_heuristic import (
    HeuristicTrainingData,
    SearchHeuristicConfig,
    SearchHeuristicTrainer,
)

suite = Suite("proof_search", unit="proofs/1000 expansions", packages=("jax", "numpy", "scipy"))

RUNS = REPOSITORY / "out" / "benchmarks" / "proof_search"
SEEDS = (0, 1, 2)
MAX_EXPANSIONS = 100
NUM_QUERIES = 256
TRAINING: Mapping[str, Mapping[str, int]] = {
    "genealogy": {"queries_per_update": 500, "num_updates": 3},
    "kinship": {"queries_per_update": 400, "num_updates": 2},
    "fb15k-237": {"queries_per_update": 1200, "num_updates": 2},
}


class Problem(NamedTuple):
    """Facts, rules and queries, and the settings of the search."""

    program: Program
    confidence: np.ndarray
    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    env: ProofConfig
    max_depth: int


class NearnessHeuristic:
    """Untrained heuristic that expands the state whose constants are most similar first.

    It uses one input of the heuristic network: the similarity of the first and the last constant of a state,
    which is computed from random walks along the facts.
    """

    def __init__(self, features: GoalFeatureExtractor, step_cost: float) -> None:
        self._features, self._step_cost = features, step_cost

    def costs(self, batch: SuccessorBatch) -> tuple[np.ndarray, np.ndarray]:
        """Return a constant step cost, and 1 minus the similarity as the estimated cost to a proof."""
        similarity = self._features(batch).states[:, NEARNESS_FEATURE]
        return np.full(len(similarity), self._step_cost, np.float32), 1 - similarity


NEARNESS_FEATURE = 5
"""Column of `GoalFeatures.states` with the similarity by long random walks."""
STEP_COSTS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3)
"""Step costs of `NearnessHeuristic`. The best one is selected on the validation queries."""


def genealogy(num_facts: int, num_queries: int) -> Problem:
    """Ancestor queries about a generated family tree, three and four generations apart."""
    base, queries = generate_genealogy(
        num_facts, seed=0, distances=(3, 4), num_queries=4 * num_queries + 4000
    )
    vocabulary = ProofVocabulary(base)
    rows = vocabulary.encode(queries)
    program = Program.from_knowledge_base(base, vocabulary)
    return Problem(
        program,
        np.ones(len(program.heads), np.float32),
        train=rows[2 * num_queries :],
        valid=rows[:num_queries],
        test=rows[num_queries : 2 * num_queries],
        env=ProofConfig(max_actions=64, max_goals=6),
        max_depth=14,
    )


def mined(dataset: str, num_queries: int, rules_per_predicate: int = 100) -> Problem:
    """Queries of a standard split, with the most confident mined path rules of each predicate."""
    data = load_knowledge_graph(f"kg-standard/{dataset}")
    found = mine_rules(data, MiningConfig(max_length=2, constant_rules=False, num_threads=1))
    vocabulary, kept, confidence = ProofVocabulary(data), [], []
    count: dict[str, int] = {}
    for index in range(len(found)):
        head = found[index].head.predicate
        count[head] = count.get(head, 0) + 1
        if count[head] <= rules_per_predicate:
            kept.append(found[index])
            confidence.append(found.confidence[index])
    facts = vocabulary.encode(data.facts)
    rules = vocabulary.encode_rules(kept)
    program = Program.create(facts, rules, vocabulary.num_predicates, vocabulary.num_constants)

    def sample(split: str) -> np.ndarray:
        rows = vocabulary.encode(data.queries(split))
        return rows[np.sort(np.random.default_rng(0).permutation(len(rows))[:num_queries])]

    return Problem(
        program,
        np.array(confidence, np.float32),
        train=facts,
        valid=sample("valid"),
        test=sample("test"),
        env=ProofConfig(max_actions=256, max_goals=6),
        max_depth=6,
    )


@suite.experiment("genealogy")
def genealogy_search(smoke: bool) -> Iterator[Measurement]:
    """Search in a generated family tree."""
    yield from _compare("genealogy", smoke)


@suite.experiment("kinship")
def kinship_search(smoke: bool) -> Iterator[Measurement]:
    """Search with rules that were mined from Kinship."""
    if not smoke:
        yield from _compare("kinship", smoke)


@suite.experiment("fb15k-237")
def fb15k_search(smoke: bool) -> Iterator[Measurement]:
    """Search with rules that were mined from FB15k-237."""
    if not smoke:
        yield from _compare("fb15k-237", smoke)


def _compare(name: str, smoke: bool) -> Iterator[Measurement]:
    if smoke:
        problem, seeds = genealogy(2000, 8), SEEDS[:1]
        training = {"queries_per_update": 8, "num_updates": 1, "update_epochs": 1}
    else:
        problem = genealogy(100_000, NUM_QUERIES) if name == "genealogy" else mined(name, NUM_QUERIES)
        seeds, training = SEEDS, dict(TRAINING[name])
    features = GoalFeatureExtractor(problem.program, problem.confidence)
    has_confidence = bool((problem.confidence < 1).any())
    results: dict[str, list[SearchResults]] = {}
    results["uniform"] = [_search(problem, UniformPolicyHeuristic(seed), problem.test) for seed in seeds]
    results["breadth-first"] = [_search(problem, BreadthFirstHeuristic(), problem.test)]
    if has_confidence:
        heuristic = ConfidenceHeuristic(features.confidence)
        results["rule-confidence"] = [_search(problem, heuristic, problem.test)]
    by_cost = {
        cost: _search(problem, NearnessHeuristic(features, cost), problem.valid).proofs_per_expansion()
        for cost in STEP_COSTS
    }
    step_cost = max(by_cost, key=by_cost.__getitem__)
    results["nearness"] = [_search(problem, NearnessHeuristic(features, step_cost), problem.test)]
    results["trained"], times = [], []
    for seed in seeds:
        config = SearchHeuristicConfig(
            env=problem.env, seed=seed, max_expansions=100, max_depth=problem.max_depth, **training
        )
        first = ConfidenceHeuristic(features.confidence) if has_confidence else UniformPolicyHeuristic(seed)
        data = HeuristicTrainingData(problem.program, features, problem.train, problem.valid, first)
        heuristic, seconds = _train(SearchHeuristicTrainer(config, data), None if smoke else f"{name}-{seed}")
        results["trained"].append(_search(problem, heuristic, problem.test))
        times.append(seconds)
    facts = {
        "dataset": name,
        "num_facts": len(problem.program.facts),
        "num_rules": len(problem.program.heads),
        "num_queries": len(problem.test),
        "max_expansions": MAX_EXPANSIONS,
    }
    for method, found in results.items():
        settings = {
            **facts,
            "num_proved": [int(result.proved.sum()) for result in found],
            "num_expanded": [int(result.expansions.sum()) for result in found],
            **({"step_cost": step_cost} if method == "nearness" else {}),
            **({"seeds": list(seeds)} if len(found) > 1 else {}),
        }
        values = [1000 * result.proofs_per_expansion() for result in found]
        yield Measurement(f"{name}-{method}", "phalanx", suite.unit, values, (), settings)
    yield Measurement(f"{name}-training-cpu-time", "phalanx", "s", times, (), facts)


def _search(problem: Problem, heuristic: Heuristic, queries: np.ndarray) -> SearchResults:
    config = BestFirstConfig(max_expansions=MAX_EXPANSIONS, max_depth=problem.max_depth)
    return best_first_search(problem.env, problem.program, heuristic, queries, config)


def _train(trainer: SearchHeuristicTrainer, name: str | None) -> tuple[Heuristic, float]:
    """Train a heuristic, or load the result of an earlier run. Also return the CPU time of training."""
    parameters, record = RUNS / f"{name}.eqx", RUNS / f"{name}.json"
    state = trainer.init(jax.random.key(0))
    if name is not None and record.exists():
        params = eqx.tree_deserialise_leaves(parameters, state.params)
        return trainer.heuristic(params), json.loads(record.read_text())["cpu_seconds"]
    cpu_start = time.process_time()
    for _ in range(trainer.config.num_updates):
        state, _ = trainer.update(state)
    seconds = time.process_time() - cpu_start
    if name is not None:
        RUNS.mkdir(parents=True, exist_ok=True)
        eqx.tree_serialise_leaves(parameters, state.params)
        record.write_text(json.dumps({"cpu_seconds": seconds}))
    return trainer.heuristic(state.params), seconds
