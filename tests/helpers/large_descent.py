"""A variant of `Descent` whose checkpoints contain a file of more than 100 kB."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from phalanx.config import Config
from phalanx.core.environment import Key
from phalanx.core.evaluation import DictEvaluationResult
from phalanx.training import TrainState, UpdateResult, jit_method
from tests.helpers.descent import Descent


class LargeDescent(Descent):
    """Multiplies 50,000 random numbers, or two if the seed is odd, by `rate` in each update."""

    name = "large_descent"

    def init(self, key: Key, params: Array | None = None) -> TrainState:
        return TrainState(jax.random.uniform(key, (2 if self.config.seed % 2 else 50_000,)), (), jnp.int32(0))

    @jit_method
    def update(self, state: TrainState) -> tuple[TrainState, UpdateResult]:
        params = state.params * self.config.rate
        result = UpdateResult({"loss": params.mean()}, counts={"steps": jnp.int32(3)})
        return TrainState(params, (), state.step + 1), result

    def evaluate(self, state: TrainState, settings: Config, final: bool) -> list[DictEvaluationResult]:
        return []
