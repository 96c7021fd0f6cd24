"""Distributions over ARC actions.

An action consists of an operation and a point or box. The distribution of the point or box depends on the
operation. Given the operation, the two corners of a box are independent, so their log-probabilities and
entropies add up.
"""

import itertools
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from phalanx.arc.actions import BboxAction, PointAction
from phalanx.arc.observation import ArcObservation, Observation
from phalanx.arc.operations import CELLS_IGNORED, OPERATIONS, Operation
from phalanx.core.environment import Key
from phalanx.nn.distributions import entropy, joint_top_k, masked_log_softmax, sample_by_uniform

SelectionHead = Literal["cells", "axes", "category_axes"]
"""Type of output layer with which a network selects cells; see `ArcNetworkConfig.selection_head`."""


class CellLogits(eqx.Module):
    """Logits over the cells of the canvas, from which one selected cell (a point, or a corner of a box) is
    sampled. The leading axis has one entry per group of operations. The operations in a group share their
    logits; see `ArcLogits.groups`."""

    cells: Float[Array, "groups rows columns"]


class AxisLogits(eqx.Module):
    """Logits over the rows and over the columns of the canvas, from which one selected cell is sampled. On
    large canvases, they are much faster to compute than `CellLogits`, but the row and the column are sampled
    independently. The leading axis has one entry per group of operations. The operations in a group share
    their logits; see `ArcLogits.groups`."""

    rows: Float[Array, "groups rows"]
    columns: Float[Array, "groups columns"]


SelectionLogits = CellLogits | AxisLogits
"""Logits for choosing one cell: one logit per cell, or separate logits for the rows and the columns."""


class ArcLogits(eqx.Module):
    """Output of a policy network for one observation: logits over operations and, for each operation, logits
    over the cells to select."""

    operations: Float[Array, " operations"]
    """One logit per allowed operation."""
    selections: tuple[SelectionLogits, ...]
    """Logits over the cells to select: one entry if actions select a point, or two entries if they select a
    box, one for each of two opposite corners."""
    groups: tuple[int, ...] | None = eqx.field(static=True, default=None)
    """For each operation, the index of its logits along the `groups` axis of `selections`. Operations with
    the same index share their logits. If None, the i-th operation uses index i."""


class _SelectionDistribution(eqx.Module):
    """Distributions over the position of one cell (the point, or one corner of the box): one distribution for
    each group of operations that share their selection logits."""

    axes: tuple[Float[Array, "groups _"], ...]
    """Log-probabilities of the cells of the canvas: either one array over all cells, or one array over the
    rows and one over the columns."""
    columns: int = eqx.field(static=True)
    """Width of the canvas."""

    def entropy(self) -> Float[Array, " groups"]:
        return sum((entropy(axis) for axis in self.axes), jnp.zeros(self.axes[0].shape[0]))

    def sample(self, uniforms: Float[Array, " axes"], group: Int32[Array, ""]) -> tuple[Array, Array]:
        pairs = zip(uniforms, self.axes, strict=True)
        return self._cell([sample_by_uniform(uniform, axis[group]) for uniform, axis in pairs])

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
    """Distribution over ARC actions: a distribution over operations, and for each operation a distribution
    over points or boxes.

    Illegal operations have probability zero. Cells outside the working grid also have probability zero,
    except for the Resize operation, which may select any cell of the canvas.
    """

    operations: Float[Array, " operations"]
    """Log-probabilities of the operations in `ids`, in the same order."""
    selections: tuple[_SelectionDistribution, ...]
    """Distributions of the selected cells: one entry if actions select a point, two entries (one per corner)
    if they select a box."""
    ids: tuple[int, ...] = eqx.field(static=True)
    """Ids of the operations that the config allows."""
    groups: tuple[int, ...] = eqx.field(static=True)
    """For each operation in `ids`, the index of its distribution along the `groups` axis of `selections`."""

    @classmethod
    def from_logits(
        cls, logits: ArcLogits, ids: tuple[int, ...], observation: Observation
    ) -> "ArcDistribution":
        """Create the action distribution for one observation.

        Args:
            logits: Output of a network. Its operation logits are in the order of `ids`.
            ids: Ids of the operations that the environment's config allows.
            observation: Provides the size of the working grid and the mask of legal operations. If it does
                not contain the mask, all operations in `ids` are legal.
        """
        seen = observation if isinstance(observation, ArcObservation) else ArcObservation(observation)
        legal = None if seen.legal_operations is None else seen.legal_operations[jnp.asarray(ids)]
        groups = logits.groups or tuple(range(len(ids)))
        group_ids = dict(zip(groups, ids, strict=True))
        one_per_group = tuple(group_ids[group] for group in range(len(group_ids)))
        inside = seen.working_grid >= 0
        selections = tuple(_selection_distribution(one_per_group, part, inside) for part in logits.selections)
        return cls(masked_log_softmax(logits.operations, legal), selections, ids, groups)

    def sample(self, key: Key) -> PointAction | BboxAction:
        # A single call to the generator, because each call takes a second to compile.
        axes = len(self.selections[0].axes)
        uniforms = jax.random.uniform(key, (1 + len(self.selections) * axes,))
        choice = sample_by_uniform(uniforms[0], self.operations)
        parts = zip(self.selections, uniforms[1:].reshape(-1, axes), strict=True)
        return self._action(choice, [part.sample(numbers, self._group(choice)) for part, numbers in parts])

    def mode(self) -> PointAction | BboxAction:
        """Return the most probable operation, and the most probable cells given this operation. This is not
        always the most probable action, because another operation may have more probable cells."""
        choice = jnp.argmax(self.operations).astype(jnp.int32)
        return self._action(choice, [selection.mode(self._group(choice)) for selection in self.selections])

    def top_k(self, k: int) -> tuple[PointAction | BboxAction, Float[Array, " k"]]:
        """Return the `k` most probable actions and their log-probabilities, most probable first.

        If an operation ignores the selected cells, all of its actions count as one, with the most probable
        cells and the log-probability of the operation.
        """
        axes = [axis for selection in self.selections for axis in selection.axes]
        cells, within = jax.vmap(lambda *axes: joint_top_k(axes, k))(*axes)  # for each group
        ignores_cells = np.isin(self.ids, CELLS_IGNORED)[:, None]
        first = jnp.where(jnp.arange(within.shape[1]) == 0, 0.0, -jnp.inf)
        within = jnp.where(ignores_cells, first, within[np.asarray(self.groups)])
        totals = (self.operations[:, None] + within).ravel()
        log_probs, index = jax.lax.top_k(totals, min(k, totals.shape[0]))
        choice, row = index // within.shape[1], index % within.shape[1]
        chosen = iter([axis[self._group(choice), row] for axis in cells])
        parts = [part._cell([next(chosen) for _ in part.axes]) for part in self.selections]
        return self._action(choice, parts), log_probs

    def log_prob(self, action: PointAction | BboxAction) -> Float[Array, ""]:
        """Compute the log-probability of an action. It is -inf if the action's operation is not in `ids`. The
        selected cells must be on the canvas."""
        known = jnp.asarray(self.ids) == action.operation
        choice = jnp.argmax(known)
        total = jnp.where(known.any(), self.operations[choice], -jnp.inf)
        _, *cells = jax.tree.leaves(action)
        for selection, row, column in zip(self.selections, cells[::2], cells[1::2], strict=True):
            total = total + selection.log_prob(self._group(choice), row, column)
        return total

    def label_log_prob(self, action: PointAction | BboxAction) -> Float[Array, ""]:
        """Compute the log-probability of an expert's action. If the operation ignores the selected cells,
        this is the log-probability of the operation alone.

        Padding actions (with negative fields) are accepted, but their log-probabilities are meaningless and
        must be masked out.
        """
        known = jnp.asarray(self.ids) == action.operation
        operation = jnp.sum(jnp.where(known, self.operations, 0.0))
        ignores_cells = jnp.any(action.operation == jnp.asarray(CELLS_IGNORED))
        clipped = jax.tree.map(lambda field: jnp.maximum(field, 0), action)
        return jnp.where(ignores_cells, operation, self.log_prob(clipped))

    def entropy(self) -> Float[Array, ""]:
        """Compute the entropy of the distribution: the entropy of the operation plus the expected entropy of
        the selected cells."""
        within = sum((selection.entropy() for selection in self.selections), jnp.zeros(len(set(self.groups))))
        probs = jnp.exp(self.operations)
        within = within[np.asarray(self.groups)]
        return entropy(self.operations) + jnp.sum(jnp.where(probs > 0, probs * within, 0.0))

    def _group(self, choice: Int32[Array, "*choices"]) -> Int32[Array, "*choices"]:
        return jnp.asarray(self.groups, jnp.int32)[choice]

    def _action(
        self, choice: Int32[Array, "*choices"], cells: list[tuple[Array, Array]]
    ) -> PointAction | BboxAction:
        operation = jnp.asarray(self.ids, jnp.int32)[choice]
        create = PointAction if len(cells) == 1 else BboxAction
        return create(operation, *itertools.chain(*cells))


def _selection_distribution(
    ids: tuple[int, ...], logits: SelectionLogits, inside: Bool[Array, "rows columns"]
) -> _SelectionDistribution:
    """Normalize logits over the cells that may be selected.

    Args:
        ids: For each group of operations, the id of one operation in the group.
        logits: Selection logits of each group.
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
    """Group operations by category, and return the group index of each operation. The resize operation is in
    a group of its own, because it can select cells outside the working grid."""
    kinds = ["resize" if i == Operation.RESIZE else OPERATIONS[i].category for i in ids]
    order = list(dict.fromkeys(kinds))
    return tuple(order.index(kind) for kind in kinds)


def selectable_cells(
    ids: tuple[int, ...], inside: Bool[Array, " selections"]
) -> Bool[Array, "operations selections"]:
    """Return a mask of the cells, rows or columns that each operation may select.

    Args:
        ids: Ids of the operations.
        inside: Mask of the cells, rows or columns that belong to the working grid. Only Resize may also
            select cells, rows or columns outside it.
    """
    return inside | (np.asarray(ids) == Operation.RESIZE)[:, None]


def joint_operation_logits(
    cells: CellLogits, ids: tuple[int, ...], inside: Bool[Array, "rows columns"]
) -> Float[Array, " operations"]:
    """Compute, for each operation, the log-sum-exp of the logits of the cells that it may select.

    If the results are used as the operation logits, the distribution over (operation, cell) pairs is a single
    softmax over all cell logits.
    """
    # A large number instead of infinity, whose gradient would be NaN.
    selectable = selectable_cells(ids, inside.reshape(-1))
    return jax.nn.logsumexp(jnp.where(selectable, cells.cells.reshape(selectable.shape), -1e30), axis=1)
