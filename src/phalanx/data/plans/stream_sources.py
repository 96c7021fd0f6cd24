"""What a live plan reads: streams whose samples have a place, so that reading can go on anywhere.

How streams are mixed is in `mixture`, how samples share packs in `plan`.
"""

import abc
import collections
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64

from phalanx.data.lengths import Lengths, as_length_table
from phalanx.data.packing import check_lengths
from phalanx.data.plans.epoch import epoch_seed, random_order


class StreamSource(abc.ABC):
    """A stream of samples at places 0, 1, 2, ...; the same place has the same sample in every run."""

    @abc.abstractmethod
    def lengths(self, start: int, count: int) -> Int32[np.ndarray, " samples"]:
        """The lengths of the samples from `start` on: `count` of them, or fewer where the stream ends."""

    def samples(self, places: Int64[np.ndarray, " samples"]) -> list[Any]:
        """The samples at these places, which were asked for by their lengths before."""
        raise TypeError(f"{type(self).__name__} knows lengths only; plan with it, and read samples elsewhere")

    def forget(self, place: int) -> None:
        """Samples before this place will not be asked for again; who holds some may let them go."""
        return


class DatasetSource(StreamSource):
    """A finite set, epoch after epoch in an order of its own, or `epochs` times.

    Place p is sample p % n of epoch p // n; `rows(places)` says which rows these are.
    """

    def __init__(
        self,
        lengths: Lengths,
        samples: Mapping[str, Any] | None = None,
        *,
        seed: int = 42,
        epochs: int | None = None,
    ) -> None:
        self.table = as_length_table(lengths)
        if not len(self.table):
            raise ValueError("a source needs samples")
        self._samples, self.seed, self.epochs = samples, seed, epochs
        self._orders: dict[int, Int32[np.ndarray, " rows"]] = {}

    def rows(self, places: Int64[np.ndarray, " samples"]) -> Int32[np.ndarray, " samples"]:
        """The rows of the table at these places."""
        size = len(self.table)
        rows = np.empty(len(places), np.int32)
        epochs = places // size
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            rows[here] = self._order(epoch)[places[here] - epoch * size]
        return rows

    def _order(self, epoch: int) -> Int32[np.ndarray, " rows"]:
        if epoch not in self._orders:
            # A window rarely touches more than two epochs; small sets in large windows touch many.
            if len(self._orders) > 1:
                self._orders.clear()
            bits = np.random.PCG64(epoch_seed(self.seed, epoch))
            self._orders[epoch] = random_order(len(self.table), bits)
        return self._orders[epoch]

    def lengths(self, start: int, count: int) -> Int32[np.ndarray, " samples"]:
        """In the epochs' orders."""
        if self.epochs is not None:
            count = max(0, min(count, self.epochs * len(self.table) - start))
        return self.table.lengths[self.rows(np.arange(start, start + count))]

    def samples(self, places: Int64[np.ndarray, " samples"]) -> list[Any]:
        """By their ids, from the mapping that was given."""
        if self._samples is None:
            return super().samples(places)
        return [self._samples[str(self.table.ids[row])] for row in self.rows(places).tolist()]


class IterableSource(StreamSource):
    """Whatever can be read from a place on: `open_at(start)` gives an iterable of samples from there.

    `dataset.skip` of a streaming Hugging Face dataset, or `lambda start: islice(rows(), start, None)`.
    Samples have `input_ids`, or `length` says how long they are. Those of two pools at most are held.
    """

    def __init__(
        self, open_at: Callable[[int], Iterable[Any]], length: Callable[[Any], int] | None = None
    ) -> None:
        self._open_at, self._length = open_at, length or _token_count
        self._first = 0
        self._held: collections.deque[Any] = collections.deque()
        self._reading: Iterator[Any] | None = None

    def lengths(self, start: int, count: int) -> Int32[np.ndarray, " samples"]:
        """Read as far as needed."""
        if self._reading is None or not self._first <= start <= self._first + len(self._held):
            self._reading, self._first = iter(self._open_at(start)), start
            self._held.clear()
        missing = start + count - self._first - len(self._held)
        self._held.extend(itertools.islice(self._reading, max(missing, 0)))
        wanted = range(start - self._first, min(start - self._first + count, len(self._held)))
        found = [self._length(self._held[place]) for place in wanted]
        return check_lengths(np.array(found, np.int64))

    def samples(self, places: Int64[np.ndarray, " samples"]) -> list[Any]:
        """From those that are held."""
        return [self._held[place - self._first] for place in places.tolist()]

    def forget(self, place: int) -> None:
        """Let go of what comes before."""
        while self._held and self._first < place:
            self._held.popleft()
            self._first += 1


class SimulatedSource(StreamSource):
    """Lengths without samples, drawn from a log-normal distribution, for measuring plans."""

    _BLOCK = 1 << 14

    def __init__(self, seed: int, mean: float = 300.0, longest: int = 2048) -> None:
        self.seed, self.mean, self.longest = seed, mean, longest
        self._blocks: dict[int, Int32[np.ndarray, " block"]] = {}

    def lengths(self, start: int, count: int) -> Int32[np.ndarray, " samples"]:
        """Block after block, each from a counter of its own."""
        first, last = start // self._BLOCK, (start + count - 1) // self._BLOCK
        self._blocks = {number: self._block(number) for number in range(first, last + 1)}
        joined = np.concatenate(list(self._blocks.values()))
        return joined[start - first * self._BLOCK :][:count]

    def _block(self, number: int) -> Int32[np.ndarray, " block"]:
        if number in self._blocks:
            return self._blocks[number]
        bits = np.random.Generator(np.random.SFC64(np.random.SeedSequence([self.seed, number])))
        drawn = bits.lognormal(np.log(self.mean) - 0.5, 1.0, self._BLOCK)
        return np.clip(np.rint(drawn), 1, self.longest).astype(np.int32)


def _token_count(sample: Any) -> int:
    tokens: Sequence[int] = sample["input_ids"] if isinstance(sample, Mapping) else sample.input_ids
    return len(tokens)
