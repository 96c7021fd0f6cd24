"""Weights of a mixture: parts of all tokens, made even by a temperature, changed by a schedule.

How a live plan keeps to them is in `plan`.
"""

import itertools
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float64
from pydantic import Field, model_validator

from phalanx.config import FrozenModel


class MixtureStage(FrozenModel):
    """The weights at one moment of a schedule."""

    tokens: int = Field(ge=0)
    """When: after this many tokens."""
    weights: dict[str, float]
    """Of each source, in whatever unit; a source that is not named has none."""


class Mixture(FrozenModel):
    """Which part of all tokens comes from which source, now and later.

    Between two points of the schedule weights change evenly; behind the last they stay. A temperature above 1
    makes parts more alike (weight to the power of one over it, as for sizes of languages), below 1 less.

    >>> Mixture(weights={"web": 900.0, "code": 100.0}, temperature=2.0).at(0, ["web", "code"]).tolist()
    [0.75, 0.25]
    """

    weights: dict[str, float] = Field(default_factory=dict)
    """From the start; empty: all sources alike."""
    schedule: tuple[MixtureStage, ...] = ()
    """Later weights, in the order of their tokens: a curriculum."""
    temperature: float = Field(default=1.0, gt=0)
    """1: the weights as they are."""

    @model_validator(mode="after")
    def _can_be_kept(self) -> "Mixture":
        for weights in (self.weights, *(point.weights for point in self.schedule)):
            if any(not np.isfinite(weight) or weight < 0 for weight in weights.values()):
                raise ValueError(f"weights must not be negative, got {weights}")
            if weights and not sum(weights.values()):
                raise ValueError("some weight must be above 0")
        if any(a.tokens >= b.tokens for a, b in itertools.pairwise(self.schedule)):
            raise ValueError("the points of a schedule must come in the order of their tokens")
        if self.schedule and not self.weights:
            raise ValueError("a schedule needs weights to start from")
        return self

    def check(self, sources: Mapping[str, object]) -> None:
        """Raise `ValueError` where a weight names no source."""
        for weights in (self.weights, *(point.weights for point in self.schedule)):
            for name in weights:
                if name not in sources:
                    raise ValueError(f"the mixture names {name!r}, but the sources are {', '.join(sources)}")

    def at(self, tokens: int, sources: list[str]) -> Float64[np.ndarray, " sources"]:
        """Each source's part, which together are 1, once this many tokens were handed out."""
        points = [MixtureStage(tokens=0, weights=self.weights), *self.schedule]
        later = next((number for number, point in enumerate(points) if point.tokens > tokens), len(points))
        first = points[max(later - 1, 0)]
        parts = self._parts(first.weights, sources)
        if later < len(points):
            then = points[later]
            moved = (tokens - first.tokens) / (then.tokens - first.tokens)
            parts = (1 - moved) * parts + moved * self._parts(then.weights, sources)
        return parts

    def _parts(self, weights: Mapping[str, float], sources: list[str]) -> Float64[np.ndarray, " sources"]:
        told = np.array([weights.get(name, 0.0) if weights else 1.0 for name in sources])
        powers = np.where(told > 0, told, 1.0) ** (1.0 / self.temperature) * (told > 0)
        return powers / powers.sum()
