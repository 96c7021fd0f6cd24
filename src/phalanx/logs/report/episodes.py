"""The sampled episodes of a run: what the log says of them, and their pictures, newest first.

The pictures are taken as they are; they were drawn by `SVGHandler`.
"""

import base64
import dataclasses
import json
import re
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from phalanx.logs.report.records import finite

MAX_EPISODES = 60
"""Episodes in a page at most; shared out among the runs where several are compared."""
MAX_BYTES = 3_000_000
"""What their pictures may take in the page, compressed."""

_FOLDER = re.compile(r"episode_(\d+)(?:_env_(\d+))?")
_STEP = re.compile(r"step_(\d+)")

Key = tuple[int, int | None]


@dataclasses.dataclass(frozen=True)
class Episode:
    """One sampled episode."""

    number: int
    """The update that it was sampled at."""
    environment: int | None
    """The environment that it ran in, where the log says so."""
    record: dict[str, Any]
    """Its line in `episodes.jsonl`; empty if it has none."""
    folder: Path | None
    """Where its pictures are; None without pictures."""

    @property
    def solved(self) -> bool | None:
        """Whether it was; None where the log does not say."""
        success = self.record.get("success")
        return success if isinstance(success, bool) else None


def find_episodes(folder: Path, records: Iterable[dict[str, Any]]) -> list[Episode]:
    """The episodes that have a line or a folder of pictures, the newest first."""
    lines = {key: record for record in records if (key := _key_of(record)) is not None}
    folders = _folders(folder)
    # By update, newest first; then by environment.
    keys = sorted(lines.keys() | folders.keys(), key=lambda key: (-key[0], -1 if key[1] is None else key[1]))
    return [Episode(key[0], key[1], lines.get(key, {}), folders.get(key)) for key in keys]


def embedded(episodes: list[Episode], run: int, limit: int, budget: int) -> tuple[list[dict[str, Any]], int]:
    """The newest episodes as the page holds them, and how many were left out.

    An episode's pictures are compressed together, so that a frame costs little more than its difference
    from the others.
    """
    found: list[dict[str, Any]] = []
    spent = 0
    for episode in episodes[:limit]:
        names, pictures = _frames(episode.folder)
        packed = _packed(pictures) if pictures else ""
        spent += len(packed)
        if spent > budget:
            break
        record = episode.record
        task = record.get("task_id")
        found.append(
            {
                "run": run,
                "update": episode.number,
                "environment": episode.environment,
                "task": None if task is None else str(task),
                "solved": episode.solved,
                "reward": finite(record.get("total_reward")),
                "steps": finite(record.get("total_steps")),
                "similarity": finite(record.get("final_similarity")),
                "frames": names,
                "pictures": packed,
            }
        )
    return found, len(episodes) - len(found)


def _key_of(record: dict[str, Any]) -> Key | None:
    number, environment = record.get("episode_num"), record.get("environment_id")
    if isinstance(number, bool) or not isinstance(number, int):
        return None
    return number, environment if isinstance(environment, int) else None


def _folders(folder: Path) -> dict[Key, Path]:
    if not folder.is_dir():
        return {}
    matches = ((path, _FOLDER.fullmatch(path.name)) for path in folder.iterdir())
    return {
        (int(match[1]), None if match[2] is None else int(match[2])): path
        for path, match in matches
        if match and path.is_dir()
    }


def _frames(folder: Path | None) -> tuple[list[list[Any]], list[str]]:
    """A name and a place among the pictures for each frame, in the order of the episode; and the pictures.

    Frames that look the same share a picture; a last step that is also the final state is one frame.
    """
    if folder is None:
        return [], []
    found = []
    for path in folder.glob("*.svg"):
        step = _STEP.fullmatch(path.stem)
        if step or path.stem in ("initial", "final"):
            order = int(step[1]) if step else (-1 if path.stem == "initial" else 1 << 62)
            found.append((order, f"step {int(step[1])}" if step else path.stem, path))
    places: dict[str, int] = {}
    frames: list[list[Any]] = []
    for _, name, path in sorted(found):
        place = places.setdefault(path.read_bytes().decode(errors="replace"), len(places))
        if name == "final" and frames and frames[-1][1] == place and len(frames) > 1:
            frames[-1] = [f"{frames[-1][0]}, final", place]
        else:
            frames.append([name, place])
    return frames, list(places)


def _packed(pictures: list[str]) -> str:
    return base64.b64encode(zlib.compress(json.dumps(pictures).encode(), 9)).decode()
