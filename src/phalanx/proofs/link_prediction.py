"""Link prediction with proofs.

Triples are scored by exact proofs, by proofs that a policy finds, by an embedding, or by a combination of
proofs and an embedding.
"""

import dataclasses
import functools
import math
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Int32
from pydantic import Field

from phalanx.config import Config
from phalanx.kg.chaining import can_chain, chaining_rounds
from phalanx.kg.evaluation import (
    DEFAULT_TIES,
    CandidateLists,
    LinkPredictionResult,
    Sides,
    TieRule,
    TripleScorer,
    TripleScores,
    count_ranks_in_lists,
    default_sides,
    evaluate_candidates,
    make_candidates,
    mean_reciprocal_rank,
    score_candidates,
)
from phalanx.kg.kge.embedding import KGE, load_kge
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.kg.proof_depths import UNDECIDED, compute_proof_depths
from phalanx.kg.time_limit import TimeLimit, print_to_stderr
from phalanx.kg.vocabulary import check_binary
from phalanx.proofs.config import ProofConfig, Split
from phalanx.proofs.program import Program
from phalanx.proofs.score_combination import (
    HybridConfig,
    LearnedCombination,
    combine_scores,
    compute_features,
    fit_combination,
    hybrid_scorer,
)
from phalanx.proofs.search.beam import BeamSearchConfig, ProofPolicy, beam_search
from phalanx.proofs.vocabulary import ProofVocabulary

EvaluationMode = Literal["exact", "policy", "kge", "hybrid", "learned"]
POLICY_WEIGHTS = (0.0, 0.03, 0.1, 0.3, 1.0)
"""Candidate values of `HybridConfig.policy_weight`. The best one on validation data is selected."""


class LinkPredictionConfig(Config):
    """Settings for evaluating a prover, an embedding or a combination of both by link prediction."""

    mode: EvaluationMode | None = None
    """Scores by which triples are ranked: `exact` (the number of rounds of forward chaining needed to derive
    a triple; fewer is better), `policy` (the best proof that a beam search finds), `kge` (an embedding),
    `hybrid` (proofs and an embedding, with the weights in `hybrid`), or `learned` (proofs and an embedding,
    with weights fitted on validation data). Defaults to `policy` for a prover and `kge` for an embedding."""
    kge: str | None = None
    """Folder of an embedding, or of a `phalanx train kge` run, for the `kge`, `hybrid` and `learned` modes.
    Defaults to the embedding that the evaluated run trained."""
    dataset: str | None = None
    """Knowledge base to evaluate on. Except in `exact` mode, its entities and predicates must be those of the
    knowledge base that the run was trained on. Defaults to the knowledge base of the run."""
    split: Split = "test"
    """Split of the queries."""
    num_candidates: int | None = Field(default=100, ge=1)
    """Number of corruptions per query and side. If None, all corruptions are used."""
    sides: Sides | None = None
    """Arguments that corruptions replace: `head`, `tail` or `both`. Defaults to `tail` if the knowledge base
    has several domains, and to `both` otherwise."""
    ties: TieRule = DEFAULT_TIES
    """Rank of the true triple among triples with the same score: `random` (a random position among them),
    `realistic` (the mean of the best and the worst rank, as in PyKEEN), `expected` (each metric is averaged
    over all positions) or `pessimistic` (the worst rank)."""
    seed: int = 0
    """Seed for sampling queries, for sampling corruptions, and for the `random` tie rule."""
    max_queries: int | None = Field(default=None, ge=1)
    """Maximum number of queries, which are sampled at random. If None, all queries are evaluated."""
    beam: BeamSearchConfig = BeamSearchConfig()
    """Settings for the beam search with a policy."""
    hybrid: HybridConfig = HybridConfig()
    """Weights for the `hybrid` mode."""
    skip_unprovable_search: bool = True
    """Skip the beam search for triples that have no proof of at most `beam.max_depth` steps. This does not
    change the scores, and it saves time, because most corruptions have no proof. Ignored if the policy was
    trained with an embedding or with `skip_unary_actions`, because the search can then find other proofs."""
    unproved_score: float = -math.inf
    """Score of triples without a proof in `policy` mode. Other modes ignore this setting."""
    batch_size: int | None = Field(default=None, ge=1)
    """Number of triples that the beam search processes at a time. Defaults to as many as fit into memory."""
    max_chaining_rounds: int | None = Field(default=None, ge=1)
    """Maximum number of rounds of forward chaining, in `exact` mode and, if there is no policy, in `hybrid`
    and `learned` mode. If None, chaining continues until no new triple follows."""
    max_chaining_seconds: float | None = Field(default=None, ge=0)
    """Time limit in seconds for forward chaining. Triples that are not derived within the limit count as not
    proved. None means no limit."""
    depth_computation_seconds: float | None = Field(default=30.0, ge=0)
    """Time limit in seconds for computing proof depths, which are used to group results and to skip
    unprovable triples. If 0, depths are not computed, so that results are not grouped and no triples are
    skipped. None means no limit."""
    max_fit_queries: int | None = Field(default=2000, ge=1)
    """Maximum number of validation queries for fitting the weights in `learned` mode, and for selecting
    `hybrid.policy_weight` in `hybrid` mode. If None, all validation queries are used."""


@dataclasses.dataclass(frozen=True)
class ProofLinkPredictionTask:
    """Data and settings for link prediction with proofs, with methods to create candidate lists and scorers.

    All predicates of the knowledge base must have two arguments.
    """

    knowledge_base: KnowledgeBase
    """Facts, rules and queries."""
    vocabulary: ProofVocabulary
    """Encodes the atoms of proof states."""
    environment: ProofConfig
    """Settings of the environment that the policy was trained in, which determine a state's successors."""
    config: LinkPredictionConfig
    """Settings for the evaluation."""
    kge_action: KGE | None = None
    """Embedding that can close ground goals in a search. None if the policy was trained without one."""

    def __post_init__(self) -> None:
        check_binary(self.vocabulary.kg, "link prediction")

    @functools.cached_property
    def program(self) -> Program:
        """The encoded facts and rules, indexed for resolution."""
        return Program.from_knowledge_base(self.knowledge_base, self.vocabulary)

    def queries(self, split: str, max_queries: int | None) -> Int32[np.ndarray, "queries 3"]:
        """Return the encoded queries of a split, in the order of the knowledge base.

        If there are more than `max_queries` queries, a random sample of this size is returned. If
        `max_queries` is None, all queries are returned.
        """
        queries = self.knowledge_base.triples(split)
        if max_queries is None or max_queries >= len(queries):
            return queries
        generator = np.random.default_rng(self.config.seed)
        return queries[np.sort(generator.choice(len(queries), max_queries, replace=False))]

    def candidates(self, queries: Int32[np.ndarray, "queries 3"]) -> CandidateLists:
        """Create a candidate list for each query and side, with corruptions that are not known triples."""
        return make_candidates(
            queries,
            self.knowledge_base.known_triples,
            self.vocabulary.num_constants,
            sides=self.config.sides or default_sides(self.knowledge_base),
            num_candidates=self.config.num_candidates,
            domains=self.vocabulary.kg.entity_domains,
            seed=self.config.seed,
        )

    def depths(self, queries: Int32[np.ndarray, "queries 3"]) -> Int32[np.ndarray, " queries"] | None:
        """Return the exact proof depths of queries, up to `config.beam.max_depth`.

        The depth is `NO_PROOF` if there is no proof of at most this depth, and `UNDECIDED` if the time limit
        was reached first. Returns None if `config.depth_computation_seconds` is 0, or if the head of a rule
        has a variable that does not occur in its body.
        """
        seconds, rules = self.config.depth_computation_seconds, self.knowledge_base.encoded_rules
        if seconds == 0 or not can_chain(rules):
            return None
        return compute_proof_depths(
            queries,
            self.knowledge_base.triples("train"),
            rules,
            self.config.beam.max_depth,
            TimeLimit(seconds, print_to_stderr),
        )

    def score_exactly(self, triples: Int32[np.ndarray, "triples 3"], /) -> TripleScores:
        """Score triples for the `exact` mode: the fewer rounds of forward chaining, the higher the score.

        The score is minus the round in which a triple is first derived, or minus infinity if it is not
        derived within the limits of the config. Raises `ValueError` if a triple is a fact, because forward
        chaining cannot exclude a fact from its own proof.

        Args:
            triples: Triples that are not facts.
        """
        rounds = chaining_rounds(
            triples,
            self.knowledge_base.triples("train"),
            self.knowledge_base.encoded_rules,
            self.config.max_chaining_rounds,
            TimeLimit(self.config.max_chaining_seconds, print_to_stderr),
        )
        if len(is_fact := np.flatnonzero(rounds == 0)):
            raise ValueError(
                f"{triples[is_fact[0]].tolist()} is a fact, and rounds of forward chaining cannot exclude it "
                "from its own proof"
            )
        proved = rounds > 0
        scores = np.where(proved, -rounds.astype(np.float64), -np.inf)
        length = np.where(proved, rounds, -1).astype(np.int64)
        return TripleScores(score=scores, proved=proved, length=length)

    def policy_scorer(self, policy: ProofPolicy) -> TripleScorer:
        """Return the scorer for the `policy` mode.

        The score of a triple is the log-probability of the best proof that a beam search finds, or
        `config.unproved_score` if it finds none. If `config.skip_unprovable_search` is true, the search is
        skipped for triples that have no proof within the depth of the search.
        """
        config = self.config
        # With skip_unary_actions, a search can find proofs with more steps than its depth. A triple that
        # cannot be proved from facts and rules may have a proof in which an embedding closes some of the
        # goals.
        is_bounded = not self.environment.skip_unary_actions and self.kge_action is None

        def score(triples: Int32[np.ndarray, "triples 3"], /) -> TripleScores:
            depths = self.depths(triples) if config.skip_unprovable_search and is_bounded else None
            searched = np.arange(len(triples))
            if depths is not None:
                searched = np.flatnonzero((depths >= 0) | (depths == UNDECIDED))
            found = beam_search(
                self.environment,
                self.program,
                policy,
                triples[searched] + 1,
                config.beam,
                kge=self.kge_action,
                batch_size=config.batch_size,
            )
            proved, log_prob = np.zeros(len(triples), bool), np.full(len(triples), -np.inf)
            length = np.full(len(triples), -1, np.int64)
            proved[searched], log_prob[searched], length[searched] = found[:3]
            scores = np.where(proved, log_prob, config.unproved_score)
            return TripleScores(score=scores, proved=proved, log_prob=log_prob, length=length)

        return score

    def select_hybrid_weights(self, search: TripleScorer, embedding: TripleScorer) -> HybridConfig:
        """Return the weights of the `hybrid` mode, which combines proofs and an embedding.

        These are the weights in `config.hybrid`. If its `policy_weight` is None, the candidate in
        `POLICY_WEIGHTS` with the best MRR on the validation split is used, or 0 if there are no validation
        queries.

        Args:
            search: Scorer that searches for proofs.
            embedding: Scorer that provides the log-probabilities of an embedding.
        """
        weights = self.config.hybrid
        if weights.policy_weight is not None:
            return weights
        if not self.knowledge_base.valid:
            return weights.model_copy(update={"policy_weight": 0.0})
        candidates, found, scored = self._score_validation_queries(search, embedding)
        choices = [weights.model_copy(update={"policy_weight": weight}) for weight in POLICY_WEIGHTS]

        def mrr(choice: HybridConfig) -> float:
            counts = count_ranks_in_lists(candidates, combine_scores(found, scored, choice).score)
            return mean_reciprocal_rank(counts, "expected")

        best = max(choices, key=mrr)
        print_to_stderr(
            f"hybrid: policy_weight {best.policy_weight} is the best of {POLICY_WEIGHTS} on validation data"
        )
        return best

    def fit_combination(self, search: TripleScorer, embedding: TripleScorer) -> LearnedCombination:
        """Fit the weights of the `learned` mode, which combines proofs and an embedding.

        The weights are fitted to the queries of the validation split.

        Args:
            search: Scorer that searches for proofs.
            embedding: Scorer that provides the log-probabilities of an embedding.
        """
        candidates, found, scored = self._score_validation_queries(search, embedding)
        return fit_combination(candidates, compute_features(found, scored), self.vocabulary.num_predicates)

    def _score_validation_queries(
        self, search: TripleScorer, embedding: TripleScorer
    ) -> tuple[CandidateLists, TripleScores, TripleScores]:
        candidates = self.candidates(self.queries("valid", self.config.max_fit_queries))
        return candidates, score_candidates(search, candidates), score_candidates(embedding, candidates)


def evaluate_proofs(
    mode: EvaluationMode,
    link_prediction: ProofLinkPredictionTask,
    *,
    policy: ProofPolicy | None = None,
    kge: Any = None,
) -> LinkPredictionResult:
    """Rank each query of `link_prediction.config.split` among its corruptions, and compute MRR and Hits@k.

    Args:
        mode: How triples are scored. `exact` gives higher scores to triples that forward chaining derives in
            fewer rounds. `policy` uses the log-probability of the best proof that a beam search with the
            policy finds. `kge` uses the score of an embedding. `hybrid` combines proofs and an embedding with
            the weights of the config, and `learned` combines them with weights that are fitted on the
            validation split. Without a policy, `hybrid` and `learned` use forward chaining instead of the
            beam search.
        link_prediction: The task, with the knowledge base and the evaluation settings.
        policy: The policy. Required for the `policy` mode.
        kge: The embedding, which is a `KGE` or another object with `score` and `log_prob` methods.
            Required for the `kge`, `hybrid` and `learned` modes.
    """
    if mode not in (modes := get_args(EvaluationMode)):
        raise ValueError(f"mode must be one of {', '.join(modes)}, got {mode!r}")
    if mode == "policy" and policy is None:
        raise ValueError("mode=policy needs a policy; without one, use kge, hybrid, learned or exact")
    if mode in ("kge", "hybrid", "learned") and kge is None:
        raise ValueError(f"mode={mode} needs an embedding: set kge to a run of `phalanx train kge`")
    config, embedding = link_prediction.config, embedding_scorer(kge)
    search: TripleScorer = link_prediction.score_exactly
    if policy is not None and mode != "exact":
        search = link_prediction.policy_scorer(policy)
    scorer = embedding if mode == "kge" else search
    if mode == "hybrid":
        weights = config.hybrid
        if policy is not None:
            weights = link_prediction.select_hybrid_weights(search, embedding)
        scorer = hybrid_scorer(search, embedding, weights)
    elif mode == "learned":
        scorer = link_prediction.fit_combination(search, embedding).scorer(search, embedding)
    queries = link_prediction.queries(config.split, config.max_queries)
    return evaluate_candidates(
        scorer,
        link_prediction.candidates(queries),
        ties=config.ties,
        depths=link_prediction.depths(queries),
        vocabulary=link_prediction.vocabulary.kg,
        split=config.split,
        predictor=mode,
    )


def evaluate_with_config(
    config: LinkPredictionConfig,
    environment: ProofConfig,
    knowledge_base: KnowledgeBase,
    vocabulary: ProofVocabulary,
    *,
    policy: ProofPolicy | None = None,
    kge: KGE | None = None,
    kge_action: KGE | None = None,
) -> LinkPredictionResult:
    """Evaluate a policy or an embedding by link prediction, with the settings of `phalanx eval`.

    Args:
        config: Settings of `phalanx eval`.
        environment: Settings of the environment that the policy was trained in.
        knowledge_base: Knowledge base of the run. It is not used if `config.dataset` is set.
        vocabulary: Vocabulary that the policy was trained with.
        policy: The policy, or None if the run did not train one.
        kge: The embedding to rank with, or None if the run did not train one. `config.kge` takes precedence.
        kge_action: The embedding that can close ground goals in a search. None means no embedding.
    """
    mode = config.mode or ("kge" if policy is None else "policy")
    if mode in ("exact", "kge"):
        policy = None
    if config.dataset is not None:
        knowledge_base = KnowledgeBase.load(config.dataset, on_leak=environment.on_leak)
        trained, vocabulary = vocabulary, ProofVocabulary(knowledge_base, environment.max_goals)
        if policy is not None or kge is not None:
            _check_same_names(trained, vocabulary, config.dataset)
    if mode not in ("exact", "policy") and config.kge is not None:
        kge = load_kge(config.kge, vocabulary.kg)
    link_prediction = ProofLinkPredictionTask(
        knowledge_base, vocabulary, environment, config, None if policy is None else kge_action
    )
    return evaluate_proofs(mode, link_prediction, policy=policy, kge=kge)


def _check_same_names(trained: ProofVocabulary, given: ProofVocabulary, dataset: str) -> None:
    for kind in ("predicates", "constants"):
        # Both vocabularies are sorted, so only their names can differ.
        expected, found = set(getattr(trained, kind)), set(getattr(given, kind))
        if different := sorted(expected ^ found):
            raise ValueError(
                f"the run was trained with {len(expected)} {kind} and {dataset} has {len(found)}: "
                f"{different[0]!r} is in only one of them; only mode=exact works with other names"
            )


_TRIPLES_PER_BATCH = 1 << 14
"""Number of triples that an embedding scores at a time. The last batch is padded to avoid recompilation."""


def embedding_scorer(embedding: Any) -> TripleScorer:
    """Return a scorer that provides the scores and log-probabilities of an embedding.

    Args:
        embedding: A `KGE`, or another object with `score` and `log_prob` methods.
    """

    def score(triples: Int32[np.ndarray, "triples 3"], /) -> TripleScores:
        padded = np.pad(triples, ((0, -len(triples) % _TRIPLES_PER_BATCH), (0, 0)))
        batches = padded.reshape(-1, _TRIPLES_PER_BATCH, 3)
        scores, kge_log_prob = (
            np.concatenate([np.empty(0), *map(function, batches)])[: len(triples)]
            for function in (embedding.score, embedding.log_prob)
        )
        return TripleScores(score=scores, kge_log_prob=kge_log_prob)

    return score
