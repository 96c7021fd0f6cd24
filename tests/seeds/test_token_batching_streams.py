"""The streaming part of the token batching module's description: the blocks that need no puzzle server.

Each test holds one block with only its imports changed; what the block leaves out is supplied above it.
"""

import asyncio
from typing import Any

import pytest

from phalanx.streams import ReplayBuffer, SampleSource, StreamSample
from phalanx.tokens import BatchingConfig


@pytest.fixture
def batching_config() -> BatchingConfig:
    return BatchingConfig.predictable(token_budget=4096, bucket_edges=(128, 256, 512), seed=42)


def test_replay_buffer(capsys: pytest.CaptureFixture[str]) -> None:
    from phalanx.streams import (
        BufferEvictionPolicy,
        ReplayBuffer,
        ReplayBufferConfig,
        SampleSource,
        StreamSample,
    )

    # Create buffer with difficulty tracking
    buffer = ReplayBuffer(
        ReplayBufferConfig(
            max_size=10000,
            eviction_policy=BufferEvictionPolicy.FIFO,
            track_difficulty=True,
            track_success=True,
        )
    )

    # Add samples
    sample = StreamSample(
        input_ids=(1, 2, 3, 4, 5),
        loss_mask=(0, 0, 1, 1, 1),
        sample_id="sudoku_42_step0",
        dataset_id="puzzle_arcade",
        source=SampleSource.GYM,
        episode_id="sudoku_42",
        step_index=0,
        difficulty=0.3,
        success=True,
    )
    buffer.add(sample)

    # Sample from buffer
    samples = buffer.sample(n=32)

    # Get statistics
    print(f"Buffer size: {buffer.size}")
    print(f"Mean difficulty: {buffer.mean_difficulty:.2f}")

    # Priority sampling by difficulty
    hard_samples = buffer.sample(n=16, min_difficulty=0.7)

    assert [one.input_ids for one in samples] == [(1, 2, 3, 4, 5)] * 32
    assert hard_samples == []
    assert capsys.readouterr().out == "Buffer size: 1\nMean difficulty: 0.30\n"


def test_rolling_window(batching_config: BatchingConfig) -> None:
    buffer = ReplayBuffer()
    for number in range(1500):
        buffer.add(
            StreamSample(
                input_ids=(1,) * (1 + number % 300),
                loss_mask=(1,) * (1 + number % 300),
                sample_id=f"s{number}",
                dataset_id="puzzle_arcade",
                source=SampleSource.GYM,
            )
        )
    samples = {sample.sample_id: sample for sample in buffer.get_all()}
    trained: list[str] = []

    def collate(batch: list[StreamSample]) -> list[StreamSample]:
        return batch

    def train_step(batch: list[StreamSample]) -> None:
        trained.extend(sample.sample_id for sample in batch)

    async def block() -> Any:
        from phalanx.streams import (
            RollingBatchPlanWindow,
            WindowConfig,
        )

        # Configure rolling window
        window = RollingBatchPlanWindow(
            buffer=buffer,
            config=WindowConfig(
                window_size=1000,
                overlap=100,
            ),
            batching_config=batching_config,
        )

        # Get next window's batch plan
        plan = await window.next_window()

        # Iterate batches
        for mb in plan.iter_epoch(0):
            batch = collate([samples[sid] for sid in mb.samples])
            train_step(batch)

        return await window.next_window()

    following = asyncio.run(block())
    assert sorted(trained) == sorted(f"s{number}" for number in range(1000))
    again = {name for batch in following.iter_epoch(0) for name in batch.samples}
    assert again == {f"s{number}" for number in range(900, 1500)}
