"""`phalanx doctor` of a run and of what is no file of ours; each sealed format is in `test_damage`."""

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


def test_a_whole_run_is_said_to_be_whole_part_by_part(run: Path) -> None:
    code, lines = doctor(run)
    assert code == 0
    assert lines[0] == f"{run}: a run of algorithm descent, finished, 6 updates, whole"
    assert all(line.endswith(", whole") for line in lines)
    assert any(line.startswith(f"{run}/checkpoints/6: a checkpoint of ") for line in lines)
    assert any(line.startswith(f"{run}/batch_metrics.jsonl: lines of JSON of 6 lines") for line in lines)


def test_what_is_damaged_is_named_and_the_exit_code_is_one(run: Path) -> None:
    file = run / "checkpoints/6/metadata/metadata"
    before = file.read_bytes()
    file.write_bytes(before[:-3])
    code, lines = doctor(run, run / "checkpoints/6")
    file.write_bytes(before)
    assert code == 1
    ill = [line for line in lines if "NOT WHOLE" in line]
    assert len(ill) == 2 and all("metadata/metadata is corrupt" in line for line in ill)


def test_a_pipe_is_no_part_of_a_run_and_is_not_waited_for(run: Path) -> None:
    lines = run / "batch_metrics.jsonl"
    lines.rename(run / "kept")
    os.mkfifo(lines)
    code, said = doctor(run)
    with pytest.raises(ValueError, match=r"batch_metrics\.jsonl is not a regular file"):
        list(read_records(lines))
    (run / "kept").replace(lines)
    assert code == 1
    assert f"{lines}: lines of JSON, NOT WHOLE: it is neither a file nor a folder" in said


def test_a_folder_that_holds_nothing_of_ours_is_not_whole(tmp_path: Path) -> None:
    code, lines = doctor(tmp_path)
    assert (code, lines) == (1, [f"{tmp_path}: ARC tasks, NOT WHOLE: {tmp_path}: no JSON files in it"])


def test_what_is_not_there_and_what_is_of_no_known_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").write_bytes(b"\xff\xd8")
    with pytest.raises(UserError, match="nowhere: no such file or folder"):
        doctor(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"cat\.jpg: no kind of file"):
        doctor(tmp_path / "cat.jpg")


def test_plain_files_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("arc:\n  max_steps: 3\n")
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a"')
    (tmp_path / "a.json").write_text("[" * 100_000)
    code, lines = doctor(tmp_path / "a.yaml", tmp_path / "a.jsonl", tmp_path / "a.json")
    assert code == 1
    assert lines[0].endswith("settings of 1 section, whole")
    assert "a.jsonl:2: the last line is cut off" in lines[1]
    assert "not valid JSON" in lines[2]
