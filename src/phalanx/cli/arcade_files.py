"""Files of samples that grow by whole episodes: what is there, and whether it is of the same collection.

Playing the episodes is `phalanx arcade collect`'s; a sample's fields are those of `StreamSample`.
"""

import dataclasses
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.cli.errors import UserError

if TYPE_CHECKING:
    from phalanx.streams.pool import EpisodeSpec
    from phalanx.streams.types import StreamSample


@dataclasses.dataclass(frozen=True)
class Finished:
    """What an earlier run left."""

    count: int
    """Episodes that need not be played."""
    last: list[dict[str, Any]]
    """The samples of the last of them; none if there are no episodes."""


def finished_episodes(path: Path, specs: Iterator["EpisodeSpec"], *, resume: bool) -> Finished:
    """The episodes in the file, which must be those of `specs`; an unfinished last one is cut off.

    Without `resume` a file that holds anything is refused.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist")
    if not path.exists() or not path.stat().st_size:
        return Finished(0, [])
    if not resume:
        raise FileExistsError(f"{path} is there already; go on with --resume, or name another file")
    count, last, end = 0, list[dict[str, Any]](), 0
    for place, samples in _whole_episodes(path):
        name = str(samples[0]["episode_id"])
        # An episode without moves leaves no sample, so some may be missing here.
        if not any(spec.episode_id == name for spec in _up_to(specs, _index(name))):
            raise ValueError(
                f"{path} holds episode {name!r}, which these games, difficulties and seed do not give; "
                "resume with the settings it was begun with, or name another file"
            )
        count, last, end = _index(name) + 1, samples, place
    if end < path.stat().st_size:
        os.truncate(path, end)
    return Finished(count, last)


def check_same_episode(path: Path, there: list[dict[str, Any]], made: Sequence["StreamSample"]) -> None:
    """Refuse to go on if an episode that is played again does not give what the file holds."""
    now = [json.loads(line) for line in sample_lines(made)]
    if [_timeless(sample) for sample in there] != [_timeless(sample) for sample in now]:
        raise UserError(
            f"{path}: episode {there[0]['episode_id']!r} gives other samples now; the tokenizer, --max-steps "
            "or the server differ from those it was begun with"
        )


def sample_lines(samples: Sequence["StreamSample"]) -> list[str]:
    """One line for each sample."""
    return [json.dumps(sample.to_dict(), separators=(",", ":")) for sample in samples]


def _timeless(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sample.items() if name != "timestamp"}


def _whole_episodes(path: Path) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Where each whole episode ends, and its samples."""
    samples: list[dict[str, Any]] = []
    with path.open("rb") as file:
        for number in itertools.count(1):
            line = file.readline()
            if not line.endswith(b"\n"):
                return
            sample = _sample(line, f"{path}:{number}")
            if samples and samples[-1]["episode_id"] != sample["episode_id"]:
                raise ValueError(f"{path}:{number}: the episode before it has not all its samples")
            samples.append(sample)
            if len(samples) == sample["total_steps"]:
                yield file.tell(), samples
                samples = []


def _sample(line: bytes, where: str) -> dict[str, Any]:
    try:
        sample = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where}: not JSON: {error}") from error
    if not isinstance(sample, dict) or not {"episode_id", "total_steps"} <= set(sample):
        raise ValueError(f"{where}: not a sample of `phalanx arcade collect`")
    return sample


def _index(episode_id: str) -> int:
    tail = episode_id.rpartition("_")[2]
    return int(tail) if tail.isdecimal() else -1


def _up_to(specs: Iterator["EpisodeSpec"], index: int) -> Iterator["EpisodeSpec"]:
    """The specs that are left, up to the one of this index."""
    if index < 0:
        return
    for spec in specs:
        yield spec
        if spec.index >= index:
            return
