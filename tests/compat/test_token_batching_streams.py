"""The streaming part of the token batching module's description.

Each test holds one block with only its imports changed; what a block leaves out is supplied above it. Blocks
that connect do so to a real puzzle server.
"""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.compat.chuk_lazarus.data.batching.streaming import (
    ReplayBuffer,
    ReplayBufferConfig,
    SampleSource,
    StreamSample,
)
from phalanx.data import BatchingConfig
from tests.helpers.puzzle_server import RealServer, running_server


@pytest.fixture
def batching_config() -> BatchingConfig:
    return BatchingConfig.predictable(token_budget=4096, bucket_edges=(128, 256, 512), seed=42)


@pytest.fixture(scope="module")
def server_at_8023() -> Iterator[RealServer]:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 8023)) == 0:
            pytest.skip("the blocks name port 8023, and something else listens there")
    with running_server(port=8023) as server:
        yield server


def test_telnet_client(server_at_8023: RealServer, capsys: pytest.CaptureFixture[str]) -> None:
    async def block() -> Any:
        from phalanx.compat.chuk_lazarus.data.batching.streaming.telnet_client import (
            PuzzleDifficulty,
            PuzzleGame,
            TelnetClientConfig,
            TelnetGymClient,
        )

        # Configure connection
        config = TelnetClientConfig(
            host="localhost",
            port=8023,
            connect_timeout=10.0,
            read_timeout=30.0,
        )

        # Connect and play puzzles
        async with TelnetGymClient(config) as client:
            # Start a puzzle
            obs = await client.start_puzzle(PuzzleGame.SUDOKU, PuzzleDifficulty.EASY)
            print(f"Game: {obs.game}, Seed: {obs.seed}")
            print(f"Optimal steps: {obs.optimal_steps}")

            # Get hints (optimal moves)
            hint = await client.get_hint()
            print(f"Next move: {hint.message}")

            # Get current state
            state = await client.show_state()

            # Quit puzzle
            await client.quit_puzzle()

        return obs, state

    obs, state = asyncio.run(block())
    assert (state.seed, state.moves, state.hints_used) == (obs.seed, 0, 1)
    game, steps, move = capsys.readouterr().out.splitlines()
    assert game == f"Game: Sudoku, Seed: {obs.seed}"
    assert steps == f"Optimal steps: {obs.optimal_steps}" and obs.optimal_steps > 0
    assert move.startswith("Next move: Try placing")


def test_complete_online_training_example(
    server_at_8023: RealServer, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts: list[list[int]] = []

    def tokenize(text: str) -> list[int]:
        prompts.append(list(text.encode()))
        return prompts[-1]

    def create_loss_mask(message: str) -> list[int]:
        assert message
        return [1] * len(prompts[-1])

    from phalanx.compat.chuk_lazarus.data.batching.streaming import (
        ReplayBuffer,
        ReplayBufferConfig,
        SampleSource,
        StreamSample,
    )
    from phalanx.compat.chuk_lazarus.data.batching.streaming.telnet_client import (
        PuzzleDifficulty,
        PuzzleGame,
        TelnetClientConfig,
        TelnetGymClient,
    )

    async def collect_training_data():
        config = TelnetClientConfig(host="localhost", port=8023)
        buffer = ReplayBuffer(ReplayBufferConfig(max_size=10000))

        puzzles = [
            (PuzzleGame.SUDOKU, PuzzleDifficulty.EASY),
            (PuzzleGame.SUDOKU, PuzzleDifficulty.MEDIUM),
            (PuzzleGame.BINARY, PuzzleDifficulty.EASY),
        ]

        for game, difficulty in puzzles:
            async with TelnetGymClient(config) as client:
                obs = await client.start_puzzle(game, difficulty)
                episode_id = f"{game.value}_{obs.seed}"

                for step in range(5):
                    hint = await client.get_hint()
                    if not hint.success:
                        break

                    # Create training sample
                    sample = StreamSample(
                        input_ids=tokenize(f"Puzzle: {game.value}\nMove?"),
                        loss_mask=create_loss_mask(hint.message),
                        sample_id=f"{episode_id}_step{step}",
                        dataset_id="puzzle_arcade",
                        source=SampleSource.GYM,
                        episode_id=episode_id,
                        step_index=step,
                        difficulty={"easy": 0.3, "medium": 0.6}[difficulty.value],
                    )
                    buffer.add(sample)

                await client.quit_puzzle()

        print(f"Collected {buffer.size} samples")
        return buffer

    buffer = asyncio.run(collect_training_data())
    assert capsys.readouterr().out == "Collected 15 samples\n"
    found = buffer.get_all()
    assert [sample.step_index for sample in found] == [0, 1, 2, 3, 4] * 3
    assert [sample.difficulty for sample in found] == [0.3] * 5 + [0.6] * 5 + [0.3] * 5
    assert len({sample.episode_id for sample in found}) == 3


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
        from phalanx.compat.chuk_lazarus.data.batching.streaming import RollingBatchPlanWindow, WindowConfig

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


def test_saved_buffer_can_be_loaded(tmp_path: Path) -> None:
    buffer = ReplayBuffer(ReplayBufferConfig(max_size=5, track_success=False))
    buffer.save(tmp_path / "buffer.npz")
    loaded = ReplayBuffer.load(tmp_path / "buffer.npz")
    assert type(loaded) is ReplayBuffer and loaded.is_empty
    assert loaded.config == buffer.config
