"""Batch plans over rolling windows of a replay buffer, with asynchronous methods."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from phalanx.compat.chuk_lazarus.data.batching.planning.batch_plan import BatchPlan, MicrobatchSpec
from phalanx.compat.chuk_lazarus.data.batching.streaming.types import StreamSample
from phalanx.compat.renamed import RenamedAttributes, RenamedFields, alias
from phalanx.data import replay_planner as _planner
from phalanx.data.plans.batching_config import BatchingConfig
from phalanx.data.replay_buffer import ReplayBuffer

_BATCHING = "the argument batching_config of RollingBatchPlanWindow"
_POSITION = "plan.iter_from(epoch, microbatch_idx)"


class WindowConfig(RenamedFields, _planner.ReplayPlannerConfig):
    """Size and overlap of a window."""

    renamed: ClassVar = {
        "window_microbatches": "window_size, in samples",
        "overlap_fraction": "overlap, in samples",
        **dict.fromkeys(
            ("token_budget", "bucket_edges", "overflow_max", "seed", "to_batching_config"), _BATCHING
        ),
    }


class WindowState(RenamedAttributes, _planner.ReplayPlannerState):
    """Position of a rolling window."""

    renamed: ClassVar = {
        "window_id": "window",
        "snapshot_size": "stop - start",
        "snapshot_total_added": "stop",
        "plan_microbatches": "plan.total_microbatches",
        "plan_fingerprint": "fingerprint",
        **dict.fromkeys(("microbatches_consumed", "is_exhausted", "progress"), _POSITION),
    }


class RollingBatchPlanWindow(RenamedAttributes):
    """Creates batch plans for successive windows of a replay buffer."""

    renamed: ClassVar = {
        "build_next_window": "await next_window()",
        "build_next_window_sync": "asyncio.run(window.next_window())",
        "current_plan": "plan",
        "current_state": "state",
        "get_remaining_microbatches": _POSITION,
        "iter_current": "iter_batches",
        "iter_current_with_samples": "iter_batches",
        "should_build_next": "can_build_window",
        "total_microbatches": "plan.total_microbatches",
        "total_windows": "state.window",
        "to_dict": "state_dict",
        "from_dict": "load_state_dict",
    }
    buffer = alias("planner.buffer")
    # Whether `next_window` returns immediately.
    can_build_window = alias("planner.can_plan")

    def __init__(
        self,
        buffer: ReplayBuffer,
        config: WindowConfig | None = None,
        batching_config: BatchingConfig | None = None,
        packing: Any = None,
    ) -> None:
        self.planner = _planner.ReplayPlanner(buffer, config or WindowConfig(), batching_config, packing)

    @property
    def state(self) -> WindowState:
        """Position of the current window in the replay buffer."""
        return WindowState(**self.planner.state_dict())

    @property
    def plan(self) -> BatchPlan:
        """Plan for the current window."""
        return BatchPlan.from_arrays(self.planner.plan)

    @property
    def samples(self) -> dict[str, StreamSample]:
        """The samples of the current window, keyed by their ids in the plan."""
        return {name: StreamSample.from_sample(sample) for name, sample in self.planner.samples.items()}

    async def next_window(self, num_epochs: int = 1) -> BatchPlan:
        """Plan the next window without blocking the event loop."""
        return BatchPlan.from_arrays(await asyncio.to_thread(self.planner.next_plan, num_epochs))

    def iter_batches(self, epoch: int = 0) -> Iterator[tuple[MicrobatchSpec, list[StreamSample]]]:
        """Iterate over one epoch of the current plan, yielding each batch together with its samples."""
        for spec, samples in self.planner.iter_batches(epoch):
            yield MicrobatchSpec.from_spec(spec), [StreamSample.from_sample(sample) for sample in samples]

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON-compatible values."""
        return self.planner.state_dict()

    async def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state that `state_dict` returned."""
        await asyncio.to_thread(self.planner.load_state_dict, state)


__all__ = ["RollingBatchPlanWindow", "WindowConfig", "WindowState"]
