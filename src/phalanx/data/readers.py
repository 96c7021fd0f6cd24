"""Dataset readers for JSONL, Parquet and text files and for saved Hugging Face datasets."""

import contextlib
import dataclasses
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

from phalanx.extras import require_extra

ID_FIELDS = ("id", "sample_id")
"""Names of the columns that may contain the id of a row, in order of preference."""
_ROWS_AT_ONCE = 1024

Row: TypeAlias = tuple[str, Mapping[str, Any]]
"""Location of a row, such as `train.jsonl:7`, and its columns by name."""
RowSource: TypeAlias = str | os.PathLike[str] | Iterable[Any]
"""A file or folder, a list of files and folders, or rows: a `datasets.Dataset`, a `datasets.IterableDataset`,
or another iterable of mappings."""
Paths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A file or folder, or a list of files and folders that are read one after another."""


@dataclasses.dataclass(frozen=True)
class FilePart:
    """A part of a file that one worker reads.

    The range from `begin` (inclusive) to `end` (exclusive) consists of bytes of a JSONL or text file, row
    groups of a Parquet file, or rows of a saved dataset. In a JSONL or text file, the part contains all lines
    that start in this range.
    """

    path: str
    begin: int
    end: int
    first_row: int = 0
    """Index of the part's first row within the Parquet file or saved dataset."""
    is_saved_dataset: bool = False
    """True if the path is a folder that `Dataset.save_to_disk` wrote."""
    split: str | None = None
    """Name of the split if the saved dataset has several splits. None otherwise."""

    @property
    def has_lines(self) -> bool:
        """True if the part is a byte range of a JSONL or text file."""
        return not self.is_saved_dataset and not self.path.endswith(".parquet")


def as_paths(source: Paths) -> list[Path]:
    """Convert one or several paths to a list of `Path` objects."""
    if isinstance(source, str | os.PathLike):
        return [Path(source)]
    return [Path(path) for path in source]


def iter_rows(source: RowSource, split: str | None = None) -> Iterator[Row]:
    """Iterate over the rows of files, folders or an iterable of mappings. Yields (location, columns) pairs.

    A folder is either a saved Hugging Face dataset, or it contains JSONL and Parquet files. If it contains
    neither, its text files are read. Files are read in the order of their names. Each nonblank line of a text
    file is a row with a `text` column.

    Args:
        source: Files, folders or rows.
        split: Name of the split to read from a saved Hugging Face dataset with several splits.
    """
    if isinstance(source, str | os.PathLike):
        for part in split_files([Path(source)], None, split):
            yield from iter_part(part)
        return
    if isinstance(source, Mapping):
        raise TypeError(f"choose one of the splits {', '.join(map(str, source))}")
    for number, item in enumerate(source):
        if isinstance(item, str | os.PathLike):
            yield from iter_rows(item, split)
        elif isinstance(item, Mapping):
            yield f"row {number}", item
        else:
            raise TypeError(f"row {number} must be a mapping or a path, got {type(item).__name__}")


def split_files(paths: Sequence[Path], part_bytes: int | None, split: str | None = None) -> list[FilePart]:
    """Split files, folders and saved datasets into parts of about `part_bytes` bytes.

    JSONL and text files are split between lines, Parquet files between row groups, and saved datasets between
    rows. If `part_bytes` is None, each file is one part.
    """
    parts: list[FilePart] = []
    for path in paths:
        if is_saved_dataset(path):
            parts += _split_saved_dataset(path, part_bytes, split)
            continue
        files = dataset_files(path)
        if split is not None:
            raise ValueError(f"{path} has no splits; remove split={split!r}")
        for file in files:
            if file.suffix == ".parquet":
                parts += _split_parquet(str(file), part_bytes)
                continue
            size = file.stat().st_size
            step = part_bytes or max(size, 1)
            parts += [FilePart(str(file), begin, min(begin + step, size)) for begin in range(0, size, step)]
    return parts


def total_bytes(paths: Sequence[Path]) -> int:
    """Return the total size of files and folders in bytes."""
    size = 0
    for path in paths:
        files = path.rglob("*.arrow") if is_saved_dataset(path) else dataset_files(path)
        size += sum(file.stat().st_size for file in files)
    return size


def is_saved_dataset(path: Path) -> bool:
    """Return whether a folder was written by `Dataset.save_to_disk`."""
    return (path / "dataset_dict.json").is_file() or (path / "dataset_info.json").is_file()


def dataset_files(path: Path) -> list[Path]:
    """Return the files of a dataset.

    If `path` is a file, the result contains only `path`. If it is a folder, the result contains its JSONL and
    Parquet files or, if there are none, its text files.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise FileNotFoundError(f"there is no dataset {path}")
    for suffixes in ((".parquet", ".jsonl"), (".txt",)):
        if files := sorted(file for file in path.iterdir() if file.suffix in suffixes):
            return files
    raise ValueError(f"the folder {path} has no .parquet, .jsonl or .txt file and is not a saved dataset")


def iter_part(
    part: FilePart,
    *,
    first_line: int = 1,
    columns: Sequence[str] | None = None,
    text_field: str = "text",
) -> Iterator[Row]:
    """Iterate over the rows of a part.

    Args:
        part: Part of a file.
        first_line: Line number of the part's first line, used in the locations of rows.
        columns: Columns to read from Parquet files and saved datasets, if they exist. If None, all columns
            are read.
        text_field: Name of the column for the lines of a text file.
    """
    if part.is_saved_dataset:
        return _iter_saved_dataset(part, columns)
    if part.has_lines:
        return _iter_lines(part, first_line, text_field)
    return _iter_parquet(part, columns)


def count_lines_before(part: FilePart) -> int:
    """Return the number of lines of a file that precede a part."""
    if not part.has_lines or not part.begin:
        return 0
    with Path(part.path).open("rb") as file:
        remaining = _seek_line_start(file, part.begin)
        file.seek(0)
        lines = 0
        while data := file.read(min(remaining, 1 << 20)):
            lines += data.count(b"\n")
            remaining -= len(data)
    return lines


def _iter_lines(part: FilePart, first_line: int, text_field: str) -> Iterator[Row]:
    is_text = part.path.endswith(".txt")
    with Path(part.path).open("rb") as file:
        position = _seek_line_start(file, part.begin)
        for number in itertools.count(first_line):
            line = file.readline() if position < part.end else b""
            if not line:
                return
            position += len(line)
            if line.strip():
                where = f"{part.path}:{number}"
                yield where, {text_field: _decode(line, where)} if is_text else _parse_json_line(line, where)


def _seek_line_start(file: IO[bytes], begin: int) -> int:
    """Move to the first line that starts at or after `begin`, and return its position."""
    if not begin:
        return 0
    file.seek(begin - 1)
    return begin - 1 + len(file.readline())


def _decode(line: bytes, where: str) -> str:
    try:
        return line.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not valid UTF-8: {error}") from error


def _parse_json_line(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        hint = "" if line.endswith(b"\n") else " (the last line may be incomplete)"
        raise ValueError(f"{where}: not valid JSON{hint}: {error}") from error
    if not isinstance(row, dict):
        raise ValueError(f"{where}: expected a JSON object, got {line[:60].decode(errors='replace')!r}")
    return row


@contextlib.contextmanager
def _open_parquet(path: str) -> Iterator[Any]:
    with require_extra(f"reading {path}", "data", "pyarrow"):
        import pyarrow
        import pyarrow.parquet
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path}: not a valid Parquet file: {error}") from error


def _split_parquet(path: str, part_bytes: int | None) -> Iterator[FilePart]:
    with _open_parquet(path) as file:
        groups = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
    begin, first_row, size, rows = 0, 0, 0, 0
    for end, group in enumerate(groups, 1):
        size += group.total_byte_size
        rows += group.num_rows
        if end == len(groups) or (part_bytes is not None and size >= part_bytes):
            yield FilePart(path, begin, end, first_row)
            begin, first_row, size, rows = end, first_row + rows, 0, 0


def _iter_parquet(part: FilePart, columns: Sequence[str] | None) -> Iterator[Row]:
    with _open_parquet(part.path) as file:
        batches = file.iter_batches(
            _ROWS_AT_ONCE,
            row_groups=list(range(part.begin, part.end)),
            columns=_select_columns(file.schema_arrow.names, columns),
        )
        rows = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
        for number, row in enumerate(rows, part.first_row):
            yield f"{part.path}: row {number}", row


def _split_saved_dataset(path: Path, part_bytes: int | None, split: str | None) -> Iterator[FilePart]:
    dataset = _load_saved_dataset(path, split)
    rows, size = len(dataset), int(dataset.data.nbytes)
    step = max(rows, 1) if part_bytes is None else max(1, rows * part_bytes // max(size, 1))
    for begin in range(0, rows, step):
        yield FilePart(str(path), begin, min(begin + step, rows), begin, True, split)


def _iter_saved_dataset(part: FilePart, columns: Sequence[str] | None) -> Iterator[Row]:
    dataset = _load_saved_dataset(Path(part.path), part.split)
    name = f"{part.path}[{part.split}]" if part.split else part.path
    names = _select_columns(dataset.column_names, columns)
    dataset = dataset.select_columns(names).with_format("arrow").select(range(part.begin, part.end))
    rows = itertools.chain.from_iterable(table.to_pylist() for table in dataset.iter(_ROWS_AT_ONCE))
    for number, row in enumerate(rows, part.begin):
        yield f"{name}: row {number}", row


def _load_saved_dataset(path: Path, split: str | None) -> Any:
    with require_extra(f"reading {path}", "data", "datasets"):
        import datasets
    dataset = datasets.load_from_disk(os.fspath(path))
    if isinstance(dataset, datasets.DatasetDict):
        if split not in dataset:
            raise ValueError(
                f"{path} has the splits {', '.join(dataset)}; choose one with split, got {split!r}"
            )
        return dataset[split]
    if split is not None:
        raise ValueError(f"{path} has no splits; remove split={split!r}")
    return dataset


def _select_columns(names: list[str], columns: Sequence[str] | None) -> list[str]:
    return names if columns is None else [name for name in names if name in columns]


def row_id(row: Mapping[str, Any], where: str) -> str:
    """Return the id of a row as a string, or an empty string if the row has no id."""
    value = next((row[field] for field in ID_FIELDS if row.get(field) is not None), None)
    return "" if value is None else check_id(value, where)


def check_id(value: object, where: str) -> str:
    """Convert a sample id to a string. Raises `ValueError` unless the id is a non-empty string or an integer.

    >>> check_id(0, "train.jsonl:1")
    '0'
    """
    if isinstance(value, str) and value:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(int(value))
    raise ValueError(f"{where}: sample id must be a non-empty string or an integer, got {value!r}")


class SampleIdAssigner:
    """Assigns ids to the rows of a dataset.

    The id of a row defaults to the index of the row in the complete dataset. Repeated ids are rejected, as
    are files in which only some rows have an id.
    """

    def __init__(self) -> None:
        # Maps each id that is given in the data to the index of its row. Numbers are not stored, because
        # there may be any number of rows without an id.
        self._first_row: dict[str, int] = {}
        self._count = 0
        # Index of the first row of each part, and the part.
        self._parts: list[tuple[int, FilePart | None]] = []
        # Current file, and whether its rows have ids.
        self._file: str | None = None
        self._has_ids = False

    def assign(self, part: FilePart | None, given_ids: Sequence[str]) -> list[str]:
        """Return the ids of the next rows.

        Args:
            part: Part of a file that consists of these rows. None if they are not from a file.
            given_ids: Id of each row in the data, or an empty string if it has none.
        """
        self._parts.append((self._count, part))
        file = "" if part is None else part.path
        if given_ids and file != self._file:
            self._file, self._has_ids = file, bool(given_ids[0])
        names = []
        for number, given in enumerate(given_ids, self._count):
            if self._has_ids != bool(given):
                found, earlier = ("no id", "have one") if self._has_ids else ("an id", "do not")
                raise ValueError(
                    f"{self._location(number)}: this row has {found}, but earlier rows {earlier}"
                )
            name = given or str(number)
            first = self._first_row.setdefault(name, number) if given else self._first_row.get(name, number)
            if first != number:
                raise ValueError(
                    f"{self._location(number)}: sample id {name!r} is already used at {self._location(first)}"
                )
            names.append(name)
        self._count += len(names)
        return names

    def _location(self, number: int) -> str:
        """Return the location of the row with index `number`, for error messages.

        If the row is from a file, the part of the file that contains the row is read again.
        """
        first, part = next(entry for entry in reversed(self._parts) if entry[0] <= number)
        if part is None:
            return f"row {number}"
        rows = iter_part(part, first_line=count_lines_before(part) + 1)
        return next(itertools.islice(rows, number - first, None))[0]
