"""Sources of samples for streaming plans: datasets that are repeated, and streams of any kind."""

import abc
import hashlib
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32

from phalanx.data.lengths import Lengths, as_length_table, check_lengths
from phalanx.data.plans.epoch import epoch_seed, random_order


class StreamChunk(NamedTuple):
    """Consecutive samples read from a source."""

    lengths: Int32[np.ndarray, " samples"]
    samples: Sequence[Any] | None
    """`Sample` objects, or mappings with `input_ids`. None if the source only has lengths."""


class StreamSource(abc.ABC):
    """A stream of samples with positions 0, 1, 2, ... The sample at each position is the same in every
    run."""

    fingerprint: str = ""
    """Digest of the contents and their order. Empty if it is unknown. A plan rejects a saved state if the
    fingerprint of a source has changed."""

    @abc.abstractmethod
    def read(self, start: int, count: int) -> StreamChunk:
        """Return up to `count` samples, starting at position `start`.

        Fewer are returned only at the end of the stream. After an error, `read` may be called again with the
        same or an earlier position.
        """

    def close(self) -> None:
        """Release resources, such as connections. A closed source can be read again."""
        return


class ShuffledDatasetSource(StreamSource):
    """A finite dataset that is shuffled differently in every epoch."""

    def __init__(
        self,
        lengths: Lengths,
        samples: Mapping[str, Any] | None = None,
        *,
        seed: int = 42,
        num_epochs: int | None = None,
        dataset_hash: str = "",
    ) -> None:
        """Create a source.

        Args:
            lengths: Mapping from sample ids to lengths, or a `LengthTable`.
            samples: Mapping from ids to samples, for example a `TokenDataset`. If it is None, the plan only
                has ids and lengths.
            seed: Seed for shuffling.
            num_epochs: Number of epochs. If None, the dataset is repeated forever.
            dataset_hash: String that identifies the contents of the samples. It is included in `fingerprint`.
        """
        self.table = as_length_table(lengths)
        if not len(self.table):
            raise ValueError("a source needs at least one sample")
        self._samples, self.seed, self.num_epochs = samples, seed, num_epochs
        self._orders: dict[int, Int32[np.ndarray, " rows"]] = {}
        sha = hashlib.sha256(self.table.lengths.astype("<i4").tobytes())
        sha.update(f"{seed} {num_epochs} {dataset_hash}".encode())
        self.fingerprint = sha.hexdigest()[:16]

    def read(self, start: int, count: int) -> StreamChunk:
        """Return up to `count` samples, starting at position `start`.

        For a dataset of size `n`, position `p` has the sample at index `p % n` in the shuffled order of epoch
        `p // n`. Fewer than `count` samples are returned only after the last epoch.
        """
        size = len(self.table)
        stop = start + count if self.num_epochs is None else min(start + count, self.num_epochs * size)
        parts = [np.zeros(0, np.int32)]
        for epoch in range(start // size, -(-stop // size)):
            parts.append(self._order(epoch)[max(start - epoch * size, 0) : stop - epoch * size])
        rows = np.concatenate(parts)
        samples = None
        if self._samples is not None:
            samples = [self._samples[str(self.table.ids[row])] for row in rows.tolist()]
        return StreamChunk(self.table.lengths[rows], samples)

    def _order(self, epoch: int) -> Int32[np.ndarray, " rows"]:
        if epoch not in self._orders:
            # A read rarely covers more than two epochs, unless the dataset is small.
            if len(self._orders) > 1:
                self._orders.clear()
            bits = np.random.PCG64(epoch_seed(self.seed, epoch))
            self._orders[epoch] = random_order(len(self.table), bits)
        return self._orders[epoch]


class IterableSource(StreamSource):
    """A stream of samples, defined by a function that opens the stream at a given position.

    The function can be the `skip` method of a streaming Hugging Face dataset, or for example
    `lambda start: itertools.islice(rows(), start, None)`.
    """

    def __init__(
        self,
        open_at: Callable[[int], Iterable[Any]],
        length: Callable[[Any], int] | None = None,
        *,
        fingerprint: str = "",
    ) -> None:
        """Create a source.

        Args:
            open_at: Function that takes a position and returns a new iterable over the samples from that
                position on. It is called again if the iterable raised an error and the plan is continued. A
                sample is a `Sample` or a mapping with `input_ids`.
            length: Function that returns the number of tokens in a sample. Defaults to the length of its
                `input_ids`.
            fingerprint: String that identifies the contents and their order. A state that was saved with a
                different fingerprint is rejected.
        """
        self._open_at, self._length = open_at, length or _count_tokens
        self.fingerprint = fingerprint
        # Samples that were read but not returned as part of a pool yet, and the position of the first one.
        self._ahead: list[Any] = []
        self._position = 0
        # The iterator that was opened last, and whether it must be opened again before the next sample.
        self._iterator: Iterator[Any] = iter(())
        self._is_open = False
        # The number of samples that are known to exist.
        self._num_known = 0

    def read(self, start: int, count: int) -> StreamChunk:
        """Return up to `count` samples, starting at position `start`.

        The iterable is opened again if `start` is neither among the buffered samples nor right after them, or
        if the iterable raised an error.

        Raises:
            ValueError: If the iterable was opened again and lacks samples that it had before.
        """
        if not self._is_open or not self._position <= start <= self._position + len(self._ahead):
            # One sample early, because an iterator that cannot be continued must not look like the end.
            self._open(max(start - 1, 0))
        self._num_known = max(self._num_known, start)
        num_missing = start + count - self._position - len(self._ahead)
        try:
            for sample in itertools.islice(self._iterator, max(num_missing, 0)):
                self._ahead.append(sample)
        except BaseException:
            # A generator that has raised an error is finished, so it is not used again.
            self._is_open = False
            self._num_known = max(self._num_known, self._position + len(self._ahead), 1)
            raise
        end = self._position + len(self._ahead)
        if end < min(start + count, self._num_known):
            raise self._not_repeatable(
                f"ended after {end} samples, but had at least {self._num_known} before"
            )
        self._num_known = max(self._num_known, end)
        del self._ahead[: start - self._position]
        self._position = start
        samples = self._ahead[:count]
        lengths = np.array([self._length(sample) for sample in samples], np.int64)
        return StreamChunk(check_lengths(lengths), samples)

    def _open(self, position: int) -> None:
        self.close()
        iterator = iter(self._open_at(position))
        if isinstance(iterator, Generator) and iterator is self._iterator:
            raise self._not_repeatable("was opened again, but open_at returned the same generator")
        self._iterator, self._is_open, self._position = iterator, True, position

    def _not_repeatable(self, problem: str) -> ValueError:
        self._is_open = False
        return ValueError(
            f"cannot continue a stream: it {problem}; open_at must return a new iterable that starts at the "
            f"given position, every time it is called"
        )

    def close(self) -> None:
        """Close the iterator if it is a generator, and discard buffered samples."""
        if isinstance(self._iterator, Generator):
            self._iterator.close()
        self._is_open, self._ahead = False, []


def _count_tokens(sample: Any) -> int:
    tokens: Sequence[int] = sample["input_ids"] if isinstance(sample, Mapping) else sample.input_ids
    return len(tokens)
