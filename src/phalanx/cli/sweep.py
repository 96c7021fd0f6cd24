"""`phalanx sweep`: trains with many settings, locally or on a Ray cluster, and compares the results."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phalanx.cli.errors import UserError, user_errors
from phalanx.cli.output import format_table
from phalanx.formatting import format_count

if TYPE_CHECKING:
    from phalanx.training.sweep import Sweep, SweepTrial

app = typer.Typer(add_completion=False)


@app.command()
def sweep(
    algorithm: Annotated[
        str, typer.Argument(help="Algorithm, or Python file with one, as for `phalanx train`.")
    ],
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUES...",
            help="Settings and their values: lr=1e-3,3e-4, or a range for the random and tpe samplers: "
            "uniform(LOW,HIGH), loguniform(LOW,HIGH) or integers(LOW,HIGH).",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Sweep folder. The same command continues a stopped sweep.")],
    env: Annotated[str | None, typer.Option(help="Environment, as for `phalanx train`.")] = None,
    config: Annotated[
        str | None, typer.Option(help="Preset or YAML file with the settings that all trials share.")
    ] = None,
    sampler: Annotated[
        Literal["grid", "random", "tpe"],
        typer.Option(help="All combinations, random samples, or samples that learn from earlier trials."),
    ] = "grid",
    trials: Annotated[
        int | None, typer.Option(min=1, help="Number of trials for the random and tpe samplers.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed for the sampler.")] = 0,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of concurrent trials.", show_default="1; on Ray, the number of its CPUs"
        ),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(
            help="Run the trials on the Ray cluster at HOST:PORT (or `auto`), whose machines share --out."
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Evaluation or training metric to rank trials by.",
            show_default="success_rate, mrr_100 or mean_token_accuracy",
        ),
    ] = None,
    goal: Annotated[
        Literal["max", "min"] | None,
        typer.Option(help="Maximize or minimize the metric.", show_default="min for losses, else max"),
    ] = None,
) -> None:
    """Train with many settings and rank the results.

    Every trial is a `phalanx train` command with the run folder OUT/trial_000, OUT/trial_001, ... Its output
    is written to OUT/trial_000.log, ... On Ctrl-C or SIGTERM, the running trials save a checkpoint and stop.
    This command requires the `sweep` extra.
    """
    from phalanx.training.algorithm import load_algorithm
    from phalanx.training.sweep import Sweep, connect_to_ray, start_process

    command = ["train", algorithm]
    command += [] if env is None else ["--env", env]
    command += [] if config is None else ["--config", config]
    with user_errors(), contextlib.ExitStack() as stack:
        config_type = load_algorithm(algorithm).config_type
        planned = Sweep(
            out,
            command,
            settings,
            sampler=sampler,
            num_trials=trials,
            seed=seed,
            metric=metric,
            goal=goal,
        )
        planned.validate(lambda settings: config_type.load(config, settings, env=env))
        start, num_slots = (
            (start_process, 1) if ray_address is None else stack.enter_context(connect_to_ray(ray_address))
        )
        signal = planned.run(
            start,
            jobs or num_slots,
            lambda trial, code: typer.echo(_describe_end(planned, trial, code)),
        )
    if signal is not None:
        typer.echo(f"Interrupted; the same command continues the sweep in {out}")
        raise typer.Exit(128 + signal)
    _print_ranking(planned)
    if any(planned.exit_codes.values()):
        raise typer.Exit(1)


def _describe_end(sweep: "Sweep", trial: "SweepTrial", code: int) -> str:
    status = "finished"
    if code:
        lines = sweep.log_path(trial).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        status = f"exit code {code}: {lines[-1] if lines else 'no output'}"
    return f"{len(sweep.exit_codes)}/{sweep.num_trials} {trial.name}: {status}"


def _print_ranking(sweep: "Sweep") -> None:
    """Print a table of the completed trials, and write a report that compares them."""
    from phalanx.logging.report.page import write_report
    from phalanx.training.sweep import last_metrics

    with user_errors():
        ranking = sweep.rank()
        if not ranking:
            raise UserError(f"no trial finished; see the logs {sweep.folder}/trial_*.log")
        best = sweep.folder / ranking[0][0].name
        name = sweep.ranking_metric(last_metrics(best))
    varied = [key for key in sweep.space if len({_cell(trial.params[key]) for trial in sweep.trials()}) > 1]
    rows = [[trial.name, value, *(_cell(trial.params[key]) for key in varied)] for trial, value in ranking]
    typer.echo(format_table(["TRIAL", name.upper(), *varied], rows))
    report = write_report([sweep.folder / trial.name for trial, _ in ranking], sweep.folder / "report.html")
    finished = f"{len(ranking)} of {format_count(sweep.num_trials, 'trial')} finished"
    typer.echo(f"{finished}; best {best}; report {report}")


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
