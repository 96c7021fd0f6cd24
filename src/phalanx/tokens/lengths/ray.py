"""Lengths counted by many processes on Ray: a corpus in parts that are read apart and put together in order.

Reading a dataset from end to end, in one process, is in `sources`.
"""

import contextlib
import dataclasses
import functools
import itertools
import logging
import os
import socket
import traceback
import warnings
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from phalanx.tokens.lengths.records import require_pyarrow
from phalanx.tokens.lengths.sources import (
    IdCheck,
    SourceSample,
    count_samples,
    dataset_files,
    is_saved_dataset,
    parquet_rows,
    row_of_line,
    sample_of_row,
)
from phalanx.tokens.lengths.tokenizers import Tokenizer


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
    if is_saved_dataset(path):
        raise ValueError(
            f"{path} is a dataset saved by Hugging Face, which is not read with Ray; "
            f"write it as Parquet (Dataset.to_parquet), or count without Ray"
        )
    return dataset_files(path)


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
    return (sample_of_row(where, row, text_field) for where, row in rows)


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


_CONNECT_SECONDS = 10.0
_LARGEST_PART = 1 << 26
_SMALLEST_PART = 1 << 20
_PARTS_PER_WORKER = 8
"""Parts are dealt as workers come free; with several for each, the last to finish is hardly waited for."""
_OBJECT_STORE_BYTES = 256 << 20
"""Shared memory of a cluster of our own: it only ever holds ids and lengths that wait to be taken."""
_TRIES_AFTER_A_DEATH = 2


class RayWorkerError(RuntimeError):
    """Ray could not be reached, or a worker died or failed in a way that is no fault of the dataset."""


def iterate_lengths_on_ray(
    dataset: str | os.PathLike[str],
    tokenizer: Tokenizer,
    *,
    text_field: str = "text",
    workers: int | None = None,
    address: str | None = None,
    part_bytes: int | None = None,
) -> Iterator[tuple[list[str], list[int]]]:
    """(ids, lengths) of a dataset's samples, many at a time, in the dataset's order.

    Workers read the files themselves (JSONL, Parquet, or a folder of those; the same path on every machine).
    `address` names a running cluster; without it one of `workers` processes is started here, and ended when
    the iterator is (close it, if it is not read to its end). A process that is connected to Ray already stays
    so. The result depends neither on the number of workers nor on `part_bytes`.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if part_bytes is not None and part_bytes < 1:
        raise ValueError(f"part_bytes must be at least 1, got {part_bytes}")
    files = corpus_files(Path(dataset))
    ray = require_ray(f"count the lengths of {os.fspath(dataset)} with Ray")
    with connected(ray, address, workers):
        count = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        parts = cut_into_parts(files, part_bytes or _part_bytes(files, count))
        # Closed in this thread where a fault ends the reading early: Ray cannot be left to the collector.
        with contextlib.closing(_counted(ray, parts, tokenizer, text_field, count)) as tables:
            yield from _in_order(parts, tables, text_field)


def _part_bytes(files: Sequence[Path], workers: int) -> int:
    total = sum(file.stat().st_size for file in files)
    return min(_LARGEST_PART, max(_SMALLEST_PART, total // (workers * _PARTS_PER_WORKER)))


def require_ray(purpose: str) -> Any:
    """Ray, or an ImportError that says how to get it and what for."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ImportError(f"to {purpose}, install Ray: pip install 'phalanx[ray]'") from error
    return ray


@contextlib.contextmanager
def connected(ray: Any, address: str | None, workers: int | None) -> Iterator[None]:
    """Connected to Ray; what this began it ends."""
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"address": address, "logging_level": logging.ERROR, "log_to_driver": False}
    if address is None:
        # Not None, or else an address in the environment would be taken instead.
        options["address"] = "local"
        options["num_cpus"] = workers or os.cpu_count()
        options["include_dashboard"] = False
        options["object_store_memory"] = _OBJECT_STORE_BYTES
    else:
        _check_that_someone_listens(address)
    try:
        with _no_usage_reports(), warnings.catch_warnings():
            # JAX warns of every fork; Ray's are followed by another program at once, which does no harm.
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            ray.init(**options)
    except (RuntimeError, ValueError, OSError) as error:
        target = "start Ray" if address is None else f"reach the Ray cluster at {address}"
        reason = " ".join(str(error).split())[:300]
        if address is not None and not os.environ.get("RAY_AUTH_TOKEN"):
            reason += (
                "; if the cluster asks for a token, as those of Ray 2.59 and later do, set "
                "RAY_AUTH_MODE=token and give it in RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
            )
        raise RayWorkerError(f"cannot {target}: {reason}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_that_someone_listens(address: str) -> None:
    """Ray itself would try for minutes, without a word."""
    host, _, port = address.rpartition(":")
    if "://" in address or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise RayWorkerError(f"cannot reach the Ray cluster at {address}: {error}") from error


@contextlib.contextmanager
def _no_usage_reports() -> Iterator[None]:
    """A cluster started in here does not tell Ray's makers over the network how it is used."""
    name = "RAY_USAGE_STATS_ENABLED"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _counted(
    ray: Any, parts: Sequence[CorpusPart], tokenizer: Tokenizer, text_field: str, workers: int
) -> Generator[Any, None, None]:
    """Tables of `_count_part`, in the order of the parts."""
    if not parts:
        return
    # Failures are told in words of our own; Ray Data would print each with several tracebacks first.
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    items = [{"number": number, **dataclasses.asdict(part)} for number, part in enumerate(parts)]
    with warnings.catch_warnings():
        # Ray's own settings, and its word on `max_retries`, for which it has no other argument yet.
        warnings.simplefilter("ignore", DeprecationWarning)
        data = ray.data.from_items(items, override_num_blocks=len(items))
        data.context.enable_progress_bars = False
        data.context.print_on_execution_start = False
        data.context.execution_options.preserve_order = True
        counted = data.map_batches(
            _count_part,
            # In a list, where Ray leaves it a reference.
            fn_kwargs={"tokenizer": [ray.put(tokenizer)], "text_field": text_field},
            batch_size=1,
            compute=ray.data.TaskPoolStrategy(size=min(workers, len(parts))),
            # Ray Data would try again for ever with a part that kills whoever reads it.
            max_retries=_TRIES_AFTER_A_DEATH,
        )
    try:
        yield from counted.iter_batches(batch_size=None, batch_format="pyarrow")
    except ray.exceptions.RayError as error:
        raise RayWorkerError(_in_words(error)) from error


def _in_words(reason: object) -> str:
    reason = " ".join(str(reason).split())[:300]
    return f"a Ray worker failed ({reason}); what was counted before is kept: run it again to go on"


def _in_order(
    parts: Sequence[CorpusPart], tables: Iterator[Any], text_field: str
) -> Iterator[tuple[list[str], list[int]]]:
    """Checks what only the whole corpus shows: ids that come twice, and rows with and without ids."""
    rows_of: Counter[int] = Counter()
    check = IdCheck()
    done = 0

    def where(row: int) -> str:
        return _where(parts, rows_of, row, text_field)

    for table in tables:
        faults = table.column("fault").drop_null()
        if len(faults):
            raise ValueError(faults[0].as_py())
        failures = table.column("failure").drop_null()
        if len(failures):
            failed = RayWorkerError(_in_words(failures[0].as_py().strip().rpartition("\n")[2]))
            failed.add_note(f"In the worker:\n{failures[0]}")
            raise failed
        numbers, counts = np.unique(table.column("part").to_numpy(), return_counts=True)
        rows_of.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
        ids: list[str] = table.column("sample_id").to_pylist()
        lengths: list[int] = table.column("length").to_pylist()
        for row, (found, length) in enumerate(zip(ids, lengths, strict=True), done):
            ids[row - done] = sample_id = check.accept(found, row, row, where)
            if not length:
                raise ValueError(f"{where(row)}: sample {sample_id!r} has no tokens; leave it out")
        done += len(ids)
        if ids:
            yield ids, lengths


def _where(parts: Sequence[CorpusPart], rows_of: Mapping[int, int], row: int, text_field: str) -> str:
    """File and line of a row of the corpus, found by reading its part again."""
    for number, part in enumerate(parts):
        if row < rows_of[number]:
            samples = read_part(part, text_field, lines_before(part) + 1)
            return next(itertools.islice(samples, row, None)).where
        row -= rows_of[number]
    raise AssertionError("no part has this row")


def _count_part(items: Mapping[str, np.ndarray], tokenizer: list[Any], text_field: str) -> Any:
    """What a worker does: a table with a row for each sample of a part; or one row, with what went wrong."""
    import pyarrow as pa

    # The other cores have workers of their own.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    part = CorpusPart(
        str(items["path"][0]), int(items["begin"][0]), int(items["end"][0]), int(items["first_row"][0])
    )
    fault = failure = None
    try:
        ids, lengths = _count(part, _fetched(tokenizer[0]), text_field)
    # Told as data: the fault that comes first in the corpus is then the one that is reported.
    except (ValueError, OSError, ImportError) as error:
        ids, lengths, fault = [""], [0], str(error)
    # On its way through Ray Data any other would lose its type and text; the caller raises it again in words.
    except Exception:
        ids, lengths, failure = [""], [0], traceback.format_exc()
    return pa.table(
        {
            "part": pa.array([int(items["number"][0])] * len(ids), pa.int64()),
            "sample_id": pa.array(ids, pa.large_string()),
            "length": pa.array(lengths, pa.int64()),
            "fault": pa.array([fault] * len(ids), pa.string()),
            "failure": pa.array([failure] * len(ids), pa.string()),
        }
    )


@functools.lru_cache(maxsize=1)
def _fetched(reference: Any) -> Tokenizer:
    """Once in every worker, and not once for every part."""
    import ray

    return ray.get(reference)


def _count(part: CorpusPart, tokenizer: Tokenizer, text_field: str) -> tuple[list[str], list[int]]:
    try:
        return _count_from(part, tokenizer, text_field, 1)
    except ValueError:
        if part.is_parquet or not part.begin:
            raise
    # Only now is it worth knowing how many lines come before this part.
    return _count_from(part, tokenizer, text_field, lines_before(part) + 1)


def _count_from(
    part: CorpusPart, tokenizer: Tokenizer, text_field: str, first_line: int
) -> tuple[list[str], list[int]]:
    ids: list[str] = []
    lengths: list[int] = []
    for rows, counts in count_samples(read_part(part, text_field, first_line), tokenizer):
        ids += [row.sample_id for row in rows]
        lengths += counts
    return ids, lengths
