"""`phalanx sweep`: a training for each combination of settings, here or on a cluster, and a table of them.

Each trial is a `phalanx train ... --resume auto` of its own.
"""

import contextlib
import enum
import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phalanx.cli.errors import UserError, user_errors
from phalanx.cli.output import columns
from phalanx.formatting import format_count

if TYPE_CHECKING:
    from phalanx.training.workers import Worker, Workers

app = typer.Typer(add_completion=False)

Propose = Callable[[set[str], dict[str, int]], "dict[str, Any] | None"]
"""The next trial to train, given the names of those that run and the exit codes of those that ended."""


class Goal(enum.StrEnum):
    """Which end of a metric is the better one."""

    max = "max"
    min = "min"


@app.command()
def sweep(
    kind: Annotated[
        str, typer.Argument(help="What comes after `phalanx train`: arc, proofs, 'custom FILE', ...")
    ],
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=V1,V2...",
            help="Settings and values; drawn ones also as uniform(a,b), loguniform(a,b), integers(a,b).",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The sweep's folder; given again, the sweep goes on.")],
    preset: Annotated[str | None, typer.Option(help="The preset of every trial.")] = None,
    draws: Annotated[
        int | None, typer.Option("--random", min=1, help="Draw so many trials instead of the whole grid.")
    ] = None,
    suggested: Annotated[
        int | None,
        typer.Option(
            "--optuna", min=1, help="Let Optuna suggest so many trials, by what those before came to."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the draws, or of the suggestions.")] = 0,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Trainings at the same time.", show_default="1; on Ray, its processors"),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(help="Train on the Ray cluster at HOST:PORT (or `auto`), whose machines share --out."),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="A number of the evaluations.", show_default="success_rate or its like")
    ] = None,
    goal: Annotated[Goal | None, typer.Option(help="Whether more of it is better, or less.")] = None,
) -> None:
    """Train with every combination of settings, or some drawn or suggested, and compare them."""
    from phalanx.training.workers import LocalWorkers, ray_workers

    command = ["train", *shlex.split(kind), *([] if preset is None else ["--preset", preset])]
    if draws is not None and suggested is not None:
        raise UserError("--random draws the trials and --optuna suggests them: leave one of them out")
    with user_errors():
        trials, propose = (
            _planned(out, command, settings, draws, seed)
            if suggested is None
            else _suggested(out, command, settings, suggested, seed, metric, goal)
        )
        stack = contextlib.ExitStack()
        workers: Workers = (
            LocalWorkers() if ray_address is None else stack.enter_context(ray_workers(ray_address))
        )
    with stack:
        total = len(trials) if suggested is None else suggested
        codes, stopped = _run(out, command, propose, total, workers, jobs or workers.places)
    if stopped is not None:
        typer.echo(f"Interrupted; the same command goes on with {out}")
        raise typer.Exit(128 + stopped)
    _compare(out, trials, codes, metric, goal)
    if any(codes.values()):
        raise typer.Exit(1)


def _planned(
    out: Path, command: list[str], settings: list[str], draws: int | None, seed: int
) -> tuple[list[dict[str, Any]], Propose]:
    """The trials of a grid, or of draws, which are known beforehand."""
    from phalanx.training.sweep import drawn, grid, plan

    trials = plan(out, command, grid(settings) if draws is None else drawn(settings, draws, seed))
    return trials, lambda running, codes: _not_begun(trials, running, codes)


def _suggested(
    out: Path,
    command: list[str],
    settings: list[str],
    count: int,
    seed: int,
    metric: str | None,
    goal: Goal | None,
) -> tuple[list[dict[str, Any]], Propose]:
    """Trials that are suggested when there is a place for them; those of a stopped sweep go on first."""
    from phalanx.training.suggestions import SuggestedTrials
    from phalanx.training.sweep import METRICS, chosen_metric, last_value

    suggestions = SuggestedTrials(out, command, settings, count, seed)

    def propose(running: set[str], codes: dict[str, int]) -> dict[str, Any] | None:
        waiting = _not_begun(suggestions.trials, running, codes)
        if waiting is not None or len(suggestions.trials) == count:
            return waiting
        records = {name: _records(out / name) for name, code in codes.items() if not code}
        if not records:
            return suggestions.suggest({}, "max")
        with user_errors():
            name = chosen_metric([record for own in records.values() for record in own], metric)
        values = {trial: last_value(own, name) for trial, own in records.items()}
        return suggestions.suggest(values, goal or METRICS.get(name, "max"))

    return suggestions.trials, propose


def _not_begun(
    trials: list[dict[str, Any]], running: set[str], codes: dict[str, int]
) -> dict[str, Any] | None:
    return next((one for one in trials if one["name"] not in running and one["name"] not in codes), None)


def _run(
    out: Path, command: list[str], propose: Propose, total: int, workers: "Workers", jobs: int
) -> tuple[dict[str, int], int | None]:
    """The exit code of every trial; a signal is passed on to those that run, which save and stop."""
    from phalanx.training.run_dir import run_status

    asked: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: asked.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    codes: dict[str, int] = {}
    running: dict[str, Worker] = {}
    try:
        while True:
            while not asked and len(running) < jobs:
                trial = propose(set(running), codes)
                if trial is None:
                    break
                name = trial["name"]
                if run_status(out / name) == "finished":
                    codes[name] = 0
                    continue
                arguments = [*command, *trial["settings"], "--out", str((out / name).absolute())]
                running[name] = workers.start([*arguments, "--resume", "auto"], out / f"{name}.log")
            if not running:
                break
            if asked:
                for worker in running.values():
                    worker.terminate()
            for name, worker in list(running.items()):
                code = worker.wait() if asked else worker.poll()
                if code is not None:
                    codes[name] = code
                    del running[name]
                    typer.echo(f"{len(codes)}/{total} {name}: {_outcome(out, name, code)}")
            time.sleep(0.05)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return codes, asked[0] if asked else None


def _outcome(out: Path, name: str, code: int) -> str:
    if not code:
        return "finished"
    lines = (out / f"{name}.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"exit code {code}: {lines[-1] if lines else 'nothing was said'}"


def _compare(
    out: Path, trials: list[dict[str, Any]], codes: dict[str, int], metric: str | None, goal: Goal | None
) -> None:
    """A table of the trials, the best first, and a page that shows them side by side."""
    from phalanx.logging.report.page import write_report
    from phalanx.training.sweep import METRICS, chosen_metric, last_value

    finished = [trial for trial in trials if codes[trial["name"]] == 0]
    if not finished:
        raise UserError(f"no trial of {out} came to its end; what each said is in its .log")
    records = {trial["name"]: _records(out / trial["name"]) for trial in finished}
    with user_errors():
        chosen = chosen_metric([record for own in records.values() for record in own], metric)
    sign = -1 if (goal or METRICS.get(chosen, "max")) == "min" else 1
    scores = [(last_value(records[trial["name"]], chosen), trial) for trial in finished]
    ranked = sorted(scores, key=lambda one: -sign * one[0])
    swept = [
        key
        for key in (one.partition("=")[0] for one in trials[0]["settings"])
        if len({_value(trial, key) for trial in trials}) > 1
    ]
    rows = [[trial["name"], value, *(_value(trial, key) for key in swept)] for value, trial in ranked]
    typer.echo(columns(["TRIAL", chosen.upper(), *swept], rows))
    page = write_report([out / trial["name"] for _, trial in ranked], out / "report.html")
    best = out / ranked[0][1]["name"]
    typer.echo(
        f"{len(ranked)} of {format_count(len(trials), 'trial')} finished; the best is {best}; page {page}"
    )


def _records(run: Path) -> list[dict[str, Any]]:
    from phalanx.logging.report.run_data import read_run

    return read_run(run).evaluation_records


def _value(trial: dict[str, Any], key: str) -> str:
    return next(value for name, _, value in (one.partition("=") for one in trial["settings"]) if name == key)
