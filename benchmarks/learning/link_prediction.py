"""Link prediction with mined rules and with a path network, on standard and on inductive splits.

Ranks are filtered, and heads and tails are ranked among all entities. All settings were chosen on the
validation queries. The inductive splits are those of GraIL (Teru et al., 2020, arXiv:1911.06962).
"""

import json
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.datasets import load_knowledge_graph
from benchmarks.peers import REPOSITORY
from benchmarks.suite import Suite
from benchmarks.timing import Measurement
from phalanx.kg import (
    KnowledgeBase,
    LinkPredictor,
    MiningConfig,
    PathNetwork,
    RulePredictor,
    evaluate_inductive,
    fit_path_network,
    generate_family,
    mine_rules,
)
from phalanx.kg.evaluation import RankCounts, RankMetrics, TieRule, count_ranks, list_metrics, summarize

suite = Suite("link_prediction", unit="MRR", packages=("numpy",))

RUNS = REPOSITORY / "out" / "benchmarks" / "link_prediction"
NETWORK_SEEDS = (0, 1)
CANDIDATE_SEEDS = (0, 1, 2)
"""Seeds of the 50 random candidates in the inductive evaluation."""
RULES: dict[str, tuple[MiningConfig, dict[str, Any]]] = {
    "wn18rr": (
        MiningConfig(max_length=5, confidence_smoothing=2, min_confidence=0.0005),
        {"aggregation": "power"},
    ),
    "fb15k-237": (
        MiningConfig(max_length=2, max_constant_rules=13_000_000),
        {"aggregation": "power", "power": 6.0},
    ),
}
"""Settings of `mine_rules` and of `RulePredictor.fit`."""
TIES: dict[str, TieRule] = {"random-ties": "random", "worst-case-ties": "pessimistic"}


@suite.experiment("rules")
def rules(smoke: bool) -> Iterator[Measurement]:
    """Mine rules from the training triples and evaluate them on the test queries."""
    for dataset, (config, settings) in RULES.items():
        data, name = (
            (_family(), "family") if smoke else (load_knowledge_graph(f"kg-standard/{dataset}"), dataset)
        )
        cpu_start = time.process_time()
        mined = mine_rules(data, config.model_copy(update={"num_threads": 1}))
        mining_seconds = time.process_time() - cpu_start
        predictor = RulePredictor.fit(
            mined, data, max_paths_per_entity=config.max_paths_per_entity, num_threads=1, **settings
        )
        facts = {
            "dataset": name,
            "num_rules": len(mined),
            "mining_cpu_seconds": round(mining_seconds, 1),
            "mining": config.model_dump(exclude_defaults=True),
            **settings,
        }
        yield from _ranking(f"rules-{dataset}", [_test_counts(predictor, data)], data, facts)
        if smoke:
            return


@suite.experiment("path-network")
def path_network(smoke: bool) -> Iterator[Measurement]:
    """Train path networks on WN18RR and evaluate them on the test queries."""
    data = _family() if smoke else load_knowledge_graph("kg-standard/wn18rr")
    seeds = NETWORK_SEEDS[:1] if smoke else NETWORK_SEEDS
    counts, times, network = [], [], None
    for seed in seeds:
        name = f"path-network-wn18rr-{seed}"
        if smoke:
            network = fit_path_network(data, seed=seed, num_epochs=0.05, num_threads=1)
            counts.append(_test_counts(network, data))
            times.append(0.0)
            continue
        record = RUNS / f"{name}.json"
        if not record.exists():
            RUNS.mkdir(parents=True, exist_ok=True)
            cpu_start = time.process_time()
            network = fit_path_network(data, seed=seed, num_threads=1)
            network.save(RUNS / f"{name}.npz")
            record.write_text(json.dumps({"cpu_seconds": time.process_time() - cpu_start}))
        network = PathNetwork.load(RUNS / f"{name}.npz", data, num_threads=1)
        counts.append(_cached_counts(RUNS / f"{name}-ranks.npz", lambda n=network: _test_counts(n, data)))
        times.append(json.loads(record.read_text())["cpu_seconds"])
    assert network is not None
    facts = {
        "dataset": data.name,
        "seeds": list(seeds),
        "num_parameters": network.parameters.size,
        "network": network.config.model_dump(exclude={"seed"}),
    }
    yield from _ranking("path-network-wn18rr", counts, data, facts)
    yield Measurement("path-network-wn18rr-cpu-time", "phalanx", "s", times, (), facts)


@suite.experiment("inductive")
def inductive(smoke: bool) -> Iterator[Measurement]:
    """Mine rules from one graph and evaluate them on another graph with the same relations but new entities.

    Each answer is ranked among 50 random candidates, as in GraIL. Rules are combined with a model of the
    roles of an entity, whose weight is selected on the validation queries of the first graph.
    """
    names = [f"{graph}_v{version}" for graph in ("wn18rr", "fb237") for version in (1, 2, 3, 4)]
    for name in names[:1] if smoke else names:
        if smoke:
            source = target = _family()
        else:
            source, target = (
                load_knowledge_graph(f"kg-standard/inductive/{part}") for part in (name, f"{name}_ind")
            )
        config = MiningConfig(
            max_length=5 if name.startswith("wn") and not smoke else 3,
            constant_rules=False,
            min_confidence=0.0005,
            confidence_smoothing=2,
            num_threads=1,
        )
        mined = mine_rules(source, config)
        seeds = CANDIDATE_SEEDS[:1] if smoke else CANDIDATE_SEEDS
        for id, options in (("rules-and-roles", {}), ("rules-only", {"role_weights": (0.0,)})):
            found = [
                evaluate_inductive(mined, source, target, "test", "noisyor", seed=seed, **options)
                for seed in seeds
            ]
            values = [result.result.total.hits[10] for result in found]
            facts = {"dataset": name, "seeds": list(seeds), "num_rules": found[0].num_rules, "candidates": 50}
            yield Measurement(f"inductive-{name}-{id}", "phalanx", "Hits@10", values, (), facts)


def _ranking(
    id: str, counts: list[RankCounts], data: KnowledgeBase, facts: dict[str, Any]
) -> Iterator[Measurement]:
    """Return MRR and Hits@10 for both tie rules, and MRR with and without a reverse training triple."""
    triples = data.binary().triples("test")
    has_reverse = reverse_in_training(data)
    query = np.tile(np.arange(len(triples)), 2)
    facts = {**facts, "num_queries": len(triples), "num_queries_with_reverse": int(has_reverse.sum())}

    def metrics(ties: TieRule, mask: np.ndarray) -> list[RankMetrics]:
        rows = np.tile(mask, 2)
        draw = np.random.default_rng(0).random(2 * len(triples))
        return [summarize(list_metrics(count, ties, draw)[rows], query[rows]) for count in counts]

    def measurement(name: str, unit: str, values: list[float], **more: Any) -> Measurement:
        return Measurement(f"{id}-{name}", "phalanx", unit, values, (), {**facts, **more})

    for name, ties in TIES.items():
        found = metrics(ties, np.ones(len(triples), bool))
        errors = [result.mrr_se for result in found]
        yield measurement(f"mrr-{name}", "MRR", [result.mrr for result in found], standard_errors=errors)
        errors = [result.hits_se[10] for result in found]
        hits = [result.hits[10] for result in found]
        yield measurement(f"hits-at-10-{name}", "Hits@10", hits, standard_errors=errors)
    for name, mask in (("reverse-in-training", has_reverse), ("no-reverse-in-training", ~has_reverse)):
        if mask.any():
            values = [result.mrr for result in metrics("pessimistic", mask)]
            yield measurement(f"mrr-{name}", "MRR", values, ties="pessimistic", num_queries=int(mask.sum()))


def reverse_in_training(data: KnowledgeBase) -> np.ndarray:
    """Return for each test triple (h, r, t) whether (t, r, h) is a training triple."""
    data = data.binary()
    training = set(map(tuple, data.triples("train").tolist()))
    return np.array([(r, t, h) in training for r, h, t in data.triples("test").tolist()], bool)


def _test_counts(predictor: LinkPredictor, data: KnowledgeBase) -> RankCounts:
    data = data.binary()
    return count_ranks(predictor, data.triples("test"), data.known_answers)


def _cached_counts(path: pathlib.Path, compute: Callable[[], RankCounts]) -> RankCounts:
    if not path.exists():
        np.savez(path, **compute()._asdict())
    with np.load(path) as arrays:
        return RankCounts(**arrays)


def _family() -> KnowledgeBase:
    return generate_family(2, seed=0)
