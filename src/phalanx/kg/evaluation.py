"""Link-prediction evaluation: filtered ranks, tie rules, MRR and Hits@k.

Every evaluation counts, for each ranking list, how many candidates score higher than the true answer and how
many score the same (`RankCounts`). `list_metrics` is the only implementation of tie rules, and `summarize` is
the only one of MRR, Hits@k and their standard errors. There are three ways to obtain the counts: tables of
scores for all entities (`LinkPredictor`), a predictor's own `count_ranks` (rules, which are compared without
a table), and scores of the triples in candidate lists (`TripleScorer`).
"""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32, Int64

from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.kg.proof_depths import NO_PROOF, UNDECIDED
from phalanx.kg.time_limit import TimeLimit
from phalanx.kg.triple_index import HEAD, TAIL, TripleIndex
from phalanx.kg.vocabulary import Vocabulary

TieRule = Literal["random", "realistic", "expected", "pessimistic"]
"""The rank of a true answer among candidates with the same score.

- `random`: a random position among them;
- `realistic`: the mean of the best and the worst rank (as in PyKEEN);
- `expected`: the exact mean of each metric over all positions;
- `pessimistic`: the worst rank (as in NBFNet).
"""
TIE_RULES: tuple[TieRule, ...] = ("random", "realistic", "expected", "pessimistic")
HITS = (1, 3, 10)
"""The k of Hits@k."""
Sides = Literal["head", "tail", "both"]
SIDES: tuple[Literal["head"], Literal["tail"]] = ("head", "tail")
"""Names of the sides by number."""

_MAX_TABLE_CELLS = 1 << 24
"""Scores that are computed at a time."""


class RankCounts(NamedTuple):
    """Comparison of the true answer of each ranking list with the other candidates."""

    higher: Int64[np.ndarray, " lists"]
    """Candidates with a higher score."""
    tied: Int64[np.ndarray, " lists"]
    """Other candidates with the same score."""
    num_candidates: Int64[np.ndarray, " lists"]
    """All candidates except the true answer."""

    def select(self, index: Any) -> "RankCounts":
        """Return the counts of some lists."""
        return RankCounts(*(column[index] for column in self))


@runtime_checkable
class LinkPredictor(Protocol):
    """Scores all entities as the missing tail or head of triples; a higher score is more likely."""

    def score_tails(self, relations: Any, heads: Any) -> Any:
        """Return scores [n, entities] of (relation, head, ?)."""

    def score_heads(self, relations: Any, tails: Any) -> Any:
        """Return scores [n, entities] of (relation, ?, tail)."""


@dataclasses.dataclass(frozen=True)
class TripleScores:
    """Scores of some triples, and the proofs that were found; unknown fields are None."""

    score: Float64[np.ndarray, " triples"]
    """A higher score is more likely; minus infinity is allowed, also for several triples."""
    proved: Bool[np.ndarray, " triples"] | None = None
    log_prob: Float64[np.ndarray, " triples"] | None = None
    """Log-probability of the best proof under a policy; minus infinity without a proof."""
    length: Int64[np.ndarray, " triples"] | None = None
    """Number of steps of that proof; -1 without a proof."""
    log_probability: Float64[np.ndarray, " triples"] | None = None
    """Logarithm of an embedding's probability that the triple is true."""

    def take(self, rows: Int64[np.ndarray, " rows"]) -> "TripleScores":
        """Return the scores of some rows."""
        columns = (getattr(self, field.name) for field in dataclasses.fields(self))
        selected: list[Any] = [None if column is None else column[rows] for column in columns]
        return TripleScores(*selected)


@runtime_checkable
class TripleScorer(Protocol):
    """Scores triples (relation, head, tail); `evaluate_candidates` never passes the same triple twice."""

    def __call__(self, triples: Int32[np.ndarray, "triples 3"], /) -> TripleScores: ...


# Metrics


@dataclasses.dataclass(frozen=True)
class RankMetrics:
    """MRR and Hits@k of some queries.

    A query that is ranked on both sides counts once, with the mean of the two. Standard errors are those of
    the mean over queries; None for fewer than two queries.
    """

    num_queries: int
    num_lists: int
    """Queries times sides."""
    mrr: float
    mrr_se: float | None
    hits: dict[int, float]
    """By k: fraction of lists whose true answer is among the first k."""
    hits_se: dict[int, float | None]
    proved_rate: float | None = None
    """Fraction of true triples that were proved; None if the scorer finds no proofs."""
    false_proof_rate: float | None = None
    """Fraction of corrupted triples that were proved; None also if there are none."""

    def as_record(self) -> dict[str, Any]:
        """Return the metrics as JSON values."""
        record: dict[str, Any] = {
            "num_queries": self.num_queries,
            "num_lists": self.num_lists,
            "mrr": self.mrr,
            "mrr_se": self.mrr_se,
        }
        for k in HITS:
            record[f"hits@{k}"], record[f"hits@{k}_se"] = self.hits[k], self.hits_se[k]
        return {**record, "proved_rate": self.proved_rate, "false_proof_rate": self.false_proof_rate}

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
    """The metrics of an evaluation, in total and by side, relation and proof depth."""

    total: RankMetrics
    ties: TieRule
    mrr_realistic: float
    """MRR with the tie rule `realistic`, for comparison."""
    sides: Mapping[str, RankMetrics]
    relations: Mapping[str, RankMetrics]
    """By name if the vocabulary is known, otherwise by id."""
    depths: Mapping[int, RankMetrics] = dataclasses.field(default_factory=dict)
    """By proof depth of the query, `NO_PROOF` or `UNDECIDED`; empty if depths are not known."""
    num_candidates: int = 0
    """Candidates in all lists, including the true answers."""
    split: str = ""
    predictor: str = ""
    """Short description of the predictor."""
    selected: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Settings of the predictor that were selected on validation data."""

    def as_record(self) -> dict[str, Any]:
        """Return the result as JSON values; `mode` is the predictor, and `groups` are proof depths."""
        return {
            "split": self.split,
            "mode": self.predictor,
            **self.total.as_record(),
            "ties": self.ties,
            "mrr_realistic": self.mrr_realistic,
            "num_candidates": self.num_candidates,
            "sides": {name: metrics.as_record() for name, metrics in self.sides.items()},
            "relations": {name: metrics.as_record() for name, metrics in self.relations.items()},
            "groups": {name: metrics.as_record() for name, metrics in self._named_depths().items()},
            "selected": dict(self.selected),
        }

    def describe(self, *, by_relation: bool = True) -> list[str]:
        """Describe the total in one line, and each part in one line if there are several."""
        total = self.total
        source = f"{self.split}, " if self.split else ""
        by = f" by {self.predictor}" if self.predictor else ""
        lines = [
            f"{source}{total.num_queries} queries, {self.num_candidates} candidates{by}, ties {self.ties}: "
            f"{total.describe()}"
        ]
        if self.ties != "realistic":
            lines.append(f"  MRR with realistic ties: {self.mrr_realistic:.3f}")
        for parts in (self.sides, self._named_depths(), self.relations if by_relation else {}):
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

    def _named_depths(self) -> dict[str, RankMetrics]:
        names = {NO_PROOF: "no proof", UNDECIDED: "depth not known"}
        return {names.get(depth, f"depth {depth}"): part for depth, part in self.depths.items()}

    def __str__(self) -> str:
        return "\n".join(self.describe(by_relation=False))


def list_metrics(
    counts: RankCounts, ties: TieRule, draw: Float64[np.ndarray, " lists"] | None = None
) -> Float64[np.ndarray, "lists metrics"]:
    """Return the reciprocal rank and the hits of each list, in the order of `HITS`.

    Args:
        counts: Candidates with higher and equal scores.
        ties: The tie rule.
        draw: For `random`: a number in [0, 1) per list that selects the position among ties.
    """
    higher, tied = counts.higher, counts.tied
    if ties == "expected":
        harmonic = np.concatenate(
            [[0.0], np.cumsum(1 / np.arange(1, 2 + int((higher + tied).max(initial=0))))]
        )
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
    """Return the mean reciprocal rank over all lists (tie rules other than `random`)."""
    return float(list_metrics(counts, ties)[:, 0].mean())


def expected_sampled_mrr(counts: RankCounts, num_sampled: int) -> float:
    """Return the expected MRR among `num_sampled` random candidates, with realistic ties.

    This is the exact mean over all samples, which has no sampling noise.
    """
    higher = counts.higher + counts.tied / 2
    return float(np.mean(expected_reciprocal_rank(higher, counts.num_candidates, num_sampled)))


def expected_reciprocal_rank(
    higher: Float64[np.ndarray, " lists"], num_candidates: Int64[np.ndarray, " lists"], num_sampled: int
) -> Float64[np.ndarray, " lists"]:
    """Return the mean of 1 / rank over all samples of candidates without replacement.

    >>> expected_reciprocal_rank(np.array([1.0]), np.array([2]), 1)  # rank 1 or 2, equally likely
    array([0.75])
    """
    sample_size = np.minimum(num_sampled, num_candidates)
    positions = np.arange(num_sampled + 1)
    # Probability that none of sample_size + 1 draws is higher, among the candidates and one more.
    factors = np.clip((num_candidates - higher)[:, None] - positions, 0, None) / np.maximum(
        num_candidates[:, None] + 1 - positions, 1
    )
    none_higher = np.prod(np.where(positions <= sample_size[:, None], factors, 1), axis=1)
    return (num_candidates + 1) / ((sample_size + 1) * (higher + 1)) * (1 - none_higher)


def summarize(
    metrics: Float64[np.ndarray, "lists metrics"],
    query: Int64[np.ndarray, " lists"],
    proof_rates: tuple[float | None, float | None] = (None, None),
) -> RankMetrics:
    """Average the metrics of at least one list.

    Args:
        metrics: The result of `list_metrics`.
        query: The number of each list's query.
        proof_rates: Fractions of proved true and false triples.
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


class LinkPredictionQueries(NamedTuple):
    """The distinct (entity, directed relation) pairs of some triples, and the answers of each.

    A directed relation is 2r for the tails of relation r and 2r + 1 for its heads. Lists are ordered as the
    tails of all triples, then their heads.
    """

    pairs: Int32[np.ndarray, "pairs 2"]
    """Distinct pairs; those that ask for tails come first."""
    starts: Int64[np.ndarray, " pairs_and_one"]
    """Start of the answers of each pair in `targets`."""
    targets: Int32[np.ndarray, " lists"]
    """True answers, grouped by pair."""
    order: Int64[np.ndarray, " lists"]
    """The list of each target."""

    @classmethod
    def create(cls, triples: Int32[np.ndarray, "queries 3"]) -> "LinkPredictionQueries":
        """Group the tail and head queries of triples."""
        relation, head, tail = triples.T
        pairs = np.concatenate([np.stack([head, 2 * relation], 1), np.stack([tail, 2 * relation + 1], 1)])
        unique, inverse = np.unique(pairs, axis=0, return_inverse=True)
        inverse = inverse.reshape(-1)
        tails_first = np.argsort(unique[:, 1] % 2, kind="stable")
        rank_of = np.empty(len(unique), np.int64)
        rank_of[tails_first] = np.arange(len(unique))
        unique, inverse = unique[tails_first], rank_of[inverse]
        order = np.argsort(inverse, kind="stable")
        starts = np.searchsorted(inverse[order], np.arange(len(unique) + 1))
        targets = np.concatenate([tail, head])[order]
        return cls(np.ascontiguousarray(unique), starts.astype(np.int64), targets, order)

    @property
    def num_tail_pairs(self) -> int:
        """Pairs that ask for tails."""
        return int((self.pairs[:, 1] % 2 == 0).sum())

    def in_list_order(self, grouped: np.ndarray) -> np.ndarray:
        """Reorder values per target into values per list."""
        ordered = np.empty_like(grouped)
        ordered[self.order] = grouped
        return ordered


class KnownAnswers:
    """The known answers of (entity, directed relation) pairs, which are removed from rankings."""

    def __init__(self, known: Int32[np.ndarray, "known 3"], num_entities: int) -> None:
        self.triples, self.num_entities = known, num_entities
        self._by_side = TripleIndex(known, TAIL), TripleIndex(known, HEAD)

    def mask(self, pairs: Int32[np.ndarray, "pairs 2"]) -> Bool[np.ndarray, "pairs entities"]:
        """Return the known answers of pairs that all ask for the same side."""
        side = int(pairs[0, 1] % 2)
        triples = np.stack([pairs[:, 1] // 2, pairs[:, 0], pairs[:, 0]], axis=1)
        return self._by_side[side].mask(triples, self.num_entities)

    def count_candidates(self, queries: LinkPredictionQueries) -> Int64[np.ndarray, " lists"]:
        """Return the number of candidates of each list: entities that are not known, without the answer."""
        found = np.zeros(len(queries.targets), np.int64)
        for start, stop in _side_chunks(queries, self.num_entities):
            mask = self.mask(queries.pairs[start:stop])
            rows, targets = _targets_of(queries, start, stop)
            # Known triples may be repeated or lack the answer, so the mask is counted.
            num_known = mask.sum(axis=1)[rows] + ~mask[rows, targets]
            found[queries.starts[start] : queries.starts[stop]] = self.num_entities - num_known
        return queries.in_list_order(found)


def _side_chunks(
    queries: LinkPredictionQueries, num_entities: int, chunk: int | None = None
) -> Iterator[tuple[int, int]]:
    """Yield ranges of pairs that ask for one side and whose tables fit into memory."""
    boundaries = (0, queries.num_tail_pairs, len(queries.pairs))
    for begin, end in itertools.pairwise(boundaries):
        size = chunk or table_rows(end - begin, num_entities)
        for start in range(begin, end, size):
            yield start, min(start + size, end)


def table_rows(num_rows: int, num_entities: int) -> int:
    """Return how many rows of scores to compute at a time: equal chunks that fit into memory."""
    limit = max(1, _MAX_TABLE_CELLS // max(1, num_entities))
    num_chunks = max(1, -(-num_rows // limit))
    return max(1, -(-num_rows // num_chunks))


def _targets_of(queries: LinkPredictionQueries, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the row within the chunk and the entity of each target of the pairs from start to stop."""
    rows = np.repeat(np.arange(stop - start), np.diff(queries.starts[start : stop + 1]))
    return rows, queries.targets[queries.starts[start] : queries.starts[stop]]


ScoreTables = Callable[[Int32[np.ndarray, "pairs 2"]], Sequence[Float32[np.ndarray, "pairs entities"]]]
"""Returns one or more tables of scores for pairs that all ask for the same side."""


def count_ranks_in_tables(
    queries: LinkPredictionQueries,
    known: KnownAnswers,
    tables: ScoreTables,
    num_tables: int = 1,
    time_limit: TimeLimit | None = None,
) -> list[RankCounts]:
    """Rank all answers among all entities that are not known, once per table of scores."""
    shape = (num_tables, len(queries.targets))
    higher, tied = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for start, stop in _side_chunks(queries, known.num_entities):
        pairs = queries.pairs[start:stop]
        rows, targets = _targets_of(queries, start, stop)
        is_candidate = ~known.mask(pairs)[rows]
        is_candidate[np.arange(len(rows)), targets] = False
        lists = slice(queries.starts[start], queries.starts[stop])
        for number, table in enumerate(tables(pairs)):
            scores = table[rows]
            own = scores[np.arange(len(rows)), targets][:, None]
            higher[number, lists] = ((scores > own) & is_candidate).sum(axis=1)
            tied[number, lists] = ((scores == own) & is_candidate).sum(axis=1)
        if time_limit is not None:
            time_limit.report(f"ranking: {start:,} of {len(queries.pairs):,} queries")
    num_candidates = known.count_candidates(queries)
    return [
        RankCounts(queries.in_list_order(above), queries.in_list_order(same), num_candidates)
        for above, same in zip(higher, tied, strict=True)
    ]


def score_pairs(
    predictor: LinkPredictor, pairs: Int32[np.ndarray, "pairs 2"], pad_to: int | None = None
) -> Float32[np.ndarray, "pairs entities"]:
    """Score all entities for pairs that all ask for the same side.

    Args:
        predictor: What scores them.
        pairs: (entity, directed relation) pairs.
        pad_to: Repeat pairs up to this number, so that a compiled predictor sees few shapes.
    """
    padded = pairs if pad_to is None else np.resize(pairs, (pad_to, 2))
    score = predictor.score_tails if pairs[0, 1] % 2 == 0 else predictor.score_heads
    return np.asarray(score(padded[:, 1] // 2, padded[:, 0]))[: len(pairs)]


def count_ranks(
    predictor: LinkPredictor,
    triples: Int32[np.ndarray, "queries 3"],
    known: KnownAnswers,
    time_limit: TimeLimit | None = None,
) -> RankCounts:
    """Rank the tail and the head of each triple among all entities that are not known answers.

    A predictor may have a method `count_ranks(queries, known, time_limit)` that avoids tables of scores.
    """
    queries = LinkPredictionQueries.create(triples)
    if hasattr(predictor, "count_ranks"):
        return cast(RankCounts, predictor.count_ranks(queries, known, time_limit))
    num_tails = queries.num_tail_pairs
    sizes = [table_rows(count, known.num_entities) for count in (num_tails, len(queries.pairs) - num_tails)]

    def tables(pairs: np.ndarray) -> list[np.ndarray]:
        return [score_pairs(predictor, pairs, pad_to=sizes[int(pairs[0, 1] % 2)])]

    return count_ranks_in_tables(queries, known, tables, 1, time_limit)[0]


def list_relations(triples: Int32[np.ndarray, "queries 3"]) -> Int64[np.ndarray, " lists"]:
    """Return the directed relation of each list: 2r for tails, then 2r + 1 for heads."""
    relation = 2 * triples[:, 0].astype(np.int64)
    return np.concatenate([relation, relation + 1])


def evaluate_link_prediction(
    predictor: LinkPredictor,
    knowledge_base: KnowledgeBase,
    split: str = "test",
    *,
    ties: TieRule,
    max_queries: int | None = None,
    seed: int = 0,
    time_limit: TimeLimit | None = None,
) -> LinkPredictionResult:
    """Rank the queries of a split among all entities, filtered by the known triples of all splits.

    Args:
        predictor: A `RulePredictor`, `PathNetwork`, `KGE`, `Ensemble` or any other `LinkPredictor`.
        knowledge_base: The queries and the known triples.
        split: `valid`, `test` or `train`.
        ties: How to rank answers with equal scores.
        max_queries: Evaluate this many evenly spaced queries; None for all.
        seed: Seed of `random` ties.
        time_limit: Receives progress messages.
    """
    knowledge_base = knowledge_base.binary()
    triples = select_evenly(knowledge_base.triples(split), max_queries)
    if not len(triples):
        raise ValueError(f"{knowledge_base.name} has no {split} queries to rank")
    known = KnownAnswers(knowledge_base.known_triples, knowledge_base.vocabulary.num_entities)
    counts = count_ranks(predictor, triples, known, time_limit)
    return _result(
        counts,
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
    """Return at most `max_queries` evenly spaced rows."""
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

    def part(lists: np.ndarray) -> RankMetrics:
        return summarize(metrics[lists], query[lists], proof_rates(lists))

    everything = np.ones(len(query), bool)
    names = {number: str(number) for number in np.unique(relation).tolist()}
    if vocabulary is not None:
        names = {number: vocabulary.predicates[number] for number in names}
    by_depth: dict[int, RankMetrics] = {}
    if depths is not None:
        list_depth = depths[query]
        by_depth = {depth: part(list_depth == depth) for depth in np.unique(list_depth).tolist()}
    return LinkPredictionResult(
        total=part(everything),
        ties=ties,
        mrr_realistic=summarize(list_metrics(counts, "realistic"), query).mrr,
        sides={SIDES[number]: part(side == number) for number in np.unique(side).tolist()},
        relations={name: part(relation == number) for number, name in names.items()},
        depths=by_depth,
        num_candidates=int((counts.num_candidates + 1).sum()),
        **details,
    )


# Ranking among candidate lists


@dataclasses.dataclass(frozen=True)
class CandidateLists:
    """Ranking lists: each is a true triple followed by corruptions of one of its sides."""

    triples: Int32[np.ndarray, "candidates 3"]
    """All lists, one after the other."""
    starts: Int64[np.ndarray, " lists_and_one"]
    """Start of each list, and the end of the last one."""
    query: Int64[np.ndarray, " lists"]
    """The number of each list's query."""
    side: Int64[np.ndarray, " lists"]
    """0 if the head is replaced, 1 if the tail is."""
    tie_draw: Float64[np.ndarray, " lists"]
    """Number in [0, 1) that selects the position among ties."""
    num_queries: int

    def __len__(self) -> int:
        """Return the number of lists."""
        return len(self.query)

    @property
    def is_positive(self) -> Bool[np.ndarray, " candidates"]:
        """Mask of the candidates that are the true triples of their lists."""
        mask = np.zeros(len(self.triples), bool)
        mask[self.starts[:-1]] = True
        return mask

    @property
    def list_index(self) -> Int64[np.ndarray, " candidates"]:
        """The list of each candidate."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))


def default_sides(knowledge_base: KnowledgeBase) -> Sides:
    """Return `tail` if constants are in several domains, as in the Countries datasets, otherwise `both`."""
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
    """Sample corruptions of each query and side.

    A corruption replaces one argument by another entity of the same domain and is not a known triple. It is
    drawn without replacement and depends only on the seed, the query and the side, not on other queries.

    Args:
        queries: True triples.
        known: Triples that must not be candidates.
        num_entities: Number of entities.
        sides: Which arguments to replace.
        num_candidates: Corruptions per list, fewer if there are not enough; None for all.
        domains: The domain of each entity; None if there is only one.
        seed: Seed of the sampling and of the positions among ties.
    """
    if sides not in ("head", "tail", "both"):
        raise ValueError(f"sides must be head, tail or both, got {sides!r}")
    if num_candidates is not None and num_candidates < 1:
        raise ValueError(f"num_candidates must be at least 1, or None for all, got {num_candidates}")
    if domains is None:
        domains = np.zeros(num_entities, np.int32)
    members = {
        int(domain): np.flatnonzero(domains == domain).astype(np.int32) for domain in set(domains.tolist())
    }
    side_numbers = [0, 1] if sides == "both" else [SIDES.index(sides)]
    index = {side: TripleIndex(known, side + 1) for side in side_numbers}
    ranges = {side: answers.ranges(queries) for side, answers in index.items()}
    lists: list[np.ndarray] = []
    keys = [(query, side) for query in range(len(queries)) for side in side_numbers]
    draws = np.empty(len(keys))
    for number, (query, side) in enumerate(keys):
        triple = queries[query]
        generator = _list_generator(seed, triple, side)
        draws[number] = generator.random()
        domain = members[int(domains[triple[1 + side]])]
        excluded = np.zeros(num_entities, bool)
        start, count = (bounds[query] for bounds in ranges[side])
        excluded[index[side].entities[start : start + count]] = True
        excluded[triple[1 + side]] = True
        free = domain[~excluded[domain]]
        if num_candidates is not None and len(free) > num_candidates:
            free = np.sort(generator.choice(free, num_candidates, replace=False))
        rows = np.repeat(triple[None], 1 + len(free), axis=0)
        rows[1:, 1 + side] = free
        lists.append(rows)
    lengths = np.array([len(rows) for rows in lists], np.int64)
    return CandidateLists(
        triples=np.concatenate([np.zeros((0, 3), np.int32), *lists]),
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        query=np.array([query for query, _ in keys], np.int64),
        side=np.array([side for _, side in keys], np.int64),
        tie_draw=draws,
        num_queries=len(queries),
    )


def _list_generator(seed: int, triple: np.ndarray, side: int) -> np.random.Generator:
    # Ids in the hash start at 1, so that the same candidates are drawn as in published results.
    key = hashlib.blake2b(f"{seed}/{(triple + 1).tolist()}/{side}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(np.frombuffer(key, "<u4").tolist()))


def count_ranks_in_lists(candidates: CandidateLists, score: Float64[np.ndarray, " candidates"]) -> RankCounts:
    """Rank the true triple of each list; higher scores are better, infinite scores are allowed."""
    if np.isnan(score).any():
        row = int(np.flatnonzero(np.isnan(score))[0])
        raise ValueError(f"the score of candidate {candidates.triples[row].tolist()} is not a number")
    starts = candidates.starts
    own = np.repeat(score[starts[:-1]], np.diff(starts))
    # The true triple ties with itself, which does not count.
    return RankCounts(
        _count_per_list(score > own, starts), _count_per_list(score == own, starts) - 1, np.diff(starts) - 1
    )


def _count_per_list(flags: np.ndarray, starts: np.ndarray) -> np.ndarray:
    cumulative = np.concatenate([[0], np.cumsum(flags)])
    return (cumulative[starts[1:]] - cumulative[starts[:-1]]).astype(np.int64)


def evaluate_candidates(
    scorer: TripleScorer,
    candidates: CandidateLists,
    *,
    ties: TieRule,
    depths: Int32[np.ndarray, " queries"] | None = None,
    vocabulary: Vocabulary | None = None,
    **details: Any,
) -> LinkPredictionResult:
    """Rank the true triple of each list among its corruptions.

    Args:
        scorer: Scores triples; repeated triples are scored once.
        candidates: The lists; see `make_candidates`.
        ties: How to rank triples with equal scores.
        depths: Proof depth of each query, `NO_PROOF` or `UNDECIDED`.
        vocabulary: Names of the relations.
        details: `split`, `predictor` and `selected` of the result.
    """
    if not len(candidates):
        raise ValueError("the split has no queries to rank")
    if depths is not None and len(depths) != candidates.num_queries:
        raise ValueError(f"got {len(depths)} depths for {candidates.num_queries} queries")
    return evaluate_scores(
        score_candidates(scorer, candidates),
        candidates,
        ties=ties,
        depths=depths,
        vocabulary=vocabulary,
        **details,
    )


def evaluate_scores(
    scores: TripleScores,
    candidates: CandidateLists,
    *,
    ties: TieRule,
    depths: Int32[np.ndarray, " queries"] | None = None,
    vocabulary: Vocabulary | None = None,
    **details: Any,
) -> LinkPredictionResult:
    """Rank the true triple of each list by the scores of all candidates; see `evaluate_candidates`."""

    def proof_rates(lists: np.ndarray) -> tuple[float | None, float | None]:
        if scores.proved is None:
            return None, None
        here, positive = lists[candidates.list_index], candidates.is_positive
        false_triples = here & ~positive
        return (
            float(scores.proved[here & positive].mean()),
            float(scores.proved[false_triples].mean()) if false_triples.any() else None,
        )

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
    """Score all candidates; repeated triples are scored once."""
    unique, inverse = np.unique(candidates.triples, axis=0, return_inverse=True)
    scores = scorer(unique)
    for field in dataclasses.fields(scores):
        column = getattr(scores, field.name)
        if column is not None and len(column) != len(unique):
            raise ValueError(
                f"the scorer returned {len(column)} values of {field.name} for {len(unique)} triples"
            )
    return scores.take(inverse.reshape(-1).astype(np.int64))
