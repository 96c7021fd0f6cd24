"""Puzzle client, replay buffer and rolling windows of `chuk_lazarus.data.batching.streaming`."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.compat.chuk_lazarus.data.batching import BatchingConfig
from phalanx.compat.chuk_lazarus.data.batching.streaming import (
    BufferEvictionPolicy,
    PuzzleDifficulty,
    PuzzleGame,
    PuzzleObservation,
    ReplayBuffer,
    ReplayBufferConfig,
    RollingBatchPlanWindow,
    SampleSource,
    StreamSample,
    TelnetClientConfig,
    TelnetGymClient,
    WindowConfig,
)
from phalanx.data.tokenizers import ByteTokenizer
from tests.helpers.puzzle_server import RealServer, running_server


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    with running_server() as running:
        yield running


def make_sample(number: int, length: int = 4, **fields: object) -> StreamSample:
    given = {"dataset_id": "made", "source": SampleSource.GYM, "input_ids": (number,) * length}
    return StreamSample(sample_id=f"m{number}", loss_mask=(0,) + (1,) * (length - 1), **given | fields)


def filled(numbers: range, **settings: object) -> ReplayBuffer:
    buffer = ReplayBuffer(ReplayBufferConfig(**settings))
    buffer.add_batch([make_sample(number, 1 + number % 300) for number in numbers])
    return buffer


def test_puzzle_is_started_shown_and_left(server: RealServer) -> None:
    async def play() -> tuple[PuzzleObservation, PuzzleObservation, str]:
        address = TelnetClientConfig(
            host="127.0.0.1", port=server.port, connect_timeout=5.0, read_timeout=20.0
        )
        async with TelnetGymClient(address) as client:
            first = await client.start_puzzle(PuzzleGame.BINARY, PuzzleDifficulty.MEDIUM)
            advice = await client.get_hint()
            assert advice.success
            later = await client.show_state()
            await client.quit_puzzle()
            # After a puzzle is left, another one can be started.
            assert (await client.start_puzzle(PuzzleGame.SUDOKU, PuzzleDifficulty.EASY)).game == "Sudoku"
            return first, later, advice.message

    first, later, move = asyncio.run(play())
    assert first.optimal_steps is not None and first.optimal_steps > 0
    assert (later.game, later.seed, later.moves, later.hints_used) == (first.game, first.seed, 0, 1)
    assert move.startswith("Try placing")


def test_hints_are_collected_in_a_replay_buffer(server: RealServer) -> None:
    """Collects samples as a training script does: one sample for each hint."""
    hardness = {PuzzleDifficulty.EASY: 0.25, PuzzleDifficulty.HARD: 0.75}
    encode = ByteTokenizer().encode
    buffer = ReplayBuffer(ReplayBufferConfig(max_size=5))

    async def collect(level: PuzzleDifficulty, count: int) -> str:
        address = TelnetClientConfig(host="127.0.0.1", port=server.port)
        async with TelnetGymClient(address) as client:
            puzzle = await client.start_puzzle(PuzzleGame.SUDOKU, level)
            name = f"{PuzzleGame.SUDOKU.value}-{level.value}-{puzzle.seed}"
            for number in range(count):
                advice = await client.get_hint()
                asked, answer = encode(f"{puzzle.game}: "), encode(advice.message)
                buffer.add(
                    StreamSample(
                        sample_id=f"{name}-{number}",
                        dataset_id="hints",
                        source=SampleSource.GYM,
                        episode_id=name,
                        step_index=number,
                        difficulty=hardness[level],
                        success=advice.success,
                        input_ids=(*asked, *answer),
                        loss_mask=(0,) * len(asked) + (1,) * len(answer),
                    )
                )
            await client.quit_puzzle()
            return name

    easy = asyncio.run(collect(PuzzleDifficulty.EASY, 2))
    hard = asyncio.run(collect(PuzzleDifficulty.HARD, 4))
    # The oldest of six samples made room for the last one.
    assert [sample.sample_id for sample in buffer.get_all()] == [
        f"{easy}-1",
        *(f"{hard}-{number}" for number in range(4)),
    ]
    assert buffer.mean_difficulty == pytest.approx((0.25 + 4 * 0.75) / 5) and buffer.success_rate == 1.0
    assert {sample.episode_id for sample in buffer.sample(n=20, min_difficulty=0.5)} == {hard}
    assert buffer.sample(n=20, min_difficulty=0.9) == []


def test_buffer_samples_selects_and_evicts() -> None:
    config = ReplayBufferConfig(
        max_size=6,
        eviction_policy=BufferEvictionPolicy.FIFO,
        track_difficulty=True,
        track_success=True,
        seed=2,
    )
    buffer = ReplayBuffer(config)
    assert buffer.is_empty
    for number in range(8):
        source = SampleSource.GYM if number % 2 else SampleSource.OFFLINE
        buffer.add(make_sample(number, difficulty=number / 10, success=number > 4, source=source))
    assert (buffer.size, buffer.total_evicted) == (6, 2)
    assert (buffer.mean_difficulty, buffer.success_rate) == (pytest.approx(0.45), 0.5)
    drawn = buffer.sample(n=30, source=SampleSource.OFFLINE)
    assert len(drawn) == 30 and all(sample.is_replay for sample in drawn)
    assert {sample.sample_id for sample in drawn} <= {"m2", "m4", "m6"}
    assert sorted(sample.sample_id for sample in buffer.sample_uniform(6)) == [f"m{n}" for n in range(2, 8)]
    found = buffer.filter_by_difficulty(min_difficulty=0.3, max_difficulty=0.5)
    assert [sample.sample_id for sample in found] == ["m3", "m4", "m5"]
    assert [sample.sample_id for sample in buffer.filter_by_success(True)] == ["m5", "m6", "m7"]


def test_statistics_that_are_not_tracked_are_refused() -> None:
    buffer = filled(range(1), track_difficulty=False, track_success=False)
    with pytest.raises(ValueError, match="set track_difficulty=True"):
        _ = buffer.mean_difficulty
    with pytest.raises(ValueError, match="set track_success=True"):
        _ = buffer.success_rate


def test_saved_buffer_can_be_loaded(tmp_path: Path) -> None:
    buffer = filled(range(9), max_size=5, track_success=False)
    buffer.save(tmp_path / "replay.npz")
    loaded = ReplayBuffer.load(tmp_path / "replay.npz")
    assert type(loaded) is ReplayBuffer and loaded.config == buffer.config
    assert loaded.get_all() == buffer.get_all()


def test_windows_overlap_and_cover_the_buffer() -> None:
    buffer = filled(range(700), max_size=1000)
    batching = BatchingConfig.predictable(token_budget=900, bucket_edges=(75, 150), overflow_max=300, seed=3)
    window = RollingBatchPlanWindow(
        buffer=buffer, config=WindowConfig(window_size=400, overlap=50), batching_config=batching
    )

    async def plan_two() -> list[list[str]]:
        plans = [await window.next_window() for _ in range(2)]
        return [[name for batch in plan.iter_epoch(0) for name in batch.samples] for plan in plans]

    assert window.can_build_window
    first, second = asyncio.run(plan_two())
    assert sorted(first) == sorted(f"m{number}" for number in range(400))
    assert sorted(second) == sorted(f"m{number}" for number in range(350, 700))
    assert (window.state.window, window.state.stop) == (2, 700)
