"""Link-prediction evaluation: filtered ranks, tie rules, MRR and Hits@k.

A ranking list consists of the true answer to a query and the candidates that it is ranked among. An
evaluation has three steps. First, it counts for each list how many candidates have a higher score than the
true answer, and how many have the same score (`RankCounts`). Then `list_metrics` applies the tie rule to
these counts and computes the metrics of each list. Finally, `summarize` averages the metrics over all lists
and computes their standard errors.

There are three ways to obtain the counts: from the scores of all entities (`LinkPredictor`), from the scores
of the triples in sampled candidate lists (`TripleScorer`), or from a predictor's own `count_ranks` method.
The third way is needed for rules, because answers are then compared by the rules that predict them, not by
scores.
"""

import abc
import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32, Int64

from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.kg.proof_depths import NO_PROOF, UNDECIDED
from phalanx.kg.time_limit import Report, ignore
from phalanx.kg.triple_index import TripleIndex, directed_queries
from phalanx.kg.vocabulary import Vocabulary

TieRule = Literal["random", "realistic", "expected", "pessimistic"]
"""Rule for ranking the true answer among candidates with the same score.

- `random`: a random rank among the possible ranks;
- `realistic`: the mean of the best and the worst possible rank, as in PyKEEN;
- `expected`: each metric is averaged over all possible ranks;
- `pessimistic`: the worst possible rank, as in NBFNet.
"""
TIE_RULES: tuple[TieRule, ...] = ("random", "realistic", "expected", "pessimistic")
DEFAULT_TIES: TieRule = "random"
"""Tie rule that is used wherever `ties` is optional. `evaluate_link_prediction` and `evaluate_candidates`
require it."""
HITS = (1, 3, 10)
"""Values of k for which Hits@k is computed."""
Sides = Literal["head", "tail", "both"]
SIDES: tuple[Literal["head"], Literal["tail"]] = ("head", "tail")
"""The two sides of a triple that can be ranked. `CandidateLists.side` contains indices into this tuple."""

_MAX_TABLE_CELLS = 1 << 24
"""Maximum number of scores that are computed at a time. It limits memory use."""


class RankCounts(NamedTuple):
    """For each ranking list, the number of candidates with a higher score than the true answer, the number
    with the same score, and the total number of candidates."""

    higher: Int64[np.ndarray, " lists"]
    """Number of candidates with a higher score than the true answer."""
    tied: Int64[np.ndarray, " lists"]
    """Number of candidates with the same score as the true answer, not counting the true answer itself."""
    num_candidates: Int64[np.ndarray, " lists"]
    """Number of candidates, not counting the true answer."""


@runtime_checkable
class LinkPredictor(Protocol):
    """Protocol for models that score all entities as the missing tail or head of triples.

    A higher score means that the triple is more likely to be true.
    """

    def score_tails(self, relations: Any, heads: Any) -> Any:
        """Score every entity as the tail of each query (relation, head, ?).

        Args:
            relations: Relation ids of n queries.
            heads: Entity ids of the heads of the n queries.

        Returns:
            An array of shape [n, entities].
        """

    def score_heads(self, relations: Any, tails: Any) -> Any:
        """Score every entity as the head of each query (relation, ?, tail).

        Args:
            relations: Relation ids of n queries.
            tails: Entity ids of the tails of the n queries.

        Returns:
            An array of shape [n, entities].
        """


class DirectedRelationPredictor(abc.ABC):
    """Base class for link predictors that implement tail and head queries with one method, `score_pairs`."""

    @abc.abstractmethod
    def score_pairs(self, pairs: Int32[np.ndarray, "pairs 2"]) -> Float32[np.ndarray, "pairs entities"]:
        """Score every entity as the answer to each (entity, directed relation) query.

        The directed relation 2r asks for the tails of relation r, and 2r + 1 asks for its heads.
        """

    def score_tails(self, relations: Any, heads: Any) -> Float32[np.ndarray, "n entities"]:
        """Score every entity as the tail of each query (relation, head, ?)."""
        return self.score_pairs(np.stack([heads, 2 * np.asarray(relations)], axis=1).astype(np.int32))

    def score_heads(self, relations: Any, tails: Any) -> Float32[np.ndarray, "n entities"]:
        """Score every entity as the head of each query (relation, ?, tail)."""
        return self.score_pairs(np.stack([tails, 2 * np.asarray(relations) + 1], axis=1).astype(np.int32))


@dataclasses.dataclass(frozen=True)
class TripleScores:
    """Scores of a batch of triples and, if the scorer searches for proofs, information about the proofs.

    Fields that the scorer does not provide are None.
    """

    score: Float64[np.ndarray, " triples"]
    """Score of each triple; higher means more likely. It can be minus infinity, but not NaN."""
    proved: Bool[np.ndarray, " triples"] | None = None
    """True for triples for which a proof was found."""
    log_prob: Float64[np.ndarray, " triples"] | None = None
    """Log-probability of the best proof under a policy; minus infinity if no proof was found."""
    length: Int64[np.ndarray, " triples"] | None = None
    """Number of proof steps, or of forward-chaining rounds; -1 if no proof was found."""
    kge_log_prob: Float64[np.ndarray, " triples"] | None = None
    """Log-probability that the triple is true, according to an embedding."""


@runtime_checkable
class TripleScorer(Protocol):
    """Protocol for functions that score triples (relation, head, tail).

    `evaluate_candidates` calls the function once, with all distinct triples of the candidate lists.
    """

    def __call__(self, triples: Int32[np.ndarray, "triples 3"], /) -> TripleScores: ...


# Metrics


@dataclasses.dataclass(frozen=True)
class RankMetrics:
    """MRR and Hits@k over a set of queries, with standard errors.

    If a query has a ranking list for each side, its metrics are first averaged over the two lists. Standard
    errors are computed over queries. They are None if there are fewer than two queries.
    """

    num_queries: int
    num_lists: int
    """Number of ranking lists: one for each query and ranked side."""
    mrr: float
    mrr_se: float | None
    hits: dict[int, float]
    """Hits@k for each k in `HITS`: the fraction of lists in which the rank of the true answer is at most
    k."""
    hits_se: dict[int, float | None]
    proved_rate: float | None = None
    """Fraction of true triples that were proved; None if the scorer does not search for proofs."""
    false_proof_rate: float | None = None
    """Fraction of corrupted triples that were proved. None if the scorer does not search for proofs or there
    are no corrupted triples."""

    def as_record(self) -> dict[str, Any]:
        """Return the metrics as a dictionary of JSON values."""
        record = {name: value for name, value in vars(self).items() if name not in ("hits", "hits_se")}
        for k in HITS:
            record[f"hits@{k}"], record[f"hits@{k}_se"] = self.hits[k], self.hits_se[k]
        return record

    def describe(self) -> str:
        """Return the metrics as one line of text."""
        parts = [f"MRR {_format_with_error(self.mrr, self.mrr_se)}"]
        parts += [f"Hits@{k} {_format_with_error(self.hits[k], self.hits_se[k])}" for k in HITS]
        if self.proved_rate is not None:
            proved = f"proved {100 * self.proved_rate:.1f}%"
            if self.false_proof_rate is not None:
                proved += f" (false triples {100 * self.false_proof_rate:.2f}%)"
            parts.append(proved)
        return ", ".join(parts)


@dataclasses.dataclass(frozen=True)
class LinkPredictionResult:
    """Metrics of a link-prediction evaluation, overall and by side, relation and proof depth."""

    total: RankMetrics
    """Metrics over all queries."""
    ties: TieRule
    """Tie rule used for all metrics except `mrr_realistic`."""
    mrr_realistic: float
    """MRR with the `realistic` tie rule, for comparison with results that use this rule, such as those of
    PyKEEN."""
    sides: Mapping[str, RankMetrics]
    """Metrics of each ranked side. The keys are `head` and `tail`."""
    relations: Mapping[str, RankMetrics]
    """Metrics of each relation. The keys are relation names or, without a vocabulary, relation ids."""
    depths: Mapping[int, RankMetrics] = dataclasses.field(default_factory=dict)
    """Metrics by the proof depth of the query. The keys `NO_PROOF` and `UNDECIDED` stand for queries without
    a proof and queries whose depth could not be determined. Empty if proof depths were not provided."""
    num_candidates: int = 0
    """Total number of candidates in all lists, including the true answers."""
    split: str = ""
    predictor: str = ""
    """Short description of the predictor."""
    selected: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Settings of the predictor that were selected on validation data."""

    def as_record(self) -> dict[str, Any]:
        """Return the result as a dictionary of JSON values.

        The `mode` entry is the description of the predictor, and `groups` contains the metrics by proof
        depth.
        """
        return {
            "split": self.split,
            "mode": self.predictor,
            **self.total.as_record(),
            "ties": self.ties,
            "mrr_realistic": self.mrr_realistic,
            "num_candidates": self.num_candidates,
            "sides": {name: metrics.as_record() for name, metrics in self.sides.items()},
            "relations": {name: metrics.as_record() for name, metrics in self.relations.items()},
            "groups": {name: metrics.as_record() for name, metrics in self._depth_groups().items()},
            "selected": dict(self.selected),
        }

    def describe(self, *, by_relation: bool = True) -> list[str]:
        """Return lines of text: the total, then one line for each side, each proof depth and each relation.

        If there is only one side, the line for it is left out, because it would repeat the total. The same
        applies to depths and relations. If `by_relation` is false, relations are always left out.
        """
        source = f"{self.split}, " if self.split else ""
        by = f" by {self.predictor}" if self.predictor else ""
        lines = [
            f"{source}{self.total.num_queries} queries, {self.num_candidates} candidates{by}, "
            f"ties {self.ties}: {self.total.describe()}"
        ]
        if self.ties != "realistic":
            lines.append(f"  MRR with realistic ties: {self.mrr_realistic:.3f}")
        for parts in (self.sides, self._depth_groups(), self.relations if by_relation else {}):
            if len(parts) > 1:
                width = max(map(len, parts))
                lines += [
                    f"  {name:{width}}  {metrics.num_queries:5d}: {metrics.describe()}"
                    for name, metrics in parts.items()
                ]
        if self.selected:
            selected = ", ".join(f"{name} {value}" for name, value in self.selected.items())
            lines.append(f"  selected on validation data: {selected}")
        return lines

    def _depth_groups(self) -> dict[str, RankMetrics]:
        names = {NO_PROOF: "no proof", UNDECIDED: "depth not known"}
        return {names.get(depth, f"depth {depth}"): part for depth, part in self.depths.items()}

    def __str__(self) -> str:
        return "\n".join(self.describe(by_relation=False))


def list_metrics(
    counts: RankCounts, ties: TieRule, draw: Float64[np.ndarray, " lists"] | None = None
) -> Float64[np.ndarray, "lists metrics"]:
    """Compute the reciprocal rank and Hits@k of each ranking list.

    Args:
        counts: For each list, the number of candidates with a higher score and the number with the same
            score.
        ties: The tie rule.
        draw: For each list, a random number in [0, 1) that determines the rank of the true answer among tied
            candidates. It is only needed for the `random` tie rule.

    Returns:
        An array with one row per list. The first column is the reciprocal rank, followed by one column with
        Hits@k for each k in `HITS`.
    """
    higher, tied = counts.higher, counts.tied
    if ties == "expected":
        largest = int((higher + tied).max(initial=0)) + 1
        harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, largest + 1))])
        reciprocal = (harmonic[higher + tied + 1] - harmonic[higher]) / (tied + 1)
        hits = [np.clip(k - higher, 0, tied + 1) / (tied + 1) for k in HITS]
        return np.stack([reciprocal, *hits], axis=1)
    if ties == "random":
        assert draw is not None
        rank = 1 + higher + np.floor(draw * (tied + 1))
    elif ties == "realistic":
        rank = 1 + higher + tied / 2
    elif ties == "pessimistic":
        rank = 1.0 + higher + tied
    else:
        raise ValueError(f"ties must be one of {', '.join(TIE_RULES)}, got {ties!r}")
    return np.stack([1 / rank, *((rank <= k).astype(np.float64) for k in HITS)], axis=1)


def mean_reciprocal_rank(counts: RankCounts, ties: TieRule) -> float:
    """Return the mean reciprocal rank over all lists. The `random` tie rule is not supported."""
    return float(list_metrics(counts, ties)[:, 0].mean())


def expected_sampled_mrr(counts: RankCounts, num_sampled: int) -> float:
    """Return the expected MRR if each answer were ranked among only `num_sampled` random candidates.

    This is the exact mean over all samples without replacement, so it has no sampling noise. A tied candidate
    counts as half a candidate with a higher score. If a list has at most `num_sampled` candidates, all of
    them are used.

    >>> counts = RankCounts(higher=np.array([1]), tied=np.array([0]), num_candidates=np.array([2]))
    >>> expected_sampled_mrr(counts, 1)  # rank 1 or 2, equally likely
    0.75
    """
    higher, num_candidates = counts.higher + counts.tied / 2, counts.num_candidates
    sample_size = np.minimum(num_sampled, num_candidates)
    positions = np.arange(num_sampled + 1)
    # Probability that none of sample_size + 1 draws is higher, if one more higher candidate is added.
    factors = np.clip((num_candidates - higher)[:, None] - positions, 0, None) / np.maximum(
        num_candidates[:, None] + 1 - positions, 1
    )
    none_higher = np.prod(np.where(positions <= sample_size[:, None], factors, 1), axis=1)
    reciprocal_ranks = (num_candidates + 1) / ((sample_size + 1) * (higher + 1)) * (1 - none_higher)
    return float(np.mean(reciprocal_ranks))


def summarize(
    metrics: Float64[np.ndarray, "lists metrics"],
    query: Int64[np.ndarray, " lists"],
    proof_rates: tuple[float | None, float | None] = (None, None),
) -> RankMetrics:
    """Average the metrics of ranking lists, first over the lists of each query, then over queries.

    Args:
        metrics: Result of `list_metrics` for at least one list.
        query: For each list, the index of its query.
        proof_rates: Values of the `proved_rate` and `false_proof_rate` fields of the result.
    """
    queries, inverse = np.unique(query, return_inverse=True)
    count = np.bincount(inverse)
    by_query = np.stack([np.bincount(inverse, weights=column) / count for column in metrics.T], axis=1)
    errors: list[float | None] = [None] * by_query.shape[1]
    if len(queries) > 1:
        errors = (by_query.std(axis=0, ddof=1) / np.sqrt(len(queries))).tolist()
    means = by_query.mean(axis=0).tolist()
    return RankMetrics(
        num_queries=len(queries),
        num_lists=len(metrics),
        mrr=means[0],
        mrr_se=errors[0],
        hits=dict(zip(HITS, means[1:], strict=True)),
        hits_se=dict(zip(HITS, errors[1:], strict=True)),
        proved_rate=proof_rates[0],
        false_proof_rate=proof_rates[1],
    )


def _format_with_error(value: float, error: float | None) -> str:
    return f"{value:.3f}" if error is None else f"{value:.3f} ± {error:.3f}"


# Ranking among all entities


class GroupedQueries(NamedTuple):
    """Tail and head queries for a set of triples, grouped by (entity, directed relation) pair.

    The directed relation 2r asks for the tails of relation r, and 2r + 1 asks for its heads. Each triple has
    two ranking lists. The lists for the tails of all triples come first, followed by the lists for the heads
    of all triples. For example, the triples r(a,b) and r(a,c) have four ranking lists, but only three pairs:
    both tail queries ask for the tails of (a, r), so the scores of all entities are computed once for the
    two lists.
    """

    pairs: Int32[np.ndarray, "pairs 2"]
    """Distinct (entity, directed relation) pairs. The tail queries come first."""
    starts: Int64[np.ndarray, " pairs_and_one"]
    """Index in `targets` at which the true answers of each pair start. The last entry is the total number of
    true answers."""
    targets: Int32[np.ndarray, " lists"]
    """True answer of each ranking list. Lists with the same pair are next to each other, in the order of
    `pairs`."""
    order: Int64[np.ndarray, " lists"]
    """For each entry of `targets`, the index of its ranking list."""

    @classmethod
    def create(cls, triples: Int32[np.ndarray, "queries 3"]) -> "GroupedQueries":
        """Create the tail and head queries of the given triples, and group them by pair."""
        pairs, answers = directed_queries(triples)
        keys = np.concatenate([pairs[:, 1:] % 2, pairs], axis=1)
        unique, inverse = np.unique(keys, axis=0, return_inverse=True)
        inverse = inverse.reshape(-1)
        order = np.argsort(inverse, kind="stable")
        starts = np.searchsorted(inverse[order], np.arange(len(unique) + 1))
        return cls(np.ascontiguousarray(unique[:, 1:]), starts.astype(np.int64), answers[order], order)

    def in_list_order(self, grouped: np.ndarray) -> np.ndarray:
        """Reorder values from the order of `targets` to the order of the ranking lists."""
        ordered = np.empty_like(grouped)
        ordered[self.order] = grouped
        return ordered


def count_candidates(queries: GroupedQueries, known: TripleIndex) -> Int64[np.ndarray, " lists"]:
    """Return the number of candidates in each ranking list.

    All entities are candidates, except for known answers and the true answer itself. The result is in the
    order of the ranking lists, not in the order of `queries.targets`.
    """
    pairs = np.repeat(queries.pairs, np.diff(queries.starts), axis=0)
    num_excluded = known.ranges(pairs)[1] + ~known.contains(pairs, queries.targets)
    return queries.in_list_order(known.num_entities - num_excluded)


ScoreTables = Callable[[Int32[np.ndarray, "pairs 2"], int], Iterable[Float32[np.ndarray, "pairs entities"]]]
"""Function `(pairs, max_pairs)` that returns one or more score tables.

A score table has one row per pair, which contains the scores of all entities as answers. The pairs in a call
either all ask for tails or all ask for heads. `max_pairs` is an upper bound on the number of pairs. It does
not change between calls for the same side, so the function can pad the pairs to this number to avoid
recompilation.
"""


def count_ranks_in_tables(
    queries: GroupedQueries,
    known: TripleIndex,
    tables: ScoreTables,
    num_tables: int = 1,
    report: Report = ignore,
) -> list[RankCounts]:
    """Rank each true answer among the entities that are not known answers, separately for each score table.

    Args:
        queries: The queries and their true answers.
        known: Known answers, which are removed from the rankings.
        tables: Function that computes the score tables for a batch of pairs.
        num_tables: Number of score tables that one call to `tables` returns.
        report: Function that is called with progress messages.

    Returns:
        One `RankCounts` for each score table.
    """
    higher, tied = np.zeros((2, num_tables, len(queries.targets)), np.int64)
    for start, stop, max_pairs in _chunks(queries, known.num_entities):
        pairs, starts = queries.pairs[start:stop], queries.starts[start : stop + 1]
        lists, rows = slice(starts[0], starts[-1]), np.repeat(np.arange(len(pairs)), np.diff(starts))
        answers = np.arange(len(rows)), queries.targets[lists]
        is_candidate = ~known.mask(pairs)[rows]
        is_candidate[answers] = False
        for number, table in enumerate(tables(pairs, max_pairs)):
            scores = table[rows]
            own = scores[answers][:, None]
            higher[number, lists] = ((scores > own) & is_candidate).sum(axis=1)
            tied[number, lists] = ((scores == own) & is_candidate).sum(axis=1)
        report(f"ranking: {start:,} of {len(queries.pairs):,} queries")
    num_candidates = count_candidates(queries, known)
    return [
        RankCounts(queries.in_list_order(above), queries.in_list_order(same), num_candidates)
        for above, same in zip(higher, tied, strict=True)
    ]


def _chunks(queries: GroupedQueries, num_entities: int) -> Iterator[tuple[int, int, int]]:
    """Divide the pairs into ranges whose score tables are small enough to fit into memory.

    The pairs in a range either all ask for tails or all ask for heads.

    Yields:
        The start and the end of each range, and the maximum size of a range that asks for the same side.
    """
    max_rows = max(1, _MAX_TABLE_CELLS // max(1, num_entities))
    num_tail_pairs = int((queries.pairs[:, 1] % 2 == 0).sum())
    for begin, end in ((0, num_tail_pairs), (num_tail_pairs, len(queries.pairs))):
        num_chunks = max(1, math.ceil((end - begin) / max_rows))
        size = max(1, math.ceil((end - begin) / num_chunks))
        for start in range(begin, end, size):
            yield start, min(start + size, end), size


def score_pairs(
    predictor: LinkPredictor, pairs: Int32[np.ndarray, "pairs 2"], pad_to: int | None = None
) -> Float32[np.ndarray, "pairs entities"]:
    """Score every entity as the answer to each (entity, directed relation) query.

    Args:
        predictor: The predictor.
        pairs: The queries. The directed relation 2r asks for the tails of relation r, and 2r + 1 asks for its
            heads. Either all pairs must ask for tails, or all for heads.
        pad_to: Number of pairs to which `pairs` is padded, so that a compiled predictor is not recompiled for
            each number of pairs. If None, `pairs` is not padded.
    """
    padded = pairs if pad_to is None else np.resize(pairs, (pad_to, 2))
    score = predictor.score_tails if pairs[0, 1] % 2 == 0 else predictor.score_heads
    return np.asarray(score(padded[:, 1] // 2, padded[:, 0]))[: len(pairs)]


def count_ranks(
    predictor: LinkPredictor,
    triples: Int32[np.ndarray, "queries 3"],
    known: TripleIndex,
    report: Report = ignore,
) -> RankCounts:
    """Rank the tail and the head of each triple among all entities that are not known answers.

    If the predictor has a `count_ranks(queries, known, report)` method, this method is called. Otherwise,
    the entities are ranked by their scores.

    Args:
        predictor: The predictor.
        triples: Triples (relation, head, tail) to rank.
        known: Known answers, which are removed from the rankings.
        report: Function that is called with progress messages.

    Returns:
        The counts for the tails of all triples, followed by the counts for the heads of all triples.
    """
    queries = GroupedQueries.create(triples)
    if hasattr(predictor, "count_ranks"):
        return cast(RankCounts, predictor.count_ranks(queries, known, report))

    def tables(pairs: np.ndarray, max_pairs: int) -> list[np.ndarray]:
        return [score_pairs(predictor, pairs, max_pairs)]

    return count_ranks_in_tables(queries, known, tables, 1, report)[0]


def evaluate_link_prediction(
    predictor: LinkPredictor,
    knowledge_base: KnowledgeBase,
    split: str = "test",
    *,
    ties: TieRule,
    max_queries: int | None = None,
    seed: int = 0,
    report: Report = ignore,
) -> LinkPredictionResult:
    """Evaluate a link predictor on the queries of a split.

    The true tail and the true head of each query are ranked among all entities. Other known answers, from any
    split, are removed from the ranking (filtered ranks).

    Args:
        predictor: A `RulePredictor`, `PathNetwork`, `KGE`, `Ensemble` or any other `LinkPredictor`.
        knowledge_base: Contains the queries and the known triples.
        split: `valid`, `test` or `train`.
        ties: How to rank answers with equal scores.
        max_queries: Maximum number of queries to evaluate. If the split has more, queries are selected at
            even intervals. If None, all queries of the split are evaluated.
        seed: Seed for the `random` tie rule.
        report: Function that is called with progress messages.
    """
    knowledge_base = knowledge_base.binary()
    triples = select_evenly(knowledge_base.triples(split), max_queries)
    if not len(triples):
        raise ValueError(f"{knowledge_base.name} has no {split} queries to rank")
    return _result(
        count_ranks(predictor, triples, knowledge_base.known_answers, report),
        ties,
        draw=np.random.default_rng(seed).random(2 * len(triples)),
        query=np.tile(np.arange(len(triples)), 2),
        side=np.repeat([1, 0], len(triples)),
        relation=np.tile(triples[:, 0], 2),
        vocabulary=knowledge_base.vocabulary,
        split=split,
        predictor=getattr(predictor, "description", type(predictor).__name__),
        selected=getattr(predictor, "selected", {}),
    )


def select_evenly(triples: np.ndarray, max_queries: int | None) -> np.ndarray:
    """Return at most `max_queries` rows, selected at even intervals, or all rows if `max_queries` is None."""
    if max_queries is None or len(triples) <= max_queries:
        return triples
    return triples[np.linspace(0, len(triples) - 1, max_queries).astype(int)]


def _result(
    counts: RankCounts,
    ties: TieRule,
    *,
    draw: np.ndarray,
    query: np.ndarray,
    side: np.ndarray,
    relation: np.ndarray,
    vocabulary: Vocabulary | None,
    depths: np.ndarray | None = None,
    proof_rates: Callable[[np.ndarray], tuple[float | None, float | None]] = lambda _: (None, None),
    **details: Any,
) -> LinkPredictionResult:
    metrics = list_metrics(counts, ties, draw)

    def by_group(group: np.ndarray) -> dict[int, RankMetrics]:
        parts = {number: group == number for number in np.unique(group).tolist()}
        return {n: summarize(metrics[part], query[part], proof_rates(part)) for n, part in parts.items()}

    names = None if vocabulary is None else vocabulary.predicates
    return LinkPredictionResult(
        total=by_group(np.zeros(len(query), np.int64))[0],
        ties=ties,
        mrr_realistic=summarize(list_metrics(counts, "realistic"), query).mrr,
        sides={SIDES[number]: part for number, part in by_group(side).items()},
        relations={names[r] if names else str(r): part for r, part in by_group(relation).items()},
        depths={} if depths is None else by_group(depths[query]),
        num_candidates=int((counts.num_candidates + 1).sum()),
        **details,
    )


# Ranking among candidate lists


@dataclasses.dataclass(frozen=True)
class CandidateLists:
    """Ranking lists with sampled candidates. A list consists of a true triple and corruptions of either its
    head or its tail."""

    triples: Int32[np.ndarray, "candidates 3"]
    """Triples of all lists, concatenated. The first triple of each list is the true triple."""
    starts: Int64[np.ndarray, " lists_and_one"]
    """Index in `triples` at which each list starts, followed by the total number of triples."""
    query: Int64[np.ndarray, " lists"]
    """For each list, the index of its query. The indices are in ascending order."""
    side: Int64[np.ndarray, " lists"]
    """For each list, the argument that its corruptions replace: 0 for the head, 1 for the tail."""
    tie_draw: Float64[np.ndarray, " lists"]
    """For each list, a random number in [0, 1) for the `random` tie rule."""

    def __len__(self) -> int:
        """Return the number of lists."""
        return len(self.query)

    @property
    def is_positive(self) -> Bool[np.ndarray, " candidates"]:
        """For each candidate, whether it is the true triple of its list."""
        mask = np.zeros(len(self.triples), bool)
        mask[self.starts[:-1]] = True
        return mask

    @property
    def list_index(self) -> Int64[np.ndarray, " candidates"]:
        """For each candidate, the index of the list that contains it."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))


def default_sides(knowledge_base: KnowledgeBase) -> Sides:
    """Return which sides of a triple are ranked if the user does not choose: `tail` or `both`.

    The result is `tail` if the knowledge base has more than one domain (entity type), as in the Countries
    datasets, and `both` otherwise.
    """
    return "tail" if len(knowledge_base.domains) > 1 else "both"


def make_candidates(
    queries: Int32[np.ndarray, "queries 3"],
    known: Int32[np.ndarray, "known 3"],
    num_entities: int,
    *,
    sides: Sides = "both",
    num_candidates: int | None = 100,
    domains: Int32[np.ndarray, " entities"] | None = None,
    seed: int = 0,
) -> CandidateLists:
    """Create one ranking list of sampled corruptions for each query and side.

    A corruption is a triple with one argument replaced by another entity of the same domain. Known triples
    are not corruptions. Corruptions are sampled without replacement. The corruptions of a query depend only
    on the seed, the query and the side, not on the other queries.

    Args:
        queries: True triples.
        known: Known triples, which are never sampled as corruptions.
        num_entities: Number of entities.
        sides: Arguments to replace. `both` creates two lists per query.
        num_candidates: Number of corruptions per list. A list is shorter if fewer corruptions exist. If None,
            all corruptions are used.
        domains: Domain number of each entity. None means that all entities are in one domain.
        seed: Seed for sampling corruptions and for the `random` tie rule.
    """
    if sides not in ("head", "tail", "both"):
        raise ValueError(f"sides must be head, tail or both, got {sides!r}")
    if num_candidates is not None and num_candidates < 1:
        raise ValueError(f"num_candidates must be at least 1, or None for all, got {num_candidates}")
    if domains is None:
        domains = np.zeros(num_entities, np.int32)
    members = {domain: np.flatnonzero(domains == domain).astype(np.int32) for domain in np.unique(domains)}
    index = TripleIndex(known, num_entities)
    starts, counts = index.ranges(directed_queries(queries)[0])
    side_numbers = [0, 1] if sides == "both" else [SIDES.index(sides)]
    keys = [(query, side) for query in range(len(queries)) for side in side_numbers]
    lists, draws = [np.zeros((0, 3), np.int32)], []
    for query, side in keys:
        triple = queries[query]
        generator = _list_generator(seed, triple, side)
        draws.append(generator.random())
        # Tail queries come first in the index.
        position = query if side == 1 else query + len(queries)
        excluded = np.zeros(num_entities, bool)
        excluded[index.answers[starts[position] : starts[position] + counts[position]]] = True
        excluded[triple[1 + side]] = True
        domain = members[domains[triple[1 + side]]]
        free = domain[~excluded[domain]]
        if num_candidates is not None and len(free) > num_candidates:
            free = np.sort(generator.choice(free, num_candidates, replace=False))
        rows = np.repeat(triple[None], 1 + len(free), axis=0)
        rows[1:, 1 + side] = free
        lists.append(rows)
    query_and_side = np.array(keys, np.int64).reshape(-1, 2)
    return CandidateLists(
        triples=np.concatenate(lists),
        starts=np.cumsum([len(rows) for rows in lists], dtype=np.int64),
        query=query_and_side[:, 0],
        side=query_and_side[:, 1],
        tie_draw=np.array(draws, np.float64),
    )


def _list_generator(seed: int, triple: np.ndarray, side: int) -> np.random.Generator:
    # Ids in the hash start at 1, so that the same candidates are drawn as in published results.
    key = hashlib.blake2b(f"{seed}/{(triple + 1).tolist()}/{side}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(np.frombuffer(key, "<u4").tolist()))


def count_ranks_in_lists(candidates: CandidateLists, score: Float64[np.ndarray, " candidates"]) -> RankCounts:
    """Rank the true triple of each list by the scores of all candidates.

    Higher scores rank first. Scores can be infinite; NaN raises `ValueError`.
    """
    if np.isnan(score).any():
        row = int(np.flatnonzero(np.isnan(score))[0])
        raise ValueError(f"the score of candidate {candidates.triples[row].tolist()} is not a number")
    lists, starts = candidates.list_index, candidates.starts
    own = score[starts[:-1]][lists]
    higher = np.bincount(lists[score > own], minlength=len(candidates))
    # The true triple ties with itself, which does not count.
    tied = np.bincount(lists[score == own], minlength=len(candidates)) - 1
    return RankCounts(higher, tied, np.diff(starts) - 1)


def evaluate_candidates(
    scorer: TripleScorer | TripleScores,
    candidates: CandidateLists,
    *,
    ties: TieRule,
    depths: Int32[np.ndarray, " queries"] | None = None,
    vocabulary: Vocabulary | None = None,
    **details: Any,
) -> LinkPredictionResult:
    """Rank the true triple of each list among the corruptions in the list, by score.

    Args:
        scorer: A function that scores triples, or the scores of all triples in `candidates`, in the same
            order.
        candidates: The ranking lists; see `make_candidates`.
        ties: How to rank triples with equal scores.
        depths: For each query, its proof depth or one of the constants `NO_PROOF` and `UNDECIDED`. None if
            the depths are not known.
        vocabulary: Provides the names of the relations. If it is None, results are grouped by relation id.
        details: Values of the `split`, `predictor` and `selected` fields of the result.
    """
    if not len(candidates):
        raise ValueError("the split has no queries to rank")
    if depths is not None and len(depths) != (num_queries := int(candidates.query[-1]) + 1):
        raise ValueError(f"got {len(depths)} depths for {num_queries} queries")
    scores = scorer if isinstance(scorer, TripleScores) else score_candidates(scorer, candidates)

    def proof_rates(lists: np.ndarray) -> tuple[float | None, float | None]:
        if scores.proved is None:
            return None, None
        here, positive = lists[candidates.list_index], candidates.is_positive
        proved, false_proofs = scores.proved[here & positive], scores.proved[here & ~positive]
        return float(proved.mean()), float(false_proofs.mean()) if len(false_proofs) else None

    return _result(
        count_ranks_in_lists(candidates, scores.score),
        ties,
        draw=candidates.tie_draw,
        query=candidates.query,
        side=candidates.side,
        relation=candidates.triples[candidates.starts[:-1], 0],
        vocabulary=vocabulary,
        depths=depths,
        proof_rates=proof_rates,
        **details,
    )


def score_candidates(scorer: TripleScorer, candidates: CandidateLists) -> TripleScores:
    """Score the triples of all lists, and return the scores in the order of `candidates.triples`.

    If a triple occurs in several lists, it is scored only once.
    """
    unique, inverse = np.unique(candidates.triples, axis=0, return_inverse=True)
    columns = {name: column for name, column in vars(scorer(unique)).items() if column is not None}
    for name, column in columns.items():
        if len(column) != len(unique):
            raise ValueError(f"the scorer returned {len(column)} values of {name} for {len(unique)} triples")
    return TripleScores(**{name: column[inverse.reshape(-1)] for name, column in columns.items()})
