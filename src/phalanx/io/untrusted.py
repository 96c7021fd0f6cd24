"""Functions that read untrusted JSON and YAML files.

`read_limited` limits the size of a file, and `read_yaml` also limits the nesting depth. Error messages name
the invalid file.
"""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_BYTES = 1 << 20
"""Default size limit in bytes for files with settings or metadata."""
MAX_DEPTH = 32
"""Maximum nesting depth of a YAML file."""


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


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """Parse a YAML file without resolving references such as `${oc.env:HOME}`.

    Raises `ValueError` if the file is invalid, too large or nested too deeply, or if it has anchors or tags.
    Without anchors, a small file cannot expand to a large value.
    """
    import yaml  # type: ignore[import-untyped, unused-ignore]

    try:
        # The backslash keeps OmegaConf from resolving references in saved configs.
        return map_strings(lambda text: text.replace("\\${", "${"), yaml.safe_load(read_text(path)))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} could not be read: {' '.join(str(error).split())[:200]}") from error


def read_text(path: str | os.PathLike[str]) -> str:
    """Read the text of a YAML file, and check that it is safe to parse.

    Raises `ValueError` if the file has more than `MAX_BYTES` bytes or `MAX_DEPTH` levels of nesting, or if it
    contains anchors, tags or invalid tokens.
    """
    import yaml

    depth = 0
    try:
        text = read_limited(path).decode()
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            kind = type(token).__name__
            if kind in ("AliasToken", "AnchorToken", "TagToken"):
                raise ValueError("it uses anchors or tags, which are not allowed in settings")
            depth += kind.endswith(("SequenceStartToken", "MappingStartToken"))
            depth -= kind.endswith(("SequenceEndToken", "MappingEndToken", "BlockEndToken"))
            if depth > MAX_DEPTH:
                raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path} could not be read: {' '.join(str(error).split())[:200]}") from error
    return text


def map_strings(function: Callable[[str], str], value: Any) -> Any:
    """Apply a function to all strings in nested dictionaries and lists. Keys are not changed."""
    if isinstance(value, str):
        return function(value)
    if isinstance(value, dict):
        return {name: map_strings(function, item) for name, item in value.items()}
    return [map_strings(function, item) for item in value] if isinstance(value, list) else value
