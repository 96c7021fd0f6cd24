"""The KGE action, which closes a ground goal with a knowledge-graph embedding instead of a proof."""

import dataclasses
import functools
import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32

from phalanx.core.fingerprint import Fingerprinted
from phalanx.kg.kge.embedding import KGE
from phalanx.proofs import backends
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.program import Program
from phalanx.proofs.state import ExpandRequest, SearchNode


@dataclasses.dataclass(frozen=True, eq=False)
class KGEAction(Fingerprinted):
    """Action that closes a goal without a proof, at a cost that depends on the goal's embedding score.

    To close a goal means to remove it from the state. The action closes the first goal of a state. It is
    available if this goal is ground, and if the action would not lead to a state that the episode has already
    visited. The action appears as the last successor, in which the predicate of the first goal is replaced by
    its `_kge` predicate. Taking the action adds the log-probability of the goal under the embedding to
    `ProofState.log_score`.
    """

    kge: KGE
    """Embedding that scores the goals."""
    allow_query: bool
    """Allow the embedding to close the query itself."""

    @classmethod
    def create(cls, kge: KGE | None, config: ProofConfig, program: Program) -> "KGEAction | None":
        """Create the action, or return None if `kge` is None.

        Raises `ValueError` if the numbers of predicates and constants of the embedding and of the program
        differ, if the program has predicates with three arguments, or if the config skips unary actions.
        """
        if kge is None:
            return None
        sizes = (kge.num_relations, kge.num_entities)
        if sizes != (program.num_predicates, program.num_constants):
            raise ValueError(
                f"the embedding has {sizes[0]} predicates and {sizes[1]} constants, but the knowledge base "
                f"has {program.num_predicates} and {program.num_constants}; load it with "
                "load_kge(folder, vocabulary)"
            )
        if program.arity != 2:
            raise ValueError(
                "an embedding can only close goals with two arguments, but this knowledge base has "
                "predicates with three; remove the embedding"
            )
        if config.skip_unary_actions:
            raise ValueError(
                "skip_unary_actions would skip states in which the embedding can act; set it to false, or "
                "remove the embedding"
            )
        return cls(kge, config.allow_kge_on_query)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Digest of the embedding's parameters and of `allow_query`."""
        digest = hashlib.sha256(f"{self.allow_query} {jax.tree.structure(self.kge)}".encode())
        for leaf in jax.tree.leaves(self.kge):
            digest.update(np.asarray(leaf).tobytes())
        return digest.hexdigest()

    def expand(
        self,
        config: ProofConfig,
        program: Program,
        request: ExpandRequest,
        node: SearchNode,
        *,
        clear_visited: bool,
    ) -> SearchNode:
        """Expand nodes like `backends.expand`, and add the KGE action where it is available.

        One of the `max_actions` successors is reserved for the KGE action, so `backends.expand` returns at
        most `max_actions - 1` successors.
        """
        num_slots = node.successors.shape[-3] - 1
        smaller = node._replace(
            successors=node.successors[..., :num_slots, :, :],
            num_actions=jnp.minimum(node.num_actions, num_slots),
        )
        new = backends.expand(config, program, request, smaller, clear_visited=clear_visited)
        is_offered = request.where & self._is_offered(program, request.query, new)
        kge_successor = new.goals.at[..., 0, 0].add(program.kge_offset)
        is_slot = jnp.arange(num_slots + 1) == new.num_actions[..., None]
        padded = jnp.concatenate([new.successors, jnp.zeros_like(node.successors[..., :1, :, :])], axis=-3)
        is_kge_slot = (is_offered[..., None] & is_slot)[..., None, None]
        successors = jnp.where(is_kge_slot, kge_successor[..., None, :, :], padded)
        changed = request.where[..., None, None, None]
        return new._replace(
            successors=jnp.where(changed, successors, node.successors),
            num_actions=jnp.where(request.where, new.num_actions + is_offered, node.num_actions),
        )

    def _is_offered(
        self, program: Program, query: Int32[Array, "*batch atom"], node: SearchNode
    ) -> Bool[Array, "*batch"]:
        goal = node.goals[..., 0, :]
        limits = jnp.array([program.num_predicates, program.num_constants, program.num_constants])
        is_ground = jnp.all((goal >= 1) & (goal <= limits), axis=-1)
        if not self.allow_query:
            is_ground &= jnp.any(goal != query, axis=-1)
        rest = remove_first_goal(program, node.goals)
        same = jnp.all(node.visited == rest[..., None, :, :], axis=(-1, -2))
        is_visited = same & (jnp.arange(same.shape[-1]) < node.num_visited[..., None])
        return is_ground & ~jnp.any(is_visited, axis=-1)

    def close(
        self, program: Program, goals: Int32[Array, "*batch goals atom"]
    ) -> tuple[Int32[Array, "*batch goals atom"], Float32[Array, "*batch"]]:
        """Apply the KGE action to successors in which the first goal has a `_kge` predicate.

        Args:
            program: Facts and rules.
            goals: For each environment, the successor that the agent selected. Successors that do not result
                from the KGE action are returned unchanged.

        Returns:
            The remaining goals, and the log-probability of the closed goal (0 if the action was not the KGE
            action).
        """
        is_kge = is_kge_action(program, goals)
        offset = jnp.array([program.kge_offset, 0, 0], jnp.int32)
        remaining = jnp.where(is_kge[..., None, None], remove_first_goal(program, goals), goals)
        return remaining, self.log_prob(is_kge, goals[..., 0, :] - offset)

    def log_prob(
        self, where: Bool[Array, "*batch"], goal: Int32[Array, "*batch atom"]
    ) -> Float32[Array, "*batch"]:
        """Return the log-probability of ground goals where `where` is True, and 0 elsewhere."""
        # Indices in proof states are the embedding's ids plus one.
        triples = jnp.where(where[..., None], goal - 1, 0)
        found: Any = self.kge.log_prob(triples.reshape(-1, 3))
        return jnp.where(where, found.reshape(where.shape), 0.0).astype(jnp.float32)


def is_kge_action(program: Program, goals: Int32[Array, "*batch goals atom"]) -> Bool[Array, "*batch"]:
    """Return a mask of the successors that result from the KGE action.

    The first goal of such a successor has a `_kge` predicate.
    """
    return goals[..., 0, 0] > program.end_index


def remove_first_goal(
    program: Program, goals: Int32[Array, "*batch goals atom"]
) -> Int32[Array, "*batch goals atom"]:
    """Remove the first goal, which must be ground. If no goal is left, the result is the state True.

    Since the goal has no variables, the remaining goals are still in canonical form.
    """
    rest = jnp.concatenate([goals[..., 1:, :], jnp.zeros_like(goals[..., :1, :])], axis=-2)
    is_empty = rest[..., 0, 0] == 0
    return rest.at[..., 0, 0].set(jnp.where(is_empty, program.true_index, rest[..., 0, 0]))
