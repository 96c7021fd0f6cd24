"""What a replay buffer held at one moment.

Plans over snapshots are made in `rolling_window`.
"""

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cached_property

import numpy as np
from jaxtyping import Int32, Int64

from phalanx.streams.replay.rows import RowView
from phalanx.streams.types import StreamSample


class BufferSnapshot:
    """Samples, oldest first, that stay as they are; each is made when asked for."""

    def __init__(self, view: RowView, total_added: int, total_evicted: int) -> None:
        self.view = view
        self.total_added = total_added
        """Samples that had ever been added to the buffer."""
        self.total_evicted = total_evicted
        self.timestamp = datetime.now(UTC)

    def __len__(self) -> int:
        return len(self.view)

    def __getitem__(self, row: int) -> StreamSample:
        size = len(self.view)
        if not -size <= row < size:
            raise IndexError(f"there is no sample {row} in a snapshot of {size}")
        return self.view.sample(row % size)

    def __iter__(self) -> Iterator[StreamSample]:
        return (self.view.sample(row) for row in range(len(self.view)))

    @property
    def size(self) -> int:
        """Samples in it."""
        return len(self.view)

    @cached_property
    def samples(self) -> tuple[StreamSample, ...]:
        """All of them."""
        return tuple(self.view.samples())

    @property
    def lengths(self) -> Int32[np.ndarray, " size"]:
        """Tokens of each."""
        return self.view.columns["length"]

    @property
    def serials(self) -> Int64[np.ndarray, " size"]:
        """Which addition to the buffer each was, from 0."""
        return self.view.columns["serial"]

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """A name for each, no two alike: the sample id, or `id#serial` where that is taken already."""
        names: dict[str, None] = {}
        for sample_id, serial in zip(self.view.sample_ids(), self.serials.tolist(), strict=True):
            name = sample_id
            while name in names:
                name = f"{name}#{serial}"
            names[name] = None
        return tuple(names)

    @cached_property
    def row_of(self) -> dict[str, int]:
        """From a name in `ids` to its row."""
        return {name: row for row, name in enumerate(self.ids)}

    def get_lengths(self) -> dict[str, int]:
        """{name: length}, as plans take it."""
        return dict(zip(self.ids, self.lengths.tolist(), strict=True))

    def digest(self) -> str:
        """SHA-256 of names, tokens and masks."""
        found = hashlib.sha256("\0".join(self.ids).encode("utf-8", "surrogatepass"))
        found.update(self.view.columns["token_count"].tobytes())
        found.update(self.view.gather_tokens().astype("<u4").tobytes())
        return found.hexdigest()
