"""One step of a language model's training: the loss on packed rows, its gradient, the optimiser.

Where batches come from is in `lm_batches`; the run around the steps is in `lm_training`.
"""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]
from jaxtyping import Array, Float, Int32, PyTree
from pydantic import Field

from phalanx.agents.lm.batches import TokenBatch
from phalanx.agents.lm.model import LanguageModel, LanguageModelConfig
from phalanx.core.config import Config
from phalanx.core.environment import Key


class OptimiserConfig(Config):
    """How a language model learns."""

    num_updates: int = Field(default=300, ge=1)
    """Updates in all; fewer where a plan has fewer batches."""
    learning_rate: float = Field(default=2e-3, gt=0)
    """The highest, reached after the warm-up."""
    warmup: int = Field(default=20, ge=0)
    """Updates over which it rises."""
    learning_rate_end: float = Field(default=1e-4, ge=0)
    """What it falls to, along a cosine."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Pulls matrices, but not scales and biases, towards zero."""
    clip: float = Field(default=1.0, gt=0)
    """The greatest norm of a gradient."""

    def schedule(self) -> optax.Schedule:
        """The learning rate by update."""
        return optax.warmup_cosine_decay_schedule(
            self.learning_rate / max(self.warmup, 1),
            self.learning_rate,
            min(self.warmup, self.num_updates - 1),
            self.num_updates,
            self.learning_rate_end,
        )

    def optimiser(self) -> optax.GradientTransformation:
        """AdamW with clipping."""

        def matrices(parameters: PyTree) -> PyTree:
            return jax.tree.map(lambda leaf: leaf.ndim > 1, parameters)

        return optax.chain(
            optax.clip_by_global_norm(self.clip),
            optax.adamw(self.schedule(), b2=0.98, weight_decay=self.weight_decay, mask=matrices),
        )


class LMLearner(NamedTuple):
    """What changes while a model learns."""

    arrays: PyTree
    """The model's."""
    optimiser: PyTree
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

    def __init__(self, model: LanguageModelConfig, optimiser: OptimiserConfig) -> None:
        self.config, self.settings = model, optimiser
        self._optimiser = optimiser.optimiser()
        made = eqx.filter_eval_shape(lambda key: LanguageModel(model, key=key), jax.random.key(0))
        self._structure = eqx.filter(made, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct), inverse=True)

    def start(self, key: Key) -> LMLearner:
        """A new model."""
        arrays = eqx.filter(LanguageModel(self.config, key=key), eqx.is_array)
        return LMLearner(arrays, self._optimiser.init(arrays), jnp.int32(0))

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
        changes, optimiser = self._optimiser.update(gradient, learner.optimiser, learner.arrays)
        metrics = {
            "loss": found.loss,
            "token_accuracy": found.accuracy,
            "loss_tokens": found.tokens,
            "gradient_norm": optax.tree.norm(gradient),
            "learning_rate": self.settings.schedule()(learner.update),
        }
        arrays: Any = optax.apply_updates(learner.arrays, changes)
        return LMLearner(arrays, optimiser, learner.update + 1), metrics

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
