"""Files of every checksummed format, ways to damage them, and functions that read them.

`PHALANX_DAMAGES=2000` sets the number of damaged files per format in `tests/faults/test_file_damage.py`.
"""

import contextlib
import io
import random
import resource
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from phalanx.io.atomic import atomic_write
from phalanx.io.checksum import add_checksum, write_json as write_checksummed_json


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a checksummed JSON file."""
    with atomic_write(path, "w", checksum=True) as file:
        write_checksummed_json(file, record)


def seal(path: Path) -> None:
    """Add a checksum to a file that another program wrote."""
    with path.open("r+b") as file:
        add_checksum(file)


class Format(NamedTuple):
    """Functions that write a file or folder of a format and read all of it."""

    make: Callable[[Path], None]
    read: Callable[[Path], Any]
    suffix: str = ""


def damage_bytes(data: bytes, chance: random.Random) -> bytes:
    """Damage bytes: flip a bit, truncate, clear a page, or replace some bytes."""
    kind = chance.choice(["bit", "bit", "cut", "page", "bytes"])
    if not data:
        return b"\0"
    position = chance.randrange(len(data))
    changed = bytearray(data)
    if kind == "bit":
        changed[position] ^= 1 << chance.randrange(8)
    elif kind == "cut":
        del changed[position:]
    elif kind == "page":
        size = chance.choice([64, 512, 4096])
        start = position // size * size
        changed[start : start + size] = bytes(len(changed[start : start + size]))
    else:
        size = min(chance.randrange(1, 16), len(changed) - position)
        changed[position : position + size] = chance.randbytes(size)
    return bytes(changed)


class DamageableFiles:
    """A file or folder whose files are damaged one at a time and then repaired."""

    def __init__(self, path: Path) -> None:
        files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
        self.path, self.contents = path, {file: file.read_bytes() for file in files}

    def damage(self, chance: random.Random) -> Path | None:
        """Damage a file, larger ones more often. Return None if this changed nothing."""
        files = list(self.contents)
        weights = [len(self.contents[file]) + 200 for file in files]
        file = chance.choices(files, weights)[0]
        changed = damage_bytes(self.contents[file], chance)
        if changed == self.contents[file]:
            return None
        file.write_bytes(changed)
        return file

    def repair(self, file: Path) -> None:
        """Repair the damaged file."""
        file.write_bytes(self.contents[file])


def tasks(folder: Path) -> None:
    """Write two ARC tasks as files."""
    import json

    for name, cell in (("one", 1), ("two", 2)):
        pair = {"input": [[0, cell]], "output": [[cell, 0]]}
        (folder / f"{name}.json").write_text(json.dumps({"train": [pair] * 5, "test": [pair]}))


def archive(kind: str) -> Callable[[Path], None]:
    """Return a function that writes an archive of the two tasks."""

    def make(path: Path) -> None:
        folder = path.with_suffix(".tasks")
        folder.mkdir()
        tasks(folder)
        if kind == "zip":
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
                for file in sorted(folder.iterdir()):
                    out.write(file, f"data/{file.name}")
        else:
            with tarfile.open(path, f"w:{kind}") as out:  # type: ignore[call-overload]
                for file in sorted(folder.iterdir()):
                    data = file.read_bytes()
                    member = tarfile.TarInfo(f"data/{file.name}")
                    member.size = len(data)
                    out.addfile(member, io.BytesIO(data))
        shutil.rmtree(folder)

    return make


def read_archive(path: Path) -> Any:
    from phalanx.arc.task_files import load_task_splits
    from phalanx.io.archive import unpack

    scratch = path.with_suffix(".unpacked")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    unpack(path, scratch, str(path))
    return {
        (split, task.id): task.to_dict()
        for split, found in load_task_splits(scratch).items()
        for task in found
    }


@contextlib.contextmanager
def limited_file_size(size: int) -> Iterator[None]:
    """Limit the size of all files, so that longer writes fail as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
