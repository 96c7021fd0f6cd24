"""Training an embedding epoch by epoch: minibatches with what is known of them, losses, and the optimizer.

The models are in `models`; nothing but training triples is known here, and a run is in `phalanx.training`.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped, unused-ignore]
from jaxtyping import Array, Bool, Float, Int32

from phalanx.core.environment import Key
from phalanx.kg.joins import KnownArguments, expanded
from phalanx.kg.kge.config import KGEConfig
from phalanx.kg.kge.embedding import KGE
from phalanx.kg.kge.models import EmbeddingModel
from phalanx.kg.vocabulary import check_triples
from phalanx.training.algorithm import TrainState

Numbers = Array | np.ndarray


class Minibatch(eqx.Module):
    """Some triples, each of which asks two questions: which tail, and which head? Rows count from 0.

    Questions 0 to B - 1 are for the tails of the B triples, the next B for their heads.
    """

    triples: Int32[Numbers, "*steps batch 3"]
    candidates: Int32[Numbers, "*steps negatives"]
    """Distinct entities that every question is asked about; none where it is asked about all."""
    known: Int32[Numbers, "*steps room 2"]
    """(question, column of a candidate) of true answers; padded with a column that no candidate has."""


class Examples:
    """Training triples, and for every question of theirs all its answers among them."""

    def __init__(
        self, triples: Int32[np.ndarray, "triples 3"], num_relations: int, num_entities: int
    ) -> None:
        """From (relation, head, tail) with the numbers of an `IndexManager`, in any order, twice or not."""
        if len(triples) == 0:
            raise ValueError("an embedding needs at least one training triple, got none")
        check_triples(triples, num_relations, num_entities)
        self.rows = (np.unique(triples, axis=0) - 1).astype(np.int32)
        self.num_relations, self.num_entities = num_relations, num_entities
        self._answers = [
            (known := KnownArguments(self.rows, side), known.ranges(self.rows)) for side in (2, 1)
        ]
        self._room = 0

    def __len__(self) -> int:
        return len(self.rows)

    def epoch(self, config: KGEConfig, epoch: int) -> Minibatch:
        """The minibatches of an epoch, stacked; the seed and the epoch's number decide them."""
        generator = np.random.default_rng((config.seed, epoch))
        steps = -(-len(self) // config.batch_size)
        # A little smaller than asked for if that fills the last one; a few triples may then come twice.
        size = -(-len(self) // steps)
        order = np.resize(generator.permutation(len(self)), (steps, size))
        drawn = [
            generator.choice(self.num_entities, config.negatives, replace=False, shuffle=False)
            for _ in range(steps)
        ]
        candidates = np.array(drawn, np.int32).reshape(steps, config.negatives)
        known = [self.known(batch, wrong) for batch, wrong in zip(order, candidates, strict=True)]
        return Minibatch(self.rows[order], candidates, self._padded(known, config.negatives))

    def known(
        self, batch: Int32[np.ndarray, " batch"] | np.ndarray, candidates: Int32[np.ndarray, " negatives"]
    ) -> Int32[np.ndarray, "found 2"]:
        """(question, column) of every answer that is among the candidates, or among all without any."""
        columns = np.arange(self.num_entities)
        if len(candidates):
            columns = np.full(self.num_entities, -1)
            columns[candidates] = np.arange(len(candidates))
        found = []
        for side, (answers, (starts, counts)) in enumerate(self._answers):
            question, places = expanded(starts[batch], counts[batch])
            column = columns[answers.arguments[places]]
            pairs = np.stack([question + side * len(batch), column], axis=1)
            found.append(pairs[column >= 0])
        return np.concatenate(found).astype(np.int32)

    def _padded(self, known: list[np.ndarray], negatives: int) -> Int32[np.ndarray, "steps room 2"]:
        """All of one length, a power of two that is never less than before: few lengths are compiled."""
        most = max(len(pairs) for pairs in known)
        if most > self._room:
            self._room = 1 << (most + most // 4).bit_length()
        outside = np.array([0, negatives or self.num_entities], np.int32)
        padded = np.tile(outside, (len(known), self._room, 1))
        for row, pairs in zip(padded, known, strict=True):
            row[: len(pairs)] = pairs
        return padded


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


class KGETrainState(TrainState):
    """The embedding (a `KGE`), the optimizer state and the number of completed epochs."""


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

    def start(self, params: KGE | None = None) -> KGETrainState:
        """Create the initial state of a random embedding, or of the given one."""
        examples, config = self.examples, self.config
        generator = np.random.default_rng(config.seed)
        kge = params
        if kge is None:
            kge = KGE.create(config, examples.num_relations, examples.num_entities, generator)
        return KGETrainState(kge, _optimizer(config, self.steps).init(kge.model), jnp.int32(0))

    def run_epoch(self, learner: KGETrainState) -> tuple[KGETrainState, Float[Array, ""]]:
        """The learner after another epoch, and the mean loss in it. The learner given is used up."""
        epoch = int(learner.step)
        # This generator compiles quickly, which the default one in a loop does not.
        key = jax.random.fold_in(jax.random.key(self.config.seed, impl="rbg"), epoch)
        # What is compiled does not depend on the seed.
        compiled_for = self.config.model_copy(update={"seed": 0})
        return _epoch(learner, self.examples.epoch(self.config, epoch), key, compiled_for)


@functools.partial(jax.jit, static_argnames="config", donate_argnums=0)
def _epoch(
    learner: KGETrainState, minibatches: Minibatch, key: Key, config: KGEConfig
) -> tuple[KGETrainState, Float[Array, ""]]:
    steps, num_relations = len(minibatches.triples), learner.params.num_relations
    optimizer = _optimizer(config, steps)

    def step(carry: tuple[Any, Any], drawn: tuple[Any, Any]) -> tuple[tuple[Any, Any], Array]:
        model, state = carry
        number, minibatch = drawn
        dropping = jax.random.fold_in(key, number) if config.dropout else None
        cost = jax.value_and_grad(minibatch_loss)
        loss, gradient = cost(model, config, minibatch, num_relations, dropping)
        updates, state = optimizer.update(gradient, state, model)
        return (optax.apply_updates(model, updates), state), loss

    carry = learner.params.model, learner.opt_state
    (model, state), losses = jax.lax.scan(step, carry, (jnp.arange(steps), minibatches))
    kge = eqx.tree_at(lambda kge: kge.model, learner.params, model)
    return KGETrainState(kge, state, learner.step + 1), jnp.mean(losses)


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
