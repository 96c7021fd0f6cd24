"""Settings of the proof environment."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from phalanx.config import Config
from phalanx.core.evaluation import EvaluationConfig
from phalanx.kg.knowledge_base import GENERATED, OnLeak
from phalanx.native import Backend

Corruption = Literal["head", "tail", "either", "both"]
Split = Literal["train", "valid", "test"]
KGEReward = Literal["probability", "log"]

MAX_SKIPPED_STATES = 20
"""States with a single successor that one step skips at most."""


class ProofRewardConfig(Config):
    """Reward at the end of an episode; see `payoffs` for the six types."""

    renamed_settings: ClassVar[dict[str, str]] = {"given_up_bonus": "give_up_bonus"}

    type: int = Field(default=4, ge=0, le=5)
    """Type of the reward, 0 to 5."""
    true_negative: float = 1.0
    """Reward for a false query that is not proved (types 4 and 5)."""
    give_up_bonus: float = 0.3
    """Additional reward for giving up on a false query with the end action (type 5)."""
    invalid_action_penalty: float = -1.0
    """Reward of an action that is masked out."""

    @property
    def payoffs(self) -> tuple[float, float, float, float]:
        """Rewards of true positives, false negatives, false positives and true negatives.

        A positive is a true query, and a query that is proved is predicted to be true.

        - 0: 1 for a proved positive, otherwise 0;
        - 1: like 0, and -1 for a proved negative;
        - 2: 1 for a proved positive and for an unproved negative;
        - 3: 1, -0.5, -1.5, 1;
        - 4: 1, -1, -1 and `true_negative`;
        - 5: like 4, plus `give_up_bonus` for a negative that is given up with the end action.

        >>> ProofRewardConfig(type=3).payoffs
        (1.0, -0.5, -1.5, 1.0)
        """
        symmetric = (1.0, -1.0, -1.0, self.true_negative)
        table: tuple[tuple[float, float, float, float], ...] = (
            (1.0, 0.0, 0.0, 0.0),
            (1.0, 0.0, -1.0, 0.0),
            (1.0, 0.0, 0.0, 1.0),
            (1.0, -0.5, -1.5, 1.0),
            symmetric,
            symmetric,
        )
        return table[self.type]


class QueryConfig(Config):
    """Queries that episodes start from."""

    negative_ratio: float = Field(default=1.0, ge=0)
    """Negatives per positive: with 1, half of the episodes are negative; with 0, none are."""
    corruption: Corruption = "either"
    """Arguments that a negative replaces: the first, the last, one of them at random, or both."""
    min_depth: int | None = None
    """Least proof depth of positives; -1 is the depth of queries without a proof."""
    max_depth: int | None = None
    """Largest proof depth of positives."""
    depth_weights: tuple[tuple[int, float], ...] = ()
    """(depth, weight) pairs: sample the depth first, by weight. Empty: sample all queries uniformly."""

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


class FamilyConfig(Config):
    """Settings of the generated knowledge base about families."""

    num_families: int = Field(default=8, ge=1)
    """Number of founding couples."""
    generations: int = Field(default=4, ge=2)
    """Number of generations, including the founders."""
    seed: int = Field(default=0, ge=0)
    """Seed of the generator."""


class CurriculumStage(Config):
    """A stage of a curriculum, which replaces the depths in `QueryConfig` from a step on."""

    removed_settings: ClassVar[dict[str, str]] = {
        "update": "was replaced by from_step, the number of steps of each environment: update * num_steps"
    }

    from_step: int = Field(ge=0)
    """Steps that an environment has taken when the stage begins. Training takes `num_steps` steps in each
    environment per update, so the stage begins with update `from_step / num_steps`."""
    min_depth: int | None = None
    """Least proof depth of positives; -1 is the depth of queries without a proof."""
    max_depth: int | None = None
    """Largest proof depth of positives."""
    depth_weights: tuple[tuple[int, float], ...] = ()
    """(depth, weight) pairs: sample the depth first, by weight. Empty: sample all queries uniformly."""

    def apply(self, queries: QueryConfig) -> QueryConfig:
        """Return query settings with the depths of this stage."""
        depths = {name: getattr(self, name) for name in ("min_depth", "max_depth", "depth_weights")}
        return QueryConfig(**{**queries.model_dump(), **depths})


class ProofEvaluationConfig(EvaluationConfig):
    """Settings for evaluations during training."""

    split: Split = "valid"
    """Split of the queries. Queries of all depths are evaluated."""
    num_queries: int | None = Field(default=500, ge=1)
    """Positives to evaluate, sampled once, and as many negatives; None for all."""


class ProofConfig(Config):
    """Settings of a proof environment and of its data; hashable and static under `jit`."""

    renamed_settings: ClassVar[dict[str, str]] = {
        "padding_atoms": "max_goals",
        "padding_states": "max_actions",
        "max_depth": "max_episode_steps",
        "memory_pruning": "prune_visited",
        "kge_closes_query": "allow_kge_on_query",
        "engine": "backend",
        "depth_seconds": "max_depth_seconds",
    }

    dataset: str = GENERATED
    """Knowledge base: a folder, a file of triples, the name of a downloaded dataset, or `generated`."""
    split: Split = "train"
    """Split whose queries episodes start from."""
    on_leak: OnLeak = "drop"
    """Handling of validation and test queries that are facts: `drop` these facts, `warn`, raise an `error`,
    or `allow` them."""
    generated: FamilyConfig = FamilyConfig()
    """The knowledge base if `dataset` is `generated`."""
    depth_limit: int | None = Field(default=None, ge=1)
    """Compute exact proof depths up to this limit; queries without such a proof get -1. None: use the depths
    of the knowledge base, -1 if it has none."""
    max_depth_seconds: float | None = Field(default=60.0, ge=0)
    """Time for computing the depths of a split; remaining queries get -1. None: no limit."""
    kge: str | None = None
    """Folder of an embedding that can close goals, or of a run of `phalanx train kge`. None: no embedding."""
    curriculum: tuple[CurriculumStage, ...] = ()
    """Stages of a curriculum over proof depths. Before the first stage, `queries` applies."""
    max_goals: int = Field(default=6, ge=1, le=64)
    """Goals of a state. Successors with more goals are removed and counted."""
    max_actions: int = Field(default=64, ge=2, le=4096)
    """Successors of a state, including the end action. Further successors are cut off, which is flagged."""
    max_episode_steps: int = Field(default=20, ge=1)
    """Steps after which an episode is truncated."""
    end_proof_action: bool = True
    """Offer an action that gives up and leads to the False state."""
    skip_unary_actions: bool = False
    """Continue a step, up to 20 times, while there is only one successor and it is not final."""
    prune_visited: bool = True
    """Remove states that the episode has visited from the successors."""
    queries: QueryConfig = QueryConfig()
    """Queries that episodes start from."""
    reward: ProofRewardConfig = ProofRewardConfig()
    """Reward of an episode."""
    kge_reward: KGEReward = "probability"
    """Reward of proofs with goals that an embedding scored: `probability` is the expected reward if the proof
    holds with the product of their probabilities; `log` is the full reward, plus the log-probability of each
    such goal when it is scored."""
    allow_kge_on_query: bool = False
    """Allow the embedding to score the query itself. Then every proof takes only one step."""
    backend: Backend = "auto"
    """`native` (C++, CPU), `xla`, or `auto`: native if it is available."""

    @model_validator(mode="after")
    def _check_data(self) -> "ProofConfig":
        if self.dataset != GENERATED and self.generated != FamilyConfig():
            raise ValueError(f"generated has no effect because dataset is {self.dataset!r}: remove it")
        steps = [stage.from_step for stage in self.curriculum]
        if steps != sorted(set(steps)):
            raise ValueError(f"curriculum stages must have increasing from_step, got {steps}")
        return self

    @property
    def max_skipped_states(self) -> int:
        """States with a single successor that one step skips at most; 0 if none are skipped."""
        return MAX_SKIPPED_STATES if self.skip_unary_actions else 0

    @property
    def memory_size(self) -> int:
        """Visited states that are stored, including skipped ones; 0 if they are not pruned."""
        return (self.max_episode_steps + 1) * (1 + self.max_skipped_states) if self.prune_visited else 0
