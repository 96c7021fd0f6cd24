"""Batch plans over windows of a replay buffer that is still being filled."""

import time
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from pydantic import Field, model_validator

from phalanx.config import Config, FrozenModel
from phalanx.data.lengths import LengthTable
from phalanx.data.packing import PackingConfig
from phalanx.data.plans.batch_plan import BatchPlan, BatchPlanBuilder, BatchSpec, validate_state
from phalanx.data.plans.batching_config import BatchingConfig
from phalanx.data.plans.epoch import epoch_seed
from phalanx.data.replay_buffer import BufferSnapshot, ReplayBuffer
from phalanx.data.samples import Sample

_POLL_SECONDS = 0.02


class BufferEndPolicy(StrEnum):
    """What `ReplayPlanner.next_plan` does if there are not enough new samples for the next window."""

    RESTART = "restart"
    """Start the next window with the oldest sample in the buffer."""
    WAIT = "wait"
    """Wait for new samples."""


class ReplayPlannerConfig(Config):
    """Settings for a `ReplayPlanner`."""

    window_size: int = Field(default=1000, ge=1)
    """Maximum number of samples in a window."""
    overlap: int = Field(default=100, ge=0)
    """Number of samples at the end of a window that are repeated at the start of the next one."""
    min_new_samples: int = Field(default=1, ge=1)
    """Minimum number of new samples in a window. A sample is new if it was added to the buffer after the last
    sample of the previous window."""
    at_end: BufferEndPolicy = BufferEndPolicy.RESTART
    """What to do if there are fewer than `min_new_samples` new samples for the next window: start again with
    the oldest sample in the buffer (`restart`), or wait until there are enough (`wait`)."""

    @model_validator(mode="after")
    def _check_overlap(self) -> "ReplayPlannerConfig":
        if self.overlap >= self.window_size:
            raise ValueError(
                f"overlap ({self.overlap}) must be less than window_size ({self.window_size}), otherwise the "
                f"window does not move"
            )
        return self


class ReplayPlannerState(FrozenModel):
    """Position of a `ReplayPlanner`, as stored in checkpoints.

    Samples are referred to by serial number: the buffer numbers them from 0 in the order in which they were
    added.
    """

    window: int = Field(default=0, ge=0)
    """Number of windows planned so far."""
    start: int = Field(default=0, ge=0)
    """Serial number of the first sample of the current window."""
    stop: int = Field(default=0, ge=0)
    """Serial number of the last sample of the current window, plus 1."""
    next_start: int = Field(default=0, ge=0)
    """Smallest serial number that the next window may contain."""
    num_epochs: int = Field(default=1, ge=1)
    """Number of epochs in the current plan."""
    fingerprint: str = ""
    """Fingerprint of the current plan. Empty if there is none."""


class ReplayPlanner:
    """Creates batch plans for successive windows of a replay buffer, starting with the oldest samples.

    A window consists of up to `window_size` consecutive samples in the buffer, starting `overlap` samples
    before the end of the previous window. The plan depends only on the samples, the settings and the index of
    the window. If a sample id occurs twice in a window, the later sample is called `id#serial` in the plan.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        config: ReplayPlannerConfig | None = None,
        batching_config: BatchingConfig | None = None,
        packing: PackingConfig | None = None,
    ) -> None:
        self.buffer = buffer
        self.config = config or ReplayPlannerConfig()
        self.batching_config = batching_config or BatchingConfig.throughput()
        self.packing = packing
        self.state = ReplayPlannerState()
        self._snapshot: BufferSnapshot | None = None
        self._plan: BatchPlan | None = None

    @property
    def can_plan(self) -> bool:
        """True if there are enough samples for `next_plan` to return a plan without waiting."""
        waits = self.config.at_end is BufferEndPolicy.WAIT
        available = self.buffer.count_since(self.state.stop) if waits else self.buffer.size
        return available >= self.config.min_new_samples

    @property
    def plan(self) -> BatchPlan:
        """Plan for the current window."""
        if self._plan is None:
            raise ValueError("no window has been planned yet; call next_plan() first")
        return self._plan

    @property
    def snapshot(self) -> BufferSnapshot:
        """Samples of the current window, oldest first."""
        if self._snapshot is None:
            raise ValueError("no window has been planned yet; call next_plan() first")
        return self._snapshot

    @property
    def samples(self) -> Mapping[str, Sample]:
        """Samples of the current window, keyed by their ids in the current plan."""
        return self.snapshot.samples_by_id

    def next_plan(self, num_epochs: int = 1) -> BatchPlan:
        """Create the plan for the next window.

        If there are not enough new samples, this method waits for them or starts again with the oldest
        sample, depending on `at_end`.

        Args:
            num_epochs: Number of epochs in the plan.

        Raises:
            ValueError: If the buffer has fewer than `min_new_samples` samples and `at_end` is `restart`.
        """
        if self.config.at_end is BufferEndPolicy.WAIT:
            while not self.can_plan:
                time.sleep(_POLL_SECONDS)
        start = self.state.next_start
        if self.buffer.count_since(self.state.stop) < self.config.min_new_samples:
            if not self.can_plan:
                raise ValueError(
                    f"the buffer has {self.buffer.size} samples, but a window needs at least "
                    f"{self.config.min_new_samples}"
                )
            start = 0
        snapshot = self.buffer.snapshot(start, count=self.config.window_size)
        # The state changes together with the plan, so that a failed call can be repeated.
        plan = self._build(snapshot, self.state.window, num_epochs)
        serials, repeated = snapshot.serials, min(self.config.overlap, snapshot.size)
        stop = int(serials[-1]) + 1
        self.state = ReplayPlannerState(
            window=self.state.window + 1,
            start=int(serials[0]),
            stop=stop,
            # Counted in samples, because evicted samples in between must not reduce the overlap.
            next_start=int(serials[-repeated]) if repeated else stop,
            num_epochs=num_epochs,
            fingerprint=plan.fingerprint,
        )
        self._snapshot, self._plan = snapshot, plan
        return plan

    def iter_batches(self, epoch: int = 0) -> Iterator[tuple[BatchSpec, list[Sample]]]:
        """Iterate over the batches of one epoch of the current plan, together with their samples."""
        samples = self.samples
        for batch in self.plan.iter_epoch(epoch):
            yield batch, [samples[sample_id] for sample_id in batch.sample_ids]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the planner as a dictionary of JSON-compatible values."""
        return self.state.model_dump()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state that `state_dict` returned.

        The plan for the saved window is created again, so the buffer must still contain the samples of this
        window. Use `ReplayBuffer.save` to save the buffer along with the state.
        """
        loaded = validate_state(ReplayPlannerState, state, "a replay planner")
        snapshot, plan = None, None
        if loaded.window:
            snapshot = self.buffer.snapshot(loaded.start, loaded.stop)
            if snapshot.size:
                plan = self._build(snapshot, loaded.window - 1, loaded.num_epochs)
            if plan is None or plan.fingerprint != loaded.fingerprint:
                raise ValueError(
                    f"window {loaded.window} cannot be planned again: the buffer no longer has the additions "
                    f"{loaded.start} to {loaded.stop - 1}, or the batching config differs"
                )
        self.state, self._snapshot, self._plan = loaded, snapshot, plan

    def _build(self, snapshot: BufferSnapshot, window: int, num_epochs: int) -> BatchPlan:
        seed = epoch_seed(self.batching_config.seed, window)
        builder = BatchPlanBuilder(
            LengthTable.from_arrays(snapshot.ids, snapshot.lengths),
            self.batching_config.model_copy(update={"seed": seed}),
            dataset_hash=snapshot.digest(),
            packing=self.packing,
        )
        return builder.build(num_epochs)
