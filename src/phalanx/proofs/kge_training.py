"""Learning an embedding: what is learned so far, and an epoch as one compiled call.

Logs, checkpoints and the choice of the best epoch are in `phalanx.agents.kge_training`.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped, unused-ignore]
from jaxtyping import Array, Float, Int32, PyTree

from phalanx.core.environment import Key
from phalanx.proofs.kge_config import KGEConfig
from phalanx.proofs.kge_examples import Examples, Minibatch
from phalanx.proofs.kge_losses import minibatch_loss
from phalanx.proofs.kge_scorer import KGE


class KGELearner(eqx.Module):
    """All that an epoch changes: with the config and the triples it decides all that follows."""

    kge: KGE
    optimizer: PyTree
    epoch: Int32[Array, ""]
    """Epochs made."""


class KGETrainer:
    """Trains an embedding on (relation, head, tail) triples, epoch by epoch.

    Order, negatives and dropout of an epoch follow from the seed and the epoch's number, so a training that
    was stopped goes on to the same numbers.
    """

    def __init__(
        self,
        config: KGEConfig,
        triples: Int32[np.ndarray, "triples 3"],
        num_relations: int,
        num_entities: int,
    ) -> None:
        if config.negatives > num_entities:
            raise ValueError(
                f"negatives must be at most the {num_entities} entities, got {config.negatives}; "
                "0 takes all of them"
            )
        self.config = config
        self.examples = Examples(triples, num_relations, num_entities)
        self.steps = -(-len(self.examples) // config.batch_size)
        """Minibatches in an epoch."""

    def start(self) -> KGELearner:
        """Random tables and nothing learned."""
        examples, config = self.examples, self.config
        generator = np.random.default_rng(config.seed)
        kge = KGE.create(config, examples.num_relations, examples.num_entities, generator)
        return KGELearner(kge, _optimizer(config, self.steps).init(kge.model), jnp.int32(0))

    def run_epoch(self, learner: KGELearner) -> tuple[KGELearner, Float[Array, ""]]:
        """The learner after another epoch, and the mean loss in it. The learner given is used up."""
        epoch = int(learner.epoch)
        # This generator compiles quickly, which the default one in a loop does not.
        key = jax.random.fold_in(jax.random.key(self.config.seed, impl="rbg"), epoch)
        # What is compiled does not depend on the seed.
        compiled_for = self.config.model_copy(update={"seed": 0})
        return _epoch(learner, self.examples.epoch(self.config, epoch), key, compiled_for)


@functools.partial(jax.jit, static_argnames="config", donate_argnums=0)
def _epoch(
    learner: KGELearner, minibatches: Minibatch, key: Key, config: KGEConfig
) -> tuple[KGELearner, Float[Array, ""]]:
    steps, num_relations = len(minibatches.triples), learner.kge.num_relations
    optimizer = _optimizer(config, steps)

    def step(carry: tuple[Any, Any], drawn: tuple[Any, Any]) -> tuple[tuple[Any, Any], Array]:
        model, state = carry
        number, minibatch = drawn
        dropping = jax.random.fold_in(key, number) if config.dropout else None
        cost = jax.value_and_grad(minibatch_loss)
        loss, gradient = cost(model, config, minibatch, num_relations, dropping)
        updates, state = optimizer.update(gradient, state, model)
        return (optax.apply_updates(model, updates), state), loss

    carry = learner.kge.model, learner.optimizer
    (model, state), losses = jax.lax.scan(step, carry, (jnp.arange(steps), minibatches))
    kge = eqx.tree_at(lambda kge: kge.model, learner.kge, model)
    return KGELearner(kge, state, learner.epoch + 1), jnp.mean(losses)


def _optimizer(config: KGEConfig, steps: int) -> optax.GradientTransformation:
    first, last, total = config.learning_rate, config.learning_rate_end, config.epochs * steps
    match config.schedule:
        case "constant":
            rate = optax.constant_schedule(first)
        case "linear":
            rate = optax.linear_schedule(first, last, total)
        case "cosine":
            rate = optax.cosine_decay_schedule(first, total, alpha=last / first)
    return optax.adagrad(rate) if config.optimizer == "adagrad" else optax.adam(rate)
