"""A minimal algorithm whose parameter decays to zero; it compiles quickly."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from phalanx.config import Config
from phalanx.core.environment import Key
from phalanx.core.evaluation import DictEvaluationResult
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
    """Config of the `Descent` algorithm."""

    num_updates: int = 6
    """Number of updates."""
    rate: float = 0.5
    """Factor by which each update multiplies the parameter."""
    evaluation: EvaluationConfig = EvaluationConfig(every=0)
    """Evaluation settings; disabled by default."""
    checkpoint: CheckpointConfig = CheckpointConfig(every=100, minutes=None)
    """Checkpoint settings."""
    logging: LoggingConfig = LoggingConfig(log_frequency=1)
    """Logging settings."""


class Descent(Algorithm[TrainState]):
    """Multiplies its parameter by `rate` in each update and reports one episode with it as return."""

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

    def evaluate(self, state: TrainState, settings: Config, final: bool) -> list[DictEvaluationResult]:
        record = {"split": "all", "mode": "greedy", "distance": float(state.params), "last": final}
        return [DictEvaluationResult(record)]
