"""Samples from files and lists, as a stream; and writing samples to files.

Datasets that are to be tokenized and planned as a whole are read by `phalanx.data`.
"""

import asyncio
import itertools
import json
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.data.readers import SourceSample, iterate_samples
from phalanx.data.replay.files import read_rows, write_rows
from phalanx.data.replay.rows import PackedColumns, SampleRows
from phalanx.data.sample_bytes import RECORD
from phalanx.data.samples import SampleSource, StreamSample, StreamState
from phalanx.data.stream_base import ClosedOnExit, IteratedStream, StreamMetrics
from phalanx.data.tokenizers import Tokenizer
from phalanx.io.atomic import atomic_write

_READ_AHEAD = 64
_LEVELS = {"trivial": 0.1, "easy": 0.3, "medium": 0.5, "hard": 0.7, "expert": 0.9}


class OfflineDatasetStream(IteratedStream):
    """Streams samples of a file, a folder or a list. A `SampleStream`.

    - `.npz`: what `write_samples` or `ReplayBuffer.save` wrote.
    - `.jsonl`: one object a line: a sample as `StreamSample.to_dict` has it; or `input_ids`, with or without
      `loss_mask` and `id`, or with a `meta` that names what a `StreamSample` has.
    - `.jsonl`, Parquet and Hugging Face datasets with texts, given a `tokenizer`: see `phalanx.data`.

    A line that cannot be read is an error that names it. Samples that are shorter or longer than wanted are
    left out and counted. `shuffle` reads everything first; the order follows from `seed` and `epoch`.
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
        """`path` is another name for `source`."""
        super().__init__()
        source = path if source is None else source
        if source is None:
            raise TypeError("OfflineDatasetStream needs a source: a file, a folder or a list of samples")
        if max_length is not None and max_length < min_length:
            raise ValueError(f"max_length ({max_length}) is below min_length ({min_length})")
        self._list: Sequence[StreamSample] | None = None
        self._path = Path()
        if isinstance(source, str | os.PathLike):
            self._path = Path(source)
            if not self._path.exists():
                raise FileNotFoundError(f"{self._path}: there is no such file or folder")
        else:
            self._list = source
        self.dataset_id = dataset_id or self._path.stem or "list"
        self.min_length, self.max_length = min_length, max_length
        self.filter_failures = filter_failures
        self.shuffle, self.seed = shuffle, seed
        self._tokenizer, self._text_field = tokenizer, text_field
        self.epoch = 0
        """How often it has been reset."""

    def reset(self) -> None:
        """Go back to the start, and count from 0; a shuffled stream takes the next epoch's order."""
        super().reset()
        self.epoch += 1

    def count_samples(self) -> int:
        """How many samples there are, wanted or not; the stream stays where it is."""
        return sum(1 for _ in self._read())

    def peek(self, n: int = 5) -> list[StreamSample]:
        """The first `n` wanted samples as they are stored; the stream stays where it is."""
        return list(itertools.islice(filter(self._is_wanted, self._read()), n))

    def get_length_distribution(self) -> dict[str, int]:
        """{sample id: length} of all samples, wanted or not; `phalanx.data` plans from it."""
        return {sample.sample_id: sample.length for sample in self._read()}

    def _samples(self) -> Iterator[StreamSample]:
        self._state = StreamState.STREAMING
        try:
            for sample in self._ordered():
                if self._is_wanted(sample):
                    self._metrics.record_sample(sample)
                    yield sample
                else:
                    self._metrics.record_filtered()
        except (ValueError, OSError):
            self._state = StreamState.ERROR
            raise
        self._state = StreamState.EXHAUSTED

    def _ordered(self) -> Iterator[StreamSample]:
        if not self.shuffle:
            yield from self._read()
            return
        samples = list(self._read())
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=(self.epoch,))))
        for row in rng.permutation(len(samples)).tolist():
            yield samples[row]

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
            rows, _ = read_rows(self._path)
            # A buffer's file has its samples by slot.
            view = rows.view(np.argsort(rows.columns["serial"], kind="stable"))
            return (view.sample(row) for row in range(len(view)))
        if self._path.suffix == ".jsonl" and _holds_samples(self._path):
            return _read_samples(self._path, self.dataset_id)
        return self._read_dataset()

    def _read_dataset(self) -> Iterator[StreamSample]:
        for row in iterate_samples(self._path, text_field=self._text_field):
            yield self._sample_of(row)

    def _sample_of(self, row: SourceSample) -> StreamSample:
        ids = row.input_ids
        if ids is None:
            if self._tokenizer is None:
                raise ValueError(f"{row.where}: this sample is a text; pass a tokenizer to read it")
            (ids,) = self._tokenizer.encode_many([row.text or ""])
        try:
            return StreamSample(
                input_ids=ids,
                loss_mask=[1] * len(ids) if row.loss_mask is None else row.loss_mask,
                sample_id=row.sample_id,
                dataset_id=self.dataset_id,
                source=SampleSource.OFFLINE,
            )
        except ValueError as error:
            raise ValueError(f"{row.where}: {error}") from error


class AsyncOfflineDatasetStream(ClosedOnExit):
    """`OfflineDatasetStream` for `async for`; it takes the same arguments. Lines are read in a thread."""

    def __init__(self, *source: Any, **settings: Any) -> None:
        self._stream = OfflineDatasetStream(*source, **settings)

    @property
    def state(self) -> StreamState:
        """Where the stream is."""
        return self._stream.state

    @property
    def metrics(self) -> StreamMetrics:
        """What has been streamed."""
        return self._stream.metrics

    async def __aiter__(self) -> AsyncIterator[StreamSample]:
        running = iter(self._stream)
        # Some at a time: one thread's work for each sample would cost more than the sample.
        while part := await asyncio.to_thread(lambda: list(itertools.islice(running, _READ_AHEAD))):
            for sample in part:
                yield sample

    async def reset(self) -> None:
        """Go back to the start."""
        self._stream.reset()

    async def close(self) -> None:
        """Let go of the file; closing twice is fine."""
        self._stream.close()


def _holds_samples(path: Path) -> bool:
    """Whether the first line is a whole sample, not a row of a dataset."""
    with path.open(encoding="utf-8") as file:
        line = next((line for line in file if line.strip()), "")
    try:
        fields = json.loads(line) if line else {}
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and (
        ("sample_id" in fields and "source" in fields)
        or ("input_ids" in fields and isinstance(fields.get("meta"), dict))
    )


def _read_samples(path: Path, dataset_id: str) -> Iterator[StreamSample]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _parse(line, f"{path}:{number}", dataset_id)


def _parse(line: str, where: str, dataset_id: str) -> StreamSample:
    try:
        fields: Any = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError(f"a sample is an object, got {type(fields).__name__}")
        if isinstance(fields.get("meta"), dict):
            fields = _with_meta(fields, where, dataset_id)
        return StreamSample.from_dict(fields)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{where}: {error}") from error


def _with_meta(fields: dict[str, Any], where: str, dataset_id: str) -> dict[str, Any]:
    """A row of chuk-lazarus, whose `meta` says what a sample is beside its tokens."""
    meta = fields["meta"]
    known = ("episode_id", "reward", "difficulty", "success", "step_index", "total_steps")
    told = {name: meta[name] for name in known if meta.get(name) is not None}
    if isinstance(level := meta.get("difficulty_score", meta.get("difficulty")), str):
        if level.lower() not in _LEVELS:
            raise ValueError(f"difficulty must be a number or {', '.join(_LEVELS)}, got {level!r}")
        level = _LEVELS[level.lower()]
    if level is not None:
        told["difficulty"] = level
    return told | {
        "input_ids": fields["input_ids"],
        "loss_mask": fields.get("loss_mask", [1] * len(fields["input_ids"])),
        "segment_ids": fields.get("segment_ids"),
        "sample_id": str(meta.get("sample_id", f"{dataset_id}_{int(where.rpartition(':')[2]) - 1}")),
        "dataset_id": dataset_id,
        "source": SampleSource.OFFLINE.value,
    }


def write_samples(path: str | os.PathLike[str], samples: Iterable[StreamSample]) -> int:
    """Write samples to a `.jsonl` or `.npz` file, whole or not at all; how many there were."""
    path = Path(path)
    if path.suffix == ".jsonl":
        count = 0
        with atomic_write(path, "w") as file:
            for sample in samples:
                file.write(json.dumps(sample.to_dict(), ensure_ascii=False) + "\n")
                count += 1
        return count
    if path.suffix != ".npz":
        raise ValueError(f"samples are written as .jsonl or .npz, not {path.suffix or 'without a suffix'!r}")
    packed = [sample.packed for sample in samples]
    rows = SampleRows()
    rows.grow(len(packed))
    if packed:
        columns = PackedColumns.of(packed)
        records = np.frombuffer(b"".join(columns.records), RECORD)
        order = np.arange(len(packed), dtype=np.int64)
        rows.write(order, order, records, columns)
    write_rows(path, rows.view(np.arange(len(packed))), {})
    return len(packed)
