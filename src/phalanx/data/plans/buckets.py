"""Length buckets, which group samples of similar length into the same batches."""

import itertools
from functools import cached_property
from typing import TypeAlias

import numpy as np
from jaxtyping import Int16, Int32
from pydantic import Field, PositiveInt, field_validator, model_validator

from phalanx.config import Config

BucketId: TypeAlias = int
"""Index of a bucket. Bucket 0 holds the shortest samples, and the last bucket holds the longest."""

MAX_BUCKETS = 1024


class BucketSpec(Config):
    """Bucket boundaries.

    Bucket `i` holds samples of length up to `edges[i]` that do not fit in a smaller bucket. The last bucket
    holds samples of length up to `max_sample_length`.
    """

    edges: tuple[PositiveInt, ...] = Field(max_length=MAX_BUCKETS - 1)
    """Maximum length in tokens of each bucket except the last, in ascending order."""
    max_sample_length: int
    """Maximum sample length, in tokens, which is also the maximum length of the last bucket. Longer samples
    are skipped."""
    min_length: int = Field(default=1, ge=1)
    """Minimum sample length, in tokens. Shorter samples are skipped."""

    @field_validator("edges")
    @classmethod
    def _check_edges(cls, edges: tuple[int, ...]) -> tuple[int, ...]:
        if not edges:
            raise ValueError("edges must not be empty, for example edges=(128, 256, 512)")
        for low, high in itertools.pairwise(edges):
            if high <= low:
                raise ValueError(f"edges must be strictly ascending, but {high} follows {low}")
        return edges

    @model_validator(mode="after")
    def _check_range(self) -> "BucketSpec":
        if self.max_sample_length <= self.edges[-1]:
            raise ValueError(
                f"max_sample_length ({self.max_sample_length}) must be greater than the last edge "
                f"({self.edges[-1]}); increase max_sample_length or remove the edge"
            )
        if self.min_length > self.edges[0]:
            raise ValueError(
                f"min_length ({self.min_length}) must not exceed the first edge ({self.edges[0]})"
            )
        return self

    @classmethod
    def default(cls) -> "BucketSpec":
        """Return buckets with the edges 128, 256, 512 and 1024, and a last bucket up to 2048."""
        return cls(edges=(128, 256, 512, 1024), max_sample_length=2048)

    @classmethod
    def from_max_length(cls, max_length: int, num_buckets: int = 4) -> "BucketSpec":
        """Return `num_buckets` buckets of equal width up to `max_length`."""
        if num_buckets < 2:
            raise ValueError(
                f"num_buckets must be at least 2 (one edge and the last bucket), got {num_buckets}"
            )
        if max_length < num_buckets:
            raise ValueError(f"max_length must be at least num_buckets ({num_buckets}), got {max_length}")
        step = max_length // num_buckets
        return cls(edges=tuple(step * k for k in range(1, num_buckets)), max_sample_length=max_length)

    @property
    def num_buckets(self) -> int:
        """Number of buckets, including the last one, which ends at `max_sample_length`."""
        return len(self.edges) + 1

    @cached_property
    def max_lengths(self) -> tuple[int, ...]:
        """Maximum length of every bucket, including the last."""
        return (*self.edges, self.max_sample_length)

    def get_bucket(self, length: int) -> BucketId:
        """Return the bucket index for a length. Lengths above `max_sample_length` are in the last bucket."""
        if length < 1:
            raise ValueError(f"length must be a positive integer, got {length}")
        return int(np.searchsorted(self.edges, length))

    def get_bucket_ids(self, lengths: Int32[np.ndarray, " samples"]) -> Int16[np.ndarray, " samples"]:
        """Return the index of the bucket for each length."""
        return np.searchsorted(np.array(self.edges, np.int32), lengths).astype(np.int16)

    def get_bucket_max_length(self, bucket_id: BucketId) -> int:
        """Return the maximum length of a bucket."""
        return self.get_bucket_range(bucket_id)[1]

    def get_bucket_range(self, bucket_id: BucketId) -> tuple[int, int]:
        """Return the minimum and maximum length of a bucket, both inclusive."""
        if not 0 <= bucket_id < self.num_buckets:
            raise ValueError(f"bucket_id must be between 0 and {len(self.edges)}, got {bucket_id}")
        low = self.min_length if bucket_id == 0 else self.edges[bucket_id - 1] + 1
        return low, self.max_lengths[bucket_id]

    def is_overflow(self, bucket_id: BucketId) -> bool:
        """Return whether a bucket is the last one, which ends at `max_sample_length` and not at an edge."""
        self.get_bucket_range(bucket_id)
        return bucket_id == len(self.edges)

    def should_skip(self, length: int) -> bool:
        """Return whether a sample of this length is skipped because it is too short or too long."""
        return not self.min_length <= length <= self.max_sample_length
