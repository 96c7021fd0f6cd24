"""The length table: sample ids beside an int32 array of their lengths, checked once.

Files of lengths are in `cache`; which samples share a batch is decided in `phalanx.data.plans`.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, overload

import numpy as np
from jaxtyping import Int8, Int32

from phalanx.config import FrozenModel

MAX_LENGTH = 2**31 - 1


# Not Sequence[str]: whoever checks annotations at run time would look at an item, and so read the file.
class LazyIds(Sequence):
    """Sample ids that are taken from their file when the first of them is asked for."""

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
        """All of them."""
        if self._ids is None:
            self._ids = self._read()
        return self._ids


class RangeIds(Sequence[str]):
    """The ids "0", "1", ... of samples that are known by their row alone; takes no memory."""

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
    """Ids and lengths of samples, in row order; a plan speaks of rows and turns them into ids when asked."""

    ids: Sequence[Any]
    """A string for each row, no two alike; `validate` looks at them, so that ids on disk can wait."""
    lengths: Int32[np.ndarray, " samples"]
    """Tokens in each sample, at least 1."""
    _checked: bool = dataclasses.field(default=False, init=False, repr=False)

    @classmethod
    def from_mapping(cls, lengths: Mapping[Any, Any]) -> "LengthTable":
        """A table in the mapping's own order."""
        ids = list(lengths)
        table = cls(ids, _as_int32(list(lengths.values()), ids))
        _check_id_types(ids)
        # The keys of a mapping are never twice the same, which saves the dearest check.
        return table.trust()

    @classmethod
    def from_arrays(cls, ids: Sequence[Any] | np.ndarray | None, lengths: Any) -> "LengthTable":
        """A checked table from ids (None: the row numbers) and any sequence of integers."""
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
        """{id: length}, in row order."""
        return dict(zip(self.ids, self.lengths.tolist(), strict=True))

    def validate(self) -> None:
        """Raise `ValueError` naming the first row with a bad length, a bad id or a repeated id."""
        if self._checked:
            return
        if self.lengths.dtype != np.int32:
            raise ValueError(f"lengths must be int32, got {self.lengths.dtype}; use LengthTable.from_arrays")
        if len(self.ids) != len(self.lengths):
            raise ValueError(f"{len(self.ids)} ids for {len(self.lengths)} lengths; each sample needs both")
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
        """The table itself, not to be checked again: for tables read from files that were checked before."""
        object.__setattr__(self, "_checked", True)
        return self


class SkippedSample(FrozenModel):
    """A sample that is in no batch, with the reason."""

    sample_id: str
    """Which sample."""
    length: int
    """Its length in tokens."""
    reason: str
    """Why it is in no batch."""


Lengths: TypeAlias = Mapping[Any, Any] | LengthTable
"""What every public function takes: {id: length}, or a table. Ids are strings and lengths positive integers,
which is checked on the values, with the row in the message, and so not claimed by the type."""


def as_length_table(lengths: Lengths) -> LengthTable:
    """The table itself, checked, or one made from a mapping."""
    if isinstance(lengths, LengthTable):
        lengths.validate()
        return lengths
    if not isinstance(lengths, Mapping):
        raise TypeError(
            f"lengths must be {{id: length}} or a LengthTable, got {type(lengths).__name__}; use "
            f"LengthTable.from_arrays(ids, lengths), with None for the ids of samples known by their row"
        )
    return LengthTable.from_mapping(lengths)


def as_loss_mask(mask: Any, where: str) -> Int8[np.ndarray, " tokens"]:
    """One 0 or 1 for each token, as an array; `where` begins the error if there is anything else."""
    values = np.asarray(mask)
    if values.ndim != 1 or values.dtype.kind not in "biuf":
        raise ValueError(
            f"{where}: loss_mask must be one row of 0 and 1, got {values.dtype} of {values.shape}"
        )
    wrong = (values != 0) & (values != 1)
    if values.dtype != bool and wrong.any():
        place = int(np.argmax(wrong))
        raise ValueError(
            f"{where}: entry {place} of loss_mask must be 0 or 1, got {values[place]}; if these are "
            f"Hugging Face's labels, in which -100 stands for no loss, use labels != -100"
        )
    return np.ascontiguousarray(values, np.int8)


def _as_int32(lengths: Any, ids: Any) -> Int32[np.ndarray, " samples"]:
    """The lengths as int32, once each is known to be a whole number that fits."""
    if not isinstance(lengths, np.ndarray):
        lengths = list(lengths)
        # bool is an int to NumPy and 3.7 becomes 3, so the types are asked before the array is made.
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
                f"or LengthTable.from_arrays(None, lengths) for samples known by their row"
            )


def _raise_for_repeat(ids: Sequence[str]) -> None:
    first: dict[str, int] = {}
    for row, sample in enumerate(ids):
        if sample in first:
            raise ValueError(f"samples {first[sample]} and {row} have the same id {sample!r}")
        first[sample] = row
