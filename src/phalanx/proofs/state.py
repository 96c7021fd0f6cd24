"""States, search nodes and observations of proof search."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32

from phalanx.proofs.config import ProofConfig
from phalanx.proofs.program import Program
from phalanx.proofs.queries import SampledQuery

TERMINATED, TRUNCATED = 1, 2


class ExpandRequest(NamedTuple):
    """Nodes to expand, and their queries."""

    where: Bool[Array, "*batch"]
    """Rows to expand; the others are not changed."""
    query: Int32[Array, "*batch atom"]
    exclude_query: Bool[Array, "*batch"]
    """True if the query may not be used as a fact, because it would prove itself."""


class SearchNode(NamedTuple):
    """A list of goals, its successors, and the visited states."""

    goals: Int32[Array, "*batch goals atom"]
    """Remaining goals in canonical form: packed to the front, variables numbered by first occurrence. True or
    False in the first row if the search has ended."""
    successors: Int32[Array, "*batch actions goals atom"]
    """Goals after each action; the end action is marked by `End`."""
    num_actions: Int32[Array, "*batch"]
    """Successors; the rows after them are zero."""
    visited: Int32[Array, "*batch memory goals atom"]
    """Goals that the episode has visited, including the current ones."""
    num_visited: Int32[Array, "*batch"]
    overflow: Bool[Array, "*batch"]
    """True if successors were cut off because there were more than `max_actions`."""
    num_too_long: Int32[Array, "*batch"]
    """Successors that were removed because they had more than `max_goals` goals."""
    num_skipped: Int32[Array, "*batch"]
    """States with a single successor that the last valid step skipped."""

    @classmethod
    def empty(cls, config: ProofConfig, program: Program, batch: tuple[int, ...]) -> "SearchNode":
        """Return nodes without content, which `expand` fills."""
        zero = jnp.zeros(batch, jnp.int32)
        goals = (config.max_goals, 1 + program.arity)
        return cls(
            goals=jnp.zeros((*batch, *goals), jnp.int32),
            successors=jnp.zeros((*batch, config.max_actions, *goals), jnp.int32),
            num_actions=zero,
            visited=jnp.zeros((*batch, config.memory_size, *goals), jnp.int32),
            num_visited=zero,
            overflow=jnp.zeros(batch, bool),
            num_too_long=zero,
            num_skipped=zero,
        )


class ProofState(eqx.Module):
    """The state of one episode, or of a batch of episodes."""

    node: SearchNode
    """The goals and what each action leads to."""
    query: SampledQuery
    """The query of the episode, with its label and depth."""
    step_count: Int32[Array, "*batch"]
    """Steps taken in this episode."""
    status: Int32[Array, "*batch"]
    """0 while the episode runs, 1 if it is terminated, 2 if it is truncated."""
    log_score: Float32[Array, "*batch"] | None = None
    """Sum of the log-probabilities of goals that an embedding scored; None without an embedding."""

    # The properties are not annotated with array types because states are also held on the host.

    @property
    def goals(self) -> Any:
        """The remaining goals."""
        return self.node.goals

    @property
    def successors(self) -> Any:
        """The goals after each action."""
        return self.node.successors

    @property
    def num_actions(self) -> Any:
        """Number of legal actions, which come first."""
        return self.node.num_actions

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Empty for a single state."""
        return self.status.shape

    @property
    def action_mask(self) -> Bool[Array, "*batch actions"]:
        """Mask of legal actions."""
        return jnp.arange(self.successors.shape[-3]) < self.num_actions[..., None]

    @property
    def episode_done(self) -> Any:
        """True if the episode has ended."""
        return self.status != 0

    def __getitem__(self, index: Any) -> "ProofState":
        """Return one state or a slice of a batch."""
        return jax.tree.map(lambda leaf: leaf[index], self)


class ProofObservation(eqx.Module):
    """Observation of the agent: goals, successors, and information for bookkeeping."""

    goals: Int32[Array, "*batch goals atom"]
    """The remaining goals."""
    successors: Int32[Array, "*batch actions goals atom"]
    """The goals after each action; the end action is marked by `End`."""
    action_mask: Bool[Array, "*batch actions"]
    """Mask of legal actions."""
    label: Bool[Array, "*batch"]
    """True for true queries. This field and the next two are for bookkeeping, not for policies."""
    depth: Int32[Array, "*batch"]
    step_count: Int32[Array, "*batch"]


def observe(state: ProofState) -> ProofObservation:
    """Return the observation of a state."""
    return ProofObservation(
        goals=state.goals,
        successors=state.successors,
        action_mask=state.action_mask,
        label=state.query.label,
        depth=state.query.depth,
        step_count=state.step_count,
    )
