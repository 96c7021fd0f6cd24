"""Functions that read untrusted files of limited size. Error messages name the invalid file."""

import errno
import json
import os
from pathlib import Path
from typing import Any

MAX_BYTES = 1 << 20
"""Default size limit in bytes for files with settings or metadata."""


def is_regular_file(path: Path) -> bool:
    """Return whether a path is an existing regular file, and not a symbolic link, folder or device."""
    return path.is_file() and not path.is_symlink()


def reject_symlink(path: Path) -> None:
    """Raise `OSError` if a path is a symbolic link, because writing to it would change the link's target."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "symbolic links are not followed; remove the link", os.fspath(path))


def read_limited(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> bytes:
    """Return a file's bytes. Raises `ValueError` if the file has more than `max_bytes` bytes."""
    with Path(path).open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"{path} has more than {max_bytes:,} bytes")
    return data


def parse_json(data: str | bytes, source: str | os.PathLike[str]) -> Any:
    """Parse JSON.

    If it is invalid, raise `ValueError` with a message that starts with `source` (such as a path) and the
    line and column of the error.
    """
    try:
        return json.loads(data)
    except json.JSONDecodeError as error:
        location = f"{os.fspath(source)}:{error.lineno}:{error.colno}"
        raise ValueError(f"{location}: not valid JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, too many digits, nested too deeply
        raise ValueError(f"{os.fspath(source)}: not valid JSON: {error}") from error


def read_json(path: str | os.PathLike[str]) -> Any:
    """Parse a JSON file. If it is invalid, raise `ValueError` with a message that starts with the path."""
    return parse_json(Path(path).read_bytes(), path)
