"""What the token commands read: length caches, plans, bucket edges; each mistake becomes one line.

What is printed and drawn is in `printing`; the files themselves are described in `phalanx.tokens`.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.cli.errors import UserError, user_errors

if TYPE_CHECKING:
    from phalanx.tokens import BatchPlan, LengthCache


@contextlib.contextmanager
def input_errors() -> Iterator[None]:
    """`user_errors`, for work that may also need an optional library."""
    try:
        with user_errors():
            yield
    except ImportError as error:
        # Anything else that cannot be imported is a fault of the program, and keeps its traceback.
        if "pip install" not in str(error):
            raise
        raise UserError(str(error)) from error


def read_lengths(path: Path) -> "LengthCache":
    """A whole length cache."""
    from phalanx.tokens import LengthCache

    with input_errors():
        cache = asyncio.run(LengthCache.load(path))
        if not len(cache):
            raise ValueError(f"{path}: the length cache is empty; build it with `phalanx data lengths build`")
    return cache


def read_plan(path: Path) -> "BatchPlan":
    """A saved plan; its batches stay on disk until they are used."""
    from phalanx.tokens import load_batch_plan

    with user_errors():
        return load_batch_plan(path)


def parse_edges(text: str) -> tuple[int, ...]:
    """`128,256,512` as numbers; whether they ascend is for the buckets to say."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(
            f"--bucket-edges takes whole numbers with commas, as in 128,256,512; got {text!r}"
        ) from None
