"""Datasets as a stream of samples: JSON lines, Parquet, text, and Hugging Face datasets saved to disk.

Each sample has an id and either a text or tokens; tokenizing is a call into `tokenizers`.
"""

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from phalanx.data.length_records import entry_id, require_pyarrow
from phalanx.data.lengths import as_loss_mask
from phalanx.data.tokenizers import Tokenizer

ID_FIELDS = ("id", "sample_id")
_ROWS_AT_ONCE = 1024


@dataclasses.dataclass(frozen=True)
class SourceSample:
    """One row of a dataset, as it was found."""

    sample_id: str
    """Its id; the row's number, counted from 0, where the dataset has none."""
    where: str
    """File and line or row, for messages."""
    text: str | None = None
    """Its text; None where it has tokens."""
    input_ids: list[int] | None = None
    """Its tokens; None where it has a text."""
    loss_mask: list[int] | None = None
    """1 where a token counts in the loss, 0 where not; None: all count."""


@dataclasses.dataclass(frozen=True)
class TokenizedSample:
    """A sample's tokens."""

    sample_id: str
    input_ids: list[int]
    loss_mask: list[int]

    @property
    def length(self) -> int:
        """How many tokens there are."""
        return len(self.input_ids)


OnEmpty: TypeAlias = Callable[[SourceSample], None]
"""Told of every sample that has no tokens."""


def iterate_samples(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    text_field: str = "text",
    split: str | None = None,
) -> Iterator[SourceSample]:
    """The samples of a dataset, or of several one after another, one at a time, in order.

    A row has `id` (or `sample_id`) and `text` (or the column that `text_field` names), or `input_ids` with
    or without `loss_mask`; of a text file each line that is not blank is one. A folder may be a dataset saved
    by Hugging Face (`split` chooses from several) or hold Parquet or JSONL files, or text files alone, which
    are read in the order of their names. Repeated ids are errors.
    """
    ids = IdCheck()
    paths = [path] if isinstance(path, str | os.PathLike) else path
    rows = itertools.chain.from_iterable(_rows(Path(one), text_field, split) for one in paths)
    for number, (where, row) in enumerate(rows):
        sample = sample_of_row(where, row, text_field)
        sample_id = ids.accept(sample.sample_id, number, where, file=file_of(where))
        yield dataclasses.replace(sample, sample_id=sample_id)


class IdCheck:
    """Gives every row of a dataset its id; refuses one that comes twice, and ids of only some rows of a file.

    Rows of files without ids are known by their number in the whole dataset, which no other row may have.
    """

    def __init__(self) -> None:
        self._first: dict[str, Any] = {}
        self._file: str | None = None
        self._named = False
        self._unnamed: list[range] = []
        """Numbers that serve as ids, where there are ids as well."""

    def accept(
        self,
        sample_id: str,
        number: int,
        place: Any,
        *,
        file: str = "",
        in_words: Callable[[Any], str] = str,
    ) -> str:
        """The id of a row, or its number where it has none; a place is put in words only for an error."""
        if file != self._file:
            self._file, self._named = file, bool(sample_id)
        if self._named != bool(sample_id):
            missing, present = ("has no id", "have one") if self._named else ("has an id", "have none")
            raise ValueError(f"{in_words(place)}: this row {missing}, but the rows before it {present}")
        if not sample_id:
            sample_id = str(number)
            if self._unnamed and self._unnamed[-1].stop == number:
                self._unnamed[-1] = range(self._unnamed[-1].start, number + 1)
            else:
                self._unnamed.append(range(number, number + 1))
            first = self._first.get(sample_id, place) if self._first else place
        else:
            first = self._first.setdefault(sample_id, place)
            if self._unnamed and sample_id.isascii() and sample_id.isdecimal():
                taken = int(sample_id)
                if str(taken) == sample_id and any(taken in numbers for numbers in self._unnamed):
                    raise ValueError(
                        f"{in_words(place)}: sample id {sample_id!r} is the number of a row without an id; "
                        f"give all files ids, or none"
                    )
        if first != place:
            raise ValueError(f"{in_words(place)}: sample id {sample_id!r} is at {in_words(first)} already")
        return sample_id


def file_of(where: str) -> str:
    """The file of a place as messages name it; nothing for rows that are of no file.

    >>> file_of("a.jsonl:7"), file_of("b.parquet: row 3"), file_of("row 3")
    ('a.jsonl', 'b.parquet', '')
    """
    return where.rpartition(":")[0]


def tokenize_samples(
    samples: Iterator[SourceSample], tokenizer: Tokenizer, on_empty: OnEmpty | None = None
) -> Iterator[TokenizedSample]:
    """The samples' tokens, in order; texts are tokenized many at a time.

    A sample without tokens is an error, or is left out and handed to `on_empty`.
    """
    while rows := list(itertools.islice(samples, _ROWS_AT_ONCE)):
        tokens = iter(tokenizer.encode_many([row.text for row in rows if row.text is not None]))
        for row in rows:
            ids = next(tokens) if row.input_ids is None else row.input_ids
            if _has_tokens(row, len(ids), on_empty):
                yield TokenizedSample(row.sample_id, ids, row.loss_mask or [1] * len(ids))


def iterate_lengths(
    samples: Iterator[SourceSample], tokenizer: Tokenizer, on_empty: OnEmpty | None = None
) -> Iterator[tuple[list[str], list[int]]]:
    """(ids, lengths) of about a thousand samples at a time, for `LengthCache.add_many`."""
    for rows, lengths in count_samples(samples, tokenizer):
        pairs = zip(rows, lengths, strict=True)
        kept = [(row.sample_id, n) for row, n in pairs if _has_tokens(row, n, on_empty)]
        yield [sample_id for sample_id, _ in kept], [n for _, n in kept]


def count_samples(
    samples: Iterator[SourceSample], tokenizer: Tokenizer
) -> Iterator[tuple[list[SourceSample], list[int]]]:
    """About a thousand samples at a time, and how many tokens each has, which may be none."""
    while rows := list(itertools.islice(samples, _ROWS_AT_ONCE)):
        counts = iter(tokenizer.count_many([row.text for row in rows if row.text is not None]))
        yield rows, [next(counts) if row.input_ids is None else len(row.input_ids) for row in rows]


def _has_tokens(row: SourceSample, length: int, on_empty: OnEmpty | None) -> bool:
    if length:
        return True
    if on_empty is None:
        raise ValueError(f"{row.where}: sample {row.sample_id!r} has no tokens; leave it out")
    on_empty(row)
    return False


def sample_of_row(where: str, row: Mapping[str, Any], text_field: str) -> SourceSample:
    """The sample of a row, its id empty where it has none; or an error that says where and what is wrong."""
    found = next((row[field] for field in ID_FIELDS if row.get(field) is not None), None)
    sample_id = "" if found is None else entry_id(found, where)
    if row.get("input_ids") is not None:
        ids = _integers(row["input_ids"], f"{where}: input_ids")
        mask = row.get("loss_mask")
        if mask is not None:
            mask = _integers(mask, f"{where}: loss_mask")
            if len(mask) != len(ids):
                raise ValueError(f"{where}: {len(ids)} input_ids but {len(mask)} entries of loss_mask")
            as_loss_mask(mask, where)
        return SourceSample(sample_id, where, input_ids=ids, loss_mask=mask)
    text = row.get(text_field)
    if not isinstance(text, str):
        found = (
            f"{text_field!r} is {text!r:.60}"
            if text_field in row
            else f"it has {', '.join(row) or 'nothing'}"
        )
        raise ValueError(f"{where}: a sample needs a text in {text_field!r} or input_ids; {found}")
    return SourceSample(sample_id, where, text=text)


def _integers(values: Any, where: str) -> list[int]:
    if not isinstance(values, list) or any(type(value) is not int for value in values):
        raise ValueError(f"{where} must be a list of integers, got {values!r:.60}")
    return values


def iterate_rows(path: Path, split: str | None = None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(where, row) of every row, with all of its columns; of a text file, a row for each line with a text."""
    return _rows(path, None, split)


def _rows(path: Path, text_field: str | None, split: str | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(where, row) of every row."""
    if is_saved_dataset(path):
        yield from saved_rows(path, text_field, split)
        return
    files = dataset_files(path)
    if split is not None:
        raise ValueError(f"{path} has no splits; leave out split={split!r}")
    for file in files:
        if file.suffix == ".parquet":
            yield from parquet_rows(file, text_field)
        else:
            yield from _text_rows(file, text_field or "text") if file.suffix == ".txt" else _json_rows(file)


def is_saved_dataset(path: Path) -> bool:
    """Whether Hugging Face wrote this folder."""
    return (path / "dataset_dict.json").is_file() or (path / "dataset_info.json").is_file()


def dataset_files(path: Path) -> list[Path]:
    """The file itself; or a folder's JSONL and Parquet files by name, or its text files if it has neither."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise FileNotFoundError(f"there is no dataset {path}")
    for suffixes in ((".parquet", ".jsonl"), (".txt",)):
        if files := sorted(file for file in path.iterdir() if file.suffix in suffixes):
            return files
    raise ValueError(f"the folder {path} holds no .parquet or .jsonl file, no .txt and no saved dataset")


def _json_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            yield where, row_of_line(line, where)


def _text_rows(path: Path, text_field: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                where = f"{path}:{number}"
                yield where, row_of_text(line, where, text_field)


def row_of_text(line: bytes, where: str, text_field: str) -> dict[str, Any]:
    """A line of a text file as a row, or an error that names the line."""
    try:
        return {text_field: line.decode().rstrip("\r\n")}
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not UTF-8: {error}") from error


def row_of_line(line: bytes, where: str) -> dict[str, Any]:
    """The JSON object of a line, or an error that names the line."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        cut = "" if line.endswith(b"\n") else " (the last line is cut off)"
        raise ValueError(f"{where}: not a JSON object{cut}: {error}") from error
    if not isinstance(row, dict):
        raise ValueError(f"{where}: expected a JSON object, got {line[:60].decode(errors='replace')!r}")
    return row


def wanted_columns(columns: list[str], text_field: str | None) -> list[str]:
    """Those that a sample is made of; all where no text is asked for."""
    if text_field is None:
        return columns
    return [name for name in columns if name in (*ID_FIELDS, text_field, "input_ids", "loss_mask")]


def parquet_rows(
    path: Path, text_field: str | None, row_groups: range | None = None, first_row: int = 0
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(where, row) of a file's rows, or of those of some row groups, of which the first row is told."""
    pa = require_pyarrow(f"read {path}")
    import pyarrow.parquet as parquet

    number = first_row
    try:
        with parquet.ParquetFile(path) as file:
            columns = wanted_columns(file.schema_arrow.names, text_field)
            groups = None if row_groups is None else list(row_groups)
            for batch in file.iter_batches(_ROWS_AT_ONCE, row_groups=groups, columns=columns):
                for row in batch.to_pylist():
                    yield f"{path}: row {number}", row
                    number += 1
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path}: not a whole Parquet file: {error}") from error


def saved_rows(
    path: Path, text_field: str | None, split: str | None, rows: range | None = None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(where, row) of a dataset saved by Hugging Face, or of some of its rows."""
    data = _saved(path, split)
    name = f"{path}[{split}]" if split else str(path)
    data = data.select_columns(wanted_columns(data.column_names, text_field)).with_format("arrow")
    number = 0
    if rows is not None:
        data, number = data.select(rows), rows.start
    for table in data.iter(_ROWS_AT_ONCE):
        for row in table.to_pylist():
            yield f"{name}: row {number}", row
            number += 1


def saved_size(path: Path, split: str | None) -> tuple[int, int]:
    """How many rows a saved dataset has, and how many bytes they take."""
    data = _saved(path, split)
    return len(data), int(data.data.nbytes)


def _saved(path: Path, split: str | None) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ImportError(f"to read {path}, install datasets: pip install 'phalanx[data]'") from error
    data = datasets.load_from_disk(os.fspath(path))
    if isinstance(data, datasets.DatasetDict):
        if split not in data:
            raise ValueError(f"{path} has the splits {', '.join(data)}; choose one with split, got {split!r}")
        return data[split]
    if split is not None:
        raise ValueError(f"{path} has no splits; leave out split={split!r}")
    return data
