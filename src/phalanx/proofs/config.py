"""Settings for the proof environment."""

from typing import Literal

from pydantic import Field, model_validator

from phalanx.config import Config
from phalanx.core.evaluation import EvaluationConfig
from phalanx.kg.knowledge_base import GENERATED, OnLeak
from phalanx.native import Backend

Corruption = Literal["head", "tail", "either", "both"]
Split = Literal["train", "valid", "test"]

MAX_SKIPPED_STATES = 20
"""Maximum number of states with a single successor that one step skips."""


class ProofRewardConfig(Config):
    """Settings for the final reward of an episode and for the immediate penalty for invalid actions."""

    type: int = Field(default=4, ge=0, le=5)
    """Type of the final reward, from 0 to 5. See `ProofRewardConfig.payoffs` for the rewards of each type."""
    true_negative: float = 1.0
    """Reward for a false query that is not proved. Only used if `type` is 4 or 5."""
    give_up_bonus: float = 0.3
    """Additional reward for giving up on a false query with the end action. Only used by type 5."""
    invalid_action_penalty: float = -1.0
    """Penalty for an action that the action mask excludes. The value is added to the reward, so it should be
    negative or 0."""

    @property
    def payoffs(self) -> tuple[float, float, float, float]:
        """Rewards for true positives, false negatives, false positives and true negatives, in this order.

        A query counts as predicted true if it is proved. So a true positive is a true query that is proved,
        and a true negative is a false query that is not proved. The reward types are:

        - 0: 1 for a true positive, otherwise 0;
        - 1: 1 for a true positive, -1 for a false positive, otherwise 0;
        - 2: 1 for a true positive or a true negative, otherwise 0;
        - 3: (1, -0.5, -1.5, 1);
        - 4: (1, -1, -1, `true_negative`);
        - 5: like 4, and the environment adds `give_up_bonus` if the agent gives up on a false query.

        >>> ProofRewardConfig(type=3).payoffs
        (1.0, -0.5, -1.5, 1.0)
        """
        table = {
            0: (1.0, 0.0, 0.0, 0.0),
            1: (1.0, 0.0, -1.0, 0.0),
            2: (1.0, 0.0, 0.0, 1.0),
            3: (1.0, -0.5, -1.5, 1.0),
        }
        return table.get(self.type, (1.0, -1.0, -1.0, self.true_negative))


class QueryConfig(Config):
    """Settings for sampling the queries that episodes start from.

    Positives are true queries. Negatives are corruptions of positives: at least one argument is replaced, and
    the result is not known to be true.
    """

    negative_ratio: float = Field(default=1.0, ge=0)
    """Number of negatives per positive. With 1, half of the queries are negatives; with 0, none are."""
    corruption: Corruption = "either"
    """Which arguments a corruption replaces: the first (`head`), the last (`tail`), a random one (`either`),
    or both the first and the last (`both`)."""
    min_depth: int | None = None
    """Minimum proof depth of positives. A query without a proof, or whose depth is not known, has depth -1.
    None means no limit."""
    max_depth: int | None = None
    """Maximum proof depth of positives. None means no limit."""
    depth_weights: tuple[tuple[int, float], ...] = ()
    """(depth, weight) pairs. The proof depth of a positive is sampled in proportion to these weights, and
    then a query of that depth is sampled uniformly. Queries of other depths are not sampled. If this is
    empty, all queries are sampled uniformly."""

    @model_validator(mode="after")
    def _check_weights(self) -> "QueryConfig":
        depths = [depth for depth, _ in self.depth_weights]
        if len(set(depths)) < len(depths):
            raise ValueError(f"depth_weights contains a depth twice: {depths}")
        if self.depth_weights and not (
            all(weight >= 0 for _, weight in self.depth_weights)
            and sum(weight for _, weight in self.depth_weights) > 0
        ):
            raise ValueError("depth_weights must not be negative, and at least one must be positive")
        return self


class FamilyTreeConfig(Config):
    """Settings for the generated knowledge base about families."""

    num_families: int = Field(default=8, ge=1)
    """Number of founding couples."""
    generations: int = Field(default=4, ge=2)
    """Number of generations, including the founders."""
    seed: int = Field(default=0, ge=0)
    """Seed for the generator."""


class DepthCurriculumStage(Config):
    """A stage of a depth curriculum. Its depth settings replace those of `ProofConfig.queries`."""

    start_update: int = Field(ge=0)
    """Number of updates after which the stage begins. Episodes that start in a later update sample their
    queries from this stage."""
    min_depth: int | None = None
    """Minimum proof depth of positives. A query without a proof or with an unknown depth has depth -1. None
    means no limit."""
    max_depth: int | None = None
    """Maximum proof depth of positives. None means no limit."""
    depth_weights: tuple[tuple[int, float], ...] = ()
    """(depth, weight) pairs. The proof depth of a positive is sampled in proportion to these weights, and
    then a query of that depth is sampled uniformly. Queries of other depths are not sampled. If this is
    empty, all queries are sampled uniformly."""

    def apply(self, queries: QueryConfig) -> QueryConfig:
        """Return a copy of `queries` with the depth settings of this stage."""
        return QueryConfig(**{**queries.model_dump(), **self.model_dump(exclude={"start_update"})})


class ProofEvaluationConfig(EvaluationConfig):
    """Settings for evaluations during training."""

    split: Split = "valid"
    """Split whose queries are evaluated. Queries of all depths are included."""
    max_positives: int | None = Field(default=500, ge=1)
    """Maximum number of positives to evaluate. The positives are sampled once, together with one negative for
    each positive, so all evaluations use the same queries. If None, all positives of the split are used."""


class ProofConfig(Config):
    """Settings for a proof environment and its knowledge base. Hashable and static under `jit`."""

    dataset: str = GENERATED
    """Knowledge base to load: a folder, a file of triples, the name of a downloaded dataset, or `generated`
    for the built-in knowledge base about families."""
    split: Split = "train"
    """Split of the queries that episodes start from."""
    on_leak: OnLeak = "drop"
    """What to do if validation or test queries are also facts: `drop` removes these facts, `warn` issues a
    warning, `error` raises an error, and `allow` keeps them."""
    generated: FamilyTreeConfig = FamilyTreeConfig()
    """Settings for the built-in knowledge base. Only used if `dataset` is `generated`."""
    compute_depths_up_to: int | None = Field(default=None, ge=1)
    """Compute exact proof depths up to this number of steps. Queries without a proof of at most this length
    have depth -1. If None, the depths that are stored with the knowledge base are used instead, and queries
    without a stored depth have depth -1."""
    depth_computation_seconds: float | None = Field(default=60.0, ge=0)
    """Time limit in seconds for computing the proof depths of a split. Queries whose depth is not determined
    within the limit have depth -1. None means no limit."""
    kge: str | None = None
    """Folder of an embedding, or of a `phalanx train kge` run. With an embedding, there is an additional
    action that closes the first goal of a state (removes it without a proof) if the goal has no variables.
    None means no embedding."""
    curriculum: tuple[DepthCurriculumStage, ...] = ()
    """Stages of a curriculum over proof depths. Before the first stage, `queries` applies. If empty, there is
    no curriculum."""
    max_goals: int = Field(default=6, ge=1, le=64)
    """Maximum number of goals in a state. Successors with more goals are removed and counted in
    `ProofInfo.num_too_long`."""
    max_actions: int = Field(default=64, ge=2, le=4096)
    """Maximum number of successors of a state, including the end action. Further successors are cut off, and
    `ProofInfo.overflow` is set."""
    max_episode_steps: int = Field(default=20, ge=1)
    """Number of steps after which an episode is truncated."""
    end_proof_action: bool = True
    """Add an end action, which gives up on the query and leads to the state False."""
    skip_unary_actions: bool = False
    """Skip each state that has only one successor (not counting the end action), unless this successor is
    True or False. A step skips at most 20 states."""
    prune_visited: bool = True
    """Remove successors that the episode has already visited."""
    queries: QueryConfig = QueryConfig()
    """Settings for sampling the queries that episodes start from."""
    reward: ProofRewardConfig = ProofRewardConfig()
    """Settings for the reward."""
    kge_reward: Literal["probability", "log"] = "probability"
    """Reward for proofs in which the embedding closed goals. With `probability`, a proof counts as valid with
    probability p, the product of the probabilities of the closed goals, and the final reward is the expected
    reward. With `log`, the final reward is the same as for a proof without closed goals, and each step that
    closes a goal is additionally rewarded with the log-probability of this goal."""
    allow_kge_on_query: bool = False
    """Allow the embedding to close the query itself. Every query then has a one-step proof."""
    backend: Backend = "auto"
    """Implementation of proof steps. `native` is C++ on the CPU, `xla` runs on any device, and `auto` uses
    `native` on CPUs if the extension is available, and `xla` otherwise."""

    @model_validator(mode="after")
    def _check_data(self) -> "ProofConfig":
        if self.dataset != GENERATED and self.generated != FamilyTreeConfig():
            raise ValueError(f"generated has no effect because dataset is {self.dataset!r}: remove it")
        updates = [stage.start_update for stage in self.curriculum]
        if updates != sorted(set(updates)):
            raise ValueError(f"curriculum stages must have increasing start_update, got {updates}")
        return self

    @property
    def max_skipped_states(self) -> int:
        """Maximum number of states that one step skips, or 0 if `skip_unary_actions` is disabled."""
        return MAX_SKIPPED_STATES if self.skip_unary_actions else 0

    @property
    def memory_size(self) -> int:
        """Maximum number of visited states that are stored, including skipped states.

        The value is 0 if `prune_visited` is disabled.
        """
        return (self.max_episode_steps + 1) * (1 + self.max_skipped_states) if self.prune_visited else 0
