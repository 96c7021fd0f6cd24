"""Link prediction with rules. The confidences of all rules that predict the same answer are combined."""

from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float32, Float64, Int32

from phalanx.kg.evaluation import (
    DirectedRelationPredictor,
    GroupedQueries,
    LinkPredictor,
    RankCounts,
    count_candidates,
    count_ranks,
    mean_reciprocal_rank,
)
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.kg.predictor_ensemble import Ensemble, select_per_relation, validation_triples
from phalanx.kg.rules.mining import build_graph
from phalanx.kg.rules.ruleset import RuleSet
from phalanx.kg.time_limit import Report, ignore
from phalanx.kg.triple_index import TripleIndex
from phalanx.native import require_native

Aggregation = Literal["maxplus", "noisyor", "power", "learned", "per_relation"]
AGGREGATORS: tuple[Aggregation, ...] = ("maxplus", "noisyor", "power", "learned", "per_relation")
"""Methods for combining the confidences of several rules that predict the same answer.

- `maxplus`: compares answers by their most confident rule, breaks ties by the second most confident rule, and
  so on (AnyBURL);
- `noisyor`: treats rules as independent evidence. The score is the sum of -log(1 - confidence) over all
  rules;
- `power`: like `noisyor`, but each term of the sum is raised to a power. Larger powers give more weight to
  the most confident rules, so the ranking becomes more similar to that of `maxplus`;
- `learned`: the score is the sum of the rules' weights, which are learned from the facts;
- `per_relation`: uses the best of `PER_RELATION_CHOICES` for each relation and side.
"""
PER_RELATION_CHOICES: tuple[tuple[Aggregation, float], ...] = (
    ("maxplus", 1.0),
    ("noisyor", 1.0),
    ("power", 2.0),
    ("power", 3.0),
    ("power", 4.0),
    ("power", 6.0),
)
"""Candidates for the `per_relation` aggregation, as (aggregation, power) pairs. For each relation and side,
the best candidate on validation data is selected."""
DEFAULT_POWER = 2.0
_SCORE_OFFSET = 1e-3
"""Constant c in the transformation log(1 + score / c) that `RulePredictor.score_pairs` applies to scores. The
transformation is approximately linear for scores below c."""
_RELATIONS_PER_ROUND = 8
_QUERIES_PER_ROUND = 256
_MAX_LEARNING_ENTITIES = 20_000
_LEARNING_NEGATIVES = 200


class WeightLearningSettings(NamedTuple):
    """Settings for learning the rule weights of the `learned` aggregation.

    The initial weights are those of the `noisyor` aggregation. They are then trained with Adagrad to predict
    the facts, with a softmax cross-entropy loss.
    """

    num_epochs: int
    """Number of epochs. With 0, the initial weights are not changed."""
    learning_rate: float
    decay: float
    """Coefficient of an L2 penalty on the difference between the weights and their initial values."""


LEARNING_CHOICES = (
    WeightLearningSettings(0, 0.0, 0.0),
    WeightLearningSettings(3, 0.02, 0.3),
    WeightLearningSettings(5, 0.05, 0.03),
    WeightLearningSettings(10, 0.05, 0.01),
)
"""Candidate settings for the `learned` aggregation. The candidate with the best MRR on the validation queries
is selected. The first candidate keeps the initial weights."""


class RuleApplier:
    """Applies rules to the facts of a knowledge base.

    Predictors that differ only in their weights can share a `RuleApplier`.

    Args:
        rules: The rules.
        knowledge_base: The facts.
        max_paths_per_entity: Maximum number of paths that are followed from one entity when a rule is
            applied.
        num_threads: Number of threads. It does not change the result.
    """

    def __init__(
        self,
        rules: RuleSet,
        knowledge_base: KnowledgeBase,
        *,
        max_paths_per_entity: int = 10_000,
        num_threads: int = 2,
    ) -> None:
        self.rules, self.knowledge_base = rules, knowledge_base.binary()
        # Rules with equal confidence have equal ranks.
        ranks = np.cumsum(np.diff(rules.confidence, prepend=rules.confidence[:1]) != 0).astype(np.int32)
        graph = build_graph(rules.vocabulary.encode(self.knowledge_base.facts), rules.vocabulary)
        extension = require_native("prediction with rules")
        self.native = extension.RulePredictor(graph, rules.rows, ranks, max_paths_per_entity, num_threads)
        self._known_graph: tuple[TripleIndex, Any] | None = None

    def known_graph(self, known: TripleIndex) -> Any:
        """Return the known triples as a graph of the C++ extension. The most recent graph is cached."""
        if self._known_graph is None or self._known_graph[0] is not known:
            self._known_graph = known, build_graph(known.triples, self.rules.vocabulary)
        return self._known_graph[1]

    def count_validation_ranks(self, predictor: LinkPredictor, report: Report) -> RankCounts:
        """Return the rank counts of a predictor on the validation queries; see `RankCounts`."""
        base = self.knowledge_base
        return count_ranks(predictor, base.triples("valid"), base.known_answers, report)


class RulePredictor(DirectedRelationPredictor):
    """Link predictor that applies rules to facts. A rule predicts an answer if its body is true in the facts.

    Use `RulePredictor.fit` to create it. Evaluations call `count_ranks`, which compares two answers by the
    lists of rules that predict them. This is necessary for `maxplus`, which is a lexicographic comparison and
    cannot be expressed exactly as a score. `score_tails` and `score_heads` return scores, which are
    approximate for `maxplus`.

    Args:
        applier: Applies the rules to the facts.
        aggregation: How to combine several rules; one of `AGGREGATORS` except `per_relation`.
        weights: Two weights per rule; see `rule_weights`.
        selected: Settings that were selected on validation data. They are included in evaluation results.
    """

    def __init__(
        self,
        applier: RuleApplier,
        aggregation: Aggregation,
        weights: Float64[np.ndarray, " twice_rules"],
        selected: dict[str, Any] | None = None,
    ) -> None:
        self._applier, self.aggregation, self.weights = applier, aggregation, weights
        self.selected = selected or {}
        """Settings that were selected on validation data."""
        self.description = f"{len(applier.rules)} rules, {aggregation}"
        """Short description of the predictor, for evaluation results."""
        self._method = "maxplus" if aggregation == "maxplus" else "sum"

    @classmethod
    def fit(
        cls,
        rules: RuleSet,
        knowledge_base: KnowledgeBase,
        aggregation: Aggregation = "maxplus",
        *,
        kge: LinkPredictor | None = None,
        power: float = DEFAULT_POWER,
        max_paths_per_entity: int = 10_000,
        num_threads: int = 2,
        report: Report = ignore,
    ) -> "RulePredictor | PerRelationRulePredictor | Ensemble":
        """Create a predictor. Settings that depend on data are selected on the validation queries.

        Args:
            rules: Mined rules.
            knowledge_base: The facts that the rules are applied to, and the validation queries.
            aggregation: How to combine several rules; one of `AGGREGATORS`.
            kge: An embedding to combine with the rules. Its weight is selected for each relation, separately
                for head and tail queries. If None, only the rules are used.
            power: Exponent of the `power` aggregation. 1 is the same as `noisyor`; larger values are closer
                to `maxplus`.
            max_paths_per_entity: Maximum number of paths that are followed from one entity when a rule is
                applied.
            num_threads: Number of threads. It does not change the result.
            report: Function that is called with progress messages.

        Returns:
            A `RulePredictor`; a `PerRelationRulePredictor` for the `per_relation` aggregation; or an
            `Ensemble` if an embedding is given.
        """
        if aggregation not in AGGREGATORS:
            raise ValueError(f"aggregation must be one of {', '.join(AGGREGATORS)}, got {aggregation!r}")
        if aggregation in ("learned", "per_relation") or kge is not None:
            validation_triples(knowledge_base.binary())  # raises before the rules are applied
        applier = RuleApplier(
            rules, knowledge_base, max_paths_per_entity=max_paths_per_entity, num_threads=num_threads
        )
        if aggregation == "per_relation":
            if kge is not None:
                raise ValueError("an embedding can be combined with any aggregation except per_relation")
            return PerRelationRulePredictor(applier, report)
        choices = LEARNING_CHOICES if aggregation == "learned" else LEARNING_CHOICES[:1]
        candidates = (
            cls(
                applier,
                aggregation,
                rule_weights(applier, aggregation, learning, power, report),
                {"learning": learning._asdict()} if aggregation == "learned" else {},
            )
            for learning in choices
        )
        if kge is not None:
            return Ensemble.fit(candidates, kge, applier.knowledge_base, report)
        if aggregation != "learned":
            return next(candidates)
        validated = []
        for candidate in candidates:
            counts = applier.count_validation_ranks(candidate, report)
            candidate.selected = {"valid_mrr": mean_reciprocal_rank(counts, "expected"), **candidate.selected}
            validated.append(candidate)
        return max(validated, key=lambda predictor: predictor.selected["valid_mrr"])

    def count_ranks(self, queries: GroupedQueries, known: TripleIndex, report: Report = ignore) -> RankCounts:
        """Rank the true answers to queries by comparing the lists of rules that predict each answer.

        Args:
            queries: The queries and their true answers.
            known: Known answers, which are removed from the rankings.
            report: Function that is called with progress messages.
        """
        higher, tied = np.zeros((2, len(queries.targets)), np.int64)
        graph = self._applier.known_graph(known)
        for start in range(0, len(queries.pairs), _QUERIES_PER_ROUND):
            starts = queries.starts[start : start + _QUERIES_PER_ROUND + 1]
            lists = slice(starts[0], starts[-1])
            self._applier.native.count_ranks(
                graph,
                queries.pairs[start : start + _QUERIES_PER_ROUND],
                starts - starts[0],
                queries.targets[lists],
                self._method,
                self.weights,
                higher[lists],
                tied[lists],
            )
            report(f"ranking: {start:,} of {len(queries.pairs):,} queries")
        num_candidates = count_candidates(queries, known)
        return RankCounts(queries.in_list_order(higher), queries.in_list_order(tied), num_candidates)

    def raw_scores(self, pairs: Int32[np.ndarray, "pairs 2"]) -> Float32[np.ndarray, "pairs entities"]:
        """Return the aggregated scores of all entities as answers to queries, before log scaling.

        Queries are (entity, directed relation) pairs. The directed relation 2r asks for the tails of relation
        r, and 2r + 1 asks for its heads.
        """
        table = np.zeros((len(pairs), self._applier.rules.vocabulary.num_entities), np.float32)
        self._applier.native.score(np.ascontiguousarray(pairs, np.int32), self._method, self.weights, table)
        return table

    def score_pairs(self, pairs: Int32[np.ndarray, "pairs 2"]) -> Float32[np.ndarray, "pairs entities"]:
        """Return log-scaled scores of all entities as answers to (entity, directed relation) queries.

        For `maxplus`, ranking by these scores only approximates the exact `maxplus` ranking.
        """
        table = self.raw_scores(pairs)
        scores: np.ndarray = np.sign(table) * np.log1p(np.abs(table) / np.float32(_SCORE_OFFSET))
        return scores

    def predict(self, entity: int, directed_relation: int) -> dict[int, list[int]]:
        """Return the answers that the rules predict for one query.

        Args:
            entity: The entity of the query.
            directed_relation: 2r to ask for the tails of relation r, or 2r + 1 to ask for its heads.

        Returns:
            A dictionary from each predicted answer to the indices of the rules that predict it, most
            confident first.
        """
        answers, starts, rules = self._applier.native.predict(entity, directed_relation)
        return {
            answer: rules[starts[number] : starts[number + 1]].tolist()
            for number, answer in enumerate(answers.tolist())
        }


class PerRelationRulePredictor(DirectedRelationPredictor):
    """Link predictor that selects an aggregation for each relation and side on validation data.

    Args:
        applier: Applies the rules to the facts. Its knowledge base must have validation queries, on which
            one of `PER_RELATION_CHOICES` is selected for each directed relation.
        report: Function that is called with progress messages.
    """

    def __init__(self, applier: RuleApplier, report: Report = ignore) -> None:
        self.description = f"{len(applier.rules)} rules, per_relation"
        self._predictors = [
            RulePredictor(applier, name, rule_weights(applier, name, power=power))
            for name, power in PER_RELATION_CHOICES
        ]
        counts = [applier.count_validation_ranks(predictor, report) for predictor in self._predictors]
        base = applier.knowledge_base
        mrr, self._choice = select_per_relation(counts, base.triples("valid"), base.vocabulary.num_predicates)
        self.selected: dict[str, Any] = {"valid_mrr": mrr}
        """MRR on the validation queries and, for each entry of `PER_RELATION_CHOICES`, the number of directed
        relations for which it was selected."""
        for number, (name, power) in enumerate(PER_RELATION_CHOICES):
            self.selected[f"{name} {power:g}"] = int((self._choice == number).sum())

    def count_ranks(self, queries: GroupedQueries, known: TripleIndex, report: Report = ignore) -> RankCounts:
        """Rank each true answer with the predictor that was selected for its relation and side.

        See `RulePredictor.count_ranks` for the arguments.
        """
        used = np.unique(self._choice).tolist()
        counts = [self._predictors[number].count_ranks(queries, known, report) for number in used]
        relations = queries.in_list_order(np.repeat(queries.pairs[:, 1], np.diff(queries.starts)))
        choice = np.searchsorted(used, self._choice)[relations]
        return RankCounts(*(np.choose(choice, columns) for columns in zip(*counts, strict=True)))

    def score_pairs(self, pairs: Int32[np.ndarray, "pairs 2"]) -> Float32[np.ndarray, "pairs entities"]:
        """Return the scores of all entities, computed by the predictor that was selected for each pair."""
        choice = self._choice[pairs[:, 1]]
        found = {number: self._predictors[number].score_pairs(pairs) for number in np.unique(choice).tolist()}
        return np.stack([found[number][row] for row, number in enumerate(choice.tolist())])


def rule_weights(
    applier: RuleApplier,
    aggregation: Aggregation,
    learning: WeightLearningSettings = LEARNING_CHOICES[0],
    power: float = DEFAULT_POWER,
    report: Report = ignore,
) -> Float64[np.ndarray, " twice_rules"]:
    """Return the weights of rules for an aggregation. Each rule has two weights.

    The weight of rule i is at index 2i for tail queries, and at index 2i + 1 for head queries.

    Args:
        applier: Applies the rules to the facts.
        aggregation: How to combine several rules.
        learning: Settings for the `learned` aggregation.
        power: Exponent for the `power` aggregation.
        report: Function that is called with progress messages.
    """
    rules = applier.rules
    if aggregation == "maxplus":
        return np.repeat(rules.confidence, 2)
    # The sum of these weights is the negative log-probability that all rules are wrong. It must be finite
    # even for rules with confidence 1.
    weights = np.repeat(-np.log1p(-np.minimum(rules.confidence, 1 - 1e-6)), 2)
    if aggregation == "power":
        weights **= power
    if aggregation == "learned" and learning.num_epochs:
        relations = np.arange(2 * rules.vocabulary.num_predicates, dtype=np.int32)
        for start in range(0, len(relations), _RELATIONS_PER_ROUND):
            some = relations[start : start + _RELATIONS_PER_ROUND]
            applier.native.fit_weights(
                weights, some, _MAX_LEARNING_ENTITIES, _LEARNING_NEGATIVES, *learning, 0
            )
            report(f"learning weights: relation {start // 2 + 1} of {len(relations) // 2}")
    return weights
