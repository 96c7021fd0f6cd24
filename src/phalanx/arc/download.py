"""Download of ARC datasets. All tasks are validated before anything is saved."""

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

from phalanx.arc.datasets import DATASETS, data_directory
from phalanx.arc.task_files import read_splits
from phalanx.io.archive import ARCHIVE_SUFFIXES, MAX_BYTES, is_archive, unpack
from phalanx.io.atomic import atomic_directory
from phalanx.io.download import Progress, fetch

# What archives of a repository's branch are called: the branch, not the data.
_BRANCHES = ("main", "master", "HEAD")


def download_tasks(
    source: str,
    name: str = "",
    *,
    sha256: str = "",
    data_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> tuple[Path, dict[str, int]]:
    """Brings a data set into the data directory; the folder and the number of tasks in each split.

    Args:
        source: a data set's name (its published archive is taken), a URL (http, https, file) or a path;
            a zip or tar archive, a folder, or one JSON file.
        name: the data set's name here; by default the source's own.
        sha256: the digest that the file must have.
        data_dir: the data directory, instead of $PHALANX_DATA or ~/.cache/phalanx/arc.
        progress: told about the bytes as they come.

    Raises:
        ValueError: the source, its digest, the archive or a task in it is not right.
        OSError: a file cannot be read or written, or the name is taken.

    Nothing is left behind unless every task is right.
    """
    if source in DATASETS and not Path(source).exists():
        name = name or source
        source = DATASETS[source].url
        if not source:
            raise ValueError(f"{name} tasks are made here; there is nothing to download")
    name = _checked_name(name or _own_name(source), asked=bool(name))
    if sha256 and not re.fullmatch("[0-9a-fA-F]{64}", sha256):
        raise ValueError(f"sha256 must be 64 hexadecimal digits, got {sha256!r}")
    target = data_directory(data_dir) / name
    if target.exists():
        raise FileExistsError(f"{target} is already there; remove it or choose another name")
    with tempfile.TemporaryDirectory(prefix="phalanx-") as scratch:
        fetched = _fetched(source, Path(scratch), progress)
        _check_digest(fetched, sha256, source)
        if fetched.is_dir() and target.resolve().is_relative_to(fetched.resolve()):
            raise ValueError(f"{source} cannot be copied into itself, to {target}")
        with _folder_made(target.parent), atomic_directory(target) as staging:
            _place(fetched, staging, source)
            counts = _verified(staging, source)
    return target, counts


def _file_name(source: str) -> str:
    """The last part of a URL or path."""
    if _is_url(source):
        return Path(urllib.parse.unquote(urllib.parse.urlsplit(source).path)).name
    return Path(source).expanduser().resolve().name


def _own_name(source: str) -> str:
    """The file's name without the ending of an archive or a JSON file."""
    name = _file_name(source)
    for ending in (*ARCHIVE_SUFFIXES, ".json"):
        if name.lower().endswith(ending):
            return name[: -len(ending)]
    return name


def _checked_name(name: str, asked: bool) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(
            f"{name!r} cannot be a data set's name: letters, digits, dots, dashes and underscores only"
        )
    if name in _BRANCHES and not asked:
        raise ValueError(f"{name!r} is a branch's name; give the data set a name of its own (--name)")
    return name


def _is_url(source: str) -> bool:
    return "://" in source


def _fetched(source: str, scratch: Path, progress: Progress | None) -> Path:
    """The local file or folder: the one that a path names, or a URL's contents in `scratch`."""
    if not _is_url(source):
        path = Path(source).expanduser()
        if not path.exists():
            raise FileNotFoundError(f"{source}: no such file or folder")
        return path
    file = scratch / "download"
    fetch(source, file, MAX_BYTES, progress=progress)
    return file


def _check_digest(fetched: Path, sha256: str, source: str) -> None:
    if not sha256:
        return
    if fetched.is_dir():
        raise ValueError(f"{source} is a folder; a SHA-256 digest needs a file")
    with fetched.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256.lower():
        raise ValueError(f"{source}: its SHA-256 digest is {digest}, expected {sha256.lower()}")


def _place(fetched: Path, staging: Path, source: str) -> None:
    if fetched.is_dir():
        shutil.copytree(fetched, staging, dirs_exist_ok=True)
    elif is_archive(fetched):
        unpack(fetched, staging, source)
    elif _file_name(source).lower().endswith(ARCHIVE_SUFFIXES):
        raise ValueError(f"{source}: not a zip or tar archive, or a damaged one")
    else:
        shutil.copyfile(fetched, staging / f"{_own_name(source) or 'tasks'}.json")


def _verified(staging: Path, source: str) -> dict[str, int]:
    """How many tasks each split has; a wrong one is named by its place in the source."""
    try:
        splits = read_splits(staging)
    except ValueError as error:
        place = str(error).replace(f"{staging}{os.sep}", f"{source}: ").replace(str(staging), source)
        raise ValueError(place) from error
    return {name or "training": len(tasks) for name, tasks in splits.items()}


@contextlib.contextmanager
def _folder_made(folder: Path) -> Iterator[None]:
    """Makes the folder and those above it for the block, and takes back the new ones if the block fails."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for path in new:
            with contextlib.suppress(OSError):  # someone else has put something into it meanwhile
                path.rmdir()
        raise
