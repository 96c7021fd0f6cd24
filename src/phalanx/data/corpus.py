"""A corpus cut into parts that are read apart, and what was counted in them put together in order.

Who reads the parts is in `processes` and `ray`; reading a dataset from end to end is in `sources`.
"""

import bisect
import dataclasses
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

from phalanx.data.length_records import require_pyarrow
from phalanx.data.readers import (
    IdCheck,
    SourceSample,
    count_samples,
    dataset_files,
    is_saved_dataset,
    parquet_rows,
    row_of_line,
    row_of_text,
    sample_of_row,
    saved_rows,
    saved_size,
)
from phalanx.data.tokenizers import Tokenizer

Paths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A dataset, or several that are read one after another."""


class LengthWorkerError(RuntimeError):
    """A process that counts died, or failed in a way that is no fault of the dataset."""


@dataclasses.dataclass(frozen=True)
class FilePart:
    """What one worker reads at a time: lines that begin in a range of bytes, row groups, or rows."""

    path: str
    begin: int
    end: int
    first_row: int = 0
    """Parquet: the part's first row in its file. (What line a part begins with is counted when needed.)"""
    saved: bool = False
    """Whether these are rows of a dataset saved by Hugging Face."""
    split: str | None = None
    """Which split of a saved dataset."""

    @property
    def has_lines(self) -> bool:
        """Whether the part is a range of bytes of a file of lines."""
        return not self.saved and not self.path.endswith(".parquet")


def paths_of(dataset: Paths) -> list[Path]:
    """One path or several, as a list."""
    if isinstance(dataset, str | os.PathLike):
        return [Path(dataset)]
    return [Path(path) for path in dataset]


def split_files(paths: Sequence[Path], part_bytes: int, split: str | None = None) -> list[FilePart]:
    """Files, folders and saved datasets in parts of about this size, in the order in which they are read.

    Lines are cut by bytes, Parquet between its row groups, saved datasets between rows.
    """
    parts: list[FilePart] = []
    for path in paths:
        if is_saved_dataset(path):
            parts += _saved_parts(path, part_bytes, split)
            continue
        files = dataset_files(path)
        if split is not None:
            raise ValueError(f"{path} has no splits; leave out split={split!r}")
        for file in files:
            if file.suffix == ".parquet":
                parts += _row_group_parts(file, part_bytes)
                continue
            size = file.stat().st_size
            for begin in range(0, size, part_bytes):
                parts.append(FilePart(str(file), begin, min(begin + part_bytes, size)))
    return parts


def corpus_bytes(paths: Sequence[Path]) -> int:
    """How large the files are, which tells how large a part should be."""
    found = 0
    for path in paths:
        files = path.rglob("*.arrow") if is_saved_dataset(path) else dataset_files(path)
        found += sum(file.stat().st_size for file in files)
    return found


def _saved_parts(path: Path, part_bytes: int, split: str | None) -> Iterator[FilePart]:
    rows, size = saved_size(path, split)
    step = max(1, rows * part_bytes // max(size, 1))
    for begin in range(0, rows, step):
        yield FilePart(str(path), begin, min(begin + step, rows), begin, saved=True, split=split)


def _row_group_parts(file: Path, part_bytes: int) -> Iterator[FilePart]:
    pa = require_pyarrow(f"read {file}")
    import pyarrow.parquet as parquet

    try:
        metadata = parquet.read_metadata(file)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{file}: not a whole Parquet file: {error}") from error
    begin, first_row, size, rows = 0, 0, 0, 0
    for group in range(metadata.num_row_groups):
        size += metadata.row_group(group).total_byte_size
        rows += metadata.row_group(group).num_rows
        if size >= part_bytes or group + 1 == metadata.num_row_groups:
            yield FilePart(str(file), begin, group + 1, first_row)
            begin, first_row, size, rows = group + 1, first_row + rows, 0, 0


def part_rows(
    part: FilePart, text_field: str | None, first_line: int
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(where, row) of a part's rows; with all columns where no text is asked for."""
    path, rows = Path(part.path), range(part.begin, part.end)
    if part.saved:
        return saved_rows(path, text_field, part.split, rows)
    if part.has_lines:
        return _line_rows(part, text_field or "text", first_line)
    return parquet_rows(path, text_field, rows, part.first_row)


def read_part(part: FilePart, text_field: str, first_line: int) -> Iterator[SourceSample]:
    """The samples of a part; those without an id have an empty one."""
    rows = part_rows(part, text_field, first_line)
    return (sample_of_row(where, row, text_field) for where, row in rows)


def _line_rows(part: FilePart, text_field: str, first_line: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    is_text = part.path.endswith(".txt")
    with Path(part.path).open("rb") as file:
        place = _first_line_start(file, part.begin)
        for number in itertools.count(first_line):
            line = file.readline() if place < part.end else b""
            if not line:
                return
            place += len(line)
            if not line.strip():
                continue
            where = f"{part.path}:{number}"
            yield where, row_of_text(line, where, text_field) if is_text else row_of_line(line, where)


def _first_line_start(file: IO[bytes], begin: int) -> int:
    """Moves to the first line that begins at `begin` or later; the one before belongs to the part before."""
    if not begin:
        return 0
    file.seek(begin - 1)
    return begin - 1 + len(file.readline())


def lines_before(part: FilePart) -> int:
    """How many lines of the file come before the part's first."""
    if not part.has_lines or not part.begin:
        return 0
    with Path(part.path).open("rb") as file:
        left = _first_line_start(file, part.begin)
        file.seek(0)
        lines = 0
        while data := file.read(min(left, 1 << 20)):
            lines += data.count(b"\n")
            left -= len(data)
    return lines


class Counted(NamedTuple):
    """What a worker found in a part."""

    part: int
    """Its number."""
    ids: list[str]
    """Empty texts where rows have none."""
    lengths: list[int]
    """0 where a sample has no tokens."""


def count_part(part: FilePart, tokenizer: Tokenizer, text_field: str) -> tuple[list[str], list[int]]:
    """The ids and lengths of a part, as they stand there."""
    try:
        return _count_from(part, tokenizer, text_field, 1)
    except ValueError:
        if not part.has_lines or not part.begin:
            raise
    # Only now is it worth knowing how many lines come before this part.
    return _count_from(part, tokenizer, text_field, lines_before(part) + 1)


def _count_from(
    part: FilePart, tokenizer: Tokenizer, text_field: str, first_line: int
) -> tuple[list[str], list[int]]:
    ids: list[str] = []
    lengths: list[int] = []
    for rows, counts in count_samples(read_part(part, text_field, first_line), tokenizer):
        ids += [row.sample_id for row in rows]
        lengths += counts
    return ids, lengths


class RowPlaces:
    """In which file and line each row of a corpus is, found by reading its part again."""

    def __init__(self) -> None:
        self._parts: list[FilePart] = []
        self._starts: list[int] = []

    def begin(self, part: FilePart, row: int) -> None:
        """Be told that a part begins with this row of the corpus."""
        self._parts.append(part)
        self._starts.append(row)

    def where(self, row: int) -> str:
        """The row's place, as messages name it."""
        number = bisect.bisect_right(self._starts, row) - 1
        part = self._parts[number]
        rows = part_rows(part, None, lines_before(part) + 1)
        return next(itertools.islice(rows, row - self._starts[number], None))[0]


def merge_parts(
    parts: Sequence[FilePart], counted: Iterator[Counted]
) -> Iterator[tuple[list[str], list[int]]]:
    """Checks what only the whole corpus shows: ids that come twice, and rows with and without ids."""
    check, places = IdCheck(), RowPlaces()
    done, before = 0, -1
    for number, found, lengths in counted:
        if number != before:
            places.begin(parts[number], done)
            before = number
        file = parts[number].path
        ids = [
            check.accept(sample_id, row, row, file=file, in_words=places.where)
            for row, sample_id in enumerate(found, done)
        ]
        if 0 in lengths:
            empty = lengths.index(0)
            where = places.where(done + empty)
            raise ValueError(f"{where}: sample {ids[empty]!r} has no tokens; leave it out")
        done += len(ids)
        if ids:
            yield ids, lengths
