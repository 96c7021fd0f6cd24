"""Published knowledge graphs that benchmarks use."""

import os
import pathlib

from benchmarks.peers import REPOSITORY
from phalanx.kg import KnowledgeBase

DATA = pathlib.Path(os.environ.get("PHALANX_BENCHMARK_DATA", REPOSITORY / "data"))
"""Folder that `phalanx kg download NAME` saves datasets in."""


def load_knowledge_graph(name: str) -> KnowledgeBase:
    """Load a dataset from the folder `data`, or from the one that `PHALANX_BENCHMARK_DATA` names.

    Args:
        name: Folder of the dataset, such as `kg-standard/wn18rr`.

    Raises:
        FileNotFoundError: The dataset was not downloaded.
    """
    folder = DATA / name
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} does not exist: run `phalanx kg download`, or set PHALANX_BENCHMARK_DATA"
        )
    return KnowledgeBase.load(folder, on_leak="allow")


def arc_data_dir() -> pathlib.Path | None:
    """Return the folder with the ARC datasets, or None for the one that `phalanx arc download` uses."""
    return DATA / "arc" if "PHALANX_BENCHMARK_DATA" in os.environ else None
