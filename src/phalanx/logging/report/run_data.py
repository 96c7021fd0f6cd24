"""What a run directory holds, and its sampled episodes with their pictures, newest first.

The pictures are taken as they are: they were drawn by `SVGHandler`. Nothing here changes a run.
"""

import base64
import dataclasses
import json
import os
import re
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from phalanx.formatting import escape_untrusted, format_count
from phalanx.io.untrusted import MAX_BYTES as MAX_FILE_BYTES, is_regular_file, read_limited, read_yaml
from phalanx.logging.records import flatten_settings
from phalanx.logging.report.panels import Panel, read_panels
from phalanx.logging.report.tables import (
    Table,
    evaluation_tables,
    finite,
    has_metrics,
    has_step,
    metrics_table,
    read_object,
    read_whole_records,
)

MAX_EPISODES = 60
"""Episodes in a page at most; shared out among the runs where several are compared."""
MAX_BYTES = 3_000_000
"""What their pictures may take in the page, compressed."""

_MOST_FRAMES = 2000
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


def embed_episodes(
    episodes: list[Episode], run: int, limit: int, budget: int
) -> tuple[list[dict[str, Any]], int]:
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
    if not folder.is_dir() or folder.is_symlink():
        return {}
    matches = ((path, _FOLDER.fullmatch(path.name)) for path in folder.iterdir())
    return {
        (int(match[1]), None if match[2] is None else int(match[2])): path
        for path, match in matches
        if match and path.is_dir() and not path.is_symlink()
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
        # A link could bring any file of this machine into a page that is passed on.
        if not is_regular_file(path) or path.stat().st_size > MAX_FILE_BYTES:
            continue
        if step or path.stem in ("initial", "final"):
            order = int(step[1]) if step else (-1 if path.stem == "initial" else 1 << 62)
            found.append((order, f"step {int(step[1])}" if step else path.stem, path))
    places: dict[str, int] = {}
    frames: list[list[Any]] = []
    for _, name, path in sorted(found)[:_MOST_FRAMES]:
        place = places.setdefault(read_limited(path).decode(errors="replace"), len(places))
        if name == "final" and frames and frames[-1][1] == place and len(frames) > 1:
            frames[-1] = [f"{frames[-1][0]}, final", place]
        else:
            frames.append([name, place])
    return frames, list(places)


def _packed(pictures: list[str]) -> str:
    return base64.b64encode(zlib.compress(json.dumps(pictures).encode(), 9)).decode()


PARTS = ("run.json", "batch_metrics.jsonl", "evaluations.jsonl", "episodes.jsonl", "config.yaml")
"""The files that make a folder a run; one of them is enough."""

_CONFIG = re.compile(r"config(?:\.(\d+))?\.yaml")


@dataclasses.dataclass(frozen=True)
class SubmissionData:
    """What a policy has handed in for one data set."""

    title: str
    lines: list[str]
    pictures: dict[str, bytes]
    """SVG by name."""


@dataclasses.dataclass(frozen=True)
class RunData:
    """What a run directory holds."""

    path: Path
    """The directory, absolute."""
    facts: dict[str, Any]
    """`run.json`."""
    config: dict[str, str]
    """The config by dotted keys, values as text."""
    metrics: Table
    """`batch_metrics.jsonl`."""
    evaluations: dict[tuple[str, str], Table]
    """`evaluations.jsonl` by split and mode."""
    evaluation_records: list[dict[str, Any]]
    """The same by the line, for what is no curve."""
    episodes: list[Episode]
    """Sampled episodes, the newest first."""
    notes: list[str]
    """What is missing or could not be read, in words."""
    handed_in: list[SubmissionData] = dataclasses.field(default_factory=list)
    """Answers to data sets, as `phalanx eval --data` writes them."""
    panels: list[Panel] = dataclasses.field(default_factory=list)
    """Panels of the run's environment."""

    @property
    def name(self) -> str:
        """The run's name, or its folder's."""
        return str(self.facts.get("name") or self.path.name)

    def __repr__(self) -> str:
        told = [str(self.facts[name]) for name in ("algorithm", "status") if self.facts.get(name)]
        updates = [f"{int(self.metrics.axes['update'][-1])} updates"] if len(self.metrics) else []
        return f"RunData({', '.join([self.name, *told, *updates])}, {self.path})"

    def _repr_html_(self) -> str:
        from phalanx.logging.report.page import run_html

        return run_html(self)


def find_submissions(folder: Path, notes: list[str]) -> list[SubmissionData]:
    """What `phalanx eval --data` has left in a run, by name; links are passed over."""
    if not folder.is_dir() or folder.is_symlink():
        return []
    found = []
    for part in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
        summary = read_object(part / "summary.json", notes) if is_regular_file(part / "summary.json") else {}
        if not summary:
            continue
        pictures = {
            name: path.read_bytes()
            for name in ("failures", "operations")
            if is_regular_file(path := part / f"{name}.svg") and path.stat().st_size <= MAX_FILE_BYTES
        }
        said = summary.get("lines")
        lines = [escape_untrusted(str(line))[:500] for line in said[:20]] if isinstance(said, list) else []
        found.append(
            SubmissionData(escape_untrusted(str(summary.get("title", part.name)))[:200], lines, pictures)
        )
    return found


def read_run(path: str | os.PathLike[str]) -> RunData:
    """Read a run directory. What is missing or damaged is named in its `notes`.

    A run of several seeds, a folder each, is read as one. Raises a ValueError for a folder that holds nothing
    of a run.
    """
    folder = Path(path)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ValueError(f"{folder} {what}; give a run directory, as `phalanx train` writes it")
    folder = folder.resolve()
    if not any(_is_there(folder, name) for name in PARTS):
        raise ValueError(f"{folder} is no run directory: it holds none of {', '.join(PARTS)}")
    notes: list[str] = []
    facts = read_object(folder / "run.json", notes)
    if seeds := _seeds(folder):
        from phalanx.logging.report.seed_statistics import merged_seeds

        merged = merged_seeds(folder, facts, [read_run(seed) for seed in seeds])
        return dataclasses.replace(merged, panels=read_panels(folder, merged.notes))
    config = _read_config(folder, notes)
    metrics = metrics_table(read_whole_records(folder / "batch_metrics.jsonl", notes, has_metrics))
    records = read_whole_records(folder / "evaluations.jsonl", notes, has_step)
    evaluations = evaluation_tables(records, metrics)
    lines = read_whole_records(folder / "episodes.jsonl", notes)
    episodes = find_episodes(folder / "episodes", lines)
    if links := sum(found.is_symlink() for found in (folder / "episodes").rglob("*")):
        notes.append(f"episodes/: {format_count(links, 'link')} to other places, left out.")
    missing = {
        "No run.json: name, status and machine are not known.": facts,
        "No config.yaml.": config,
        "No metrics yet (batch_metrics.jsonl).": len(metrics),
        "No evaluations yet (evaluations.jsonl).": evaluations,
        "No sampled episodes yet (episodes.jsonl, episodes/).": episodes,
    }
    absent = [sentence for sentence, there in missing.items() if not there]
    handed_in, panels = find_submissions(folder / "submissions", notes), read_panels(folder, notes)
    found = (folder, facts, config, metrics, evaluations, records, episodes)
    return RunData(*found, absent + notes, handed_in, panels)


def _seeds(folder: Path) -> list[Path]:
    """The folders of a run's seeds, in their order; none where the run has metrics of its own."""
    if _is_there(folder, "batch_metrics.jsonl"):
        return []
    found = {int(path.name[5:]): path for path in folder.glob("seed_*") if path.name[5:].isdecimal()}
    ordered = [path for _, path in sorted(found.items()) if path.is_dir() and not path.is_symlink()]
    return [path for path in ordered if any(_is_there(path, name) for name in PARTS)]


def _is_there(folder: Path, name: str) -> bool:
    stem, suffix = name.split(".")
    return (folder / name).is_file() or any(folder.glob(f"{stem}.[0-9]*.{suffix}*"))


def _read_config(folder: Path, notes: list[str]) -> dict[str, str]:
    """The newest snapshot: a run that went on with other settings has `config.2.yaml` beside the first."""
    found = {int(match[1] or 1): path for path in folder.iterdir() if (match := _CONFIG.fullmatch(path.name))}
    if not found:
        return {}
    newest = found[max(found)]
    if len(found) > 1:
        notes.append(f"The run went on with another config; {newest.name} is shown, of {len(found)}.")
    if not is_regular_file(newest):
        notes.append(f"{newest.name} is a link or no file, and was left out.")
        return {}
    try:
        return flatten_settings(read_yaml(newest))
    except (ValueError, OSError) as error:
        notes.append(f"{error}.")
        return {}
