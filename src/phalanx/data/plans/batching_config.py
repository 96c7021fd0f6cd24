"""Settings that determine batches: mode, padding policy, token budget, buckets and seed."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Any

from pydantic import Field, field_validator, model_validator

from phalanx.config import Config
from phalanx.data.plans.buckets import BucketSpec


class BatchingMode(StrEnum):
    """Method for forming batches."""

    PREDICTABLE = "predictable"
    """Form batches from samples in the same bucket. There are only a few batch shapes, known in advance."""
    THROUGHPUT = "throughput"
    """Form batches from pools of samples sorted by length, which minimizes padding."""


class PadPolicy(StrEnum):
    """Length to which the rows of a batch are padded."""

    PAD_TO_BUCKET = "pad_to_bucket"
    """Pad to the maximum length of the batch's bucket."""
    PAD_TO_MAX_IN_BATCH = "pad_to_max_in_batch"
    """Pad to the length of the longest sample in the batch."""

    @classmethod
    def _missing_(cls, value: object) -> "PadPolicy | None":
        # The name in chuk-lazarus.
        return cls.PAD_TO_MAX_IN_BATCH if value == "pad_to_max" else None


class BatchingConfig(Config):
    """Settings that, together with the sample lengths and the epoch number, determine the batches.

    No batch has more than `token_budget` tokens, including padding. If the maximum length of a bucket is
    above the budget, the samples in the bucket are padded only to the budget. Samples that do not fit in a
    batch are listed in `BatchPlan.skipped`.
    """

    mode: BatchingMode = BatchingMode.THROUGHPUT
    """Form batches from samples in the same bucket (`predictable`), or from pools of samples sorted by length
    (`throughput`)."""
    pad_policy: PadPolicy = PadPolicy.PAD_TO_MAX_IN_BATCH
    """Pad rows to the maximum length of the batch's bucket (`pad_to_bucket`), or to the length of the longest
    sample in the batch (`pad_to_max_in_batch`)."""
    token_budget: int = Field(default=4096, ge=1, lt=2**31)
    """Maximum number of tokens in a batch, including padding."""
    bucket_edges: tuple[int, ...] = (128, 256, 512, 1024)
    """Maximum length of each bucket except the last, in tokens."""
    max_sample_length: int = 2048
    """Maximum sample length, in tokens, which is also the maximum length of the last bucket. Longer samples
    are left out and listed in `BatchPlan.skipped`."""
    min_length: int = Field(default=1, ge=1)
    """Minimum sample length, in tokens. Shorter samples are left out and listed in `BatchPlan.skipped`."""
    seed: int = Field(default=42, ge=0, lt=2**64)
    """Seed for all shuffling. Each epoch derives its own seed from it."""
    drop_last: bool = False
    """Drop batches that have fewer rows than the token budget allows, because too few samples are left."""
    interleave_buckets: bool = True
    """Arrange batches of all buckets in random order. Otherwise the buckets come one after another, starting
    with the shortest samples."""
    bucket_padded_lengths: tuple[int, ...] | None = None
    """Length to which rows of each bucket are padded, for example the bucket's maximum length rounded up to a
    multiple of 64. Must be at least the maximum length, which is the default. A mapping from bucket indices
    to padded lengths is also accepted. Buckets that are not in the mapping keep the default."""
    pool_batches: int = Field(default=128, ge=1)
    """Size of a pool of samples that are sorted or packed together, as a number of batches. Pools are used in
    throughput mode and for packing. A pool has at most half of all samples, unless the dataset is very small.
    A larger value reduces padding, and a smaller value makes batches more random."""

    @field_validator("bucket_padded_lengths", mode="before")
    @classmethod
    def _complete_max_lengths(cls, value: Any, info: Any) -> Any:
        # `info` is Pydantic's ValidationInfo, a protocol that cannot be checked at run time.
        if not isinstance(value, Mapping):
            return value
        lengths = [*info.data.get("bucket_edges", ()), info.data.get("max_sample_length", 0)]
        for bucket, length in value.items():
            if not isinstance(bucket, int) or not 0 <= bucket < len(lengths):
                raise ValueError(f"there is no bucket {bucket!r}; buckets are 0 to {len(lengths) - 1}")
            lengths[bucket] = length
        return tuple(lengths)

    @model_validator(mode="after")
    def _check_consistency(self) -> "BatchingConfig":
        spec, budget = self.bucket_spec, self.token_budget
        if self.min_length > budget:
            raise ValueError(f"min_length ({self.min_length}) must not exceed token_budget ({budget})")
        lengths = self.bucket_padded_lengths
        if lengths is None:
            return self
        if len(lengths) != spec.num_buckets:
            raise ValueError(
                f"bucket_padded_lengths must have a value for each of {spec.num_buckets} buckets, got "
                f"{len(lengths)}"
            )
        for bucket, (length, max_length) in enumerate(zip(lengths, spec.max_lengths, strict=True)):
            if length < max_length:
                raise ValueError(
                    f"bucket_padded_lengths[{bucket}] must be at least {max_length}, the maximum length of "
                    f"the bucket, got {length}; to pad less, decrease the edge"
                )
            if length > max(budget, max_length):
                raise ValueError(f"bucket_padded_lengths[{bucket}] ({length}) exceeds token_budget {budget}")
        return self

    @classmethod
    def throughput(
        cls,
        token_budget: int = 4096,
        bucket_edges: Sequence[int] = (128, 256, 512, 1024),
        max_sample_length: int = 2048,
        seed: int = 42,
        **settings: Any,
    ) -> "BatchingConfig":
        """Return settings for batches that are formed from pools of samples sorted by length.

        The samples of a batch have similar lengths, and each batch is padded to its longest sample, so there
        is little padding. Other fields of the config can be set with `settings`.
        """
        return cls(
            token_budget=token_budget,
            bucket_edges=tuple(bucket_edges),
            max_sample_length=max_sample_length,
            seed=seed,
            **settings,
        )

    @classmethod
    def predictable(cls, *args: Any, **settings: Any) -> "BatchingConfig":
        """Return settings for batches that are formed from samples in the same bucket.

        Each batch is padded to the maximum length of its bucket, so there are only a few batch shapes, which
        are the same in every run. The arguments are those of `throughput`.
        """
        defaults = {"mode": BatchingMode.PREDICTABLE, "pad_policy": PadPolicy.PAD_TO_BUCKET}
        return cls.throughput(*args, **(defaults | settings))

    @property
    def is_predictable(self) -> bool:
        """True if `mode` is `predictable`, which means that batches are formed from samples in the same
        bucket."""
        return self.mode is BatchingMode.PREDICTABLE

    @cached_property
    def bucket_spec(self) -> BucketSpec:
        """Bucket boundaries that these settings define."""
        return BucketSpec(
            edges=self.bucket_edges, max_sample_length=self.max_sample_length, min_length=self.min_length
        )

    @cached_property
    def bucket_widths(self) -> tuple[int, ...]:
        """Padded length of each bucket, limited to the token budget.

        This is `bucket_padded_lengths` if it is set, and the maximum length of the bucket otherwise.
        """
        widths = self.bucket_padded_lengths or self.bucket_spec.max_lengths
        return tuple(min(width, self.token_budget) for width in widths)

    def digest(self) -> str:
        """Return the SHA-256 of the settings that determine the batches of a plan without packing.

        `pool_batches` is included only in throughput mode, because it has no effect in predictable mode. Do
        not use the digest for plans with packing, in which `pool_batches` has an effect in both modes.
        """
        fields = self.model_dump(mode="json")
        # The original names of the fields, so that the digests of earlier versions remain valid.
        fields["overflow_max"] = fields.pop("max_sample_length")
        del fields["bucket_padded_lengths"]
        fields["bucket_max_lengths"] = self.bucket_widths
        if self.is_predictable:
            del fields["pool_batches"]
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
