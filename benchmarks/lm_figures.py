"""The figures of the language model on puzzle text: how soon the loss falls, and what packing spares.

The text comes from a real puzzle server, which is started from the Python that has it (this one, or
PHALANX_ARCADE_PYTHON), or from a file that `phalanx puzzles collect` wrote. One JSON line for each figure
with `--json`, else a table; the exit code is 1 if a target is missed.
"""

import argparse
import asyncio
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from arcade_server import MISSING, RealServer, installed_server
from measuring.verdicts import Verdict, show_verdicts

from phalanx.data import write_samples
from phalanx.puzzles.server_client import CollectConfig, PuzzleClientConfig, PuzzleSampleStream
from phalanx.training import SFT, SFTConfig, train

BINARY = ("binary",)
MIXED = ("binary", "bridges", "futoshiki", "hitori", "lights", "tents")
FALLEN = 0.2
"""The part of its start that the loss is to fall below."""
ROW = 1056
"""Width of a packed row: four binary puzzles."""


@dataclasses.dataclass(frozen=True)
class Point:
    """Where a training stands after some updates."""

    update: int
    loss: float
    """On held-out samples."""
    num_slots: int
    tokens: int
    seconds: float
    """Since the training was called: compiling, measuring and saving included."""


async def collect(port: int, games: tuple[str, ...], episodes: int, path: Path) -> None:
    """Play puzzles by their hints and write the samples."""
    config = CollectConfig(client=PuzzleClientConfig(host="127.0.0.1", port=port), games=games, seed=0)
    async with PuzzleSampleStream(config, max_episodes=episodes) as stream:
        write_samples(path, [sample async for sample in stream])


def curve(samples: Path, folder: Path, packed: bool, updates: int, every: int, budget: int) -> list[Point]:
    """Train, and say how it went."""
    config = SFTConfig.load(
        None,
        (
            f"data.samples={samples}",
            f"data.packing={packed}",
            f"data.max_length={ROW}",
            f"data.token_budget={budget}",
            f"num_updates={updates}",
            f"evaluation.every={every}",
        ),
    )
    began = time.time()
    outcome = train(SFT(config), folder)
    lines = [json.loads(line) for line in (folder / "batch_metrics.jsonl").read_text().splitlines()]
    told = {line["step"]: line["metrics"] for line in lines}
    none = {"num_slots": 0, "tokens": 0}
    return [
        Point(
            measured["step"],
            measured["loss"],
            int(told.get(measured["step"], none)["num_slots"]),
            int(told.get(measured["step"], none)["tokens"]),
            measured["timestamp"] - began,
        )
        for measured in outcome.evaluations
    ]


def first_below(points: list[Point], loss: float) -> Point:
    """Where the loss is first at most this."""
    found = next((point for point in points if point.loss <= loss), None)
    if found is None:
        raise ValueError(f"the loss never fell to {loss:.3f}; the last was {points[-1].loss:.3f}")
    return found


def measure(files: Mapping[tuple[str, ...], Path], options: argparse.Namespace) -> list[tuple[Verdict, dict]]:
    """Every figure, with what else is worth knowing about it."""
    found = []
    with tempfile.TemporaryDirectory() as folder:

        def train(games: tuple[str, ...], packed: bool) -> list[Point]:
            name = Path(folder) / f"{'-'.join(games)}-{packed}"
            return curve(files[games], name, packed, options.updates, options.every, options.budget)

        points = train(BINARY, True)
        fallen = first_below(points, FALLEN * points[0].loss)
        work = f"binary, loss {points[0].loss:.2f} to {fallen.loss:.2f} or below"
        facts = {"curve": [dataclasses.asdict(point) for point in points]}
        found.append((Verdict("seconds to a fifth of the loss", work, fallen.seconds, 180, True), facts))
        packed, unpacked = train(MIXED, True), train(MIXED, False)
        wanted = max(packed[-1].loss, unpacked[-1].loss)
        ends = {"packed": first_below(packed, wanted), "unpacked": first_below(unpacked, wanted)}
        for name, point in ends.items():
            work = f"{name}, {', '.join(MIXED)}: to loss {wanted:.3f}"
            found.append((Verdict("padded tokens", work, point.num_slots, None), dataclasses.asdict(point)))
        for name, points in (("packed", packed), ("unpacked", unpacked)):
            last = points[-1]
            padding = 1 - last.tokens / last.num_slots
            work = f"{name}, after {last.update} updates, {padding:.1%} padding"
            facts = {"curve": [dataclasses.asdict(point) for point in points]}
            found.append((Verdict("held-out loss", work, last.loss, None), facts))
        ratio = ends["packed"].num_slots / ends["unpacked"].num_slots
        found.append(
            (Verdict("padded tokens, packed over unpacked", f"to loss {wanted:.3f}", ratio, 1, True), {})
        )
    return found


def main() -> int:
    """Collect, train, print, and say by the exit code whether every target is reached."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=200, help="puzzles to collect for each training")
    parser.add_argument("--updates", type=int, default=80)
    parser.add_argument("--every", type=int, default=5, help="updates between measurements")
    parser.add_argument("--budget", type=int, default=4 * ROW, help="tokens of a batch")
    parser.add_argument("--json", action="store_true", help="one JSON line for each figure")
    options = parser.parse_args()
    package = installed_server()
    if package is None:
        print(MISSING, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        files = {games: Path(folder) / f"{'-'.join(games)}.jsonl" for games in (BINARY, MIXED)}
        server = RealServer(package)
        server.start()
        try:
            for games, path in files.items():
                asyncio.run(collect(server.port, games, options.episodes, path))
        finally:
            server.kill()
        found = measure(files, options)
    return show_verdicts(found, "language_model", "the language model", options.json)


if __name__ == "__main__":
    sys.exit(main())
