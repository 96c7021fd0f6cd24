"""The path network in JAX, over the whole graph: slow and obvious, where there is no compiled extension.

The names, the arguments and the results are those of `phalanx._native`, which is checked against this.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32

from phalanx.proofs.mining.plain import MiningGraph

_WIDTH = 32


class PathQuestions:
    """Questions to a path network over a graph."""

    def __init__(self, graph: MiningGraph, layers: int, specific: bool, threads: int) -> None:
        self.graph, self.layers, self.specific = graph, layers, specific
        edges = [(a, r, b) for a, some in enumerate(graph.edges) for b, r in some]
        self.edges = np.array(edges, np.int32).reshape(-1, 3)

    def learn(
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

            def loss(
                values: Any, row: Any = (entity, relation, answer), right: Any = right, kept: Any = ~hidden
            ) -> Any:
                scores = jnp.where(right, -jnp.inf, self._scores(values, row[0], row[1], kept))
                return jax.nn.logsumexp(scores) - scores[row[2]]

            value, slope = jax.value_and_grad(loss)(jnp.asarray(parameters))
            total += float(value)
            gradient += np.asarray(slope)
        return total

    def scores(
        self,
        parameters: Float32[np.ndarray, " parameters"],
        rows: Int32[np.ndarray, "questions 2"],
        table: Float32[np.ndarray, "questions entities"],
    ) -> None:
        """Writes the score of every entity for each question."""
        every = np.ones(len(self.edges), bool)
        for place, (entity, relation) in enumerate(rows.tolist()):
            table[place] = np.asarray(self._scores(jnp.asarray(parameters), entity, relation, every))

    def _scores(self, parameters: Array, entity: int, relation: int, kept: np.ndarray) -> Array:
        directed, count = self.graph.directed, self.graph.entities
        source, through, target = self.edges.T
        at = 0

        def take(*shape: int) -> Array:
            nonlocal at
            at += int(np.prod(shape))
            return parameters[at - int(np.prod(shape)) : at].reshape(shape)

        reached = np.zeros(count, bool)
        reached[entity] = True
        layers = []
        for _ in range(self.layers):
            messages = take(directed, _WIDTH)
            if self.specific:
                messages = messages + take(directed, directed, _WIDTH)[relation]
            layers.append((messages, take(_WIDTH, _WIDTH), take(_WIDTH, _WIDTH), *take(3, _WIDTH)))
        start, last, rest = take(directed, _WIDTH), take(directed, _WIDTH), take(directed)
        begin = jnp.zeros((count, _WIDTH)).at[entity].set(start[relation])
        state = begin
        for messages, mixing, own, bias, gain, shift in layers:
            sums = begin.at[target].add(state[source] * messages[through] * kept[:, None])
            mixed = sums @ mixing + state @ own + bias
            mixed = mixed - mixed.mean(axis=1, keepdims=True)
            normal = mixed / jnp.sqrt((mixed**2).mean(axis=1, keepdims=True) + 1e-5)
            reached[target[reached[source] & kept]] = True
            state = jnp.where(reached.copy()[:, None], state + jax.nn.relu(normal * gain + shift), 0.0)
        return jnp.where(reached, state @ last[relation], rest[relation])
