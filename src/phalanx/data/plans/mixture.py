"""Mixture weights of a streaming plan, with a temperature and a schedule."""

import bisect
import itertools
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float64
from pydantic import Field, model_validator

from phalanx.config import Config


class MixtureMilestone(Config):
    """Weights at one point of a mixture schedule."""

    at_tokens: int = Field(ge=0)
    """Total number of tokens, over all sources, after which these weights apply."""
    weights: dict[str, float]
    """Weight of each source. A source that is not listed has weight 0. If it is empty, all sources have equal
    weights."""


class MixtureConfig(Config):
    """Fraction of the training tokens that comes from each source. The fractions may change during training.

    Between two milestones of the schedule, the fractions change linearly. After the last milestone, they are
    constant.

    >>> MixtureConfig(weights={"web": 900.0, "code": 100.0}, temperature=2.0).at(0, ["web", "code"]).tolist()
    [0.75, 0.25]
    """

    weights: dict[str, float] = Field(default_factory=dict)
    """Initial weight of each source, at least 0. If it is empty, all sources have equal weights."""
    schedule: tuple[MixtureMilestone, ...] = ()
    """Weights at later points of training, in ascending order of `at_tokens`. If it is empty, the weights are
    constant."""
    temperature: float = Field(default=1.0, gt=0)
    """Weights are raised to the power `1 / temperature`. A temperature above 1 makes them more equal, and a
    temperature below 1 makes them less equal."""

    @model_validator(mode="after")
    def _check_weights(self) -> "MixtureConfig":
        for weights in (self.weights, *(milestone.weights for milestone in self.schedule)):
            if any(not np.isfinite(weight) or weight < 0 for weight in weights.values()):
                raise ValueError(f"weights must be finite and at least 0, got {weights}")
            if weights and not sum(weights.values()):
                raise ValueError("at least one weight must be positive")
        if any(a.at_tokens >= b.at_tokens for a, b in itertools.pairwise(self.schedule)):
            raise ValueError("the milestones of a schedule must be in ascending order of at_tokens")
        if self.schedule and not self.weights:
            raise ValueError("a schedule needs initial weights")
        return self

    def check_sources(self, sources: Mapping[str, object]) -> None:
        """Raise `ValueError` if a weight is given for a name that is not in `sources`."""
        for name in itertools.chain(self.weights, *(milestone.weights for milestone in self.schedule)):
            if name not in sources:
                raise ValueError(
                    f"the mixture has a weight for {name!r}, but the sources are {', '.join(sources)}"
                )

    def at(self, tokens: int, sources: list[str]) -> Float64[np.ndarray, " sources"]:
        """Return the fraction of tokens to take from each source, in the order of `sources`.

        `tokens` is the total number of tokens taken so far from all sources.
        """
        milestones = [MixtureMilestone(at_tokens=0, weights=self.weights), *self.schedule]
        next_milestone = bisect.bisect_right(milestones, tokens, key=lambda milestone: milestone.at_tokens)
        current = milestones[next_milestone - 1]
        fractions = self._fractions(current.weights, sources)
        if next_milestone < len(milestones):
            target = milestones[next_milestone]
            progress = (tokens - current.at_tokens) / (target.at_tokens - current.at_tokens)
            fractions = (1 - progress) * fractions + progress * self._fractions(target.weights, sources)
        return fractions

    def _fractions(self, weights: Mapping[str, float], sources: list[str]) -> Float64[np.ndarray, " sources"]:
        values = np.array([weights.get(name, 0.0) if weights else 1.0 for name in sources])
        powers = np.where(values > 0, values, 1.0) ** (1.0 / self.temperature) * (values > 0)
        return powers / powers.sum()
