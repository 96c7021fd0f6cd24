"""Collection of episodes from a puzzle server into a JSON Lines file of samples, which can be resumed."""

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.io.jsonl import JsonlFile
from phalanx.puzzles.server.client import PuzzleClient
from phalanx.puzzles.server.episodes import CollectConfig, Encode, PuzzleSampleStream, check_hints_known
from phalanx.puzzles.server.pool import EpisodeSpec, episode_specs

if TYPE_CHECKING:
    from phalanx.data.samples import Sample


class EpisodeMismatchError(ValueError):
    """Raised if an episode that is run again gives other samples than those in the file."""


@dataclasses.dataclass(frozen=True)
class ExistingEpisodes:
    """Complete episodes that an earlier run wrote to the output file."""

    count: int
    """Number of episodes that need not be run again."""
    last: list[dict[str, Any]]
    """Samples of the last episode. Empty if there are no episodes."""


@dataclasses.dataclass(frozen=True)
class CollectResult:
    """Statistics of one run of a collection."""

    new_episodes: int
    """Number of episodes that this run added."""
    solved: int
    """Number of added episodes in which the puzzle was solved."""
    samples: int
    """Number of added samples."""
    reconnects: int
    """Number of connections that replaced another one."""
    episodes_replayed: int
    """Number of times that an episode was restored on a new connection."""


def read_existing(path: Path, config: CollectConfig, *, resume: bool) -> ExistingEpisodes:
    """Read the complete episodes in an output file, and remove an incomplete episode at its end.

    Args:
        path: Output file, which may not exist yet.
        config: Settings of the collection.
        resume: Whether the file may already contain episodes.

    Raises:
        FileNotFoundError: If the folder of the file does not exist.
        FileExistsError: If the file is not empty and `resume` is False.
        ValueError: If the file contains episodes that do not belong to these settings.
    """
    check_hints_known(config.games)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist")
    if not path.exists() or not path.stat().st_size:
        return ExistingEpisodes(0, [])
    if not resume:
        raise FileExistsError(f"{path} exists; continue it with --resume, or choose another file")
    specs = episode_specs(config.games, config.difficulties, config.seed)
    count, last, end = 0, list[dict[str, Any]](), 0
    for offset, samples in _complete_episodes(path):
        name = str(samples[0]["episode_id"])
        # An episode without moves has no samples, so episodes may be missing in the file.
        if not any(spec.episode_id == name for spec in _up_to(specs, _index(name))):
            raise ValueError(
                f"{path} has episode {name!r}, which these games, difficulties and seed do not give; resume "
                "with the settings of the first run, or choose another file"
            )
        count, last, end = _index(name) + 1, samples, offset
    if end < path.stat().st_size:
        os.truncate(path, end)
    return ExistingEpisodes(count, last)


async def collect(
    config: CollectConfig,
    encode: Encode,
    path: Path,
    num_episodes: int,
    existing: ExistingEpisodes,
    on_episode: Callable[[], object] = lambda: None,
) -> CollectResult:
    """Run episodes by following the server's hints, and append their samples to a file.

    Args:
        config: Server, games and connections.
        encode: Function that converts a text to token ids.
        path: Output file.
        num_episodes: Total number of episodes, including the existing ones.
        existing: Episodes that are already in the file.
        on_episode: Function that is called after each new episode.

    Raises:
        EpisodeMismatchError: If the last existing episode, which is run again as a check, gives other
            samples.
    """
    # The last existing episode is run again, to detect different settings or a different server.
    first = existing.count - 1 if 0 < existing.count < num_episodes else existing.count
    if first < num_episodes:
        # Fail sooner if the server is unreachable from the start than if it disappears later.
        async with PuzzleClient(config.client.model_copy(update={"max_retries": 2})):
            pass
    stream = PuzzleSampleStream(
        config, encode, first_episode=first, max_episodes=max(num_episodes - first, 0)
    )
    new_episodes = solved = num_samples = 0
    file = JsonlFile(path)
    try:
        async with stream:
            async for spec, samples in stream.episodes():
                if spec.index < existing.count:
                    _check_same_episode(path, existing.last, samples)
                    continue
                if samples:
                    # One write per episode, so that an interruption rarely leaves an incomplete episode.
                    file.write_line("\n".join(_sample_lines(samples)))
                new_episodes += 1
                solved += bool(samples and samples[0].info and samples[0].info.success)
                num_samples += len(samples)
                on_episode()
    finally:
        file.close()
    metrics = stream.metrics
    return CollectResult(new_episodes, solved, num_samples, metrics.reconnects, metrics.episodes_replayed)


def _check_same_episode(path: Path, existing: list[dict[str, Any]], samples: Sequence["Sample"]) -> None:
    new = [json.loads(line) for line in _sample_lines(samples)]
    if [_without_time(sample) for sample in existing] != [_without_time(sample) for sample in new]:
        raise EpisodeMismatchError(
            f"{path}: episode {existing[0]['episode_id']!r} now gives other samples; the tokenizer, "
            "--max-steps or the server differ from the first run"
        )


def _sample_lines(samples: Sequence["Sample"]) -> list[str]:
    return [json.dumps(sample.to_dict(), separators=(",", ":")) for sample in samples]


def _without_time(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sample.items() if name != "timestamp"}


def _complete_episodes(path: Path) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Iterate over the complete episodes of a file, as pairs of the end offset in bytes and the samples."""
    samples: list[dict[str, Any]] = []
    with path.open("rb") as file:
        for number in itertools.count(1):
            line = file.readline()
            if not line.endswith(b"\n"):
                return
            sample = _parse_sample(line, f"{path}:{number}")
            if samples and samples[-1]["episode_id"] != sample["episode_id"]:
                raise ValueError(f"{path}:{number}: samples of the previous episode are missing")
            samples.append(sample)
            if len(samples) == sample["total_steps"]:
                yield file.tell(), samples
                samples = []


def _parse_sample(line: bytes, where: str) -> dict[str, Any]:
    try:
        sample = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON: {error}") from error
    if not isinstance(sample, dict) or not {"episode_id", "total_steps"} <= set(sample):
        raise ValueError(f"{where}: not a sample of `phalanx puzzles collect`")
    return sample


def _index(episode_id: str) -> int:
    tail = episode_id.rpartition("_")[2]
    return int(tail) if tail.isdecimal() else -1


def _up_to(specs: Iterator[EpisodeSpec], index: int) -> Iterator[EpisodeSpec]:
    """Iterate over the remaining specs up to and including the one with an index."""
    if index < 0:
        return
    for spec in specs:
        yield spec
        if spec.index >= index:
            return
