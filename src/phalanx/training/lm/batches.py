"""Batches for a language model: from a plan and its dataset, from batch files, or from a stream of samples.

Every batch of one width has the same number of rows, so that an update is compiled once for each width. What
is done with them is in `update`.
"""

import abc
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32

from phalanx.data.batch_files import BatchReader
from phalanx.data.collation import SampleLike, TokenBatch, collate
from phalanx.data.packing import PackingConfig
from phalanx.data.plans.batch_plan import BatchPlan
from phalanx.data.plans.batching_config import BatchingConfig
from phalanx.data.replay_buffer import ReplayBuffer, ReplayBufferConfig
from phalanx.data.replay_planner import ReplayPlanner, ReplayPlannerConfig
from phalanx.data.samples import Sample

_BUFFERS = "replay"
"""The folder in a run that holds a stream's buffer, one file for each checkpoint."""


class TokenArrays(NamedTuple):
    """Rows of tokens for compiled functions; segments are numbered from 1 in each row, and 0 is padding."""

    input_ids: Int32[np.ndarray, "rows width"]
    loss_mask: Int32[np.ndarray, "rows width"]
    segment_ids: Int32[np.ndarray, "rows width"]
    position_ids: Int32[np.ndarray, "rows width"]

    @property
    def real_tokens(self) -> int:
        """Number of tokens without padding."""
        return int(np.count_nonzero(self.segment_ids))

    @property
    def padded_tokens(self) -> int:
        """Number of tokens including padding."""
        return self.input_ids.size


def token_arrays(batch: TokenBatch, token_budget: int) -> TokenArrays:
    """Return a batch with as many rows as the budget allows, so that batches of one width have one shape."""
    rows, width = batch.input_ids.shape
    empty = ((0, max(rows, token_budget // max(width, 1)) - rows), (0, 0))
    arrays = (batch.input_ids, batch.loss_mask, batch.segment_ids, batch.position_ids)
    return TokenArrays(*(np.pad(array.astype(np.int32), empty) for array in arrays))


class BatchSource(abc.ABC):
    """Batches in order, from where one stands."""

    held_out: tuple[Sample, ...] = ()
    """Samples that are only measured on."""

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Two sources with the same one give the same batches."""

    @property
    @abc.abstractmethod
    def num_batches(self) -> int | None:
        """How many there are; None for a stream that never ends."""

    @abc.abstractmethod
    def next(self) -> TokenArrays | None:
        """The next batch, None after the last."""

    @abc.abstractmethod
    def save(self, folder: Path, step: int, first_kept: int) -> dict[str, Any]:
        """Where it stands at a step, as plain values; what is too large goes into a file of the folder.

        Files for earlier steps than `first_kept` are removed.
        """

    @abc.abstractmethod
    def restore(self, folder: Path, standing: Mapping[str, Any]) -> None:
        """Go on from where `save` was called."""


class PlannedBatches(BatchSource):
    """The batches of a plan, epoch after epoch."""

    def __init__(
        self, batch: Callable[[int, int], TokenBatch], counts: list[int], budget: int, fingerprint: str
    ) -> None:
        self._batch, self._budget, self._fingerprint = batch, budget, fingerprint
        self._places = [(epoch, index) for epoch, count in enumerate(counts) for index in range(count)]
        self._taken = 0

    @classmethod
    def of_plan(cls, plan: BatchPlan, samples: Mapping[str, SampleLike]) -> "PlannedBatches":
        """A plan, and the samples that it names."""
        budget = plan.meta.batching.token_budget

        def batch(epoch: int, index: int) -> TokenBatch:
            return collate(plan.get_epoch(epoch)[index], samples)

        counts = [len(plan.get_epoch(epoch)) for epoch in range(plan.num_epochs)]
        return cls(batch, counts, budget, plan.fingerprint)

    @classmethod
    def of_files(cls, folder: Path) -> "PlannedBatches":
        """What `phalanx data batch generate` wrote."""
        reader = BatchReader(folder)
        counts = [reader.num_batches(epoch) for epoch in range(reader.num_epochs)]
        # Files do not contain the token budget; the largest batch of the first epoch is close enough.
        budget = max((batch.input_ids.size for batch in reader.iter_epoch(0)), default=1)
        return cls(reader.get_batch, counts, budget, reader.fingerprint)

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def num_batches(self) -> int:
        return len(self._places)

    def next(self) -> TokenArrays | None:
        if self._taken == len(self._places):
            return None
        self._taken += 1
        return token_arrays(self._batch(*self._places[self._taken - 1]), self._budget)

    def save(self, folder: Path, step: int, first_kept: int) -> dict[str, Any]:
        return {"taken": self._taken}

    def restore(self, folder: Path, standing: Mapping[str, Any]) -> None:
        self._taken = int(standing["taken"])


class StreamedBatches(BatchSource):
    """Batches over a replay buffer that a stream fills: a window is planned, then the next is filled.

    `samples(n)` are the stream's samples from number n on, so that a run that was interrupted can go on.
    """

    def __init__(
        self,
        samples: Callable[[int], Iterator[Sample]],
        fingerprint: str,
        *,
        window: ReplayPlannerConfig,
        batching: BatchingConfig,
        packing: PackingConfig | None,
        buffer_size: int,
        held_out: int = 0,
    ) -> None:
        if buffer_size < window.window_size:
            raise ValueError(
                f"a buffer of {buffer_size} samples cannot hold a window of {window.window_size}"
            )
        self._open, self._fingerprint = samples, fingerprint
        self._config, self._batching, self._packing = window, batching, packing
        self._samples: Iterator[Sample] | None = None
        self._buffer = ReplayBuffer(ReplayBufferConfig(max_size=buffer_size, seed=batching.seed))
        self._window = self._over(self._buffer)
        self._taken = 0
        """Samples taken from the stream."""
        self._used = 0
        """Batches of the current window that were handed out."""
        self._held_out = held_out

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def num_batches(self) -> None:
        return None

    def begin(self) -> None:
        """Take the held-out samples off the stream; the training goes on behind them."""
        self._samples = self._open(0)
        self.held_out = tuple(itertools.islice(self._samples, self._held_out))
        self._taken = len(self.held_out)

    def next(self) -> TokenArrays | None:
        if not self._window.has_plan or self._used == len(self._window.plan.get_epoch(0)):
            if not self._fill():
                return None
            self._window.next_plan()
            self._used = 0
        spec = self._window.plan.get_epoch(0)[self._used]
        self._used += 1
        return token_arrays(collate(spec, self._window.samples), self._batching.token_budget)

    def save(self, folder: Path, step: int, first_kept: int) -> dict[str, Any]:
        (folder / _BUFFERS).mkdir(exist_ok=True)
        for path in (folder / _BUFFERS).glob("*.npz"):
            if path.stem.isdecimal() and int(path.stem) < first_kept:
                path.unlink()
        name = f"{step}.npz"
        self._buffer.save(folder / _BUFFERS / name)
        standing = {"taken": self._taken, "used": self._used, "window": self._window.state_dict()}
        return {**standing, "buffer": name}

    def restore(self, folder: Path, standing: Mapping[str, Any]) -> None:
        self._buffer = ReplayBuffer.load(folder / _BUFFERS / standing["buffer"])
        self._window = self._over(self._buffer)
        self._window.load_state_dict(standing["window"])
        self._taken, self._used = int(standing["taken"]), int(standing["used"])
        self._samples = None

    def _fill(self) -> bool:
        """Add a window's worth of new samples; False when the stream has ended and none came."""
        if self._samples is None:
            self._samples = self._open(self._taken)
        wanted = self._config.window_size - (self._config.overlap if self._window.has_plan else 0)
        added = 0
        for sample in self._samples:
            self._buffer.add(sample)
            self._taken += 1
            added += 1
            if added == wanted:
                break
        return added > 0

    def _over(self, buffer: ReplayBuffer) -> ReplayPlanner:
        return ReplayPlanner(buffer, self._config, self._batching, self._packing)
