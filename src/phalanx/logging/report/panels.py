"""Panels that environments add to the report.

An environment registers the name of a file in the run folder and the address of a function that reads it. The
function must not import JAX. It validates the file, which may be untrusted, and returns the data and the
scripts of the panel; code never comes from a run folder.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from phalanx.registry import import_object, registered_environments


@dataclasses.dataclass(frozen=True)
class Panel:
    """Data and scripts of a panel in the page."""

    name: str
    """Key of the data in the page's `DATA.panels`."""
    data: dict[str, Any]
    """Validated data; must be JSON."""
    scripts: tuple[Path, ...]
    """Packaged scripts, in order. The last one appends a function that adds a section to `panelSections`."""


PanelReader = Callable[[Path, list[str]], Panel | None]
"""Function of the run folder and a list, to which it appends notes about files that it cannot use."""


def read_panels(folder: Path, notes: list[str]) -> list[Panel]:
    """Read the panels whose file exists in a run folder."""
    found = []
    for file, address in _panel_readers().items():
        if os.path.lexists(folder / file):
            reader: PanelReader = import_object(address)
            panel = reader(folder, notes)
            if panel is not None:
                found.append(panel)
    return found


def panel_scripts(panels: Sequence[Panel]) -> str:
    """Concatenate the scripts of the panels, each once."""
    scripts = dict.fromkeys(script for panel in panels for script in panel.scripts)
    return "\n".join(script.read_text(encoding="utf-8") for script in scripts)


def _panel_readers() -> dict[str, str]:
    """Return the addresses of the registered functions by the name of their file."""
    specs = (spec.report_panel for spec in registered_environments())
    return dict(panel for panel in specs if panel is not None)
