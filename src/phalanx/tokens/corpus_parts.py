"""A corpus in parts that can be read apart from one another, each with the same samples wherever it is read.

Reading a dataset from end to end is in `sources`; who reads the parts is in `ray_lengths`.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from phalanx.tokens.length_arrays import require_pyarrow
from phalanx.tokens.length_lines import entry_id
from phalanx.tokens.sources import ID_FIELDS, SourceSample, parquet_rows, row_of_line, sample_of_row


@dataclasses.dataclass(frozen=True)
class CorpusPart:
    """What one worker reads at a time: the lines that begin in a range of bytes, or a range of row groups."""

    path: str
    """Absolute: the file must be there under this name on every machine."""
    begin: int
    end: int
    first_row: int = 0
    """Parquet: the part's first row in its file. (What line a part begins with is counted when needed.)"""

    @property
    def is_parquet(self) -> bool:
        """By the file's suffix."""
        return self.path.endswith(".parquet")


def corpus_files(path: Path) -> list[Path]:
    """The JSONL and Parquet files of a dataset, by name; absolute."""
    path = path.resolve()
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise FileNotFoundError(f"there is no dataset {path}")
    if (path / "dataset_dict.json").is_file() or (path / "dataset_info.json").is_file():
        raise ValueError(
            f"{path} is a dataset saved by Hugging Face, which is not read with Ray; "
            f"write it as Parquet (Dataset.to_parquet), or count without Ray"
        )
    files = sorted(file for file in path.iterdir() if file.suffix in (".parquet", ".jsonl"))
    if not files:
        raise ValueError(f"the folder {path} holds no .parquet or .jsonl file")
    return files


def cut_into_parts(files: Sequence[Path], part_bytes: int) -> list[CorpusPart]:
    """The files in parts of about this size: lines are cut by bytes, Parquet between its row groups."""
    parts: list[CorpusPart] = []
    for file in files:
        if file.suffix == ".parquet":
            parts += _row_group_parts(file, part_bytes)
            continue
        size = file.stat().st_size
        for begin in range(0, size, part_bytes):
            parts.append(CorpusPart(str(file), begin, min(begin + part_bytes, size)))
    return parts


def _row_group_parts(file: Path, part_bytes: int) -> Iterator[CorpusPart]:
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
            yield CorpusPart(str(file), begin, group + 1, first_row)
            begin, first_row, size, rows = group + 1, first_row + rows, 0, 0


def read_part(part: CorpusPart, text_field: str, first_line: int) -> Iterator[SourceSample]:
    """The samples of a part; those without an id have an empty one."""
    groups = range(part.begin, part.end)
    rows = (
        parquet_rows(Path(part.path), text_field, groups, part.first_row)
        if part.is_parquet
        else _line_rows(part, first_line)
    )
    for where, row in rows:
        found = next((row[field] for field in ID_FIELDS if row.get(field) is not None), None)
        yield sample_of_row("" if found is None else entry_id(found, where), where, row, text_field)


def _line_rows(part: CorpusPart, first_line: int) -> Iterator[tuple[str, dict[str, Any]]]:
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
            yield where, row_of_line(line, where)


def _first_line_start(file: IO[bytes], begin: int) -> int:
    """Moves to the first line that begins at `begin` or later; the one before belongs to the part before."""
    if not begin:
        return 0
    file.seek(begin - 1)
    return begin - 1 + len(file.readline())


def lines_before(part: CorpusPart) -> int:
    """How many lines of the file come before the part's first."""
    if part.is_parquet or not part.begin:
        return 0
    with Path(part.path).open("rb") as file:
        left = _first_line_start(file, part.begin)
        file.seek(0)
        lines = 0
        while data := file.read(min(left, 1 << 20)):
            lines += data.count(b"\n")
            left -= len(data)
    return lines
