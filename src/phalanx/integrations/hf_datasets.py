"""Conversion of Hugging Face datasets to the samples of a plan, and of a plan to a Hugging Face dataset."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Int64

from phalanx.data.collation import SampleLike, collate
from phalanx.data.lengths import LengthTable, RangeIds
from phalanx.data.plans.batch_plan import BatchPlan, BatchSpec
from phalanx.data.tokenizers import Tokenizer
from phalanx.extras import require_extra
from phalanx.ragged import counts_to_offsets

with require_extra(__name__, "data", "datasets", "pyarrow"):
    import datasets
    import pyarrow as pa
    import pyarrow.compute as pc

TextTokenizer: TypeAlias = Tokenizer | Callable[..., Mapping[str, Any]]
"""A Phalanx tokenizer or a `transformers` tokenizer."""

_ROWS_AT_ONCE = 10_000
_COLUMNS = ("input_ids", "labels", "position_ids", "segment_ids")


class HFDatasetSamples(Mapping):
    """Mapping from ids to the samples of a `datasets.Dataset`. Each sample is read when it is accessed."""

    def __init__(
        self,
        dataset: "datasets.Dataset",
        column: str = "input_ids",
        *,
        tokenizer: TextTokenizer | None = None,
        loss_column: str | None = None,
    ) -> None:
        """Create a mapping from the row indices of a dataset, as strings, to its samples.

        Args:
            dataset: Hugging Face dataset.
            column: Name of the column with token ids, or with texts if a tokenizer is given.
            tokenizer: Tokenizer for texts. None if the column has token ids.
            loss_column: Name of the column with loss masks. By default, every token contributes to the loss.
        """
        if not isinstance(dataset, datasets.Dataset):
            hint = "; choose a split" if isinstance(dataset, Mapping) else ""
            raise TypeError(f"expected a datasets.Dataset, got {type(dataset).__name__}{hint}")
        if tokenizer is None:
            _require_column(dataset, column, _is_tokens, "lists of integers; for texts give a tokenizer")
        else:
            _require_column(dataset, column, _is_text, "texts; for token ids leave out the tokenizer")
        if loss_column is not None:
            _require_column(dataset, loss_column, _is_tokens, "lists of 0 and 1")
        self.dataset, self.column, self.tokenizer = dataset, column, tokenizer
        self.loss_column, self._ids = loss_column, RangeIds(len(dataset))
        kept = [column] if loss_column is None else [column, loss_column]
        self._arrow = dataset.select_columns(kept).with_format("arrow")

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __contains__(self, sample_id: object) -> bool:
        return isinstance(sample_id, str) and self._row(sample_id) is not None

    def __getitem__(self, sample_id: str) -> dict[str, Any]:
        if sample_id not in self:
            raise KeyError(sample_id)
        return self.take([sample_id])[sample_id]

    def take(self, sample_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Read several samples at once. Ids that do not exist are omitted."""
        rows = {name: row for name in sample_ids if (row := self._row(name)) is not None}
        if not rows:
            return {}
        table = self._arrow[list(rows.values())]
        if self.tokenizer is None:
            columns = {"input_ids": _lists(table, self.column)}
        else:
            columns = {"input_ids": _encode(self.tokenizer, table.column(self.column).to_pylist())}
        if self.loss_column is not None:
            columns["loss_mask"] = _lists(table, self.loss_column)
        samples = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
        return dict(zip(rows, samples, strict=True))

    def lengths(self) -> LengthTable:
        """Return the length of each sample.

        If the column contains token ids, this is fast, because only Arrow's offsets are read.
        """
        parts = [np.zeros(0, np.int64)]
        for table in self._arrow.iter(_ROWS_AT_ONCE):
            column = table.column(self.column)
            if column.null_count:
                row = sum(map(len, parts)) + column.is_null().to_pylist().index(True)
                raise ValueError(f"row {row} has no value in column {self.column!r}; remove it")
            if self.tokenizer is None:
                parts.append(pc.list_value_length(column).to_numpy().astype(np.int64))
            else:
                parts.append(_count(self.tokenizer, column.to_pylist()))
        return LengthTable.from_arrays(None, np.concatenate(parts))

    def _row(self, sample_id: str) -> int | None:
        number = int(sample_id) if sample_id.isascii() and sample_id.isdecimal() else -1
        return number if 0 <= number < len(self._ids) and str(number) == sample_id else None


def to_dataset(plan: BatchPlan, samples: Mapping[str, SampleLike], *, epoch: int = 0) -> "datasets.Dataset":
    """Return the rows of all batches in an epoch as an in-memory dataset.

    The columns are `input_ids`, `labels`, `position_ids` and `segment_ids`, without padding, and those of the
    samples. To form batches, use a `PackedRowPaddingCollator`, for example as the data collator of the
    Hugging Face `Trainer`.

    Args:
        plan: Batch plan.
        samples: Mapping from ids to samples.
        epoch: Epoch to convert, counted from 0.
    """
    plan.check_samples(samples)
    empty = pa.schema([(name, pa.list_(pa.int64())) for name in _COLUMNS]).empty_table()
    tables = [empty, *(_create_table(spec, samples) for spec in plan.iter_epoch(epoch))]
    # A column may have integers in one batch and floats in another.
    return datasets.Dataset(pa.concat_tables(tables, promote_options="permissive"))


def to_iterable_dataset(
    plan: BatchPlan, samples: Mapping[str, SampleLike], *, epoch: int = 0
) -> "datasets.IterableDataset":
    """Return the rows of all batches in an epoch as an iterable dataset.

    The arguments and columns are those of `to_dataset`. If a data loader has several workers, the batches are
    divided among them.
    """
    plan.check_samples(samples)
    batches = list(range(len(plan.get_epoch(epoch))))
    return datasets.IterableDataset.from_generator(
        _iter_rows, gen_kwargs={"plan": plan, "samples": samples, "epoch": epoch, "batches": batches}
    )


def _iter_rows(
    plan: BatchPlan, samples: Mapping[str, SampleLike], epoch: int, batches: list[int]
) -> Iterator[dict[str, list[int]]]:
    for index in batches:
        yield from _create_table(plan.get_epoch(epoch)[index], samples).to_pylist()


def _create_table(spec: BatchSpec, samples: Mapping[str, SampleLike]) -> pa.Table:
    """Create a table with one list of tokens for each row of a batch, without padding."""
    batch = collate(spec, samples)
    tokens = (batch.input_ids, batch.labels(), batch.position_ids, batch.segment_ids)
    arrays = {name: array.astype(np.int64) for name, array in zip(_COLUMNS, tokens, strict=True)}
    is_token = batch.segment_ids > 0
    offsets = pa.array(counts_to_offsets(is_token.sum(axis=1)).astype(np.int32))
    lists = {}
    for name, array in {**arrays, **batch.columns}.items():
        values = pa.array(array[is_token].reshape(-1))
        for size in reversed(array.shape[2:]):
            values = pa.FixedSizeListArray.from_arrays(values, size)
        lists[name] = pa.ListArray.from_arrays(offsets, values)
    return pa.table(lists)


def _encode(tokenizer: TextTokenizer, texts: list[str]) -> list[list[int]]:
    if isinstance(tokenizer, Tokenizer):
        return tokenizer.encode_batch(texts)
    return tokenizer(texts)["input_ids"]


def _count(tokenizer: TextTokenizer, texts: list[str]) -> Int64[np.ndarray, " texts"]:
    if isinstance(tokenizer, Tokenizer):
        return np.array(tokenizer.count_batch(texts), np.int64)
    return np.array([len(ids) for ids in _encode(tokenizer, texts)], np.int64)


def _lists(table: pa.Table, column: str) -> list[Any]:
    """Return the lists in a column as NumPy arrays."""
    lists = table.column(column).combine_chunks()
    values = lists.flatten()
    if lists.null_count or values.null_count:
        raise ValueError(f"column {column!r} has missing values")
    return np.split(values.to_numpy(), np.cumsum(pc.list_value_length(lists).to_numpy())[:-1])


def _require_column(
    dataset: "datasets.Dataset", column: str, accepts: Callable[[pa.DataType], bool], expected: str
) -> None:
    if column not in dataset.column_names:
        columns = ", ".join(dataset.column_names) or "none"
        raise ValueError(f"the dataset has no column {column!r}; it has {columns}")
    kind = dataset.data.schema.field(column).type
    if not accepts(kind):
        raise ValueError(f"column {column!r} has {kind}, but must have {expected}")


def _is_tokens(kind: pa.DataType) -> bool:
    types = pa.types
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return is_list and types.is_integer(kind.value_type)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
