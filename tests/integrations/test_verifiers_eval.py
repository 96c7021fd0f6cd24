"""The evaluation command of verifiers runs the Phalanx taskset with a local model server."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from phalanx.puzzles import PuzzleEnvironment
from tests.helpers.chat_model import stub_model


def solver(messages: list[dict[str, Any]]) -> str:
    """Return the next answer of the solver for the episode of the conversation."""
    puzzle = PuzzleEnvironment("lights_out", "medium")
    assert any(puzzle.reset(seed) == messages[0]["content"] for seed in (5, 6))
    for message in messages:
        if message["role"] == "assistant":
            puzzle.step(message["content"])
    return (puzzle.expert_actions() or [""])[0]


def test_eval_command_runs_the_taskset(tmp_path: Path) -> None:
    pytest.importorskip("verifiers", minversion="0.4")
    taskset = {
        "environment": "lights_out",
        "settings": '{"difficulty": "medium"}',
        "first-seed": 5,
        "num-tasks": 2,
    }
    options = [part for name, value in taskset.items() for part in (f"--env.taskset.{name}", str(value))]
    with stub_model(solver) as (url, requests):
        result = subprocess.run(
            [Path(sys.executable).parent / "vf-eval", "phalanx-verifiers", *options, "-m", "stub",
             "--client.base-url", url, "--client.api-key-var", "STUB", "--push", "false", "-o", tmp_path],
            env=os.environ | {"STUB": "none", "HOME": str(tmp_path)},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
    assert result.returncode == 0, result.stderr
    [traces] = tmp_path.rglob("traces.jsonl")
    lines = [json.loads(line) for line in traces.read_text().splitlines()]
    assert len(lines) == 2 and len(requests) >= 4
    assert traces.read_text().count('"solved":1.0') + traces.read_text().count('"solved": 1.0') == 2
