"""Time to mine rules from a knowledge graph, with one and with all threads.

The suite `link_prediction` evaluates the mined rules. AnyBURL was not measured.
"""

import os
from typing import Any

import numpy as np

from benchmarks.datasets import load_knowledge_graph
from benchmarks.machine import peak_memory_mb, reset_peak_memory
from benchmarks.suite import Suite, Workload
from phalanx.kg import KnowledgeBase, MiningConfig, mine_rules
from phalanx.kg.atoms import Atom

suite = Suite("rule_mining", unit="s", packages=("numpy",))

NUM_CORES = len(os.sched_getaffinity(0))
NUM_RELATIONS = 20


def generate_graph(num_facts: int) -> KnowledgeBase:
    """Generate a graph in which about half of the facts follow from others.

    The other facts are random edges of 20 relations. Some entities occur much more often than others. For an
    edge from a to b, there is either an edge from a to c, if the next relation connects b and c, or an
    inverse edge from b to a.
    """
    rng = np.random.default_rng(0)
    num_edges = num_facts // 2
    ends = (num_facts // 4 * rng.random((num_edges, 2)) ** 2).astype(np.int64).tolist()
    relations = rng.integers(0, NUM_RELATIONS, num_edges).tolist()
    edges = [(relation, *pair) for relation, pair in zip(relations, ends, strict=True)]
    tail_of = {(relation, head): tail for relation, head, tail in edges}
    atoms = dict.fromkeys(Atom(f"edge{r}", f"e{a}", f"e{b}") for r, a, b in edges)
    for r, a, b in edges:
        c = tail_of.get(((r + 1) % NUM_RELATIONS, b))
        derived = Atom(f"inverse{r}", f"e{b}", f"e{a}") if c is None else Atom(f"path{r}", f"e{a}", f"e{c}")
        atoms[derived] = None
    return KnowledgeBase(tuple(atoms)[:num_facts]).replace(name="generated")


def _prepare(dataset: str, num_threads: int, num_facts: int = 0, **settings: Any) -> Workload:
    data = generate_graph(num_facts) if dataset == "generated" else load_knowledge_graph(dataset)
    config = MiningConfig(num_threads=num_threads, **settings)
    reset_peak_memory()
    rules = mine_rules(data, config)
    info = {"num_rules": len(rules), "num_facts": len(data.facts), "peak_memory_mb": round(peak_memory_mb())}
    return Workload(lambda: mine_rules(data, config), 1, info)


_DATASETS: dict[str, dict[str, Any]] = {
    "umls": {"dataset": "kg-standard/umls", "max_length": 2},
    "wn18rr": {
        "dataset": "kg-standard/wn18rr",
        "max_length": 5,
        "confidence_smoothing": 2,
        "min_confidence": 0.0005,
    },
    "fb15k-237": {"dataset": "kg-standard/fb15k-237", "max_length": 2, "max_constant_rules": 13_000_000},
    "million": {"dataset": "generated", "num_facts": 1_000_000},
}
for _name, _settings in _DATASETS.items():
    for _num_threads in sorted({1, NUM_CORES}):
        suite.case(
            f"{_name}-{_num_threads}-threads",
            group=_name,
            smoke={"dataset": "generated", "num_facts": 400, "max_length": 2},
            num_threads=_num_threads,
            **_settings,
        )(_prepare)
