"""The options that the `phalanx train` commands share, and what they mean.

The commands are in `train`; how a training is shown is in `training_display`.
"""

import dataclasses
import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from phalanx.cli.errors import UserError, user_errors

if TYPE_CHECKING:
    from phalanx.training.algorithm import RunConfig


class ResumeMode(enum.StrEnum):
    """What `--resume` may be followed by; by itself it means the first."""

    run = "run"
    auto = "auto"


class TrainGroup(TyperGroup):
    """Lets `--resume` stand alone, or before the word `auto`: what follows may as well be a setting."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ours = args[: args.index("--")] if "--" in args else args
        read, rest = [], iter(enumerate(ours))
        for place, word in rest:
            if word == "--resume":
                auto = ours[place + 1 : place + 2] == [ResumeMode.auto.value]
                word = f"--resume={ResumeMode.auto if auto else ResumeMode.run}"
                if auto:
                    next(rest)
            read.append(word)
        return super().parse_args(ctx, read + args[len(ours) :])


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
Resume = Annotated[
    ResumeMode | None,
    typer.Option(
        "--resume",
        metavar="[auto]",
        help="Go on with the run in --out; `auto` starts it too, or says that it is finished.",
    ),
]
Extend = Annotated[
    int | None,
    typer.Option(min=1, metavar="UPDATES", help="Go on with the run in --out to so many updates in all."),
]
InitFrom = Annotated[
    str | None,
    typer.Option(metavar="RUN[@STEP]", help="Begin with the weights of another run; RUN@best for its best."),
]
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
    resume: ResumeMode | None = None
    seeds: int | None = None
    wandb: bool = False
    tensorboard: bool = False
    tracker: list[str] | None = None
    extend: int | None = None
    init_from: str | None = None

    def train(self, algorithm: type[Any]) -> None:
        """Read the settings, make the algorithm of them, and run it."""
        from phalanx.cli.train_progress import run_training
        from phalanx.training.run_dir import next_free_dir

        with user_errors():
            trackers = self._trackers()
            config = self._config(algorithm)
            if self._is_finished(config, algorithm.num_updates_setting):
                return
            made = algorithm(config)
        run_training(
            made,
            self.out or next_free_dir(f"runs/{algorithm.name}"),
            resume=self._goes_on and self.resume is not ResumeMode.auto,
            auto_resume=self.resume is ResumeMode.auto,
            extend=self.extend is not None,
            init_from=self.init_from,
            trackers=trackers,
            command=f"phalanx train {self.command}",
        )

    @property
    def _goes_on(self) -> bool:
        return self.resume is not None or self.extend is not None

    def _is_finished(self, config: "RunConfig", length: str) -> bool:
        """Whether there is nothing left to do for one who need not know; it is said."""
        from phalanx.training.run_dir import CONFIG, read_config, read_metadata, run_status

        if self.resume is not ResumeMode.auto and self.extend is None:
            return False
        assert self.out is not None
        if run_status(self.out) != "finished" or read_config(self.out, type(config)) != config:
            return False
        updates = read_metadata(self.out).get("updates")
        typer.echo(
            f"{self.out} is finished, after {updates} updates, as its {CONFIG} asks; --extend N goes on to N."
        )
        return True

    def _trackers(self) -> list[str]:
        """The trackers that were asked for, each once."""
        from phalanx.logging.handlers.tracker import TRACKERS

        flags = (("wandb", self.wandb), ("tensorboard", self.tensorboard))
        wanted = [*(name for name, asked in flags if asked), *(self.tracker or [])]
        if unknown := [name for name in wanted if name not in TRACKERS]:
            raise ValueError(f"there is no tracker {unknown[0]!r}; trackers are {', '.join(TRACKERS)}")
        return list(dict.fromkeys(wanted))

    def _config(self, algorithm: type[Any]) -> "RunConfig":
        """The run's own config where it goes on, else a new one."""
        from phalanx.config import load_config
        from phalanx.training.run_dir import (
            check_same_algorithm,
            check_same_config,
            extend_config,
            read_config,
            run_status,
        )

        cls: type[RunConfig] = algorithm.config_type
        settings = [*(self.overrides or []), *([f"num_seeds={self.seeds}"] if self.seeds else [])]
        settings += [] if self.extend is None else [f"{algorithm.num_updates_setting}={self.extend}"]
        if not self._goes_on:
            return cls.load(self.preset, settings)
        flag = "--resume" if self.resume else "--extend"
        if self.out is None:
            raise ValueError(f"{flag} needs --out, the folder of the run to go on with")
        auto = self.resume is ResumeMode.auto
        if self.preset is not None and not auto:
            raise ValueError(f"{flag} takes the run's own config: leave --preset out")
        if self.init_from is not None and not auto:
            raise ValueError(f"{flag} goes on with a run, --init-from begins one: leave one of them out")
        if auto and run_status(self.out) == "new":
            return cls.load(self.preset, settings)
        check_same_algorithm(self.out, algorithm.name)
        begun = read_config(self.out, cls)
        config = (
            cls.load(self.preset, settings) if self.preset else load_config(cls, None, settings, base=begun)
        )
        before = begun if self.extend is None else extend_config(begun, algorithm.num_updates_setting, config)
        check_same_config(self.out, before, config)
        return config


def connect(coordinator: str | None, process_id: int | None, num_processes: int | None) -> None:
    """Join the other processes, where there are any; before anything else touches JAX."""
    given = [coordinator is not None, process_id is not None, num_processes is not None]
    if not any(given):
        return
    if coordinator is None or process_id is None or num_processes is None:
        raise UserError("several processes need --coordinator, --process-id and --num-processes together")
    from phalanx.training.distributed import initialize

    with user_errors():
        initialize(coordinator, num_processes, process_id)
