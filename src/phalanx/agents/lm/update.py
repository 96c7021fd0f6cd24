"""One step of a language model's training: the loss on packed rows, its gradient, the optimizer.

Where batches come from is in `batches`; the training around the steps is in `training`.
"""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]
from jaxtyping import Array, Float, Int32, PyTree

from phalanx.agents.lm.batches import TokenBatch
from phalanx.agents.lm.config import OptimizerConfig
from phalanx.agents.lm.model import LanguageModel, LanguageModelConfig
from phalanx.core.environment import Key


class LMLearner(NamedTuple):
    """What changes while a model learns."""

    arrays: PyTree
    """The model's."""
    optimizer: PyTree
    update: Int32[Array, ""]


class Losses(NamedTuple):
    """Of a batch."""

    loss: Float[Array, ""]
    """Mean over the tokens that count, in nats."""
    accuracy: Float[Array, ""]
    """How many of them are the likeliest by the model."""
    tokens: Int32[Array, ""]
    """How many count."""


class LMTrainer:
    """A model's structure and how its arrays are updated."""

    def __init__(self, model: LanguageModelConfig, optimizer: OptimizerConfig) -> None:
        self.config, self.settings = model, optimizer
        self._optimizer = optimizer.optimizer()
        made = eqx.filter_eval_shape(lambda key: LanguageModel(model, key=key), jax.random.key(0))
        self._structure = eqx.filter(made, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct), inverse=True)

    def start(self, key: Key) -> LMLearner:
        """A new model."""
        arrays = eqx.filter(LanguageModel(self.config, key=key), eqx.is_array)
        return LMLearner(arrays, self._optimizer.init(arrays), jnp.int32(0))

    def model(self, learner: LMLearner) -> LanguageModel:
        """The model as it stands."""
        return eqx.combine(learner.arrays, self._structure)

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
    def update(self, learner: LMLearner, batch: TokenBatch) -> tuple[LMLearner, dict[str, Array]]:
        """One step on a batch; the learner that is given is used up."""

        def loss(arrays: PyTree) -> tuple[Array, Losses]:
            found = losses(eqx.combine(arrays, self._structure), batch)
            return found.loss, found

        gradient, found = jax.grad(loss, has_aux=True)(learner.arrays)
        changes, optimizer = self._optimizer.update(gradient, learner.optimizer, learner.arrays)
        metrics = {
            "loss": found.loss,
            "token_accuracy": found.accuracy,
            "loss_tokens": found.tokens,
            "gradient_norm": optax.tree.norm(gradient),
            "learning_rate": self.settings.schedule()(learner.update),
        }
        arrays: Any = optax.apply_updates(learner.arrays, changes)
        return LMLearner(arrays, optimizer, learner.update + 1), metrics

    @functools.partial(jax.jit, static_argnums=0)
    def measure(self, learner: LMLearner, batch: TokenBatch) -> Losses:
        """The loss without learning."""
        return losses(self.model(learner), batch)


def losses(model: LanguageModel, batch: TokenBatch) -> Losses:
    """Of every token that counts, predicted from the tokens before it in its segment.

    The first token of a segment has none before it and never counts.
    """
    costs, right, counts = jax.vmap(functools.partial(_row_costs, model))(*map(jnp.asarray, batch))
    total = jnp.maximum(counts.sum(), 1)
    return Losses(jnp.sum(costs) / total, jnp.sum(right & counts) / total, counts.sum().astype(jnp.int32))


def _row_costs(
    model: LanguageModel,
    tokens: Int32[Array, " width"],
    loss_mask: Int32[Array, " width"],
    segments: Int32[Array, " width"],
    positions: Int32[Array, " width"],
) -> tuple[Array, Array, Array]:
    logits = model(tokens, segments, positions)[:-1]
    wanted = tokens[1:]
    counts = (loss_mask[1:] > 0) & (segments[1:] == segments[:-1]) & (segments[1:] > 0)
    # A product with the one-hot, because the gradient of a gather is a scatter, slow on the CPU.
    logs = jax.nn.log_softmax(logits)
    costs = -jnp.sum(jax.nn.one_hot(wanted, logits.shape[-1]) * logs, axis=-1)
    return jnp.where(counts, costs, 0.0), jnp.argmax(logits, axis=-1) == wanted, counts
