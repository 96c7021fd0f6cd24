"""Network that directly predicts output grids for the tasks on which it was trained."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32
from pydantic import Field

from phalanx.arc.config import MAX_GRID_SIDE
from phalanx.arc.networks import transduction_features as features
from phalanx.arc.networks.transduction_features import Grid
from phalanx.arc.operations import NUM_COLORS
from phalanx.config import Config
from phalanx.core.environment import Key
from phalanx.nn.layers import Conv3x3, Dense

_FAR = 10.0
"""Cells outside the grid have the value `-_FAR` when maxima are computed, so that they are ignored."""
_RANKS = NUM_COLORS + 1
"""Number of possible ranks of a cell's color by frequency, including one for cells outside the grid."""
_NUMBERS = 2 * NUM_COLORS + 2
"""Length of the vector that `histogram_of` returns."""


class TransductionNetworkConfig(Config):
    """Size of a `TransductionNetwork`."""

    hidden_dim: int = Field(default=48, ge=4)
    """Number of features per cell."""
    num_layers: int = Field(default=4, ge=1)
    """Number of residual blocks."""
    task_embedding_dim: int = Field(default=48, ge=1)
    """Dimension of the learned embedding of each task."""


class _Block(eqx.Module):
    """Residual block. The output of a 3x3 convolution is added to projections of features that are max-pooled
    over each row, each column and the entire grid. The sum is scaled and shifted depending on the task
    (FiLM)."""

    convolution: Conv3x3
    along: Dense
    down: Dense
    anywhere: Dense
    film: Dense
    out: Dense

    def __init__(self, config: TransductionNetworkConfig, *, key: Key) -> None:
        keys = jax.random.split(key, 6)
        width = config.hidden_dim
        self.convolution = Conv3x3(width, width, key=keys[0])
        self.along, self.down, self.anywhere = (
            Dense(width, width, key=k, scale=0.5) for k in jax.random.split(keys[1], 3)
        )
        self.film = Dense(config.task_embedding_dim, 2 * width, key=keys[2], scale=0.3)
        self.out = Dense(width, width, key=keys[3], scale=0.5)

    def __call__(
        self, cells: Float[Array, "rows columns width"], inside: Array, task: Float[Array, " embedding"]
    ) -> Float[Array, "rows columns width"]:
        masked = jnp.where(inside[..., None], cells, -_FAR)
        along, down = jnp.max(masked, axis=1), jnp.max(masked, axis=0)
        context = self.anywhere(jnp.max(along, axis=0))
        near = self.convolution(cells) + self.along(along)[:, None] + self.down(down) + context
        scale, shift = jnp.split(self.film(task), 2)
        return cells + self.out(jax.nn.relu(near * (1 + scale) + shift))


class TransductionNetwork(eqx.Module):
    """Predicts the size and the colors of the output grid, given the input grid and the index of the task.

    A color is encoded by its number and by its rank, which is its position when colors are sorted by their
    frequency in the input. The network can copy the color of an output cell from any of several views
    (transformed copies) of the input; see `views_of`. Because of ranks and copying, most of what the network
    learns does not depend on particular colors.
    """

    tasks: Float[Array, "tasks embedding"]
    """Embedding of each task."""
    copies: Float[Array, "tasks views"]
    """For each task and view, a learned bias that is added to the logit for copying the color from this
    view."""
    sizes: Float[Array, "tasks 2 sizes"]
    """For each task, learned biases that are added to the logits of the candidates for the output's height
    (row 0) and width (row 1); see `sizes_of`."""
    heads: Float[Array, "tasks width outputs"]
    """For each task, weights that are added to the shared weights of `head`."""
    stem: Dense
    stem_film: Dense
    blocks: _Block
    """All blocks, with their parameters stacked along a leading axis."""
    head: Dense
    size_hidden: Dense
    size_out: Dense

    def __init__(self, config: TransductionNetworkConfig, num_tasks: int, *, key: Key) -> None:
        keys = jax.random.split(key, 6 + config.num_layers)
        seen = features.NUM_VIEWS * (_RANKS + 1) + NUM_COLORS + features.NUM_FLAGS
        self.tasks = jax.random.normal(keys[0], (num_tasks, config.task_embedding_dim))
        self.copies = jnp.zeros((num_tasks, features.NUM_VIEWS)).at[:, 0].set(2.0)
        self.sizes = jnp.zeros((num_tasks, 2, features.NUM_SIZES)).at[:, :, 0].set(2.0)
        self.heads = jnp.zeros((num_tasks, config.hidden_dim, features.NUM_VIEWS + 2 * NUM_COLORS))
        self.stem = Dense(seen, config.hidden_dim, key=keys[1], scale=2.0)
        self.stem_film = Dense(config.task_embedding_dim, 2 * config.hidden_dim, key=keys[2], scale=0.3)
        self.head = Dense(config.hidden_dim, features.NUM_VIEWS + 2 * NUM_COLORS, key=keys[3], scale=0.1)
        self.size_hidden = Dense(config.task_embedding_dim + _NUMBERS, 2 * config.hidden_dim, key=keys[4])
        self.size_out = Dense(2 * config.hidden_dim, 2 * features.NUM_SIZES, key=keys[5], scale=0.1)
        blocks = [_Block(config, key=k) for k in keys[6:]]
        self.blocks = jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks)

    def size_probs(self, grid: Grid, task: Int32[Array, ""]) -> Float[Array, "2 sides"]:
        """Compute the probability of each possible output size. Entry n of the first row is the probability
        that the height is n, and entry n of the second row is the probability that the width is n, for n from
        0 to 30.

        Args:
            grid: Input grid, -1 outside the grid.
            task: Index of the task.
        """
        summary = features.summarize_input(grid)
        seen = jnp.concatenate([self.tasks[task], features.histogram_of(summary)])
        hidden = jax.nn.relu(self.size_hidden(seen))
        logits = self.sizes[task] + self.size_out(hidden).reshape(2, features.NUM_SIZES)
        sides = features.sizes_of(summary)
        possible = (sides >= 1) & (sides <= MAX_GRID_SIDE)
        probs = jax.nn.softmax(jnp.where(possible, logits, -1e9), axis=-1)
        values = sides[..., None] == jnp.arange(MAX_GRID_SIDE + 1)
        return jnp.sum(jnp.where(values, probs[..., None], 0.0), axis=1)

    def cell_logits(
        self, grid: Grid, task: Int32[Array, ""], rows: Array, columns: Array
    ) -> Float[Array, "rows columns colors"]:
        """Compute logits over colors for each output cell.

        Args:
            grid: Input grid, -1 outside the grid.
            task: Index of the task.
            rows: Height of the output.
            columns: Width of the output.
        """
        summary = features.summarize_input(grid)
        views = features.views_of(grid, summary, rows, columns)
        flags = features.flags_of(grid, summary)
        rank = jnp.where(views >= 0, summary.ranks[jnp.maximum(views, 0)], NUM_COLORS)
        seen = jnp.concatenate(
            [
                (rank[..., None] == jnp.arange(_RANKS)).transpose(1, 2, 0, 3).reshape(*grid.shape, -1),
                (views == views[0]).transpose(1, 2, 0),
                views[0][..., None] == jnp.arange(NUM_COLORS),
                flags.transpose(1, 2, 0),
            ],
            axis=-1,
        ).astype(jnp.float32)
        embedded = self.tasks[task]
        scale, shift = jnp.split(self.stem_film(embedded), 2)
        cells = jax.nn.relu(self.stem(seen) * (1 + scale) + shift)
        inside = _rectangle(grid.shape, rows, columns) | (grid >= 0)

        def apply_block(cells: Array, block: _Block) -> tuple[Array, None]:
            return jnp.where(inside[..., None], block(cells, inside, embedded), 0.0), None

        # A scan, because XLA merges parts of unrolled blocks and takes three times as long.
        cells, _ = jax.lax.scan(apply_block, cells, self.blocks)
        out = self.head(cells) + cells @ self.heads[task]
        ends = features.NUM_VIEWS, features.NUM_VIEWS + NUM_COLORS
        copies, by_color, by_rank = jnp.split(out, ends, axis=-1)
        copies = copies + self.copies[task]
        shown = (views[..., None] == jnp.arange(NUM_COLORS)).astype(jnp.float32)
        # Not a matrix product, because many tiny ones are slow.
        copied = jnp.sum(copies.transpose(2, 0, 1)[..., None] * shown, axis=0)
        # A product, because the gradient of a gather is slow.
        named = (summary.ranks == jnp.arange(NUM_COLORS)[:, None]).astype(jnp.float32)
        return copied + by_color + by_rank @ named


def transduction_loss(
    network: TransductionNetwork, grid: Grid, answer: Grid, task: Int32[Array, ""]
) -> tuple[Float[Array, ""], Array]:
    """Compute the loss for one pair. It is the sum of the cross-entropies of the colors of all output cells,
    divided by the square root of the number of cells, plus the cross-entropies of the output's height and
    width.

    Args:
        network: The network.
        grid: Input grid, padded with -1 to the size of the canvas.
        answer: Output grid, padded in the same way.
        task: Index of the task.

    Returns:
        The loss, and whether the predicted output is correct.
    """
    inside = answer >= 0
    rows, columns = inside.any(axis=1).sum(), inside.any(axis=0).sum()
    probs = network.size_probs(grid, task)
    size = probs[0, rows], probs[1, columns]
    logits = network.cell_logits(grid, task, rows, columns)
    losses = -jax.nn.log_softmax(logits)
    right = jnp.sum(jnp.where(answer[..., None] == jnp.arange(NUM_COLORS), losses, 0.0), axis=-1)
    count = jnp.sum(inside)
    # A compromise between a sum and a mean. In a mean, a wrong cell in a large grid has almost no weight.
    cells = jnp.sum(jnp.where(inside, right, 0.0)) / jnp.sqrt(count.astype(jnp.float32))
    sides = -jnp.log(size[0] + 1e-6) - jnp.log(size[1] + 1e-6)
    exact = jnp.all((jnp.argmax(logits, axis=-1) == answer) | ~inside)
    exact &= (jnp.argmax(probs[0]) == rows) & (jnp.argmax(probs[1]) == columns)
    return cells + sides, exact


def predict_output(network: TransductionNetwork, grid: Grid, task: Int32[Array, ""]) -> Grid:
    """Predict the output grid for an input grid. Both are padded with -1 to the size of the canvas.

    Args:
        network: The network.
        grid: Input grid.
        task: Index of the task.
    """
    rows, columns = jnp.argmax(network.size_probs(grid, task), axis=-1)
    colors = jnp.argmax(network.cell_logits(grid, task, rows, columns), axis=-1).astype(jnp.int8)
    return jnp.where(_rectangle(grid.shape, rows, columns), colors, jnp.int8(-1))


def _rectangle(shape: tuple[int, ...], rows: Array, columns: Array) -> features.Mask:
    """Return a mask of the cells in the first `rows` rows and `columns` columns of a canvas."""
    return (jnp.arange(shape[0])[:, None] < rows) & (jnp.arange(shape[1]) < columns)
