"""Batch plans over a replay buffer that goes on filling: one window of its samples after the other.

How a plan's batches are formed is in `phalanx.data`; what a buffer keeps is in `replay`.
"""

import asyncio
import os
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from phalanx.data.lengths import LengthTable
from phalanx.data.moved import HasMoved, refuse_moved
from phalanx.data.packing_config import PackingConfig
from phalanx.data.plans.arrays import MicrobatchSpec
from phalanx.data.plans.batch_plan import BatchPlan
from phalanx.data.plans.batching_config import BatchingConfig
from phalanx.data.plans.builder import BatchPlanBuilder
from phalanx.data.plans.epoch import epoch_seed
from phalanx.data.replay.rows import BufferSnapshot
from phalanx.data.replay_buffer import ReplayBuffer
from phalanx.data.samples import StreamSample
from phalanx.io.atomic import atomic_write
from phalanx.io.checksum import read_verified_json, write_json

_POLL_SECONDS = 0.02


class WhenCovered(StrEnum):
    """What happens when the last window has reached the newest sample."""

    RESTART = "restart"
    """The next window starts again with the oldest sample that is held."""
    WAIT = "wait"
    """`next_window` waits for new samples."""


_BATCHING = "RollingBatchPlanWindow takes a batching_config beside the window's"
_COUNTING = "who iterates counts, and goes on with plan.iter_from(epoch, microbatch_idx)"


class WindowConfig(HasMoved, BaseModel):
    """How many samples a window covers."""

    moved: ClassVar = {
        "window_microbatches": "say window_size, in samples",
        "overlap_fraction": "say overlap, in samples",
        **dict.fromkeys(
            ("token_budget", "bucket_edges", "overflow_max", "seed", "to_batching_config"), _BATCHING
        ),
    }

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    window_size: int = Field(default=1000, ge=1)
    """Samples in a window at most."""
    overlap: int = Field(default=100, ge=0)
    """Samples at the end of a window that come again at the start of the next."""
    min_samples: int = Field(default=1, ge=1)
    """New samples that a window needs at least."""
    when_covered: WhenCovered = WhenCovered.RESTART
    """Start again with the oldest, or wait, when there are fewer new samples than that."""

    @model_validator(mode="before")
    @classmethod
    def _names_ours(cls, given: Any) -> Any:
        return refuse_moved(cls, given, cls.moved)

    @model_validator(mode="after")
    def _moves(self) -> "WindowConfig":
        if self.overlap >= self.window_size:
            raise ValueError(
                f"overlap ({self.overlap}) must be below window_size ({self.window_size}), "
                f"or windows would never move on"
            )
        return self


class WindowState(HasMoved, BaseModel):
    """Where a rolling window stands; small enough to print."""

    moved: ClassVar = {
        "window_id": "window",
        "created_at": "the plan follows from the samples, whenever it is made",
        "snapshot_size": "stop - start",
        "snapshot_total_added": "stop",
        "plan_microbatches": "plan.total_microbatches of the window",
        "plan_fingerprint": "fingerprint",
        **dict.fromkeys(("microbatches_consumed", "is_exhausted", "progress"), _COUNTING),
    }

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    window: int = Field(default=0, ge=0)
    """Windows planned so far."""
    start: int = Field(default=0, ge=0)
    """The current window's first sample, as the number of its addition to the buffer."""
    stop: int = Field(default=0, ge=0)
    """The number after its last sample's."""
    next_start: int = Field(default=0, ge=0)
    """Where the next window begins."""
    num_epochs: int = Field(default=1, ge=1)
    """Epochs of the current window's plan."""
    fingerprint: str = ""
    """The current plan's."""


class WindowSamples(Mapping[str, StreamSample]):
    """A window's samples by the ids that its plan uses; each is made when asked for."""

    def __init__(self, snapshot: BufferSnapshot) -> None:
        self._snapshot = snapshot

    def __getitem__(self, sample_id: str) -> StreamSample:
        return self._snapshot[self._snapshot.row_of[sample_id]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._snapshot.ids)

    def __len__(self) -> int:
        return len(self._snapshot)


class RollingBatchPlanWindow(HasMoved):
    """Plans window after window over a buffer's samples, in the order in which they were added.

    - A window covers the next `window_size` samples that the buffer still holds, or as many as there are.
    - The next one begins `overlap` samples before the end of the last: those come again. Samples that were
      evicted meanwhile are passed over.
    - When fewer than `min_samples` new ones are there, it starts over with the oldest, or waits.

    The plan follows from the samples, the batching config and the number of the window alone: the same give
    the same fingerprint. Where a sample id is held twice, the later one's name in the plan is `id#serial`;
    `samples` knows all names.
    """

    moved: ClassVar = {
        "build_next_window": "await next_window()",
        "build_next_window_sync": "asyncio.run(window.next_window())",
        "current_plan": "plan",
        "current_state": "state",
        "discard_current": "next_window replaces the current one",
        "get_remaining_microbatches": "plan.iter_from(epoch, microbatch_idx)",
        "iter_current": "iter_batches, with the samples",
        "iter_current_with_samples": "iter_batches",
        "should_build_next": "can_build_window",
        "total_microbatches": "plan.total_microbatches",
        "total_windows": "state.window",
        "to_dict": "state_dict",
        "from_dict": "load_state_dict",
    }

    def __init__(
        self,
        buffer: ReplayBuffer,
        config: WindowConfig | None = None,
        batching_config: BatchingConfig | None = None,
        packing: PackingConfig | None = None,
    ) -> None:
        self.buffer = buffer
        self.config = config or WindowConfig()
        self.batching_config = batching_config or BatchingConfig.throughput()
        self.packing = packing
        self.state = WindowState()
        self._snapshot: BufferSnapshot | None = None
        self._plan: BatchPlan | None = None

    @property
    def has_window(self) -> bool:
        """Whether a window has been planned."""
        return self._plan is not None

    @property
    def can_build_window(self) -> bool:
        """Whether `next_window` would answer at once."""
        if self.config.when_covered is WhenCovered.WAIT:
            return self._new_samples() >= self.config.min_samples
        return self.buffer.size >= self.config.min_samples

    @property
    def plan(self) -> BatchPlan:
        """The current window's plan."""
        if self._plan is None:
            raise ValueError("there is no window yet; await next_window()")
        return self._plan

    @property
    def snapshot(self) -> BufferSnapshot:
        """The current window's samples, in order."""
        if self._snapshot is None:
            raise ValueError("there is no window yet; await next_window()")
        return self._snapshot

    @property
    def samples(self) -> WindowSamples:
        """The current window's samples by the ids of its plan."""
        return WindowSamples(self.snapshot)

    async def next_window(self, num_epochs: int = 1) -> BatchPlan:
        """Plan the next window's samples for some epochs."""
        if self.config.when_covered is WhenCovered.WAIT:
            while not self.can_build_window:
                await asyncio.sleep(_POLL_SECONDS)
        snapshot = self._take()
        # The state moves on together with the plan, so that one that was given up can be asked for again.
        plan = await asyncio.to_thread(self._build, snapshot, self.state.window, num_epochs)
        serials, kept = snapshot.serials, min(self.config.overlap, snapshot.size)
        stop = int(serials[-1]) + 1
        self.state = WindowState(
            window=self.state.window + 1,
            start=int(serials[0]),
            stop=stop,
            # Counted in samples, not in numbers: evicted ones in between must not make the overlap smaller.
            next_start=int(serials[-kept]) if kept else stop,
            num_epochs=num_epochs,
            fingerprint=plan.fingerprint,
        )
        self._snapshot, self._plan = snapshot, plan
        return plan

    def iter_batches(self, epoch: int = 0) -> Iterator[tuple[MicrobatchSpec, list[StreamSample]]]:
        """The current window's batches with their samples."""
        samples = self.samples
        for batch in self.plan.iter_epoch(epoch):
            yield batch, [samples[sample_id] for sample_id in batch.samples]

    def state_dict(self) -> dict[str, Any]:
        """Where it stands, as plain values."""
        return self.state.model_dump()

    async def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to where `state_dict` was taken, and plan that window again.

        The buffer must hold what it held then (`ReplayBuffer.save` and `load`); a ValueError says so if the
        plan comes out differently.
        """
        try:
            told = WindowState(**state)
        except ValidationError as error:
            raise ValueError(f"this is not the state of a window: {error}") from error
        snapshot, plan = None, None
        if told.window:
            snapshot = self.buffer.snapshot(told.start, told.stop)
            if snapshot.size:
                plan = await asyncio.to_thread(self._build, snapshot, told.window - 1, told.num_epochs)
            if plan is None or plan.fingerprint != told.fingerprint:
                raise ValueError(
                    f"window {told.window} cannot be planned again: the buffer no longer holds additions "
                    f"{told.start} to {told.stop - 1} as it did, or the batching config is another one"
                )
        self.state, self._snapshot, self._plan = told, snapshot, plan

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `state_dict` to a JSON file."""
        with atomic_write(path, "w", checksum=True) as file:
            write_json(file, self.state_dict())

    async def load(self, path: str | os.PathLike[str]) -> None:
        """`load_state_dict` from a JSON file."""
        await self.load_state_dict(read_verified_json(path))

    def _new_samples(self) -> int:
        """Samples behind the last window's end."""
        return self.buffer.count_since(self.state.stop)

    def _take(self) -> BufferSnapshot:
        start = self.state.next_start
        if self._new_samples() < self.config.min_samples:
            if self.buffer.size < self.config.min_samples:
                raise ValueError(
                    f"the buffer holds {self.buffer.size} samples, a window needs {self.config.min_samples}"
                )
            start = 0
        return self.buffer.snapshot(start, count=self.config.window_size)

    def _build(self, snapshot: BufferSnapshot, window: int, num_epochs: int) -> BatchPlan:
        seed = epoch_seed(self.batching_config.seed, window)
        builder = BatchPlanBuilder(
            LengthTable.from_arrays(snapshot.ids, snapshot.lengths),
            self.batching_config.model_copy(update={"seed": seed}),
            dataset_hash=snapshot.digest(),
            packing=self.packing,
        )
        return builder.build_now(num_epochs)
