"""Use a replay buffer: eviction, prioritized sampling, saving, and batch plans over windows of the buffer.

python examples/batching/07_replay_buffer.py
"""

import pathlib
import tempfile

from phalanx.data import (
    BatchingConfig,
    EvictionPolicy,
    ReplayBuffer,
    ReplayBufferConfig,
    ReplayPlanner,
    ReplayPlannerConfig,
    Sample,
    SampleInfo,
    SampleOrigin,
)


def sample(number: int) -> Sample:
    length = 5 + number % 20
    return Sample(
        f"s{number}",
        input_ids=range(1, length + 1),
        loss_mask=(0, 0) + (1,) * (length - 2),
        info=SampleInfo(
            dataset_id="numbers",
            origin=SampleOrigin.SYNTHETIC,
            difficulty=(number % 10) / 10,
            success=number % 3 > 0,
        ),
    )


def main() -> None:
    buffer = ReplayBuffer(ReplayBufferConfig(max_size=500, eviction_policy=EvictionPolicy.FIFO))
    buffer.add_batch([sample(number) for number in range(800)])
    print(f"{buffer.size} of {buffer.total_added} samples are held, {buffer.total_evicted} had to go")
    print(f"mean difficulty {buffer.mean_difficulty:.2f}, solved {buffer.success_rate:.0%}")

    hard = buffer.sample(n=16, min_difficulty=0.7)
    print(f"16 hard ones, the easiest has {min(one.info.difficulty for one in hard):.1f}")
    drawn = buffer.draw(32)
    buffer.update_priorities(drawn.handles, 2 * drawn.weights)

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "buffer.npz")
        buffer.save(path)
        print(f"loaded again: the same samples is {ReplayBuffer.load(path).get_all() == buffer.get_all()}")

    planner = ReplayPlanner(
        buffer=buffer,
        config=ReplayPlannerConfig(window_size=200, overlap=50),
        batching_config=BatchingConfig.predictable(
            token_budget=256, bucket_edges=(16,), max_sample_length=32
        ),
    )
    for number in range(3):
        plan = planner.next_plan()
        first = next(iter(planner.samples))
        print(f"window {number}: from {first}, {plan.num_batches} batches, {plan.fingerprint}")


if __name__ == "__main__":
    main()
