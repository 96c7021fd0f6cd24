"""Streams of samples from files and lists."""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from phalanx.compat.chuk_lazarus.data.batching.streaming.types import (
    INFO_FIELDS,
    SampleSource,
    StreamMetrics,
    StreamSample,
    StreamState,
)
from phalanx.compat.renamed import alias
from phalanx.config import format_validation_error
from phalanx.data.readers import iter_rows
from phalanx.data.samples import read_samples
from phalanx.data.tokenization import TokenizeConfig, tokenize_rows
from phalanx.data.tokenizers import Tokenizer
from phalanx.puzzles.server.client import ClosedOnExit

_READ_AHEAD = 64
_LEVELS = {"trivial": 0.1, "easy": 0.3, "medium": 0.5, "hard": 0.7, "expert": 0.9}


class OfflineDatasetStream:
    """Streams the samples of a file, a folder or a list.

    A `.jsonl` row has `input_ids` and optionally `loss_mask`, `segment_ids` and the fields of a
    `StreamSample`, in the row itself or in its `meta`. Other files are those that `phalanx.data` reads:
    `.npz` sample files, and datasets of texts with a `tokenizer`.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Sequence[StreamSample] | None = None,
        dataset_id: str | None = None,
        min_length: int = 1,
        max_length: int | None = None,
        shuffle: bool = False,
        seed: int = 42,
        *,
        filter_failures: bool = False,
        tokenizer: Tokenizer | None = None,
        text_field: str = "text",
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        source = path if source is None else source
        if source is None:
            raise TypeError("OfflineDatasetStream needs a source: a file, a folder or a list of samples")
        if max_length is not None and max_length < min_length:
            raise ValueError(f"max_length ({max_length}) must be at least min_length ({min_length})")
        self._list: Sequence[StreamSample] | None = None
        self._path = Path()
        if isinstance(source, str | os.PathLike):
            self._path = Path(source)
            if not self._path.exists():
                raise FileNotFoundError(f"{self._path}: no such file or folder")
        else:
            self._list = source
        self.dataset_id = dataset_id or self._path.stem or "list"
        self.min_length, self.max_length = min_length, max_length
        self.filter_failures = filter_failures
        self.shuffle, self.seed = shuffle, seed
        self._tokenizer, self._text_field = tokenizer, text_field
        self.epoch = 0
        """Number of resets."""
        self.state = StreamState.IDLE
        self.metrics = StreamMetrics()
        self._running: Iterator[StreamSample] | None = None

    def __iter__(self) -> Iterator[StreamSample]:
        if self._running is None:
            self._running = self._samples()
        return self._running

    def reset(self) -> None:
        """Restart the stream and its counters; a shuffled stream uses the order of the next epoch."""
        self.close()
        self.state, self.metrics = StreamState.IDLE, StreamMetrics()
        self.epoch += 1

    def close(self) -> None:
        """Release resources."""
        self._running = None

    def count_samples(self) -> int:
        """Return the number of samples, without filters."""
        return sum(1 for _ in self._read())

    def peek(self, n: int = 5) -> list[StreamSample]:
        """Return the first `n` samples that pass the filters, without advancing the stream."""
        return list(itertools.islice(filter(self._is_wanted, self._read()), n))

    def get_length_distribution(self) -> dict[str, int]:
        """Return the length of every sample by id."""
        return {sample.sample_id: sample.length for sample in self._read()}

    def _samples(self) -> Iterator[StreamSample]:
        self.state = StreamState.STREAMING
        try:
            for sample in self._ordered():
                if self._is_wanted(sample):
                    self.metrics.record_sample(sample)
                    yield sample
                else:
                    self.metrics.record_filtered()
        except (ValueError, OSError):
            self.state = StreamState.ERROR
            raise
        self.state = StreamState.EXHAUSTED

    def _ordered(self) -> Iterator[StreamSample]:
        if not self.shuffle:
            yield from self._read()
            return
        samples = list(self._read())
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=(self.epoch,))))
        for index in rng.permutation(len(samples)).tolist():
            yield samples[index]

    def _is_wanted(self, sample: StreamSample) -> bool:
        if self.filter_failures and sample.success is False:
            return False
        return self.min_length <= sample.length and (
            self.max_length is None or sample.length <= self.max_length
        )

    def _read(self) -> Iterator[StreamSample]:
        if self._list is not None:
            return iter(self._list)
        if self._path.suffix == ".npz":
            return map(StreamSample.from_sample, read_samples(self._path))
        first = next(iter_rows(self._path), None)
        if first is None:
            return iter(())
        return self._read_tokens() if "input_ids" in first[1] else self._read_texts()

    def _read_tokens(self) -> Iterator[StreamSample]:
        for number, (where, row) in enumerate(iter_rows(self._path)):
            try:
                yield self._create_sample(dict(row), number)
            except ValidationError as error:
                raise ValueError(f"{where}: {format_validation_error(error, StreamSample)}") from error
            except (ValueError, TypeError) as error:
                raise ValueError(f"{where}: {error}") from error

    def _create_sample(self, row: dict[str, Any], number: int) -> StreamSample:
        meta = row["meta"] if isinstance(row.get("meta"), dict) else {}
        fields = {**row, **meta}
        info = {name: fields[name] for name in INFO_FIELDS if fields.get(name) is not None}
        level = fields.get("difficulty_score", fields.get("difficulty"))
        if isinstance(level, str):
            if level.lower() not in _LEVELS:
                raise ValueError(f"difficulty must be a number or one of {', '.join(_LEVELS)}, got {level!r}")
            level = _LEVELS[level.lower()]
        if "input_ids" not in row:
            raise ValueError(f"the row has no input_ids; it has {', '.join(row)}")
        ids = row["input_ids"]
        name = fields.get("sample_id", fields.get("id", f"{self.dataset_id}_{number}"))
        source = fields.get("source", fields.get("origin", SampleSource.OFFLINE.value))
        return StreamSample(
            input_ids=ids,
            loss_mask=row.get("loss_mask", [1] * len(ids)),
            segment_ids=row.get("segment_ids", (row.get("columns") or {}).get("segment_ids")),
            sample_id=str(name),
            source=source,
            **{**info, "dataset_id": str(fields.get("dataset_id", self.dataset_id)), "difficulty": level},
        )

    def _read_texts(self) -> Iterator[StreamSample]:
        if self._tokenizer is None:
            raise ValueError(f"{self._path} has rows with text; pass a tokenizer to read them")
        config = TokenizeConfig(add_eos=False, format="text", text_field=self._text_field)
        for sample in tokenize_rows(self._path, self._tokenizer, config):
            yield StreamSample.from_sample(sample.replace_info(dataset_id=self.dataset_id))


class AsyncOfflineDatasetStream(ClosedOnExit):
    """`OfflineDatasetStream` for `async for`, with the same arguments. Files are read in a thread."""

    def __init__(self, *source: Any, **settings: Any) -> None:
        self._stream = OfflineDatasetStream(*source, **settings)

    state = alias("_stream.state")
    metrics = alias("_stream.metrics")

    async def __aiter__(self) -> AsyncIterator[StreamSample]:
        samples = iter(self._stream)
        while block := await asyncio.to_thread(lambda: list(itertools.islice(samples, _READ_AHEAD))):
            for sample in block:
                yield sample

    async def reset(self) -> None:
        """Restart the stream and its counters."""
        self._stream.reset()

    async def close(self) -> None:
        """Release resources."""
        self._stream.close()


__all__ = ["AsyncOfflineDatasetStream", "OfflineDatasetStream"]
