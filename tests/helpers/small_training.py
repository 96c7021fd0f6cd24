"""A training on ARC that is over in a second, for the tests of everything around the learning."""

from pathlib import Path
from typing import Any

from phalanx.io.jsonl import read_lines
from phalanx.logging import FileHandler, SVGHandler
from phalanx.training.arc_training import ArcTrainingConfig, load_arc_training

SMALL = (
    "arc.dataset.max_grid_height=3",
    "arc.dataset.max_grid_width=3",
    "arc.dataset.families=[fill_enclosed]",
    "arc.dataset.num_tasks=8",
    "arc.episode.max_episode_steps=3",
    "network.kind=conv",
    "network.hidden_dim=8",
    "network.num_layers=1",
    "ppo.num_envs=8",
    "ppo.num_steps=4",
    "ppo.num_updates=6",
    "ppo.minibatches=2",
    "ppo.shuffle_groups=2",
    "evaluation.every=0",
    "evaluation.num_tasks=4",
    "evaluation.num_samples=0",
    "checkpoint.every=2",
    "logging.log_frequency=1",
    "logging.sample_frequency=3",
    "logging.num_samples=2",
)


def small_config(*overrides: str) -> ArcTrainingConfig:
    return load_arc_training(None, (*SMALL, *overrides))


def small_handlers(folder: Path, config: Any) -> dict[str, Any]:
    return {"files": FileHandler(folder, config), "pictures": SVGHandler(folder / "episodes")}


def metrics_of(run: Path) -> dict[int, dict[str, Any]]:
    """What a run logged at each update, but for what the clock decides."""
    import json

    lines = [json.loads(line) for line in read_lines(run / "batch_metrics.jsonl")]
    timed = ("steps_per_second", "seconds")
    return {
        line["step"]: {name: value for name, value in line["metrics"].items() if name not in timed}
        for line in lines
    }
