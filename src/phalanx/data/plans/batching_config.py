"""How batches are formed: the mode, the padding, the budget, the seed.

How a config is carried out is in `ordering`; packing has a `PackingConfig` of its own.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Any

from pydantic import Field, field_validator, model_validator

from phalanx.config import FrozenModel
from phalanx.data.plans.buckets import BucketId, BucketSpec


class BatchingMode(StrEnum):
    """What a batch is cut from."""

    PREDICTABLE = "predictable"
    """A bucket: few shapes, known beforehand."""
    THROUGHPUT = "throughput"
    """A sorted pool: hardly any padding."""


class PadPolicy(StrEnum):
    """How long the rows of a batch are."""

    PAD_TO_BUCKET = "pad_to_bucket"
    """As long as its bucket allows."""
    PAD_TO_MAX_IN_BATCH = "pad_to_max_in_batch"
    """As long as its longest sample."""

    @classmethod
    def _missing_(cls, value: object) -> "PadPolicy | None":
        # What chuk-lazarus calls it.
        return cls.PAD_TO_MAX_IN_BATCH if value == "pad_to_max" else None


class BatchingConfig(FrozenModel):
    """Everything that decides the batches, beside the lengths themselves and the epoch.

    No batch exceeds the budget in padded tokens. Where a bucket's edge lies above the budget, its samples are
    padded to the budget instead; a sample that is itself longer than the budget is skipped and reported.
    """

    mode: BatchingMode = BatchingMode.THROUGHPUT
    """Cut batches from buckets (predictable) or from sorted pools (throughput)."""
    pad_policy: PadPolicy = PadPolicy.PAD_TO_MAX_IN_BATCH
    """Pad to the bucket's length or to the longest sample in the batch."""
    token_budget: int = Field(default=4096, ge=1, lt=2**31)
    """Most tokens in a batch, padding included."""
    bucket_edges: tuple[int, ...] = (128, 256, 512, 1024)
    """Longest length of each bucket but the last."""
    overflow_max: int = 2048
    """Longest length of the last bucket; longer samples are skipped and reported."""
    min_length: int = Field(default=1, ge=1)
    """Shorter samples are skipped and reported."""
    seed: int = Field(default=42, ge=0, lt=2**64)
    """Decides every order, together with the epoch."""
    drop_last: bool = False
    """Drop the batches that could have taken more samples, had there been any."""
    interleave_buckets: bool = True
    """Feed batches of all buckets in random order; otherwise bucket after bucket, shortest first."""
    bucket_max_lengths: tuple[int, ...] | None = None
    """Padded length of each bucket, where it shall be above the edge (for example multiples of 64). Also
    {bucket: length} for some of the buckets."""
    pool_batches: int = Field(default=128, ge=1)
    """Throughput and packing: batches' worth of samples that are sorted or packed together, at most half of
    all samples. More: less padding. Fewer: batch mates are chosen more freely."""

    @field_validator("bucket_max_lengths", mode="before")
    @classmethod
    def _lengths_of_all_buckets(cls, value: Any, info: Any) -> Any:
        # `info` is Pydantic's ValidationInfo, a protocol that cannot be checked when the tests run.
        if not isinstance(value, Mapping):
            return value
        uppers = [*info.data.get("bucket_edges", ()), info.data.get("overflow_max", 0)]
        for bucket, length in value.items():
            if not isinstance(bucket, int) or not 0 <= bucket < len(uppers):
                raise ValueError(f"there is no bucket {bucket!r}; buckets are 0 to {len(uppers) - 1}")
            uppers[bucket] = length
        return tuple(uppers)

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> "BatchingConfig":
        spec = BucketSpec(edges=self.bucket_edges, overflow_max=self.overflow_max, min_length=self.min_length)
        if self.min_length > self.token_budget:
            raise ValueError(f"min_length ({self.min_length}) is above token_budget ({self.token_budget})")
        if self.bucket_max_lengths is not None:
            _check_max_lengths(self.bucket_max_lengths, spec, self.token_budget)
        return self

    @classmethod
    def predictable(
        cls,
        token_budget: int = 4096,
        bucket_edges: Sequence[int] = (128, 256, 512, 1024),
        overflow_max: int = 2048,
        seed: int = 42,
        **others: Any,
    ) -> "BatchingConfig":
        """Batches from buckets, padded to the bucket: the same few shapes in every run."""
        chosen = {"mode": BatchingMode.PREDICTABLE, "pad_policy": PadPolicy.PAD_TO_BUCKET, **others}
        return cls._of(token_budget, bucket_edges, overflow_max, seed, chosen)

    @classmethod
    def throughput(
        cls,
        token_budget: int = 4096,
        bucket_edges: Sequence[int] = (128, 256, 512, 1024),
        overflow_max: int = 2048,
        seed: int = 42,
        **others: Any,
    ) -> "BatchingConfig":
        """Batches from sorted pools, padded to their longest sample: as few tokens as can be."""
        chosen = {"mode": BatchingMode.THROUGHPUT, "pad_policy": PadPolicy.PAD_TO_MAX_IN_BATCH, **others}
        return cls._of(token_budget, bucket_edges, overflow_max, seed, chosen)

    @classmethod
    def _of(
        cls, budget: int, edges: Sequence[int], overflow_max: int, seed: int, others: dict[str, Any]
    ) -> "BatchingConfig":
        return cls(
            token_budget=budget, bucket_edges=tuple(edges), overflow_max=overflow_max, seed=seed, **others
        )

    @property
    def is_predictable(self) -> bool:
        """Whether batches are cut from buckets."""
        return self.mode is BatchingMode.PREDICTABLE

    @cached_property
    def bucket_spec(self) -> BucketSpec:
        """The buckets as a spec."""
        return BucketSpec(edges=self.bucket_edges, overflow_max=self.overflow_max, min_length=self.min_length)

    @cached_property
    def bucket_widths(self) -> tuple[int, ...]:
        """What each bucket's samples are padded to: `bucket_max_lengths` or the edge, at most the budget."""
        widths = self.bucket_max_lengths or self.bucket_spec.upper_lengths
        return tuple(min(width, self.token_budget) for width in widths)

    @property
    def longest(self) -> int:
        """The longest sample that is kept."""
        return min(self.overflow_max, self.token_budget)

    def get_pad_length(self, bucket_id: BucketId, max_in_batch: int | None = None) -> int:
        """How long the rows of a batch from this bucket are, given its longest sample."""
        low, _ = self.bucket_spec.get_bucket_range(bucket_id)
        width = self.bucket_widths[bucket_id]
        if self.pad_policy is PadPolicy.PAD_TO_BUCKET:
            return width
        if max_in_batch is None:
            raise ValueError("padding to the longest sample needs max_in_batch")
        if not low <= max_in_batch <= width:
            raise ValueError(f"a sample of {max_in_batch} is not in bucket {bucket_id} ({low} to {width})")
        return max_in_batch

    def digest(self) -> str:
        """SHA-256 of every setting that changes the batches.

        `pool_batches` counts in throughput mode only; `seed` always.
        """
        fields = self.model_dump(mode="json")
        fields["bucket_max_lengths"] = self.bucket_widths
        if self.is_predictable:
            del fields["pool_batches"]
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _check_max_lengths(lengths: tuple[int, ...], spec: BucketSpec, budget: int) -> None:
    if len(lengths) != spec.num_buckets:
        raise ValueError(f"bucket_max_lengths must name all {spec.num_buckets} buckets, got {len(lengths)}")
    for bucket, (length, upper) in enumerate(zip(lengths, spec.upper_lengths, strict=True)):
        if length < upper:
            raise ValueError(
                f"bucket_max_lengths: bucket {bucket} holds samples of up to {upper}, so it cannot be padded "
                f"to {length}; lower its edge instead"
            )
        if length > max(budget, upper):
            raise ValueError(
                f"bucket_max_lengths: bucket {bucket} padded to {length} would exceed token_budget {budget}"
            )
