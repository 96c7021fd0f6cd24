"""Distributions over ARC's actions: an operation, then a point or a box that depends on it.

Exact by construction: given the operation, the places are independent of one another, so that probabilities
multiply and entropies add. Which network gives the logits is decided in `arc`.
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int8, Int32

from phalanx.arc.actions import BboxAction, PointAction
from phalanx.arc.observation import ArcObservation
from phalanx.arc.operations import OPERATIONS, Operation
from phalanx.core.environment import Key
from phalanx.nn.distributions import entropy, masked_log_softmax, sample_by_uniform

SelectionHead = Literal["cells", "axes", "category_axes"]


class CellLogits(eqx.Module):
    """A cell for each operation: every cell has a logit of its own, so any set of cells can be preferred."""

    cells: Float[Array, "groups rows columns"]


class AxisLogits(eqx.Module):
    """A row and a column for each operation, independent of one another: much cheaper on large canvases."""

    rows: Float[Array, "groups rows"]
    columns: Float[Array, "groups columns"]


PlaceLogits = CellLogits | AxisLogits


class ArcLogits(eqx.Module):
    """What a network gives for one observation: an operation's logits and one or two places for each."""

    operations: Float[Array, " operations"]
    places: tuple[PlaceLogits, ...]
    """One for a point, two for the corners of a box."""
    groups: tuple[int, ...] | None = eqx.field(static=True, default=None)
    """Which row of `places` an operation reads; None gives each operation its own."""


class _Places(eqx.Module):
    """Where the operations of each group may point, normalized."""

    axes: tuple[Float[Array, "groups _"], ...]
    """Log-probabilities: of cells, or of rows and of columns, which need not be as many."""
    columns: int = eqx.field(static=True)

    def entropy(self) -> Float[Array, " groups"]:
        return sum((entropy(axis) for axis in self.axes), jnp.zeros(self.axes[0].shape[0]))

    def sample(self, uniforms: Float[Array, " axes"], group: Int32[Array, ""]) -> tuple[Array, Array]:
        return self._cell(
            [sample_by_uniform(u, axis[group]) for u, axis in zip(uniforms, self.axes, strict=True)]
        )

    def mode(self, group: Int32[Array, ""]) -> tuple[Array, Array]:
        return self._cell([jnp.argmax(axis[group]).astype(jnp.int32) for axis in self.axes])

    def log_prob(self, group: Int32[Array, ""], row: Array, column: Array) -> Float[Array, ""]:
        if len(self.axes) == 1:
            return self.axes[0][group, row * self.columns + column]
        rows, columns = self.axes
        return rows[group, row] + columns[group, column]

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
    groups: tuple[int, ...] = eqx.field(static=True)
    """Where each of them reads its places."""

    @classmethod
    def from_logits(
        cls,
        logits: ArcLogits,
        ids: tuple[int, ...],
        observation: ArcObservation | Int8[Array, "rows columns"],
    ) -> "ArcDistribution":
        """Create the distribution over the operations `ids` for an observation.

        Args:
            logits: Output of a network whose operation logits are in the order of `ids`.
            ids: Operations that the environment's config allows.
            observation: Gives the size of the working grid and the mask of legal operations.
        """
        if isinstance(observation, ArcObservation):
            working, legal = observation.working_grid, observation.legal_operations
        else:
            working, legal = observation, None
        allowed = None if legal is None else legal[jnp.asarray(ids)]
        groups = logits.groups or tuple(range(len(ids)))
        of_groups = dict(zip(groups, ids, strict=True))
        group_ids = tuple(of_groups[group] for group in range(len(of_groups)))
        places = tuple(_places(group_ids, place, working >= 0) for place in logits.places)
        return cls(masked_log_softmax(logits.operations, allowed), places, ids, groups)

    def sample(self, key: Key) -> PointAction | BboxAction:
        # All random numbers at once: each call of the generator takes XLA a second to compile.
        axes = len(self.places[0].axes)
        uniforms = jax.random.uniform(key, (1 + len(self.places) * axes,))
        choice = sample_by_uniform(uniforms[0], self.operations)
        cells = [
            place.sample(uniforms[1 + axes * number :][:axes], self._group(choice))
            for number, place in enumerate(self.places)
        ]
        return self._action(choice, cells)

    def mode(self) -> PointAction | BboxAction:
        """The likeliest operation at its likeliest place; an action of another operation may be likelier."""
        choice = jnp.argmax(self.operations).astype(jnp.int32)
        return self._action(choice, [place.mode(self._group(choice)) for place in self.places])

    def log_prob(self, action: PointAction | BboxAction) -> Float[Array, ""]:
        """Of an action whose cells lie on the canvas."""
        known = jnp.asarray(self.ids) == action.operation
        choice = jnp.argmax(known)
        total = jnp.where(known.any(), self.operations[choice], -jnp.inf)
        for place, (row, column) in zip(self.places, _cells(action), strict=True):
            total = total + place.log_prob(self._group(choice), row, column)
        return total

    def entropy(self) -> Float[Array, ""]:
        """The operation's, and the places' in expectation over it."""
        within = sum((place.entropy() for place in self.places), jnp.zeros(len(set(self.groups))))
        chances = jnp.exp(self.operations)
        within = within[np.asarray(self.groups)]
        return entropy(self.operations) + jnp.sum(jnp.where(chances > 0, chances * within, 0.0))

    def _group(self, choice: Int32[Array, ""]) -> Int32[Array, ""]:
        return jnp.asarray(self.groups, jnp.int32)[choice]

    def _action(self, choice: Int32[Array, ""], cells: list[tuple[Array, Array]]) -> PointAction | BboxAction:
        operation = jnp.asarray(self.ids, jnp.int32)[choice]
        if len(cells) == 1:
            return PointAction(operation, *cells[0])
        return BboxAction(operation, *cells[0], *cells[1])


def _cells(action: PointAction | BboxAction) -> list[tuple[Array, Array]]:
    if isinstance(action, PointAction):
        return [(action.row, action.col)]
    return [(action.r1, action.c1), (action.r2, action.c2)]


def _places(ids: tuple[int, ...], logits: PlaceLogits, inside: Bool[Array, "rows columns"]) -> _Places:
    """`ids`: an operation of each group."""
    if isinstance(logits, CellLogits):
        there = selectable_cells(ids, inside.reshape(-1))
        cells = masked_log_softmax(logits.cells.reshape(there.shape), there)
        return _Places((cells,), inside.shape[1])
    # A grid is a rectangle in its canvas's corner, so rows and columns that hold a cell are all there is.
    rows = masked_log_softmax(logits.rows, selectable_cells(ids, inside.any(axis=1)))
    columns = masked_log_softmax(logits.columns, selectable_cells(ids, inside.any(axis=0)))
    return _Places((rows, columns), inside.shape[1])


def category_groups(ids: tuple[int, ...]) -> tuple[int, ...]:
    """Operations of a category together; a resize, which alone may point outside the grid, by itself."""
    kinds = ["resize" if i == Operation.RESIZE else OPERATIONS[i].category for i in ids]
    order = list(dict.fromkeys(kinds))
    return tuple(order.index(kind) for kind in kinds)


def selectable_cells(
    ids: tuple[int, ...], inside: Bool[Array, " places"]
) -> Bool[Array, "operations places"]:
    """The places that each operation may name: those of the grid, and for a resize all of the canvas."""
    return inside | (np.asarray(ids) == Operation.RESIZE)[:, None]


def joint_operation_logits(
    cells: CellLogits, ids: tuple[int, ...], inside: Bool[Array, "rows columns"]
) -> Float[Array, " operations"]:
    """What makes an operation as likely as the cells that it may name together.

    As an operation's logits it turns the choice of an operation and then a cell into one over pairs of both.
    """
    # A large number in place of infinity, whose gradient would be NaN otherwise.
    there = selectable_cells(ids, inside.reshape(-1))
    return jax.nn.logsumexp(jnp.where(there, cells.cells.reshape(there.shape), -1e30), axis=1)
