"""What the replay runners share: the samples that both contenders are given, the works, and their timing.

Needs NumPy and the standard library only. How a runner talks to the comparison is in `protocol.py`.
"""

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import protocol
from measuring.memory import peak_mebibytes

DRAWN = 32
BLOCK = 10_000
"""Samples that are made at a time: all of them at once would be counted in the memory of neither buffer."""


class Made(NamedTuple):
    """How a contender makes samples and asks its buffer."""

    buffer: Any
    sample: Callable[..., Any]
    source: Any
    draw_hard: Callable[[Any, int], Any]
    """Draws samples of a difficulty of 0.7 or more."""


def parse_arguments(description: str) -> argparse.Namespace:
    """How many samples of how many tokens."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--tokens", type=int, default=100, help="mean length")
    parser.add_argument("--vocabulary", type=int, default=50_000)
    return parser.parse_args()


def fields_of(samples: int, tokens: int, vocabulary: int, first: int = 0) -> Iterator[dict[str, Any]]:
    """The samples' fields as plain Python values, each sample with numbers of its own."""
    for number in range(first, first + samples):
        if number % BLOCK == 0 or number == first:
            # By block, so that every part of the samples can be made again on its own.
            rng = np.random.default_rng(number // BLOCK)
            lengths = rng.integers(tokens // 2, tokens + tokens // 2 + 1, BLOCK).tolist()
            every = rng.integers(0, vocabulary, (BLOCK, tokens + tokens // 2))
            numbers = rng.random((BLOCK, 3)).tolist()
        row = number % BLOCK
        length = lengths[row]
        difficulty, reward, priority = numbers[row]
        yield {
            "input_ids": tuple(every[row, :length].tolist()),
            "loss_mask": (0,) * (length // 2) + (1,) * (length - length // 2),
            "sample_id": f"puzzle_{number // 10}_step{number % 10}",
            "dataset_id": "puzzle_arcade",
            "episode_id": f"puzzle_{number // 10}",
            "step_index": number % 10,
            "difficulty": difficulty,
            "reward": reward,
            "success": number % 3 == 0,
            "priority": 0.1 + priority,
        }


def run(made: Made, arguments: argparse.Namespace, name: str) -> None:
    """Fill the buffer, then add to the full one, then draw; say each as one JSON line."""
    buffer, count = made.buffer, arguments.samples
    gc.collect()
    before = peak_mebibytes()
    fill = _add(made, arguments, 0, count)
    memory = peak_mebibytes() - before
    protocol.say(
        event="memory",
        contender=name,
        memory_mb=round(memory, 1),
        token_mb=round(4 * arguments.tokens * count / 2**20, 1),
        **{f"filling_{key}": value for key, value in fill.items()},
    )
    steady = _add(made, arguments, count, max(count // 10, BLOCK))
    protocol.say(event="full", contender=name, **{f"full_{key}": value for key, value in steady.items()})
    protocol.say(event="draws", contender=name, draw_seconds=_draws(lambda: buffer.sample(DRAWN)))
    protocol.say(event="hard", contender=name, hard_seconds=_draws(lambda: made.draw_hard(buffer, DRAWN)))
    begun = time.perf_counter()
    snapshot = buffer.snapshot()
    protocol.say(event="snapshot", contender=name, snapshot_seconds=time.perf_counter() - begun)
    del snapshot


def _add(made: Made, arguments: argparse.Namespace, first: int, count: int) -> dict[str, float]:
    """CPU seconds a sample for making and for adding; making the plain fields is not counted."""
    making = adding = 0.0
    for start in range(first, first + count, BLOCK):
        size = min(BLOCK, first + count - start)
        fields = list(fields_of(size, arguments.tokens, arguments.vocabulary, start))
        begun = time.process_time()
        samples = [made.sample(source=made.source, **each) for each in fields]
        made_at = time.process_time()
        for sample in samples:
            made.buffer.add(sample)
        added_at = time.process_time()
        making += made_at - begun
        adding += added_at - made_at
        del fields, samples, sample
    return {"make_seconds": making / count, "add_seconds": adding / count}


def _draws(call: Callable[[], Any]) -> list[float]:
    """Seconds of some calls: as many as take a second, five at least."""
    call()
    seconds: list[float] = []
    while len(seconds) < 5 or (sum(seconds) < 1.0 and len(seconds) < 200):
        begun = time.perf_counter()
        drawn = call()
        seconds.append(time.perf_counter() - begun)
        assert len(drawn) == DRAWN
    return seconds
