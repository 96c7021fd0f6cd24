"""The smallest algorithm: a number that walks toward zero, and compiles at once."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array
from pydantic import Field

from phalanx.core.environment import Key
from phalanx.logging import LoggingConfig
from phalanx.training.algorithm import Algorithm, CheckpointConfig, EvaluationConfig, RunConfig, UpdateResult


class DescentConfig(RunConfig):
    """Settings of the walk."""

    seed: int = 0
    """Of the start."""
    num_seeds: int = Field(default=1, ge=1)
    """Walks at once."""
    num_updates: int = 6
    """Steps."""
    rate: float = 0.5
    """How much of the way is left after a step."""
    evaluation: EvaluationConfig = EvaluationConfig(every=0)
    """When it is measured."""
    checkpoint: CheckpointConfig = CheckpointConfig(every=100, minutes=None)
    """When it is saved."""
    logging: LoggingConfig = LoggingConfig(batched_logging_enabled=True, log_frequency=1)
    """What is written."""


class Descent(Algorithm[dict[str, Array]]):
    """Each update halves the number, and ends an episode that returns it."""

    kind = "descent"
    config_type = DescentConfig
    unit = "steps"

    def __init__(self, config: DescentConfig) -> None:
        super().__init__(config, num_updates=config.num_updates, seed=config.seed, num_seeds=config.num_seeds)

    def start(self, key: Key) -> dict[str, Array]:
        return {"number": 1 + jax.random.uniform(key), "key": jnp.zeros(2)}

    def update(self, learner: dict[str, Array]) -> tuple[dict[str, Array], UpdateResult]:
        number = learner["number"] * self.config.rate
        episodes = {"episode_returns": number[None], "episode_mask": jnp.ones(1, bool)}
        counts = {"steps": jnp.int32(3)}
        return learner | {"number": number}, UpdateResult({"loss": number}, episodes, counts)

    def policy(self, learner: dict[str, Array]) -> Array:
        return learner["number"]

    def evaluate(self, learner: dict[str, Array], update: int, last: bool) -> list[dict[str, Any]]:
        return [{"split": "all", "mode": "greedy", "distance": float(learner["number"]), "last": last}]
