"""`phalanx train`: trains with any algorithm."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.errors import user_errors

if TYPE_CHECKING:
    from phalanx.training.algorithm import Algorithm
    from phalanx.training.config import RunConfig

app = typer.Typer(add_completion=False)


@app.command(no_args_is_help=True)
def train(
    algorithm: Annotated[
        str,
        typer.Argument(
            help="ppo, bc, sft, grpo, kge or heuristic; or a Python file that defines one Algorithm."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Settings, such as num_updates=200 lr=1e-3 env.dataset.num_generated_tasks=3000.",
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            help="Environment: arc, proofs, package.module:Name or path/file.py:Name. For language models, "
            "also puzzles (all kinds), sudoku,sokoban:easy:multi or puzzle_server."
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            metavar="PRESET|FILE",
            help="Name of a preset of the algorithm, or path of a YAML file.",
            show_default="the preset with the name of the environment, if there is one",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed (seed=N).", show_default="0")] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Number of runs with consecutive seeds (num_seeds=N).", show_default="1"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Run folder.", show_default="runs/ALGORITHM, runs/ALGORITHM-2, ..."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    auto_resume: Annotated[
        bool,
        typer.Option(
            "--auto-resume",
            help="Start the run in --out or continue it; exit with 0 if it is already finished.",
        ),
    ] = False,
    extend: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="UPDATES", help="Continue the run in --out up to this number of updates."
        ),
    ] = None,
    init_from: Annotated[
        str | None,
        typer.Option(
            metavar="RUN[@STEP]",
            help="Start from the parameters of another run; RUN@best for its best checkpoint.",
        ),
    ] = None,
    tracker: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also log to wandb, tensorboard or mlflow; can be repeated."),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the complete config as YAML and exit.")
    ] = False,
    list_settings: Annotated[
        bool, typer.Option("--list-settings", help="List all settings with their defaults and exit.")
    ] = False,
    network: Annotated[
        str | None,
        typer.Option(
            metavar="FILE:NAME",
            help="Policy network: a function or class that creates it from a key, as path/file.py:Name.",
            show_default="that of the environment",
        ),
    ] = None,
) -> None:
    """Train with an algorithm and write a report.

    On Ctrl-C or SIGTERM, a checkpoint is saved and the run stops (exit codes 130 and 143). The same command
    with --resume continues the run, with the same results as without the interruption.
    """
    from phalanx.logging.handlers.tracker import TRACKERS
    from phalanx.training.algorithm import load_algorithm
    from phalanx.training.run_dir import check_new_run, next_free_dir

    with user_errors():
        algorithm_type = load_algorithm(algorithm)
        settings = list(overrides or [])
        settings += [] if network is None else [f"network_path={network}"]
        settings += [] if seed is None else [f"seed={seed}"]
        settings += [] if seeds is None else [f"num_seeds={seeds}"]
        settings += [] if extend is None else [f"{algorithm_type.config_type.num_updates_setting}={extend}"]
        if list_settings:
            _print_settings(algorithm_type.config_type, env, config)
            return
        trackers = list(dict.fromkeys(tracker or []))
        if unknown := [name for name in trackers if name not in TRACKERS]:
            raise ValueError(f"unknown tracker {unknown[0]!r}; choose from {', '.join(TRACKERS)}")
        flags = {"--resume": resume, "--auto-resume": auto_resume, "--extend": extend is not None}
        run_config = _load_config(algorithm_type, settings, env, config, out, flags, init_from)
    if print_config:
        from phalanx.config import to_yaml

        typer.echo(to_yaml(run_config), nl=False)
        return
    with user_errors():
        if (auto_resume or extend is not None) and out is not None and _is_finished(out, run_config):
            return
        run_dir = out or next_free_dir(f"runs/{algorithm_type.name}")
        if not any(flags.values()):
            check_new_run(run_dir)
        created = algorithm_type(run_config)
    from phalanx.cli.train_progress import run_training

    run_training(
        created,
        run_dir,
        resume=resume or (extend is not None and not auto_resume),
        auto_resume=auto_resume,
        extend=extend is not None,
        init_from=init_from,
        trackers=trackers,
        command=f"phalanx train {algorithm}",
    )


def _load_config(
    algorithm_type: "type[Algorithm]",
    settings: Sequence[str],
    env: str | None,
    config: str | None,
    out: Path | None,
    flags: Mapping[str, bool],
    init_from: str | None,
) -> "RunConfig":
    """Return the config of the run.

    If a run is continued, its saved config is the base for the settings. `flags` maps each flag that
    continues a run, such as `--extend`, to whether it was given.

    Raises:
        ValueError: If the flags contradict each other, or a continued run has another algorithm or
            environment.
    """
    from phalanx.config import load_config
    from phalanx.training import run_dir as run_dirs

    auto_resume = flags["--auto-resume"]
    if flags["--resume"] and auto_resume:
        raise ValueError("--resume and --auto-resume cannot be combined")
    flag = next((name for name, given in flags.items() if given), None)
    config_type = algorithm_type.config_type
    is_new = flag is None or (auto_resume and out is not None and run_dirs.run_status(out) == "new")
    if not is_new:
        if out is None:
            raise ValueError(f"{flag} requires --out, the folder of the run")
        if not auto_resume and config is not None:
            raise ValueError(f"{flag} uses the config of the run: remove --config")
        if not auto_resume and init_from is not None:
            raise ValueError(f"{flag} continues a run, and --init-from starts one: remove one of them")
        run_dirs.check_same_algorithm(out, algorithm_type.name)
        saved = run_dirs.load_run_config(out, config_type)
        _check_same_env(out, saved, env)
        if config is None:
            return load_config(type(saved), saved, settings)
    inherited = _inherited_settings(algorithm_type, init_from)
    return config_type.load(config, settings, env=env, inherited=inherited)


def _inherited_settings(algorithm_type: "type[Algorithm]", init_from: str | None) -> dict[str, Any] | None:
    if init_from is None:
        return None
    from phalanx.training.checkpoints import CheckpointRef
    from phalanx.training.trained_policy import load_algorithm_and_config

    _, source = load_algorithm_and_config(CheckpointRef.parse(init_from).for_seed(0).run)
    return algorithm_type.config_type.inherit(source)


def _check_same_env(out: Path, config: "RunConfig", env: str | None) -> None:
    from phalanx.import_path import absolute_address

    name = getattr(getattr(config, "env", None), "id", None)
    if env is not None and absolute_address(env) not in (name, re.sub(r"-v\d+$", "", name or "")):
        raise ValueError(f"{out} was trained in {name or 'no environment'}, not in {env}: remove --env")


def _is_finished(out: Path, config: "RunConfig") -> bool:
    """Return whether the run in `out` is finished and its config equals `config`. If so, print a message."""
    from phalanx.training.run_dir import load_metadata, load_run_config, run_status

    if run_status(out) != "finished" or load_run_config(out, type(config)) != config:
        return False
    updates = load_metadata(out).get("updates")
    typer.echo(f"{out} is finished after {updates} updates; use --extend N to continue up to update N.")
    return True


def _print_settings(config_type: "type[RunConfig]", env: str | None, config: str | None) -> None:
    from phalanx.config import list_settings

    values = {} if env is None and config is None else config_type.load(config, (), env=env).model_dump()
    sections = config_type.section_types(values)
    for setting in list_settings(config_type, sections=sections):
        default = "required" if setting.default is ... else f"{setting.default}"
        typer.echo(f"{setting.name}: {setting.type} = {default}")
        if setting.text:
            typer.echo(f"    {' '.join(setting.text.split())}")
