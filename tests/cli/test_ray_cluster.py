"""Sweeps and token counts on a local Ray cluster."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.ray_cluster import VARIABLES, running

pytestmark = pytest.mark.slow

pytest.importorskip("ray")
DESCENT = Path(__file__).parents[1] / "helpers" / "descent.py"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(tmp_path_factory.mktemp("ray") / "log", num_cpus=2) as address:
        yield address


def test_tpe_trials_run_on_the_cluster(address: str, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    out = tmp_path / "sweep"
    command = [sys.executable, "-m", "phalanx", "sweep", str(DESCENT), "rate=uniform(0.2,0.8)"]
    options = [
        "--sampler",
        "tpe",
        "--trials",
        "2",
        "--ray-address",
        address,
        "--metric",
        "distance",
        "--goal",
        "min",
    ]
    done = subprocess.run(
        [*command, "num_updates=2", "--out", out, *options],
        env=VARIABLES,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"2 of 2 trials finished; best {out}/trial_00" in done.stdout
    assert (out / "trial_001" / "evaluations.jsonl").exists()


def test_a_signal_saves_and_stops_trials_on_the_cluster(address: str, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    command = [sys.executable, "-m", "phalanx", "sweep", str(DESCENT), "num_updates=1000000"]
    child = subprocess.Popen(
        [*command, "--out", out, "--ray-address", address],
        env=VARIABLES,
        stdout=subprocess.PIPE,
        text=True,
    )
    metrics, began = out / "trial_000" / "batch_metrics.jsonl", time.monotonic()
    while not metrics.exists() and time.monotonic() < began + 180:
        time.sleep(0.1)
    child.send_signal(signal.SIGTERM)
    printed, _ = child.communicate(timeout=120)
    assert child.returncode == 143, printed
    assert "trial_000: exit code 143" in printed
    assert "Interrupted after" in (out / "trial_000.log").read_text()


def test_ray_cluster_builds_the_same_cache_and_keeps_running(
    address: str, phalanx: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"id": f"s{size}", "text": "x" * size} for size in range(1, 51)]
    Path("train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build = ("data", "lengths", "build", "--dataset", "train.jsonl")
    assert phalanx(*build, "--output", "without.jsonl").code == 0
    options = ["-o", "with.jsonl", "--ray", "--ray-address", address]
    printed = subprocess.run(
        [sys.executable, "-m", "phalanx", *build, *options],
        env=VARIABLES,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    with socket.create_connection(address.split(":"), timeout=10):
        pass
    assert printed.returncode == 0, printed.stderr
    assert printed.stdout == "with.jsonl: 50 samples, 1,325 tokens (bytes)\n"
    assert Path("with.jsonl").read_bytes() == Path("without.jsonl").read_bytes()


def test_an_unreachable_cluster_is_reported_in_one_line(tmp_path: Path, phalanx: Callable[..., Any]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ("rate=0.5", "--out", tmp_path / "sweep", "--ray-address", f"127.0.0.1:{port}")
    done = phalanx("sweep", str(DESCENT), *options)
    assert (done.code, f"cannot reach the Ray cluster at 127.0.0.1:{port}" in done.err) == (2, True)
