"""How samples are packed: the modes, what happens to overlong samples, and the settings as one config.

The packing itself is in `layout` (bins from lengths) and `packed_batch` (tokens).
"""

import enum

from pydantic import Field, model_validator

from phalanx.config import FrozenModel


class PackingMode(enum.StrEnum):
    """How samples choose their bins. Between equally good bins the one that was opened first is taken."""

    FIRST_FIT = "first_fit"
    """In the order given, each into the first bin with room."""
    BEST_FIT = "best_fit"
    """In the order given, each into the fullest bin with room."""
    GREEDY = "greedy"
    """In the order given, each into the current bin; a sample that does not fit starts the next bin."""
    BEST_FIT_DECREASING = "best_fit_decreasing"
    """The longest first, each into the fullest bin with room. The one to use."""
    HYBRID = "hybrid"
    """Bins filled to the brim by subset sums over the lengths; never more bins than best-fit decreasing."""


class OverlongPolicy(enum.StrEnum):
    """What happens to a sample that is longer than a pack."""

    ERROR = "error"
    """Nothing is packed, and the error names the sample."""
    SKIP = "skip"
    """The sample is left out and reported."""
    TRUNCATE = "truncate"
    """Its first `max_length` tokens are packed."""
    SPLIT = "split"
    """It is cut into pieces of `max_length`, each a segment of its own."""


class PackingConfig(FrozenModel):
    """The settings of packing."""

    mode: PackingMode = PackingMode.BEST_FIT_DECREASING
    """How samples choose their bins."""
    max_length: int = Field(default=2048, ge=1)
    """Tokens in a pack, separators included."""
    pad_to_max: bool = True
    """Pad every pack to `max_length`; otherwise each is as long as what it holds."""
    add_separator: bool = False
    """Put `separator_token_id` between two segments; it belongs to the segment that it ends."""
    separator_token_id: int | None = None
    """The token that separates segments."""
    separator_loss: bool = True
    """Whether a separator counts in the loss where the token before it does, so that a model learns to end.
    (The last segment of a pack has none: `load_tokenizer(..., add_eos=True)` ends every sample.)"""
    overlong: OverlongPolicy = OverlongPolicy.ERROR
    """What happens to a sample that is longer than `max_length`."""

    @classmethod
    def default(cls, max_length: int = 2048) -> "PackingConfig":
        """Packs of this length, everything else as it is."""
        return cls(max_length=max_length)

    @model_validator(mode="after")
    def _separator_is_known(self) -> "PackingConfig":
        if self.add_separator and self.separator_token_id is None:
            raise ValueError(
                "add_separator needs a separator_token_id: say which token to put between segments"
            )
        return self

    @property
    def separator(self) -> int | None:
        """The token to put between segments; None for none."""
        return self.separator_token_id if self.add_separator else None
