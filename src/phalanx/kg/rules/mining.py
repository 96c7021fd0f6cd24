"""Rule mining: finds path rules and rules with constants, and measures their support and confidence.

A rule such as `h(X,Y) <- b(X,A), c(A,Y)` predicts the triple h(x, y) for all entities x and y for which its
body is true. The C++ extension searches for paths and computes three counts for each rule: the number of
predictions that are facts (support), the total number of predictions, and the number of predictions h(x, y)
for which there is at least one fact h(x, z). The last count is the denominator of the PCA confidence. This
module calls the extension in rounds, computes the confidences from the counts, keeps the most confident
rules, and enforces the time limit.
"""

import itertools
from typing import Any, Literal

import numpy as np
from jaxtyping import Int32
from pydantic import Field

from phalanx.config import Config
from phalanx.formatting import format_count
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.kg.rules.ruleset import MAX_BODY_LENGTH, NUM_COLUMNS, RuleSet
from phalanx.kg.time_limit import Report, TimeLimit, ignore
from phalanx.kg.vocabulary import Vocabulary
from phalanx.native import require_native

_TRIPLES_PER_ROUND = 1024
_ENTITIES_PER_ROUND = 256
_CONSTANTS_PER_ROUND = 1024
_SEARCH_TIME_FRACTION = 0.3
"""The search for paths ends after this fraction of `max_seconds`, so that enough time is left to measure the
rules."""


class MiningConfig(Config):
    """Settings for `mine_rules`.

    Rules are found by a search for paths in the graph. Then the predictions of each rule are counted to
    measure its support and confidence. Without `max_seconds`, the result does not depend on the number of
    threads.
    """

    max_length: int = Field(default=3, ge=1, le=MAX_BODY_LENGTH)
    """Maximum number of body atoms in a path rule, from 1 to 5. Longer rules take much more time."""
    constant_rules: bool = True
    """Mine rules with constants, h(X,c) <- b(X,d), in addition to path rules."""
    dangling_rules: bool = True
    """Also mine rules of the form h(X,c) <- b(X,Y), in which Y occurs only once. This has no effect without
    `constant_rules`."""
    min_support: int = Field(default=2, ge=1)
    """Minimum number of correct predictions of a rule."""
    min_confidence: float = Field(default=0.001, ge=0, le=1)
    """Minimum confidence of a rule."""
    confidence: Literal["standard", "pca"] = "standard"
    """Definition of confidence. `standard` is the fraction of a rule's predictions that are facts. `pca` is
    the same fraction, restricted to predictions h(x, y) for which there is at least one fact h(x, z) (the
    partial completeness assumption of AMIE)."""
    confidence_smoothing: float = Field(default=5.0, ge=0)
    """Constant that is added to the number of predictions when the confidence of a rule is computed. It
    lowers the confidence of rules with few predictions."""
    max_constant_rules: int = Field(default=1_000_000, ge=1)
    """Maximum number of rules with constants. The most confident rules are kept."""
    max_start_triples: int | None = Field(default=None, ge=1)
    """Maximum number of triples from which the search for paths starts. They are taken from the
    relations in round-robin order. If None, all triples are used."""
    max_edges_per_step: int = Field(default=100, ge=1)
    """Maximum number of edges that the search for paths follows from an entity. If an entity has more edges,
    some of them are selected at even intervals."""
    max_path_rules: int = Field(default=100_000, ge=1)
    """Maximum number of path rules whose predictions are counted. The rules that the search found most often
    are kept."""
    max_predictions: int = Field(default=20_000, ge=1)
    """Maximum number of distinct predictions that are counted for a path rule."""
    max_paths_per_entity: int = Field(default=10_000, ge=1)
    """Maximum number of paths that are followed from one entity when the predictions of a rule are
    counted."""
    max_constant_rule_degree: int = Field(default=5_000, ge=1)
    """Entities with more edges than this are not considered as values of X in rules with constants, such as
    h(X,c) <- b(X,d)."""
    seed: int = Field(default=0, ge=0)
    """Seed for the order in which triples and entities are processed."""
    num_threads: int = Field(default=2, ge=1)
    """Number of threads. Without `max_seconds`, it does not change the result."""
    max_seconds: float | None = Field(default=None, gt=0)
    """Time limit in seconds, which is checked between rounds of mining. With a limit, the result depends on
    the speed of the machine. None means no limit."""


def build_graph(triples: Int32[np.ndarray, "triples 3"], vocabulary: Vocabulary) -> Any:
    """Convert encoded triples to a `TripleGraph` of the C++ extension."""
    extension = require_native("rule mining and prediction with rules")
    rows = np.ascontiguousarray(triples, np.int32)
    return extension.TripleGraph(rows, vocabulary.num_entities, vocabulary.num_predicates)


def mine_rules(
    knowledge_base: KnowledgeBase,
    config: MiningConfig | None = None,
    report: Report = ignore,
    **settings: Any,
) -> RuleSet:
    """Mine rules from the facts of a knowledge base, without using validation or test queries.

    Args:
        knowledge_base: The facts. Predicates that do not have two arguments are ignored with a warning.
        config: The settings. If None, the defaults are used.
        report: Function that is called with progress messages.
        settings: Fields of `MiningConfig` that override `config`.

    >>> rules = mine_rules(KnowledgeBase.generate(num_families=2), max_length=2, num_threads=1)
    >>> bool(rules.confidence[0] <= 1)
    True
    """
    config = MiningConfig(**{**(config or MiningConfig()).model_dump(), **settings})
    limit, knowledge_base = TimeLimit(config.max_seconds), knowledge_base.binary()
    vocabulary = knowledge_base.vocabulary
    graph = build_graph(knowledge_base.triples("train"), vocabulary)
    miner = require_native("rule mining").PathRuleMiner(
        graph,
        config.max_length,
        config.max_edges_per_step,
        config.max_predictions,
        config.max_paths_per_entity,
        config.seed,
        config.num_threads,
    )
    is_complete = _find_paths(miner, config, limit, report, len(knowledge_base.facts))
    num_rules = miner.select_rules(config.min_support, config.max_path_rules)
    best = _BestRules(vocabulary, config)
    # Rules with constants are mined first: they take little time, and should be included even if time runs
    # out later.
    if config.constant_rules:
        is_complete &= _mine_constant_rules(graph, best, config, limit, report, vocabulary.num_entities)
    for number in itertools.count():
        if not miner.count_predictions(_ENTITIES_PER_ROUND):
            break
        fraction = min(1.0, (number + 1) * _ENTITIES_PER_ROUND / max(1, vocabulary.num_entities))
        report(f"measuring {format_count(num_rules, 'rule')}: {fraction:.0%} of the entities")
        if _is_late(limit, 1.0):
            is_complete = False
            break
    best.shrink(config.max_constant_rules)
    best.add(*miner.rules(config.min_support))
    return best.result(is_complete=is_complete)


def _find_paths(miner: Any, config: MiningConfig, limit: TimeLimit, report: Report, num_facts: int) -> bool:
    wanted = num_facts if config.max_start_triples is None else min(num_facts, config.max_start_triples)
    for start in range(0, wanted, _TRIPLES_PER_ROUND):
        if not miner.find_bodies(min(_TRIPLES_PER_ROUND, wanted - start)):
            break
        report(f"searching for paths: {start + _TRIPLES_PER_ROUND:,} of {format_count(wanted, 'triple')}")
        if _is_late(limit, _SEARCH_TIME_FRACTION):
            return False
    return True


def _mine_constant_rules(
    graph: Any,
    best: "_BestRules",
    config: MiningConfig,
    limit: TimeLimit,
    report: Report,
    num_entities: int,
) -> bool:
    for start in range(0, num_entities, _CONSTANTS_PER_ROUND):
        best.add(
            *require_native("rule mining").mine_constant_rules(
                graph,
                start,
                start + _CONSTANTS_PER_ROUND,
                config.min_support,
                # PCA confidence can be higher than standard confidence, so rules must not be rejected by the
                # latter.
                config.min_confidence if config.confidence == "standard" else 0.0,
                config.confidence_smoothing,
                config.max_constant_rule_degree,
                config.dangling_rules,
                config.confidence == "pca",
                config.num_threads,
            )
        )
        if len(best) > 2 * config.max_constant_rules:  # limits the memory
            best.shrink(config.max_constant_rules)
        report(f"mining rules with constants: {start:,} of {num_entities:,} entities")
        if _is_late(limit, 0.8):
            return False
    return True


def _is_late(limit: TimeLimit, fraction: float) -> bool:
    return limit.seconds is not None and limit.elapsed > fraction * limit.seconds


class _BestRules:
    """Collects mined rules and keeps only the most confident rules to limit memory use."""

    def __init__(self, vocabulary: Vocabulary, config: MiningConfig) -> None:
        self._vocabulary, self._config = vocabulary, config
        self._rows = [np.zeros((0, NUM_COLUMNS), np.int32)]
        self._counts = [np.zeros((0, 3), np.int64)]

    def add(self, rows: np.ndarray, counts: np.ndarray) -> None:
        # The extension returns C's `long long`, which NumPy treats as a different type than int64.
        counts = counts.view(np.int64)
        is_confident = self.confidence(counts) >= self._config.min_confidence
        self._rows.append(rows[is_confident])
        self._counts.append(counts[is_confident])

    def shrink(self, max_rules: int) -> None:
        """Keep only the `max_rules` most confident rules."""
        best = self.result(max_rules)
        assert best.counts is not None
        self._rows, self._counts = [best.rows], [best.counts]

    def __len__(self) -> int:
        return sum(map(len, self._rows))

    def result(self, max_rules: int | None = None, is_complete: bool = True) -> RuleSet:
        """Return the rules sorted by descending confidence and then by descending support.

        Args:
            max_rules: Maximum number of rules. If None, all rules are returned.
            is_complete: Value of `RuleSet.is_complete` for the result.
        """
        rows, counts = np.concatenate(self._rows), np.concatenate(self._counts)
        confidence = self.confidence(counts)
        order = np.lexsort((-counts[:, 0], -confidence))[:max_rules]
        return RuleSet(self._vocabulary, rows[order], confidence[order], counts[order], is_complete)

    def confidence(self, counts: np.ndarray) -> np.ndarray:
        """Return the standard or PCA confidence of each rule, depending on the config.

        Args:
            counts: Counts of each rule, in the format of `RuleSet.counts`.
        """
        predictions = counts[:, 2 if self._config.confidence == "pca" else 1]
        confidence: np.ndarray = counts[:, 0] / np.maximum(predictions + self._config.confidence_smoothing, 1)
        return confidence
