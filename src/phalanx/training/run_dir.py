"""Run folders: file names, reading and writing `run.json`, the status of a run, and resume checks."""

import datetime
import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from phalanx import __version__
from phalanx.config import Config, load_config, save_config, to_yaml
from phalanx.io.atomic import atomic_write
from phalanx.io.untrusted import read_json
from phalanx.io.yaml_files import read_yaml
from phalanx.logging.handlers.file import FileHandler
from phalanx.logging.handlers.handler import Handler
from phalanx.system_info import machine_info
from phalanx.training.config import RunConfig

FORMAT = 3
"""Version of the run-folder format, stored in `run.json`. Run folders with another version are rejected."""
CONFIG = "config.yaml"
METADATA = "run.json"
EVALUATIONS = "evaluations.jsonl"
EPISODES = "episodes"
CHECKPOINTS = "checkpoints"
_THIRD_PARTY_FOLDERS = ("wandb",)
"""Subfolders of a run in which other libraries create symbolic links, which are allowed there."""

RunStatus = Literal["new", "no_checkpoint", "resumable", "finished"]
AnyConfig = TypeVar("AnyConfig", bound=RunConfig)
MakeHandlers = Callable[[Path, Any], Mapping[str, Handler]]
"""Function that takes the run folder and the config, and returns the logging handlers by name."""


def default_handlers(folder: Path, config: Any) -> dict[str, Handler]:
    """Create the default handlers for a run: a `FileHandler`, which writes the files that a report needs."""
    return {"files": FileHandler(folder, config)}


def next_free_dir(folder: str | os.PathLike[str]) -> Path:
    """Return the first of `folder`, `folder-2`, `folder-3`, ... that does not exist."""
    path, number = Path(folder), 1
    while path.exists():
        number += 1
        path = Path(f"{os.fspath(folder)}-{number}")
    return path


def run_status(folder: str | os.PathLike[str]) -> RunStatus:
    """Return the status of the run in a folder.

    - `new`: the folder contains no run. A run can be created in it if `check_new_run` raises no error.
    - `no_checkpoint`: the run was stopped before its first checkpoint and can only be started again.
    - `resumable`: the run has a checkpoint and updates left.
    - `finished`: the run has completed its last update.
    """
    path = Path(folder)
    if not (path / METADATA).is_file():
        return "new"
    metadata = load_metadata(path)
    # Orbax renames a checkpoint to its step when it is complete.
    checkpoints = (*path.glob(f"{CHECKPOINTS}/*"), *path.glob(f"seed_*/{CHECKPOINTS}/*"))
    if not any(checkpoint.name.isdecimal() for checkpoint in checkpoints):
        return "no_checkpoint"
    return "finished" if metadata.get("status") == "finished" else "resumable"


def create_run(folder: str | os.PathLike[str], config: Config, metadata: Mapping[str, Any]) -> Path:
    """Create the folder of a new run with `config.yaml` and `run.json`.

    Raises:
        ValueError: If the folder is not empty. Files of a run that was killed while it was being created are
            allowed.
    """
    path = Path(folder)
    check_new_run(path)
    path.mkdir(parents=True, exist_ok=True)
    # A folder with `run.json` is considered a run, so this file is written last.
    save_config(config, path / CONFIG)
    about = {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": _git_commit(),
        "jax": importlib.metadata.version("jax"),
        "started": _now(),
    }
    write_metadata(path, {**metadata, **about})
    return path


def check_new_run(path: Path) -> None:
    """Raise ValueError if a new run cannot be created in a folder.

    A run can be created if the folder does not exist, is empty, or contains only files of a run that was
    killed while it was being created.
    """
    temporary = re.compile(r"\.[\w.]+\.\d+-[0-9a-f]{8}\.tmp")
    if path.exists() and not (
        path.is_dir()
        and all(entry.name == CONFIG or temporary.fullmatch(entry.name) for entry in path.iterdir())
    ):
        raise ValueError(
            f"{path} already exists and is not overwritten: add --resume to continue the run in it, or "
            "choose another --out"
        )


def _git_commit() -> str | None:
    """Return the Git commit of the repository that contains the working directory, or None if unknown."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def write_metadata(run: Path, metadata: Mapping[str, Any]) -> None:
    """Create or update `run.json`. Existing entries that are not in `metadata` are kept."""
    path = run / METADATA
    existing = _load_object(path) if path.exists() else {}
    about = {"format": FORMAT, "phalanx": __version__, "name": run.name, "machine": machine_info()}
    with atomic_write(path, "w") as file:
        json.dump({**about, **existing, **metadata, "updated": _now()}, file, indent=2)
        file.write("\n")


def load_metadata(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read `run.json`.

    Raises:
        ValueError: If the folder is not a run folder, or was written by another version of Phalanx.
    """
    path = Path(folder) / METADATA
    if not path.is_file():
        raise ValueError(f"{folder} is not a run: it has no {METADATA}")
    metadata = _load_object(path)
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"{folder} was written by another version of Phalanx (format {metadata.get('format')}, but this "
            f"version reads format {FORMAT}): start a new run, or use the version that wrote it"
        )
    return metadata


def _load_object(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise ValueError(f"{path} must contain a JSON object")
    return value


def load_run_config(folder: str | os.PathLike[str], cls: type[AnyConfig]) -> AnyConfig:
    """Read the config of a run as an instance of `cls`.

    Raises:
        ValueError: If the config is invalid, or names code in the run folder.
    """
    load_metadata(folder)
    path = Path(folder) / CONFIG
    # Before the config is loaded, because that imports the environment.
    for text in _strings(read_yaml(path)):
        for address in text.split(","):
            reject_own_code(Path(folder), address.strip())
    return cls.load(path)


def reject_own_code(run: Path, address: str) -> None:
    """Raise ValueError if an import path, such as `path/file.py:Name`, names a file in a run folder.

    The folder may be untrusted, and evaluating the run must not run code from it.
    """
    file, folder = Path(address.rpartition(":")[0]), run.resolve()
    if re.fullmatch(r"seed_\d+", folder.name) and (folder.parent / METADATA).is_file():
        folder = folder.parent
    if file.suffix == ".py" and file.resolve().is_relative_to(folder):
        raise ValueError(
            f"{run} names {address} in its own folder, and code in run folders is not run; move the file out "
            f"of the folder and change the path in {CONFIG} or {METADATA}"
        )


def _strings(value: Any) -> Iterator[str]:
    """Iterate over all strings in nested lists and mappings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def extend_config(before: AnyConfig, now: AnyConfig) -> AnyConfig:
    """Return `before` with the number of updates from `now`.

    Raises:
        ValueError: If `now` has fewer updates than `before`.
    """
    name = before.num_updates_setting
    old, new = getattr(before, name), getattr(now, name)
    if new < old:
        raise ValueError(f"{name} is {old}: a run can be extended, but not shortened to {new}")
    return load_config(type(before), before, [f"{name}={new}"])


def extend_run(run: Path, config: Config, before: Mapping[str, Any]) -> None:
    """Replace `config.yaml` with a new config, and record the previous one in `run.json`.

    Checkpoints that were saved with the previous config can still be loaded.

    Args:
        run: Run folder.
        config: New config.
        before: Entry to add to the `extended` list in `run.json`. Its `config` field is the digest of the
            config with which the existing checkpoints were saved.
    """
    extended = load_metadata(run).get("extended", [])
    earlier = [entry for entry in extended if entry["config"] != before["config"]]
    # If the process is killed between the two writes, the run is unchanged.
    write_metadata(run, {"extended": [*earlier, dict(before)]})
    save_config(config, run / CONFIG)


def check_same_algorithm(run: Path, algorithm: str) -> None:
    """Raise ValueError if a run was trained with an algorithm other than `algorithm`."""
    found = load_metadata(run).get("algorithm")
    if found != algorithm:
        raise ValueError(f"{run} is a run of {found!r} and cannot be resumed with {algorithm!r}")


def check_same_init(run: Path, source: Path) -> None:
    """Raise ValueError if a run did not start from the parameters of the run in `source`."""
    found = load_metadata(run).get("init_from", {}).get("run")
    if found != str(source.absolute()):
        origin = f"from the parameters of {found}" if found else "from new parameters"
        raise ValueError(f"{run} was started {origin}, not from those of {source}")


def check_same_config(run: Path, before: Config, now: Config) -> None:
    """Raise ValueError if a run would be resumed with a different config.

    The message contains the first few differences.

    Args:
        run: Run folder, for the message.
        before: Config that the run was started with.
        now: Config to resume it with.
    """
    old, new = to_yaml(before).splitlines(), to_yaml(now).splitlines()
    if old != new:
        differing = [f"{a.strip()} (now {b.strip()})" for a, b in zip(old, new, strict=False) if a != b][:3]
        raise ValueError(
            f"{run} was started with another config: {'; '.join(differing) or 'more or fewer settings'}. "
            "Resume it without overrides, or start a new run with another --out"
        )


def reject_links(run: Path) -> None:
    """Raise ValueError if there is a symbolic link in a run folder.

    The folder may be untrusted, and resuming the run must not write files outside the folder.
    """
    for folder, folders, files in os.walk(run):
        for name in (*folders, *files):
            path = Path(folder, name)
            if path.is_symlink():
                raise ValueError(
                    f"{path} is a symbolic link, and a run with links is not resumed; replace it with a copy"
                )
        folders[:] = [name for name in folders if name not in _THIRD_PARTY_FOLDERS]


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
