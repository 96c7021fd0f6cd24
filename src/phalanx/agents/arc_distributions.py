"""Distributions over ARC's actions: an operation, then a point or a box that depends on it.

Exact by construction: given the operation, the places are independent of one another, so that probabilities
multiply and entropies add. Which network gives the logits is decided in `arc_networks`.
"""

import dataclasses
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int8, Int32, Shaped

from phalanx.agents.distributions import draw, entropy_of, masked_log_softmax
from phalanx.arc.actions import BboxAction, PointAction
from phalanx.arc.observation import ArcObservation
from phalanx.arc.operations import Operation
from phalanx.core.environment import Key

PlaceKind = Literal["cells", "axes"]


class CellLogits(eqx.Module):
    """A cell for each operation: every cell has a logit of its own, so any set of cells can be preferred."""

    cells: Float[Array, "operations rows columns"]


class AxisLogits(eqx.Module):
    """A row and a column for each operation, independent of one another: much cheaper on large canvases."""

    rows: Float[Array, "operations rows"]
    columns: Float[Array, "operations columns"]


PlaceLogits = CellLogits | AxisLogits


class ArcLogits(eqx.Module):
    """What a network gives for one observation: an operation's logits and one or two places for each."""

    operations: Float[Array, " operations"]
    places: tuple[PlaceLogits, ...]
    """One for a point, two for the corners of a box."""


class _Places(eqx.Module):
    """Where an operation may point, for all operations, normalised."""

    axes: tuple[Float[Array, "operations _"], ...]
    """Log-probabilities: of cells, or of rows and of columns, which need not be as many."""
    columns: int = eqx.field(static=True)

    def entropy(self) -> Float[Array, " operations"]:
        return sum((entropy_of(axis) for axis in self.axes), jnp.zeros(self.axes[0].shape[0]))

    def sample(self, uniforms: Float[Array, " axes"], operation: Int32[Array, ""]) -> tuple[Array, Array]:
        return self._cell([draw(u, axis[operation]) for u, axis in zip(uniforms, self.axes, strict=True)])

    def mode(self, operation: Int32[Array, ""]) -> tuple[Array, Array]:
        return self._cell([jnp.argmax(axis[operation]).astype(jnp.int32) for axis in self.axes])

    def log_prob(self, operation: Int32[Array, ""], row: Array, column: Array) -> Float[Array, ""]:
        if len(self.axes) == 1:
            return self.axes[0][operation, row * self.columns + column]
        rows, columns = self.axes
        return rows[operation, row] + columns[operation, column]

    def _cell(self, chosen: list[Array]) -> tuple[Array, Array]:
        if len(chosen) == 2:
            return chosen[0], chosen[1]
        return chosen[0] // self.columns, chosen[0] % self.columns


class ArcDistribution(eqx.Module):
    """An operation, and a point or a box that depends on it.

    Illegal operations have probability zero, and so have cells outside the working grid, but for a resize,
    which may name any cell of the canvas.
    """

    operations: Float[Array, " operations"]
    """Log-probabilities of the operations that may be legal at all."""
    places: tuple[_Places, ...]
    ids: tuple[int, ...] = eqx.field(static=True)
    """Which operations those are; the others are not computed."""

    def sample(self, key: Key) -> PointAction | BboxAction:
        # All random numbers at once: each call of the generator takes XLA a second to compile.
        axes = len(self.places[0].axes)
        uniforms = jax.random.uniform(key, (1 + len(self.places) * axes,))
        choice = draw(uniforms[0], self.operations)
        cells = [
            place.sample(uniforms[1 + axes * number :][:axes], choice)
            for number, place in enumerate(self.places)
        ]
        return self._action(choice, cells)

    def mode(self) -> PointAction | BboxAction:
        """The likeliest operation at its likeliest place; an action of another operation may be likelier."""
        choice = jnp.argmax(self.operations).astype(jnp.int32)
        return self._action(choice, [place.mode(choice) for place in self.places])

    def log_prob(self, action: PointAction | BboxAction) -> Float[Array, ""]:
        """Of an action whose cells lie on the canvas."""
        known = jnp.asarray(self.ids) == action.operation
        choice = jnp.argmax(known)
        total = jnp.where(known.any(), self.operations[choice], -jnp.inf)
        for place, (row, column) in zip(self.places, _cells(action), strict=True):
            total = total + place.log_prob(choice, row, column)
        return total

    def entropy(self) -> Float[Array, ""]:
        """The operation's, and the places' in expectation over it."""
        within = sum((place.entropy() for place in self.places), jnp.zeros_like(self.operations))
        chances = jnp.exp(self.operations)
        return entropy_of(self.operations) + jnp.sum(jnp.where(chances > 0, chances * within, 0.0))

    def _action(self, choice: Int32[Array, ""], cells: list[tuple[Array, Array]]) -> PointAction | BboxAction:
        operation = jnp.asarray(self.ids, jnp.int32)[choice]
        if len(cells) == 1:
            return PointAction(operation, *cells[0])
        return BboxAction(operation, *cells[0], *cells[1])


def _cells(action: PointAction | BboxAction) -> list[tuple[Array, Array]]:
    if isinstance(action, PointAction):
        return [(action.row, action.col)]
    return [(action.r1, action.c1), (action.r2, action.c2)]


@dataclasses.dataclass(frozen=True)
class MakeArcDistribution:
    """From logits over the operations `ids` (those that a config allows) to the policy of an observation."""

    ids: tuple[int, ...]

    def __call__(
        self, parameters: ArcLogits, observation: ArcObservation | Int8[Array, "rows columns"]
    ) -> ArcDistribution:
        if isinstance(observation, ArcObservation):
            working, legal = observation.working_grid, observation.legal_operations
        else:
            working, legal = observation, None
        allowed = None if legal is None else legal[jnp.asarray(self.ids)]
        places = tuple(self._places(place, working >= 0) for place in parameters.places)
        return ArcDistribution(masked_log_softmax(parameters.operations, allowed), places, self.ids)

    def _places(self, logits: PlaceLogits, inside: Bool[Array, "rows columns"]) -> _Places:
        there = reachable(self.ids, inside)
        if isinstance(logits, CellLogits):
            cells = masked_log_softmax(_flat(logits.cells), _flat(there))
            return _Places((cells,), inside.shape[1])
        # A grid is a rectangle in its canvas's corner, so rows and columns that hold a cell are all there is.
        rows = masked_log_softmax(logits.rows, there.any(axis=2))
        columns = masked_log_softmax(logits.columns, there.any(axis=1))
        return _Places((rows, columns), inside.shape[1])


def reachable(
    ids: tuple[int, ...], inside: Bool[Array, "rows columns"]
) -> Bool[Array, "operations rows columns"]:
    """The cells that each operation may name: those of the grid, and for a resize the whole canvas."""
    return inside[None] | (np.asarray(ids) == Operation.RESIZE)[:, None, None]


def joint_logits(
    cells: CellLogits, ids: tuple[int, ...], inside: Bool[Array, "rows columns"]
) -> Float[Array, " operations"]:
    """What makes an operation as likely as the cells that it may name together.

    As an operation's logits it turns the choice of an operation and then a cell into one over pairs of both.
    """
    # A large number in place of infinity, whose gradient would be NaN otherwise.
    there = jnp.where(reachable(ids, inside), cells.cells, -1e30)
    return jax.nn.logsumexp(there, axis=(1, 2))


def _flat(cells: Shaped[Array, "operations rows columns"]) -> Shaped[Array, "operations cells"]:
    return cells.reshape(cells.shape[0], -1)
