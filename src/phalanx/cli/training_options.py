"""The options that every `phalanx train` command has, and what they mean.

The commands are in `train_arc` and its neighbours; how a training is shown is in `training_display`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from phalanx.cli.errors import UserError, user_errors

if TYPE_CHECKING:
    from phalanx.agents.training import Experiment
    from phalanx.core.config import Config

AnyConfig = TypeVar("AnyConfig", bound="Config")

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
Coordinator = Annotated[
    str | None, typer.Option(help="HOST:PORT of the first process, where there are several.")
]
ProcessId = Annotated[int | None, typer.Option(help="Which of them this one is, from 0.")]
NumProcesses = Annotated[int | None, typer.Option(help="How many processes there are.")]


@dataclasses.dataclass(frozen=True)
class Chosen:
    """What a command was asked for."""

    kind: str
    """`arc`, `proofs`, ...: the command, and the runs' folder."""
    overrides: list[str] | None = None
    preset: str | None = None
    out: Path | None = None
    resume: bool = False
    seeds: int | None = None
    wandb: bool = False
    tensorboard: bool = False

    def config(
        self, cls: type[AnyConfig], load: Callable[[str | None, tuple[str, ...]], AnyConfig]
    ) -> AnyConfig:
        """The run's own config where it goes on, else a new one; call it within `user_errors`."""
        from phalanx.core.config import load_config
        from phalanx.runs import folder as runs

        settings = [*(self.overrides or []), *([f"num_seeds={self.seeds}"] if self.seeds else [])]
        if not self.resume:
            return load(self.preset, tuple(settings))
        if self.out is None:
            raise ValueError("--resume needs --out, the folder of the run to go on with")
        if self.preset is not None:
            raise ValueError("--resume takes the run's own config: leave --preset out")
        begun = runs.read_config(self.out, cls)
        config = load_config(cls, None, settings, base=begun)
        runs.check_same_config(self.out, begun, config)
        return config

    def folder(self) -> Path:
        """The run's folder; a free one where none is named."""
        from phalanx.runs import folder as runs

        return self.out or runs.next_free(f"runs/{self.kind}")

    def trackers(self) -> Sequence[str]:
        """The trackers that were asked for, beside the run's own files."""
        wanted = (("wandb", self.wandb), ("tensorboard", self.tensorboard))
        return [name for name, asked in wanted if asked]


def policy_command(
    kind: str, about: str, experiment: Callable[[Chosen], "Experiment"]
) -> Callable[..., None]:
    """The command that trains a policy with PPO; `experiment` reads the settings, and imports late."""

    def command(
        overrides: Overrides = None,
        preset: Preset = None,
        out: Out = None,
        resume: Resume = False,
        seeds: Seeds = None,
        wandb: Wandb = False,
        tensorboard: Tensorboard = False,
        coordinator: Coordinator = None,
        process_id: ProcessId = None,
        num_processes: NumProcesses = None,
    ) -> None:
        connect(coordinator, process_id, num_processes)
        chosen = Chosen(kind, overrides, preset, out, resume, seeds, wandb, tensorboard)

        from phalanx.cli.training_display import run_training

        with user_errors():
            made = experiment(chosen)
        run_training(made, chosen.folder(), resume=resume, trackers=chosen.trackers())

    command.__name__ = kind
    command.__doc__ = (
        f"{about}\n\nCtrl-C saves and stops; the same command with --resume goes on, to the same numbers."
    )
    return command


def connect(coordinator: str | None, process_id: int | None, num_processes: int | None) -> None:
    """Join the other processes, where there are any; before anything else touches JAX."""
    given = [coordinator is not None, process_id is not None, num_processes is not None]
    if not any(given):
        return
    if coordinator is None or process_id is None or num_processes is None:
        raise UserError("several processes need --coordinator, --process-id and --num-processes together")
    from phalanx.agents.ppo import parallel

    with user_errors():
        parallel.connect(coordinator, num_processes, process_id)
