"""Replay buffer of token samples: adding to a full buffer, and prioritized sampling.

All samples exist before the measurement, so that creating them is not measured. Both libraries use their
default settings, which are the same: the oldest sample is replaced, and priorities have an exponent of 0.6.
"""

import functools
from typing import Any

from benchmarks.peers import CHUK_LAZARUS
from benchmarks.suite import Suite, Workload
from benchmarks.workers.replay_samples import MEAN_LENGTH, make_samples
from phalanx.data import ReplayBuffer, ReplayBufferConfig, Sample, SampleInfo, SampleOrigin

suite = Suite("replay_buffer", unit="samples/s", packages=("numpy",))

_SIZES = {"capacity": 100_000, "num_added": 10_000, "batch_size": 32}


def _sample(*, sample_id: str, input_ids: Any, loss_mask: Any, **info: Any) -> Sample:
    info = {"origin": SampleOrigin.ENVIRONMENT, **info}
    return Sample(sample_id, input_ids, loss_mask, info=SampleInfo(**info))


@functools.cache
def _samples(capacity: int) -> list[Sample]:
    return make_samples(_sample, capacity)


def _prepare(work: str, capacity: int, num_added: int, batch_size: int) -> Workload:
    samples = _samples(capacity)
    buffer = ReplayBuffer(ReplayBufferConfig(max_size=capacity))
    for sample in samples:
        buffer.add(sample)

    def add() -> None:
        # The buffer is full, so each new sample replaces an old one.
        for sample in samples[:num_added]:
            buffer.add(sample)

    info = {"mean_length": MEAN_LENGTH}
    if work == "add":
        return Workload(add, num_added, info)
    return Workload(lambda: buffer.sample(batch_size), batch_size, info)


for _work in ("add", "sample"):
    suite.case(
        _work,
        group=_work,
        smoke={"capacity": 100, "num_added": 10},
        work=_work,
        **_SIZES,
    )(_prepare)
    suite.peer_case(
        f"chuk-lazarus-{_work}",
        CHUK_LAZARUS,
        "chuk_lazarus_replay",
        group=_work,
        system="chuk-lazarus 0.4.1",
        work=_work,
        **_SIZES,
    )
