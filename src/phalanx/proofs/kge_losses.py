"""What a minibatch costs: the right answers of its questions against wrong ones, and the regulariser.

The questions' scores come from `kge_models`; the gradient is taken in `kge_training`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from phalanx.core.environment import Key
from phalanx.proofs.kge_config import KGEConfig
from phalanx.proofs.kge_examples import Minibatch
from phalanx.proofs.kge_models import EmbeddingModel

_NEVER = -1e9
"""The score of a candidate that is left out of a softmax."""


def minibatch_loss(
    model: EmbeddingModel,
    config: KGEConfig,
    minibatch: Minibatch,
    num_relations: int,
    key: Key | None,
) -> Float[Array, ""]:
    """The mean loss of both questions of each triple: which tail, and which head?

    `num_relations` counts the relations without those that are read backwards. A key is for dropout.
    """
    relations, heads, tails = minibatch.triples.T
    keys = (None, None) if key is None else jax.random.split(key)
    inverse = relations + num_relations if config.reciprocal else relations
    forth = model.tail_queries(relations, heads, keys[0])
    ask_back = model.tail_queries if config.reciprocal else model.head_queries
    queries = jnp.concatenate([forth, ask_back(inverse, tails, keys[1])])
    positive = model.compare_rows(queries, model.entities[jnp.concatenate([tails, heads])])
    answers = model.entities[minibatch.candidates] if config.negatives else model.entities
    candidates = model.compare(queries, answers)
    questions, columns = minibatch.known.T
    known = jnp.zeros(candidates.shape, bool).at[questions, columns].set(True, mode="drop")
    if config.loss == "softmax":
        loss = softmax_loss(positive, candidates, known, config.label_smoothing)
    elif config.negatives:
        loss = sampled_binary_loss(positive, candidates, known, config.adversarial_temperature)
    else:
        loss = binary_loss(candidates, known, config.label_smoothing)
    if not config.regularization:
        return jnp.mean(loss)
    sizes = [*model.sizes(relations, heads, tails), *model.sizes(inverse, tails, heads)]
    power = 3 if config.regularizer == "n3" else 2
    penalty = sum(jnp.sum(jnp.abs(size) ** power) for size in sizes) / len(queries)
    return jnp.mean(loss) + config.regularization * penalty


def softmax_loss(
    positive: Float[Array, " n"],
    candidates: Float[Array, "n m"],
    known: Bool[Array, "n m"],
    smoothing: float = 0.0,
) -> Float[Array, " n"]:
    """Cross-entropy of the right answer among itself and those candidates that are not known to be true."""
    wrong = jnp.where(known, _NEVER, candidates)
    total = jnp.logaddexp(positive, jax.nn.logsumexp(wrong, axis=1))
    loss = total - positive
    if not smoothing:
        return loss
    count = 1 + jnp.sum(~known, axis=1)
    mean = (positive + jnp.sum(candidates, axis=1, where=~known)) / count
    return (1 - smoothing) * loss + smoothing * (total - mean)


def sampled_binary_loss(
    positive: Float[Array, " n"],
    candidates: Float[Array, "n m"],
    known: Bool[Array, "n m"],
    temperature: float = 0.0,
) -> Float[Array, " n"]:
    """Yes to the right answer and no to the others, which weigh 1 together (Sun and others, 2019)."""
    weights = jax.nn.softmax(jnp.where(known, _NEVER, temperature * candidates), axis=1)
    refused = jnp.where(known, 0, jax.nn.log_sigmoid(-candidates))
    return -(jax.nn.log_sigmoid(positive) + jnp.sum(jax.lax.stop_gradient(weights) * refused, axis=1)) / 2


def binary_loss(
    candidates: Float[Array, "n m"], known: Bool[Array, "n m"], smoothing: float = 0.0
) -> Float[Array, " n"]:
    """Yes to every known answer and no to all other entities (1-N; Dettmers and others, 2018)."""
    labels = (1 - smoothing) * known + smoothing / candidates.shape[1]
    return jnp.mean(jax.nn.softplus(candidates) - labels * candidates, axis=1)
