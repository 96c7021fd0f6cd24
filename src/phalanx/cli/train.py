"""`phalanx train`: one command for each kind of training, and one for an algorithm of your own.

The options that they share are in `training_options`; what is shown is in `training_display`.
"""

from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli import training_options as options
from phalanx.cli.errors import UserError, user_errors

app = typer.Typer(
    name="train", cls=options.TrainGroup, help="Train an agent.", no_args_is_help=True, add_completion=False
)

_STOPS = (
    "Ctrl-C and SIGTERM save and stop (exit code 130 and 143); the same command with --resume goes on, to "
    "the same numbers. With --resume auto one command starts the run, goes on, or says that it is finished."
)


def _policy_command(kind: str, algorithm: str, about: str) -> None:
    """The command that trains a policy with PPO, on all devices of one process or several."""

    @app.command(name=kind, help=f"{about}\n\n{_STOPS}")
    def command(
        overrides: options.Overrides = None,
        preset: options.Preset = None,
        out: options.Out = None,
        resume: options.Resume = None,
        extend: options.Extend = None,
        init_from: options.InitFrom = None,
        seeds: options.Seeds = None,
        wandb: options.Wandb = False,
        tensorboard: options.Tensorboard = False,
        tracker: options.Tracker = None,
        coordinator: options.Coordinator = None,
        process_id: options.ProcessId = None,
        num_processes: options.NumProcesses = None,
    ) -> None:
        options.connect(coordinator, process_id, num_processes)
        from phalanx import training as agents

        chosen = options.Chosen(
            kind, overrides, preset, out, resume, seeds, wandb, tensorboard, tracker, extend, init_from
        )
        chosen.train(getattr(agents, algorithm))


_policy_command("arc", "ArcTraining", "Train a policy on ARC tasks with PPO, and write its report.")
_policy_command(
    "proofs",
    "ProofTraining",
    "Train a policy that proves queries of a knowledge base with PPO, and write its report.",
)


@app.command(
    help="Train a policy on ARC tasks by cloning: it learns what solutions, plans or played episodes do, and "
    f"hands its answer in by itself.\n\n{_STOPS}"
)
def bc(
    overrides: options.Overrides = None,
    episodes: Annotated[
        Path | None,
        typer.Option(help="A .jsonl file of episodes to learn from, as `phalanx play arc --out` writes it."),
    ] = None,
    preset: options.Preset = None,
    out: options.Out = None,
    resume: options.Resume = None,
    extend: options.Extend = None,
    init_from: options.InitFrom = None,
    wandb: options.Wandb = False,
    tensorboard: options.Tensorboard = False,
    tracker: options.Tracker = None,
) -> None:
    settings = [*([] if episodes is None else [f"cloning.episodes={episodes}"]), *(overrides or [])]
    from phalanx.training.arc_training import CloningTraining

    options.Chosen(
        "bc", settings, preset, out, resume, None, wandb, tensorboard, tracker, extend, init_from
    ).train(CloningTraining)


@app.command(help=f"Train a knowledge-graph embedding, and keep the best by validation.\n\n{_STOPS}")
def kge(
    overrides: options.Overrides = None,
    preset: options.Preset = None,
    out: options.Out = None,
    resume: options.Resume = None,
    extend: options.Extend = None,
    init_from: options.InitFrom = None,
    wandb: options.Wandb = False,
    tensorboard: options.Tensorboard = False,
    tracker: options.Tracker = None,
) -> None:
    from phalanx.training.kge import KGETrainer

    options.Chosen(
        "kge", overrides, preset, out, resume, None, wandb, tensorboard, tracker, extend, init_from
    ).train(KGETrainer)


@app.command(
    help="Train a heuristic for best-first proof search on the proofs that its own searches find; "
    f"`phalanx prove --heuristic RUN` uses it.\n\n{_STOPS}"
)
def heuristic(
    overrides: options.Overrides = None,
    preset: Annotated[str | None, typer.Option(help="The path of a YAML file with settings.")] = None,
    out: options.Out = None,
    resume: options.Resume = None,
    extend: options.Extend = None,
    init_from: options.InitFrom = None,
    wandb: options.Wandb = False,
    tensorboard: options.Tensorboard = False,
    tracker: options.Tracker = None,
) -> None:
    from phalanx.training.search_heuristic import HeuristicTrainer

    options.Chosen(
        "heuristic", overrides, preset, out, resume, None, wandb, tensorboard, tracker, extend, init_from
    ).train(HeuristicTrainer)


@app.command(help=f"Train a language model on packed rows (supervised fine-tuning).\n\n{_STOPS}")
def sft(
    overrides: options.Overrides = None,
    plan: Annotated[
        Path | None, typer.Option(help="A batch plan (with --dataset), or batch files created from one.")
    ] = None,
    dataset: Annotated[Path | None, typer.Option(help="The dataset that the plan was built for.")] = None,
    samples: Annotated[
        Path | None, typer.Option(help="A file of samples, as `phalanx puzzles collect` writes it.")
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            help="Train on an expert's answers: sudoku,sokoban:easy:multi, puzzles (all kinds), arc, "
            "proofs or puzzle_server."
        ),
    ] = None,
    preset: options.Preset = None,
    out: options.Out = None,
    resume: options.Resume = None,
    extend: options.Extend = None,
    init_from: options.InitFrom = None,
    wandb: options.Wandb = False,
    tensorboard: options.Tensorboard = False,
    tracker: options.Tracker = None,
) -> None:
    sources = {"--plan": plan, "--samples": samples, "--env": env}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) > 1:
        raise UserError(f"{' and '.join(given)} cannot be combined; choose one source of data")
    if dataset is not None and plan is None:
        raise UserError("--dataset requires --plan")
    settings = {"data.plan": plan, "data.dataset": dataset, "data.samples": samples, "env.id": env}
    chosen = [f"{name}='{value}'" for name, value in settings.items() if value is not None]
    from phalanx.training.sft import SFT

    options.Chosen(
        "sft",
        [*chosen, *(overrides or [])],
        preset,
        out,
        resume,
        None,
        wandb,
        tensorboard,
        tracker,
        extend,
        init_from,
    ).train(SFT)


@app.command(
    help="Train a language model on the rewards of a text environment (GRPO). With --init-from, model, "
    f"tokenizer, prompt format and environment are those of the other run.\n\n{_STOPS}"
)
def grpo(
    overrides: options.Overrides = None,
    env: Annotated[
        str | None,
        typer.Option(
            help="Puzzles, such as sudoku,sokoban:easy:multi, or puzzles for all kinds; or arc, proofs, "
            "puzzle_server, or the id of an environment with text, such as arc-v2."
        ),
    ] = None,
    preset: options.Preset = None,
    out: options.Out = None,
    resume: options.Resume = None,
    extend: options.Extend = None,
    init_from: options.InitFrom = None,
    wandb: options.Wandb = False,
    tensorboard: options.Tensorboard = False,
    tracker: options.Tracker = None,
) -> None:
    from phalanx.training.grpo import GRPO
    from phalanx.training.trained_lm import inherited_settings

    with user_errors():
        inherited = [] if init_from is None or resume is not None else inherited_settings(init_from)
    chosen = [] if env is None else [f"env.id='{env}'", "env.overrides=[]"]
    options.Chosen(
        "grpo",
        [*inherited, *chosen, *(overrides or [])],
        preset,
        out,
        resume,
        None,
        wandb,
        tensorboard,
        tracker,
        extend,
        init_from,
    ).train(GRPO)


@app.command(
    help=f"Train an algorithm of your own: a subclass of phalanx.training.Algorithm in a file.\n\n{_STOPS}"
)
def custom(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Python file with an Algorithm, such as examples/custom/algorithm.py."
        ),
    ],
    overrides: options.Overrides = None,
    preset: Annotated[str | None, typer.Option(help="The path of a YAML file with settings.")] = None,
    out: options.Out = None,
    resume: options.Resume = None,
    extend: options.Extend = None,
    init_from: options.InitFrom = None,
    seeds: options.Seeds = None,
    wandb: options.Wandb = False,
    tensorboard: options.Tensorboard = False,
    tracker: options.Tracker = None,
) -> None:
    from phalanx.training.loading import load_algorithm

    with user_errors():
        algorithm = load_algorithm(file)
    chosen = options.Chosen(
        f"custom {file}",
        overrides,
        preset,
        out,
        resume,
        seeds,
        wandb,
        tensorboard,
        tracker,
        extend,
        init_from,
    )
    chosen.train(algorithm)
