"""Both backends reject invalid actions and states, or treat them as invalid steps."""

import dataclasses
import functools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from phalanx.arc import (
    ArcConfig,
    ArcEnvironment,
    ArcState,
    BboxAction,
    DatasetConfig,
    MaskAction,
    ObservationConfig,
    PointAction,
    TaskBuffer,
)
from phalanx.native import is_native_available, native_unavailable_reason
from tests.helpers.arc_scenarios import random_tasks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_native_available(), reason=f"native backend: {native_unavailable_reason()}"),
]

CANVAS = DatasetConfig(max_grid_height=7, max_grid_width=6)
BATCH = 5
EXTREMES = (0, 1, 2, 5, 6, 7, 29, 30, 31, 32, 33, 63, 64, 1000, 2**31 - 1, -1, -2, -31, -(2**31))
EXAMPLES = int(os.environ.get("PHALANX_FUZZ", "60"))
RUNS = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def create_config(backend: str = "native", **sections: object) -> ArcConfig:
    return ArcConfig(**{"backend": backend, "dataset": CANVAS, **sections})


@functools.cache
def tasks(count: int = 12) -> TaskBuffer:
    return TaskBuffer.from_tasks(random_tasks((7, 6), with_all_kinds=False)[:count])


@functools.cache
def batch(environment: ArcEnvironment, size: int = BATCH) -> ArcState:
    return jax.jit(environment.batch_reset)(jax.random.split(jax.random.PRNGKey(1), size))[0]


@functools.cache
def single(environment: ArcEnvironment) -> ArcState:
    return jax.jit(environment.reset)(jax.random.key(0))[0]


def build_action(action: Any, *leaves: Any) -> Any:
    """Build an action from leaves without calling its constructor or checking types."""
    return jax.tree.unflatten(jax.tree.structure(action), leaves)


POINT, BOX = PointAction(0, 0, 0), BboxAction(0, 0, 0, 0, 0)
MASK = MaskAction(0, jnp.zeros((7, 6), bool))
EIGHT = jnp.zeros(8, jnp.int32)

WRONG_SHAPES = {
    "one state with 4 actions": ((), build_action(POINT, *[jnp.zeros(4, jnp.int32)] * 3)),
    "8 states with one action": ((8,), POINT),
    "8 states with actions [8, 3]": ((8,), build_action(POINT, *[jnp.zeros((8, 3), jnp.int32)] * 3)),
    "a row [8, 2] with an operation [8]": (
        (8,),
        build_action(POINT, EIGHT, jnp.zeros((8, 2), jnp.int32), EIGHT),
    ),
    "one corner without batch": ((8,), build_action(BOX, EIGHT, EIGHT, EIGHT, EIGHT, jnp.int32(0))),
    "9 masks": ((8,), build_action(MASK, EIGHT, jnp.zeros((9, 7, 6), bool))),
    "masks of another canvas": ((8,), build_action(MASK, EIGHT, jnp.zeros((8, 6, 7), bool))),
    "one mask for all": ((8,), build_action(MASK, EIGHT, jnp.zeros((7, 6), bool))),
    "no batch": ((0,), build_action(POINT, EIGHT, EIGHT, EIGHT)),
}


@pytest.mark.parametrize("backend", ["native", "xla"])
@pytest.mark.parametrize("case", list(WRONG_SHAPES))
def test_actions_of_wrong_shape_are_rejected(case: str, backend: str) -> None:
    shape, action = WRONG_SHAPES[case]
    environment = ArcEnvironment.create(create_config(backend), tasks())
    states = batch(environment, shape[0]) if shape else single(environment)
    with pytest.raises(ValueError, match=r"has shape .*expected|the mask has shape"):
        environment.step(states, action)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "bool"])
@pytest.mark.parametrize("action", [POINT, BOX, MASK], ids=lambda action: type(action).__name__)
def test_actions_of_wrong_dtype_are_rejected(action: Any, dtype: str) -> None:
    environment = ArcEnvironment.create(create_config(), tasks())
    state = single(environment)
    for field in dataclasses.fields(action):
        if field.name == "selection" and dtype == "bool":
            continue
        values = {other.name: getattr(action, other.name) for other in dataclasses.fields(action)}
        values[field.name] = jnp.asarray(values[field.name], dtype)
        message = f"consists of (integers|booleans), got {dtype}"
        with pytest.raises(TypeError, match=message):
            type(action)(**values)
        # Runtime type checking, which the tests enable, rejects such a mask first.
        with pytest.raises(TypeError, match=None if field.name == "selection" else message):
            environment.step(state, build_action(action, *values.values()))
    with pytest.raises(TypeError, match="got float64"):
        PointAction(0.5, 0, 0)


def test_values_beyond_int32_are_invalid_and_do_not_wrap_around() -> None:
    environment = ArcEnvironment.create(create_config(), tasks())
    state = single(environment)
    for huge in (2**32, 2**32 + 3, -(2**32), 2**63 - 1, np.uint32(2**32 - 1), np.uint64(2**64 - 1)):
        for action in (PointAction(huge, 0, 0), PointAction(0, huge, 0), PointAction(0, 0, huge)):
            assert int(environment.step(state, action)[4].operation_type) == -1
    for small in (np.int8(3), np.uint8(3), np.int64(3), 3):
        assert int(environment.step(state, PointAction(small, small, small))[4].operation_type) == 3


@pytest.mark.parametrize("backend", ["native", "xla"])
def test_states_with_invalid_leaves_are_rejected(backend: str) -> None:
    environment = ArcEnvironment.create(create_config(backend), tasks())
    states = batch(environment)
    action = PointAction(*np.zeros((3, BATCH), np.int32))
    keys = jax.random.split(jax.random.key(0), BATCH)
    for changes in (
        {"registers": states.registers.astype(jnp.float32)},
        {"registers": states.registers[:, :7]},
        {"registers": states.registers[:3]},
        {"boards": states.boards.astype(jnp.int32)},
        {"boards": states.boards[:, :9]},
        {"boards": states.boards[:2]},
        {"similarity": states.similarity.astype(jnp.float16)},
        {"boards": jnp.zeros((BATCH, 10, 6), jnp.uint32)},
        {"columns": 7},
    ):
        broken = object.__new__(ArcState)
        vars(broken).update(vars(states), **changes)
        with pytest.raises(ValueError, match=r"must be .* of shape|the states have a canvas"):
            environment.step(broken, action)
        with pytest.raises(ValueError, match=r"must be .* of shape|the states have a canvas"):
            environment.batch_reset_where(jnp.ones(BATCH, bool), keys, broken, states.working_grid)


@pytest.mark.parametrize("backend", ["native", "xla"])
def test_states_of_larger_buffer_are_invalid_in_smaller_one(backend: str) -> None:
    large, small = (ArcEnvironment.create(create_config(backend), tasks(count)) for count in (12, 1))
    states = large.detach_names(batch(large, 40))
    out_of_range = np.asarray(states.task_index) > 0
    assert out_of_range.any() and not out_of_range.all()
    fill = PointAction(*np.zeros((3, 40), np.int32))
    after, observations, rewards, _, info = jax.jit(small.batch_step)(states, fill)
    assert (np.asarray(info.operation_type) == np.where(out_of_range, -1, 0)).all()
    assert (np.asarray(rewards)[out_of_range] == -1.0).all()
    before, boards = np.asarray(states.working_grid), np.asarray(states.boards)
    np.testing.assert_array_equal(np.asarray(after.boards)[out_of_range], boards[out_of_range])
    np.testing.assert_array_equal(np.asarray(observations)[out_of_range], before[out_of_range])


@pytest.mark.parametrize("backend", ["native", "xla"])
def test_empty_batch_can_be_reset_and_stepped(backend: str) -> None:
    observation_config = ObservationConfig(
        input_grid=True, target_grid=True, selected=True, num_demonstrations=2, scalars=True
    )
    for sections in ({}, {"observation": observation_config}):
        environment = ArcEnvironment.create(create_config(backend, **sections), tasks())
        states, observations = jax.jit(environment.batch_reset)(jax.random.split(jax.random.key(0), 0))
        action = PointAction(*np.zeros((3, 0), np.int32))
        states, observations, rewards, dones, _ = jax.jit(environment.batch_step)(states, action)
        assert states.batch_shape == rewards.shape == dones.shape == (0,)
        assert all(leaf.shape[0] == 0 for leaf in jax.tree.leaves(observations))


integers = st.sampled_from(EXTREMES) | st.integers(-(2**31), 2**31 - 1)


def draw_array(data: st.DataObject, shape: tuple[int, ...], values: Any, dtype: Any) -> np.ndarray:
    count = int(np.prod(shape))
    return np.array(data.draw(st.lists(values, min_size=count, max_size=count)), dtype).reshape(shape)


def insert_extremes(data: st.DataObject, array: Any, at_most: int = 12) -> jax.Array:
    """Replace a few elements of an array with extreme values."""
    changed = np.array(array)
    flat = changed.reshape(-1)
    if flat.size:
        indices = data.draw(st.lists(st.integers(0, flat.size - 1), max_size=at_most))
        flat[indices] = [data.draw(integers) for _ in indices]
    return jax.device_put(changed)


@functools.cache
def first_states() -> ArcState:
    environment = ArcEnvironment.create(create_config(), tasks())
    return environment.detach_names(batch(environment))


@functools.cache
def compiled_step(backend: str) -> Callable[..., Any]:
    return jax.jit(ArcEnvironment.create(create_config(backend), tasks()).batch_step)


@RUNS
@given(st.data())
def test_backends_treat_corrupt_registers_as_invalid_states(data: st.DataObject) -> None:
    """With arbitrary registers and valid tasks, both backends give the same results."""
    results = []
    states = first_states()
    registers = insert_extremes(data, states.registers)
    states = dataclasses.replace(states, registers=registers)
    fields = [jnp.asarray(draw_array(data, (BATCH,), integers, np.int64)) for _ in range(4)]
    operation = jnp.asarray(draw_array(data, (BATCH,), st.integers(-1, 42) | integers, np.int64))
    for backend in ("native", "xla"):
        results.append(compiled_step(backend)(states, BboxAction(operation, *fields)))
    for native, xla in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(native, xla, rtol=1e-6, atol=1e-6)


PROGRAM = """
import jax, jax.numpy as jnp
from phalanx.arc import ArcConfig, ArcEnvironment, PointAction, generate_tasks
from phalanx.arc import batch_reset, batch_step

config, tasks = ArcConfig(), generate_tasks(num_tasks=3)
one, _ = batch_reset(jax.random.split(jax.random.key(0), 1), config, tasks)
eight, _ = batch_reset(jax.random.split(jax.random.key(0), 8), config, tasks)
zeros = lambda *shape: jnp.zeros(shape, jnp.int32)
for states, action in (
    (one[0], lambda: PointAction(zeros(4), zeros(4), zeros(4))),
    (eight, lambda: PointAction(zeros(8, 3), zeros(8, 3), zeros(8, 3))),
    (eight, lambda: PointAction(zeros(8), zeros(8, 2), zeros(8))),
    (eight, lambda: PointAction(jnp.zeros(8), zeros(8), zeros(8))),
):
    try:
        batch_step(states, action(), config)
    except (ValueError, TypeError) as error:
        print(type(error).__name__, str(error).splitlines()[0])
"""


def test_invalid_actions_are_rejected_without_type_checking() -> None:
    process = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    first, second, third, fourth = process.stdout.splitlines()
    assert first.startswith("ValueError PointAction.operation has shape (4,), expected () for a single state")
    assert second.startswith("ValueError PointAction.operation has shape (8, 3), expected (8,) for a batch")
    assert third.startswith("ValueError PointAction.row has shape (8, 2), expected (8,) for a batch")
    assert fourth.startswith("TypeError an action consists of integers, got float32")
