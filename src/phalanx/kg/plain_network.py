"""The path network in JAX, over the whole graph: slow and obvious, where there is no compiled extension.

The names, the arguments and the results are those of `phalanx._native`, which is checked against this.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32

from phalanx.kg.rules.plain import TripleGraph

_WIDTH = 32


class _Asked(NamedTuple):
    """A question, the edges and which of them are not left out, and what each layer has reached."""

    entity: np.int32
    relation: np.int32
    relations: np.ndarray
    """As many as there are directed ones."""
    edges: np.ndarray
    kept: np.ndarray
    reached: np.ndarray


class PathQuestions:
    """Questions to a path network over a graph."""

    def __init__(self, graph: TripleGraph, layers: int, specific: bool, threads: int) -> None:
        self.graph, self.layers, self.specific = graph, layers, specific
        edges = [(a, r, b) for a, some in enumerate(graph.edges) for b, r in some]
        self.edges = np.array(edges, np.int32).reshape(-1, 3)

    def loss_and_gradient(
        self,
        parameters: Float32[np.ndarray, " parameters"],
        rows: Int32[np.ndarray, "questions 3"],
        gradient: Float32[np.ndarray, " parameters"],
    ) -> float:
        """Writes the gradient of the loss of the answers, summed, each without its own edge."""
        gradient[:] = 0
        total = 0.0
        for entity, relation, answer in rows.tolist():
            hidden = (self.edges == (entity, relation, answer)).all(1)
            hidden |= (self.edges == (answer, relation ^ 1, entity)).all(1)
            right = np.zeros(self.graph.entities, bool)
            right[self.graph.targets(entity, relation)] = True
            right[answer] = False
            asked = self._asked(entity, relation, ~hidden)
            value, slope = _slope(parameters, answer, right, asked, self.layers, self.specific)
            total += float(value)
            gradient += np.asarray(slope)
        return total

    def score(
        self,
        parameters: Float32[np.ndarray, " parameters"],
        rows: Int32[np.ndarray, "questions 2"],
        table: Float32[np.ndarray, "questions entities"],
    ) -> None:
        """Writes the score of every entity for each question."""
        every = np.ones(len(self.edges), bool)
        for place, (entity, relation) in enumerate(rows.tolist()):
            asked = self._asked(entity, relation, every)
            table[place] = _scores(parameters, asked, self.layers, self.specific)

    def _asked(self, entity: int, relation: int, kept: np.ndarray) -> _Asked:
        source, _, target = self.edges.T
        reached, now = [], np.arange(self.graph.entities) == entity
        for _ in range(self.layers):
            now[target[now[source] & kept]] = True
            reached.append(now.copy())
        start = np.int32(entity), np.int32(relation), np.arange(self.graph.directed)
        return _Asked(*start, self.edges, kept, np.array(reached))


@functools.partial(jax.jit, static_argnums=(2, 3))
def _scores(parameters: Array, asked: _Asked, layers: int, specific: bool) -> Array:
    directed, count = len(asked.relations), asked.reached.shape[1]
    source, through, target = asked.edges.T
    at = 0

    def take(*shape: int) -> Array:
        nonlocal at
        at += int(np.prod(shape))
        return parameters[at - int(np.prod(shape)) : at].reshape(shape)

    taken = []
    for _ in range(layers):
        messages = take(directed, _WIDTH)
        if specific:
            messages = messages + take(directed, directed, _WIDTH)[asked.relation]
        taken.append((messages, take(_WIDTH, _WIDTH), take(_WIDTH, _WIDTH), *take(3, _WIDTH)))
    start, last, rest = take(directed, _WIDTH), take(directed, _WIDTH), take(directed)
    begin = jnp.zeros((count, _WIDTH)).at[asked.entity].set(start[asked.relation])
    state = begin
    for reached, (messages, mixing, own, bias, gain, shift) in zip(asked.reached, taken, strict=True):
        sums = begin.at[target].add(state[source] * messages[through] * asked.kept[:, None])
        mixed = sums @ mixing + state @ own + bias
        mixed = mixed - mixed.mean(axis=1, keepdims=True)
        normal = mixed / jnp.sqrt((mixed**2).mean(axis=1, keepdims=True) + 1e-5)
        state = jnp.where(reached[:, None], state + jax.nn.relu(normal * gain + shift), 0.0)
    return jnp.where(asked.reached[-1], state @ last[asked.relation], rest[asked.relation])


@functools.partial(jax.jit, static_argnums=(4, 5))
@jax.value_and_grad
def _slope(
    parameters: Array, answer: Array, right: Array, asked: _Asked, layers: int, specific: bool
) -> Array:
    """The loss of an answer and its gradient, other right answers left out."""
    scores = jnp.where(right, -jnp.inf, _scores(parameters, asked, layers, specific))
    return jax.nn.logsumexp(scores) - scores[answer]
