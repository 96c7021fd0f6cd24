"""Length cache with asynchronous methods."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from pydantic import Field

from phalanx.config import FrozenModel
from phalanx.data import length_cache as _cache
from phalanx.data.lengths import MAX_LENGTH


class LengthEntry(FrozenModel):
    """One line of a length cache."""

    sample_id: str
    tokenizer_hash: str
    length: int = Field(ge=1, le=MAX_LENGTH)

    def to_json(self) -> str:
        """Return the entry as one line of JSON, without a newline."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, line: str) -> "LengthEntry":
        """Create an entry from a line of JSON."""
        return cls.model_validate_json(line)


class LengthCache(_cache.LengthCache):
    """`phalanx.data.LengthCache` with asynchronous methods."""

    @classmethod
    async def load(cls, path: str | os.PathLike[str], *args: Any, **options: Any) -> "LengthCache":  # type: ignore[override]
        """Load a cache without blocking the event loop."""
        load: Any = super().load
        return await asyncio.to_thread(load, path, *args, **options)

    @classmethod
    async def load_or_create(cls, path: str | os.PathLike[str], tokenizer_hash: str) -> "LengthCache":  # type: ignore[override]
        """Load a cache if its file exists, and otherwise return an empty cache.

        To add entries, use the cache in an `async with` statement.
        """
        load: Any = super().load_or_create
        return await asyncio.to_thread(load, path, tokenizer_hash)

    @classmethod
    async def stream(cls, path: str | os.PathLike[str]) -> AsyncIterator[LengthEntry]:
        """Load a cache and iterate over its entries in the order of the file."""
        cache = await cls.load(path)
        for sample_id, length in cache.items():
            yield LengthEntry(sample_id=sample_id, tokenizer_hash=cache.tokenizer_hash, length=length)

    async def __aenter__(self) -> "LengthCache":
        await asyncio.to_thread(super().__enter__)
        return self

    async def __aexit__(self, *error: Any) -> None:
        super().__exit__(*error)

    async def add(self, sample_id: str | int, length: Any) -> None:  # type: ignore[override]
        """Add the length of one sample."""
        super().add(sample_id, length)

    async def add_many(self, sample_ids: Sequence[str | int], lengths: Any) -> None:  # type: ignore[override]
        """Add the lengths of many samples."""
        super().add_many(sample_ids, lengths)

    async def validate(self, sample_ids: Iterable[str | int]) -> tuple[set[str], set[str]]:  # type: ignore[override]
        """Return the given ids that are not in the cache, and the ids in the cache that are not given."""
        return super().validate(sample_ids)


__all__ = ["LengthCache", "LengthEntry"]
