"""Samples for replay buffers, as keyword arguments that all libraries accept. Requires only NumPy."""

import numpy as np

MEAN_LENGTH = 100


def sample_fields(first, count, mean_length=MEAN_LENGTH, vocab_size=50_000):
    """Yield the fields of samples as Python values. They depend only on the index of the sample.

    Args:
        first: Index of the first sample.
        count: Number of samples.
        mean_length: Mean number of tokens. Lengths are uniform between half and 1.5 times the mean.
        vocab_size: Number of distinct tokens.
    """
    for number in range(first, first + count):
        rng = np.random.default_rng(number)
        length = int(rng.integers(mean_length // 2, mean_length * 3 // 2 + 1))
        difficulty, reward, priority = rng.random(3).tolist()
        yield {
            "input_ids": tuple(rng.integers(0, vocab_size, length).tolist()),
            "loss_mask": (0,) * (length // 2) + (1,) * (length - length // 2),
            "sample_id": f"puzzle_{number // 10}_step{number % 10}",
            "dataset_id": "puzzles",
            "episode_id": f"puzzle_{number // 10}",
            "step_index": number % 10,
            "difficulty": difficulty,
            "reward": reward,
            "success": number % 3 == 0,
            "priority": 0.1 + priority,
        }


def make_samples(make, count):
    """Create samples with `make(**fields)`."""
    return [make(**fields) for fields in sample_fields(0, count)]
