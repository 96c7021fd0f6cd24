"""How well and how fast mined rules rank standard splits, one JSON line each, and mining of a million facts.

python benchmarks/rules.py --data data/kg-standard --split valid    # to choose settings by
python benchmarks/rules.py --data data/kg-standard --split test
python benchmarks/rules.py --data data/kg-standard --only fb15k-237 --kge runs/fb-kge    # with an embedding
python benchmarks/rules.py --data data/kg-standard --only wn18rr --network wn18rr.npz    # or a network
python benchmarks/rules.py --million
"""

import argparse
import dataclasses
import json
import pathlib
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from measuring.conditions import conditions

from phalanx.kg import (
    MiningConfig,
    PathNetwork,
    RulePredictor,
    evaluate_link_prediction,
    fit_path_network,
    mine_rules,
)
from phalanx.kg.atoms import Atom
from phalanx.kg.kge import load_kge
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.kg.rules.predictor import DEFAULT_POWER, Aggregation
from phalanx.kg.time_limit import TimeLimit, print_to_stderr


@dataclasses.dataclass(frozen=True)
class Workload:
    """A standard split, what it is mined with, and the MRR to reach."""

    dataset: str
    config: MiningConfig
    bar: float
    aggregation: Aggregation = "maxplus"
    power: float = DEFAULT_POWER
    cpu_seconds: float | None = None
    """For mining and ranking together."""
    kge_bar: float | None = None
    """The MRR to reach with an embedding or a network; FB15k-237's was measured with `maximum`."""


WORKLOADS = (
    Workload(
        "wn18rr",
        MiningConfig(max_length=5, confidence_smoothing=2, min_confidence=0.0005),
        0.495,
        "power",
        cpu_seconds=60,
        kge_bar=0.53,
    ),
    Workload(
        "fb15k-237",
        MiningConfig(max_length=2, max_constant_rules=13_000_000),
        0.33,
        "power",
        6.0,
        kge_bar=0.36,
    ),
    Workload("umls", MiningConfig(max_length=2), 0.90),
    Workload("kinship", MiningConfig(max_length=2), 0.72, "learned"),
    Workload("family", MiningConfig(max_length=2), 0.98),
)
"""Settings were chosen on the validation splits."""

MILLION_SECONDS, MILLION_BYTES = 120.0, 4 << 30


def ranking(
    workload: Workload, folder: pathlib.Path, split: str, threads: int, kge: pathlib.Path | None
) -> dict[str, Any]:
    """Mine from the training triples and rank a split by the rules; the seconds are the processors'."""
    data = KnowledgeBase.load(folder / workload.dataset, on_leak="allow")
    config = workload.config.model_copy(update={"num_threads": threads})
    begin = time.process_time()
    rules = mine_rules(data, config, TimeLimit(None, print_to_stderr))
    mined = time.process_time()
    budget = TimeLimit(None, print_to_stderr)
    embedding = None if kge is None else load_kge(kge, rules.vocabulary)
    bar = workload.bar if kge is None else workload.kge_bar or workload.bar
    predictor = RulePredictor.fit(
        rules,
        data,
        # Beside an embedding a rule counts for the logarithm of its confidence.
        workload.aggregation if kge is None else "maxplus",
        kge=embedding,
        power=workload.power,
        max_paths=config.max_paths,
        num_threads=threads,
        time_limit=budget,
    )
    found = evaluate_link_prediction(predictor, data, split, ties="random", time_limit=budget)
    ended = time.process_time()
    changed = config.model_dump(exclude_defaults=True)
    return {
        "benchmark": "rules",
        "dataset": workload.dataset,
        "settings": changed,
        **found.as_record(),
        "kge": None if kge is None else str(kge),
        "bar": bar,
        "holds": found.total.mrr >= bar,
        "mining_cpu_seconds": round(mined - begin, 2),
        "ranking_cpu_seconds": round(ended - mined, 2),
        "cpu_seconds_bar": workload.cpu_seconds,
        "peak_bytes": _peak_bytes(),
    }


def network(
    workload: Workload, folder: pathlib.Path, split: str, threads: int, file: pathlib.Path
) -> dict[str, Any]:
    """Rank a split by the network over paths in a file, which is learned from the training triples first."""
    data = KnowledgeBase.load(folder / workload.dataset, on_leak="allow")
    begin, budget = time.process_time(), TimeLimit(None, print_to_stderr)
    if file.exists():
        found = PathNetwork.load(file, data, threads)
    else:
        found = fit_path_network(data, num_threads=threads, time_limit=budget)
        found.save(file)
    learned = time.process_time()
    ranked = evaluate_link_prediction(found, data, split, ties="random", time_limit=budget)
    bar = workload.kge_bar or workload.bar
    return {
        "benchmark": "network",
        "dataset": workload.dataset,
        "settings": found.config.model_dump(),
        **ranked.as_record(),
        "bar": bar,
        "holds": ranked.total.mrr >= bar,
        "learning_cpu_seconds": round(learned - begin, 2),
        "ranking_cpu_seconds": round(time.process_time() - learned, 2),
        "peak_bytes": _peak_bytes(),
    }


def million_facts(facts: int, seed: int) -> KnowledgeBase:
    """Generated triples of 40 relations among a quarter as many entities, with rules in them.

    Half of them are random, with few entities in many triples; the other half follow from two of those.
    """
    draw = np.random.default_rng(seed)
    entities, half = facts // 4, facts // 2
    ends = (entities * draw.random((half, 2)) ** 2).astype(np.int64)
    relation = draw.integers(0, 20, half)
    # For an edge from a to b, and one of the next relation from b to c: the composed relation from a to c.
    by_head: dict[tuple[int, int], int] = {}
    for r, (a, b) in zip(relation.tolist(), ends.tolist(), strict=True):
        by_head[r, a] = b
    atoms = {
        Atom(f"p{r}", f"e{a}", f"e{b}"): None
        for r, (a, b) in zip(relation.tolist(), ends.tolist(), strict=True)
    }
    for r, (a, b) in zip(relation.tolist(), ends.tolist(), strict=True):
        if (c := by_head.get(((r + 1) % 20, b))) is not None:
            atoms[Atom(f"c{r}", f"e{a}", f"e{c}")] = None
        else:
            atoms[Atom(f"i{r}", f"e{b}", f"e{a}")] = None
        if len(atoms) >= facts:
            break
    return KnowledgeBase(tuple(atoms)[:facts]).replace(name="generated")


def million(facts: int, threads: int, seed: int = 0) -> dict[str, Any]:
    """Mine path rules of length 3 and rules with constants from that many generated facts."""
    data = million_facts(facts, seed)
    before, wall = time.process_time(), time.perf_counter()
    rules = mine_rules(data, MiningConfig(num_threads=threads), TimeLimit(None, print_to_stderr))
    seconds, peak = time.process_time() - before, _peak_bytes()
    return {
        "benchmark": "mine_generated",
        "facts": len(data.facts),
        "entities": len(data.entities),
        "rules": len(rules),
        "complete": rules.is_complete,
        "first": [str(rule) for rule in (rules[place] for place in range(min(3, len(rules))))],
        "cpu_seconds": round(seconds, 1),
        "wall_seconds": round(time.perf_counter() - wall, 1),
        "peak_bytes": peak,
        "bar_seconds": MILLION_SECONDS,
        "bar_bytes": MILLION_BYTES,
        "holds": seconds < MILLION_SECONDS and peak < MILLION_BYTES,
    }


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measurements(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One record after the other."""
    if arguments.million:
        yield million(arguments.facts, arguments.threads)
        return
    for workload in WORKLOADS:
        if arguments.only and workload.dataset not in arguments.only:
            continue
        if arguments.network is not None:
            yield network(workload, arguments.data, arguments.split, arguments.threads, arguments.network)
        else:
            yield ranking(workload, arguments.data, arguments.split, arguments.threads, arguments.kge)


def main() -> None:
    """Print a JSON line for each measurement; exit code 1 where a bar is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=pathlib.Path, help="the folder that holds wn18rr, fb15k-237, ...")
    parser.add_argument("--split", choices=("valid", "test"), default="valid")
    parser.add_argument("--only", action="append", help="this data set; may be given again")
    parser.add_argument(
        "--kge", type=pathlib.Path, help="rank by this run of `phalanx train kge` too; with one --only"
    )
    parser.add_argument(
        "--network", type=pathlib.Path, help="rank by the network in this file, or learn it; with one --only"
    )
    parser.add_argument("--million", action="store_true", help="mine generated facts instead")
    parser.add_argument("--facts", type=int, default=1_000_000, help="how many of them [1000000]")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    if not arguments.million and arguments.data is None:
        parser.error("give --data, or --million")
    if (arguments.kge or arguments.network) is not None and len(arguments.only or ()) != 1:
        parser.error("--kge and --network are of one data set: name that with --only")
    missed = False
    for record in measurements(arguments):
        print(json.dumps({**record, **conditions("numpy")}), flush=True)
        missed |= not record["holds"]
    sys.exit(missed)


if __name__ == "__main__":
    main()
