"""The proof environment's settings: how goals are expanded, which queries are drawn, what an episode pays.

Loading presets and overrides is in `phalanx.config`.
"""

from typing import Literal

from pydantic import Field, model_validator

from phalanx.config import Config
from phalanx.native import Backend

Corruption = Literal["head", "tail", "either", "both"]
KGEReward = Literal["probability", "log"]

UNARY_LIMIT = 20
"""States without a choice that one step passes at most."""


class ProofRewardConfig(Config):
    """What an episode pays at its end; see `payoffs` for the six types."""

    type: int = Field(default=4, ge=0, le=5)
    """0 to 5."""
    true_negative: float = 1.0
    """Types 4 and 5: paid for a negative query that is not proved."""
    given_up_bonus: float = 0.3
    """Type 5: added for a negative query that is given up by the end action."""
    invalid_action_penalty: float = -1.0
    """Added for an action that is masked out."""

    @property
    def payoffs(self) -> tuple[float, float, float, float]:
        """What TP, FN, FP and TN pay: a positive that is proved or not, a negative that is proved or not.

        - 0: a proved positive pays 1, all else nothing;
        - 1: and a proved negative costs 1;
        - 2: a positive that is proved and a negative that is not pay 1;
        - 3: 1, -0.5, -1.5, 1;
        - 4: 1, -1, -1 and `true_negative`;
        - 5: as 4, and `given_up_bonus` for a negative that is given up by the end action.

        >>> ProofRewardConfig(type=3).payoffs
        (1.0, -0.5, -1.5, 1.0)
        """
        graded = (1.0, -1.0, -1.0, self.true_negative)
        table: tuple[tuple[float, float, float, float], ...] = (
            (1.0, 0.0, 0.0, 0.0),
            (1.0, 0.0, -1.0, 0.0),
            (1.0, 0.0, 0.0, 1.0),
            (1.0, -0.5, -1.5, 1.0),
            graded,
            graded,
        )
        return table[self.type]


class QueryConfig(Config):
    """Which queries an episode may start from."""

    negative_ratio: float = Field(default=1.0, ge=0)
    """Negatives for each positive; 1 makes half of the episodes negative, 0 none."""
    corruption: Corruption = "either"
    """What a negative replaces: the first argument, the second, one of them at random, or both at once."""
    min_depth: int | None = None
    """Leave out positives of a smaller depth; -1 is the depth of what cannot be proved."""
    max_depth: int | None = None
    """Leave out positives of a greater depth."""
    depth_weights: tuple[tuple[int, float], ...] = ()
    """(depth, weight) pairs: draw the depth first, by weight; empty draws all queries alike."""

    @model_validator(mode="after")
    def _weights(self) -> "QueryConfig":
        depths = [depth for depth, _ in self.depth_weights]
        if len(set(depths)) < len(depths):
            raise ValueError(f"depth_weights names a depth twice: {depths}")
        if self.depth_weights and not (
            all(weight >= 0 for _, weight in self.depth_weights)
            and sum(weight for _, weight in self.depth_weights) > 0
        ):
            raise ValueError("depth_weights must not be negative and one must be positive")
        return self


class ProofConfig(Config):
    """Everything that shapes a proof environment; hashable, so static under `jit`."""

    padding_atoms: int = Field(default=6, ge=1, le=64)
    """Goals that a state holds at most; longer successors are removed, and counted."""
    padding_states: int = Field(default=64, ge=2, le=4096)
    """Successors that a state offers at most, the end action included; what is cut is flagged."""
    max_depth: int = Field(default=20, ge=1)
    """Steps after which an episode is truncated."""
    end_proof_action: bool = True
    """Whether an agent may give up: one more action, which leads to the False state."""
    skip_unary_actions: bool = False
    """Whether a step goes on, up to 20 times, while there is one successor only and it is not an end."""
    memory_pruning: bool = True
    """Whether states that the episode has been in are left out of the successors."""
    queries: QueryConfig = QueryConfig()
    """Which queries are drawn."""
    reward: ProofRewardConfig = ProofRewardConfig()
    """What an episode pays."""
    kge_reward: KGEReward = "probability"
    """With an embedding that closes goals: `probability` pays at the end what the proof is worth if it holds
    with the product of their probabilities; `log` pays in full, and each probability's logarithm at once."""
    kge_closes_query: bool = False
    """Whether an embedding may close the query itself; then one step is enough for any proof."""
    engine: Backend = "auto"
    """`native` (C++, CPU), `xla`, or `auto`: native where it can be used."""

    @property
    def unary_limit(self) -> int:
        """States without a choice that one step passes at most; 0 passes none."""
        return UNARY_LIMIT if self.skip_unary_actions else 0

    @property
    def memory(self) -> int:
        """States that an episode can be in, the passed ones included; 0 when none are remembered."""
        return (self.max_depth + 1) * (1 + self.unary_limit) if self.memory_pruning else 0
