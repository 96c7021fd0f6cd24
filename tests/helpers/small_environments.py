"""One environment of each kind for the integrations: array observations, ARC and proofs.

All are small enough to be followed by hand, and their episodes end within a few steps.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from phalanx.arc.config import ArcConfig
from phalanx.arc.env import ArcEnvironment
from phalanx.arc.tasks import ArcTask
from phalanx.core.environment import Key
from phalanx.core.spaces import Box, Space
from phalanx.kg.atoms import parse_atom, parse_rule
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.env import ProofEnvironment
from tests.helpers.short_walk import LEFT as LEFT, RIGHT as RIGHT, ShortWalk, WalkState

CELLS = 5


class Lane(ShortWalk):
    """A short walk without a mask of legal actions. Walking left in cell 0 has no effect.

    The observation is an array: a one-hot encoding of the position, then the number of steps.
    """

    max_episode_steps: int = 6
    num_cells: int = CELLS
    step_reward: float = -0.125

    @property
    def observation_space(self) -> Space:
        return Box(0, self.max_episode_steps, (self.num_cells + 1,), np.int32)

    def transition(self, state: WalkState, action: Int32[Array, ""]) -> tuple[WalkState, Array, Array]:
        state, reward, terminated = super().transition(state, action)
        return WalkState(jnp.maximum(state.position, 0)), reward, terminated

    def observe(self, state: WalkState) -> Int32[Array, " features"]:
        return jnp.append((jnp.arange(self.num_cells) == state.position).astype(jnp.int32), state.step_count)

    def sample_action(self, key: Key, state: WalkState) -> Int32[Array, ""]:
        # Right with probability 2/3, so that some episodes terminate and others are truncated.
        return (jax.random.key_data(key)[-1] % 3 > 0).astype(jnp.int32)


def arc(selection: str = "point") -> ArcEnvironment:
    """Create an ARC task: fill the left one of two cells with 3, with operations 2, 3 and 34 (submit)."""
    task = ArcTask.from_dict({"train": [{"input": [[0, 0]], "output": [[3, 0]]}], "test": []}, "fill")
    config = ArcConfig(
        dataset={"max_grid_height": 2, "max_grid_width": 3},
        episode={"max_episode_steps": 4},
        action={"selection_format": selection, "allowed_operations": (2, 3, 34)},
    )
    return ArcEnvironment.create(config, task)


def proofs() -> ProofEnvironment:
    """Create a proof environment about the grandparents of four people, with at most two steps."""
    facts = tuple(map(parse_atom, ("parent(a,b)", "parent(b,c)", "parent(c,d)")))
    queries = tuple(map(parse_atom, ("grandparent(a,c)", "grandparent(b,d)")))
    rule = parse_rule("r0:1.0:parent(x,y), parent(y,z) -> grandparent(x,z)")
    knowledge = KnowledgeBase(train=facts, valid=queries, test=(), rules=(rule,))
    config = ProofConfig(max_actions=4, max_goals=3, max_episode_steps=2)
    return ProofEnvironment.from_knowledge_base(knowledge, config, "valid")
