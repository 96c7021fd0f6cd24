"""Contenders in processes of their own, measured in turns: A B C C B A; and how what came of it is told.

What the figures mean is in the `compare_*.py` of the folder above; how a process is driven is in `peers`.
"""

import argparse
import contextlib
import dataclasses
import json
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from measuring.conditions import conditions
from measuring.peers import Peer, Repeat, Runner, RunnerError
from measuring.verdicts import Comparison, Measurement, exit_code
from phalanx.io.atomic import atomic_write


@dataclasses.dataclass(frozen=True)
class Contender:
    """Who does a work, and the options of its runner."""

    name: str
    peer: Peer
    settings: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Turns:
    """What a contender's runner measured, once in every round, and what it told of itself."""

    rates: tuple[float, ...]
    cpu_rates: tuple[float, ...]
    conditions: dict[str, Any]


def in_turns(
    contenders: Sequence[Contender], venv_dir: pathlib.Path, repeats: int, patience: float
) -> list[Turns]:
    """Prepare every contender one after the other, then measure them in turns: A B C, C B A, A B C, ...

    A runner that does not answer for `patience` seconds is given up.
    """
    with contextlib.ExitStack() as stack:
        runners = []
        for contender in contenders:
            runner = stack.enter_context(Runner(contender.peer, venv_dir, contender.settings, patience))
            runner.wait_until_ready()
            runners.append(runner)
        taken: dict[Runner, list[Repeat]] = {runner: [] for runner in runners}
        for number in range(repeats):
            for runner in reversed(runners) if number % 2 else runners:
                taken[runner].append(runner.measure())
        return [
            Turns(tuple(one.rate for one in rounds), tuple(one.cpu_rate for one in rounds), runner.conditions)
            for runner, rounds in taken.items()
        ]


def say(measurement: Measurement, benchmark: str) -> None:
    """A measurement as a JSON line, as soon as it is made."""
    print(json.dumps(measurement.record(benchmark)), flush=True)


def tell(name: str, comparison: Comparison, arguments: argparse.Namespace) -> int:
    """Verdicts as JSON lines, tables, and a Markdown file where asked for; 1 if a target was missed."""
    verdicts = comparison.verdicts()
    for verdict in verdicts:
        print(json.dumps(verdict.record(name)), flush=True)
    if not arguments.json:
        comparison.show()
    if arguments.markdown is not None:
        here = conditions("jax")
        told = (
            f"`python benchmarks/{name}.py`: {arguments.repeats} interleaved repeats of about "
            f"{arguments.seconds:g} s, medians; {here['nproc']} cores of {here['cpu']}, jax {here['jax']}."
        )
        with atomic_write(arguments.markdown, "w") as file:
            file.write(comparison.markdown(told))
    return exit_code(verdicts)


def run(name: str, main: Callable[[], int]) -> None:
    """`main` as a program; a runner that fails ends it in words."""
    try:
        sys.exit(main())
    except RunnerError as error:
        sys.exit(f"{name}: {error}")
