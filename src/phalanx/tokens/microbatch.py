"""One batch of a plan, as it is handed to whoever collates it.

The arrays that it is read from live in `arrays`; collated tokens, in `batch_files`.
"""

from pydantic import BaseModel, ConfigDict, Field

from phalanx.tokens.buckets import BucketId


class MicrobatchSpec(BaseModel):
    """Which samples, how they are packed, and how long the rows are."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    samples: tuple[str, ...]
    """Ids, in the order of the rows; empty only in a shard that was padded with empty batches."""
    packs: tuple[tuple[str, ...], ...] | None = None
    """With packing: the ids of each row, which together are `samples`. None: one sample a row."""
    bucket_id: BucketId
    """The bucket of its longest row."""
    max_len: int = Field(ge=1)
    """How long each row is once padded."""
    index: int = Field(ge=0)
    """Its place in the epoch of the plan that it came from."""
    lengths: tuple[int, ...] = ()
    """Length of each sample as batched."""

    @property
    def batch_size(self) -> int:
        """Rows of the padded batch: packs, or samples."""
        return len(self.samples) if self.packs is None else len(self.packs)

    @property
    def token_count(self) -> int:
        """Real tokens."""
        return sum(self.lengths)

    @property
    def padded_token_count(self) -> int:
        """Real tokens and padding."""
        return self.batch_size * self.max_len
