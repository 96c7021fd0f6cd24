"""Environments as traced arguments: tasks and weights can change without recompilation."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.arc import (
    ActionConfig,
    ArcConfig,
    ArcEnvironment,
    ArcState,
    ArcTask,
    BboxAction,
    DatasetConfig,
    EpisodeConfig,
    ObservationConfig,
    RewardConfig,
    TaskBuffer,
    batch_reset,
    batch_step,
    generate_tasks,
    run_episode_batch,
)
from phalanx.core import AutoReset
from phalanx.core.vector import _reset, _step
from tests.helpers.arc_rollouts import BACKENDS, skip_without
from tests.helpers.arc_scenarios import random_tasks

pytestmark = pytest.mark.slow

KEYS = jax.random.split(jax.random.PRNGKey(3), 12)
STEPS = 5
"""Few enough that the actions of all steps (60 per field) are not large constants of a program."""
PADDED_SHAPE = {"num_tasks": 40, "num_pairs": 300, "num_rows": 7}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    skip_without(request.param)
    return request.param


def create_config(backend: str = "auto", **sections: object) -> ArcConfig:
    canvas = DatasetConfig(max_grid_height=7, max_grid_width=6)
    boxes = ActionConfig(selection_format="bbox")
    return ArcConfig(**{"backend": backend, "dataset": canvas, "action": boxes, **sections})


def stage_tasks(number: int, count: int = 9) -> list[ArcTask]:
    """Return the tasks of a stage of a curriculum."""
    tasks = random_tasks((7, 6), with_all_kinds=False)[number * 10 : number * 10 + count]
    return [dataclasses.replace(task, id=f"{task.id}-{number}") for task in tasks]


def random_actions() -> BboxAction:
    """Sample the actions of all steps on the host, because sampling would take long to compile."""
    rng = np.random.default_rng(3)
    operations, sides = rng.integers(0, 34, (STEPS, len(KEYS))), rng.integers(0, 6, (4, STEPS, len(KEYS)))
    return BboxAction(np.where(rng.random(operations.shape) < 0.5, operations % 10, operations), *sides)


ACTIONS = random_actions()


def rollout(environment: ArcEnvironment, keys: jax.Array) -> tuple[ArcState, jax.Array]:
    """Take a few random steps and return the last states and all rewards."""

    def step(states: ArcState, actions: BboxAction) -> tuple[ArcState, jax.Array]:
        states, _, rewards, _, _ = environment.batch_step(states, actions)
        return states, rewards

    return jax.lax.scan(step, environment.batch_reset(keys)[0], ACTIONS)


@functools.cache
def constant_rollout(environment: ArcEnvironment) -> tuple[list[jax.Array], jax.Array]:
    """Run the same rollout with the environment as a constant."""
    states, rewards = jax.jit(lambda keys: rollout(environment, keys))(KEYS)
    return jax.tree.leaves(states), rewards


def with_default_backend(environment: ArcEnvironment) -> ArcEnvironment:
    """Return the environment with the default backend, which compiles faster and gives equal results."""
    config = environment.config.model_copy(update={"backend": "auto"})
    return dataclasses.replace(environment, config=config)


def assert_equal(result: tuple[ArcState, jax.Array], environment: ArcEnvironment) -> None:
    expected = constant_rollout(environment)
    np.testing.assert_allclose(result[1], expected[1], rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(result[0]), expected[0])


def test_curriculum_of_tasks_weights_and_rewards_compiles_once(backend: str) -> None:
    # A new lambda, because `jit(rollout)` would share the cache of other tests.
    compiled = jax.jit(lambda environment, keys: rollout(environment, keys))
    first = TaskBuffer.from_tasks(stage_tasks(0), **PADDED_SHAPE)
    environment = ArcEnvironment.create(create_config(backend), first).with_task_weights(np.ones(9))
    stages = [
        environment,
        environment.with_tasks(stage_tasks(1)),
        environment.with_tasks(stage_tasks(2, count=5)).with_task_weights([0, 1, 0, 2, 0]),
        environment.with_task_weights(np.arange(9)),
        environment.with_reward(similarity_weight=5.0, step_penalty=-0.25),
    ]
    assert_equal(compiled(environment, KEYS), environment)
    for changed in stages:
        assert_equal(compiled(changed, KEYS), with_default_backend(changed))
    assert compiled._cache_size() == 1
    rewards = [np.asarray(compiled(changed, KEYS)[1]) for changed in stages]
    assert len({reward.tobytes() for reward in rewards}) == len(stages), "the stages must differ"


def test_batch_functions_compile_once_for_buffers_of_one_shape() -> None:
    config = create_config()
    actions = BboxAction(*jnp.zeros((5, len(KEYS)), jnp.int32))
    results = []
    for number in range(3):
        buffer = TaskBuffer.from_tasks(stage_tasks(number), **PADDED_SHAPE)
        states, _ = batch_reset(KEYS, config, buffer)
        after, *_ = batch_step(states, actions, config)
        assert states.tasks is buffer and after.tasks is buffer
        results.append((_reset._cache_size(), _step._cache_size(), after.target_grid))
    assert results[0][:2] == results[1][:2] == results[2][:2]
    assert not jnp.array_equal(results[0][2], results[1][2])


def test_episode_runner_and_auto_reset_accept_traced_environment() -> None:
    environment = ArcEnvironment.create(
        create_config(), TaskBuffer.from_tasks(stage_tasks(0), **PADDED_SHAPE)
    )
    submit = BboxAction([34] * 12, *[[0] * 12] * 4)

    def reset_and_submit(layer: AutoReset, keys: jax.Array) -> tuple:
        return layer.step(layer.reset(keys)[0], submit)

    for changed in (environment, environment.with_tasks(stage_tasks(1))):
        _, observations, _, dones, _ = jax.jit(reset_and_submit)(AutoReset(changed), KEYS)
        assert dones.all()
        np.testing.assert_array_equal(observations, reset_and_submit(AutoReset(changed), KEYS)[1])

    def paint(states: ArcState, carried: None, key: jax.Array) -> tuple[BboxAction, None]:
        # Agents can read the target of states with attached tasks.
        zero = jnp.zeros(len(KEYS), jnp.int32)
        return BboxAction(states.target_grid[:, 0, 0].astype(jnp.int32), zero, zero, zero, zero), None

    for changed in (environment, environment.with_tasks(stage_tasks(1))):
        states, _, _ = run_episode_batch(batch_reset(KEYS, changed), paint, 1, changed)
        np.testing.assert_array_equal(states.working_grid[:, 0, 0], states.target_grid[:, 0, 0])


def test_vmap_over_reward_weights_is_one_kernel_call(backend: str) -> None:
    environment = ArcEnvironment.create(create_config(backend), stage_tasks(0))
    weights = jnp.array([0.0, 1.0, 2.5])
    penalties = jnp.array([-0.5, 0.0, 0.125])

    def one(weight: jax.Array, penalty: jax.Array) -> jax.Array:
        return rollout(environment.with_reward(similarity_weight=weight, step_penalty=penalty), KEYS)[1]

    result = jax.jit(jax.vmap(one))(weights, penalties)
    for row, weight, penalty in zip(result, weights.tolist(), penalties.tolist(), strict=True):
        reward = RewardConfig(similarity_weight=weight, step_penalty=penalty)
        single = ArcEnvironment.create(create_config(backend, reward=reward), stage_tasks(0))
        np.testing.assert_allclose(row, constant_rollout(with_default_backend(single))[1], rtol=1e-6)
    if backend == "native":
        text = str(jax.make_jaxpr(jax.vmap(one))(weights, penalties))
        assert text.count("phalanx_arc_step") == 1


def test_vmap_over_tasks_and_weights_matches_single_environments(backend: str) -> None:
    first = ArcEnvironment.create(
        create_config(backend), TaskBuffer.from_tasks(stage_tasks(0), **PADDED_SHAPE)
    ).with_task_weights(np.ones(9))
    members = [first, first.with_tasks(stage_tasks(1)).with_task_weights([1, 0, 2, 0, 0, 0, 0, 0, 3])]
    members += [first.with_tasks(stage_tasks(2, count=4))]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
    states, rewards = jax.jit(jax.vmap(rollout, (0, None)))(stacked, KEYS)
    for row, member in enumerate(members):
        assert_equal(
            jax.tree.map(lambda leaf, row=row: leaf[row], (states, rewards)), with_default_backend(member)
        )
    # Also reset finished episodes of all environments at once.
    done = jnp.arange(12) % 3 == 0

    def reset_done(member: ArcEnvironment, states: ArcState) -> ArcState:
        return member.batch_reset_where(done, KEYS[::-1], states, states.working_grid)[0]

    reset_states = jax.jit(jax.vmap(reset_done))(stacked, states)
    for row, member in enumerate(members):
        member_states = jax.tree.map(lambda leaf, row=row: leaf[row], states)
        expected = jax.jit(reset_done)(member, member_states)
        jax.tree.map(
            np.testing.assert_array_equal,
            jax.tree.map(lambda leaf, row=row: leaf[row], reset_states),
            expected,
        )


def test_order_of_nested_vmaps_does_not_matter() -> None:
    environment = ArcEnvironment.create(create_config(), stage_tasks(0))
    states, _ = environment.batch_reset(KEYS)
    actions = BboxAction(jnp.arange(12), *jnp.zeros((4, 12), jnp.int32))
    weights = jnp.array([0.5, 2.0])

    def one(weight: jax.Array, state: ArcState, action: BboxAction) -> jax.Array:
        return environment.with_reward(similarity_weight=weight).step(state, action)[2]

    outside = jax.vmap(jax.vmap(one, (None, 0, 0)), (0, None, None))(weights, states, actions)
    inside = jax.vmap(jax.vmap(one, (0, None, None)), (None, 0, 0))(weights, states, actions)
    np.testing.assert_array_equal(outside, inside.T)


def large_constants(text: str) -> list[str]:
    """Return the shapes of constants with more than 64 elements in a lowered program."""
    shapes = re.findall(r"constant dense<[^>]*> : tensor<([0-9x]+)x\w+>", text)
    return [shape for shape in shapes if np.prod([int(side) for side in shape.split("x")]) > 64]


def test_task_buffer_is_not_a_constant_of_compiled_program() -> None:
    environment = ArcEnvironment.create(create_config(), stage_tasks(0))
    shape = "x".join(map(str, environment.task_arrays.pairs.shape))
    as_constant = jax.jit(lambda keys: rollout(environment, keys)).lower(KEYS).as_text()
    assert shape in large_constants(as_constant), "the constant buffer must be detected"
    as_argument = jax.jit(rollout).lower(environment, KEYS).as_text()
    assert large_constants(as_argument) == []

    def sample(environment: ArcEnvironment, keys: jax.Array) -> BboxAction:
        return jax.vmap(environment.sample_action)(keys, environment.batch_reset(keys)[0])

    assert large_constants(jax.jit(sample).lower(environment, KEYS).as_text()) == []
    jaxpr = jax.make_jaxpr(rollout)(environment, KEYS)
    assert all(np.size(constant) < 64 for constant in jaxpr.consts)


def test_states_of_traced_environment_have_no_tasks_until_attached(backend: str) -> None:
    environment = ArcEnvironment.create(create_config(backend), stage_tasks(0))
    states, _ = jax.jit(rollout)(environment, KEYS)
    assert states.tasks is None and states.working_grid.shape == (12, 7, 6)
    with pytest.raises(ValueError, match=r"does not know its tasks.*environment\.attach_names"):
        _ = states.target_grid
    with pytest.raises(ValueError, match="their tasks are unknown: pass the environment"):
        batch_step(states, BboxAction(*jnp.zeros((5, 12), jnp.int32)), environment.config)
    attached = environment.attach_names(states)
    assert attached.tasks is environment.tasks
    outputs = [task.pairs[pair].output for task, pair in _tasks_and_pairs(environment, attached)]
    expected = [0 if output is None else output.shape[0] for output in outputs]
    assert (attached.target_grid_mask.any(axis=2).sum(axis=1)).tolist() == expected
    assert environment.detach_names(attached).tasks is None
    # Tasks can also be attached inside a compiled program.
    inside = jax.jit(lambda e, s: e.attach_names(s).target_grid)(environment, states)
    np.testing.assert_array_equal(inside, attached.target_grid)


def _tasks_and_pairs(environment: ArcEnvironment, states: ArcState) -> list[tuple[ArcTask, int]]:
    indices = zip(states.task_index.tolist(), states.pair_index.tolist(), strict=True)
    return [(environment.task_buffer[task], pair) for task, pair in indices]


def test_composite_observation_matches_for_traced_and_constant_tasks(backend: str) -> None:
    observation_config = ObservationConfig(
        input_grid=True, target_grid=True, num_demonstrations=2, scalars=True
    )
    environment = ArcEnvironment.create(
        create_config(backend, observation=observation_config), stage_tasks(0)
    )
    states, expected = environment.batch_reset(KEYS)
    _, traced = jax.jit(ArcEnvironment.batch_reset)(environment, KEYS)
    jax.tree.map(np.testing.assert_array_equal, traced, expected)
    observed = jax.jit(lambda e, s: e.observe(s))(environment, environment.detach_names(states))
    jax.tree.map(np.testing.assert_array_equal, observed, expected)


def test_states_of_other_tasks_are_rejected(backend: str) -> None:
    environment = ArcEnvironment.create(create_config(backend), stage_tasks(0))
    other = environment.with_tasks(stage_tasks(1))
    states, observations = environment.batch_reset(KEYS)
    actions = BboxAction(*jnp.zeros((5, 12), jnp.int32))
    for call in (
        lambda: batch_step(states, actions, other),
        lambda: other.batch_step(states, actions),
        lambda: other.batch_reset_where(jnp.ones(12, bool), KEYS, states, observations),
        lambda: other.detach_names(states),
    ):
        with pytest.raises(ValueError, match="belong to other tasks than the environment"):
            call()


def test_environments_can_be_static_arguments_and_compare_by_content() -> None:
    config = create_config()
    one, same = (ArcEnvironment.create(config, TaskBuffer.from_tasks(stage_tasks(0))) for _ in range(2))
    static = jax.jit(lambda environment, keys: environment.batch_reset(keys)[0], static_argnums=0)
    assert static(one, KEYS).tasks == one.tasks
    static(same, KEYS)
    assert static._cache_size() == 1 and one == same and hash(one) == hash(same)
    for other in (
        one.with_tasks(stage_tasks(1)),
        one.with_task_weights(np.ones(9)),
        one.with_reward(step_penalty=-1.0),
        one.with_reward(lambda transition: 0.0),
        ArcEnvironment.create(create_config(episode=EpisodeConfig(mode="evaluation")), stage_tasks(0)),
    ):
        assert other != one
    assert one.with_reward(step_penalty=-1.0) == one.with_reward(step_penalty=-1.0)

    def compute_hash(environment: ArcEnvironment) -> int:
        return hash(environment)

    with pytest.raises(TypeError, match="with traced arrays has no hash: pass it to jitted functions as"):
        jax.jit(compute_hash)(one)


def test_reprs_are_short() -> None:
    environment = ArcEnvironment.create(ArcConfig(), generate_tasks(num_tasks=64))
    states, _ = environment.batch_reset(KEYS)
    auto_reset_state = AutoReset(environment).reset(KEYS)[0]
    assert repr(states) == "ArcState(batch of 12, canvas 30x30, TaskBuffer(64 tasks, 256 pairs, up to 10x10))"
    assert repr(states[0]).startswith("ArcState(canvas 30x30, ")
    assert repr(environment.detach_names(states)) == "ArcState(batch of 12, canvas 30x30, no tasks)"
    for obj in (
        states,
        environment,
        environment.with_task_weights(np.ones(64)),
        auto_reset_state,
        AutoReset(environment),
    ):
        assert len(repr(obj)) < 400 and repr(obj).count("\n") < 6, repr(obj)
