"""Sample lengths and batching settings that all libraries are measured with. Requires only NumPy."""

import math

import numpy as np

BUCKET_EDGES = (128, 256, 512, 1024)
MAX_LENGTH = 2048
TOKEN_BUDGET = 16_384
SEED = 0


def random_lengths(num_samples, distribution="lognormal"):
    """Return random sample lengths as `int32[num_samples]`.

    Args:
        num_samples: Number of samples.
        distribution: `lognormal` has a mean of about 290 tokens and is clipped to 1 to 2,048. `uniform` is
            uniform between 300 and 1,300, which is harder to pack into rows of 2,048.
    """
    rng = np.random.default_rng(SEED)
    if distribution == "uniform":
        return rng.integers(300, 1301, num_samples).astype(np.int32)
    lengths = rng.lognormal(math.log(300) - 0.5, 1.0, num_samples)
    return np.clip(np.rint(lengths), 1, MAX_LENGTH).astype(np.int32)


def random_tokens(lengths):
    """Return the tokens of samples with the given lengths in one `int32` array, and their offsets."""
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return np.arange(offsets[-1], dtype=np.int32) % np.int32(50_000), offsets


def lengths_by_id(lengths):
    """Return the lengths as a dictionary with string keys."""
    return {f"s{row}": length for row, length in enumerate(lengths.tolist())}
