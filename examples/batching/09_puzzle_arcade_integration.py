"""Collect samples from a puzzle server by following its hints, and plan batches of them.

pip install puzzle-arcade-server==0.8
server-launcher puzzle_arcade_server.server:ArcadeHandler --host 127.0.0.1 --port 8023
python examples/batching/09_puzzle_arcade_integration.py 127.0.0.1 8023
"""

import asyncio
import sys

from phalanx.data import (
    BatchingConfig,
    PackingConfig,
    ReplayBuffer,
    ReplayBufferConfig,
    ReplayPlanner,
    ReplayPlannerConfig,
)
from phalanx.puzzles.server_client import (
    CollectConfig,
    PuzzleClient,
    PuzzleClientConfig,
    PuzzleDifficulty,
    PuzzleGame,
    PuzzleSampleStream,
)


async def main(host: str, port: int) -> None:
    async with PuzzleClient(PuzzleClientConfig(host=host, port=port)) as client:
        seen = await client.start_puzzle(PuzzleGame.BINARY, PuzzleDifficulty.EASY, seed=42)
        print(f"{seen.game}, seed {seen.seed}, {seen.optimal_steps} steps at best")
        hint = await client.get_hint()
        print(f"hint: {hint.message}")
        assert hint.command is not None
        move = await client.send_action(hint.command)
        print(f"{hint.command}: accepted is {move.success}")
        await client.quit_puzzle()

    buffer = ReplayBuffer(ReplayBufferConfig(max_size=10_000))
    config = CollectConfig(
        client=PuzzleClientConfig(host=host, port=port), games=("binary", "lights"), seed=7
    )
    async with PuzzleSampleStream(config, max_episodes=8) as stream:
        async for sample in stream:
            buffer.add(sample)
    print(f"{buffer.size} samples of 8 episodes, solved: {buffer.success_rate:.0%}")

    planner = ReplayPlanner(
        buffer,
        ReplayPlannerConfig(window_size=1_000, overlap=0),
        BatchingConfig.predictable(token_budget=8_192, bucket_edges=(512,), max_sample_length=1_024),
        PackingConfig(max_length=1_024),
    )
    plan = planner.next_plan()
    print(f"{plan.num_batches} batches, {plan.compute_metrics().efficiency:.0%} full")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
