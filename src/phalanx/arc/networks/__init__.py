"""Policy networks for ARC."""

from typing import Any, Literal

from pydantic import Field

from phalanx.arc.action_distribution import SelectionHead
from phalanx.arc.config import ArcConfig
from phalanx.config import Config
from phalanx.core.environment import Key


class ArcNetworkConfig(Config):
    """Architecture and size of an ARC policy network."""

    kind: Literal["color_equivariant", "conv", "transformer"] = "conv"
    """Architecture: convolutions (`conv`), convolutions whose weights are shared by all colors
    (`color_equivariant`), or self-attention between patches (`transformer`). `color_equivariant` needs the
    least data."""
    hidden_dim: int = Field(default=32, ge=4)
    """Number of features per cell or patch."""
    num_layers: int = Field(default=3, ge=1)
    """Number of residual blocks."""
    num_heads: int = Field(default=4, ge=1)
    """Number of attention heads, which must divide `hidden_dim`. Used by `transformer` only."""
    patch_size: int = Field(default=1, ge=1, le=10)
    """Side of the square patches into which grids are divided, in cells, 1 to 10. Use 1 for small grids, and
    3 to 5 for grids of 30x30. `color_equivariant` requires 1."""
    color_encoding: Literal["embedding", "bits"] = "embedding"
    """How colors are encoded in the network's input. `embedding` learns one vector per color. `bits` learns
    one vector per bit of the color's number (0 to 9), so that the input layer has 5 instead of 11 inputs per
    cell. Used by `conv` and `transformer` only."""
    selection_head: SelectionHead = "cells"
    """Output layer that computes the logits for choosing the selected cells: the point, or each of the two
    corners of the box (see `action.selection_format`). For each operation, `cells` computes one logit per
    cell, and `axes` computes one logit per row and one per column, which is faster on large canvases.
    `category_axes` is like `axes`, but the operations in a category (fill, move, ...) share their logits.
    `color_equivariant` requires `cells`."""


# Imported after the config is defined, because these modules import it.
from phalanx.arc.networks.color_equivariant import ColorEquivariantNetwork  # noqa: E402
from phalanx.arc.networks.conv import ArcConvNetwork  # noqa: E402
from phalanx.arc.networks.stem_and_heads import AbstractArcNetwork as AbstractArcNetwork  # noqa: E402
from phalanx.arc.networks.transformer import ArcTransformer  # noqa: E402


def create_network(config: ArcNetworkConfig, arc: ArcConfig, key: Key) -> AbstractArcNetwork:
    """Create a policy network for the observations and actions of an environment.

    Args:
        config: Architecture and size of the network.
        arc: Settings of the environment.
        key: Random key for the initial parameters.
    """
    if arc.action.selection_format == "mask":
        raise ValueError(
            "policies select points or boxes: set action.selection_format to point or bbox, got 'mask'"
        )
    if not arc.observation.working_grid:
        raise ValueError("a policy must see the working grid: set observation.working_grid=true")
    architectures: dict[str, Any] = {
        "color_equivariant": ColorEquivariantNetwork,
        "conv": ArcConvNetwork,
        "transformer": ArcTransformer,
    }
    return architectures[config.kind](config, arc, key=key)
