"""PPO in JaxARC's environment. Runs in JaxARC's virtual environment.

The network and the PPO update are those of Phalanx, whose Python files are imported from the source tree.
Only the environment differs, so the comparison shows how the environment affects the speed of training.
"""

import dataclasses
import pathlib
import sys
from typing import Any

from benchmarks.workers import protocol  # isort: skip  # first, because it redirects standard output

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "src"))

import jax
import jax.numpy as jnp

from benchmarks.workers.arc_ppo import PPOUpdates, load_config
from benchmarks.workers.arc_task import checkerboard_task
from benchmarks.workers.jaxarc_env import make_environment
from phalanx.core import Environment, EpisodeState
from phalanx.core.vector import select_rows

RESET_RATIO = 16


class JaxArcState(EpisodeState):
    """JaxARC's state, with the flags that training reads."""

    state: Any


class JaxArcEnvironment(Environment):
    """JaxARC's environment with the interface of `phalanx.core.Environment`."""

    environment: Any
    """JaxARC's environment."""
    vectorize: str
    """`vmap` steps all environments at once, as in JaxARC's documentation. XLA then computes all operations,
    and a reset, for every environment. `vmap-optimistic` is the same with one reset for 16 environments, as
    in Stoa's `OptimisticResetVmapWrapper`. `map` steps one environment after the other, so that only the
    chosen operation is computed."""
    max_episode_steps: int

    @property
    def observation_space(self):
        raise NotImplementedError("PPO does not use it")

    @property
    def action_space(self):
        raise NotImplementedError("PPO does not use it")

    def initial_state(self, key):
        # JaxARC requires keys of the old type.
        state, _ = self.environment.reset(jax.random.key_data(key))
        return JaxArcState(state)

    def transition(self, state, action):
        raise NotImplementedError("the kernel replaces it")

    def observe(self, state):
        grid, mask = state.state.working_grid, state.state.working_grid_mask
        return jnp.where(mask, grid, -1).astype(jnp.int8)

    def metrics(self, state):
        similarity = state.state.similarity_score
        return {"success": state.terminated & (similarity >= 1.0), "similarity": similarity}

    def kernel(self):
        return JaxArcKernel(self)


@dataclasses.dataclass(frozen=True)
class JaxArcKernel:
    """Resets and steps batches of environments as JaxARC and Stoa do."""

    environment: JaxArcEnvironment

    def reset(self, keys):
        return jax.vmap(self.reset_one)(keys)

    def reset_one(self, key):
        state = jax.tree.map(jnp.asarray, self.environment.initial_state(key))
        return state, self.environment.observe(state)

    def step(self, states, actions):
        if self.environment.vectorize != "map":
            return jax.vmap(self.step_one)(states, actions)
        return jax.lax.map(lambda pair: self.step_one(*pair), (states, actions))

    def step_one(self, before, action):
        fields = {"operation": action.operation, "row": action.row, "col": action.col}
        state, timestep = self.environment.environment.step(before.state, fields)
        flags = {"terminated": timestep.terminated(), "truncated": timestep.truncated()}
        after = JaxArcState(state, step_count=before.step_count + 1, **flags)
        done = after.terminated | after.truncated
        return after, self.environment.observe(after), timestep.reward, done, after

    def reset_where(self, mask, keys, states, observations):
        if self.environment.vectorize == "vmap":
            return select_rows(mask, self.reset(keys), (states, observations))
        if self.environment.vectorize == "vmap-optimistic":
            return self.optimistic_reset(mask, keys, states, observations)

        def one(row):
            mask, key, old = row
            return jax.lax.cond(mask, lambda: self.reset_one(key), lambda: old)

        return jax.lax.map(one, (mask, keys, (states, observations)))

    def optimistic_reset(self, mask, keys, states, observations):
        """Reset like `stoa.core_wrappers.optimistic_auto_reset`, which also steps the environments."""
        num_envs = len(mask)
        ratio = min(RESET_RATIO, num_envs)
        num_resets = num_envs // ratio
        resets = self.reset(keys[:num_resets])
        # If at most `num_resets` episodes end, each gets its own reset. Otherwise, some share one.
        weights = mask.astype(jnp.float32)
        chosen = jax.random.choice(keys[-1], num_envs, (num_resets,), replace=False, p=weights)
        source = jnp.arange(num_resets).repeat(ratio).at[chosen].set(jnp.arange(num_resets))

        def select(new, old):
            return jnp.where(mask.reshape(-1, *(1,) * (old.ndim - 1)), new[source], old)

        return jax.tree.map(select, resets, (states, observations))


def main() -> None:
    settings = protocol.read_settings(__doc__)
    size = settings["size"]
    config = load_config(settings["network"], size, settings["num_envs"], settings["num_steps"])
    max_episode_steps = config.env.settings.episode.max_episode_steps
    environment = make_environment(checkerboard_task(size), (size, size), "point", max_episode_steps)
    environment = JaxArcEnvironment(environment, settings["vectorize"], max_episode_steps)
    updates = PPOUpdates(config, environment)
    protocol.serve(
        updates.run,
        config.steps_per_update,
        settings["seconds"],
        num_parameters=updates.num_parameters,
        jax=jax.__version__,
        python=sys.version.split()[0],
    )


if __name__ == "__main__":
    main()
