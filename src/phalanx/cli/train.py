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
    from phalanx.training.cloning.training import CloningTraining

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
    from phalanx.training.kge_training import KGETraining

    options.Chosen(
        "kge", overrides, preset, out, resume, None, wandb, tensorboard, tracker, extend, init_from
    ).train(KGETraining)


@app.command(
    help="Train a guide for best-first search of proofs, on the searches that it has guided itself; "
    f"`phalanx prove --guide RUN` searches with it.\n\n{_STOPS}"
)
def guide(
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
    from phalanx.training.search_heuristic import HeuristicTraining

    options.Chosen(
        "guide", overrides, preset, out, resume, None, wandb, tensorboard, tracker, extend, init_from
    ).train(HeuristicTraining)


@app.command(help=f"Train a small language model on packed rows, and write its report.\n\n{_STOPS}")
def lm(
    overrides: options.Overrides = None,
    plan: Annotated[
        Path | None, typer.Option(help="A batch plan (with --dataset), or the batch files made of one.")
    ] = None,
    dataset: Annotated[Path | None, typer.Option(help="The dataset that the plan was made for.")] = None,
    samples: Annotated[
        Path | None, typer.Option(help="A file of samples, as `phalanx puzzles collect` writes them.")
    ] = None,
    arcade: Annotated[str | None, typer.Option(help="HOST:PORT of a puzzle server to play on.")] = None,
    games: Annotated[str | None, typer.Option(help="Puzzles to play there, as binary,sudoku.")] = None,
    env: Annotated[
        str | None,
        typer.Option(help="Learn solvers' answers: sudoku,sokoban:easy:multi, puzzles (all), arc or proofs."),
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
    settings = [*_source(plan, dataset, samples, arcade, games, env), *(overrides or [])]
    from phalanx.training.lm.training import LMTraining

    options.Chosen(
        "lm", settings, preset, out, resume, None, wandb, tensorboard, tracker, extend, init_from
    ).train(LMTraining)


def _source(
    plan: Path | None,
    dataset: Path | None,
    samples: Path | None,
    arcade: str | None,
    games: str | None,
    env: str | None,
) -> list[str]:
    """The settings that say where tokens come from."""
    given = {"--plan": plan, "--samples": samples, "--arcade": arcade, "--env": env}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise UserError(f"{' and '.join(named)} exclude each other: tokens come from one place")
    if dataset is not None and plan is None:
        raise UserError("--dataset belongs to --plan")
    if games is not None and arcade is None:
        raise UserError("--games belongs to --arcade")
    if plan is not None:
        return ["data.source=plan", f"data.path={plan}", *([f"data.dataset={dataset}"] if dataset else [])]
    if samples is not None:
        return ["data.source=samples", f"data.path={samples}"]
    if arcade is not None:
        return [
            "data.source=arcade",
            f"data.address={arcade}",
            *([f"data.games=[{games}]"] if games else []),
        ]
    return [] if env is None else ["data.source=env", f"data.environment='{env}'"]


@app.command(
    help="Train a language model from reward (GRPO): it plays puzzles in groups, and learns what was "
    f"better than its group. With --init-from RUN_LM, model, tokenizer and prompts are its.\n\n{_STOPS}"
)
def grpo(
    overrides: options.Overrides = None,
    env: Annotated[
        str | None,
        typer.Option(
            help="Puzzles to play, as sudoku,sokoban:easy:multi, puzzles for all kinds; or arc, proofs, or "
            "the id of an environment with words, as arc-v2."
        ),
    ] = None,
    arcade: Annotated[str | None, typer.Option(help="HOST:PORT of a puzzle server to play on.")] = None,
    games: Annotated[str | None, typer.Option(help="Games to play there, as lights,binary:medium.")] = None,
    preset: options.Preset = None,
    out: options.Out = None,
    resume: options.Resume = None,
    extend: options.Extend = None,
    init_from: options.InitFrom = None,
    wandb: options.Wandb = False,
    tensorboard: options.Tensorboard = False,
    tracker: options.Tracker = None,
) -> None:
    if env is not None and arcade is not None:
        raise UserError("--env and --arcade exclude each other: puzzles come from one place")
    if games is not None and arcade is None:
        raise UserError("--games belongs to --arcade")
    from phalanx.training.lm.grpo import GRPOTraining
    from phalanx.training.lm.trained import settings_of

    with user_errors():
        begun = [] if init_from is None or resume is not None else settings_of(init_from)
    named = [] if env is None else [f"environment='{env}'", "overrides=[]"]
    if arcade is not None:
        named = [f"arcade.address={arcade}", *([f"arcade.games=[{_quoted(games)}]"] if games else [])]
    options.Chosen(
        "grpo",
        [*begun, *named, *(overrides or [])],
        preset,
        out,
        resume,
        None,
        wandb,
        tensorboard,
        tracker,
        extend,
        init_from,
    ).train(GRPOTraining)


def _quoted(games: str) -> str:
    """Games as items of a list; a colon in one would make it a mapping."""
    return ",".join(f"'{game.strip()}'" for game in games.split(","))


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
