"""`phalanx sweep --ray-address`: trials on a cluster that `ray start --head` made on this machine."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
DESCENT = Path(__file__).parents[1] / "runs" / "descent.py"


def variables() -> dict[str, str]:
    """A cluster of our own takes a token of its own, whatever is set or kept for others."""
    return os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a cluster of one machine, which ends with the tests; others on this machine are left alone."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Sockets have short names, and those of pytest's folders are long.
    folder = Path("/tmp", f"ray-{os.getpid()}")
    command = [Path(sys.executable).parent / "ray", "start", "--head", "--block", f"--port={port}"]
    options = ["--node-ip-address=127.0.0.1", "--num-cpus=2", "--object-store-memory=100000000"]
    options += ["--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={folder}"]
    log = tmp_path_factory.mktemp("ray") / "log"
    with log.open("wb") as file:
        head = subprocess.Popen([*command, *options], env=variables(), stdout=file, stderr=file)
        began = time.monotonic()
        while b"Ray runtime started" not in log.read_bytes():
            assert head.poll() is None and time.monotonic() < began + 180, log.read_text()
            time.sleep(0.2)
        yield f"127.0.0.1:{port}"
        head.send_signal(signal.SIGTERM)
        head.wait(timeout=60)
    shutil.rmtree(folder)


def test_suggested_trials_are_trained_on_the_cluster(address: str, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    out = tmp_path / "sweep"
    command = [sys.executable, "-m", "phalanx", "sweep", f"custom {DESCENT}", "rate=uniform(0.2,0.8)"]
    options = ["--optuna", "2", "--ray-address", address, "--metric", "distance", "--goal", "min"]
    done = subprocess.run(
        [*command, "num_updates=2", "--out", out, *options],
        env=variables(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"2 of 2 trials finished; the best is {out}/trial_00" in done.stdout
    assert (out / "trial_001" / "evaluations.jsonl").exists()


def test_a_stop_reaches_a_trial_on_the_cluster_and_it_saves(address: str, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    command = [sys.executable, "-m", "phalanx", "sweep", f"custom {DESCENT}", "num_updates=1000000"]
    child = subprocess.Popen(
        [*command, "--out", out, "--ray-address", address],
        env=variables(),
        stdout=subprocess.PIPE,
        text=True,
    )
    metrics, began = out / "trial_000" / "batch_metrics.jsonl", time.monotonic()
    while not metrics.exists() and time.monotonic() < began + 180:
        time.sleep(0.1)
    child.send_signal(signal.SIGTERM)
    said, _ = child.communicate(timeout=60)
    assert child.returncode == 143, said
    assert "trial_000: exit code 143" in said
    assert "Interrupted after" in (out / "trial_000.log").read_text()


def test_a_cluster_that_is_not_there_is_told_in_one_line(tmp_path: Path, phalanx: Callable[..., Any]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ("rate=0.5", "--out", tmp_path / "sweep", "--ray-address", f"127.0.0.1:{port}")
    done = phalanx("sweep", f"custom {DESCENT}", *options)
    assert (done.code, f"cannot reach the Ray cluster at 127.0.0.1:{port}" in done.err) == (2, True)
    both = phalanx("sweep", "arc", "a=1", "--out", tmp_path, "--random", "1", "--optuna", "1")
    assert (both.code, "leave one of them out" in both.err) == (2, True)
