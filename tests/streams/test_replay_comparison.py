"""The comparison of replay buffers: what it prints of Phalanx's own."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "compare_replay.py"


def test_alone_it_tells_memory_adding_and_drawing() -> None:
    command = [sys.executable, str(SCRIPT), "--alone", "--json", "--samples", "2000", "--tokens", "20"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (told,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert told["contender"] == "phalanx" and told["samples"] == 2000
    times = ("filling_make", "filling_add", "full_make", "full_add", "draw", "hard", "snapshot")
    assert all(0 < told[f"{name}_seconds"] < 1 for name in times)
    assert told["token_mb"] == round(4 * 20 * 2000 / 2**20, 1)
