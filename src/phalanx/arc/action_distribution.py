"""Distributions over ARC actions: an operation, then a point or a box that depends on it.

Given the operation, the selected cells are independent, so probabilities multiply and entropies add.
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


_CELLS_IGNORED = (Operation.COPY_INPUT, Operation.SUBMIT, *range(Operation.NEXT_DEMO_PAIR, 42))
"""Operations that ignore the selected cells."""


class CellLogits(eqx.Module):
    """One logit per cell, so any set of cells can be preferred."""

    cells: Float[Array, "groups rows columns"]


class AxisLogits(eqx.Module):
    """Independent logits of rows and columns, which take much less time on large canvases."""

    rows: Float[Array, "groups rows"]
    columns: Float[Array, "groups columns"]


SelectionLogits = CellLogits | AxisLogits


class ArcLogits(eqx.Module):
    """Output of a network for one observation: logits of operations and of one or two cells for each."""

    operations: Float[Array, " operations"]
    selections: tuple[SelectionLogits, ...]
    """One entry for a point, two for the corners of a box."""
    groups: tuple[int, ...] | None = eqx.field(static=True, default=None)
    """Row of `selections` that each operation uses; None gives each operation its own."""


class _SelectionDistribution(eqx.Module):
    """Log-probabilities of one selected cell, by group of operations."""

    axes: tuple[Float[Array, "groups _"], ...]
    """Log-probabilities of cells, or of rows and columns, whose numbers may differ."""
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
    """Distribution over an operation and a point or box that depends on it.

    Illegal operations have probability zero. Cells outside the working grid have probability zero too, except
    for Resize, which may select any cell of the canvas.
    """

    operations: Float[Array, " operations"]
    """Log-probabilities of the operations `ids`."""
    selections: tuple[_SelectionDistribution, ...]
    ids: tuple[int, ...] = eqx.field(static=True)
    """Operations that the config allows."""
    groups: tuple[int, ...] = eqx.field(static=True)
    """Row of `selections` that each operation uses."""

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
        selections = tuple(
            _selection_distribution(group_ids, selection, working >= 0) for selection in logits.selections
        )
        return cls(masked_log_softmax(logits.operations, allowed), selections, ids, groups)

    def sample(self, key: Key) -> PointAction | BboxAction:
        # One call of the generator, because each call takes a second to compile.
        axes = len(self.selections[0].axes)
        uniforms = jax.random.uniform(key, (1 + len(self.selections) * axes,))
        choice = sample_by_uniform(uniforms[0], self.operations)
        cells = [
            selection.sample(uniforms[1 + axes * number :][:axes], self._group(choice))
            for number, selection in enumerate(self.selections)
        ]
        return self._action(choice, cells)

    def mode(self) -> PointAction | BboxAction:
        """Return the most probable operation with its most probable cells. An action of another operation may
        be more probable."""
        choice = jnp.argmax(self.operations).astype(jnp.int32)
        return self._action(choice, [selection.mode(self._group(choice)) for selection in self.selections])

    def log_prob(self, action: PointAction | BboxAction) -> Float[Array, ""]:
        """Compute the log-probability of an action whose cells are on the canvas."""
        known = jnp.asarray(self.ids) == action.operation
        choice = jnp.argmax(known)
        total = jnp.where(known.any(), self.operations[choice], -jnp.inf)
        for selection, (row, column) in zip(self.selections, _cells(action), strict=True):
            total = total + selection.log_prob(self._group(choice), row, column)
        return total

    def label_log_prob(self, action: PointAction | BboxAction) -> Float[Array, ""]:
        """Compute the log-probability of an expert's action, without the cells if its operation ignores them.

        Finite for invalid actions (negative fields), so that they can be masked afterward.
        """
        known = jnp.asarray(self.ids) == action.operation
        operation = jnp.sum(jnp.where(known, self.operations, 0.0))
        ignores_cells = jnp.any(action.operation == jnp.asarray(_CELLS_IGNORED))
        clipped = jax.tree.map(lambda field: jnp.maximum(field, 0), action)
        return jnp.where(ignores_cells, operation, self.log_prob(clipped))

    def entropy(self) -> Float[Array, ""]:
        """Compute the entropy of the operation, plus the expected entropy of the selected cells."""
        within = sum((selection.entropy() for selection in self.selections), jnp.zeros(len(set(self.groups))))
        probs = jnp.exp(self.operations)
        within = within[np.asarray(self.groups)]
        return entropy(self.operations) + jnp.sum(jnp.where(probs > 0, probs * within, 0.0))

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


def _selection_distribution(
    ids: tuple[int, ...], logits: SelectionLogits, inside: Bool[Array, "rows columns"]
) -> _SelectionDistribution:
    """Normalize logits over the selectable cells.

    Args:
        ids: One operation of each group.
        logits: Logits by group.
        inside: Mask of the working grid.
    """
    if isinstance(logits, CellLogits):
        selectable = selectable_cells(ids, inside.reshape(-1))
        cells = masked_log_softmax(logits.cells.reshape(selectable.shape), selectable)
        return _SelectionDistribution((cells,), inside.shape[1])
    # A grid is a rectangle in the corner of the canvas, so rows and columns determine its cells.
    rows = masked_log_softmax(logits.rows, selectable_cells(ids, inside.any(axis=1)))
    columns = masked_log_softmax(logits.columns, selectable_cells(ids, inside.any(axis=0)))
    return _SelectionDistribution((rows, columns), inside.shape[1])


def category_groups(ids: tuple[int, ...]) -> tuple[int, ...]:
    """Assign operations to groups by category. Resize is a separate group, because it can select cells
    outside the grid."""
    kinds = ["resize" if i == Operation.RESIZE else OPERATIONS[i].category for i in ids]
    order = list(dict.fromkeys(kinds))
    return tuple(order.index(kind) for kind in kinds)


def selectable_cells(
    ids: tuple[int, ...], inside: Bool[Array, " selections"]
) -> Bool[Array, "operations selections"]:
    """Return the cells, rows or columns that each operation may select: those of the grid, and all for
    Resize."""
    return inside | (np.asarray(ids) == Operation.RESIZE)[:, None]


def joint_operation_logits(
    cells: CellLogits, ids: tuple[int, ...], inside: Bool[Array, "rows columns"]
) -> Float[Array, " operations"]:
    """Compute the log-sum-exp of the logits of the cells that each operation may select.

    Used as logits of the operations, it turns the choice of an operation and then a cell into a choice among
    pairs of both.
    """
    # A large number instead of infinity, whose gradient would be NaN.
    selectable = selectable_cells(ids, inside.reshape(-1))
    return jax.nn.logsumexp(jnp.where(selectable, cells.cells.reshape(selectable.shape), -1e30), axis=1)
