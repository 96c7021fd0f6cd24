"""JaxARC under `jit` + `scan` + `vmap`, with auto-reset by the wrapper chain that its documentation names.

Runs in JaxARC's own virtual environment; see `protocol.py` for how it is driven.
"""

import json
import pathlib
import sys
import time

import protocol

arguments = protocol.parse_arguments(
    "JaxARC runner",
    reset={"default": "auto", "choices": ["auto", "cached", "inline"], "help": "how episodes start again"},
    alone={"action": "store_true", "help": "step one environment without vmap (needs --batch 1)"},
)
if arguments.alone and arguments.batch != 1:
    sys.exit(f"--alone steps one environment, got --batch {arguments.batch}")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jaxarc.envs.actions import Action  # noqa: E402
from jaxarc_environment import make_environment  # noqa: E402
from random_actions import draw_fields  # noqa: E402
from stoa.core_wrappers.auto_reset import AutoResetWrapper, CachedAutoResetWrapper  # noqa: E402
from stoa.core_wrappers.vmap import VmapWrapper  # noqa: E402
from stoa.core_wrappers.wrapper import AddRNGKey  # noqa: E402


def main() -> None:
    task = json.loads(pathlib.Path(arguments.task).read_text())
    batch, grid = arguments.batch, arguments.grid
    environment = make_environment(task, grid, arguments.format, arguments.max_episode_steps)

    if arguments.reset == "auto":
        environment = AutoResetWrapper(AddRNGKey(environment))
    elif arguments.reset == "cached":
        environment = CachedAutoResetWrapper(AddRNGKey(environment))
    # The documented chain ends in vmap, at one environment too. Without it `cond` and `switch` run one branch
    # instead of all, which is the faster way to step a single environment: `--alone`.
    vectorised = environment if arguments.alone else VmapWrapper(environment, num_envs=batch)

    def step(states, timesteps, actions, counter):
        if arguments.reset != "inline":
            return vectorised.step(states, actions)

        # The loop of JaxARC's own published benchmark: start again before the step, where the last one ended.
        def one(state, timestep, action, key):
            state, _ = jax.lax.cond(
                timestep.last(), lambda s, t: environment.reset(key), lambda s, t: (s, t), state, timestep
            )
            return environment.step(state, action)

        keys = jax.random.split(jax.random.PRNGKey(counter), batch)
        if arguments.alone:
            return one(states, timesteps, actions, keys[0])
        return jax.vmap(one)(states, timesteps, actions, keys)

    def body(carry, counter):
        states, timesteps, checksum, seed = carry
        seen = timesteps.observation[..., grid[0] // 2, grid[1] // 2, 0].reshape(batch)
        fields = draw_fields(seed, counter, seen, grid, arguments.format)
        if arguments.alone:
            fields = jax.tree.map(lambda x: x[0], fields)
        actions = Action(**fields) if arguments.format == "mask" else fields
        states, timesteps = step(states, timesteps, actions, counter)
        return (states, timesteps, checksum + timesteps.reward.sum(), seed), None

    @jax.jit
    def run(states, timesteps, seed):
        carry = (states, timesteps, jnp.float32(0), seed)
        (states, timesteps, checksum, _), _ = jax.lax.scan(
            body, carry, jnp.arange(arguments.steps, dtype=jnp.uint32)
        )
        return states, timesteps, checksum

    states, timesteps = jax.jit(vectorised.reset)(jax.random.PRNGKey(arguments.seed))
    start = time.perf_counter()
    compiled = run.lower(states, timesteps, jnp.uint32(0)).compile()
    compile_seconds = time.perf_counter() - start
    carry = [states, timesteps, jnp.uint32(0)]

    def call() -> None:
        states, timesteps, checksum = compiled(*carry)
        jax.block_until_ready((states, timesteps, checksum))
        carry[:] = states, timesteps, carry[2] + jnp.uint32(1)

    protocol.serve(
        call,
        arguments.steps * batch,
        arguments.seconds,
        peer="jaxarc",
        steps_per_call=arguments.steps,
        compile_seconds=compile_seconds,
        reset=arguments.reset,
        vmapped=not arguments.alone,
        jax=jax.__version__,
        python=sys.version.split()[0],
        state_bytes=sum(leaf.nbytes for leaf in jax.tree.leaves(states)) // batch,
    )


main()
