"""Length tables, which store the ids of samples and their lengths in tokens."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, overload

import numpy as np
from jaxtyping import Int32

from phalanx.config import FrozenModel

MAX_LENGTH = 2**31 - 1


# Not Sequence[str]: a run-time type checker would look at an item, and so read the file.
class LazyIds(Sequence):
    """Sequence of sample ids that are read from their file on first use."""

    def __init__(self, count: int, read: Callable[[], list[str]]) -> None:
        self._count = count
        self._read = read
        self._ids: list[str] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self.as_list()[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self.as_list())

    def as_list(self) -> list[str]:
        """Return all ids."""
        if self._ids is None:
            self._ids = self._read()
        return self._ids


class RangeIds(Sequence[str]):
    """Sequence of the ids "0", "1", ... for samples without ids of their own. It takes no memory."""

    def __init__(self, count: int) -> None:
        self._range = range(count)

    def __len__(self) -> int:
        return len(self._range)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [str(row) for row in self._range[index]]
        return str(self._range[index])


@dataclasses.dataclass(frozen=True, eq=False)
class LengthTable:
    """Ids and lengths of samples. Plans store indices into this table and look up ids on access."""

    ids: Sequence[Any]
    """Unique ids. Only `validate` checks them, so that ids in a file need not be read before they are
    used."""
    lengths: Int32[np.ndarray, " samples"]
    """Number of tokens of each sample, at least 1."""
    _checked: bool = dataclasses.field(default=False, init=False, repr=False)

    @classmethod
    def from_mapping(cls, lengths: Mapping[Any, Any]) -> "LengthTable":
        """Create a table from a mapping of ids to lengths, in the order of the mapping."""
        ids = list(lengths)
        table = cls(ids, _as_int32(list(lengths.values()), ids))
        _check_id_types(ids)
        # The keys of a mapping are unique, which saves the most expensive check.
        return table.trust()

    @classmethod
    def from_arrays(cls, ids: Sequence[Any] | np.ndarray | None, lengths: Any) -> "LengthTable":
        """Create a table from ids and lengths. If `ids` is None, the ids are "0", "1", ..."""
        array = _as_int32(lengths, ids)
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

        The message names the first one.
        """
        if self._checked:
            return
        if self.lengths.dtype != np.int32:
            raise ValueError(f"lengths must be int32, got {self.lengths.dtype}; use LengthTable.from_arrays")
        if len(self.ids) != len(self.lengths):
            raise ValueError(f"got {len(self.ids)} ids but {len(self.lengths)} lengths")
        if len(self.lengths) and int(self.lengths.min()) < 1:
            row = int(np.argmax(self.lengths < 1))
            raise ValueError(
                f"{_where(self.ids, row)}: length must be a positive integer, got {self.lengths[row]}"
            )
        if not isinstance(self.ids, RangeIds):
            _check_id_types(self.ids)
            if len(set(self.ids)) != len(self.ids):
                _raise_for_repeat(self.ids)
        self.trust()

    def trust(self) -> "LengthTable":
        """Mark the table as validated, for data from files that were validated before. Return the table."""
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
"""Mapping from ids to lengths, or a table. The type allows any values, because they are validated with
readable error messages."""


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
    return LengthTable.from_mapping(lengths)


def _as_int32(lengths: Any, ids: Any) -> Int32[np.ndarray, " samples"]:
    if not isinstance(lengths, np.ndarray):
        lengths = list(lengths)
        # NumPy would convert True to 1 and 3.7 to 3, so types are checked first.
        if set(map(type, lengths)) - {int}:
            _raise_for_length_type(lengths, ids)
        try:
            lengths = np.array(lengths, np.int64)
        except OverflowError:
            row = next(row for row, length in enumerate(lengths) if abs(length) > MAX_LENGTH)
            raise ValueError(f"{_where(ids, row)}: length {lengths[row]} is above {MAX_LENGTH}") from None
    if lengths.ndim != 1:
        raise ValueError(f"lengths must be one-dimensional, got an array of shape {lengths.shape}")
    if lengths.dtype.kind not in "iu":
        raise ValueError(f"lengths must be integers, got an array of {lengths.dtype}")
    if len(lengths) and lengths.dtype.itemsize >= 4 and int(lengths.max()) > MAX_LENGTH:
        row = int(np.argmax(lengths > MAX_LENGTH))
        raise ValueError(f"{_where(ids, row)}: length {lengths[row]} is above {MAX_LENGTH}")
    if len(lengths) and int(lengths.min()) < 1:
        row = int(np.argmax(lengths < 1))
        raise ValueError(f"{_where(ids, row)}: length must be a positive integer, got {lengths[row]}")
    return lengths.astype(np.int32, copy=False)


def _where(ids: Any, row: int) -> str:
    named = f" ({ids[row]!r})" if ids is not None and row < len(ids) else ""
    return f"sample {row}{named}"


def _raise_for_length_type(lengths: list[Any], ids: Any) -> None:
    for row, length in enumerate(lengths):
        if isinstance(length, bool) or not isinstance(length, int | np.integer):
            raise ValueError(f"{_where(ids, row)}: length must be a positive integer, got {length!r}")


def _check_id_types(ids: Sequence[Any]) -> None:
    if not set(map(type, ids)) - {str, np.str_}:
        return
    for row, sample in enumerate(ids):
        if not isinstance(sample, str):
            raise ValueError(
                f"sample {row}: ids must be strings, got {sample!r} ({type(sample).__name__}); use str(id), "
                f"or LengthTable.from_arrays(None, lengths) for samples without ids"
            )


def _raise_for_repeat(ids: Sequence[str]) -> None:
    first: dict[str, int] = {}
    for row, sample in enumerate(ids):
        if sample in first:
            raise ValueError(f"samples {first[sample]} and {row} have the same id {sample!r}")
        first[sample] = row
