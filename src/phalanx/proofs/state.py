"""What proof search works on: nodes of the search, the settings of expanding them, states and observations.

How nodes are expanded is in `resolution`; what an episode is, in `environment`.
"""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32

from phalanx.native import Backend
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.program import Program


class ExpandRequest(NamedTuple):
    """Which nodes are to be expanded, for which queries."""

    where: Bool[Array, "*batch"]
    """Which rows; the others stay as they are."""
    query: Int32[Array, "*batch atom"]
    excluded: Bool[Array, "*batch"]
    """Whether the query may not serve as a fact: it would prove itself."""


class SearchNode(NamedTuple):
    """A place in the search: a goal list, its successors, and what has been visited on the way."""

    goals: Int32[Array, "*batch atoms atom"]
    """In canonical form: packed to the front, variables numbered by first occurrence."""
    successors: Int32[Array, "*batch states atoms atom"]
    successor_count: Int32[Array, "*batch"]
    """Successors; zero rows behind them."""
    visited: Int32[Array, "*batch memory atoms atom"]
    """The goal lists that the episode has been in, this one included."""
    visited_count: Int32[Array, "*batch"]
    overflow: Bool[Array, "*batch"]
    """Whether successors were cut because there were more than fit."""
    too_long: Int32[Array, "*batch"]
    """Candidates that were removed because they had too many goals."""
    skipped: Int32[Array, "*batch"]
    """States without a choice that were passed."""


@dataclasses.dataclass(frozen=True)
class ResolutionSettings:
    """The program and how its goals are expanded; hashable."""

    program: Program
    end_proof_action: bool
    unary_limit: int
    memory_pruning: bool
    engine: Backend

    @property
    def options(self) -> tuple[Any, ...]:
        """All but the program."""
        return self.end_proof_action, self.unary_limit, self.memory_pruning, self.engine

    @classmethod
    def of(cls, config: ProofConfig, program: Program) -> "ResolutionSettings":
        """The settings that a config describes."""
        return cls(program, config.end_proof_action, config.unary_limit, config.memory_pruning, config.engine)


def empty_nodes(config: ProofConfig, program: Program, batch: tuple[int, ...]) -> SearchNode:
    """Nodes with nothing in them, for `expand` to fill."""
    number = jnp.zeros(batch, jnp.int32)
    atoms = (config.padding_atoms, 1 + program.arity)
    return SearchNode(
        goals=jnp.zeros((*batch, *atoms), jnp.int32),
        successors=jnp.zeros((*batch, config.padding_states, *atoms), jnp.int32),
        successor_count=number,
        visited=jnp.zeros((*batch, config.memory, *atoms), jnp.int32),
        visited_count=number,
        overflow=jnp.zeros(batch, bool),
        too_long=number,
        skipped=number,
    )


TERMINATED, TRUNCATED = 1, 2


class ProofState(eqx.Module):
    """One episode's state, or a batch of them."""

    goals: Int32[Array, "*batch atoms atom"]
    """What is left to prove, in canonical form; True or False in the first row at an end."""
    successors: Int32[Array, "*batch states atoms atom"]
    """What the actions lead to; the end action is marked by `End`."""
    count: Int32[Array, "*batch"]
    """Legal actions, which come first."""
    visited: Int32[Array, "*batch memory atoms atom"]
    """The goals that the episode has been at."""
    visited_count: Int32[Array, "*batch"]
    overflow: Bool[Array, "*batch"]
    """Whether successors were cut because there were more than fit."""
    too_long: Int32[Array, "*batch"]
    """Candidates that were removed because they had too many goals."""
    skipped: Int32[Array, "*batch"]
    """States without a choice that the last valid step passed."""
    query: Int32[Array, "*batch atom"]
    label: Bool[Array, "*batch"]
    """Whether the query is a true triple; then it may not serve as a fact."""
    depth: Int32[Array, "*batch"]
    """The query's depth, where it is known; -1 where it is not, and for negatives."""
    step_count: Int32[Array, "*batch"]
    """Steps taken in this episode."""
    status: Int32[Array, "*batch"]
    """0 while the episode runs, 1 terminated, 2 truncated."""
    log_score: Float32[Array, "*batch"] | None = None
    """The sum of the logarithms of the probabilities of goals that an embedding closed; None without one."""

    @property
    def node(self) -> SearchNode:
        """What resolution works on."""
        return SearchNode(
            self.goals,
            self.successors,
            self.count,
            self.visited,
            self.visited_count,
            self.overflow,
            self.too_long,
            self.skipped,
        )

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Empty for a single state."""
        return self.count.shape

    @property
    def action_mask(self) -> Bool[Array, "*batch states"]:
        """Which actions are legal."""
        return jnp.arange(self.successors.shape[-3]) < self.count[..., None]

    @property
    def episode_done(self) -> Bool[Array, "*batch"]:
        """Whether the episode has ended."""
        return self.status != 0

    def __getitem__(self, index: Any) -> "ProofState":
        """One state, or a slice, of a batch."""
        return jax.tree.map(lambda leaf: leaf[index], self)


class ProofObservation(eqx.Module):
    """What an agent sees: the goals, what each action leads to, and a few numbers for bookkeeping."""

    sub_index: Int32[Array, "*batch 1 atoms atom"]
    """The goals."""
    derived_sub_indices: Int32[Array, "*batch states atoms atom"]
    """The goals that each action leads to; the end action is marked by `End`."""
    action_mask: Bool[Array, "*batch states"]
    """Which actions are legal."""
    label: Bool[Array, "*batch"]
    """For bookkeeping, as the two below; an agent that reads it cheats."""
    depth: Int32[Array, "*batch"]
    step_count: Int32[Array, "*batch"]


def observation_of(state: ProofState) -> ProofObservation:
    """The observation that belongs to a state."""
    return ProofObservation(
        sub_index=state.goals[..., None, :, :],
        derived_sub_indices=state.successors,
        action_mask=state.action_mask,
        label=state.label,
        depth=state.depth,
        step_count=state.step_count,
    )
