"""Lengths counted by many processes on Ray, on this machine or on a cluster.

What a part of a corpus is, and how parts are put together, is in `corpus`; without Ray it is `processes`.
"""

import contextlib
import dataclasses
import functools
import logging
import os
import socket
import traceback
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.data.corpus import (
    Counted,
    FilePart,
    LengthWorkerError,
    Paths,
    corpus_bytes,
    count_part,
    merge_parts,
    paths_of,
    split_files,
)
from phalanx.data.readers import dataset_files, is_saved_dataset
from phalanx.data.tokenizers import Tokenizer


def corpus_files(path: Path) -> list[Path]:
    """The files of a dataset, by name; absolute, because they must be there under this name everywhere."""
    path = path.resolve()
    if is_saved_dataset(path):
        raise ValueError(
            f"{path} is a dataset saved by Hugging Face, which is not read with Ray; "
            f"write it as Parquet (Dataset.to_parquet), or count without Ray"
        )
    return dataset_files(path)


_CONNECT_SECONDS = 10.0
_LARGEST_PART = 1 << 26
_SMALLEST_PART = 1 << 20
_PARTS_PER_WORKER = 8
"""Parts are dealt as workers come free; with several for each, the last to finish is hardly waited for."""
_OBJECT_STORE_BYTES = 256 << 20
"""Shared memory of a cluster of our own: it only ever holds ids and lengths that wait to be taken."""
_TRIES_AFTER_A_DEATH = 2


class RayWorkerError(LengthWorkerError):
    """Ray could not be reached, or a worker died or failed in a way that is no fault of the dataset."""


def iterate_lengths_on_ray(
    dataset: Paths,
    tokenizer: Tokenizer,
    *,
    text_field: str = "text",
    workers: int | None = None,
    address: str | None = None,
    part_bytes: int | None = None,
) -> Generator[tuple[list[str], list[int]], None, None]:
    """(ids, lengths) of a dataset's samples, many at a time, in the dataset's order.

    Workers read the files themselves (JSONL, Parquet, text, or folders of those; the same path everywhere).
    `address` names a running cluster; without it one of `workers` processes is started here, and ended when
    the iterator is (close it, if it is not read to its end). A process that is connected to Ray already stays
    so. The result depends neither on the number of workers nor on `part_bytes`.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if part_bytes is not None and part_bytes < 1:
        raise ValueError(f"part_bytes must be at least 1, got {part_bytes}")
    files = [file for path in paths_of(dataset) for file in corpus_files(path)]
    ray = require_ray(f"count the lengths of {', '.join(map(str, paths_of(dataset)))} with Ray")
    with connected(ray, address, workers):
        count = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        parts = split_files(files, part_bytes or _part_bytes(files, count))
        # Closed in this thread where a fault ends the reading early: Ray cannot be left to the collector.
        with contextlib.closing(_counted(ray, parts, tokenizer, text_field, count)) as tables:
            yield from merge_parts(parts, _parts_of(tables))


def _part_bytes(files: Sequence[Path], workers: int) -> int:
    per_worker = corpus_bytes(files) // workers
    return min(_LARGEST_PART, max(_SMALLEST_PART, per_worker // _PARTS_PER_WORKER))


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
    ray: Any, parts: Sequence[FilePart], tokenizer: Tokenizer, text_field: str, workers: int
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


def _parts_of(tables: Iterator[Any]) -> Iterator[Counted]:
    """The parts in a worker's tables; what went wrong in one is raised when its turn has come."""
    for table in tables:
        faults = table.column("fault").drop_null()
        if len(faults):
            raise ValueError(faults[0].as_py())
        failures = table.column("failure").drop_null()
        if len(failures):
            failed = RayWorkerError(_in_words(failures[0].as_py().strip().rpartition("\n")[2]))
            failed.add_note(f"In the worker:\n{failures[0]}")
            raise failed
        numbers = table.column("part").to_numpy()
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        for begin, end in zip(starts.tolist(), [*starts[1:].tolist(), len(numbers)], strict=True):
            rows = table.slice(begin, end - begin)
            ids, lengths = rows.column("sample_id").to_pylist(), rows.column("length").to_pylist()
            yield Counted(int(numbers[begin]), ids, lengths)


def _count_part(items: Mapping[str, np.ndarray], tokenizer: list[Any], text_field: str) -> Any:
    """What a worker does: a table with a row for each sample of a part; or one row, with what went wrong."""
    import pyarrow as pa

    # The other cores have workers of their own.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    part = FilePart(
        str(items["path"][0]), int(items["begin"][0]), int(items["end"][0]), int(items["first_row"][0])
    )
    fault = failure = None
    try:
        ids, lengths = count_part(part, _fetched(tokenizer[0]), text_field)
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
