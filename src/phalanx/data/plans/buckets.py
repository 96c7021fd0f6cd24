"""Buckets: ranges of length whose samples are batched together, and their tallies.

How a bucket's samples become batches is in `ordering`; which edges suit a dataset, in `analysis.efficiency`.
"""

import itertools
from functools import cached_property
from typing import TypeAlias

import numpy as np
from jaxtyping import Int16, Int32
from pydantic import BaseModel, Field, field_validator, model_validator

from phalanx.config import FrozenModel

BucketId: TypeAlias = int
"""0 for the shortest samples; the last is the overflow bucket."""

MAX_BUCKETS = 1024


class BucketSpec(FrozenModel):
    """Bucket boundaries: bucket i holds lengths up to `edges[i]`, the last one up to `overflow_max`."""

    edges: tuple[int, ...]
    """Longest length of each bucket but the last, ascending."""
    overflow_max: int
    """Longest length of the last bucket; longer samples are skipped and reported."""
    min_length: int = Field(default=1, ge=1)
    """Shorter samples are skipped and reported."""

    @field_validator("edges")
    @classmethod
    def _edges_ascend(cls, edges: tuple[int, ...]) -> tuple[int, ...]:
        if not edges:
            raise ValueError("give at least one edge, for example edges=(128, 256, 512)")
        if len(edges) >= MAX_BUCKETS:
            raise ValueError(f"at most {MAX_BUCKETS - 1} edges, got {len(edges)}")
        if edges[0] < 1:
            raise ValueError(f"edges must be positive, got {edges[0]}")
        for low, high in itertools.pairwise(edges):
            if high <= low:
                raise ValueError(f"edges must ascend strictly, but {high} follows {low}")
        return edges

    @model_validator(mode="after")
    def _overflow_above_the_last_edge(self) -> "BucketSpec":
        if self.overflow_max <= self.edges[-1]:
            raise ValueError(
                f"overflow_max ({self.overflow_max}) must be above the last edge ({self.edges[-1]}); "
                f"raise overflow_max or drop the edge"
            )
        if self.min_length > self.edges[0]:
            raise ValueError(f"min_length ({self.min_length}) is above the first edge ({self.edges[0]})")
        return self

    @classmethod
    def default(cls) -> "BucketSpec":
        """Edges 128, 256, 512, 1024 and overflow to 2048."""
        return cls(edges=(128, 256, 512, 1024), overflow_max=2048)

    @classmethod
    def from_max_length(cls, max_length: int, num_buckets: int = 4) -> "BucketSpec":
        """Exactly `num_buckets` equally wide buckets up to `max_length`; see also `suggest_bucket_edges`."""
        if num_buckets < 2:
            raise ValueError(f"at least 2 buckets (one edge and the overflow), got {num_buckets}")
        if max_length < num_buckets:
            raise ValueError(f"{num_buckets} buckets need a max_length of at least that, got {max_length}")
        step = max_length // num_buckets
        return cls(edges=tuple(step * k for k in range(1, num_buckets)), overflow_max=max_length)

    @property
    def num_buckets(self) -> int:
        """The overflow bucket counts."""
        return len(self.edges) + 1

    @property
    def overflow_bucket_id(self) -> BucketId:
        """The last bucket's id."""
        return len(self.edges)

    @cached_property
    def upper_lengths(self) -> tuple[int, ...]:
        """The longest length of every bucket."""
        return (*self.edges, self.overflow_max)

    def get_bucket(self, length: int) -> BucketId:
        """The bucket of a length; beyond `overflow_max` still the last one (`should_skip` tells)."""
        if length < 1:
            raise ValueError(f"length must be a positive integer, got {length}")
        return int(np.searchsorted(self.edges, length))

    def get_bucket_id(self, length: int) -> BucketId:
        """`get_bucket` by its older name."""
        return self.get_bucket(length)

    def get_bucket_ids(self, lengths: Int32[np.ndarray, " samples"]) -> Int16[np.ndarray, " samples"]:
        """`get_bucket` of many lengths."""
        return np.searchsorted(np.array(self.edges, np.int32), lengths).astype(np.int16)

    def get_bucket_max_length(self, bucket_id: BucketId) -> int:
        """The longest length of a bucket, to which its samples are padded."""
        return self.get_bucket_range(bucket_id)[1]

    def get_bucket_range(self, bucket_id: BucketId) -> tuple[int, int]:
        """(shortest, longest) length of a bucket, both inside it."""
        if not 0 <= bucket_id < self.num_buckets:
            raise ValueError(f"there is no bucket {bucket_id}; buckets are 0 to {self.overflow_bucket_id}")
        low = self.min_length if bucket_id == 0 else self.edges[bucket_id - 1] + 1
        return low, self.upper_lengths[bucket_id]

    def is_overflow(self, bucket_id: BucketId) -> bool:
        """Whether this is the last bucket."""
        self.get_bucket_range(bucket_id)
        return bucket_id == self.overflow_bucket_id

    def should_skip(self, length: int) -> bool:
        """Whether no bucket takes a sample of this length."""
        return not self.min_length <= length <= self.overflow_max


class BucketStats(BaseModel, extra="forbid", use_attribute_docstrings=True):
    """What went into one bucket, and how much of its padded size was real."""

    bucket_id: BucketId
    """Which bucket."""
    bucket_max_length: int
    """What its samples are padded to unless said otherwise."""
    sample_count: int = 0
    """Samples seen."""
    total_tokens: int = 0
    """Real tokens."""
    padded_tokens: int = 0
    """Real tokens and padding."""

    def add_sample(self, length: int, padded_length: int | None = None) -> None:
        """Count one sample, padded to the bucket's longest length or to `padded_length`."""
        padded = self.bucket_max_length if padded_length is None else padded_length
        if not 1 <= length <= padded:
            raise ValueError(
                f"bucket {self.bucket_id}: length {length} does not fit a padded length {padded}"
            )
        self.sample_count += 1
        self.total_tokens += length
        self.padded_tokens += padded

    @property
    def padding_tokens(self) -> int:
        """Padding alone."""
        return self.padded_tokens - self.total_tokens

    @property
    def padding_ratio(self) -> float:
        """Padding over padded size; 0 for an empty bucket."""
        return self.padding_tokens / self.padded_tokens if self.padded_tokens else 0.0

    @property
    def efficiency(self) -> float:
        """Real over padded size; 1 for an empty bucket, which wastes nothing."""
        return 1.0 - self.padding_ratio

    @property
    def avg_length(self) -> float:
        """Mean length; 0 for an empty bucket."""
        return self.total_tokens / self.sample_count if self.sample_count else 0.0
