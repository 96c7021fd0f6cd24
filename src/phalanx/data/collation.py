"""Samples as the arrays of one batch: padded rows, or packs with their segments and positions.

Which samples share a batch is decided in a plan; batches as files are in `files`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Int, Int8, Int32
from pydantic import Field

from phalanx.config import FrozenModel
from phalanx.data.lengths import as_loss_mask
from phalanx.data.packed_batch import pack_tokens
from phalanx.data.packing import PackLayout
from phalanx.data.packing_config import OverlongPolicy, PackingConfig
from phalanx.data.plans.arrays import MicrobatchSpec


@runtime_checkable
class TokensAndMask(Protocol):
    """A sample with fields, as `TokenizedSample` and `phalanx.data.StreamSample` are."""

    @property
    def input_ids(self) -> Any:
        """Token ids."""

    @property
    def loss_mask(self) -> Any:
        """1 where a token counts in the loss."""


Sample: TypeAlias = Mapping[str, Any] | TokensAndMask
"""What a sample may be given as: with fields, or a mapping with `input_ids` and perhaps `loss_mask`."""

_TOKEN_ARRAYS = ("input_ids", "loss_mask", "segment_ids", "position_ids")


CollateFunction: TypeAlias = Callable[[list[dict[str, np.ndarray]], int, int], dict[str, np.ndarray]]
"""(samples, max_len, pad_id) -> arrays by name, each with one row for each sample."""


class CollatedBatch(FrozenModel, arbitrary_types_allowed=True):
    """One batch, ready for a model; its arrays can also be had by name, as `batch["input_ids"]`."""

    input_ids: Int[np.ndarray, "rows width"]
    """Tokens, padded at the end of each row."""
    loss_mask: Int[np.ndarray, "rows width"]
    """1 where a token counts in the loss."""
    segment_ids: Int[np.ndarray, "rows width"] | None = None
    """With packing: 1, 2, ... for the samples of a row, 0 for padding."""
    position_ids: Int[np.ndarray, "rows width"] | None = None
    """With packing: counted from 0 in each segment."""
    extras: dict[str, np.ndarray] = Field(default_factory=dict)
    """Whatever else a collate function of one's own returned."""
    sample_ids: tuple[str, ...]
    """The samples, row after row."""
    sample_rows: tuple[int, ...]
    """The row in which each sample stands."""
    lengths: tuple[int, ...]
    """Tokens of each sample."""
    bucket_id: int
    """The bucket of the longest row."""
    max_len: int
    """How wide rows are."""
    index: int
    """Its place in the epoch."""

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that a model is fed, by name."""
        named = {name: getattr(self, name) for name in _TOKEN_ARRAYS}
        return {name: array for name, array in named.items() if array is not None} | self.extras

    def to_dict(self) -> dict[str, Any]:
        """Everything by name, for `np.savez`."""
        rest = ("sample_ids", "sample_rows", "lengths", "bucket_id", "max_len", "index")
        return self.arrays() | {name: np.array(getattr(self, name)) for name in rest}

    @classmethod
    def from_npz(cls, data: Mapping[str, Any]) -> "CollatedBatch":
        """What `to_dict` gave, read from a file again; without rows and lengths, each row is one sample."""
        found = {name: data[name] for name in data}
        ids = tuple(map(str, found.pop("sample_ids")))
        numbers = {name: int(found.pop(name)) for name in ("bucket_id", "max_len", "index")}
        rows = found.pop("sample_rows", np.arange(len(ids)))
        lengths = found.pop("lengths", np.full(len(ids), numbers["max_len"]))
        named = {name: np.asarray(found.pop(name)) for name in _TOKEN_ARRAYS if name in found}
        return cls(
            **named,
            **numbers,
            sample_ids=ids,
            sample_rows=tuple(np.asarray(rows).tolist()),
            lengths=tuple(np.asarray(lengths).tolist()),
            extras=found,
        )

    def __getitem__(self, name: str) -> np.ndarray:
        found = self.arrays()
        if name not in found:
            raise KeyError(f"batch {self.index} has no array {name!r}; it has {', '.join(found)}")
        return found[name]

    def __contains__(self, name: object) -> bool:
        return name in self.arrays()

    def keys(self) -> list[str]:
        """The names of the arrays; with it `dict(batch)` and `model(**batch)` work."""
        return list(self.arrays())

    @property
    def spec(self) -> MicrobatchSpec:
        """The plan's description of this batch."""
        packs: tuple[tuple[str, ...], ...] | None = None
        if self.segment_ids is not None:
            rows: list[list[str]] = [[] for _ in range(len(self.input_ids))]
            for sample_id, row in zip(self.sample_ids, self.sample_rows, strict=True):
                rows[row].append(sample_id)
            packs = tuple(map(tuple, rows))
        return MicrobatchSpec(
            samples=self.sample_ids,
            packs=packs,
            bucket_id=self.bucket_id,
            max_len=self.max_len,
            index=self.index,
            lengths=self.lengths,
        )


def pad_sequences(
    sequences: Sequence[Sequence[int] | Int[np.ndarray, " _"]],
    pad_value: int,
    max_length: int | None = None,
    dtype: Any = np.int32,
) -> Int[np.ndarray, "rows width"]:
    """Rows of one width, filled up with `pad_value`; one that is longer than `max_length` is an error.

    >>> pad_sequences([[1, 2], [3]], 0).tolist()
    [[1, 2], [3, 0]]
    """
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    longest = int(lengths.max(initial=0))
    width = longest if max_length is None else max_length
    if longest > width:
        row = int(np.argmax(lengths))
        raise ValueError(
            f"sequence {row} has {longest} tokens, more than max_length {width}; nothing is cut off"
        )
    padded = np.full((len(sequences), width), pad_value, dtype)
    if longest:
        padded[np.arange(width) < lengths[:, None]] = np.concatenate(
            [np.asarray(s, dtype) for s in sequences]
        )
    return padded


def default_collate(
    samples: Sequence[Mapping[str, Any]], max_len: int, pad_id: int = 0
) -> dict[str, np.ndarray]:
    """`input_ids` padded with `pad_id`, and `loss_mask` padded with 0; without one every token counts."""
    masks = [
        as_loss_mask(sample["loss_mask"], f"row {row}")
        if sample.get("loss_mask") is not None
        else np.ones(len(sample["input_ids"]), np.int8)
        for row, sample in enumerate(samples)
    ]
    return {
        "input_ids": pad_sequences([sample["input_ids"] for sample in samples], pad_id, max_len),
        "loss_mask": pad_sequences(masks, 0, max_len, np.int8),
    }


def collate_microbatch(
    spec: MicrobatchSpec,
    samples: Mapping[str, Sample],
    *,
    collate_fn: CollateFunction = default_collate,
    pad_id: int = 0,
    packing: PackingConfig | None = None,
) -> CollatedBatch:
    """The arrays of one batch of a plan; a sample that is missing or not as long as planned is an error."""
    cut = packing.max_length if packing and packing.overlong is OverlongPolicy.TRUNCATE else None
    planned: Sequence[int | None] = spec.lengths or [None] * len(spec.samples)
    tokens = [
        _tokens(sample_id, samples, length, cut)
        for sample_id, length in zip(spec.samples, planned, strict=True)
    ]
    if spec.packs is None:
        arrays = dict(collate_fn(tokens, spec.max_len, pad_id))
        _check_rows(arrays, len(tokens), spec.index)
        rows = tuple(range(len(tokens)))
    else:
        assert packing is not None, "a plan with packs has a packing config"
        arrays = _packed_arrays(spec, tokens, packing, pad_id)
        rows = tuple(row for row, pack in enumerate(spec.packs) for _ in pack)
    named = {name: arrays.pop(name) for name in _TOKEN_ARRAYS if name in arrays}
    return CollatedBatch(
        **named,
        extras=arrays,
        sample_ids=spec.samples,
        sample_rows=rows,
        lengths=tuple(len(sample["input_ids"]) for sample in tokens),
        bucket_id=spec.bucket_id,
        max_len=spec.max_len,
        index=spec.index,
    )


def _tokens(
    sample_id: str, samples: Mapping[str, Sample], planned: int | None, cut: int | None
) -> dict[str, np.ndarray]:
    if sample_id not in samples:
        raise ValueError(f"the plan holds sample {sample_id!r}, but the dataset does not")
    sample = samples[sample_id]
    ids: Sequence[int]
    mask: Sequence[int] | None
    if not isinstance(sample, Mapping):
        ids, mask = sample.input_ids, sample.loss_mask
    else:
        if "input_ids" not in sample:
            raise ValueError(f"sample {sample_id!r} has no input_ids; it has {', '.join(sample)}")
        ids, mask = sample["input_ids"], sample.get("loss_mask")
    if mask is not None and len(mask) != len(ids):
        raise ValueError(f"sample {sample_id!r}: {len(ids)} input_ids but {len(mask)} entries of loss_mask")
    if planned is None:
        planned = len(ids)
    elif len(ids) != planned and not (len(ids) > planned == cut):
        raise ValueError(
            f"sample {sample_id!r} has {len(ids)} tokens, but {planned} were planned: the dataset or the "
            f"tokenizer has changed; build the length cache and the plan again"
        )
    array: Int32[np.ndarray, " tokens"] = np.asarray(ids, np.int32)[:planned]
    loss: Int8[np.ndarray, " tokens"] = (
        np.ones(planned, np.int8) if mask is None else as_loss_mask(mask, f"sample {sample_id!r}")[:planned]
    )
    return {"input_ids": array, "loss_mask": loss}


def _packed_arrays(
    spec: MicrobatchSpec, tokens: list[dict[str, np.ndarray]], packing: PackingConfig, pad_id: int
) -> dict[str, np.ndarray]:
    assert spec.packs is not None
    lengths = np.array([len(sample["input_ids"]) for sample in tokens], np.int32)
    layout = PackLayout(
        config=packing,
        samples=np.arange(len(tokens), dtype=np.int32),
        starts=np.zeros(len(tokens), np.int32),
        lengths=lengths,
        offsets=np.cumsum([0, *map(len, spec.packs)], dtype=np.int64),
        skipped=np.zeros(0, np.int32),
    )
    empty = [np.zeros(0, np.int32)]
    batch = pack_tokens(
        np.concatenate([sample["input_ids"] for sample in tokens] or empty),
        np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
        packing,
        loss_mask=np.concatenate([sample["loss_mask"] for sample in tokens] or empty),
        pad_token_id=pad_id,
        layout=layout,
    )
    width = batch.input_ids.shape[1]
    if width > spec.max_len:
        raise ValueError(f"batch {spec.index}: a pack is {width} long, but {spec.max_len} was planned")
    padding = ((0, 0), (0, spec.max_len - width))
    return {
        name: np.pad(getattr(batch, name), padding, constant_values=pad_id if name == "input_ids" else 0)
        for name in _TOKEN_ARRAYS
    }


def _check_rows(arrays: Mapping[str, np.ndarray], rows: int, index: int) -> None:
    for name in ("input_ids", "loss_mask"):
        if name not in arrays:
            raise ValueError(f"batch {index}: collate_fn returned no {name}, but {', '.join(arrays)}")
    for name, array in arrays.items():
        if len(array) != rows:
            raise ValueError(
                f"batch {index}: collate_fn returned {len(array)} rows of {name} for {rows} samples"
            )
