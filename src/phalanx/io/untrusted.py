"""Strangers' files fetched and read as data: bounds on size and depth, no links followed, nothing run.

What the data means is for those who read it.
"""

import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 20
"""Settings and facts that a person or a run writes are far smaller."""
MOST_LEVELS = 32
_CHUNK = 1 << 20
_TIMEOUT_SECONDS = 60

Progress = Callable[[int, int | None], None]
"""Called with the bytes that have come and, where it is known, with how many there will be."""


def is_plain_file(path: Path) -> bool:
    """Whether this is a file itself, and no link, folder or device."""
    return path.is_file() and not path.is_symlink()


def read_bounded(path: str | os.PathLike[str], most: int = MOST_BYTES) -> bytes:
    """A file's bytes; a ValueError if there are more than `most`."""
    with Path(path).open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{path} has more than {most:,} bytes")
    return data


def parse_json(data: str | bytes, where: str | os.PathLike[str]) -> Any:
    """The value of a JSON text; what is wrong with it is a ValueError that begins with `where`."""
    try:
        return json.loads(data)
    except json.JSONDecodeError as error:
        place = f"{os.fspath(where)}:{error.lineno}:{error.colno}"
        raise ValueError(f"{place}: not valid JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # not text, a number too long, nesting too deep
        raise ValueError(f"{os.fspath(where)}: not valid JSON: {error}") from error


def read_json(path: str | os.PathLike[str]) -> Any:
    """The value of a JSON file; what is wrong with it is a ValueError that begins with the path."""
    return parse_json(Path(path).read_bytes(), path)


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """The values of a YAML file, as they stand: `${oc.env:HOME}` is those letters.

    Anchors, tags and deep nesting are refused with a ValueError, so that no small file becomes a large value.
    """
    import yaml  # type: ignore[import-untyped, unused-ignore]

    try:
        return _unescaped(yaml.safe_load(read_text(path)))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} could not be read: {' '.join(str(error).split())[:200]}") from error


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a YAML file that any reader may have: bounded, not deep, without anchors and tags."""
    import yaml

    depth = 0
    try:
        text = read_bounded(path).decode()
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            kind = type(token).__name__
            if kind in ("AliasToken", "AnchorToken", "TagToken"):
                raise ValueError("it uses anchors or tags, which settings do not need")
            depth += kind.endswith(("SequenceStartToken", "MappingStartToken"))
            depth -= kind.endswith(("SequenceEndToken", "MappingEndToken", "BlockEndToken"))
            if depth > MOST_LEVELS:
                raise ValueError(f"it is nested more than {MOST_LEVELS} levels deep")
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path} could not be read: {' '.join(str(error).split())[:200]}") from error
    return text


def _unescaped(value: Any) -> Any:
    """`to_yaml` writes `${` with a backslash, so that OmegaConf does not take it for a reference."""
    if isinstance(value, str):
        return value.replace("\\${", "${")
    if isinstance(value, dict):
        return {name: _unescaped(item) for name, item in value.items()}
    return [_unescaped(item) for item in value] if isinstance(value, list) else value


def fetch(source: str, file: Path, most: int, progress: Progress | None = None) -> None:
    """Write what an http, https or file URL gives to a file; a ValueError says what went wrong."""
    if urllib.parse.urlsplit(source).scheme not in ("http", "https", "file"):
        raise ValueError(f"{source}: the URL must start with https://, http:// or file://")
    try:
        with urllib.request.urlopen(source, timeout=_TIMEOUT_SECONDS) as response:
            _save(response, file, most, progress)
    except urllib.error.HTTPError as error:
        with error:
            raise ValueError(f"{source}: the server answered {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise ValueError(f"{source}: cannot be fetched: {error.reason}") from error
    except (TimeoutError, http.client.HTTPException, ConnectionError) as error:
        raise ValueError(f"{source}: cannot be fetched: {error or type(error).__name__}") from error


def _save(response: Any, file: Path, most: int, progress: Progress | None) -> None:
    length = response.headers.get("Content-Length", "")
    total = int(length) if length.isdecimal() else None
    done = 0
    with file.open("wb") as out:
        while chunk := response.read(_CHUNK):
            done += len(chunk)
            if done > most:
                raise ValueError(
                    f"{response.url}: more than {most >> 20} MiB, too much for what it should be"
                )
            out.write(chunk)
            if progress is not None:
                progress(done, total)
    # A connection that breaks off reads like the end of the file.
    if total is not None and done != total:
        raise ValueError(f"{response.url}: broke off after {done} of {total} bytes")
