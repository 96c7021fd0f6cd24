"""PPO in JaxARC's environment. Runs in JaxARC's virtual environment.

The network and the PPO update are those of Phalanx, whose Python files are imported from the source tree.
Only the environment differs, so the comparison shows how the environment affects the speed of training.
"""

import pathlib
import sys

from benchmarks.workers import protocol  # isort: skip  # first, because it redirects standard output

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "src"))

import equinox as eqx
import jax
import jax.numpy as jnp

from benchmarks.workers.arc_ppo import PPOUpdates, load_config
from benchmarks.workers.arc_task import checkerboard_task
from benchmarks.workers.jaxarc_env import make_environment
from phalanx.core import Environment

RESET_RATIO = 16


class JaxArcInfo(eqx.Module):
    """Result of a step."""

    terminated: jax.Array
    truncated: jax.Array
    solved: jax.Array
    similarity: jax.Array


class JaxArcEnvironment(Environment):
    """JaxARC's environment with the interface of `phalanx.core.Environment`.

    Args:
        environment: JaxARC's environment.
        vectorize: `vmap` steps all environments at once, as in JaxARC's documentation. XLA then computes all
            operations, and a reset, for every environment. `vmap-optimistic` is the same with one reset for
            16 environments, as in Stoa's `OptimisticResetVmapWrapper`. `map` steps one environment after the
            other, so that only the chosen operation is computed.
    """

    def __init__(self, environment, vectorize) -> None:
        self._environment, self._vectorize = environment, vectorize

    @property
    def observation_space(self):
        raise NotImplementedError("PPO does not use it")

    @property
    def action_space(self):
        raise NotImplementedError("PPO does not use it")

    def sample_action(self, key, state):
        raise NotImplementedError("PPO does not use it")

    def is_done(self, state):
        raise NotImplementedError("auto-reset in the same step does not use it")

    def reset(self, key):
        # JaxARC requires keys of the old type.
        state, _ = self._environment.reset(jax.random.key_data(key))
        return state, self.observe(state)

    def step(self, state, action):
        fields = {"operation": action.operation, "row": action.row, "col": action.col}
        state, timestep = self._environment.step(state, fields)
        terminated, truncated = timestep.terminated(), timestep.truncated()
        solved = terminated & (state.similarity_score >= 1.0)
        info = JaxArcInfo(terminated, truncated, solved, state.similarity_score)
        return state, self.observe(state), timestep.reward, terminated | truncated, info

    def observe(self, state):
        return jnp.where(state.working_grid_mask, state.working_grid, -1).astype(jnp.int8)

    def episode_metrics(self, info):
        return {"success_mask": info.solved, "similarity_scores": info.similarity}

    def batch_step(self, states, actions):
        if self._vectorize != "map":
            return super().batch_step(states, actions)
        return jax.lax.map(lambda pair: self.step(*pair), (states, actions))

    def batch_reset_where(self, mask, keys, states, observations):
        if self._vectorize == "vmap":
            return super().batch_reset_where(mask, keys, states, observations)
        if self._vectorize == "vmap-optimistic":
            return self._optimistic_reset(mask, keys, states, observations)

        def one(row):
            mask, key, old = row
            return jax.lax.cond(mask, lambda: self.reset(key), lambda: old)

        return jax.lax.map(one, (mask, keys, (states, observations)))

    def _optimistic_reset(self, mask, keys, states, observations):
        """Reset like `stoa.core_wrappers.optimistic_auto_reset`, which also steps the environments."""
        num_envs = len(mask)
        ratio = min(RESET_RATIO, num_envs)
        num_resets = num_envs // ratio
        resets = jax.vmap(self.reset)(keys[:num_resets])
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
    max_episode_steps = config.env.episode.max_episode_steps
    environment = make_environment(checkerboard_task(size), (size, size), "point", max_episode_steps)
    updates = PPOUpdates(config, JaxArcEnvironment(environment, settings["vectorize"]))
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
