"""Online learning: episodes stream into a replay buffer, windows of it are packed, a language model learns.

The stream is a mock with the interface of the real one (09): no server is needed.

python examples/batching/08_online_learning.py
"""

import asyncio

import jax

from phalanx.compat.chuk_lazarus.data.batching.streaming.gym_stream import MockGymStream
from phalanx.data import (
    BatchingConfig,
    PackingConfig,
    ReplayBuffer,
    ReplayBufferConfig,
    ReplayPlanner,
    ReplayPlannerConfig,
    collate,
)
from phalanx.lm import LanguageModelConfig
from phalanx.training import LMTrainer, OptimizerConfig, token_batch

WIDTH = 256


async def main() -> None:
    buffer = ReplayBuffer(ReplayBufferConfig(max_size=1_000))
    async with MockGymStream(num_episodes=40, steps_per_episode=5, seed=0) as stream:
        async for sample in stream:
            buffer.add(sample)
    print(f"{buffer.size} samples of {stream.metrics.episodes_completed} episodes")

    packing = PackingConfig(max_length=WIDTH)
    batching = BatchingConfig.predictable(
        token_budget=4 * WIDTH, bucket_edges=(WIDTH // 2,), overflow_max=WIDTH
    )
    window = ReplayPlanner(buffer, ReplayPlannerConfig(window_size=100, overlap=20), batching, packing)
    model = LanguageModelConfig(d_model=32, num_layers=1, num_heads=2, d_ff=64)
    trainer = LMTrainer(model, OptimizerConfig(num_updates=60, learning_rate=0.01, warmup=5))
    learner = trainer.start(jax.random.key(0))

    losses = []
    while len(losses) < 60:
        plan = await window.next_window()
        for spec in plan.iter_epoch(0):
            batch = collate(spec, window.samples, packing=packing)
            learner, metrics = trainer.update(learner, token_batch(batch, batching.token_budget))
            losses.append(float(metrics["loss"]))
    print(f"loss {losses[0]:.2f} at first, {losses[-1]:.2f} after {len(losses)} updates")
    print(f"below a fifth: {losses[-1] < losses[0] / 5}")


if __name__ == "__main__":
    asyncio.run(main())
