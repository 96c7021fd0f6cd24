"""Run directories in the format of `phalanx train`, with made-up metrics and real ARC states."""

import functools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from phalanx.arc import (
    ArcConfig,
    DatasetConfig,
    PointAction,
    TaskBuffer,
    batch_reset,
    batch_step,
    generate_tasks,
)
from phalanx.arc.rendering import draw_state
from phalanx.io.append_only import AppendOnlyFile
from phalanx.logging import ExperimentLogger, FileHandler, LoggingConfig, SVGHandler

FAMILIES = ("fill_enclosed", "recolor", "mirror_rows")
MACHINE = {"load_average": 0.5, "nproc": 2, "cpu": "Example CPU", "python": "3.11.2", "phalanx": "0.1.0"}


@functools.cache
def arc_episodes() -> list[list[Any]]:
    """Return three episodes of four states: the initial state and the states after each of three steps."""
    config = ArcConfig(dataset=DatasetConfig(max_grid_height=5, max_grid_width=5))
    tasks = TaskBuffer.from_tasks(generate_tasks(num_tasks=3, seed=0, max_height=5, max_width=5))
    states, _ = batch_reset(jax.random.split(jax.random.PRNGKey(0), 3), config, tasks)
    history = [states]
    for step in range(3):
        cells = np.full(3, step, np.int32)
        # Fill the next cell of the diagonal.
        action = PointAction(operation=np.full(3, step + 1, np.int32), row=cells, col=cells)
        states, *_ = batch_step(states, action, config)
        history.append(states)
    return [[states[row] for states in history] for row in range(3)]


def curve(update: int, updates: int, speed: float = 6.0) -> float:
    """Return a success rate that grows from 4% to 97%."""
    return 0.04 + 0.93 / (1 + math.exp(-speed * (2 * update / updates - 1)))


def metrics_at(update: int, updates: int, speed: float = 6.0) -> dict[str, float]:
    """Return the metrics of an update with deterministic noise."""
    noise = np.random.default_rng(update).normal(size=8)
    success = float(np.clip(curve(update, updates, speed) + 0.03 * noise[0], 0, 1))
    return {
        "reward_mean": 1.4 * success - 0.2 + 0.03 * noise[1],
        "reward_std": 0.25 + 0.02 * noise[2],
        "reward_max": 1.2,
        "reward_min": -0.45 + 0.05 * noise[3],
        "similarity_mean": 0.6 + 0.39 * success,
        "similarity_std": 0.1 * (1 - success),
        "similarity_max": 1.0,
        "similarity_min": 0.2 + 0.3 * success,
        "episode_length_mean": 16 - 12 * success,
        "success_rate": success,
        "episodes": 480.0 + 200 * success,
        "policy_loss": -0.02 * (1 - success) + 0.004 * noise[4],
        "value_loss": 0.3 * (1.05 - success) + 0.01 * noise[5],
        "entropy": 3.1 * (1 - success) + 0.2,
        "approx_kl": 0.01 + 0.003 * abs(noise[6]),
        "clip_fraction": 0.12 + 0.02 * noise[7],
        "explained_variance": 0.9 * success,
        "gradient_norm": 0.5 + 0.1 * noise[2],
        "learning_rate": 3e-4 * (1 - update / (updates + 1)),
        "env_steps": 16_384.0 * (update + 1),
        "env_steps_per_second": 98_000 + 2_500 * noise[6],
        "seconds": 0.17 * (update + 1),
    }


def evaluation_at(update: int, updates: int, mode: str, speed: float = 6.0) -> dict[str, Any]:
    """Return the record of an evaluation."""
    success = curve(update, updates, speed) * (1.0 if mode == "greedy" else 0.92)
    groups = {
        name: {
            "episodes": 64,
            "success_rate": min(1.0, success * (1.02 - 0.07 * index)),
            "similarity": 0.6 + 0.39 * success,
            "steps_to_solve": 9.0 - 5 * success,
        }
        for index, name in enumerate(FAMILIES)
    }
    record = {
        "timestamp": 1_760_000_000.0 + update,
        "step": update,
        "env_steps": 16_384 * update,
        "split": "held-out",
        "mode": mode,
        "episodes": 192,
        "success_rate": success,
        "similarity": 0.6 + 0.39 * success,
        "steps_to_solve": None if success < 0.05 else 9.0 - 5 * success,
        "groups": groups,
    }
    return record | ({"pass_at_k": {"1": success, "8": 1 - (1 - success) ** 3}} if mode == "sampled" else {})


def write_lines(path: Path, records: Sequence[dict[str, Any]]) -> None:
    lines = AppendOnlyFile(path)
    for record in records:
        lines.write_line(json.dumps(record))
    lines.close()


def write_facts(folder: Path, **facts: Any) -> None:
    record = {
        "format": 2,
        "algorithm": "arc",
        "name": folder.name,
        "phalanx": "0.1.0",
        "started": "2025-10-09T10:00:00+00:00",
        "updated": "2025-10-09T10:02:50+00:00",
        "status": "finished",
        "num_parameters": 48_231,
        "families": list(FAMILIES),
        "machine": MACHINE,
    }
    (folder / "run.json").write_text(json.dumps(record | facts))


def write_episodes(logger: ExperimentLogger, update: int, solved: Sequence[bool]) -> None:
    """Log sampled episodes of an update with a picture of each step."""
    for environment, (states, success) in enumerate(zip(arc_episodes(), solved, strict=False)):
        logger.log_episode_summary(
            {
                "episode_num": update,
                "environment_id": environment,
                "task_id": f"{FAMILIES[environment]}-{update:06d}",
                "total_reward": 0.95 if success else -0.2,
                "total_steps": 3,
                "final_similarity": 1.0 if success else 0.72,
                "success": success,
                "initial_state": states[0],
                "step_states": states[1:],
                "final_state": states[-1],
            }
        )


def make_run(
    folder: Path,
    *,
    updates: int = 200,
    every: int = 10,
    speed: float = 6.0,
    config: LoggingConfig | None = None,
) -> Path:
    """Write a finished run: metrics every `every` updates, eleven evaluations, episodes of three updates."""
    config = config or LoggingConfig(log_frequency=every)
    handlers = {"file": FileHandler(folder, config), "svg": SVGHandler(folder / "episodes", draw_state)}
    with ExperimentLogger(config, handlers) as logger:
        for update in range(0, updates + 1, every):
            logger.log_batch_step({"update_step": update, **metrics_at(update, updates, speed)})
        for index, update in enumerate((0, updates // 2, updates)):
            write_episodes(logger, update, [index > 0, index > 1, False])
        assert logger.failures == {}
    evaluated = range(0, updates + 1, max(1, updates // 10))
    write_lines(
        folder / "evaluations.jsonl",
        [evaluation_at(at, updates, mode, speed) for at in evaluated for mode in ("greedy", "sampled")],
    )
    write_facts(folder, updates=updates, env_steps=16_384 * updates, seconds=0.17 * updates)
    return folder
