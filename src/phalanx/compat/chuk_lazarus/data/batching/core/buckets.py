"""Buckets, and bucket metrics that are updated one sample at a time."""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, Field, model_validator

from phalanx.compat.renamed import alias
from phalanx.data.metrics import BucketMetrics
from phalanx.data.plans.buckets import BucketId, BucketSpec as _BucketSpec


class OverflowMax(BaseModel):
    """Mixin for configs that accept `overflow_max` as another name for `max_sample_length`."""

    overflow_max: ClassVar = alias("max_sample_length")

    @model_validator(mode="before")
    @classmethod
    def _reject_old_names(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and "overflow_max" in values:
            values = {**values, "max_sample_length": values["overflow_max"]}
            del values["overflow_max"]
        return values


class BucketSpec(OverflowMax, _BucketSpec):
    """`phalanx.data.BucketSpec` with chuk-lazarus's `overflow_max` and `get_bucket_id`."""

    def get_bucket_id(self, length: int) -> BucketId:
        """Return the index of the bucket for a sample length."""
        return self.get_bucket(length)


class BucketStats(BucketMetrics, frozen=False, populate_by_name=True):
    """Metrics of the samples in one bucket, updated by `add_sample`."""

    max_length: int = Field(alias="bucket_max_length")
    """Maximum sample length of the bucket, in tokens. Samples are padded to this length by default."""
    num_batches: int = 0
    num_samples: int = 0
    total_tokens: int = 0
    padded_tokens: int = 0

    bucket_max_length: ClassVar = alias("max_length")
    sample_count: ClassVar = alias("num_samples")
    padding_ratio: ClassVar = alias("padding_waste")

    @property
    def padding_tokens(self) -> int:
        """Number of padding tokens."""
        return self.padded_tokens - self.total_tokens

    @property
    def avg_length(self) -> float:
        """Mean length of the samples in tokens. 0 if there are none."""
        return self.total_tokens / max(self.num_samples, 1)

    def add_sample(self, length: int, padded_length: int | None = None) -> None:
        """Count one sample. `padded_length` defaults to the maximum length of the bucket."""
        padded = self.max_length if padded_length is None else padded_length
        if not 1 <= length <= padded:
            raise ValueError(f"bucket {self.bucket_id}: length must be between 1 and {padded}, got {length}")
        self.num_samples += 1
        self.total_tokens += length
        self.padded_tokens += padded


__all__ = ["BucketId", "BucketSpec", "BucketStats"]
