"""Panels that environments add to the report.

An environment registers the name of a file in the run folder, and the import path (`package.module:name`) of
a function that reads this file. The function must not import JAX. It validates the file, which may be
untrusted, and returns the data and the scripts of the panel. Scripts are part of the package and are never
read from a run folder.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from phalanx.extras import MissingExtraError
from phalanx.registry import import_object, registered_environments


@dataclasses.dataclass(frozen=True)
class ReportPanel:
    """Data and scripts of a panel in the report page."""

    name: str
    """Key in the `DATA.panels` object under which the page's scripts find the panel's data."""
    data: dict[str, Any]
    """Validated data as JSON values."""
    scripts: tuple[Path, ...]
    """JavaScript files of the package, in loading order. The last file must append a function to the
    `panelSections` array. This function adds the panel's section to the page."""


PanelReader = Callable[[Path, list[str]], ReportPanel | None]
"""Function that reads a panel from a run folder.

Its arguments are the run folder, and a list to which it appends descriptions of files that it cannot use. It
returns None if there is no panel to show.
"""


def load_panels(folder: Path, notes: list[str]) -> list[ReportPanel]:
    """Read all registered panels whose file exists in a run folder.

    Args:
        folder: Run folder.
        notes: List to which descriptions of unusable files are appended.
    """
    found = []
    readers = dict(spec.report_panel for spec in registered_environments() if spec.report_panel is not None)
    for file, address in readers.items():
        if os.path.lexists(folder / file):
            try:
                reader: PanelReader = import_object(address)
            except MissingExtraError as error:
                notes.append(f"{file} was skipped: {error}.")
                continue
            panel = reader(folder, notes)
            if panel is not None:
                found.append(panel)
    return found


def panel_scripts(panels: Sequence[ReportPanel]) -> str:
    """Concatenate the scripts of the panels. A script that several panels use is included once."""
    scripts = dict.fromkeys(script for panel in panels for script in panel.scripts)
    return "\n".join(script.read_text(encoding="utf-8") for script in scripts)
