"""One step of a language model's training: the loss on packed rows, its gradient, the optimizer.

Where batches come from is in `batches`; the training around the steps is in `training`.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]
from jaxtyping import Array, Float, Int32, PyTree

from phalanx.core.backends import is_cpu_only
from phalanx.core.environment import Key
from phalanx.lm.model import LanguageModel, LanguageModelConfig, token_logps
from phalanx.training.algorithm import TrainState
from phalanx.training.lm.batches import TokenArrays
from phalanx.training.lm.config import OptimizerConfig

_TOGETHER = 1024
"""Tokens that the CPU computes together at least. What a whole batch keeps for its gradient goes far beyond
the processor's cache, and the system clears that much memory anew for every update."""


class SFTState(TrainState):
    """Arrays of the model, optimizer state and step."""


class LossSums(NamedTuple):
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

    def start(self, key: Key, params: PyTree | None = None) -> SFTState:
        """Create the initial state of a new model, or of one with these parameters."""
        arrays = eqx.filter(LanguageModel(self.config, key=key), eqx.is_array) if params is None else params
        return SFTState(arrays, self._optimizer.init(arrays), jnp.int32(0))

    def model(self, learner: SFTState) -> LanguageModel:
        """The model as it stands."""
        return self.with_arrays(learner.params)

    def with_arrays(self, arrays: PyTree) -> LanguageModel:
        """The model that has these arrays."""
        model: LanguageModel = eqx.combine(arrays, self._structure)
        return model

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
    def update(self, learner: SFTState, batch: TokenArrays) -> tuple[SFTState, dict[str, Array]]:
        """One step on a batch; the learner that is given is used up."""
        return self._moved(learner, self._summed(learner.params, batch))

    def update_on(
        self, learner: SFTState, batches: Sequence[TokenArrays]
    ) -> tuple[SFTState, dict[str, Array]]:
        """One step on several batches as if they were one; the learner that is given is used up."""
        if len(batches) == 1:
            return self.update(learner, batches[0])
        total = self._first(learner.params, batches[0])
        for batch in batches[1:]:
            total = self._added(total, learner.params, batch)
        return self._apply(learner, total)

    @functools.partial(jax.jit, static_argnums=0)
    def _first(self, arrays: PyTree, batch: TokenArrays) -> tuple[PyTree, LossSums]:
        return self._summed(arrays, batch)

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
    def _added(
        self, total: tuple[PyTree, LossSums], arrays: PyTree, batch: TokenArrays
    ) -> tuple[PyTree, LossSums]:
        added: tuple[PyTree, LossSums] = jax.tree.map(jnp.add, total, self._summed(arrays, batch))
        return added

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
    def _apply(self, learner: SFTState, total: tuple[PyTree, LossSums]) -> tuple[SFTState, dict[str, Array]]:
        return self._moved(learner, total)

    def _summed(self, arrays: PyTree, batch: TokenArrays) -> tuple[PyTree, LossSums]:
        """The gradient of the summed loss, and the sums: batches can be added up."""
        turns = _turns(*batch.input_ids.shape)
        if turns == 1:
            return self._together(arrays, batch)
        parts = jax.tree.map(lambda leaf: jnp.reshape(leaf, (turns, -1, *leaf.shape[1:])), batch)
        together = jax.jit(self._together, inline=True)  # traced once for its shapes and for the loop
        first = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), parts)
        one = jax.eval_shape(together, arrays, first)

        def add(total: tuple[PyTree, LossSums], part: TokenArrays) -> tuple[tuple[PyTree, LossSums], None]:
            return jax.tree.map(jnp.add, total, together(arrays, part)), None

        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), one)
        summed: tuple[PyTree, LossSums] = jax.lax.scan(add, nothing, parts)[0]
        return summed

    def _together(self, arrays: PyTree, batch: TokenArrays) -> tuple[PyTree, LossSums]:
        def loss(arrays: PyTree) -> tuple[Array, LossSums]:
            found = summed_losses(eqx.combine(arrays, self._structure), batch)
            return found.loss, found

        gradient, found = jax.grad(loss, has_aux=True)(arrays)
        return gradient, found

    def _moved(self, learner: SFTState, total: tuple[PyTree, LossSums]) -> tuple[SFTState, dict[str, Array]]:
        count = jnp.maximum(total[1].tokens, 1)
        gradient = jax.tree.map(lambda leaf: leaf / count, total[0])
        changes, optimizer = self._optimizer.update(gradient, learner.opt_state, learner.params)
        metrics = {
            "loss": total[1].loss / count,
            "token_accuracy": total[1].accuracy / count,
            "loss_tokens": total[1].tokens,
            "gradient_norm": optax.tree.norm(gradient),
            "learning_rate": self.settings.schedule()(learner.step),
        }
        arrays: Any = optax.apply_updates(learner.params, changes)
        return SFTState(arrays, optimizer, learner.step + 1), metrics

    @functools.partial(jax.jit, static_argnums=0)
    def measure(self, learner: SFTState, batch: TokenArrays) -> LossSums:
        """The loss without learning."""
        return losses(self.model(learner), batch)


def _turns(rows: int, tokens: int) -> int:
    """In how many equal parts, one after the other, the rows of a batch are computed."""
    if not is_cpu_only() or jax.device_count() > 1:
        return 1
    parts = (
        parts for parts in range(2, rows + 1) if rows % parts == 0 and rows // parts * tokens >= _TOGETHER
    )
    return max(parts, default=1)


def losses(model: LanguageModel, batch: TokenArrays) -> LossSums:
    """Of every token that counts, predicted from the tokens before it in its segment.

    The first token of a segment has none before it and never counts.
    """
    summed = summed_losses(model, batch)
    count = jnp.maximum(summed.tokens, 1)
    return LossSums(summed.loss / count, summed.accuracy / count, summed.tokens)


def summed_losses(model: LanguageModel, batch: TokenArrays) -> LossSums:
    """As `losses`, but sums over the tokens in place of means."""
    tokens, loss_mask, segments, positions = map(jnp.asarray, batch)
    logits = model(tokens, segments, positions)
    # Rolled rather than cut, which would copy the logits; the last token would predict its row's first, so it
    # never counts.
    wanted, loss_mask, next_segments = (jnp.roll(part, -1, axis=1) for part in (tokens, loss_mask, segments))
    last = jnp.arange(tokens.shape[1]) == tokens.shape[1] - 1
    counts = (loss_mask > 0) & (next_segments == segments) & (segments > 0) & ~last
    logs = token_logps(logits, wanted)
    # Compared with the greatest, for XLA's CPU looks for its place one token after the other.
    right = (logs >= jnp.max(logits, axis=-1) - jax.nn.logsumexp(logits, axis=-1)) & counts
    loss = -jnp.sum(jnp.where(counts, logs, 0.0))
    return LossSums(loss, jnp.sum(right).astype(jnp.float32), counts.sum().astype(jnp.int32))
