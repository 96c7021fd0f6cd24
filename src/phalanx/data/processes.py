"""Work on the parts of a corpus by several processes of this machine, its results in the order of the parts.

What a part is, and what is checked of the whole, is in `corpus`; many machines are for `ray`.
"""

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from phalanx.data.corpus import (
    Counted,
    FilePart,
    LengthWorkerError,
    Paths,
    corpus_bytes,
    count_part,
    lines_before,
    merge_parts,
    paths_of,
    read_part,
    split_files,
)
from phalanx.data.readers import count_samples
from phalanx.data.tokenizers import Tokenizer

_LARGEST_PART = 1 << 22
_SMALLEST_PART = 1 << 20
"""Of bytes: below, a process takes longer to start than to read them."""
_PARTS_PER_WORKER = 8
_PARTS_AHEAD = 4
"""Parts for each worker that may be done before their turn; they wait in memory."""


class PartFault(NamedTuple):
    """A part in which something is wrong; its words lack what only the whole corpus knows."""

    text: str


def iterate_lengths_in_processes(
    dataset: Paths,
    tokenizer: Tokenizer,
    *,
    text_field: str = "text",
    split: str | None = None,
    workers: int | None = None,
    part_bytes: int | None = None,
    on_bytes: Callable[[int, int], None] | None = None,
) -> Generator[tuple[list[str], list[int]], None, None]:
    """(ids, lengths) of a dataset's samples, or of several datasets', many at a time, in their order.

    `workers` processes (as many as there are cores, unless told) each read and count parts of the files. The
    result depends neither on their number nor on `part_bytes`. With one, or where the corpus is one part,
    this process does it. `on_bytes` is told how much of how much is done, about in bytes. Close the iterator
    if it is not read to its end. A script that calls this needs `if __name__ == "__main__":`.
    """
    parts = corpus_parts(dataset, split, workers, part_bytes)
    count = functools.partial(count_part, tokenizer=tokenizer, text_field=text_field)
    with contextlib.closing(in_processes(count, parts, workers)) as found:
        told = _told(parts, found, tokenizer, text_field)
        if on_bytes is not None:
            told = _noted(told, len(parts), corpus_bytes(paths_of(dataset)), on_bytes)
        yield from merge_parts(parts, told)


def corpus_parts(
    dataset: Paths, split: str | None, workers: int | None, part_bytes: int | None = None
) -> list[FilePart]:
    """The parts that so many workers share; as large as they are few, within bounds."""
    for name, number in (("workers", workers), ("part_bytes", part_bytes)):
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")
    paths = paths_of(dataset)
    if not paths:
        raise ValueError("name a file to read")
    if part_bytes is None:
        per_worker = corpus_bytes(paths) // (workers or usable_cores())
        part_bytes = min(_LARGEST_PART, max(_SMALLEST_PART, per_worker // _PARTS_PER_WORKER))
    return split_files(paths, part_bytes, split)


def usable_cores() -> int:
    """Cores that this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0))


def _told(
    parts: Sequence[FilePart],
    found: Iterator[tuple[list[str], list[int]] | PartFault],
    tokenizer: Tokenizer,
    text_field: str,
) -> Iterator[Counted]:
    for number, (part, outcome) in enumerate(zip(parts, found, strict=True)):
        if not isinstance(outcome, PartFault):
            yield Counted(number, *outcome)
            continue
        # Read again here, with lines that are numbered and files that are called as the caller calls them.
        for rows, counts in count_samples(read_part(part, text_field, lines_before(part) + 1), tokenizer):
            yield Counted(number, [row.sample_id for row in rows], counts)
        raise LengthWorkerError(f"a worker could not read a part of {part.path} ({outcome.text})")


def _noted(
    told: Iterator[Counted], parts: int, total: int, on_bytes: Callable[[int, int], None]
) -> Iterator[Counted]:
    on_bytes(0, total)
    for counted in told:
        yield counted
        on_bytes(total * (counted.part + 1) // parts, total)


@dataclasses.dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    part: int | None = None
    """What it works on."""


def in_processes(
    work: Callable[[FilePart], Any], parts: Sequence[FilePart], workers: int | None = None
) -> Generator[Any, None, None]:
    """What `work` finds in each part, in order, or a `PartFault`; `work` must be picklable.

    Processes are begun anew (`spawn`), ignore Ctrl-C, which is for the caller, and end when the caller does,
    however that ends. Close the generator if it is not read to its end.
    """
    count = min(workers or usable_cores(), len(parts))
    if count <= 1:
        # Nobody to hand anything to: what is wrong is raised as it is met.
        yield from map(work, parts)
        return
    absolute = [dataclasses.replace(part, path=str(Path(part.path).resolve())) for part in parts]
    crew = []
    try:
        payload = _pickled(work)
        for _ in range(count):
            crew.append(_started(payload))
        yield from _dealt(crew, absolute)
    finally:
        for worker in crew:
            worker.connection.close()
            worker.process.terminate()
        for worker in crew:
            worker.process.join()
            worker.process.close()


def _dealt(crew: list[_Worker], parts: Sequence[FilePart]) -> Iterator[Any]:
    # A worker's death is told when its part has its turn, so that what was read before it is never lost.
    found: dict[int, Any] = {}
    living, dealt = list(crew), 0
    for turn in range(len(parts)):
        while turn not in found:
            for worker in living:
                if worker.part is None and dealt < min(len(parts), turn + _PARTS_AHEAD * len(crew)):
                    _send(worker, parts[dealt])
                    worker.part, dealt = dealt, dealt + 1
            busy = {worker.connection: worker for worker in living if worker.part is not None}
            for connection in wait(list(busy)):
                worker = busy[connection]  # type: ignore[index, unused-ignore]
                assert worker.part is not None
                try:
                    found[worker.part] = worker.connection.recv()
                except (EOFError, ConnectionError):
                    found[worker.part] = _death(worker, parts[worker.part])
                    living.remove(worker)
                worker.part = None
        if isinstance(found[turn], LengthWorkerError):
            raise found[turn]
        yield found.pop(turn)


def _send(worker: _Worker, part: FilePart) -> None:
    try:
        worker.connection.send(part)
    except ConnectionError:
        raise _death(worker, part) from None


def _death(worker: _Worker, part: FilePart) -> LengthWorkerError:
    worker.process.join()
    code = worker.process.exitcode or 0
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return LengthWorkerError(
        f"a worker {how} while it read {part.path}; what was counted before is kept: run it again to go on, "
        f"with fewer --workers if memory ran out"
    )


def _pickled(work: Callable[[FilePart], Any]) -> bytes:
    try:
        return pickle.dumps(work)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"the tokenizer cannot be sent to other processes ({error}); use one worker"
        ) from error


def _started(payload: bytes) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, payload), daemon=True)
    # What is blocked here stays so in the child, from its first moment on; here it comes afterwards.
    # Beforehand, because starting the tracker, as the first child of a program does, would unblock it.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    # Only the child holds its end, so that either one's death shows at the other.
    theirs.close()
    return _Worker(process, ours)


def _serve(connection: Connection, payload: bytes) -> None:
    """What a worker does until the caller is gone."""
    # The other cores have workers of their own.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    work = pickle.loads(payload)  # our own caller's
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            part = connection.recv()
            found: Any
            try:
                found = work(part)
            # Whatever it is, the caller meets it again when it reads the part itself, with its traceback.
            except Exception as error:
                found = PartFault(f"{type(error).__name__}: {error}")
            connection.send(found)
