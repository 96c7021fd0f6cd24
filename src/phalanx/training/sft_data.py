"""Training data of SFT: batches of a plan, of batch files, or of a stream of samples.

All batches with rows of the same length have the same number of rows, so an update compiles once per length.
"""

import abc
import asyncio
import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32

from phalanx.data.batch_files import BatchReader
from phalanx.data.collation import CollatedBatch, Sample, collate_microbatch
from phalanx.data.packing_config import PackingConfig
from phalanx.data.plans.batch_plan import BatchPlan
from phalanx.data.plans.batching_config import BatchingConfig
from phalanx.data.replay.config import ReplayBufferConfig
from phalanx.data.replay_buffer import ReplayBuffer
from phalanx.data.replay_planner import RollingBatchPlanWindow, WindowConfig
from phalanx.data.samples import StreamSample
from phalanx.data.stream_base import AsyncSampleStream

_BUFFER_FOLDER = "replay"
"""Folder in the run folder with the buffer of a stream, one file per checkpoint."""
_PREFETCH = 256
"""Samples that are requested from a puzzle server in advance."""


class TokenBatch(NamedTuple):
    """Packed rows of tokens."""

    input_ids: Int32[np.ndarray, "rows tokens"]
    loss_mask: Int32[np.ndarray, "rows tokens"]
    """1 for tokens that are trained on."""
    segment_ids: Int32[np.ndarray, "rows tokens"]
    """Segment of each token, numbered from 1 in each row; 0 is padding."""
    position_ids: Int32[np.ndarray, "rows tokens"]
    """Position of each token in its segment, from 0."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens without padding."""
        return int(np.count_nonzero(self.segment_ids))

    @property
    def num_slots(self) -> int:
        """Number of tokens with padding."""
        return self.input_ids.size


def token_batch(batch: CollatedBatch, token_budget: int) -> TokenBatch:
    """Convert a collated batch. Empty rows are added until the token budget is used."""
    rows, length = batch.input_ids.shape
    positions = np.broadcast_to(np.arange(length), (rows, length))
    if batch.segment_ids is None or batch.position_ids is None:
        segment_ids = (positions < np.asarray(batch.lengths, np.int64)[:, None]).astype(np.int32)
        position_ids = positions
    else:
        segment_ids, position_ids = batch.segment_ids, batch.position_ids
    num_empty = max(rows, token_budget // max(length, 1)) - rows
    arrays = (batch.input_ids, batch.loss_mask, segment_ids, position_ids)
    return TokenBatch(*(np.pad(array.astype(np.int32), ((0, num_empty), (0, 0))) for array in arrays))


class BatchSource(abc.ABC):
    """A sequence of batches with a position that can be saved."""

    eval_samples: tuple[StreamSample, ...] = ()
    """Samples that are used for evaluation only."""

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Identifies the data: equal fingerprints mean equal batches."""

    @property
    @abc.abstractmethod
    def num_batches(self) -> int | None:
        """Number of batches; None for an endless stream."""

    @abc.abstractmethod
    def next(self) -> TokenBatch | None:
        """Return the next batch, or None at the end."""

    @abc.abstractmethod
    def save(self, folder: Path, step: int, first_kept: int) -> dict[str, Any]:
        """Return the position as JSON values. Large state is saved in a file of `folder`.

        Files of steps before `first_kept` are removed.
        """

    @abc.abstractmethod
    def restore(self, folder: Path, state: Mapping[str, Any]) -> None:
        """Continue at the position that `save` returned."""


class NoData(BatchSource):
    """No batches: for an algorithm that only loads a trained model."""

    fingerprint = ""
    num_batches = None

    def next(self) -> None:
        return None

    def save(self, folder: Path, step: int, first_kept: int) -> dict[str, Any]:
        return {}

    def restore(self, folder: Path, state: Mapping[str, Any]) -> None:
        return


class PlannedBatches(BatchSource):
    """The batches of a plan, epoch by epoch."""

    def __init__(
        self,
        get_batch: Callable[[int, int], CollatedBatch],
        batches_per_epoch: list[int],
        token_budget: int,
        fingerprint: str,
    ) -> None:
        self._get_batch, self._token_budget, self._fingerprint = get_batch, token_budget, fingerprint
        self._batch_ids = [
            (epoch, index) for epoch, count in enumerate(batches_per_epoch) for index in range(count)
        ]
        self._position = 0

    @classmethod
    def from_plan(cls, plan: BatchPlan, samples: Mapping[str, Sample]) -> "PlannedBatches":
        """Create from a plan and its samples by id."""
        packing = plan.meta.pack_config

        def get_batch(epoch: int, index: int) -> CollatedBatch:
            return collate_microbatch(plan.get_epoch(epoch)[index], samples, packing=packing)

        batches_per_epoch = [len(plan.get_epoch(epoch)) for epoch in range(plan.num_epochs)]
        return cls(get_batch, batches_per_epoch, plan.meta.token_budget, plan.fingerprint)

    @classmethod
    def from_files(cls, folder: Path) -> "PlannedBatches":
        """Create from a folder of batch files."""
        reader = BatchReader(folder)
        batches_per_epoch = [reader.num_batches(epoch) for epoch in range(reader.num_epochs)]
        # Batch files do not record the token budget; the largest batch of the first epoch is close enough.
        token_budget = max((batch.input_ids.size for batch in reader.iter_epoch(0)), default=1)
        return cls(reader.get_batch, batches_per_epoch, token_budget, reader.fingerprint)

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def num_batches(self) -> int:
        return len(self._batch_ids)

    def next(self) -> TokenBatch | None:
        if self._position == len(self._batch_ids):
            return None
        batch = self._get_batch(*self._batch_ids[self._position])
        self._position += 1
        return token_batch(batch, self._token_budget)

    def save(self, folder: Path, step: int, first_kept: int) -> dict[str, Any]:
        return {"position": self._position}

    def restore(self, folder: Path, state: Mapping[str, Any]) -> None:
        self._position = int(state["position"])


class StreamedBatches(BatchSource):
    """Batches of a stream: `window_size` samples at a time are read, shuffled and packed.

    Args:
        open_stream: `open_stream(n)` returns an iterator over the samples from number `n`.
        fingerprint: Identifies the stream.
        window_size: Samples per window.
        batching: Batches of a window.
        packing: Packing of a window; None for one sample per row.
        num_eval_samples: Number of samples at the start of the stream that are used for evaluation only.
    """

    def __init__(
        self,
        open_stream: Callable[[int], Iterator[StreamSample]],
        fingerprint: str,
        *,
        window_size: int,
        batching: BatchingConfig,
        packing: PackingConfig | None,
        num_eval_samples: int = 0,
    ) -> None:
        self._open_stream, self._fingerprint = open_stream, fingerprint
        self._config, self._batching, self._packing = (
            WindowConfig(window_size=window_size, overlap=0),
            batching,
            packing,
        )
        self._buffer = ReplayBuffer(ReplayBufferConfig(max_size=window_size, seed=batching.seed))
        self._window = self._create_window()
        self._num_used_batches = 0
        """Batches of the current window that were returned."""
        self._stream: Iterator[StreamSample] | None = open_stream(0)
        self.eval_samples = tuple(itertools.islice(self._stream, num_eval_samples))
        self._num_read = len(self.eval_samples)

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def num_batches(self) -> None:
        return None

    def next(self) -> TokenBatch | None:
        if not self._window.has_window or self._num_used_batches == len(self._window.plan.get_epoch(0)):
            if not self._read_window():
                return None
            asyncio.run(self._window.next_window())
            self._num_used_batches = 0
        spec = self._window.plan.get_epoch(0)[self._num_used_batches]
        batch = collate_microbatch(spec, self._window.samples, packing=self._packing)
        self._num_used_batches += 1
        return token_batch(batch, self._batching.token_budget)

    def save(self, folder: Path, step: int, first_kept: int) -> dict[str, Any]:
        buffers = folder / _BUFFER_FOLDER
        buffers.mkdir(exist_ok=True)
        for path in buffers.glob("*.npz"):
            if path.stem.isdecimal() and int(path.stem) < first_kept:
                path.unlink()
        self._buffer.save(buffers / f"{step}.npz")
        return {
            "num_read": self._num_read,
            "num_used_batches": self._num_used_batches,
            "window": self._window.state_dict(),
            "buffer": f"{step}.npz",
        }

    def restore(self, folder: Path, state: Mapping[str, Any]) -> None:
        self._buffer = ReplayBuffer.load(folder / _BUFFER_FOLDER / state["buffer"])
        self._window = self._create_window()
        asyncio.run(self._window.load_state_dict(state["window"]))
        self._num_read, self._num_used_batches = int(state["num_read"]), int(state["num_used_batches"])
        self._stream = None

    def _read_window(self) -> bool:
        """Read the next window's samples. Return False if the stream has ended."""
        if self._stream is None:
            self._stream = self._open_stream(self._num_read)
        num_added = 0
        for sample in itertools.islice(self._stream, self._config.window_size):
            self._buffer.add(sample)
            num_added += 1
        self._num_read += num_added
        return num_added > 0

    def _create_window(self) -> RollingBatchPlanWindow:
        return RollingBatchPlanWindow(self._buffer, self._config, self._batching, self._packing)


def iterate_async(stream: AsyncSampleStream) -> Iterator[StreamSample]:
    """Iterate over an asynchronous stream, which runs in a thread and is read slightly ahead."""
    samples: queue.Queue[Any] = queue.Queue(_PREFETCH)
    stopped = threading.Event()

    async def read() -> None:
        async with stream:
            async for sample in stream:
                while not stopped.is_set():
                    try:
                        samples.put(sample, timeout=0.0)
                        break
                    except queue.Full:
                        await asyncio.sleep(0.005)
                if stopped.is_set():
                    return

    def run() -> None:
        error: BaseException | None = None
        try:
            asyncio.run(read())
        except Exception as caught:
            error = caught
        finally:
            # The consumer may stop while the queue is full.
            while not stopped.is_set():
                try:
                    samples.put(error, timeout=0.1)
                    break
                except queue.Full:
                    continue

    threading.Thread(target=run, name="phalanx-stream", daemon=True).start()
    try:
        while True:
            item = samples.get()
            if isinstance(item, StreamSample):
                yield item
            elif item is None:
                return
            else:
                raise item
    finally:
        stopped.set()
