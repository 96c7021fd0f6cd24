"""A batch that is sharded over devices stays sharded and gives the same results as on one device."""

import os
import subprocess
import sys
import textwrap

import pytest

from phalanx.native import is_native_available
from tests.helpers.arc_rollouts import BACKENDS

pytestmark = pytest.mark.slow

PROGRAM = textwrap.dedent("""
    import sys
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import AxisType, NamedSharding, PartitionSpec
    from phalanx.arc import ArcConfig, ArcEnvironment, DatasetConfig, PointAction

    def rollout(environment, keys):
        states, observations = environment.batch_reset(keys)
        cells = jnp.arange(256, dtype=jnp.int32)
        actions = PointAction(jnp.full(256, 34, jnp.int32).at[::2].set(3), cells % 4, cells % 3)
        def body(carry, _):
            states, observations, rewards, done, _ = environment.batch_step(carry[0], actions)
            return environment.batch_reset_where(done, keys, states, observations), rewards
        carry, rewards = jax.lax.scan(body, (states, observations), None, length=4)
        return environment.detach_names(carry[0]), carry[1], rewards

    keys = jax.random.split(jax.random.key(0), 256)
    mesh = jax.make_mesh((2,), ("batch",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("batch"))
    sharded = jax.device_put(keys, sharding)
    for backend in sys.argv[1:]:
        environment = ArcEnvironment.create(
            ArcConfig(backend=backend, dataset=DatasetConfig(max_grid_height=5, max_grid_width=5))
        )
        program = jax.jit(rollout)
        compiled = program.lower(environment, sharded).compile()
        sharded_result, result = compiled(environment, sharded), program(environment, keys)
        for one, other in zip(jax.tree.leaves(sharded_result), jax.tree.leaves(result), strict=True):
            np.testing.assert_array_equal(one, other)
        gathers = compiled.as_text().count("all-gather")
        print(backend, gathers, sharded_result[1].sharding.is_equivalent_to(sharding, 3))
""")


def test_sharded_batch_is_stepped_without_gathering() -> None:
    backends = [backend for backend in BACKENDS if backend != "native" or is_native_available()]
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, *backends],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=os.environ | {"XLA_FLAGS": flags},
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines() == [f"{backend} 0 True" for backend in backends]
