"""Proofs found per node expanded: a learned guide beside searches that learn nothing, at equal budgets.

Guides are trained on training queries; every figure is of held-out ones, one JSON line for each data set,
seed and method. `genealogy` is generated, with proofs of 8 and 11 steps; the others are mined first.

python benchmarks/guided_search.py --only genealogy
python benchmarks/guided_search.py --data data/kg-standard --split test --seeds 3
"""

import argparse
import json
import pathlib
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from measuring.conditions import conditions

from phalanx.kg import MiningConfig, mine_rules
from phalanx.kg.family_generator import generate_genealogy
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.kg.time_limit import TimeLimit, print_to_stderr
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.program import Program
from phalanx.proofs.search.best_first import BestFirstConfig, Heuristic, SearchResult, best_first_search
from phalanx.proofs.search.goal_features import GoalFeatureExtractor
from phalanx.proofs.search.heuristics import (
    BreadthFirstHeuristic,
    ConfidenceHeuristic,
    RandomHeuristic,
    UniformHeuristic,
)
from phalanx.proofs.vocabulary import ProofVocabulary
from phalanx.training.search_heuristic import HeuristicConfig, HeuristicData, HeuristicTrainer

BUDGETS = (10, 30, 100, 300)
TRAINING = {
    "genealogy": {"queries_per_update": 500, "num_updates": 3},
    "kinship": {"queries_per_update": 400, "num_updates": 2},
    "fb15k-237": {"queries_per_update": 1200, "num_updates": 2},
}
"""What a guide learns from, unless `--set` says otherwise."""
FACTS = 100_000


class Setting(NamedTuple):
    """What is searched: a program, its queries, and how."""

    name: str
    program: Program
    confidence: np.ndarray
    train: np.ndarray
    held_out: np.ndarray
    environment: ProofConfig
    search: BestFirstConfig


def genealogy(split: str, facts: int, most: int, seed: int) -> Setting:
    """Ancestors three and four generations away, from facts about parents, couples and siblings alone."""
    base, queries = generate_genealogy(facts, seed=seed, distances=(3, 4), num_queries=4 * most + 4000)
    data = base.replace(name="genealogy")
    index = ProofVocabulary(data)
    rows = index.encode(queries)
    # Validation, test, and what is left to train on, apart from one another.
    parts = {"valid": rows[:most], "test": rows[most : 2 * most], "train": rows[2 * most :]}
    program = Program.from_knowledge_base(data, index)
    certain = np.ones(len(program.heads), np.float32)
    environment = ProofConfig(max_actions=64, max_goals=6)
    search = BestFirstConfig(max_expansions=max(BUDGETS), max_depth=14)
    return Setting("genealogy", program, certain, parts["train"], parts[split], environment, search)


def mined(folder: pathlib.Path, name: str, split: str, most: int, rules_each: int, length: int) -> Setting:
    """The queries of a standard split, by the most certain path rules of each predicate."""
    data = KnowledgeBase.load(folder / name, on_leak="allow")
    config = MiningConfig(max_length=length, constant_rules=False, num_threads=1)
    found = mine_rules(data, config, TimeLimit(None, print_to_stderr))
    index, kept, confidence = ProofVocabulary(data), [], []
    taken: dict[str, int] = {}
    for place in range(len(found)):
        rule = found[place]
        head = rule.head.predicate
        taken[head] = taken.get(head, 0) + 1
        if taken[head] <= rules_each:
            kept.append(rule)
            confidence.append(found.confidence[place])
    rules = index.encode_rules(kept)
    facts = index.encode(data.facts)
    program = Program.create(facts, rules, index.num_predicates, index.num_constants)
    rows = index.encode(data.queries(split))
    rows = rows[np.sort(np.random.default_rng(0).permutation(len(rows))[:most])]
    environment = ProofConfig(max_actions=256, max_goals=6)
    search = BestFirstConfig(max_expansions=max(BUDGETS), max_depth=6)
    return Setting(name, program, np.array(confidence, np.float32), facts, rows, environment, search)


def measured(setting: Setting, config: HeuristicConfig, methods: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """One record for each method, all on the same held-out queries."""
    program, features = setting.program, GoalFeatureExtractor(setting.program, setting.confidence)
    begin = time.process_time()
    first = (
        ConfidenceHeuristic(features.confidence)
        if (setting.confidence < 1).any()
        else UniformHeuristic(config.seed)
    )
    data = HeuristicData(program, features, setting.train, setting.held_out, first)
    trainer = HeuristicTrainer(config, data)
    untrained = state = trainer.init(jax.random.key(0))
    for _ in range(config.num_updates):
        state, _ = trainer.update(state)
    training = time.process_time() - begin
    guides: dict[str, Heuristic] = {
        "trained": trainer.heuristic(state.params),
        "untrained": trainer.heuristic(untrained.params),
        "uniform": UniformHeuristic(config.seed),
        "breadth-first": BreadthFirstHeuristic(),
        "confidence": ConfidenceHeuristic(features.confidence),
        "random": RandomHeuristic(config.seed),
    }
    tried: dict[str, tuple[SearchResult, float]] = {}
    for name in methods:
        begin = time.process_time()
        found = best_first_search(
            setting.environment, program, guides[name], setting.held_out, setting.search
        )
        tried[name] = found, time.process_time() - begin
    provable = np.any([found.proved for found, _ in tried.values()], axis=0)
    for name, (found, seconds) in tried.items():
        record: dict[str, Any] = {
            "benchmark": "guided_search",
            "dataset": setting.name,
            "method": name,
            "seed": config.seed,
            "facts": len(program.facts),
            "rules": len(program.heads),
            "held_out": len(setting.held_out),
            "proved_by_some_method": int(provable.sum()),
            "overflow": float(found.overflow.mean()),
            "mean_length": float(found.length[found.proved].mean()) if found.proved.any() else None,
            "cpu_seconds": round(seconds, 1),
            "training_cpu_seconds": round(training, 1) if name == "trained" else 0.0,
        }
        for budget in BUDGETS:
            if budget > setting.search.max_expansions:
                continue
            within = found.proved & (found.expansions <= budget)
            expanded = np.minimum(found.expansions, budget)
            record[f"proofs@{budget}"] = int(within.sum())
            record[f"expanded@{budget}"] = int(expanded.sum())
            record[f"per_expansion@{budget}"] = float(within.sum() / expanded.sum())
            record[f"per_expansion_provable@{budget}"] = float(
                within.sum() / max(expanded[provable].sum(), 1)
            )
        yield record


METHODS = ("trained", "untrained", "uniform", "breadth-first", "confidence", "random")


def main() -> None:
    """Print a JSON line for each measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=pathlib.Path, help="the folder that holds fb15k-237 and kinship")
    parser.add_argument("--split", choices=("valid", "test"), default="valid")
    parser.add_argument("--only", action="append", help="genealogy, kinship or fb15k-237; may be given again")
    parser.add_argument("--queries", type=int, default=128, help="held-out queries [128]")
    parser.add_argument("--facts", type=int, default=FACTS, help="of the genealogy [100000]")
    parser.add_argument("--rules", type=int, default=100, help="of each predicate at most [100]")
    parser.add_argument("--length", type=int, default=2, help="atoms in the body of a mined rule [2]")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of HeuristicConfig")
    arguments = parser.parse_args()
    names = arguments.only or ["genealogy", "kinship", "fb15k-237"]
    if arguments.data is None and set(names) - {"genealogy"}:
        parser.error("give --data, or --only genealogy")
    given = dict(pair.split("=") for pair in arguments.set)
    for name in names:
        if name == "genealogy":
            setting = genealogy(arguments.split, arguments.facts, arguments.queries, 0)
        else:
            setting = mined(
                arguments.data,
                name,
                arguments.split,
                arguments.queries,
                arguments.rules,
                arguments.length,
            )
        for seed in range(arguments.seeds):
            settings = {"max_expansions": 100, "max_depth": setting.search.max_depth, **TRAINING[name]}
            config = HeuristicConfig(**{"env": setting.environment, **settings, **given, "seed": seed})
            for record in measured(setting, config, METHODS if seed == 0 else METHODS[:3]):
                print(json.dumps({**record, **conditions("jax", "numpy")}), flush=True)


if __name__ == "__main__":
    main()
