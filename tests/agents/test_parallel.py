"""Two processes that train together give the losses of one process with all the environments."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from small_training import SMALL, metrics_of

from phalanx.runs.processes import connect


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(out: Path, *options: str) -> subprocess.Popen:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "phalanx",
            "train",
            "arc",
            *SMALL,
            "ppo.num_updates=3",
            "--out",
            str(out),
            *options,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    port = free_port()
    shared = ("--coordinator", f"127.0.0.1:{port}", "--num-processes", "2")
    children = [start(tmp_path / "two", *shared, "--process-id", str(number)) for number in (0, 1)]
    said = [child.communicate(timeout=240)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0], said
    alone = start(tmp_path / "one")
    said, _ = alone.communicate(timeout=240)
    assert alone.returncode == 0, said
    two, one = metrics_of(tmp_path / "two"), metrics_of(tmp_path / "one")
    assert sorted(two) == sorted(one) == [1, 2, 3]
    for update, metrics in one.items():
        assert two[update].keys() == metrics.keys()
        for name, value in metrics.items():
            assert two[update][name] == pytest.approx(value, rel=2e-3, abs=2e-5), (update, name)
    assert json.loads((tmp_path / "two" / "run.json").read_text())["status"] == "finished"


def test_a_process_must_be_one_of_them() -> None:
    with pytest.raises(ValueError, match="between 0 and 1, got 2"):
        connect("127.0.0.1:1", 2, 2)
