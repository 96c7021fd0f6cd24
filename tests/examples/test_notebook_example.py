"""The notebook runs from top to bottom in a kernel of its own, and its cells draw what they name."""

from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebooks" / "tour.ipynb"


@pytest.mark.filterwarnings("ignore")  # Jupyter's own
def test_the_notebook_runs_and_shows_tasks_states_trajectories_and_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "clear the outputs before you commit"
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": tmp_path}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = [output["data"] for cell in cells for output in cell.outputs if "data" in output]
    pages = [data["text/html"] for data in shown if "<svg" in data.get("text/html", "")]
    assert len(pages) == 6
    assert "20 steps of 64 environments" in pages[2]
    assert "notebook: finished" in pages[3]
    assert max(len(data["text/plain"]) for data in shown) < 500
