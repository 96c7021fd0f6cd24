"""Phalanx's token batching beside chuk-lazarus, TRL, plain C and fairseq's way of filling; interleaved.

The peers are installed from PyPI, each in a virtual environment of its own. JSON lines go to standard output
as they are measured, then a table of seconds, ratios and targets. The method is told in `docs/tokens.md`.
"""

import argparse
import contextlib
import json
import os
import pathlib
import sys
import tempfile
from importlib.metadata import version
from typing import Any

from peers import Peer, Runner, RunnerError
from rich.console import Console
from tokens_report import (
    LAZARUS,
    PHALANX,
    PLAIN,
    TRL,
    Comparison,
    Measurement,
    Work,
    markdown,
    print_tables,
)

from phalanx.core.files import atomic_write
from phalanx.tokens.benchmark_facts import conditions

_BATCHING_NEEDS = (
    "numpy",
    "pydantic",
    "pydantic_core",
    "annotated-types",
    "typing-inspection",
    "typing_extensions",
)
PEERS = {
    PHALANX: Peer("phalanx", "phalanx_tokens_runner.py", ()),
    PLAIN: Peer("plain", "plain_tokens_runner.py", ()),
    # Without its dependencies: MLX and the rest serve models, which are not measured here.
    LAZARUS: Peer(
        "chuk-lazarus",
        "lazarus_tokens_runner.py",
        (
            "--no-deps",
            "chuk-lazarus==0.4.1",
            "aiofiles==25.1.0",
            *(f"{name}=={version(name)}" for name in _BATCHING_NEEDS),
        ),
    ),
    TRL: Peer("trl", "trl_tokens_runner.py", ("torch==2.13.0", "trl==1.16.0", "datasets")),
}
PATIENCE = 900.0
"""Seconds after which a runner that does not answer is given up."""


def works(samples: int) -> list[tuple[Work, dict[str, str]]]:
    """What is measured, and what each contender's runner calls it."""
    tenth, fiftieth = max(100, samples // 10), max(100, samples // 50)
    assign = "assign_best_fit_decreasing"
    return [
        (Work("plan predictable", samples), {PHALANX: "plan_predictable", LAZARUS: "plan"}),
        (Work("plan throughput", samples), {PHALANX: "plan_throughput", PLAIN: "plan"}),
        (Work("assign", samples), {PHALANX: assign, PLAIN: "assign"}),
        (Work("assign", samples, "hard"), {PHALANX: assign, PLAIN: "assign"}),
        (Work("assign hybrid", samples, "hard"), {PHALANX: "assign_hybrid"}),
        (Work("assign", tenth), {PHALANX: assign, TRL: "assign"}),
        (Work("pack tokens", tenth, unit="tokens"), {PHALANX: "materialise", TRL: "materialise"}),
        (
            Work("pack tokens in parts", tenth, unit="tokens"),
            {PHALANX: "materialise_parts", TRL: "materialise"},
        ),
        (Work("save plan", samples), {PHALANX: "plan_save", LAZARUS: "plan_save"}),
        (Work("load plan", samples), {PHALANX: "plan_load", LAZARUS: "plan_load"}),
        # A fiftieth: chuk-lazarus takes minutes for all of them.
        (Work("write lengths", fiftieth), {PHALANX: "lengths_write", LAZARUS: "lengths_write"}),
        (Work("read lengths", fiftieth), {PHALANX: "lengths_read", LAZARUS: "lengths_read"}),
        (Work("suggest 4 buckets", samples), {PHALANX: "suggest_4", LAZARUS: "suggest_4"}),
        (Work("suggest 8 buckets", samples), {PHALANX: "suggest_8", LAZARUS: "suggest_8"}),
    ]


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
    parser.add_argument("--venv-dir", type=pathlib.Path, default=cache / "phalanx" / "peers")
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument(
        "--peers",
        type=lambda text: tuple(text.split(",")),
        default=(LAZARUS, TRL, PLAIN),
        help=f"some of {LAZARUS},{TRL},{PLAIN}",
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="about the least that one repeat lasts")
    parser.add_argument("--json", action="store_true", help="JSON lines only, no tables")
    parser.add_argument("--markdown", type=pathlib.Path, help="write the tables to this file")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.peers if name not in PEERS]:
        parser.error(
            f"unknown peer {unknown[0]!r}; there are {', '.join(name for name in PEERS if name != PHALANX)}"
        )
    return arguments


def measure(
    work: Work, names: dict[str, str], folder: pathlib.Path, arguments: argparse.Namespace
) -> list[Measurement]:
    """Prepare every contender one after the other, then measure them in turns."""
    with contextlib.ExitStack() as stack:
        runners: list[tuple[str, Runner]] = []
        for contender, name in names.items():
            if contender != PHALANX and contender not in arguments.peers:
                continue
            peer = PEERS[contender]
            settings: dict[str, Any] = {
                "work": name,
                "samples": work.samples,
                "distribution": work.distribution,
                "seconds": arguments.seconds,
                "folder": folder,
            }
            python = peer.python(arguments.venv_dir)
            runner = stack.enter_context(Runner(python, peer.runner, settings, PATIENCE))
            runner.wait_until_ready()
            runners.append((contender, runner))
        rates: list[list[float]] = [[] for _ in runners]
        for _ in range(arguments.repeats):
            for (_, runner), measured in zip(runners, rates, strict=True):
                measured.append(runner.measure())
        return [
            Measurement(work, contender, tuple(measured), {**runner.conditions, **conditions()})
            for (contender, runner), measured in zip(runners, rates, strict=True)
        ]


def main() -> int:
    arguments = parse_arguments()
    measurements: list[Measurement] = []
    with tempfile.TemporaryDirectory() as folder:
        for work, names in works(arguments.samples):
            for measurement in measure(work, names, pathlib.Path(folder), arguments):
                measurements.append(measurement)
                print(json.dumps(measurement.record()), flush=True)
    comparison = Comparison(measurements)
    verdicts = comparison.verdicts()
    for verdict in verdicts:
        print(json.dumps(verdict.record("compare_tokens")), flush=True)
    if not arguments.json:
        print_tables(comparison, verdicts, Console(width=None if sys.stdout.isatty() else 140))
    if arguments.markdown is not None:
        here = conditions()
        told = (
            f"`python benchmarks/compare_tokens.py`: {arguments.repeats} interleaved repeats, medians; "
            f"{here['nproc']} cores of {here['cpu']}."
        )
        with atomic_write(arguments.markdown, "w") as file:
            file.write(markdown(comparison, verdicts, told))
    return 1 if any(not verdict.passed for verdict in verdicts) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RunnerError as error:
        sys.exit(f"compare_tokens: {error}")
