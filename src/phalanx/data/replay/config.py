"""A replay buffer's settings, and what may be asked of the samples that it hands out.

How they are carried out is in `buffer`.
"""

import dataclasses
from enum import StrEnum
from typing import Any

import numpy as np
from jaxtyping import Bool
from pydantic import BaseModel, ConfigDict, Field, model_validator

from phalanx.data.moved import refuse_moved
from phalanx.data.samples import SampleSource, source_code


class EvictionPolicy(StrEnum):
    """Which sample has to go when a full buffer is given a new one."""

    FIFO = "fifo"
    """The oldest."""
    PRIORITY = "priority"
    """The one of the lowest priority; of several, the oldest."""
    RANDOM = "random"
    """Any."""


class ReplayBufferConfig(BaseModel):
    """How much a buffer holds, what it gives up, and how it draws."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_size: int = Field(default=100_000, ge=1, lt=2**31)
    """Samples that it holds at most."""
    eviction_policy: EvictionPolicy = EvictionPolicy.FIFO
    """Which sample has to go when it is full."""
    priority_alpha: float = Field(default=0.6, ge=0.0, le=1.0)
    """Samples are drawn in proportion to their priority to this power; 0 draws all alike."""
    priority_beta: float = Field(default=0.4, ge=0.0, le=1.0)
    """How far importance weights make up for drawing some more often; 1 does so in full."""
    seed: int = Field(default=42, ge=0, lt=2**64)
    """Decides every draw and every random eviction."""
    min_samples_before_sampling: int = Field(default=1, ge=1)
    """Nothing is handed out while there are fewer."""
    track_difficulty: bool = True
    """Keep the mean and the distribution of difficulty."""
    track_success: bool = True
    """Keep the success rate."""

    @model_validator(mode="before")
    @classmethod
    def _names_ours(cls, given: Any) -> Any:
        return refuse_moved(
            cls, given, {"default_priority": "a StreamSample has its own priority, 1 if not told"}
        )


@dataclasses.dataclass(frozen=True)
class SampleFilter:
    """Which samples may be drawn; a sample whose value is not known fits no bound on it."""

    min_difficulty: float | None = None
    max_difficulty: float | None = None
    success: bool | None = None
    source: SampleSource | None = None
    max_length: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether every sample fits."""
        return self == SampleFilter()

    def fits(self, columns: dict[str, np.ndarray], slots: np.ndarray | slice) -> Bool[np.ndarray, " count"]:
        """Which of the samples in these slots fit."""
        fit = np.ones(len(columns["length"][slots]), bool)
        # A difficulty that is not known is NaN, and NaN lies on neither side of a bound.
        if self.min_difficulty is not None:
            fit &= columns["difficulty"][slots] >= self.min_difficulty
        if self.max_difficulty is not None:
            fit &= columns["difficulty"][slots] <= self.max_difficulty
        if self.success is not None:
            fit &= columns["success"][slots] == int(self.success)
        if self.source is not None:
            fit &= columns["source"][slots] == source_code(self.source)
        if self.max_length is not None:
            fit &= columns["length"][slots] <= self.max_length
        return fit
