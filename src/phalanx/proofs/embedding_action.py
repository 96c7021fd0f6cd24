"""Goals that an embedding closes: the `_kge` twin of a ground goal is an action, and costs its probability.

What is derived by facts and rules is in `resolution`; what an episode pays for it, in `environment`.
"""

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
from phalanx.proofs.backends import resolution
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.program import Program
from phalanx.proofs.state import ExpandRequest, ResolutionSettings, SearchNode


@dataclasses.dataclass(frozen=True, eq=False)
class KGELeafScorer(Fingerprinted):
    """An embedding that may stand in for a proof of the first goal, where that is ground.

    Such a state has one more successor, behind all others: itself with the `_kge` twin of its first goal.
    Taking it leaves the remaining goals, and adds the logarithm of the embedding's probability to the score.
    It is not offered where the remaining goals have been visited, as then it would lead in a circle.
    """

    kge: KGE
    closes_query: bool
    """Whether the query itself may be closed, too."""

    @classmethod
    def create(cls, kge: KGE, program: Program, closes_query: bool, skips: bool) -> "KGELeafScorer":
        """Checked against the program that it is used with."""
        sizes = (kge.num_relations, kge.num_entities)
        if sizes != (program.num_predicates, program.num_constants):
            raise ValueError(
                f"the embedding has {sizes[0]} predicates and {sizes[1]} constants, the knowledge base "
                f"{program.num_predicates} and {program.num_constants}; read it with load_kge(folder, "
                "index_manager)"
            )
        if program.arity != 2:
            raise ValueError(
                "an embedding closes goals of two arguments, and this knowledge base has predicates of "
                "three; leave the embedding out"
            )
        if skips:
            raise ValueError(
                "skip_unary_actions passes states in which the embedding could act; set it to false, or "
                "leave the embedding out"
            )
        return cls(kge, closes_query)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A digest of the embedding's numbers."""
        digest = hashlib.sha256(f"{self.closes_query} {jax.tree.structure(self.kge)}".encode())
        for leaf in jax.tree.leaves(self.kge):
            digest.update(np.asarray(leaf).tobytes())
        return digest.hexdigest()

    def expand(
        self, rules: ResolutionSettings, asked: ExpandRequest, node: SearchNode, *, restart: bool
    ) -> SearchNode:
        """As `resolution.expand`, with the twin behind the others; it has a place of its own among them."""
        room = node.successors.shape[-3] - 1
        small = node._replace(
            successors=node.successors[..., :room, :, :],
            successor_count=jnp.minimum(node.successor_count, room),
        )
        new = resolution.expand(rules, asked, small, restart=restart)
        offered = asked.where & self._offered(rules.program, asked.query, new)
        twin = new.goals.at[..., 0, 0].add(rules.program.end_index)
        here = jnp.arange(room + 1) == new.successor_count[..., None]
        padded = jnp.concatenate([new.successors, jnp.zeros_like(node.successors[..., :1, :, :])], axis=-3)
        there = (offered[..., None] & here)[..., None, None]
        successors = jnp.where(there, twin[..., None, :, :], padded)
        kept = asked.where[..., None, None, None]
        return new._replace(
            successors=jnp.where(kept, successors, node.successors),
            successor_count=jnp.where(asked.where, new.successor_count + offered, node.successor_count),
        )

    def _offered(
        self, program: Program, query: Int32[Array, "*batch atom"], node: SearchNode
    ) -> Bool[Array, "*batch"]:
        goal = node.goals[..., 0, :]
        limits = jnp.array([program.num_predicates, program.num_constants, program.num_constants])
        offered = jnp.all((goal >= 1) & (goal <= limits), axis=-1)
        if not self.closes_query:
            offered &= jnp.any(goal != query, axis=-1)
        rest = remaining(program, node.goals)
        same = jnp.all(node.visited == rest[..., None, :, :], axis=(-1, -2))
        seen = same & (jnp.arange(same.shape[-1]) < node.visited_count[..., None])
        return offered & ~jnp.any(seen, axis=-1)

    def close(
        self, program: Program, goals: Int32[Array, "*batch atoms atom"]
    ) -> tuple[Int32[Array, "*batch atoms atom"], Float32[Array, "*batch"]]:
        """What twins leave behind and cost; other goals stay as they are and cost nothing."""
        closes = is_kge_action(program, goals)
        offset = jnp.array([program.end_index, 0, 0], jnp.int32)
        left = jnp.where(closes[..., None, None], remaining(program, goals), goals)
        return left, self.cost(closes, goals[..., 0, :] - offset)

    def cost(
        self, where: Bool[Array, "*batch"], goal: Int32[Array, "*batch atom"]
    ) -> Float32[Array, "*batch"]:
        """The logarithm of the probability of some ground goals; 0 elsewhere."""
        atoms = jnp.where(where[..., None], goal, 1)
        costs: Any = self.kge.log_probability(atoms.reshape(-1, 3))
        return jnp.where(where, costs.reshape(where.shape), 0.0).astype(jnp.float32)


def is_kge_action(program: Program, goals: Int32[Array, "*batch atoms atom"]) -> Bool[Array, "*batch"]:
    """Whether the first goal is a `_kge` twin: those come behind the special predicates."""
    return goals[..., 0, 0] > program.end_index


def remaining(
    program: Program, goals: Int32[Array, "*batch atoms atom"]
) -> Int32[Array, "*batch atoms atom"]:
    """The goals without a ground first one, which leaves them in canonical form; True where none is left."""
    rest = jnp.concatenate([goals[..., 1:, :], jnp.zeros_like(goals[..., :1, :])], axis=-2)
    empty = rest[..., 0, 0] == 0
    return rest.at[..., 0, 0].set(jnp.where(empty, program.true_index, rest[..., 0, 0]))


def closer_of(config: ProofConfig, program: Program, kge: KGE | None) -> KGELeafScorer | None:
    """What closes goals in an environment of this config."""
    if kge is None:
        return None
    return KGELeafScorer.create(kge, program, config.kge_closes_query, config.skip_unary_actions)
