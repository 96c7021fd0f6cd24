"""`phalanx sweep`: one training for each combination of settings, in processes, and a table that compares.

Which trials there are is in `phalanx.runs.sweep`; each is a `phalanx train ... --resume auto` of its own.
"""

import enum
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from phalanx.cli.errors import UserError, user_errors
from phalanx.cli.printing import columns
from phalanx.core.text import counted

app = typer.Typer(add_completion=False)

_METRICS = {"success_rate": "max", "mrr_100": "max", "token_accuracy": "max", "loss": "min"}
"""What trials are ranked by unless it is said; the first that their evaluations have."""


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
            help="Settings and values; with --random also uniform(a,b), loguniform(a,b), integers(a,b).",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The sweep's folder; given again, the sweep goes on.")],
    preset: Annotated[str | None, typer.Option(help="The preset of every trial.")] = None,
    draws: Annotated[
        int | None, typer.Option("--random", min=1, help="Draw so many trials instead of the whole grid.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Trainings at the same time.")] = 1,
    metric: Annotated[
        str | None, typer.Option(help="A number of the evaluations.", show_default="success_rate or its like")
    ] = None,
    goal: Annotated[Goal | None, typer.Option(help="Whether more of it is better, or less.")] = None,
) -> None:
    """Train with every combination of settings, or some drawn by chance, and compare them."""
    from phalanx.runs.sweep import drawn, grid, plan

    command = ["train", *shlex.split(kind), *([] if preset is None else ["--preset", preset])]
    with user_errors():
        trials = plan(out, command, grid(settings) if draws is None else drawn(settings, draws, seed))
    codes, stopped = _run(out, command, trials, jobs)
    if stopped is not None:
        typer.echo(f"Interrupted; the same command goes on with {out}")
        raise typer.Exit(128 + stopped)
    _compare(out, trials, codes, metric, goal)
    if any(codes.values()):
        raise typer.Exit(1)


def _run(
    out: Path, command: list[str], trials: list[dict[str, Any]], jobs: int
) -> tuple[dict[str, int], int | None]:
    """The exit code of every trial; a signal is passed on to those that run, which save and stop."""
    from phalanx.runs.folder import standing

    asked: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: asked.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    codes = {trial["name"]: 0 for trial in trials if standing(out / trial["name"]) == "finished"}
    waiting = [trial for trial in trials if trial["name"] not in codes]
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        while (waiting and not asked) or running:
            while waiting and len(running) < jobs and not asked:
                trial = waiting.pop(0)
                running[trial["name"]] = _start(out, command, trial)
            if asked:
                for process in running.values():
                    process.send_signal(signal.SIGTERM)
            for name, process in list(running.items()):
                code = process.wait() if asked else process.poll()
                if code is not None:
                    codes[name] = code
                    del running[name]
                    typer.echo(f"{len(codes)}/{len(trials)} {name}: {_outcome(out, name, code)}")
            time.sleep(0.05)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return codes, asked[0] if asked else None


def _start(out: Path, command: list[str], trial: dict[str, Any]) -> "subprocess.Popen[bytes]":
    arguments = [*command, *trial["settings"], "--out", str(out / trial["name"]), "--resume", "auto"]
    with (out / f"{trial['name']}.log").open("ab") as log:
        # A session of its own: Ctrl-C in the terminal reaches it through this process, and once.
        return subprocess.Popen(
            [sys.executable, "-m", "phalanx", *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


def _outcome(out: Path, name: str, code: int) -> str:
    if not code:
        return "finished"
    lines = (out / f"{name}.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"exit code {code}: {lines[-1] if lines else 'nothing was said'}"


def _compare(
    out: Path, trials: list[dict[str, Any]], codes: dict[str, int], metric: str | None, goal: Goal | None
) -> None:
    """A table of the trials, the best first, and a page that shows them side by side."""
    from phalanx.logs.report import read_run, write_report

    finished = [trial for trial in trials if codes[trial["name"]] == 0]
    if not finished:
        raise UserError(f"no trial of {out} came to its end; what each said is in its .log")
    runs = {trial["name"]: read_run(out / trial["name"]) for trial in finished}
    records = [record for run in runs.values() for record in run.evaluation_records]
    chosen = metric or next((name for name in _METRICS if any(name in record for record in records)), None)
    if chosen is None or not any(chosen in record for record in records):
        there = sorted({name for record in records for name, value in record.items() if type(value) is float})
        raise UserError(f"no evaluation has {chosen or 'a known metric'}; --metric may be {', '.join(there)}")
    sign = -1 if (goal or _METRICS.get(chosen, "max")) == "min" else 1

    def score(name: str) -> float:
        # Sampled attempts come after the greedy ones of the same update, which count.
        own = [record for record in runs[name].evaluation_records if chosen in record]
        last = [record for record in own if record["step"] == own[-1]["step"]]
        return float(last[0][chosen])

    ranked = sorted(((score(trial["name"]), trial) for trial in finished), key=lambda one: -sign * one[0])
    swept = [
        key
        for key in (one.partition("=")[0] for one in trials[0]["settings"])
        if len({_value(trial, key) for trial in trials}) > 1
    ]
    rows = [[trial["name"], value, *(_value(trial, key) for key in swept)] for value, trial in ranked]
    typer.echo(columns(["TRIAL", chosen.upper(), *swept], rows))
    page = write_report([out / trial["name"] for _, trial in ranked], out / "report.html")
    best = out / ranked[0][1]["name"]
    typer.echo(f"{len(ranked)} of {counted(len(trials), 'trial')} finished; the best is {best}; page {page}")


def _value(trial: dict[str, Any], key: str) -> str:
    return next(value for name, _, value in (one.partition("=") for one in trial["settings"]) if name == key)
