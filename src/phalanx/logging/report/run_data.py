"""Reads the metrics, evaluations, sampled episodes, submissions, config and metadata from a run folder.

A run folder may be untrusted. Symbolic links are therefore not followed, file sizes are limited, and nothing
is written to the folder.
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
from phalanx.io.untrusted import MAX_BYTES as MAX_FILE_BYTES, is_regular_file, read_limited
from phalanx.io.yaml_files import read_yaml
from phalanx.logging.records import flatten_settings
from phalanx.logging.report.metric_tables import (
    MetricTable,
    evaluation_tables,
    has_metrics,
    has_step,
    load_object,
    load_valid_records,
    metrics_table,
    parse_finite,
)
from phalanx.logging.report.policy_episodes import load_policy_episodes

RUN_FILES = ("run.json", "batch_metrics.jsonl", "evaluations.jsonl", "episodes.jsonl", "config.yaml")
"""Files of a run. A folder that contains at least one of these files is a run folder."""
MAX_EPISODES = 60
"""Maximum number of episodes on a page, summed over all runs."""
MAX_IMAGE_BYTES = 3_000_000
"""Maximum total size of the compressed images on a page, in bytes, summed over all runs."""

_MAX_FRAMES = 2000
_MAX_LINES, _MAX_LINE_LENGTH, _MAX_TITLE_LENGTH = 20, 500, 200
_CONFIG = re.compile(r"config(?:\.(\d+))?\.yaml")
_EPISODE_DIR = re.compile(r"episode_(\d+)(?:_env_(\d+))?")
_SEED_DIR = re.compile(r"seed_\d+")
_STEP = re.compile(r"step_(\d+)")

_EpisodeKey = tuple[int, int | None]


@dataclasses.dataclass(frozen=True)
class EpisodeData:
    """A sampled episode of a run."""

    update: int
    """Update in which the episode was sampled."""
    environment: int | None
    """Index of the environment; None if unknown."""
    record: dict[str, Any]
    """Record of the episode in `episodes.jsonl`; empty if the file has no such record."""
    folder: Path | None
    """Folder with the images of the episode; None if there are no images."""

    @property
    def solved(self) -> bool | None:
        """Whether the episode was solved; None if unknown."""
        success = self.record.get("success")
        return success if isinstance(success, bool) else None


@dataclasses.dataclass(frozen=True)
class SubmissionSummary:
    """Summary of a policy's submission to a benchmark, saved in the run folder by `phalanx eval`."""

    title: str
    lines: list[str]
    """Lines of text that summarize the results."""
    images: dict[str, bytes]
    """Maps `failures` and `operations` to the contents of the SVG files with these names, if they exist."""


@dataclasses.dataclass(frozen=True)
class RunData:
    """Contents of a run folder."""

    path: Path
    """Absolute path of the run folder."""
    metadata: dict[str, Any]
    """Contents of `run.json`."""
    config: dict[str, str]
    """Settings as strings, by dotted key such as `optimizer.lr`."""
    metrics: MetricTable
    """Training metrics, with one row per logged update."""
    evaluations: dict[tuple[str, str], MetricTable]
    """Evaluation metrics, with one table for each pair of split and mode."""
    evaluation_records: list[dict[str, Any]]
    """Records of `evaluations.jsonl`."""
    episodes: list[EpisodeData]
    """Sampled episodes, newest first."""
    notes: list[str]
    """Remarks for the reader of the report, for example about missing or unreadable files."""
    submissions: list[SubmissionSummary] = dataclasses.field(default_factory=list)
    """Submissions that `phalanx eval` has written to the run folder."""
    policy_episodes: dict[str, Any] | None = None
    """Result of `load_policy_episodes`. With several seeds, that of the first seed."""

    @property
    def name(self) -> str:
        """Name of the run in `run.json`, or the name of the folder if `run.json` contains no name."""
        return str(self.metadata.get("name") or self.path.name)

    def __repr__(self) -> str:
        details = [str(self.metadata[key]) for key in ("algorithm", "status") if self.metadata.get(key)]
        if len(self.metrics):
            details.append(f"{int(self.metrics.axes['update'][-1])} updates")
        return f"RunData({', '.join([self.name, *details])}, {self.path})"

    def _repr_html_(self) -> str:
        from phalanx.logging.report.run_card import render_run_card

        return render_run_card(self)


def load_run(path: str | os.PathLike[str]) -> RunData:
    """Read a run folder. A run with several seeds is summarized over its seeds.

    Missing and invalid files do not raise an error. They are described in `RunData.notes`.

    Raises:
        ValueError: If the path is not a run folder, or is a symbolic link inside a run folder.
    """
    folder = Path(path)
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "does not exist"
        raise ValueError(f"{folder} {problem}; pass a run folder written by `phalanx train`")
    if folder.is_symlink() and _is_run(folder.parent):
        # The report would be written outside the run, which may be untrusted.
        raise ValueError(
            f"{folder} is a symbolic link inside a run folder; pass the folder that it points to"
        )
    folder = folder.resolve()
    if not _is_run(folder):
        raise ValueError(f"{folder} is not a run folder: it contains none of {', '.join(RUN_FILES)}")
    notes: list[str] = []
    metadata = load_object(folder / "run.json", notes)
    if seeds := _find_seeds(folder):
        from phalanx.logging.report.seed_statistics import merge_seeds

        return merge_seeds(folder, metadata, [load_run(seed) for seed in seeds])
    config = _load_config(folder, notes)
    metrics = metrics_table(load_valid_records(folder / "batch_metrics.jsonl", notes, has_metrics))
    records = load_valid_records(folder / "evaluations.jsonl", notes, has_step)
    evaluations = evaluation_tables(records, metrics)
    episode_records = load_valid_records(folder / "episodes.jsonl", notes)
    episodes = find_episodes(folder / "episodes", episode_records)
    if num_links := _count_links(folder / "episodes"):
        notes.append(f"episodes/: skipped {format_count(num_links, 'symbolic link')}.")
    missing = {
        "No run.json: name, status and machine are unknown.": metadata,
        "No config.yaml.": config,
        "No metrics yet (batch_metrics.jsonl).": len(metrics),
        "No evaluations yet (evaluations.jsonl).": evaluations,
        "No sampled episodes yet (episodes.jsonl, episodes/).": episodes,
    }
    return RunData(
        path=folder,
        metadata=metadata,
        config=config,
        metrics=metrics,
        evaluations=evaluations,
        evaluation_records=records,
        episodes=episodes,
        submissions=find_submissions(folder / "submissions", notes),
        policy_episodes=load_policy_episodes(folder, records, notes),
        notes=[note for note, contents in missing.items() if not contents] + notes,
    )


def find_episodes(folder: Path, records: Iterable[dict[str, Any]]) -> list[EpisodeData]:
    """Find the episodes of a run, newest first.

    Args:
        folder: Folder with one subfolder of images per episode. It need not exist.
        records: Records of `episodes.jsonl`. An episode can have a record, images or both.
    """
    by_key = {key: record for record in records if (key := _episode_key(record)) is not None}
    folders = _episode_dirs(folder)
    keys = sorted(by_key.keys() | folders.keys(), key=lambda key: (-key[0], -1 if key[1] is None else key[1]))
    return [EpisodeData(key[0], key[1], by_key.get(key, {}), folders.get(key)) for key in keys]


def embed_episodes(
    episodes: list[EpisodeData], run: int, max_episodes: int, max_bytes: int
) -> tuple[list[dict[str, Any]], int]:
    """Convert the newest episodes to JSON values for the page, up to a maximum number of episodes and bytes.

    The images of an episode are compressed together, because consecutive images differ little.

    Args:
        episodes: Episodes of a run, newest first.
        run: Index of the run on the page.
        max_episodes: Maximum number of episodes.
        max_bytes: Maximum total size of the compressed images.

    Returns:
        The converted episodes, and the number of episodes that were omitted.
    """
    embedded: list[dict[str, Any]] = []
    num_bytes = 0
    for episode in episodes[:max_episodes]:
        frames, images = _load_frames(episode.folder)
        compressed = _compress(images) if images else ""
        num_bytes += len(compressed)
        if num_bytes > max_bytes:
            break
        record = episode.record
        task = record.get("task_id")
        embedded.append(
            {
                "run": run,
                "update": episode.update,
                "environment": episode.environment,
                "task": None if task is None else str(task),
                "solved": episode.solved,
                "reward": parse_finite(record.get("total_reward")),
                "steps": parse_finite(record.get("total_steps")),
                "similarity": parse_finite(record.get("final_similarity")),
                "frames": frames,
                "images": compressed,
            }
        )
    return embedded, len(episodes) - len(embedded)


def find_submissions(folder: Path, notes: list[str]) -> list[SubmissionSummary]:
    """Read the submissions of a run, sorted by folder name.

    Args:
        folder: Folder with one subfolder per submission.
        notes: List to which descriptions of invalid files are appended.
    """
    submissions = []
    for path in sorted(_subfolders(folder)):
        summary = load_object(path / "summary.json", notes) if is_regular_file(path / "summary.json") else {}
        if not summary:
            continue
        images = {
            name: file.read_bytes()
            for name in ("failures", "operations")
            if is_regular_file(file := path / f"{name}.svg") and file.stat().st_size <= MAX_FILE_BYTES
        }
        lines = summary.get("lines")
        lines = lines[:_MAX_LINES] if isinstance(lines, list) else []
        submissions.append(
            SubmissionSummary(
                title=escape_untrusted(str(summary.get("title", path.name)))[:_MAX_TITLE_LENGTH],
                lines=[escape_untrusted(str(line))[:_MAX_LINE_LENGTH] for line in lines],
                images=images,
            )
        )
    return submissions


def _episode_key(record: dict[str, Any]) -> _EpisodeKey | None:
    update, environment = record.get("episode_num"), record.get("environment_id")
    if isinstance(update, bool) or not isinstance(update, int):
        return None
    return update, environment if isinstance(environment, int) else None


def _subfolders(folder: Path) -> list[Path]:
    """Return the subfolders of a folder. If the folder is a symbolic link, return an empty list."""
    if not folder.is_dir() or folder.is_symlink():
        return []
    return [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]


def _count_links(folder: Path) -> int:
    return 1 if folder.is_symlink() else sum(path.is_symlink() for path in folder.rglob("*"))


def _episode_dirs(folder: Path) -> dict[_EpisodeKey, Path]:
    matches = ((path, _EPISODE_DIR.fullmatch(path.name)) for path in _subfolders(folder))
    return {
        (int(match[1]), None if match[2] is None else int(match[2])): path for path, match in matches if match
    }


def _load_frames(folder: Path | None) -> tuple[list[list[Any]], list[str]]:
    """Read the images of an episode.

    Returns:
        The frames, and a list of the distinct images. A frame is a list `[name, index]`, where `index` is the
        position of its image in the list of images. If the last step and the final state have the same image,
        they are combined into one frame with a name such as `step 7, final`.
    """
    if folder is None:
        return [], []
    files = []
    for path in folder.glob("*.svg"):
        step = _STEP.fullmatch(path.stem)
        # A link could copy any file on this machine into a page that is published.
        if not is_regular_file(path) or path.stat().st_size > MAX_FILE_BYTES:
            continue
        if step or path.stem in ("initial", "final"):
            order = int(step[1]) if step else (-1 if path.stem == "initial" else 1 << 62)
            files.append((order, f"step {int(step[1])}" if step else path.stem, path))
    indices: dict[str, int] = {}
    frames: list[list[Any]] = []
    for _, name, path in sorted(files)[:_MAX_FRAMES]:
        index = indices.setdefault(read_limited(path).decode(errors="replace"), len(indices))
        if name == "final" and len(frames) > 1 and frames[-1][1] == index:
            frames[-1] = [f"{frames[-1][0]}, final", index]
        else:
            frames.append([name, index])
    return frames, list(indices)


def embed_policy_episodes(run: RunData, index: int, max_bytes: int) -> dict[str, Any] | None:
    """Convert the episodes of a run's trained policy to JSON values for the page.

    Args:
        run: The run.
        index: Index of the run on the page.
        max_bytes: Maximum total size of the compressed frames. Episodes that do not fit are omitted.
    """
    if run.policy_episodes is None or not run.policy_episodes["episodes"]:
        return None
    embedded = []
    for episode in run.policy_episodes["episodes"]:
        images = _compress(episode["frames"])
        max_bytes -= len(images)
        if max_bytes >= 0:
            embedded.append({**episode, "frames": len(episode["frames"]), "images": images})
    seeds = parse_finite(run.metadata.get("num_seeds"))
    return {**run.policy_episodes, "run": index, "seeds": seeds, "episodes": embedded}


def _compress(images: list[Any]) -> str:
    return base64.b64encode(zlib.compress(json.dumps(images).encode(), 9)).decode()


def _find_seeds(folder: Path) -> list[Path]:
    """Return the seed folders of a run, sorted by seed.

    Return an empty list if the run folder itself contains metrics.
    """
    if _has_file(folder, "batch_metrics.jsonl"):
        return []
    seeds = [path for path in _subfolders(folder) if _SEED_DIR.fullmatch(path.name) and _is_run(path)]
    return sorted(seeds, key=lambda path: int(path.name.removeprefix("seed_")))


def _is_run(folder: Path) -> bool:
    return any(_has_file(folder, name) for name in RUN_FILES)


def _has_file(folder: Path, name: str) -> bool:
    stem, suffix = name.split(".")
    return (folder / name).is_file() or any(folder.glob(f"{stem}.[0-9]*.{suffix}*"))


def _load_config(folder: Path, notes: list[str]) -> dict[str, str]:
    """Read the newest config of a run, and return its values as strings, by dotted key.

    If a run was continued with different settings, there are also `config.2.yaml`, `config.3.yaml` and so on.
    """
    paths = {int(match[1] or 1): path for path in folder.iterdir() if (match := _CONFIG.fullmatch(path.name))}
    if not paths:
        return {}
    newest = paths[max(paths)]
    if len(paths) > 1:
        notes.append(f"The run was continued with other settings; showing {newest.name}.")
    if not is_regular_file(newest):
        notes.append(f"{newest.name} was skipped: it is not a regular file.")
        return {}
    try:
        return flatten_settings(read_yaml(newest))
    except (ValueError, OSError) as error:
        notes.append(f"{error}.")
        return {}
