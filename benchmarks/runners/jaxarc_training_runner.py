"""Phalanx's PPO on JaxARC's environment, through a thin adapter.

Runs in JaxARC's own virtual environment, which has what Phalanx's Python files import; they are read from the
sources. The training is in `training_work.py`.
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "src"))

import training_work

arguments = training_work.parse_arguments(
    "JaxARC training runner",
    reset={"default": "all", "choices": ["all", "ended"], "help": "which environments compute a reset"},
)

import equinox as eqx  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jaxarc_environment import make_environment  # noqa: E402

from phalanx.arc import PointAction  # noqa: E402
from phalanx.core import Environment, Space, map_where  # noqa: E402


class JaxArcInfo(eqx.Module):
    """How the episode stands."""

    terminated: jax.Array
    truncated: jax.Array
    solved: jax.Array
    similarity: jax.Array


class JaxArcEnvironment(Environment):
    """JaxARC's environment as Phalanx's PPO plays it: points, and the working grid with -1 outside it."""

    def __init__(self, environment, reset: str) -> None:
        self._environment = environment
        self._reset = reset

    @property
    def observation_space(self) -> Space:
        raise NotImplementedError("the training does not ask for it")

    @property
    def action_space(self) -> Space:
        raise NotImplementedError("the training does not ask for it")

    def sample_action(self, key, state):
        raise NotImplementedError("the training does not ask for it")

    def reset(self, key):
        # JaxARC takes keys of the older kind only.
        state, _ = self._environment.reset(jax.random.key_data(key))
        return state, self.observe(state)

    def step(self, state, action: PointAction):
        fields = {"operation": action.operation, "row": action.row, "col": action.col}
        state, timestep = self._environment.step(state, fields)
        terminated, truncated = timestep.terminated(), timestep.truncated()
        solved = terminated & (state.similarity_score >= 1.0)
        info = JaxArcInfo(terminated, truncated, solved, state.similarity_score)
        return state, self.observe(state), timestep.reward, terminated | truncated, info

    def observe(self, state):
        return jnp.where(state.working_grid_mask, state.working_grid, -1).astype(jnp.int8)

    def is_done(self, state):
        raise NotImplementedError("JaxARC's state does not know; auto-reset in the same step does not ask")

    def episode_metrics(self, info):
        return {"success_mask": info.solved, "similarity_scores": info.similarity}

    def batch_reset_where(self, mask, keys, states, observations):
        # JaxARC's documented auto-reset computes a new episode for every environment at every step, because
        # `cond` under `vmap` runs both branches; Phalanx's default does the same. `ended` spares it that.
        if self._reset == "all":
            return super().batch_reset_where(mask, keys, states, observations)
        return map_where(self.reset, mask, keys, (states, observations))


def main() -> None:
    task = json.loads(pathlib.Path(arguments.task).read_text())
    environment = make_environment(task, arguments.grid, arguments.format, arguments.max_episode_steps)
    training_work.serve(
        arguments,
        JaxArcEnvironment(environment, arguments.reset),
        peer="jaxarc",
        reset=arguments.reset,
        jax=jax.__version__,
        python=sys.version.split()[0],
    )


main()
