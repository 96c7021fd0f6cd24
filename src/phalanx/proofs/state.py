"""Data types for proof search: states, search nodes and observations."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32

from phalanx.proofs.config import ProofConfig
from phalanx.proofs.program import Program
from phalanx.proofs.queries import SampledQuery

TERMINATED, TRUNCATED = 1, 2
"""Values of `ProofState.status` for episodes that have ended. The status of a running episode is 0."""


class ExpandSettings(NamedTuple):
    """Settings for `phalanx.proofs.backends.expand`. They are static under `jit`."""

    max_skipped_states: int
    """Maximum number of states that one step skips because they have a single successor."""
    end_proof_action: bool
    """Append a successor for the end action, with which the agent gives up."""
    prune_visited: bool
    """Remove successors that the episode has already visited."""
    clear_visited: bool
    """Clear the list of visited states before nodes are expanded. Set this at the start of an episode."""


class ExpandRequest(NamedTuple):
    """Specifies which nodes of a batch to expand, and the query of each node."""

    where: Bool[Array, "*batch"]
    """Mask of the nodes to expand. All other nodes are returned unchanged."""
    query: Int32[Array, "*batch atom"]
    """For each node, the query that the search tries to prove."""
    exclude_query: Bool[Array, "*batch"]
    """True if the query must not be used as a fact, so that it does not prove itself."""


class SearchNode(NamedTuple):
    """A node of the search: a list of goals, its successors, and the states visited so far.

    Each atom (predicate and terms) is one row of integers; see `AtomIndexing`.
    """

    goals: Int32[Array, "*batch goals atom"]
    """Remaining goals in canonical form. There are no empty rows between goals, and variables are numbered by
    first occurrence. If the search has ended, the first row is True or False."""
    successors: Int32[Array, "*batch actions goals atom"]
    """Goals that each action leads to. The end action is represented by the single goal `End`."""
    num_actions: Int32[Array, "*batch"]
    """Number of successors, and thus of legal actions. The remaining rows of `successors` are zero."""
    visited: Int32[Array, "*batch memory goals atom"]
    """Goals of the states that the episode has visited, including the current state."""
    num_visited: Int32[Array, "*batch"]
    """Number of visited states. The remaining rows of `visited` are not used."""
    overflow: Bool[Array, "*batch"]
    """True if successors were cut off because there were more than `max_actions`."""
    num_too_long: Int32[Array, "*batch"]
    """Number of successors that were removed because they had more than `max_goals` goals."""
    num_skipped: Int32[Array, "*batch"]
    """Number of states that the last valid step skipped because they had a single successor."""

    @classmethod
    def empty(cls, config: ProofConfig, program: Program, batch: tuple[int, ...]) -> "SearchNode":
        """Return a batch of nodes that contain only zeros, as buffers for `expand`."""
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
    """State of one episode, or of a batch of episodes."""

    node: SearchNode
    """The current goals, the successors of the state, and the visited states."""
    query: SampledQuery
    """The query of the episode, with its label and depth."""
    step_count: Int32[Array, "*batch"]
    """Number of steps taken in this episode."""
    status: Int32[Array, "*batch"]
    """0 while the episode runs, 1 if it is terminated, 2 if it is truncated."""
    log_score: Float32[Array, "*batch"] | None = None
    """Sum of the log-probabilities of the goals that the KGE action removed. None if the environment has no
    embedding."""

    # The properties are not annotated with array types because states are also held on the host.

    @property
    def goals(self) -> Any:
        """The remaining goals."""
        return self.node.goals

    @property
    def successors(self) -> Any:
        """The goals that each action leads to."""
        return self.node.successors

    @property
    def num_actions(self) -> Any:
        """Number of legal actions. Actions 0 to `num_actions - 1` are legal."""
        return self.node.num_actions

    @property
    def action_mask(self) -> Bool[Array, "*batch actions"]:
        """Mask of the legal actions."""
        return jnp.arange(self.successors.shape[-3]) < self.num_actions[..., None]

    @property
    def terminated(self) -> Any:
        """True if the episode ended because the query was proved, the proof failed or the agent gave up."""
        return self.status == TERMINATED

    @property
    def truncated(self) -> Any:
        """True if the episode reached the maximum number of steps without terminating."""
        return self.status == TRUNCATED

    @property
    def episode_done(self) -> Any:
        """True if the episode has ended."""
        return self.status != 0

    def __getitem__(self, index: Any) -> "ProofState":
        """Index a batch of states along its first axis."""
        return jax.tree.map(lambda leaf: leaf[index], self)


class ProofObservation(eqx.Module):
    """Observation of the proof environment.

    Policies should only use `goals`, `successors` and `action_mask`. The other fields are for bookkeeping.
    """

    goals: Int32[Array, "*batch goals atom"]
    """The remaining goals."""
    successors: Int32[Array, "*batch actions goals atom"]
    """The goals that each action leads to. The end action is represented by the single goal `End`."""
    action_mask: Bool[Array, "*batch actions"]
    """Mask of the legal actions."""
    label: Bool[Array, "*batch"]
    """True if the query is true, and False if it is a corruption. For bookkeeping only."""
    depth: Int32[Array, "*batch"]
    """Proof depth of the query, or -1 if it is not known or the query is a negative. For bookkeeping only."""
    step_count: Int32[Array, "*batch"]
    """Number of steps taken in this episode. For bookkeeping only."""


def observe(state: ProofState) -> ProofObservation:
    """Create the observation that the environment returns for a state."""
    return ProofObservation(
        goals=state.goals,
        successors=state.successors,
        action_mask=state.action_mask,
        label=state.query.label,
        depth=state.query.depth,
        step_count=state.step_count,
    )
