"""How well proofs rank true triples: by a policy's search, an embedding, both, or an exact prover.

The search is in `beam`, ranking and its metrics in `phalanx.kg`. How often the greedy
policy's verdict is right is in `proof_verdicts`.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Int32
from pydantic import Field

from phalanx.config import Config
from phalanx.kg.candidates import (
    CandidateLists,
    Sides,
    Ties,
    list_metrics,
    make_candidates,
    ranks_of,
    usual_sides,
)
from phalanx.kg.chaining import depths_in_time
from phalanx.kg.cost_tables import check_rules
from phalanx.kg.evaluation import (
    UNSETTLED,
    Embedding,
    HybridConfig,
    LinkPredictionResult,
    Score,
    TripleScores,
    combine,
    embedding_scorer,
    evaluate_ranking,
    exact_scorer,
    hybrid_scorer,
    score_candidates,
)
from phalanx.kg.kge.embedding import KGE
from phalanx.kg.knowledge_base import DataHandler
from phalanx.kg.time_limit import TimeLimit, to_stderr
from phalanx.kg.vocabulary import EncodedRule, IndexManager, check_binary
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.program import Program
from phalanx.proofs.score_combination import ScoreCombination, features_of, fit_combination
from phalanx.proofs.search.beam import BeamSearchConfig, ProofPolicy, beam_search

RankingMode = Literal["exact", "rl", "kge", "hybrid", "learned"]
RL_WEIGHTS = (0.0, 0.03, 0.1, 0.3, 1.0)
"""What a policy's log-probability may count for in `hybrid`; the best on validation is taken."""
MODES: tuple[RankingMode, ...] = ("exact", "rl", "kge", "hybrid", "learned")


class LinkPredictionConfig(Config):
    """What is ranked, against what, and how."""

    corruptions: int | None = Field(default=100, ge=1)
    """For each query and side; none for all that there are."""
    sides: Sides | None = None
    """Which argument is replaced; none for both, or the second where constants are of several domains."""
    ties: Ties = "random"
    """Where a positive comes among candidates of its own score; see `ranking_metrics.list_metrics`."""
    seed: int = 0
    """Draws corruptions and places among ties, for each query by itself."""
    max_queries: int | None = Field(default=None, ge=1)
    """At most so many queries of a split, drawn by the seed; none for all."""
    search: BeamSearchConfig = BeamSearchConfig()
    """How a policy searches."""
    hybrid: HybridConfig = HybridConfig()
    """What the modes `rl` and `kge` count for in `hybrid`."""
    screen: bool = True
    """Whether the search leaves out what forward chaining shows to have no proof within its depth."""
    unproved_score: float = -math.inf
    """Of a triple without a proof, in the mode `rl`."""
    batch_size: int | None = Field(default=None, ge=1)
    """Queries searched at once; none for as many as memory allows."""
    exact_rounds: int | None = Field(default=None, ge=1)
    """Rounds of forward chaining in the mode `exact`; none goes on until nothing new follows."""
    exact_seconds: float | None = Field(default=None, ge=0)
    """Time for these rounds; what would follow later counts as not proved. None for as long as it takes."""
    depth_seconds: float | None = Field(default=30.0, ge=0)
    """Time for the depths that results are told by, and for the screen; 0 leaves both out."""
    fit_queries: int | None = Field(default=2000, ge=1)
    """Validation queries that the mode `learned` is fitted to; none for all."""


@dataclasses.dataclass(frozen=True)
class ProofLinkPrediction:
    """A knowledge base made ready for ranking: its numbers, facts and rules, and the scorers over them."""

    data: DataHandler
    index: IndexManager
    environment: ProofConfig
    """How goals are expanded; a policy's probabilities are those in such an environment."""
    config: LinkPredictionConfig
    program: Program
    rules: tuple[EncodedRule, ...]
    closing: KGE | None = None
    """The embedding that closes goals in a search, where the policy was trained with one."""

    @classmethod
    def create(
        cls,
        data: DataHandler,
        index: IndexManager,
        environment: ProofConfig,
        config: LinkPredictionConfig | None = None,
        closing: KGE | None = None,
    ) -> "ProofLinkPrediction":
        """Of the facts and rules of a knowledge base, whose predicates must have two arguments."""
        check_binary(index, "rankings among corruptions")
        program, rules = Program.of_data(data, index), index.encode_rules(data.rules)
        return cls(data, index, environment, config or LinkPredictionConfig(), program, rules, closing)

    def queries(self, split: str, most: int | None) -> Int32[np.ndarray, "queries 3"]:
        """Of a split in its order; at most so many, drawn by the seed."""
        queries = self.index.encode_atoms(self.data.queries(split))
        if most is None or most >= len(queries):
            return queries
        rng = np.random.default_rng(self.config.seed)
        return queries[np.sort(rng.choice(len(queries), most, replace=False))]

    def candidates(self, queries: Int32[np.ndarray, "queries 3"]) -> CandidateLists:
        """Queries and their corruptions, none of which is true by any split."""
        return make_candidates(
            queries,
            self.index.encode_atoms(tuple(self.data.known)),
            self.index.num_constants,
            sides=self.config.sides or usual_sides(self.data),
            corruptions=self.config.corruptions,
            domains=self.index.constant_domains,
            seed=self.config.seed,
        )

    def depths(self, queries: Int32[np.ndarray, "queries 3"]) -> Int32[np.ndarray, " queries"] | None:
        """Exact depths of shortest proofs, as far as the search looks; None where they are not computed."""
        seconds = self.config.depth_seconds
        if seconds == 0 or not chains(self.rules):
            return None
        depths, settled = depths_in_time(
            queries,
            self.program.facts,
            self.rules,
            self.config.search.max_depth,
            TimeLimit(seconds, to_stderr),
        )
        return np.where(settled, depths, UNSETTLED).astype(np.int32)

    def search_scorer(self, policy: ProofPolicy) -> Score:
        """The mode `rl`: the log-probability of the best proof that the policy's search finds."""
        return policy_scorer(
            self.environment,
            self.program,
            policy,
            self.config.search,
            rules=self.rules if self._screens else None,
            kge=self.closing,
            screen_seconds=self.config.depth_seconds,
            unproved_score=self.config.unproved_score,
            batch_size=self.config.batch_size,
        )

    @property
    def _screens(self) -> bool:
        """What has no proof by facts and rules may have one with goals that an embedding closes."""
        return self.config.screen and self.config.depth_seconds != 0 and self.closing is None

    def weigh(self, search: Score, embedding: Score) -> HybridConfig:
        """The weights of `hybrid`; the policy's, where it is open, by the validation split."""
        weights = self.config.hybrid
        if weights.rl_weight is not None:
            return weights
        if not self.data.valid_queries:
            return weights.model_copy(update={"rl_weight": 0.0})
        candidates = self.candidates(self.queries("valid", self.config.fit_queries))
        found, believed = score_candidates(search, candidates), score_candidates(embedding, candidates)
        tries = [weights.model_copy(update={"rl_weight": weight}) for weight in RL_WEIGHTS]

        def mrr(tried: HybridConfig) -> float:
            ranks = ranks_of(candidates, combine(found, believed, tried).score)
            return float(list_metrics(ranks, "expected", candidates.tie_draw)[:, 0].mean())

        best = max(tries, key=mrr)
        to_stderr(f"hybrid: rl_weight {best.rl_weight}, the best of {RL_WEIGHTS} on validation queries")
        return best

    def fit(self, search: Score, embedding: Score) -> ScoreCombination:
        """A combination fitted to the validation split."""
        candidates = self.candidates(self.queries("valid", self.config.fit_queries))
        features = features_of(score_candidates(search, candidates), score_candidates(embedding, candidates))
        return fit_combination(candidates, features, self.index)


def evaluate_proofs(
    mode: RankingMode,
    ranking: ProofLinkPrediction,
    *,
    policy: ProofPolicy | None = None,
    kge: Embedding | None = None,
    combination: ScoreCombination | None = None,
    split: str = "test",
) -> LinkPredictionResult:
    """Rank a split's queries among corruptions.

    - `exact`: what follows in fewer rounds of forward chaining is better; needs no policy;
    - `rl`: by the log-probability of the best proof that a search with the policy finds;
    - `kge`: by an embedding's score;
    - `hybrid`: both with the config's weights (the policy's by validation queries where it is open), and
      `learned` with those of `combination`, which is fitted to
      the validation split where it is not given. Without a policy the proofs are the exact prover's.
    """
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    queries = ranking.queries(split, ranking.config.max_queries)
    return evaluate_ranking(
        _scorer(mode, ranking, policy, kge, combination),
        ranking.candidates(queries),
        ties=ranking.config.ties,
        depths=ranking.depths(queries),
        index=ranking.index,
    )


def _scorer(
    mode: RankingMode,
    ranking: ProofLinkPrediction,
    policy: ProofPolicy | None,
    kge: Embedding | None,
    combination: ScoreCombination | None,
) -> Score:
    exact = exact_scorer(
        ranking.program.facts,
        ranking.rules,
        limit=ranking.config.exact_rounds,
        seconds=ranking.config.exact_seconds,
    )
    if mode == "exact":
        return exact
    if mode == "rl":
        if policy is None:
            raise ValueError("mode 'rl' needs a policy")
        return ranking.search_scorer(policy)
    if kge is None:
        raise ValueError(f"mode {mode!r} needs a knowledge-graph embedding")
    embedding = embedding_scorer(kge)
    if mode == "kge":
        return embedding
    search = exact if policy is None else ranking.search_scorer(policy)
    if mode == "hybrid":
        weights = ranking.config.hybrid if policy is None else ranking.weigh(search, embedding)
        return hybrid_scorer(search, embedding, weights)
    return (combination or ranking.fit(search, embedding)).scorer(search, embedding)


def policy_scorer(
    config: ProofConfig,
    program: Program,
    policy: ProofPolicy,
    search: BeamSearchConfig | None = None,
    *,
    rules: Sequence[EncodedRule] | None = None,
    kge: KGE | None = None,
    screen_seconds: float | None = None,
    unproved_score: float = -math.inf,
    batch_size: int | None = None,
) -> Score:
    """A policy's search as a scorer; what it cannot prove has `unproved_score`.

    With the program's `rules`, what has no proof within the search's depth, by exact forward chaining, is not
    searched: that changes no score, and most corruptions are such. What the chaining does not settle in
    `screen_seconds` is searched. `kge` may close goals in the search.
    """
    settings = BeamSearchConfig() if search is None else search
    # With unary states skipped a search sees proofs with more steps than its depth.
    screens = rules is not None and not config.skip_unary_actions and chains(rules)

    def score(triples: Int32[np.ndarray, "triples 3"]) -> TripleScores:
        searched = np.arange(len(triples))
        if screens and rules is not None:
            budget = TimeLimit(screen_seconds, to_stderr)
            depths, settled = depths_in_time(triples, program.facts, rules, settings.max_depth, budget)
            searched = np.flatnonzero((depths >= 0) | ~settled)
        searching = triples[searched]
        found = beam_search(config, program, policy, searching, settings, kge=kge, batch_size=batch_size)
        proved, log_prob = np.zeros(len(triples), bool), np.full(len(triples), -np.inf)
        length = np.full(len(triples), -1, np.int64)
        proved[searched], log_prob[searched], length[searched] = found.proved, found.log_prob, found.length
        return TripleScores(
            score=np.where(proved, log_prob, unproved_score), proved=proved, log_prob=log_prob, length=length
        )

    return score


def chains(rules: Sequence[EncodedRule]) -> bool:
    """Whether forward chaining can take these rules."""
    try:
        check_rules(rules)
    except ValueError:
        return False
    return True
