"""Mining: rules from triples, in rounds that are done whole.

The rounds are those of the native engine, or of `plain` where there is none; both find the same.
"""

import itertools
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Int32

from phalanx.formatting import format_count
from phalanx.kg.knowledge_base import DataHandler
from phalanx.kg.rules.config import MiningConfig
from phalanx.kg.rules.ruleset import COLUMNS, RuleSet
from phalanx.kg.time_limit import TimeLimit
from phalanx.kg.vocabulary import IndexManager
from phalanx.native import native_module

_TRIPLES_A_ROUND = 1024
_ENTITIES_A_ROUND = 256
_CONSTANTS_A_ROUND = 1024
_MANY = 100_000
"""Facts whose numbering takes long enough to be said."""
_LOOKING_SHARE = 0.3
"""Of the seconds: when to stop looking for bodies and to measure what was found."""


def engine() -> ModuleType:
    """What mines and applies: C++, or plain Python."""
    compiled = native_module()
    if compiled is not None:
        return compiled
    from phalanx.kg.rules import plain

    return plain


def graph_of(triples: Int32[np.ndarray, "triples 3"], index: IndexManager) -> Any:
    """Triples as `IndexManager` numbers them, as the engine's graph."""
    return engine().TripleGraph(np.ascontiguousarray(triples - 1), index.num_constants, index.num_predicates)


def mine_rules(
    data: DataHandler, config: MiningConfig | None = None, budget: TimeLimit | None = None, **settings: Any
) -> RuleSet:
    """The rules that the facts of a knowledge base suggest; validation and test queries are not looked at.

    Settings are those of `MiningConfig`, by name or as a whole. The budget is told every few seconds what is
    being done.

    >>> rules = mine(DataHandler(num_families=2), length=2, threads=1)
    >>> rules.confidence[0] <= 1
    True
    """
    config = MiningConfig(**{**(config or MiningConfig()).model_dump(), **settings})
    budget = budget or TimeLimit()
    data = data.binary()
    if len(data.facts) > _MANY:
        budget.say(f"numbering {format_count(len(data.facts), 'fact')}")
    index = IndexManager(data)
    graph = graph_of(index.encode_atoms(data.facts), index)
    miner = engine().PathRuleMiner(
        graph, config.length, config.fan, config.enough, config.limit, config.seed, config.threads
    )
    complete = _discover(miner, config, budget, len(data.facts))
    pairs = miner.select_rules(config.min_support, config.max_bodies)
    kept = _Best(index, config)
    # Rules with constants take little time, and are to be there whenever time is up.
    if config.constants:
        complete &= _mine_constants(graph, kept, config, budget, index.num_constants)
    for place in itertools.count():
        if not miner.count_predictions(_ENTITIES_A_ROUND):
            break
        share = min(1.0, (place + 1) * _ENTITIES_A_ROUND / max(1, index.num_constants))
        budget.word(f"measuring {format_count(pairs, 'rule')}: {share:.0%} of the entities")
        if _late(config, budget, 1.0):
            complete = False
            break
    kept.shrink()
    kept.add(*miner.rules(config.min_support))
    return kept.best(complete)


def _discover(miner: Any, config: MiningConfig, budget: TimeLimit, facts: int) -> bool:
    wanted = facts if config.triples is None else min(facts, config.triples)
    for begin in range(0, wanted, _TRIPLES_A_ROUND):
        if not miner.find_bodies(min(_TRIPLES_A_ROUND, wanted - begin)):
            break
        budget.word(f"looking for paths: {begin + _TRIPLES_A_ROUND:,} of {format_count(wanted, 'triple')}")
        if _late(config, budget, _LOOKING_SHARE):
            return False
    return True


def _mine_constants(
    graph: Any, kept: "_Best", config: MiningConfig, budget: TimeLimit, entities: int
) -> bool:
    for begin in range(0, entities, _CONSTANTS_A_ROUND):
        kept.add(
            *engine().mine_constant_rules(
                graph,
                begin,
                begin + _CONSTANTS_A_ROUND,
                config.min_support,
                # The pca confidence is never less than the standard one, so that cannot bound it.
                config.min_confidence if config.confidence == "standard" else 0.0,
                config.pessimism,
                config.widest,
                config.dangling,
                config.confidence == "pca",
                config.threads,
            )
        )
        budget.word(f"rules with constants: {begin:,} of {entities:,} entities")
        if _late(config, budget, 0.8):
            return False
    return True


def _late(config: MiningConfig, budget: TimeLimit, share: float) -> bool:
    return config.seconds is not None and budget.spent > share * config.seconds


class _Best:
    """The best rules so far, so that memory is bounded."""

    def __init__(self, index: IndexManager, config: MiningConfig) -> None:
        self._index, self._config = index, config
        self._rows = [np.zeros((0, COLUMNS), np.int32)]
        self._counts = [np.zeros((0, 3), np.int64)]
        self._size = 0

    def add(self, rows: np.ndarray, counts: np.ndarray) -> None:
        # The engine's numbers are C's `long long`, which NumPy holds for another type than int64.
        counts = counts.view(np.int64)
        confident = self._confidence(counts) >= self._config.min_confidence
        self._rows.append(rows[confident])
        self._counts.append(counts[confident])
        self._size += int(confident.sum())
        if self._size > 2 * self._config.max_constants:
            self.shrink()

    def shrink(self) -> None:
        best = self.best(complete=True, most=self._config.max_constants)
        assert best.counts is not None
        self._rows, self._counts, self._size = [best.rows], [best.counts], len(best)

    def best(self, complete: bool, most: int | None = None) -> RuleSet:
        rows, counts = np.concatenate(self._rows), np.concatenate(self._counts)
        confidence = self._confidence(counts)
        return RuleSet.sorted(self._index, rows, confidence, counts, most=most, complete=complete)

    def _confidence(self, counts: np.ndarray) -> np.ndarray:
        tried = counts[:, 2 if self._config.confidence == "pca" else 1]
        confidence: np.ndarray = counts[:, 0] / np.maximum(tried + self._config.pessimism, 1)
        return confidence
