"""What rules are mined, and how much work that may take.

What is done with them is up to `rank` and `asking`.
"""

from typing import Literal

from pydantic import Field

from phalanx.config import Config

LONGEST = 5
"""Atoms in the body of a path rule at most; the native engine has room for no more."""


class MiningConfig(Config):
    """Settings of `mine`; without `seconds` the same ones give the same rules, on any number of threads."""

    length: int = Field(default=3, ge=1, le=LONGEST)
    """Atoms in the body of a path rule, at most."""
    constants: bool = True
    """Whether to mine rules with constants: h(X,c) <- b(X,d)."""
    dangling: bool = True
    """Whether to mine h(X,c) <- b(X,Y) as well."""
    min_support: int = Field(default=2, ge=1)
    """Predictions of a rule that must be facts."""
    min_confidence: float = Field(default=0.001, ge=0, le=1)
    """Rules that are less certain are left out."""
    confidence: Literal["standard", "pca"] = "standard"
    """The share of the predictions that are facts; for pca, of those whose X has the relation at all."""
    pessimism: float = Field(default=5.0, ge=0)
    """Wrong predictions that are added to those of every rule, so that a rare one is not certain."""
    max_constants: int = Field(default=1_000_000, ge=1)
    """Rules with constants that are kept, the best; path rules are bounded by `max_bodies`."""
    triples: int | None = Field(default=None, ge=1)
    """Triples to look for paths between, those of each relation in turn; all if None."""
    fan: int = Field(default=100, ge=1)
    """Edges of an entity that a search for paths follows, evenly spread; the rest is not looked at."""
    max_bodies: int = Field(default=100_000, ge=1)
    """Pairs of body and head that are measured: those that were found most often."""
    enough: int = Field(default=20_000, ge=1)
    """Predictions after which a body has been measured well enough."""
    limit: int = Field(default=10_000, ge=1)
    """Paths from one entity that a body is followed along."""
    widest: int = Field(default=5_000, ge=1)
    """Entities with more edges than this are no X of a rule with constants."""
    seed: int = Field(default=0, ge=0)
    """Of the order of triples and entities."""
    threads: int = Field(default=2, ge=1)
    """Changes the time and nothing else."""
    seconds: float | None = Field(default=None, gt=0)
    """When to stop, between two rounds; what is found by then depends on the machine."""
