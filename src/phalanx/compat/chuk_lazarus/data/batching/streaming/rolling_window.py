"""Batch plans for rolling windows of a replay buffer, created asynchronously."""

import asyncio
from typing import Any, ClassVar

from phalanx.compat.chuk_lazarus.data.batching.planning.batch_plan import BatchPlan
from phalanx.compat.renamed import RenamedAttributes, RenamedFields, alias
from phalanx.data import replay_planner as _planner
from phalanx.data.plans.batching_config import BatchingConfig
from phalanx.data.replay_buffer import ReplayBuffer

_BATCHING = "the argument batching_config of RollingBatchPlanWindow"
_POSITION = "iter_from(epoch, microbatch_idx) of the plan"


class WindowConfig(RenamedFields, _planner.ReplayPlannerConfig):
    """Settings for a `RollingBatchPlanWindow`, such as the size and overlap of its windows."""

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
        "plan_microbatches": "total_microbatches of the plan",
        "plan_fingerprint": "fingerprint",
        **dict.fromkeys(("microbatches_consumed", "is_exhausted", "progress"), _POSITION),
    }


class RollingBatchPlanWindow(RenamedAttributes):
    """Creates batch plans for successive windows of a replay buffer.

    The `planner` attribute is the `phalanx.data.ReplayPlanner` that creates them.
    """

    renamed: ClassVar = {
        "build_next_window": "await next_window()",
        "build_next_window_sync": "asyncio.run(window.next_window())",
        "current_plan": "planner.plan",
        "current_state": "state",
        "get_remaining_microbatches": _POSITION,
        **dict.fromkeys(("iter_current", "iter_current_with_samples"), "planner.iter_batches(epoch)"),
        "should_build_next": "can_build_window",
        "total_microbatches": "total_microbatches of the plan",
        "total_windows": "state.window",
        "to_dict": "planner.state_dict()",
        "from_dict": "planner.load_state_dict(state)",
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

    async def next_window(self, num_epochs: int = 1) -> BatchPlan:
        """Plan the next window without blocking the event loop."""
        return BatchPlan.from_arrays(await asyncio.to_thread(self.planner.next_plan, num_epochs))


__all__ = ["RollingBatchPlanWindow", "WindowConfig", "WindowState"]
