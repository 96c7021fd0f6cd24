"""Buckets, and their mutable statistics."""

from pydantic import BaseModel

from phalanx.data.plans.buckets import BucketId, BucketSpec as _BucketSpec


class BucketSpec(_BucketSpec):
    """`phalanx.data.BucketSpec` with another name of `get_bucket`."""

    def get_bucket_id(self, length: int) -> BucketId:
        """Return the bucket of a length."""
        return self.get_bucket(length)


class BucketStats(BaseModel, extra="forbid", use_attribute_docstrings=True):
    """Counts of the samples in one bucket."""

    bucket_id: BucketId
    bucket_max_length: int
    """Length to which samples are padded by default."""
    sample_count: int = 0
    total_tokens: int = 0
    """Tokens without padding."""
    padded_tokens: int = 0
    """Tokens including padding."""

    def add_sample(self, length: int, padded_length: int | None = None) -> None:
        """Count one sample, padded to the bucket's maximum length or to `padded_length`."""
        padded = self.bucket_max_length if padded_length is None else padded_length
        if not 1 <= length <= padded:
            raise ValueError(f"bucket {self.bucket_id}: length must be between 1 and {padded}, got {length}")
        self.sample_count += 1
        self.total_tokens += length
        self.padded_tokens += padded

    @property
    def padding_tokens(self) -> int:
        """Number of padding tokens."""
        return self.padded_tokens - self.total_tokens

    @property
    def padding_ratio(self) -> float:
        """Fraction of the tokens that are padding; 0 for an empty bucket."""
        return self.padding_tokens / self.padded_tokens if self.padded_tokens else 0.0

    @property
    def efficiency(self) -> float:
        """Fraction of the tokens that are not padding; 1 for an empty bucket."""
        return 1.0 - self.padding_ratio

    @property
    def avg_length(self) -> float:
        """Mean length; 0 for an empty bucket."""
        return self.total_tokens / self.sample_count if self.sample_count else 0.0


__all__ = ["BucketId", "BucketSpec", "BucketStats"]
