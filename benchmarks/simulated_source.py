"""A source of streaming plans with random lengths and without samples."""

import numpy as np
from jaxtyping import Int32

from phalanx.data.plans.stream_sources import StreamPart, StreamSource


class SimulatedSource(StreamSource):
    """Lengths from a log-normal distribution, in blocks with a seed each."""

    _BLOCK = 1 << 14

    def __init__(self, seed: int, mean: float = 300.0, longest: int = 2048) -> None:
        self.seed, self.mean, self.longest = seed, mean, longest
        self._blocks: dict[int, Int32[np.ndarray, " block"]] = {}

    def read(self, start: int, count: int) -> StreamPart:
        first, last = start // self._BLOCK, (start + count - 1) // self._BLOCK
        self._blocks = {number: self._block(number) for number in range(first, last + 1)}
        joined = np.concatenate(list(self._blocks.values()))
        return StreamPart(joined[start - first * self._BLOCK :][:count], None)

    def _block(self, number: int) -> Int32[np.ndarray, " block"]:
        if number in self._blocks:
            return self._blocks[number]
        rng = np.random.Generator(np.random.SFC64(np.random.SeedSequence([self.seed, number])))
        lengths = rng.lognormal(np.log(self.mean) - 0.5, 1.0, self._BLOCK)
        return np.clip(np.rint(lengths), 1, self.longest).astype(np.int32)
