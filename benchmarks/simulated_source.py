"""A source of streaming plans that provides random lengths but no samples."""

import numpy as np
from jaxtyping import Int32

from phalanx.data.plans.stream_sources import StreamChunk, StreamSource


class SimulatedSource(StreamSource):
    """Unbounded source with log-normal lengths, which are generated in blocks with a seed for each block.

    Args:
        seed: Seed of the source.
        mean: Approximate mean length.
        longest: Maximum length.
    """

    _BLOCK = 1 << 14

    def __init__(self, seed: int, mean: float = 300.0, longest: int = 2048) -> None:
        self.seed, self.mean, self.longest = seed, mean, longest
        self._blocks: dict[int, Int32[np.ndarray, " block"]] = {}

    def read(self, start: int, count: int) -> StreamChunk:
        first, last = start // self._BLOCK, (start + count - 1) // self._BLOCK
        self._blocks = {number: self._block(number) for number in range(first, last + 1)}
        joined = np.concatenate(list(self._blocks.values()))
        return StreamChunk(joined[start - first * self._BLOCK :][:count], None)

    def _block(self, number: int) -> Int32[np.ndarray, " block"]:
        if number in self._blocks:
            return self._blocks[number]
        rng = np.random.Generator(np.random.SFC64(np.random.SeedSequence([self.seed, number])))
        lengths = rng.lognormal(np.log(self.mean) - 0.5, 1.0, self._BLOCK)
        return np.clip(np.rint(lengths), 1, self.longest).astype(np.int32)
