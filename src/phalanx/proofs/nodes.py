"""What both engines of resolution take and give: nodes of the search, and the rules of expanding them.

The engines are `native_resolution` and `xla_resolution`; `resolution` picks between them.
"""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from phalanx.proofs.config import Engine, ProofConfig
from phalanx.proofs.program import Program


class Asked(NamedTuple):
    """What is to be expanded."""

    where: Bool[Array, "*batch"]
    """Which rows; the others stay as they are."""
    query: Int32[Array, "*batch 3"]
    excluded: Bool[Array, "*batch"]
    """Whether the query may not serve as a fact: it would prove itself."""


class Node(NamedTuple):
    """A place in the search: a goal list, its successors, and what has been visited on the way."""

    goals: Int32[Array, "*batch atoms 3"]
    """In canonical form: packed to the front, variables numbered by first occurrence."""
    successors: Int32[Array, "*batch states atoms 3"]
    successor_count: Int32[Array, "*batch"]
    """Successors; zero rows behind them."""
    visited: Int32[Array, "*batch memory atoms 3"]
    """The goal lists that the episode has been in, this one included."""
    visited_count: Int32[Array, "*batch"]
    overflow: Bool[Array, "*batch"]
    """Whether successors were cut because there were more than fit."""
    too_long: Int32[Array, "*batch"]
    """Candidates that were removed because they had too many goals."""
    skipped: Int32[Array, "*batch"]
    """States without a choice that were passed."""


@dataclasses.dataclass(frozen=True)
class Rules:
    """How goals are expanded; hashable."""

    program: Program
    end_proof_action: bool
    unary_limit: int
    memory_pruning: bool
    engine: Engine

    @property
    def options(self) -> tuple[Any, ...]:
        """All but the program."""
        return self.end_proof_action, self.unary_limit, self.memory_pruning, self.engine

    @classmethod
    def of(cls, config: ProofConfig, program: Program) -> "Rules":
        """The rules that a config describes."""
        return cls(program, config.end_proof_action, config.unary_limit, config.memory_pruning, config.engine)


def empty_nodes(config: ProofConfig, batch: tuple[int, ...]) -> Node:
    """Nodes with nothing in them, for `expand` to fill."""
    number = jnp.zeros(batch, jnp.int32)
    atoms = (config.padding_atoms, 3)
    return Node(
        goals=jnp.zeros((*batch, *atoms), jnp.int32),
        successors=jnp.zeros((*batch, config.padding_states, *atoms), jnp.int32),
        successor_count=number,
        visited=jnp.zeros((*batch, config.memory, *atoms), jnp.int32),
        visited_count=number,
        overflow=jnp.zeros(batch, bool),
        too_long=number,
        skipped=number,
    )
