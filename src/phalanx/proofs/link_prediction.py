"""Link prediction with proofs: exact, policy, embedding and hybrid scores of triples."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int32
from pydantic import Field

from phalanx.config import Config
from phalanx.kg.chaining import can_chain, chaining_rounds
from phalanx.kg.evaluation import (
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
from phalanx.kg.proof_depths import DEFAULT_MAX_DEPTH, UNDECIDED, compute_proof_depths
from phalanx.kg.time_limit import TimeLimit, print_to_stderr
from phalanx.kg.vocabulary import EncodedRule, check_binary
from phalanx.proofs.config import ProofConfig, Split
from phalanx.proofs.program import Program
from phalanx.proofs.score_combination import (
    HybridConfig,
    ScoreCombination,
    combine_scores,
    compute_features,
    fit_combination,
    hybrid_scorer,
)
from phalanx.proofs.search.beam import BeamSearchConfig, ProofPolicy, beam_search
from phalanx.proofs.vocabulary import ProofVocabulary

EvaluationMode = Literal["exact", "policy", "kge", "hybrid", "learned"]
MODES: tuple[EvaluationMode, ...] = ("exact", "policy", "kge", "hybrid", "learned")
POLICY_WEIGHTS = (0.0, 0.03, 0.1, 0.3, 1.0)
"""Candidate weights of a proof's log-probability in `hybrid`; the best one on validation data is selected."""


class LinkPredictionConfig(Config):
    """Settings of link prediction with proofs: the settings of `phalanx eval` for provers and embeddings."""

    renamed_settings: ClassVar[dict[str, str]] = {
        "corruptions": "num_candidates",
        "search": "beam",
        "search.width": "beam.beam_width",
        "screen": "skip_unprovable",
        "exact_rounds": "max_rounds",
        "exact_seconds": "max_chaining_seconds",
        "depth_seconds": "max_depth_seconds",
        "fit_queries": "max_fit_queries",
    }

    mode: EvaluationMode | None = None
    """Scores that triples are ranked by: `exact` (rounds of forward chaining), `policy` (the best proof that
    a beam search finds), `kge` (an embedding), `hybrid` (proofs and an embedding, with the weights in
    `hybrid`), or `learned` (both, with weights fitted on validation data). None: `policy` for a prover, `kge`
    for an embedding."""
    kge: str | None = None
    """Run of `phalanx train kge` or folder of an embedding, for the modes `kge`, `hybrid` and `learned`."""
    dataset: str | None = None
    """Another knowledge base with the same entities and predicates; None for that of the run."""
    split: Split = "test"
    """Split of the queries."""
    num_candidates: int | None = Field(default=100, ge=1)
    """Corruptions per query and side; None for all."""
    sides: Sides | None = None
    """Arguments to replace; None: `tail` if constants are in several domains, otherwise `both`."""
    ties: TieRule = "random"
    """Rank of triples with equal scores."""
    seed: int = 0
    """Seed of corruptions and of positions among ties."""
    max_queries: int | None = Field(default=None, ge=1)
    """Queries to evaluate, sampled with the seed; None for all."""
    beam: BeamSearchConfig = BeamSearchConfig()
    """The search with a policy."""
    hybrid: HybridConfig = HybridConfig()
    """Weights of the mode `hybrid`."""
    skip_unprovable: bool = True
    """Skip the search for triples that provably have no proof within its depth. This does not
    change scores and saves time, because most corruptions have no proof."""
    unproved_score: float = -math.inf
    """Score of triples without a proof in the mode `policy`."""
    batch_size: int | None = Field(default=None, ge=1)
    """Queries that are searched at a time; None: as many as fit into memory."""
    max_rounds: int | None = Field(default=None, ge=1)
    """Rounds of forward chaining in the mode `exact`; None: until nothing new follows."""
    max_chaining_seconds: float | None = Field(default=None, ge=0)
    """Time for forward chaining; atoms that would follow later count as unproved. None: no limit."""
    max_depth_seconds: float | None = Field(default=30.0, ge=0)
    """Time for computing proof depths, which are used to group results and to skip unprovable triples; 0
    disables both."""
    max_fit_queries: int | None = Field(default=2000, ge=1)
    """Validation queries for fitting the mode `learned`; None for all."""


@runtime_checkable
class TripleProbabilities(Protocol):
    """A model with scores and calibrated probabilities of triples, such as `KGE`."""

    def score(self, triples: Any) -> Any:
        """Return the score of each triple; higher is more likely."""

    def log_probability(self, triples: Any) -> Any:
        """Return the logarithm of the probability that each triple is true."""


@dataclasses.dataclass(frozen=True)
class ProofLinkPrediction:
    """A knowledge base, the settings and the indexed program, from which scorers are created."""

    knowledge_base: KnowledgeBase
    vocabulary: ProofVocabulary
    environment: ProofConfig
    """Settings of goal expansion. A policy's probabilities refer to this environment."""
    config: LinkPredictionConfig
    program: Program
    kge_action: KGE | None = None
    """The embedding that can close goals in a search, if the policy was trained with one."""

    @classmethod
    def create(
        cls,
        knowledge_base: KnowledgeBase,
        vocabulary: ProofVocabulary,
        environment: ProofConfig,
        config: LinkPredictionConfig | None = None,
        kge_action: KGE | None = None,
    ) -> "ProofLinkPrediction":
        """Index a knowledge base, all of whose predicates must have two arguments."""
        check_binary(vocabulary.kg, "link prediction")
        program = Program.from_knowledge_base(knowledge_base, vocabulary)
        config = config or LinkPredictionConfig()
        return cls(knowledge_base, vocabulary, environment, config, program, kge_action)

    @property
    def rules(self) -> tuple[EncodedRule, ...]:
        """The encoded rules of the knowledge base."""
        return self.knowledge_base.encoded_rules

    def queries(self, split: str, max_queries: int | None) -> Int32[np.ndarray, "queries 3"]:
        """Return queries of a split in order, at most `max_queries`, sampled with the seed."""
        queries = self.knowledge_base.triples(split)
        if max_queries is None or max_queries >= len(queries):
            return queries
        generator = np.random.default_rng(self.config.seed)
        return queries[np.sort(generator.choice(len(queries), max_queries, replace=False))]

    def candidates(self, queries: Int32[np.ndarray, "queries 3"]) -> CandidateLists:
        """Sample corruptions that are in no split."""
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
        """Return exact proof depths up to the depth of the search; None if they are not computed."""
        seconds = self.config.max_depth_seconds
        if seconds == 0 or not can_chain(self.rules):
            return None
        return compute_proof_depths(
            queries,
            self.knowledge_base.triples("train"),
            self.rules,
            self.config.beam.max_depth,
            TimeLimit(seconds, print_to_stderr),
        )

    def policy_scorer(self, policy: ProofPolicy) -> TripleScorer:
        """Return a scorer of the mode `policy`: the log-probability of the best proof that a search finds."""
        # A triple without a proof from facts and rules may have one with goals that an embedding closes.
        config = self.config
        skip = config.skip_unprovable and config.max_depth_seconds != 0 and self.kge_action is None
        return policy_scorer(
            self.environment,
            self.program,
            policy,
            config.beam,
            rules=self.rules if skip else None,
            kge=self.kge_action,
            max_depth_seconds=config.max_depth_seconds,
            unproved_score=config.unproved_score,
            batch_size=config.batch_size,
        )

    def select_hybrid_weights(self, search: TripleScorer, embedding: TripleScorer) -> HybridConfig:
        """Return the weights of `hybrid`; an open policy weight is selected on validation data."""
        weights = self.config.hybrid
        if weights.policy_weight is not None:
            return weights
        if not self.knowledge_base.valid:
            return weights.model_copy(update={"policy_weight": 0.0})
        candidates = self.candidates(self.queries("valid", self.config.max_fit_queries))
        found, scored = score_candidates(search, candidates), score_candidates(embedding, candidates)
        choices = [weights.model_copy(update={"policy_weight": weight}) for weight in POLICY_WEIGHTS]

        def mrr(choice: HybridConfig) -> float:
            counts = count_ranks_in_lists(candidates, combine_scores(found, scored, choice).score)
            return mean_reciprocal_rank(counts, "expected")

        best = max(choices, key=mrr)
        print_to_stderr(
            f"hybrid: policy_weight {best.policy_weight} is the best of {POLICY_WEIGHTS} on validation data"
        )
        return best

    def fit_combination(self, search: TripleScorer, embedding: TripleScorer) -> ScoreCombination:
        """Fit a combination on the validation split."""
        candidates = self.candidates(self.queries("valid", self.config.max_fit_queries))
        features = compute_features(
            score_candidates(search, candidates), score_candidates(embedding, candidates)
        )
        return fit_combination(candidates, features, self.vocabulary.kg)


def evaluate_proofs(
    mode: EvaluationMode,
    link_prediction: ProofLinkPrediction,
    *,
    policy: ProofPolicy | None = None,
    kge: TripleProbabilities | None = None,
    combination: ScoreCombination | None = None,
    split: str = "test",
) -> LinkPredictionResult:
    """Rank the queries of a split among corruptions.

    Args:
        mode: The scores. `exact`: fewer rounds of forward chaining are better (needs no policy); `policy`:
            the log-probability of the best proof that a search with the policy finds; `kge`: an embedding's
            score; `hybrid`: both with the config's weights; `learned`: both with the weights of
            `combination`. In `hybrid` and `learned`, proofs are exact if there is no policy.
        link_prediction: The knowledge base and the settings.
        policy: The policy.
        kge: The embedding.
        combination: Weights of `learned`; default: fitted on the validation split.
        split: `valid`, `test` or `train`.
    """
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    queries = link_prediction.queries(split, link_prediction.config.max_queries)
    return evaluate_candidates(
        _make_scorer(mode, link_prediction, policy, kge, combination),
        link_prediction.candidates(queries),
        ties=link_prediction.config.ties,
        depths=link_prediction.depths(queries),
        vocabulary=link_prediction.vocabulary.kg,
        split=split,
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
    """Evaluate a policy or an embedding with the mode, split, dataset and embedding of a config.

    Args:
        config: The settings of `phalanx eval`.
        environment: How goals are expanded.
        knowledge_base: Data of the run; replaced by `config.dataset`.
        vocabulary: The state indices that the policy was trained with.
        policy: The policy, if the run trained one.
        kge: The embedding, if the run trained one; replaced by `config.kge`.
        kge_action: The embedding that can close goals in a search.
    """
    mode = config.mode or ("kge" if policy is None else "policy")
    if mode == "policy" and policy is None:
        raise ValueError("an embedding has no policy; set mode=kge, hybrid, learned or exact")
    if mode in ("exact", "kge"):
        policy = None
    if config.dataset is not None:
        knowledge_base = KnowledgeBase.load(config.dataset, on_leak=environment.on_leak)
        trained, vocabulary = vocabulary, ProofVocabulary(knowledge_base, environment.max_goals)
        if policy is not None or kge is not None:
            _check_same_names(trained, vocabulary, config.dataset)
    if mode not in ("exact", "policy"):
        if config.kge is not None:
            kge = load_kge(config.kge, vocabulary.kg)
        if kge is None:
            raise ValueError(f"mode={mode} needs an embedding: set kge to a run of `phalanx train kge`")
    link_prediction = ProofLinkPrediction.create(
        knowledge_base, vocabulary, environment, config, None if policy is None else kge_action
    )
    return evaluate_proofs(mode, link_prediction, policy=policy, kge=kge, split=config.split)


def _check_same_names(trained: ProofVocabulary, given: ProofVocabulary, dataset: str) -> None:
    for kind in ("predicates", "constants"):
        expected, found = list(getattr(trained, kind)), list(getattr(given, kind))
        if expected != found:
            different = sorted(set(expected) ^ set(found))
            detail = f"{different[0]!r} is in only one of them" if different else "their order differs"
            raise ValueError(
                f"the run was trained with {len(expected)} {kind} and {dataset} has {len(found)}: {detail}; "
                "only mode=exact works with other names"
            )


def _make_scorer(
    mode: EvaluationMode,
    link_prediction: ProofLinkPrediction,
    policy: ProofPolicy | None,
    kge: TripleProbabilities | None,
    combination: ScoreCombination | None,
) -> TripleScorer:
    config = link_prediction.config
    exact = exact_scorer(
        link_prediction.knowledge_base.triples("train"),
        link_prediction.rules,
        limit=config.max_rounds,
        max_seconds=config.max_chaining_seconds,
    )
    if mode == "exact":
        return exact
    if mode == "policy":
        if policy is None:
            raise ValueError("mode 'policy' needs a policy")
        return link_prediction.policy_scorer(policy)
    if kge is None:
        raise ValueError(f"mode {mode!r} needs a knowledge-graph embedding")
    embedding = embedding_scorer(kge)
    if mode == "kge":
        return embedding
    search = exact if policy is None else link_prediction.policy_scorer(policy)
    if mode == "hybrid":
        weights = config.hybrid
        if policy is not None:
            weights = link_prediction.select_hybrid_weights(search, embedding)
        return hybrid_scorer(search, embedding, weights)
    combination = combination or link_prediction.fit_combination(search, embedding)
    return combination.scorer(search, embedding)


def policy_scorer(
    config: ProofConfig,
    program: Program,
    policy: ProofPolicy,
    beam: BeamSearchConfig | None = None,
    *,
    rules: Sequence[EncodedRule] | None = None,
    kge: KGE | None = None,
    max_depth_seconds: float | None = None,
    unproved_score: float = -math.inf,
    batch_size: int | None = None,
) -> TripleScorer:
    """Return a scorer that searches for proofs with a policy.

    Args:
        config: How goals are expanded.
        program: Facts and rules.
        policy: The policy.
        beam: The search.
        rules: If given (with ids from 0), triples without a proof within the depth of the search are skipped.
        kge: An embedding that can close goals.
        max_depth_seconds: Time for finding unprovable triples; undecided triples are searched.
        unproved_score: Score of triples without a proof.
        batch_size: Queries that are searched at a time.
    """
    settings = BeamSearchConfig() if beam is None else beam
    # With skip_unary_actions, a search can find proofs with more steps than its depth.
    skips = rules is not None and not config.skip_unary_actions and can_chain(rules)
    facts = program.facts - 1

    def score(triples: Int32[np.ndarray, "triples 3"], /) -> TripleScores:
        searched = np.arange(len(triples))
        if skips and rules is not None:
            time_limit = TimeLimit(max_depth_seconds, print_to_stderr)
            depths = compute_proof_depths(triples, facts, rules, settings.max_depth, time_limit)
            searched = np.flatnonzero((depths >= 0) | (depths == UNDECIDED))
        queries = triples[searched] + 1
        found = beam_search(config, program, policy, queries, settings, kge=kge, batch_size=batch_size)
        proved, log_prob = np.zeros(len(triples), bool), np.full(len(triples), -np.inf)
        length = np.full(len(triples), -1, np.int64)
        proved[searched], log_prob[searched], length[searched] = found.proved, found.log_prob, found.length
        scores = np.where(proved, log_prob, unproved_score)
        return TripleScores(score=scores, proved=proved, log_prob=log_prob, length=length)

    return score


def exact_scorer(
    facts: Int32[np.ndarray, "facts 3"],
    rules: Sequence[EncodedRule],
    *,
    by: Literal["rounds", "depth"] = "rounds",
    limit: int | None = None,
    max_seconds: float | None = None,
) -> TripleScorer:
    """Return a scorer that ranks triples by exact proofs.

    Args:
        facts: Ground atoms.
        rules: Rules whose head variables all occur in the body.
        by: `rounds` prefers fewer rounds of forward chaining, `depth` prefers shorter proofs. No triple may
            be used in its own proof; `rounds` cannot exclude one, so it rejects triples that are facts.
        limit: The largest number of rounds (None: until nothing new follows) or steps.
        max_seconds: Triples that are not proved in this time count as unproved; a message is printed.
    """
    if by not in ("rounds", "depth"):
        raise ValueError(f"by must be rounds or depth, got {by!r}")

    def score(triples: Int32[np.ndarray, "triples 3"], /) -> TripleScores:
        time_limit = TimeLimit(max_seconds, print_to_stderr)
        if by == "depth":
            max_depth = DEFAULT_MAX_DEPTH if limit is None else limit
            found = compute_proof_depths(triples, facts, rules, max_depth, time_limit)
        else:
            found = chaining_rounds(triples, facts, rules, limit, time_limit)
            if len(is_fact := np.flatnonzero(found == 0)):
                raise ValueError(
                    f"{triples[is_fact[0]].tolist()} is a fact, and rounds of forward chaining cannot "
                    "exclude it from its own proof; use by='depth'"
                )
        proved = found > 0
        scores = np.where(proved, -found.astype(np.float64), -np.inf)
        return TripleScores(score=scores, proved=proved, length=np.where(proved, found, -1).astype(np.int64))

    return score


_TRIPLES_PER_BATCH = 1 << 14


def embedding_scorer(embedding: TripleProbabilities) -> TripleScorer:
    """Return a scorer with the scores and log-probabilities of an embedding."""

    def score(triples: Int32[np.ndarray, "triples 3"], /) -> TripleScores:
        scores, log_probability = np.empty(len(triples)), np.empty(len(triples))
        for start in range(0, len(triples), _TRIPLES_PER_BATCH):
            batch = triples[start : start + _TRIPLES_PER_BATCH]
            # Batches have a fixed size, so that the embedding is compiled once.
            padded = np.zeros((_TRIPLES_PER_BATCH, 3), np.int32)
            padded[: len(batch)] = batch
            rows = slice(start, start + len(batch))
            scores[rows] = np.asarray(embedding.score(padded))[: len(batch)]
            log_probability[rows] = np.asarray(embedding.log_probability(padded))[: len(batch)]
        return TripleScores(score=scores, log_probability=log_probability)

    return score
