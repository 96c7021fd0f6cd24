"""The state of a proof episode, and what an agent sees of it.

Making and changing states is in `environment`; finding successors is in `resolution`.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from phalanx.proofs.nodes import Node

TERMINATED, TRUNCATED = 1, 2


class ProofState(eqx.Module):
    """One episode's state, or a batch of them."""

    goals: Int32[Array, "*batch atoms 3"]
    """What is left to prove, in canonical form; True or False in the first row at an end."""
    successors: Int32[Array, "*batch states atoms 3"]
    """What the actions lead to; the end action is marked by `End`."""
    count: Int32[Array, "*batch"]
    """Legal actions, which come first."""
    visited: Int32[Array, "*batch memory atoms 3"]
    """The goals that the episode has been at."""
    visited_count: Int32[Array, "*batch"]
    overflow: Bool[Array, "*batch"]
    """Whether successors were cut because there were more than fit."""
    too_long: Int32[Array, "*batch"]
    """Candidates that were removed because they had too many goals."""
    skipped: Int32[Array, "*batch"]
    """States without a choice that the last valid step passed."""
    query: Int32[Array, "*batch 3"]
    label: Bool[Array, "*batch"]
    """Whether the query is a true triple; then it may not serve as a fact."""
    depth: Int32[Array, "*batch"]
    """The query's depth, where it is known; -1 where it is not, and for negatives."""
    step_count: Int32[Array, "*batch"]
    """Steps taken in this episode."""
    status: Int32[Array, "*batch"]
    """0 while the episode runs, 1 terminated, 2 truncated."""

    @property
    def node(self) -> Node:
        """What resolution works on."""
        return Node(
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

    sub_index: Int32[Array, "*batch 1 atoms 3"]
    """The goals."""
    derived_sub_indices: Int32[Array, "*batch states atoms 3"]
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
