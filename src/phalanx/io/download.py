"""Downloads a URL to a file, with a size limit and an optional SHA-256 check.

The module uses `urllib` because `pooch` has no size limit, does not support `file://` and needs `requests`.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CHUNK_BYTES = 1 << 20
_TIMEOUT_SECONDS = 60

Progress = Callable[[int, int | None], None]
"""Callback that receives the number of bytes downloaded so far and the total number of bytes. The total is
None if it is unknown."""


def fetch(
    url: str, path: Path, max_bytes: int, *, sha256: str = "", progress: Progress | None = None
) -> None:
    """Download a URL to a file.

    Args:
        url: An `http`, `https` or `file` URL.
        path: Path to which the file is saved.
        max_bytes: Maximum size of the file in bytes.
        sha256: Expected SHA-256 of the file. If it is empty, the SHA-256 is not checked.
        progress: Progress callback, which is called after every chunk.

    Raises:
        ValueError: If the download fails, is too large, is incomplete or does not match `sha256`.
    """
    # Imported here because these modules are slow to import.
    import http.client
    import urllib.error
    import urllib.parse
    import urllib.request

    if urllib.parse.urlsplit(url).scheme not in ("http", "https", "file"):
        raise ValueError(f"{url}: the URL must start with https://, http:// or file://")
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:
            digest = _save(response, path, max_bytes, progress)
    except urllib.error.HTTPError as error:
        with error:
            raise ValueError(f"{url}: the server answered {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise ValueError(f"{url}: download failed: {error.reason}") from error
    except (TimeoutError, http.client.HTTPException, ConnectionError) as error:
        raise ValueError(f"{url}: download failed: {error or type(error).__name__}") from error
    if sha256 and digest != sha256.lower():
        raise ValueError(f"{url}: its SHA-256 is {digest}, expected {sha256.lower()}")


def _save(response: Any, path: Path, max_bytes: int, progress: Progress | None) -> str:
    """Write the response to a file and return the SHA-256 of the file."""
    length = response.headers.get("Content-Length", "")
    total = int(length) if length.isdecimal() else None
    done, sha = 0, hashlib.sha256()
    with path.open("wb") as file:
        while chunk := response.read(_CHUNK_BYTES):
            done += len(chunk)
            if done > max_bytes:
                raise ValueError(f"{response.url}: larger than the limit of {max_bytes >> 20} MiB")
            file.write(chunk)
            sha.update(chunk)
            if progress is not None:
                progress(done, total)
    # urllib reports a broken connection as the end of the file.
    if total is not None and done != total:
        raise ValueError(f"{response.url}: the connection broke after {done} of {total} bytes")
    return sha.hexdigest()
