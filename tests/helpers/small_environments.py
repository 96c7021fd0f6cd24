"""One environment of each kind for the adapters that stay in JAX: an array seen, a record seen, ARC, proofs.

All are small enough to be followed by hand, and their episodes end within a few steps.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from phalanx.arc.config import ArcConfig
from phalanx.arc.env import ArcEnvironment
from phalanx.arc.tasks import ArcTask
from phalanx.core.environment import Environment, Key
from phalanx.core.spaces import Box, Discrete
from phalanx.kg.atoms import parse_atom, parse_rule
from phalanx.kg.formats import KnowledgeBase
from phalanx.kg.knowledge_base import DataHandler
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.env import ProofEnvironment

CELLS = 5
LEFT, RIGHT = 0, 1


class LaneState(eqx.Module):
    position: Int32[Array, "*batch"]
    clock: Int32[Array, "*batch"]
    terminated: Bool[Array, "*batch"]
    truncated: Bool[Array, "*batch"]


@dataclasses.dataclass(frozen=True)
class Lane(Environment[LaneState, Array, Array]):
    """Starts in cell 0 or 1, ends in the last cell, which pays 1; other steps pay -0.125; at most 6 steps.

    What is seen is a row of cells, 1 where one stands, and the clock behind it.
    """

    @property
    def observation_space(self) -> Box:
        return Box(0, 6, (CELLS + 1,), np.int32)

    @property
    def action_space(self) -> Discrete:
        return Discrete(2)

    def reset(self, key: Key) -> tuple[LaneState, Array]:
        start = (jax.random.key_data(key)[-1] % 2).astype(jnp.int32)
        state = LaneState(start, jnp.int32(0), jnp.bool_(False), jnp.bool_(False))
        return state, self.observe(state)

    def step(
        self, state: LaneState, action: Int32[Array, ""]
    ) -> tuple[LaneState, Array, Float[Array, ""], Bool[Array, ""], LaneState]:
        over = self.is_done(state)
        position = jnp.maximum(state.position + jnp.where(action == RIGHT, 1, -1), 0)
        terminated = position == CELLS - 1
        clock = state.clock + 1
        moved = LaneState(position, clock, terminated, ~terminated & (clock >= 6))
        state = jax.tree.map(lambda old, new: jnp.where(over, old, new), state, moved)
        reward = jnp.where(over, 0.0, jnp.where(terminated, 1.0, -0.125))
        return state, self.observe(state), reward, self.is_done(state), state

    def observe(self, state: LaneState) -> Int32[Array, " seen"]:
        return jnp.append((jnp.arange(CELLS) == state.position).astype(jnp.int32), state.clock)

    def is_done(self, state: LaneState) -> Bool[Array, "*batch"]:
        return state.terminated | state.truncated

    def sample_action(self, key: Key, state: LaneState) -> Int32[Array, ""]:
        # Twice in three to the right, so that both kinds of end come.
        return (jax.random.key_data(key)[-1] % 3 > 0).astype(jnp.int32)


def arc(selection: str = "point") -> ArcEnvironment:
    """Fill the left cell of two with 3; operations 2, 3 (fill) and 34 (submit), four steps at most."""
    task = ArcTask.from_dict({"train": [{"input": [[0, 0]], "output": [[3, 0]]}], "test": []}, "fill")
    config = ArcConfig(
        dataset={"max_grid_height": 2, "max_grid_width": 3},
        episode={"max_episode_steps": 4},
        action={"selection_format": selection, "allowed_operations": (2, 3, 34)},
    )
    return ArcEnvironment.create(config, task)


def proofs() -> ProofEnvironment:
    """Four people in a line; a grandparent is a parent's parent; two steps at most."""
    facts = tuple(map(parse_atom, ("parent(a,b)", "parent(b,c)", "parent(c,d)")))
    queries = tuple(map(parse_atom, ("grandparent(a,c)", "grandparent(b,d)")))
    rule = parse_rule("r0:1.0:parent(x,y), parent(y,z) -> grandparent(x,z)")
    knowledge = KnowledgeBase(train=facts, valid=queries, test=(), rules=(rule,))
    config = ProofConfig(padding_states=4, padding_atoms=3, max_depth=2)
    return ProofEnvironment.from_data(config, DataHandler.from_knowledge(knowledge), "valid")
