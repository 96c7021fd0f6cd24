"""`phalanx doctor` on run folders, single files and unknown files."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phalanx.cli.app import app
from phalanx.cli.errors import UserError
from phalanx.logging import read_records
from phalanx.training.run import train
from tests.helpers.descent import Descent, DescentConfig

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(Descent(DescentConfig()), tmp_path_factory.mktemp("runs") / "run").run_dir


def doctor(*paths: Path) -> tuple[int, list[str]]:
    outcome = CliRunner().invoke(app, ["doctor", *map(str, paths)])
    if isinstance(outcome.exception, UserError):
        raise outcome.exception
    return outcome.exit_code, outcome.output.splitlines()


def test_all_parts_of_an_intact_run_are_ok(run: Path) -> None:
    code, lines = doctor(run)
    assert code == 0
    assert lines[0] == f"{run}: OK, run: descent, finished, 6 updates"
    assert all(": OK, " in line for line in lines)
    assert any(line.startswith(f"{run}/checkpoints/6: OK, checkpoint: ") for line in lines)
    assert any(line.startswith(f"{run}/batch_metrics.jsonl: OK, JSON Lines: 6 lines") for line in lines)


def test_corrupt_files_are_reported_with_exit_code_1(run: Path) -> None:
    file = run / "checkpoints/6/metadata/metadata"
    before = file.read_bytes()
    file.write_bytes(before[:-3])
    code, lines = doctor(run, run / "checkpoints/6")
    file.write_bytes(before)
    assert code == 1
    corrupt = [line for line in lines if ": CORRUPT checkpoint: " in line]
    assert len(corrupt) == 2 and all("metadata/metadata is corrupt" in line for line in corrupt)


def test_pipes_are_reported_without_reading_them(run: Path) -> None:
    lines = run / "batch_metrics.jsonl"
    lines.rename(run / "kept")
    os.mkfifo(lines)
    code, printed = doctor(run)
    with pytest.raises(ValueError, match=r"batch_metrics\.jsonl is not a regular file"):
        list(read_records(lines))
    (run / "kept").replace(lines)
    assert code == 1
    assert f"{lines}: CORRUPT JSON Lines: it is neither a file nor a folder" in printed


def test_unknown_folder_is_checked_as_arc_tasks(tmp_path: Path) -> None:
    code, lines = doctor(tmp_path)
    assert (code, lines) == (1, [f"{tmp_path}: CORRUPT ARC tasks: {tmp_path}: no JSON files in it"])


def test_missing_and_unknown_files_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").write_bytes(b"\xff\xd8")
    with pytest.raises(UserError, match="nowhere: no such file or folder"):
        doctor(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"cat\.jpg: unknown file format"):
        doctor(tmp_path / "cat.jpg")


def test_single_files_are_checked(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("arc:\n  max_steps: 3\n")
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a"')
    (tmp_path / "a.json").write_text("[" * 100_000)
    code, lines = doctor(tmp_path / "a.yaml", tmp_path / "a.jsonl", tmp_path / "a.json")
    assert code == 1
    assert lines[0].endswith(": OK, settings: 1 section")
    assert "a.jsonl:2: the last line is incomplete" in lines[1]
    assert "not valid JSON" in lines[2]
