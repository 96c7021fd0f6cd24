"""Everything that the documents and the examples folder show runs, as a reader would run it."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from phalanx.arc.operations import OPERATIONS
from tests.helpers.example_runs import run_example

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def python_blocks(document: Path) -> list[str]:
    return re.findall(
        r"^```python\n(.*?)^```", document.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


def test_the_batch_processing_demo_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    run_example("advanced/batch_processing_demo.py", "--batch-size", 2, "--steps", 5)
    said = capsys.readouterr().out
    assert "observations (2, 10, 10)" in said
    assert "environment 1 did 'Fill 1'" in said
    assert "the second run is the same: True" in said
    assert "11 states in batches of 8 gave 11 rewards" in said
    assert "Optimal batch size:" in said


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_code_in_a_document_runs(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of one document follow one another, so they share their names."""
    monkeypatch.chdir(tmp_path)
    if document.name == "arc.md" and find_spec("phalanx._native") is None:
        pytest.skip("its last blocks plan, which needs the compiled extension")
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, block in enumerate(python_blocks(document)):
        exec(compile(block, f"{document.name}, block {number}", "exec"), names)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_links_in_a_document_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert missing == []


def test_the_table_of_operations_in_the_documents_is_the_librarys() -> None:
    text = (ROOT / "docs" / "arc.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if re.match(r"\| \d+ \|", line)]
    assert rows == [f"| {info.id} | {info.name} | {info.category} | {info.text} |" for info in OPERATIONS]
