"""Step JaxARC environments with random actions under `jit` and `scan`.

Setting `vectorize` selects how a batch is stepped:
    vmap: The documented chain of wrappers, `VmapWrapper(AutoResetWrapper(AddRNGKey(env)))`, which computes a
        reset for every environment in every step.
    vmap-optimistic: Stoa's `OptimisticResetVmapWrapper`, as Stoix uses it. It computes one reset for 16
        environments in every step. Environments that end in the same step may start from the same state.
    vmap-cached: Stoa's `CachedAutoResetWrapper`, which Stoix uses with `use_cached_auto_reset`. It computes
        no resets: an environment always starts again from its first state.
    map: `jax.lax.map` over single environments instead of `vmap`, so that `lax.cond` executes only the
        selected operation. The environments are stepped one after the other. XLA still uses up to two cores
        within a step, so this does not measure the speed of one core.
    map-cached: `jax.lax.map` with `CachedAutoResetWrapper`.

Setting `num_devices` distributes the environments over several XLA devices of the CPU with `pmap`. It
requires `XLA_FLAGS=--xla_force_host_platform_device_count=N`.
"""

import importlib.metadata
import sys

import jax
import jax.numpy as jnp
from jaxarc.configs import JaxArcConfig
from jaxarc.configs.dataset_config import DatasetConfig
from jaxarc.configs.environment_config import EnvironmentConfig
from jaxarc.configs.grid_initialization_config import GridInitializationConfig
from jaxarc.envs import BboxActionWrapper, Environment, PointActionWrapper
from jaxarc.envs.actions import Action
from jaxarc.parsers.base_parser import ArcDataParserBase
from jaxarc.utils.buffer import stack_task_list
from loguru import logger
from stoa.core_wrappers.auto_reset import AutoResetWrapper, CachedAutoResetWrapper
from stoa.core_wrappers.optimistic_auto_reset import OptimisticResetVmapWrapper
from stoa.core_wrappers.vmap import VmapWrapper
from stoa.core_wrappers.wrapper import AddRNGKey

from benchmarks.workers import protocol
from benchmarks.workers.arc_task import checkerboard_task
from benchmarks.workers.random_actions import random_fields

logger.remove()
# stoa 0.1.2 uses this name, which JAX has removed.
jax.tree_map = jax.tree.map


def make_environment(task, grid, selection_format, max_episode_steps=100):
    """Return an environment with a single task. Its buffers are not larger than the task requires."""
    dataset = DatasetConfig(
        max_grid_height=grid[0],
        max_grid_width=grid[1],
        min_grid_height=1,
        min_grid_width=1,
        max_train_pairs=len(task["train"]),
        max_test_pairs=len(task["test"]),
    )
    config = JaxArcConfig(
        environment=EnvironmentConfig(max_episode_steps=max_episode_steps, debug_level="off"),
        dataset=dataset,
        grid_initialization=GridInitializationConfig(
            demo_weight=1.0, permutation_weight=0.0, empty_weight=0.0, random_weight=0.0
        ),
    )
    parser = ArcDataParserBase(dataset)
    buffer = stack_task_list([parser.preprocess_task_data(task, jax.random.PRNGKey(0), "task")])
    environment = Environment(config, buffer)
    wrapper = {"point": PointActionWrapper, "bbox": BboxActionWrapper}.get(selection_format)
    return environment if wrapper is None else wrapper(environment)


def main() -> None:
    settings = protocol.read_settings(__doc__)
    num_devices = settings.get("num_devices", 1)
    grid, num_envs, num_steps = tuple(settings["grid"]), settings["num_envs"], settings["num_steps"]
    selection_format = settings.get("selection_format", "bbox")
    vectorize = settings["vectorize"]
    single = AddRNGKey(make_environment(checkerboard_task(grid[0]), grid, selection_format))
    environment = (CachedAutoResetWrapper if vectorize.endswith("cached") else AutoResetWrapper)(single)
    if vectorize == "vmap-optimistic":
        batched = OptimisticResetVmapWrapper(single, num_envs, min(16, num_envs))
    else:
        batched = VmapWrapper(environment, num_envs=num_envs)

    def step(states, actions):
        if vectorize.startswith("map"):
            return jax.lax.map(lambda inputs: environment.step(*inputs), (states, actions))
        return batched.step(states, actions)

    def body(carry, counter):
        states, timesteps, checksum, seed = carry
        cells = timesteps.observation[:, grid[0] // 2, grid[1] // 2, 0]
        fields = random_fields(seed, counter, cells, grid, selection_format)
        actions = Action(**fields) if selection_format == "mask" else fields
        states, timesteps = step(states, actions)
        return (states, timesteps, checksum + timesteps.reward.sum(), seed), None

    def rollout(states, timesteps, seed):
        counters = jnp.arange(num_steps, dtype=jnp.uint32)
        (states, timesteps, checksum, _), _ = jax.lax.scan(
            body, (states, timesteps, jnp.float32(0), seed), counters
        )
        return states, timesteps, checksum

    # The optimistic wrapper cannot be reset under `jit`.
    states, timesteps = batched.reset(jax.random.PRNGKey(0))
    seeds = jnp.uint32(0)
    if num_devices > 1:
        states, timesteps = jax.tree.map(
            lambda array: array.reshape(num_devices, num_envs // num_devices, *array.shape[1:]),
            (states, timesteps),
        )
        seeds = jnp.arange(num_devices, dtype=jnp.uint32)
        compiled = jax.pmap(rollout, donate_argnums=(0, 1))
    else:
        compiled = jax.jit(rollout, donate_argnums=(0, 1))
    # A wrapper may return the same array in several places, but a buffer can be donated only once.
    carry = [*jax.tree.map(jnp.copy, (states, timesteps)), seeds]

    def run() -> None:
        states, timesteps, checksum = compiled(*carry)
        jax.block_until_ready((states, timesteps, checksum))
        carry[:] = states, timesteps, carry[2] + jnp.uint32(num_devices)

    protocol.serve(
        run,
        num_steps * num_envs,
        settings["seconds"],
        jax=jax.__version__,
        stoa=importlib.metadata.version("stoa-env"),
        python=sys.version.split()[0],
    )


if __name__ == "__main__":
    main()
