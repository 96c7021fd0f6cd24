"""The CartPole example has the dynamics of CartPole-v1, and PPO trains on it with one compiled program."""

import math
import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.core.testing import check_environment
from phalanx.training import PPO, PPOConfig
from tests.helpers.compilations import compiled_programs
from tests.helpers.example_runs import EXAMPLES

pytestmark = pytest.mark.slow

CartPole = runpy.run_path(str(EXAMPLES / "custom" / "cartpole.py"))["CartPole"]


def reference_step(state: list[float], action: int) -> tuple[list[float], bool]:
    """One step of CartPole-v1 in double precision, after Barto, Sutton and Anderson (1983)."""
    x, x_dot, theta, theta_dot = state
    force = 10.0 if action == 1 else -10.0
    temp = (force + 0.05 * theta_dot**2 * math.sin(theta)) / 1.1
    theta_acc = (9.8 * math.sin(theta) - math.cos(theta) * temp) / (
        0.5 * (4.0 / 3.0 - 0.1 * math.cos(theta) ** 2 / 1.1)
    )
    x_acc = temp - 0.05 * theta_acc * math.cos(theta) / 1.1
    after = [x + 0.02 * x_dot, x_dot + 0.02 * x_acc, theta + 0.02 * theta_dot, theta_dot + 0.02 * theta_acc]
    return after, abs(after[0]) > 2.4 or abs(after[2]) > 12 * 2 * math.pi / 360


def test_random_episodes_equal_those_of_a_plain_reference() -> None:
    environment, num_steps = CartPole(), 60
    keys = jax.random.split(jax.random.key(1), 20)
    actions = np.random.default_rng(0).integers(0, 2, (num_steps, len(keys)), np.int32)

    @jax.jit
    def run(keys: jax.Array, actions: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        states, first = environment.batch_reset(keys)

        def step(states, actions):
            states, *result, _ = environment.batch_step(states, actions)
            return states, (*result, states.truncated)

        return first, jax.lax.scan(step, states, actions)[1]

    first, (observations, rewards, dones, truncated) = jax.device_get(run(keys, actions))
    assert np.abs(first).max() <= 0.05 and np.abs(first).max() > 0.03
    assert not truncated.any() and dones[-1].sum() > 15
    for row, start in enumerate(first):
        state, over = start.astype(float).tolist(), False
        for time, action in enumerate(actions[:, row]):
            assert rewards[time, row] == (0.0 if over else 1.0)
            if not over:
                state, over = reference_step(state, int(action))
            np.testing.assert_allclose(observations[time, row], state, rtol=1e-4, atol=1e-5)
            assert dones[time, row] == over


def test_episodes_end_at_the_edges_and_after_500_steps() -> None:
    environment = CartPole()
    state, _ = environment.reset(jax.random.key(0))
    zero = jnp.float32(0)

    def after(**fields: float) -> tuple[bool, bool]:
        values = {name: jnp.float32(value) for name, value in fields.items()}
        base = {"position": zero, "velocity": zero, "angle": zero, "angular_velocity": zero}
        placed = type(state)(**{**base, **values}, step_count=jnp.int32(498))
        steps = [environment.step(placed, 1)[0]]
        steps.append(environment.step(steps[0], 0)[0])
        return bool(steps[0].terminated), bool(steps[1].truncated)

    assert after() == (False, True)
    assert after(position=2.41) == after(position=-2.41) == (True, False)
    assert after(angle=math.radians(12.1)) == after(angle=-math.radians(12.1)) == (True, False)
    assert after(position=2.39) == after(angle=math.radians(11.5)) == (False, True)


def test_it_conforms_and_draws_itself() -> None:
    report = check_environment(CartPole(), batch_size=2, num_steps=50)
    assert "check_render_modes" in report.passed


def test_an_update_is_one_compiled_program(caplog: pytest.LogCaptureFixture) -> None:
    ppo = PPO(PPOConfig(num_envs=4, num_steps=8, num_updates=3, num_minibatches=2), CartPole())
    state = ppo.init(jax.random.key(0))
    with compiled_programs(caplog) as names:
        for _ in range(3):
            state, _ = ppo.update(state)
    assert len(names) == 1, names
