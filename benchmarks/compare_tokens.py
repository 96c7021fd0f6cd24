"""Phalanx's token batching beside chuk-lazarus, TRL, plain C and fairseq's way of filling; interleaved.

The peers are installed from PyPI, each in a virtual environment of its own. JSON lines go to standard output
as they are measured, then a table of seconds, ratios and targets. The method is told in `docs/tokens.md`.
"""

import argparse
import json
import pathlib
import tempfile
from importlib.metadata import version
from typing import Any

import measuring
import tokens_report
from measuring import Contender
from peers import Peer
from tokens_report import LAZARUS, PHALANX, PLAIN, TRL, TokensComparison, TokensMeasurement, Work

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
    parser = measuring.options(__doc__, 0.2, "about the least that one repeat lasts")
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument(
        "--peers",
        type=lambda text: tuple(text.split(",")),
        default=(LAZARUS, TRL, PLAIN),
        help=f"some of {LAZARUS},{TRL},{PLAIN}",
    )
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.peers if name not in PEERS]:
        parser.error(
            f"unknown peer {unknown[0]!r}; there are {', '.join(name for name in PEERS if name != PHALANX)}"
        )
    return arguments


def measure(
    work: Work, names: dict[str, str], folder: pathlib.Path, arguments: argparse.Namespace
) -> list[TokensMeasurement]:
    """Every contender's repeats of a work."""
    settings: dict[str, Any] = {
        "samples": work.samples,
        "distribution": work.distribution,
        "seconds": arguments.seconds,
        "folder": folder,
    }
    contenders = [
        Contender(name, PEERS[name], {**settings, "work": called})
        for name, called in names.items()
        if name == PHALANX or name in arguments.peers
    ]
    turns = measuring.in_turns(contenders, arguments.venv_dir, arguments.repeats, PATIENCE)
    return [
        TokensMeasurement(work, contender.name, turn.rates, {**turn.conditions, **conditions()})
        for contender, turn in zip(contenders, turns, strict=True)
    ]


def main() -> int:
    arguments = parse_arguments()
    measurements: list[TokensMeasurement] = []
    with tempfile.TemporaryDirectory() as folder:
        for work, names in works(arguments.samples):
            for measurement in measure(work, names, pathlib.Path(folder), arguments):
                measurements.append(measurement)
                print(json.dumps(measurement.record()), flush=True)
    here = conditions()
    told = f"{arguments.repeats} interleaved repeats, medians; {here['nproc']} cores of {here['cpu']}."
    return measuring.tell("compare_tokens", TokensComparison(measurements), tokens_report, arguments, told)


if __name__ == "__main__":
    measuring.run("compare_tokens", main)
