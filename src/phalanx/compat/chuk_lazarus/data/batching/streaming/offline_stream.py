"""Streams of samples from files and lists."""

import asyncio
import collections
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
from phalanx.data.samples import load_samples
from phalanx.puzzles.server_client.client import ClosedOnExit

_READ_AHEAD = 64
_LEVELS = {"trivial": 0.1, "easy": 0.3, "medium": 0.5, "hard": 0.7, "expert": 0.9}


class OfflineDatasetStream:
    """Streams the samples of a file, a folder or a list.

    A row of a `.jsonl` file must have `input_ids`, and may have `loss_mask` and `segment_ids`. Other fields
    of `StreamSample` may be in the row or in a `meta` dictionary in the row. Sample files of `phalanx.data`
    (`.npz`) can also be read.
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
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        """Create a stream.

        Args:
            source: File, folder or list of samples.
            dataset_id: Name of the dataset. By default, the name of the file without its suffix.
            min_length: Minimum number of tokens. Shorter samples are left out.
            max_length: Maximum number of tokens. Longer samples are left out. None means no limit.
            shuffle: Shuffle the samples, differently after each `reset`.
            seed: Seed for shuffling.
            filter_failures: Leave out samples from failed episodes.
            path: Another name for `source`.
        """
        source = path if source is None else source
        if source is None:
            raise TypeError("OfflineDatasetStream needs a source: a file, a folder or a list of samples")
        if max_length is not None and max_length < min_length:
            raise ValueError(f"max_length ({max_length}) must be at least min_length ({min_length})")
        self._source = Path(source) if isinstance(source, str | os.PathLike) else source
        if isinstance(self._source, Path) and not self._source.exists():
            raise FileNotFoundError(f"{self._source}: no such file or folder")
        self.dataset_id = dataset_id or (self._source.stem if isinstance(self._source, Path) else "list")
        self.min_length, self.max_length = min_length, max_length
        self.filter_failures = filter_failures
        self.shuffle, self.seed = shuffle, seed
        self.epoch = -1
        """Index of the current epoch. It is 0 in a new stream, and every call to `reset` increments it."""
        self.reset()

    def __iter__(self) -> Iterator[StreamSample]:
        return self._running

    def reset(self) -> None:
        """Restart the stream and reset its metrics. A shuffled stream uses the order of the next epoch."""
        self.state, self.metrics = StreamState.IDLE, StreamMetrics()
        self.epoch += 1
        self.close()

    def close(self) -> None:
        """Close the stream. The next iteration starts from the first sample and keeps the metrics."""
        self._running = self._samples()

    def count_samples(self) -> int:
        """Return the number of samples, including those that the filters leave out."""
        return sum(1 for _ in self._read())

    def peek(self, n: int = 5) -> list[StreamSample]:
        """Return the first `n` samples that pass the filters, without advancing the stream."""
        return list(itertools.islice(filter(self._is_wanted, self._read()), n))

    def get_length_distribution(self) -> dict[str, int]:
        """Return a mapping from sample ids to lengths."""
        return {sample.sample_id: sample.length for sample in self._read()}

    def _samples(self) -> Iterator[StreamSample]:
        self.state = StreamState.STREAMING
        try:
            samples = self._read()
            if self.shuffle:
                listed = list(samples)
                seed = np.random.SeedSequence(self.seed, spawn_key=(self.epoch,))
                order = np.random.Generator(np.random.PCG64(seed)).permutation(len(listed))
                samples = (listed[index] for index in order.tolist())
            for sample in samples:
                if self._is_wanted(sample):
                    self.metrics.record_sample(sample)
                    yield sample
                else:
                    self.metrics.record_filtered()
        except (ValueError, OSError):
            self.state = StreamState.ERROR
            raise
        self.state = StreamState.EXHAUSTED

    def _is_wanted(self, sample: StreamSample) -> bool:
        fits = self.min_length <= sample.length <= (self.max_length or sample.length)
        return fits and not (self.filter_failures and sample.success is False)

    def _read(self) -> Iterator[StreamSample]:
        path = self._source
        if not isinstance(path, Path):
            return iter(path)
        if path.suffix == ".npz":
            return map(StreamSample.from_sample, load_samples(path))
        return self._read_rows(path)

    def _read_rows(self, path: Path) -> Iterator[StreamSample]:
        for number, (where, row) in enumerate(iter_rows(path)):
            try:
                yield self._create_sample(dict(row), number)
            except ValidationError as error:
                raise ValueError(f"{where}: {format_validation_error(error, StreamSample)}") from error
            except (ValueError, TypeError) as error:
                raise ValueError(f"{where}: {error}") from error

    def _create_sample(self, row: dict[str, Any], number: int) -> StreamSample:
        if "input_ids" not in row:
            raise ValueError(f"the row has no input_ids; it has {', '.join(row)}")
        fields = row | (row["meta"] if isinstance(row.get("meta"), dict) else {})
        level = fields.get("difficulty_score", fields.get("difficulty"))
        if isinstance(level, str):
            if level.lower() not in _LEVELS:
                raise ValueError(f"difficulty must be a number or one of {', '.join(_LEVELS)}, got {level!r}")
            level = _LEVELS[level.lower()]
        info = {name: fields[name] for name in INFO_FIELDS if fields.get(name) is not None}
        info |= {"dataset_id": str(fields.get("dataset_id", self.dataset_id)), "difficulty": level}
        return StreamSample(
            input_ids=row["input_ids"],
            loss_mask=row.get("loss_mask", [1] * len(row["input_ids"])),
            segment_ids=row.get("segment_ids", (row.get("columns") or {}).get("segment_ids")),
            sample_id=str(fields.get("sample_id", fields.get("id", f"{self.dataset_id}_{number}"))),
            source=fields.get("source", fields.get("origin", SampleSource.OFFLINE.value)),
            **info,
        )


class AsyncOfflineDatasetStream(ClosedOnExit):
    """Asynchronous version of `OfflineDatasetStream`, with the same arguments.

    Files are read in a separate thread.
    """

    def __init__(self, *source: Any, **settings: Any) -> None:
        self._stream = OfflineDatasetStream(*source, **settings)
        # Samples that were read ahead. They are kept if a loop is left early.
        self._queued: collections.deque[StreamSample] = collections.deque()

    state = alias("_stream.state")
    metrics = alias("_stream.metrics")

    async def __aiter__(self) -> AsyncIterator[StreamSample]:
        samples = iter(self._stream)
        while True:
            while self._queued:
                yield self._queued.popleft()
            self._queued.extend(await asyncio.to_thread(lambda: list(itertools.islice(samples, _READ_AHEAD))))
            if not self._queued:
                return

    async def reset(self) -> None:
        """Restart the stream and reset its metrics."""
        self._queued.clear()
        self._stream.reset()

    async def close(self) -> None:
        """Close the stream. The next iteration starts from the first sample and keeps the metrics."""
        self._queued.clear()
        self._stream.close()


__all__ = ["AsyncOfflineDatasetStream", "OfflineDatasetStream"]
