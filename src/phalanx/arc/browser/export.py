"""Exports a color-equivariant policy as JSON for the report page. The JSON file contains the weights and
operations of the policy, and example tasks."""

import base64
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array

from phalanx.arc.browser.report_panel import FILE_NAME, OBSERVED_GRIDS
from phalanx.arc.config import ArcConfig
from phalanx.arc.networks.color_equivariant import ColorEquivariantNetwork
from phalanx.arc.operations import PAIR_SWITCHES, operation_name
from phalanx.arc.rendering.palette import ARC
from phalanx.arc.tasks import ArcTask, Grid
from phalanx.io.atomic import atomic_write

MAX_PARAMETERS = 150_000
"""Maximum number of parameters in an exported policy. It limits the size of the page."""
MAX_TEST_PAIRS = 200
"""Maximum number of exported test pairs."""
MAX_CELLS = 40_000
"""Maximum total number of cells in the exported grids."""


def export_agent(network: Any, config: ArcConfig, tasks: Iterable[ArcTask], folder: Path) -> None:
    """Export a policy and example tasks to a run folder, where the report page reads them.

    Only a `ColorEquivariantNetwork` is exported; for other networks, nothing is written. If the report page
    cannot run the network, only a file with the reason is written.

    Args:
        network: Policy network.
        config: Settings of the environment.
        tasks: Example tasks. Only the first ones are used, up to the limits `MAX_TEST_PAIRS` and `MAX_CELLS`.
        folder: Run folder.
    """
    if not isinstance(network, ColorEquivariantNetwork):
        return
    reason = _unsupported_reason(network, config)
    record = {"format": 1, "unsupported_reason": reason} if reason else agent_record(network, config, tasks)
    with atomic_write(folder / FILE_NAME, "w") as file:
        json.dump(record, file, separators=(",", ":"))


def agent_record(
    network: ColorEquivariantNetwork, config: ArcConfig, tasks: Iterable[ArcTask]
) -> dict[str, Any]:
    """Convert a policy and example tasks to a JSON record. The fields of the record are described in
    `docs/reference/file-formats.md`."""
    seen = config.observation
    is_observed = (True, seen.input_grid, seen.clipboard, seen.selected)
    weights = np.concatenate([np.asarray(leaf, "<f4").ravel() for leaf in _arrays(network)])
    return {
        "format": 1,
        "canvas": list(config.grid_shape),
        "max_steps": config.episode.max_episode_steps,
        "selection": config.action.selection_format,
        "operations": [{"id": number, "name": operation_name(number)} for number in network.ids],
        "sees": list(itertools.compress(OBSERVED_GRIDS, is_observed)),
        "palette": list(ARC.colors),
        "network": {
            "width": network.colors.shape[1],
            "depth": len(network.blocks),
            "weights": base64.b64encode(weights.tobytes()).decode(),
        },
        "puzzles": _puzzles(tasks),
    }


def _unsupported_reason(network: ColorEquivariantNetwork, config: ArcConfig) -> str | None:
    """Return the reason why the report page cannot run a policy; None if it can."""
    if switches := sorted(set(config.action.operations) & set(PAIR_SWITCHES)):
        return f"its operations include {operation_name(switches[0])}, but the page shows a single pair"
    if config.observation.target_grid:
        return "it observes the target grid, which is unknown for new inputs"
    if config.episode.initial_grid != "input":
        return f"its episodes start with another grid than the input ({config.episode.initial_grid})"
    count = sum(leaf.size for leaf in _arrays(network))
    if count > MAX_PARAMETERS:
        return f"its {count:,} weights exceed the limit of {MAX_PARAMETERS:,}, which keeps the page small"
    return None


def _arrays(network: ColorEquivariantNetwork) -> list[Array]:
    """Return the parameters of the policy without the value head. The file stores them in this order."""
    return jax.tree.leaves(eqx.tree_at(lambda n: (n.hidden, n.value), network, (None, None)))


def _puzzles(tasks: Iterable[ArcTask]) -> list[dict[str, Any]]:
    """Convert test pairs to JSON records, up to the `MAX_TEST_PAIRS` and `MAX_CELLS` limits."""
    records: list[dict[str, Any]] = []
    cells = 0
    for task in tasks:
        for number, pair in enumerate(task.tests):
            cells += pair.input.size + (0 if pair.output is None else pair.output.size)
            if cells > MAX_CELLS or len(records) == MAX_TEST_PAIRS:
                return records
            name = task.id if len(task.tests) == 1 else f"{task.id}, test {number + 1}"
            grids = {"input": _rows(pair.input), "output": _rows(pair.output)}
            records.append({"task": name, "family": task.family, **grids})
    return records


def _rows(grid: Grid | None) -> list[str] | None:
    """Convert a grid to strings of digits, one per row. Return None if the grid is None (a secret output)."""
    return None if grid is None else ["".join(map(str, row)) for row in grid.tolist()]
