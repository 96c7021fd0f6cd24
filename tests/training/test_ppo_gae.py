"""Generalized advantage estimation, compared with values by hand, a reference loop, and TorchRL."""

import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from phalanx.training.ppo import gae

NO, YES = False, True
jit_gae = jax.jit(gae, static_argnums=(5, 6))


def reference_gae(rewards, values, next_values, terminated, done, gamma, gae_lambda) -> np.ndarray:
    """Compute the advantages with a backward loop over each environment, in double precision."""
    advantages = np.zeros(rewards.shape)
    steps, batch = rewards.shape
    for b in range(batch):
        advantage = 0.0
        for t in reversed(range(steps)):
            next_value = 0.0 if terminated[t, b] else float(next_values[t, b])
            if done[t, b]:
                advantage = 0.0
            advantage = (
                float(rewards[t, b])
                + gamma * next_value
                - float(values[t, b])
                + gamma * gae_lambda * advantage
            )
            advantages[t, b] = advantage
    return advantages


def random_case(seed: int, steps: int, batch: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(3, steps, batch)).astype(np.float32)
    terminated, truncated = rng.random((2, steps, batch)) < 0.25
    return *numbers, terminated, terminated | truncated


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([(1, 1), (1, 3), (4, 1), (6, 5)]),
    st.sampled_from([(0.99, 0.95), (1.0, 1.0), (0.9, 0.0), (0.0, 0.5)]),
)
def test_advantages_match_a_reference_loop(
    seed: int, shape: tuple[int, int], discounts: tuple[float, float]
) -> None:
    case = random_case(seed, *shape)
    advantages, targets = jit_gae(*case, *discounts)
    np.testing.assert_allclose(advantages, reference_gae(*case, *discounts), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(targets, np.asarray(advantages) + case[1], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["generalized_advantage_estimate", "vec_generalized_advantage_estimate"])
@pytest.mark.parametrize("seed", range(3))
def test_advantages_match_torchrl(name: str, seed: int) -> None:
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("torchrl.objectives.value.functional")
    rewards, values, next_values, terminated, done = case = random_case(seed, 12, 7)
    # TorchRL expects [batch, time, 1].
    tensors = [torch.from_numpy(np.ascontiguousarray(array.T[..., None])) for array in case]
    expected = getattr(functional, name)(
        0.97,
        0.9,
        state_value=tensors[1],
        next_state_value=tensors[2],
        reward=tensors[0],
        done=tensors[4],
        terminated=tensors[3],
    )
    advantages_and_targets = jit_gae(rewards, values, next_values, terminated, done, 0.97, 0.9)
    for array, tensor in zip(advantages_and_targets, expected, strict=True):
        np.testing.assert_allclose(array, tensor.squeeze(-1).numpy().T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("terminated", "advantages"),
    [
        # 1 + 0.5 * 8 - 2 = 3, and before it 1 + 0.5 * 2 - 4 + 0.5 * 0.5 * 3 = -1.25
        pytest.param(NO, [-1.25, 3.0], id="truncated"),
        # 1 - 2 = -1, and before it 1 + 0.5 * 2 - 4 + 0.5 * 0.5 * -1 = -2.25
        pytest.param(YES, [-2.25, -1.0], id="terminated"),
    ],
)
def test_truncation_bootstraps_and_termination_does_not(terminated: bool, advantages: list[float]) -> None:
    by_name = jax.jit(functools.partial(gae, gamma=0.5, gae_lambda=0.5))
    got, targets = by_name(
        rewards=np.array([[1.0], [1.0]], np.float32),
        values=np.array([[4.0], [2.0]], np.float32),
        next_values=np.array([[2.0], [8.0]], np.float32),
        terminated=np.array([[NO], [terminated]]),
        done=np.array([[NO], [YES]]),
    )
    assert np.asarray(got)[:, 0].tolist() == advantages
    assert np.asarray(targets)[:, 0].tolist() == [advantages[0] + 4, advantages[1] + 2]


@pytest.mark.parametrize("terminated", [NO, YES])
def test_next_episode_does_not_affect_the_advantages_of_the_previous_one(terminated: bool) -> None:
    def first_advantage(later_reward: float) -> float:
        zeros = np.zeros((2, 1), np.float32)
        rewards = np.array([[1.0], [later_reward]], np.float32)
        ended = np.array([[terminated], [NO]]), np.array([[YES], [NO]])
        return float(np.asarray(jit_gae(rewards, zeros, zeros, *ended, 0.9, 0.9)[0])[0, 0])

    assert first_advantage(0.0) == first_advantage(1000.0) == 1.0


def arrays_with_one_other_shape(index: int, shape: tuple[int, ...]) -> list[Any]:
    arrays = [np.zeros((3, 2), np.float32)] * 3 + [np.zeros((3, 2), bool)] * 2
    arrays[index] = np.zeros(shape, arrays[index].dtype)
    return [jax.device_put(array) for array in arrays]


@pytest.mark.parametrize("shape", [(3, 2, 1), (3, 1), (1, 2), (2, 3), (6,)])
@pytest.mark.parametrize("index", range(5))
def test_array_of_another_shape_is_rejected(index: int, shape: tuple[int, ...]) -> None:
    arrays = arrays_with_one_other_shape(index, shape)
    with pytest.raises(TypeError):  # raised by the shape annotations, which are checked in tests
        gae(*arrays, 0.9, 0.9)
    with pytest.raises(ValueError, match=r"must all have one shape \[time, batch\], got .*\[3, 2\]"):
        inspect.unwrap(gae)(*arrays, 0.9, 0.9)


def test_arrays_with_a_trailing_dimension_are_rejected() -> None:
    arrays = [jnp.zeros((3, 2, 1))] * 3 + [jnp.zeros((3, 2, 1), bool)] * 2
    with pytest.raises(TypeError):
        gae(*arrays, 0.9, 0.9)
    with pytest.raises(ValueError, match=r"\[3, 2, 1\]"):
        inspect.unwrap(gae)(*arrays, 0.9, 0.9)
