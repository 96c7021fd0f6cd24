"""The smallest algorithm: a number that walks toward zero, and compiles at once."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from phalanx.config import Config
from phalanx.core.environment import Key
from phalanx.core.evaluation import EvaluationRecord
from phalanx.logging import LoggingConfig
from phalanx.training import (
    Algorithm,
    CheckpointConfig,
    EvaluationConfig,
    RunConfig,
    TrainState,
    UpdateResult,
    jit_method,
)


class DescentConfig(RunConfig):
    """Settings of the walk."""

    num_updates: int = 6
    """Steps."""
    rate: float = 0.5
    """How much of the way is left after a step."""
    evaluation: EvaluationConfig = EvaluationConfig(every=0)
    """When it is measured."""
    checkpoint: CheckpointConfig = CheckpointConfig(every=100, minutes=None)
    """When it is saved."""
    logging: LoggingConfig = LoggingConfig(log_frequency=1)
    """What is written."""


class Descent(Algorithm[TrainState]):
    """Each update halves the number, and ends an episode that returns it."""

    name = "descent"
    config_type = DescentConfig
    unit = "steps"

    def init(self, key: Key, params: Array | None = None) -> TrainState:
        return TrainState(1 + jax.random.uniform(key) if params is None else params, (), jnp.int32(0))

    @jit_method(donate=("state",))
    def update(self, state: TrainState) -> tuple[TrainState, UpdateResult]:
        number = state.params * self.config.rate
        episodes = {"episode_returns": number[None], "episode_mask": jnp.ones(1, bool)}
        counts = {"steps": jnp.int32(3)}
        return TrainState(number, (), state.step + 1), UpdateResult({"loss": number}, episodes, counts)

    def policy(self, state: TrainState) -> Array:
        return state.params

    def evaluate(self, state: TrainState, settings: Config, final: bool) -> list[EvaluationRecord]:
        record = {"split": "all", "mode": "greedy", "distance": float(state.params), "last": final}
        return [EvaluationRecord(record)]
