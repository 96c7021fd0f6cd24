"""A policy of color planes as data that needs no Python: its weights, its rules, and puzzles to try it on.

The report of a run plays it in the page: what it reads of the file is in `phalanx.arc.browser.report_panel`.
"""

import base64
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Array

from phalanx.arc.config import ArcConfig
from phalanx.arc.evaluation_mode import PAIR_SWITCHES
from phalanx.arc.networks.arc import ColorEquivariantNetwork
from phalanx.arc.operations import operation_name
from phalanx.arc.rendering.palette import ARC
from phalanx.arc.tasks import ArcTask, GridPair
from phalanx.io.atomic import atomic_write

FILE_NAME = "browser_policy.json"
"""The file in a run's folder."""
MOST_PARAMETERS = 150_000
"""Weights of a policy in the file; more would make a page too large to pass on."""
MOST_PUZZLES = 200
MOST_CELLS = 40_000
"""Cells of all puzzles together."""


def export_agent(network: Any, config: ArcConfig, tasks: Iterable[ArcTask], folder: Path) -> None:
    """Write a policy, and test pairs of some tasks, into a run's folder.

    Other networks than that of color planes are passed over. One of color planes that cannot be described
    leaves a file that says why.
    """
    if not isinstance(network, ColorEquivariantNetwork):
        return
    why_not = _obstacle(network, config)
    told = {"format": 1, "why_not": why_not} if why_not else agent_record(network, config, tasks)
    with atomic_write(folder / FILE_NAME, "w") as file:
        json.dump(told, file, separators=(",", ":"))


def agent_record(
    network: ColorEquivariantNetwork, config: ArcConfig, tasks: Iterable[ArcTask]
) -> dict[str, Any]:
    """What the file says of a policy; `docs/file_formats.md` lists it."""
    see = config.observation
    seen = {"working": True, "input": see.input_grid, "clipboard": see.clipboard, "selected": see.selected}
    weights = np.concatenate([np.asarray(leaf, "<f4").ravel() for leaf in _arrays(network)])
    return {
        "format": 1,
        "canvas": list(config.grid_shape),
        "max_steps": config.episode.max_episode_steps,
        "selection": config.action.selection_format,
        "operations": [{"id": number, "name": operation_name(number)} for number in network.ids],
        "sees": [name for name, there in seen.items() if there],
        "palette": list(ARC.colors),
        "network": {
            "width": network.colors.shape[1],
            "depth": len(network.blocks),
            "weights": base64.b64encode(weights.tobytes()).decode(),
        },
        "puzzles": _puzzles(tasks),
    }


def _obstacle(network: ColorEquivariantNetwork, config: ArcConfig) -> str | None:
    """Why a policy cannot be played without Python, if so."""
    if switches := sorted(set(config.action.operations) & set(PAIR_SWITCHES)):
        return f"its operations go to other pairs ({operation_name(switches[0])}), and a page shows one"
    if config.observation.target_grid:
        return "it was trained to see the output, which nobody has who asks for it"
    if config.episode.initial_grid != "input":
        return f"its episodes begin with another grid than the input ({config.episode.initial_grid})"
    count = sum(leaf.size for leaf in _arrays(network))
    if count > MOST_PARAMETERS:
        return f"its {count:,} weights would make the page too large; {MOST_PARAMETERS:,} are the most"
    return None


def _arrays(network: ColorEquivariantNetwork) -> Iterator[Array]:
    """The arrays that choose actions, in the file's order; the value's are left out."""
    yield from (network.stem.weight, network.stem.bias, network.colors)
    for block in network.blocks:
        yield block.convolution.weight
        yield from (block.across.weight, block.across.bias, block.context.weight, block.context.bias)
    heads = [network.paint, *([network.others] if network.others else []), network.operations]
    for head in heads:
        yield from (head.weight, head.bias)


def _puzzles(tasks: Iterable[ArcTask]) -> list[dict[str, Any]]:
    """The first test pairs, as many as there is room for."""
    found: list[dict[str, Any]] = []
    cells = 0
    for task in tasks:
        for number, pair in enumerate(task.tests):
            cells += pair.input.size + (0 if pair.output is None else pair.output.size)
            if cells > MOST_CELLS or len(found) == MOST_PUZZLES:
                return found
            name = task.id if len(task.tests) == 1 else f"{task.id}, test {number + 1}"
            found.append({"task": name, "family": task.family, **_rows(pair)})
    return found


def _rows(pair: GridPair) -> dict[str, list[str] | None]:
    """Input and output as rows of digits."""
    grids = {"input": pair.input, "output": pair.output}
    return {
        name: None if grid is None else ["".join(map(str, row)) for row in np.asarray(grid).tolist()]
        for name, grid in grids.items()
    }
