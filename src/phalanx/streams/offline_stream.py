"""Samples from files and lists, as a stream; and writing samples to files.

Datasets that are to be tokenized and planned as a whole are read by `phalanx.tokens`.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.core.files import atomic_write
from phalanx.streams.base import IteratedStream
from phalanx.streams.replay.files import read_rows, write_rows
from phalanx.streams.replay.rows import PackedColumns, SampleRows
from phalanx.streams.sample_bytes import RECORD
from phalanx.streams.types import SampleSource, StreamSample, StreamState
from phalanx.tokens.lengths.sources import SourceSample, iterate_samples
from phalanx.tokens.lengths.tokenizers import Tokenizer


class OfflineDatasetStream(IteratedStream):
    """Streams samples of a file, a folder or a list. A `SampleStream`.

    - `.npz`: what `write_samples` or `ReplayBuffer.save` wrote.
    - `.jsonl`: one object a line: a sample as `StreamSample.to_dict` has it; or `input_ids`, with or without
      `loss_mask` and `id`.
    - `.jsonl`, Parquet and Hugging Face datasets with texts, given a `tokenizer`: see `phalanx.tokens`.

    A line that cannot be read is an error that names it. Samples that are shorter or longer than wanted are
    left out and counted. `shuffle` reads everything first; the order follows from `seed` and `epoch`.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Sequence[StreamSample],
        dataset_id: str | None = None,
        *,
        min_length: int = 1,
        max_length: int | None = None,
        filter_failures: bool = False,
        shuffle: bool = False,
        seed: int = 42,
        tokenizer: Tokenizer | None = None,
        text_field: str = "text",
    ) -> None:
        super().__init__()
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
            return _read_samples(self._path)
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


def _holds_samples(path: Path) -> bool:
    """Whether the first line is a whole sample, not a row of a dataset."""
    with path.open(encoding="utf-8") as file:
        line = next((line for line in file if line.strip()), "")
    try:
        fields = json.loads(line) if line else {}
    except json.JSONDecodeError:
        return False
    return isinstance(fields, dict) and "sample_id" in fields and "source" in fields


def _read_samples(path: Path) -> Iterator[StreamSample]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _parse(line, f"{path}:{number}")


def _parse(line: str, where: str) -> StreamSample:
    try:
        fields: Any = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError(f"a sample is an object, got {type(fields).__name__}")
        return StreamSample.from_dict(fields)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: {error}") from error


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
