"""Ranking: how well a scorer tells true triples from corruptions, by side, predicate and depth.

A scorer is any function from triples to `Scores`: here are the exact prover, an embedding and both together;
one with a policy that searches is in `phalanx.proofs.link_prediction`.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Bool, Float, Float64, Int32, Int64
from pydantic import Field

from phalanx.config import Config
from phalanx.kg.candidates import SIDES, CandidateLists, RankMetrics, Ties, list_metrics, ranks_of, summarize
from phalanx.kg.chaining import DEFAULT_MAX_DEPTH, chaining_rounds, depths_in_time
from phalanx.kg.time_limit import TimeLimit, to_stderr
from phalanx.kg.vocabulary import EncodedRule, IndexManager

UNSETTLED = -2
"""The depth of a query whose proofs were not looked for to the end."""


@dataclasses.dataclass(frozen=True)
class TripleScores:
    """What a scorer says of some triples; the fields that it knows nothing of are None."""

    score: Float64[np.ndarray, " triples"]
    """Greater is better; minus infinity is allowed, also for several."""
    proved: Bool[np.ndarray, " triples"] | None = None
    log_prob: Float64[np.ndarray, " triples"] | None = None
    """Of the best proof found; minus infinity where there is none."""
    length: Int64[np.ndarray, " triples"] | None = None
    """Steps of that proof; -1 where there is none."""
    log_belief: Float64[np.ndarray, " triples"] | None = None
    """The logarithm of an embedding's probability that the triple is true."""

    def take(self, rows: Int64[np.ndarray, " rows"]) -> "TripleScores":
        """The scores of some rows, in their order."""
        arrays = (getattr(self, field.name) for field in dataclasses.fields(self))
        taken: list[Any] = [None if array is None else array[rows] for array in arrays]
        return TripleScores(*taken)


Score = Callable[[Int32[np.ndarray, "triples atom"]], TripleScores]
"""Scores triples (predicate, first, second); no two of those that `evaluate_ranking` asks for are equal."""


@dataclasses.dataclass(frozen=True)
class LinkPredictionResult:
    """How the positives of a split rank among corruptions."""

    total: RankMetrics
    sides: Mapping[str, RankMetrics]
    predicates: Mapping[str, RankMetrics]
    """By name where names are given, by number otherwise."""
    depths: Mapping[int, RankMetrics]
    """By the depth of the query, -1 for no proof and -2 where it is not known; empty where none are given."""
    ties: Ties
    candidates: int
    """Triples in all lists."""
    scored: int
    """Different ones among them."""

    def as_record(self) -> dict[str, Any]:
        """A line of a log: the whole, and the parts."""
        return {
            **self.total.as_record(),
            "ties": self.ties,
            "candidates": self.candidates,
            "scored": self.scored,
            "sides": {name: metrics.as_record() for name, metrics in self.sides.items()},
            "predicates": {name: metrics.as_record() for name, metrics in self.predicates.items()},
            "depths": {str(depth): metrics.as_record() for depth, metrics in self.depths.items()},
        }

    def describe(self) -> str:
        """A line on the whole, and one on each part where there are several."""
        total = self.total
        lines = [f"{total.queries} queries, {self.candidates} candidates: {total.describe()}"]
        names = {-1: "no proof", UNSETTLED: "depth not known"}
        depths = {names.get(depth, f"depth {depth}"): part for depth, part in self.depths.items()}
        for parts in (self.sides, depths, self.predicates):
            if len(parts) > 1:
                width = max(map(len, parts))
                lines += [
                    f"  {name:{width}}  {metrics.queries:5d}: {metrics.describe()}"
                    for name, metrics in parts.items()
                ]
        return "\n".join(lines)


def evaluate_ranking(
    score: Score,
    candidates: CandidateLists,
    *,
    ties: Ties = "random",
    depths: Int32[np.ndarray, " queries"] | None = None,
    index: IndexManager | None = None,
) -> LinkPredictionResult:
    """Rank every positive of the candidates (see `make_candidates`) among its corruptions.

    Equal triples are scored once. `depths` are those of the queries' shortest proofs, -1 without one;
    `index` names the predicates.
    """
    if not len(candidates):
        raise ValueError("there is nothing to rank: the split has no queries")
    if depths is not None and len(depths) != candidates.num_queries:
        raise ValueError(f"{candidates.num_queries} queries have {len(depths)} depths")
    scores = score_candidates(score, candidates)
    by_list = list_metrics(ranks_of(candidates, scores.score), ties, candidates.tie_draw)

    def part(chosen: np.ndarray) -> RankMetrics:
        return summarize(candidates, by_list, scores.proved, chosen)

    predicate = candidates.triples[candidates.starts[:-1], 0]
    names = {number: str(number) for number in np.unique(predicate).tolist()}
    if index is not None:
        names = {number: index.predicate_idx2str[number] for number in names}
    by_depth: dict[int, RankMetrics] = {}
    if depths is not None:
        depth = depths[candidates.query]
        by_depth = {number: part(depth == number) for number in np.unique(depth).tolist()}
    return LinkPredictionResult(
        total=part(np.ones(len(candidates), bool)),
        sides={SIDES[side]: part(candidates.side == side) for side in np.unique(candidates.side).tolist()},
        predicates={name: part(predicate == number) for number, name in names.items()},
        depths=by_depth,
        ties=ties,
        candidates=len(candidates.triples),
        scored=len(np.unique(candidates.triples, axis=0)),
    )


def score_candidates(score: Score, candidates: CandidateLists) -> TripleScores:
    """A score for each candidate; equal ones are asked for once."""
    unique, place = np.unique(candidates.triples, axis=0, return_inverse=True)
    scores = score(unique)
    for field in dataclasses.fields(scores):
        array = getattr(scores, field.name)
        if array is not None and len(array) != len(unique):
            raise ValueError(f"the scorer gave {len(array)} of {field.name} for {len(unique)} triples")
    return scores.take(place.reshape(-1).astype(np.int64))


def exact_scorer(
    facts: Int32[np.ndarray, "facts 3"],
    rules: Sequence[EncodedRule],
    *,
    by: Literal["rounds", "depth"] = "rounds",
    limit: int | None = None,
    seconds: float | None = None,
) -> Score:
    """The exact prover: what follows in fewer rounds of forward chaining, or by a shorter proof, is better.

    `limit` is the most rounds (none: until nothing follows any more) or the most steps (none: the default of
    `proof_depths`). No query proves itself; rounds cannot leave one out, so they refuse those that are facts.
    What is not found within so many seconds counts as not proved, and that is said on stderr.
    """
    if by not in ("rounds", "depth"):
        raise ValueError(f"by must be rounds or depth, got {by!r}")

    def score(triples: Int32[np.ndarray, "triples atom"]) -> TripleScores:
        if by == "depth":
            deepest = DEFAULT_MAX_DEPTH if limit is None else limit
            found, _ = depths_in_time(triples, facts, rules, deepest, TimeLimit(seconds, to_stderr))
        else:
            found = chaining_rounds(triples, facts, rules, limit, TimeLimit(seconds, to_stderr))
            if len(own := np.flatnonzero(found == 0)):
                raise ValueError(
                    f"{triples[own[0]].tolist()} is a fact, and rounds of forward chaining cannot prove it "
                    "without itself; score by depth"
                )
        proved = found > 0
        values = np.where(proved, -found.astype(np.float64), -np.inf)
        return TripleScores(score=values, proved=proved, length=np.where(proved, found, -1).astype(np.int64))

    return score


_TRIPLES_AT_ONCE = 1 << 14


@runtime_checkable
class Embedding(Protocol):
    """A knowledge-graph embedding; triples are (predicate, first, second), numbered from 1."""

    def score(self, triples: Int32[np.ndarray, "n 3"]) -> Float[Array, " n"]:
        """Greater is truer."""

    def log_probability(self, triples: Int32[np.ndarray, "n 3"]) -> Float[Array, " n"]:
        """The logarithm of the probability that each triple is true."""


class HybridConfig(Config):
    """What an embedding and a proof count for; the defaults are those of the report in the literature."""

    kge_weight: float = Field(default=2.0, ge=0)
    """Times the logarithm of the embedding's probability."""
    proved_bonus: float = 1.0
    """Added for a proof."""
    unproved_penalty: float = 0.5
    """Taken off without one."""
    rl_weight: float | None = Field(default=None, ge=0)
    """Times the logarithm of the proof's probability by the policy, where there is a proof; none for the best
    on validation queries where there are some and a policy, else 0."""


def embedding_scorer(embedding: Embedding) -> Score:
    """What an embedding says: its scores, and the logarithms of its probabilities."""

    def score(triples: Int32[np.ndarray, "triples atom"]) -> TripleScores:
        scores, beliefs = np.empty(len(triples)), np.empty(len(triples))
        for start in range(0, len(triples), _TRIPLES_AT_ONCE):
            some = triples[start : start + _TRIPLES_AT_ONCE]
            # Always as many, so that the embedding is compiled once.
            padded = np.ones((_TRIPLES_AT_ONCE, 3), np.int32)
            padded[: len(some)] = some
            here = slice(start, start + len(some))
            scores[here] = np.asarray(embedding.score(padded))[: len(some)]
            beliefs[here] = np.asarray(embedding.log_probability(padded))[: len(some)]
        return TripleScores(score=scores, log_belief=beliefs)

    return score


def hybrid_scorer(search: Score, embedding: Score, config: HybridConfig | None = None) -> Score:
    """An embedding's belief in a triple and a search for its proof, added up by fixed weights."""
    weights = HybridConfig() if config is None else config

    def score(triples: Int32[np.ndarray, "triples atom"]) -> TripleScores:
        return combine(search(triples), embedding(triples), weights)

    return score


def combine(search: TripleScores, embedding: TripleScores, config: HybridConfig) -> TripleScores:
    """The weighted sum for triples that both have scored."""
    proved, log_belief = search.proved, embedding.log_belief
    if proved is None or log_belief is None:
        raise ValueError("a hybrid needs a scorer that proves, and one that says how likely triples are")
    total = config.kge_weight * log_belief + np.where(proved, config.proved_bonus, -config.unproved_penalty)
    if config.rl_weight:
        if search.log_prob is None:
            raise ValueError(f"rl_weight is {config.rl_weight}, but the search gives proofs no probability")
        total += config.rl_weight * np.where(proved, search.log_prob, 0.0)
    return TripleScores(
        score=total, proved=proved, log_prob=search.log_prob, length=search.length, log_belief=log_belief
    )
