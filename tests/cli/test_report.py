"""`phalanx report`: path of the page and error messages."""

import json
from pathlib import Path

import pytest

from phalanx.logging import FileHandler, LoggingConfig
from phalanx.logging.report import write_report


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small runs, `a` and `b`."""
    monkeypatch.chdir(tmp_path)
    for name, loss in (("a", 0.5), ("b", 0.25)):
        handler = FileHandler(name, LoggingConfig())
        handler.log_aggregated_metrics({"loss": loss}, 0)
        handler.close()
        Path(name, "run.json").write_text(json.dumps({"name": name, "status": "running"}))


def test_report_is_written_to_the_run_folder(phalanx) -> None:
    result = phalanx("report", "a")
    page = Path("a/report.html").resolve()
    assert result.code == 0
    assert result.out == f"Wrote {page} (0.1 MB)\n"
    assert page.read_text().startswith("<!doctype html>")


def test_missing_parts_of_a_run_are_listed(phalanx) -> None:
    assert phalanx("report", "a").err.splitlines() == [
        "a: No evaluations yet (evaluations.jsonl).",
        "a: No sampled episodes yet (episodes.jsonl, episodes/).",
    ]


def test_comparison_is_written_to_the_first_run_folder(phalanx) -> None:
    assert phalanx("report", "a", "b").code == 0
    assert "a and b compared" in Path("a/compare-b.html").read_text()


def test_out_sets_the_path_of_the_page(phalanx) -> None:
    assert phalanx("report", "a", "b", "--out", "both.html").code == 0
    assert Path("both.html").exists() and not Path("a/compare-b.html").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["empty"], "is not a run folder: it contains none of run.json, batch_metrics.jsonl"),
        (["a", "nowhere"], "nowhere does not exist; pass a run folder"),
        (["a", "--out", "nowhere/page.html"], "the folder"),
    ],
)
def test_invalid_arguments_exit_with_one_line_and_code_2(
    phalanx, arguments: list[str], complaint: str
) -> None:
    Path("empty").mkdir()
    result = phalanx("report", *arguments)
    assert (result.code, result.out) == (2, "")
    (line,) = result.err.splitlines()
    assert line.startswith("phalanx: ") and complaint in line


def test_help_describes_runs_and_page(phalanx) -> None:
    result = phalanx("report", "--help")
    assert result.code == 0 and "RUN_DIR" in result.out and "--out" in result.out


def test_report_replaces_a_link_instead_of_writing_through_it(tmp_path):
    """A run folder may be untrusted: a link named report.html must not redirect the write."""
    target = tmp_path / "target"
    target.write_text("user data")
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text('{"name": "untrusted"}')
    (run / "report.html").symlink_to(target)
    write_report([run])
    assert target.read_text() == "user data"
    assert not (run / "report.html").is_symlink() and "untrusted" in (run / "report.html").read_text()
