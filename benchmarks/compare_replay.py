"""Phalanx's replay buffer beside chuk-lazarus's: memory, adding, and drawing by priority.

chuk-lazarus is installed from PyPI in a virtual environment of its own, the one of `compare_tokens.py`. The
two run one after the other, each in a process of its own, because a million samples take chuk-lazarus some
gigabytes. JSON lines go to standard output, then a table of figures and targets. The method is told in
`docs/streams.md`.
"""

import argparse
import json
import statistics
import subprocess
from typing import Any

from compare_tokens import LAZARUS, PEERS, PHALANX
from measuring import turns
from measuring.conditions import conditions
from measuring.options import peer_options, positive
from measuring.peers import RUNNERS, RunnerError
from measuring.records import console
from measuring.verdicts import Verdict, exit_code, figures_table

RUNNER_OF = {PHALANX: "phalanx_replay_runner.py", LAZARUS: "lazarus_replay_runner.py"}
QUICK, FULL = 100_000, 1_000_000
PATIENCE = 1800.0
"""Seconds after which a runner is given up."""


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = peer_options(__doc__, 1.0)
    parser.add_argument("--samples", type=positive, default=FULL)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} samples")
    parser.add_argument("--tokens", type=positive, default=100, help="mean length of a sample")
    parser.add_argument("--vocabulary", type=positive, default=50_000)
    parser.add_argument("--alone", action="store_true", help="Phalanx only")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.samples = QUICK
    return arguments


def measure(contender: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything that a contender's runner says, in one record."""
    python = PEERS[contender].python(arguments.venv_dir)
    options = {name: getattr(arguments, name) for name in ("samples", "tokens", "vocabulary")}
    command = [str(python), str(RUNNERS / RUNNER_OF[contender])]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    environment = {**PEERS[contender].environment(), "PYTHONHASHSEED": "0"}
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment
        )
    except subprocess.TimeoutExpired as error:
        raise RunnerError(f"{contender} gave no answer in {PATIENCE:g} s") from error
    if result.returncode != 0:
        last = "\n".join(result.stderr.strip().splitlines()[-8:])
        raise RunnerError(f"{contender} ended with code {result.returncode}:\n{last}")
    record: dict[str, Any] = {"benchmark": "compare_replay", **options}
    for line in result.stdout.splitlines():
        record |= json.loads(line)
    del record["event"]
    for name in ("draw_seconds", "hard_seconds"):
        record[name] = statistics.median(record[name])
    return {**record, **conditions("numpy")}


def verdicts_of(ours: dict[str, Any], theirs: dict[str, Any]) -> list[Verdict]:
    """The figures that both records show."""
    work = f"{ours['samples']:,} samples of about {ours['tokens']} tokens"

    def faster(name: str) -> float:
        return theirs[name] / ours[name]

    def whole(record: dict[str, Any], when: str) -> float:
        return record[f"{when}_make_seconds"] + record[f"{when}_add_seconds"]

    return [
        Verdict("drawing 32 by priority, speed over chuk-lazarus", work, faster("draw_seconds"), 20.0),
        Verdict("drawing 32 hard ones, speed over chuk-lazarus", work, faster("hard_seconds"), None),
        Verdict(
            "memory over chuk-lazarus's", work, ours["memory_mb"] / theirs["memory_mb"], 0.5, at_most=True
        ),
        Verdict("memory over 4 bytes a token", work, ours["memory_mb"] / ours["token_mb"], None),
        Verdict(
            "making and adding while it fills, speed over chuk-lazarus",
            work,
            whole(theirs, "filling") / whole(ours, "filling"),
            1.0,
        ),
        Verdict(
            "making and adding when it is full, speed over chuk-lazarus",
            work,
            whole(theirs, "full") / whole(ours, "full"),
            1.0,
        ),
        Verdict("adding while it fills, speed over chuk-lazarus", work, faster("filling_add_seconds"), None),
        Verdict("adding when it is full, speed over chuk-lazarus", work, faster("full_add_seconds"), None),
        Verdict("snapshot, speed over chuk-lazarus", work, faster("snapshot_seconds"), None),
    ]


def main() -> int:
    arguments = parse_arguments()
    records = {}
    for contender in (PHALANX,) if arguments.alone else (PHALANX, LAZARUS):
        records[contender] = measure(contender, arguments)
        print(json.dumps(records[contender]), flush=True)
    if arguments.alone:
        return 0
    verdicts = verdicts_of(records[PHALANX], records[LAZARUS])
    for verdict in verdicts:
        print(json.dumps(verdict.record("compare_replay")), flush=True)
    if not arguments.json:
        console().print(figures_table(verdicts))
    return exit_code(verdicts)


if __name__ == "__main__":
    turns.run("compare_replay", main)
