"""Resumable collection of episodes from a puzzle server into a JSON Lines file of samples."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.io.append_only import AppendOnlyFile
from phalanx.io.untrusted import parse_json
from phalanx.puzzles.server_client.client import PuzzleClient
from phalanx.puzzles.server_client.episode_pool import episode_specs
from phalanx.puzzles.server_client.episodes import (
    CollectConfig,
    Encode,
    PuzzleSampleStream,
    check_hints_known,
)

if TYPE_CHECKING:
    from phalanx.data.samples import Sample


class EpisodeMismatchError(ValueError):
    """Raised by `collect` if a rerun of the last episode in the output file gives different samples."""


@dataclasses.dataclass(frozen=True)
class ExistingEpisodes:
    """Complete episodes that an earlier run wrote to the output file."""

    count: int
    """Number of complete episodes, including those without moves, which have no samples in the file."""
    last: list[dict[str, Any]]
    """Samples of the last episode. Empty if there are no episodes."""


@dataclasses.dataclass(frozen=True)
class CollectResult:
    """Statistics of one call to `collect`."""

    new_episodes: int
    """Number of episodes that were added to the output file."""
    solved: int
    """Number of added episodes in which the puzzle was solved."""
    samples: int
    """Number of added samples."""
    reconnects: int
    """Number of times that a connection was replaced, because it was lost or too old."""
    episodes_replayed: int
    """Number of times that an episode was restored on a new connection."""


def load_existing_episodes(path: Path, config: CollectConfig, *, resume: bool) -> ExistingEpisodes:
    """Read the complete episodes in an output file, and remove an incomplete episode at the end of the file.

    Args:
        path: Output file, which may not exist yet.
        config: Settings for collecting episodes.
        resume: Whether to accept a file that already contains episodes, in order to append more episodes.

    Raises:
        FileNotFoundError: If the folder of the file does not exist.
        FileExistsError: If the file is not empty and `resume` is False.
        ValueError: If the file contains episodes that do not match these settings.
    """
    check_hints_known(config.games)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist")
    if not path.exists() or not path.stat().st_size:
        return ExistingEpisodes(0, [])
    if not resume:
        raise FileExistsError(f"{path} exists; continue it with --resume, or choose another file")
    count, last, end = 0, list[dict[str, Any]](), 0
    for offset, samples in _complete_episodes(path):
        name = str(samples[0]["episode_id"])
        number = name.rpartition("_")[2]
        index = int(number) if number.isdecimal() else -1
        spec = next(episode_specs(config.games, config.difficulties, config.seed, first=index))
        # An episode without moves has no samples, so episodes may be missing in the file.
        if index < count or spec.episode_id != name:
            raise ValueError(
                f"{path} has episode {name!r}, which these games, difficulties and seed do not give; resume "
                "with the settings of the first run, or choose another file"
            )
        count, last, end = index + 1, samples, offset
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
        encode: Function that converts text to token ids.
        path: Output file.
        num_episodes: Total number of episodes after this run, including the existing ones.
        existing: Episodes that are already in the file.
        on_episode: Function that is called after each new episode.

    Raises:
        EpisodeMismatchError: If the last existing episode, which is run again before new episodes as a check,
            gives different samples.
    """
    if existing.count >= num_episodes:
        return CollectResult(0, 0, 0, 0, 0)
    # The last existing episode is run again, to detect different settings or a different server.
    first = max(existing.count - 1, 0)
    # Check the connection with fewer retries, so that an unreachable server is reported early.
    async with PuzzleClient(config.client.model_copy(update={"max_retries": 2})):
        pass
    stream = PuzzleSampleStream(config, encode, first_episode=first, max_episodes=num_episodes - first)
    new_episodes = solved = num_samples = 0
    with contextlib.closing(AppendOnlyFile(path)) as file:
        async with stream:
            async for episode, samples in stream.episodes():
                if episode.index < existing.count:
                    _check_same_episode(path, existing.last, samples)
                    continue
                if samples:
                    # One write per episode, so that an interruption rarely leaves an incomplete episode.
                    file.write_line("\n".join(_sample_lines(samples)))
                new_episodes += 1
                solved += episode.success
                num_samples += len(samples)
                on_episode()
    pool = stream.pool
    return CollectResult(new_episodes, solved, num_samples, pool.reconnects, pool.episodes_replayed)


def _check_same_episode(path: Path, existing: list[dict[str, Any]], samples: Sequence["Sample"]) -> None:
    new = [json.loads(line) for line in _sample_lines(samples)]
    for sample in (*existing, *new):
        sample.pop("timestamp", None)  # the time at which the sample was created
    if existing != new:
        raise EpisodeMismatchError(
            f"{path}: episode {existing[0]['episode_id']!r} now gives other samples; the tokenizer, "
            "--max-steps or the server differ from the first run"
        )


def _sample_lines(samples: Sequence["Sample"]) -> list[str]:
    return [json.dumps(sample.to_dict(), separators=(",", ":")) for sample in samples]


def _complete_episodes(path: Path) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Iterate over the complete episodes in a file.

    Each item is a pair: the byte offset in the file at which the episode ends, and the episode's samples.
    """
    samples, offset = list[dict[str, Any]](), 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            sample = parse_json(line, f"{path}:{number}")
            if not isinstance(sample, dict) or not {"episode_id", "total_steps"} <= sample.keys():
                raise ValueError(f"{path}:{number}: not a sample of `phalanx puzzles collect`")
            if samples and samples[-1]["episode_id"] != sample["episode_id"]:
                raise ValueError(f"{path}:{number}: samples of the previous episode are missing")
            samples.append(sample)
            if len(samples) == sample["total_steps"]:
                yield offset, samples
                samples = []
