"""The options that the `phalanx train` commands share, and what they mean.

The commands are in `train`; how a training is shown is in `training_display`.
"""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.errors import UserError, user_errors

if TYPE_CHECKING:
    from phalanx.runs import RunConfig

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Settings, as ppo.num_updates=200.", show_default=False),
]
Preset = Annotated[
    str | None, typer.Option(help="A preset's name or the path of a YAML file.", show_default="default")
]
Out = Annotated[
    Path | None, typer.Option(help="The run's folder.", show_default="runs/KIND, runs/KIND-2, ...")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Train so many seeds at once (num_seeds).")]
Wandb = Annotated[bool, typer.Option("--wandb", help="Log to Weights & Biases too.")]
Tensorboard = Annotated[bool, typer.Option("--tensorboard", help="Log to TensorBoard too.")]
Tracker = Annotated[
    list[str] | None,
    typer.Option("--tracker", metavar="NAME", help="Log to wandb, tensorboard or mlflow too; repeatable."),
]
Coordinator = Annotated[
    str | None, typer.Option(help="HOST:PORT of the first process, where there are several.")
]
ProcessId = Annotated[int | None, typer.Option(help="Which of them this one is, from 0.")]
NumProcesses = Annotated[int | None, typer.Option(help="How many processes there are.")]


@dataclasses.dataclass(frozen=True)
class Chosen:
    """What a command was asked for."""

    command: str
    """What comes after `phalanx train`."""
    overrides: list[str] | None = None
    preset: str | None = None
    out: Path | None = None
    resume: bool = False
    seeds: int | None = None
    wandb: bool = False
    tensorboard: bool = False
    tracker: list[str] | None = None

    def train(self, algorithm: type[Any]) -> None:
        """Read the settings, make the algorithm of them, and run it."""
        from phalanx.cli.training_display import run_training
        from phalanx.runs import next_free

        with user_errors():
            trackers = self._trackers()
            made = algorithm(self._config(algorithm.kind, algorithm.config_type))
        run_training(
            made,
            self.out or next_free(f"runs/{algorithm.kind}"),
            resume=self.resume,
            trackers=trackers,
            command=f"phalanx train {self.command}",
        )

    def _trackers(self) -> list[str]:
        """The trackers that were asked for, each once."""
        from phalanx.logs import TRACKERS

        flags = (("wandb", self.wandb), ("tensorboard", self.tensorboard))
        wanted = [*(name for name, asked in flags if asked), *(self.tracker or [])]
        if unknown := [name for name in wanted if name not in TRACKERS]:
            raise ValueError(f"there is no tracker {unknown[0]!r}; trackers are {', '.join(TRACKERS)}")
        return list(dict.fromkeys(wanted))

    def _config(self, kind: str, cls: "type[RunConfig]") -> "RunConfig":
        """The run's own config where it goes on, else a new one."""
        from phalanx.core.config import load_config
        from phalanx.runs.folder import check_same_config, check_same_kind, read_config

        settings = [*(self.overrides or []), *([f"num_seeds={self.seeds}"] if self.seeds else [])]
        if not self.resume:
            return cls.load(self.preset, settings)
        if self.out is None:
            raise ValueError("--resume needs --out, the folder of the run to go on with")
        if self.preset is not None:
            raise ValueError("--resume takes the run's own config: leave --preset out")
        check_same_kind(self.out, kind)
        begun = read_config(self.out, cls)
        config = load_config(cls, None, settings, base=begun)
        check_same_config(self.out, begun, config)
        return config


def connect(coordinator: str | None, process_id: int | None, num_processes: int | None) -> None:
    """Join the other processes, where there are any; before anything else touches JAX."""
    given = [coordinator is not None, process_id is not None, num_processes is not None]
    if not any(given):
        return
    if coordinator is None or process_id is None or num_processes is None:
        raise UserError("several processes need --coordinator, --process-id and --num-processes together")
    from phalanx.runs import processes

    with user_errors():
        processes.connect(coordinator, num_processes, process_id)
