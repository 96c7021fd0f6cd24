"""A language model that learns while puzzles are being played: stream, replay buffer, rolling window, model.

One task plays and fills the buffer; the other plans packed batches over the newest samples and learns from
them. Neither waits for the other to finish. Without arguments the puzzles are made up (Latin squares, cell by
cell); with the host and port of a puzzle server they are its own, solved by its hints.

python examples/lm/online_language_model.py                   (half a minute of CPU time)
python examples/lm/online_language_model.py 127.0.0.1 8023    (docs/streams.md says how to start a server)
"""

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator

import jax
import numpy as np

from phalanx.compat.chuk_lazarus.data.batching.streaming.gym_stream import MockGymStream
from phalanx.data import (
    BatchingConfig,
    ByteTokenizer,
    PackingConfig,
    ReplayBuffer,
    ReplayBufferConfig,
    RollingBatchPlanWindow,
    StreamSample,
    WhenCovered,
    WindowConfig,
    collate_microbatch,
)
from phalanx.lm import LanguageModelConfig, generate
from phalanx.puzzles.server import CollectConfig, PuzzleClientConfig, PuzzleSampleStream
from phalanx.training import LMTrainer, OptimizerConfig, token_batch

TEXT = ByteTokenizer()
WINDOW = 128


async def play(samples: AsyncIterator[StreamSample], window: RollingBatchPlanWindow) -> None:
    """Fill the buffer, at most two windows ahead of the learning."""
    async for sample in samples:
        window.buffer.add(sample)
        while window.buffer.count_since(window.state.stop) >= 2 * WINDOW:
            await asyncio.sleep(0.01)


def moves(model: object, samples: list[StreamSample]) -> list[tuple[str, str]]:
    """What the model writes after each prompt, and what was played."""
    pairs = []
    for sample in samples:
        first = int(np.argmax(sample.mask))
        written = generate(model, sample.input_ids[:first], sample.length - first)
        pairs.append((TEXT.decode(written), TEXT.decode(sample.input_ids[first:])))
    return pairs


async def main(arguments: argparse.Namespace) -> None:
    if arguments.host is None:
        stream, width = MockGymStream(num_episodes=1_000_000, success_rate=1.0), 128
    else:
        config = CollectConfig(
            client=PuzzleClientConfig(host=arguments.host, port=arguments.port), games=("binary",)
        )
        stream, width = PuzzleSampleStream(config), 1056
    packing = PackingConfig(max_length=width)
    batching = BatchingConfig.predictable(
        token_budget=max(1024, width), bucket_edges=(width // 2,), overflow_max=width
    )
    settings = WindowConfig(window_size=WINDOW, overlap=0, min_samples=WINDOW, when_covered=WhenCovered.WAIT)
    buffer = ReplayBuffer(ReplayBufferConfig(max_size=1_000))
    window = RollingBatchPlanWindow(buffer, settings, batching, packing)
    trainer = LMTrainer(
        LanguageModelConfig(d_model=64, num_layers=2, num_heads=4, d_ff=128),
        OptimizerConfig(num_updates=arguments.updates, learning_rate=0.006, warmup=10),
    )
    learner = trainer.start(jax.random.key(0))

    async with stream:
        samples = aiter(stream)
        # The first samples are kept apart and never learned from.
        unseen = [await anext(samples) for _ in range(16)]
        playing = asyncio.create_task(play(samples, window))
        update, read = 0, 0
        while update < arguments.updates:
            plan = await window.next_window()
            for spec in plan.get_epoch(0)[: arguments.updates - update]:
                batch = token_batch(
                    collate_microbatch(spec, window.samples, packing=packing), batching.token_budget
                )
                learner, metrics = trainer.update(learner, batch)
                update, read = update + 1, read + batch.real_tokens
                if update == 1 or update % max(1, arguments.updates // 8) == 0:
                    loss = float(metrics["loss"])
                    print(
                        f"update {update:3}  {'#' * round(8 * loss):46} loss {loss:.2f}, {read:,} tokens read"
                    )
        playing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await playing

    print(f"{stream.metrics.episodes_completed} puzzles played, {buffer.size} samples held")
    pairs = moves(trainer.model(learner), unseen)
    print(f"unseen board:\n{TEXT.decode(unseen[0].input_ids)}\nthe model's move: {pairs[0][0]}")
    # The form of a move is learned first; which cell, and which number, takes longer than this run.
    formed = sum(written[:6] == "place " and len(written.split()) == 4 for written, _ in pairs)
    right = sum(written == played for written, played in pairs)
    print(f"of {len(pairs)} unseen moves {formed} are well formed, {right} are those that were played")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("host", nargs="?")
    parser.add_argument("port", nargs="?", type=int, default=8023)
    parser.add_argument("--updates", type=int, default=160)
    asyncio.run(main(parser.parse_args()))
