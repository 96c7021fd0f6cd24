"""Phalanx's token batching beside chuk-lazarus, TRL, plain C and fairseq's way of filling; interleaved.

The peers are installed from PyPI, each in a virtual environment of its own. JSON lines go to standard output
as they are measured, then a table of seconds, ratios and targets. The method is told in `docs/tokens.md`.
"""

import argparse
import dataclasses
import pathlib
import tempfile
from importlib.metadata import version
from typing import Any

from measuring import turns
from measuring.conditions import conditions
from measuring.options import peer_options, positive, words
from measuring.peers import Peer
from measuring.turns import Contender
from measuring.verdicts import Comparison, Measurement, Verdict

PHALANX, LAZARUS, TRL, PLAIN = "phalanx", "chuk-lazarus", "trl", "plain reference"

_BATCHING_NEEDS = (
    "numpy",
    "pydantic",
    "pydantic_core",
    "annotated-types",
    "typing-inspection",
    "typing_extensions",
)
PEERS = {
    PHALANX: Peer("phalanx", "phalanx_tokens_runner.py"),
    PLAIN: Peer("plain", "plain_tokens_runner.py"),
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


@dataclasses.dataclass(frozen=True)
class Work:
    """One thing to be done, as every contender does it."""

    name: str
    samples: int
    distribution: str = "lognormal"
    unit: str = "samples"
    """What a rate counts."""

    def __str__(self) -> str:
        return f"{self.name}, {self.samples:,} {self.distribution}"


class TokensMeasurement(Measurement):
    """One contender's repeats of one work; rates count samples or tokens."""

    @property
    def seconds(self) -> float:
        """How long the whole work takes, by the median."""
        return (self.facts["tokens"] if self.work.unit == "tokens" else self.work.samples) / self.median

    def record(self, benchmark: str, unit: str = "samples") -> dict[str, Any]:
        """The measurement as one JSON object; the work goes by its name, and the whole takes some seconds."""
        told = super().record(benchmark, self.work.unit)
        told["work"] = told.pop("name")
        told["seconds_median"] = round(self.seconds, 6)
        del told["unit"]
        return told


class TokensComparison(Comparison[TokensMeasurement]):
    """Against every peer."""

    title = "seconds (median)"

    def verdicts(self) -> list[Verdict]:
        verdicts: list[Verdict] = []
        for work in self.works:
            ours = self.get(work, PHALANX)
            if ours is not None:
                for peer in (LAZARUS, TRL, PLAIN):
                    theirs = self.get(work, peer)
                    if theirs is not None:
                        verdicts += _between(ours, theirs)
        return verdicts

    def cell(self, measurement: TokensMeasurement) -> str:
        """Seconds, with how tight or full the outcome is where that was found."""
        facts, extra = measurement.facts, ""
        if "efficiency" in facts:
            extra = f" ({facts['efficiency']:.4f} full)"
        elif "bins" in facts:
            extra = f" ({facts['bins']:,} bins)"
        return f"{measurement.seconds:.4g}{extra}"


def _between(ours: TokensMeasurement, theirs: TokensMeasurement) -> list[Verdict]:
    work, peer = ours.work, theirs.contender
    found = []

    def add(figure: str, measured: float, target: float, at_most: bool = False) -> None:
        found.append(Verdict(figure, str(work), measured, target, at_most))

    faster = ours.median / theirs.median
    least = {
        ("plan predictable", LAZARUS): 10.0,
        ("assign", TRL): 100.0,
        ("assign", PLAIN): 1 / 3,
        ("plan throughput", PLAIN): 1 / 2,
        ("pack tokens", TRL): 5.0,
        ("pack tokens in parts", TRL): 5.0,
        ("write lengths", LAZARUS): 10.0,
        ("read lengths", LAZARUS): 10.0,
        ("load plan", LAZARUS): 10.0,
    }
    if (work.name, peer) in least:
        add(f"speed over {peer}", faster, least[work.name, peer])
    if work.name == "plan predictable":
        add(
            f"peak memory over {peer}'s",
            ours.facts["memory_peak_mb"] / theirs.facts["memory_peak_mb"],
            1.0,
            True,
        )
        add(f"efficiency over {peer}'s", ours.facts["efficiency"] / theirs.facts["efficiency"], 1.0)
    elif work.name == "assign":
        add(f"bins over {peer}'s", ours.facts["bins"] / theirs.facts["bins"], 1.0, True)
    elif work.name.startswith("suggest"):
        add(f"efficiency over {peer}'s", ours.facts["efficiency"] / theirs.facts["efficiency"], 1.0)
    elif work.name == "save plan":
        add(f"bytes over {peer}'s", ours.facts["bytes"] / theirs.facts["bytes"], 1.0, True)
    return found


def works(samples: int) -> list[tuple[Work, dict[str, str]]]:
    """What is measured, and what each contender's runner calls it."""
    tenth, fiftieth = max(100, samples // 10), max(100, samples // 50)
    assign = "assign_best_fit_decreasing"
    return [
        (Work("plan predictable", samples), {PHALANX: "plan_predictable", LAZARUS: "plan"}),
        (Work("plan throughput", samples), {PHALANX: "plan_throughput", PLAIN: "plan"}),
        (Work("assign", samples), {PHALANX: assign, PLAIN: "assign"}),
        (Work("assign", samples, "hard"), {PHALANX: assign, PLAIN: "assign"}),
        (Work("assign subset_sum", samples, "hard"), {PHALANX: "assign_subset_sum"}),
        (Work("assign", tenth), {PHALANX: assign, TRL: "assign"}),
        (Work("pack tokens", tenth, unit="tokens"), {PHALANX: "materialize", TRL: "materialize"}),
        (
            Work("pack tokens in parts", tenth, unit="tokens"),
            {PHALANX: "materialize_parts", TRL: "materialize"},
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
    parser = peer_options(__doc__, 0.2)
    parser.add_argument("--samples", type=positive, default=1_000_000)
    parser.add_argument(
        "--peers",
        type=words,
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
    taken = turns.in_turns(contenders, arguments.venv_dir, arguments.repeats, PATIENCE)
    return [
        TokensMeasurement(work, contender.name, turn.rates, {**turn.conditions, **conditions("numpy")})
        for contender, turn in zip(contenders, taken, strict=True)
    ]


def main() -> int:
    arguments = parse_arguments()
    measurements: list[TokensMeasurement] = []
    with tempfile.TemporaryDirectory() as folder:
        for work, names in works(arguments.samples):
            for measurement in measure(work, names, pathlib.Path(folder), arguments):
                measurements.append(measurement)
                turns.say(measurement, "compare_tokens")
    return turns.tell("compare_tokens", TokensComparison(measurements), arguments)


if __name__ == "__main__":
    turns.run("compare_tokens", main)
