"""Training of the search heuristic: examples from found proofs, and minibatch updates of its network."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped, unused-ignore]
from jaxtyping import Array, Int32
from pydantic import Field

from phalanx.config import Config
from phalanx.kg.time_limit import TimeLimit
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.program import Program
from phalanx.proofs.search.beam import SearchResult
from phalanx.proofs.search.best_first import (
    BestFirstConfig,
    Heuristic,
    SuccessorBatch,
    best_first_search,
    compute_successors,
    expansion_config,
)
from phalanx.proofs.search.goal_features import GoalFeatureExtractor, GoalFeatures
from phalanx.proofs.search.heuristics import (
    ROWS_PER_BATCH as _ROWS,
    HeuristicNetwork,
    LearnedHeuristic,
    UniformHeuristic,
    pad_features,
)

_LOST = 32
"""Of the states that a search expanded in vain, the last ones that are learned from."""


class HeuristicConfig(Config):
    """The network and how it learns."""

    width: int = Field(default=32, ge=1)
    """Numbers of a predicate's vector and of the hidden layers."""
    rounds: int = Field(default=2, ge=1)
    """Rounds of searching and learning; the first is guided by what learns nothing."""
    queries: int = Field(default=400, ge=1)
    """Training queries in a round."""
    epochs: int = Field(default=12, ge=1)
    """How often all examples so far are gone through after a round."""
    learning_rate: float = Field(default=0.005, gt=0)
    """Adam's step."""
    value_weight: float = Field(default=1.0, ge=0)
    """What the estimate of a proof being ahead counts for, beside the policy's cost of the way."""
    search: BestFirstConfig = BestFirstConfig()
    """How training queries are searched."""
    seed: int = Field(default=0, ge=0)
    """Of the weights, the queries and the order."""


class FoundProof(NamedTuple):
    """A proof that a search has found: what was expanded on the way to it, and some of what was in vain."""

    query: Int32[np.ndarray, " atom"]
    way: Int32[np.ndarray, "steps atoms atom"]
    lost: Int32[np.ndarray, "states atoms atom"]

    @classmethod
    def of(cls, tried: SearchResult, asked: Int32[np.ndarray, "queries atom"], number: int) -> "FoundProof":
        """What a search found for one of its queries."""
        assert tried.trace is not None
        way, lost = np.stack(tried.trace.paths[number]), tried.trace.dead_ends[number][-_LOST:]
        return cls(asked[number], way, np.stack(lost) if lost else way[:0])


class ChoiceExample(NamedTuple):
    """An expanded state on the way to a proof: its successors, and which of them the way takes."""

    described: GoalFeatures
    taken: int


class HeuristicExamples(NamedTuple):
    """What searches have taught so far."""

    choices: list[ChoiceExample]
    lost: list[GoalFeatures]
    """States that were expanded and led to no proof that was found."""


class HeuristicTrainer:
    """Rounds of searching and learning: what each search finds is added to what is learned from.

    The searches of a round and the order of its minibatches follow from the seed and the round's number, so
    that a training that was stopped goes on to the same weights, once `taught` is what it was.
    """

    def __init__(
        self,
        config: HeuristicConfig,
        environment: ProofConfig,
        program: Program,
        features: GoalFeatureExtractor,
        queries: Int32[np.ndarray, "queries atom"],
        *,
        first: Heuristic | None = None,
    ) -> None:
        self.config, self.environment, self.program, self.features = config, environment, program, features
        self._queries, self._first = queries, UniformHeuristic(config.seed) if first is None else first
        self._order = np.random.default_rng(config.seed).permutation(len(queries))
        self.taught: list[FoundProof] = []
        """What the searches so far have found."""
        self._examples = HeuristicExamples([], [])

    def round(self, network: HeuristicNetwork, number: int) -> tuple[HeuristicNetwork, SearchResult]:
        """The network after one more round, and what its search came to; the first is guided by `first`."""
        config = self.config
        places = range(number * config.queries, (number + 1) * config.queries)
        asked = self._queries[np.take(self._order, places, mode="wrap")]
        guide = LearnedHeuristic(network, self.features, config.value_weight) if number else self._first
        tried = best_first_search(self.environment, self.program, guide, asked, config.search)
        assert tried.trace is not None
        self.learn([FoundProof.of(tried, asked, query) for query in tried.trace.paths])
        if self._examples.choices:
            network = _fitted(network, self._examples, config, np.random.default_rng((config.seed, number)))
        return network, tried

    def learn(self, found: Sequence[FoundProof]) -> None:
        """Take proofs into what is learned from."""
        self.taught += found
        for one in found:
            _learn_from(one, self.environment, self.program, self.features, self.config, self._examples)


def train_heuristic(
    config: HeuristicConfig,
    environment: ProofConfig,
    program: Program,
    features: GoalFeatureExtractor,
    queries: Int32[np.ndarray, "queries atom"],
    *,
    first: Heuristic | None = None,
    time_limit: TimeLimit | None = None,
) -> LearnedHeuristic:
    """A guide that has learned from searches for proofs of these queries, none of which is its own fact."""
    trainer = HeuristicTrainer(config, environment, program, features, queries, first=first)
    network, time_limit = untrained_heuristic(config, program, features).network, time_limit or TimeLimit()
    for number in range(config.rounds):
        network, tried = trainer.round(network, number)
        proved = int(tried.proved.sum())
        time_limit.report(f"round {number + 1}: {proved} of {len(tried.proved)} training queries proved")
    return LearnedHeuristic(network, features, config.value_weight)


def untrained_heuristic(
    config: HeuristicConfig, program: Program, features: GoalFeatureExtractor
) -> LearnedHeuristic:
    """What a training with this config starts from."""
    network = HeuristicNetwork(program.num_predicates, config.width, key=jax.random.PRNGKey(config.seed))
    return LearnedHeuristic(network, features, config.value_weight)


def _learn_from(
    taught: FoundProof,
    environment: ProofConfig,
    program: Program,
    features: GoalFeatureExtractor,
    config: HeuristicConfig,
    examples: HeuristicExamples,
) -> None:
    """Adds the choices on the way to a proof, and the states that were expanded in vain."""
    plain = expansion_config(environment)
    goals, query = taught.way, np.repeat(taught.query[None], len(taught.way), axis=0)
    found, count, _ = compute_successors(plain, program, goals, query, config.search.batch_size)
    for step in range(len(goals) - 1):
        rows = found[step, : count[step]]
        rows = rows[rows[:, 0, 0] <= program.num_predicates]
        same = np.flatnonzero((rows == goals[step + 1]).all(axis=(1, 2)))
        owner, depth = np.zeros(len(rows), np.int64), np.array([step])
        described = features(SuccessorBatch(rows, owner, goals[step : step + 1], query[:1], depth))
        examples.choices.append(ChoiceExample(described, int(same[0])))
    if len(taught.lost):
        owner = np.arange(len(taught.lost))
        # A lost state is told as its own successor: what led to it is not known any more.
        asked = np.repeat(query[:1], len(owner), 0)
        siblings = SuccessorBatch(taught.lost, owner, taught.lost, asked, np.zeros_like(owner))
        examples.lost.append(features(siblings))


def _fitted(
    network: HeuristicNetwork,
    examples: HeuristicExamples,
    config: HeuristicConfig,
    random: np.random.Generator,
) -> HeuristicNetwork:
    optimizer = optax.adam(config.learning_rate)
    state = optimizer.init(eqx.filter(network, eqx.is_array))
    for _ in range(config.epochs):
        for described, group, taken, value in _minibatches(examples, random):
            network, state, _ = _step(network, state, described, group, taken, value, config.learning_rate)
    return network


def _minibatches(examples: HeuristicExamples, random: np.random.Generator) -> Iterator[tuple[Any, ...]]:
    """Whole groups of siblings, as many as fit, and some lost states behind them.

    A group's number is -1 for a lost state and for padding; the value is 1, 0, or -1 where nothing is known.
    """
    order = random.permutation(len(examples.choices)).tolist()
    lost = random.permutation(len(examples.lost)).tolist()
    while order:
        parts: list[GoalFeatures] = []
        group: list[int] = []
        taken: list[bool] = []
        value: list[int] = []
        used, number = 0, 0
        while order and used + len(examples.choices[order[-1]].described.predicates) <= _ROWS * 3 // 4:
            example = examples.choices[order.pop()]
            size = len(example.described.predicates)
            parts.append(example.described)
            group += [number] * size
            number += 1
            chosen = [place == example.taken for place in range(size)]
            taken += chosen
            value += [1 if one else -1 for one in chosen]
            used += size
        if not parts:
            # More siblings than fit: left out, as a search meets few of these.
            order.pop()
            continue
        while lost and used + len(examples.lost[lost[-1]].predicates) <= _ROWS:
            described = examples.lost[lost.pop()]
            parts.append(described)
            size = len(described.predicates)
            group, taken, value = group + [-1] * size, taken + [False] * size, value + [0] * size
            used += size
        short = _ROWS - used
        joined = GoalFeatures(*(np.concatenate(leaves) for leaves in zip(*parts, strict=True)))
        yield (
            pad_features(joined),
            np.array(group + [-1] * short, np.int32),
            np.array(taken + [False] * short),
            np.array(value + [-1] * short, np.int32),
        )


@eqx.filter_jit
def _step(
    network: HeuristicNetwork,
    state: Any,
    described: GoalFeatures,
    group: Array,
    taken: Array,
    value: Array,
    learning_rate: float,
) -> tuple[HeuristicNetwork, Any, Array]:
    group, taken, value = jnp.asarray(group), jnp.asarray(taken), jnp.asarray(value)

    def loss_of(network: HeuristicNetwork) -> Array:
        logits, hopes = network(described)
        place = jnp.where(group >= 0, group, _ROWS)
        top = jax.ops.segment_max(logits, place, _ROWS + 1)
        mass = jax.ops.segment_sum(jnp.exp(logits - top[place]), place, _ROWS + 1)
        choice = jnp.where(taken, jnp.log(mass)[place] + top[place] - logits, 0.0)
        known = value >= 0
        belief = jnp.where(value == 1, jax.nn.softplus(-hopes), jax.nn.softplus(hopes))
        policy = jnp.sum(choice) / jnp.maximum(jnp.sum(taken), 1)
        return policy + jnp.sum(jnp.where(known, belief, 0.0)) / jnp.maximum(jnp.sum(known), 1)

    loss, gradient = eqx.filter_value_and_grad(loss_of)(network)
    updates, state = optax.adam(learning_rate).update(gradient, state)
    return eqx.apply_updates(network, updates), state, loss
