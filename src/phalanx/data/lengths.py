"""Length tables, which store the ids of samples and their lengths in tokens."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Int32

from phalanx.config import FrozenModel

MAX_LENGTH = 2**31 - 1


# Not Sequence[str]: a run-time type checker would look at an item, and so read the file.
class LazyFileIds(Sequence):
    """Sequence of sample ids that are read from their file on first use."""

    def __init__(self, count: int, read: Callable[[], list[str]]) -> None:
        self._count, self._read = count, read

    @cached_property
    def _ids(self) -> list[str]:
        return self._read()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self._ids[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)


class RangeIds(Sequence[str]):
    """Sequence of the ids "0", "1", ... for samples without ids. The strings are created on access."""

    def __init__(self, count: int) -> None:
        self._range = range(count)

    def __len__(self) -> int:
        return len(self._range)

    def __getitem__(self, index: Any) -> Any:
        rows = self._range[index]
        return str(rows) if isinstance(rows, int) else [str(row) for row in rows]


@dataclasses.dataclass(frozen=True, eq=False)
class LengthTable:
    """Ids and lengths of samples. Plans store indices into this table and look up ids on access."""

    ids: Sequence[Any]
    """Unique ids. The constructor does not check them, so that ids in a file need not be read before they are
    used. Call `validate` to check them."""
    lengths: Int32[np.ndarray, " samples"]
    """Number of tokens in each sample, at least 1."""
    _checked: bool = dataclasses.field(default=False, init=False, repr=False)

    @classmethod
    def from_arrays(cls, ids: Sequence[Any] | np.ndarray | None, lengths: Any) -> "LengthTable":
        """Create a table from ids and lengths. If `ids` is None, the ids are "0", "1", ..."""
        array = check_lengths(lengths, ids)
        names: Sequence[Any] = RangeIds(len(array))
        if ids is not None:
            names = ids.tolist() if isinstance(ids, np.ndarray) else ids
        table = cls(names, array)
        table.validate()
        return table

    def __len__(self) -> int:
        return len(self.lengths)

    def as_dict(self) -> dict[str, int]:
        """Return a mapping from ids to lengths."""
        return dict(zip(self.ids, self.lengths.tolist(), strict=True))

    def validate(self) -> None:
        """Raise `ValueError` if a length or an id is invalid, or if an id is repeated.

        The message names the first invalid sample.
        """
        if self._checked:
            return
        if self.lengths.dtype != np.int32:
            raise ValueError(f"lengths must be int32, got {self.lengths.dtype}; use LengthTable.from_arrays")
        if len(self.ids) != len(self.lengths):
            raise ValueError(f"got {len(self.ids)} ids but {len(self.lengths)} lengths")
        check_lengths(self.lengths, self.ids)
        if not isinstance(self.ids, RangeIds):
            _check_id_types(self.ids)
            check_unique(self.ids)
        self.trust()

    def trust(self) -> "LengthTable":
        """Mark the table as validated and return it.

        Use this for data that was validated before it was saved.
        """
        object.__setattr__(self, "_checked", True)
        return self


class SkippedSample(FrozenModel):
    """A sample that is not in any batch."""

    sample_id: str
    length: int
    """Length in tokens."""
    reason: str
    """Reason why the sample is not in any batch."""


Lengths: TypeAlias = Mapping[Any, Any] | LengthTable
"""Mapping from ids to lengths, or a table. The type accepts any keys and values, because `as_length_table`
validates them with readable error messages."""


def as_length_table(lengths: Lengths) -> LengthTable:
    """Convert lengths to a table, and validate it."""
    if isinstance(lengths, LengthTable):
        lengths.validate()
        return lengths
    if not isinstance(lengths, Mapping):
        raise TypeError(
            f"lengths must be {{id: length}} or a LengthTable, got {type(lengths).__name__}; use "
            f"LengthTable.from_arrays(ids, lengths), with ids=None for samples without ids"
        )
    ids = list(lengths)
    table = LengthTable(ids, check_lengths(list(lengths.values()), ids))
    _check_id_types(ids)
    # The keys of a mapping are unique, which saves the most expensive check.
    return table.trust()


def check_lengths(lengths: Any, ids: Any = None) -> Int32[np.ndarray, " samples"]:
    """Convert lengths to an int32 array.

    Args:
        lengths: Array or iterable of integers.
        ids: Sample ids for error messages. If None, messages refer to samples by index only.

    Raises:
        ValueError: If a length is not a positive integer of at most 31 bits.
    """
    if not isinstance(lengths, np.ndarray):
        values = list(lengths)
        # NumPy would convert True to 1 and 3.7 to 3, so types are checked first.
        if set(map(type, values)) - {int}:
            for row, value in enumerate(values):
                if isinstance(value, bool) or not isinstance(value, int | np.integer):
                    raise _length_error(value, row, ids)
        try:
            lengths = np.array(values, np.int64)
        except OverflowError:
            row = next(row for row, value in enumerate(values) if abs(value) > MAX_LENGTH)
            raise _length_error(values[row], row, ids) from None
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu":
        raise ValueError(
            f"lengths must be a one-dimensional array of integers, got {lengths.dtype} of shape "
            f"{lengths.shape}"
        )
    if len(lengths) and not 1 <= lengths.min() <= lengths.max() <= MAX_LENGTH:
        row = int(np.argmax((lengths < 1) | (lengths > MAX_LENGTH)))
        raise _length_error(lengths[row], row, ids)
    return np.ascontiguousarray(lengths, np.int32)


def _length_error(length: Any, row: int, ids: Any) -> ValueError:
    name = f"sample {row} ({ids[row]!r})" if ids is not None and row < len(ids) else f"sample {row}"
    if isinstance(length, int | np.integer) and length > MAX_LENGTH:
        return ValueError(f"{name}: length {length} is above {MAX_LENGTH}")
    shown = length if isinstance(length, np.generic) else repr(length)
    return ValueError(f"{name}: length must be a positive integer, got {shown}")


def _check_id_types(ids: Sequence[Any]) -> None:
    if not set(map(type, ids)) - {str, np.str_}:
        return
    for row, sample in enumerate(ids):
        if not isinstance(sample, str):
            raise ValueError(
                f"sample {row}: ids must be strings, got {sample!r} ({type(sample).__name__}); use str(id), "
                f"or LengthTable.from_arrays(None, lengths) for samples without ids"
            )


def check_unique(ids: Sequence[str]) -> None:
    """Raise `ValueError` if an id is repeated."""
    if len(set(ids)) == len(ids):
        return
    first: dict[str, int] = {}
    for row, sample in enumerate(ids):
        if first.setdefault(sample, row) != row:
            raise ValueError(f"samples {first[sample]} and {row} have the same id {sample!r}")
