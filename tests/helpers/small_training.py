"""A training run on ARC that takes one second, for tests that do not depend on learning."""

from pathlib import Path
from typing import Any

from phalanx.io.append_only import iter_lines
from phalanx.logging import FileHandler, SVGHandler
from phalanx.training import PPOConfig

SMALL = (
    "env.dataset.max_grid_height=3",
    "env.dataset.max_grid_width=3",
    "env.dataset.families=[fill_enclosed]",
    "env.dataset.num_generated_tasks=8",
    "env.episode.max_episode_steps=3",
    "network.kind=conv",
    "network.hidden_dim=8",
    "network.num_layers=1",
    "num_envs=8",
    "num_steps=4",
    "num_updates=6",
    "num_minibatches=2",
    "evaluation.every=0",
    "evaluation.num_generated_tasks=4",
    "evaluation.num_sampled_attempts=0",
    "checkpoint.every=2",
    "logging.log_frequency=1",
    "logging.sample_frequency=3",
    "logging.num_samples=2",
)


def small_config(*overrides: str) -> PPOConfig:
    return PPOConfig.load("arc", (*SMALL, *overrides))


def small_handlers(folder: Path, config: Any) -> dict[str, Any]:
    return {"files": FileHandler(folder, config), "pictures": SVGHandler(folder / "episodes")}


def metrics_of(run: Path) -> dict[int, dict[str, Any]]:
    """Return the logged metrics of a run by update, without those that depend on time."""
    import json

    lines = [json.loads(line) for line in iter_lines(run / "batch_metrics.jsonl")]
    timed = ("env_steps_per_second", "seconds")
    return {
        line["step"]: {name: value for name, value in line["metrics"].items() if name not in timed}
        for line in lines
    }
