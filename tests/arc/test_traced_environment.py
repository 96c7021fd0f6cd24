"""Tasks, weights and reward numbers as arguments: what changes in them, and what compiles."""

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
"""So few that the actions of all steps, 60 to a field, are no large constants of a program."""
ROOM = {"num_tasks": 40, "num_pairs": 300, "num_rows": 7}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    skip_without(request.param)
    return request.param


def small(backend: str = "auto", **sections: object) -> ArcConfig:
    canvas = DatasetConfig(max_grid_height=7, max_grid_width=6)
    boxes = ActionConfig(selection_format="bbox")
    return ArcConfig(**{"backend": backend, "dataset": canvas, "action": boxes, **sections})


def stage(number: int, count: int = 9) -> list[ArcTask]:
    """Other tasks, and as many as one likes."""
    tasks = random_tasks((7, 6), with_all_kinds=False)[number * 10 : number * 10 + count]
    return [dataclasses.replace(task, id=f"{task.id}-{number}") for task in tasks]


def random_actions() -> BboxAction:
    """Actions of all steps, drawn on the host: drawing would be most of what every program here compiles."""
    rng = np.random.default_rng(3)
    operations, sides = rng.integers(0, 34, (STEPS, len(KEYS))), rng.integers(0, 6, (4, STEPS, len(KEYS)))
    return BboxAction(np.where(rng.random(operations.shape) < 0.5, operations % 10, operations), *sides)


ACTIONS = random_actions()


def play(environment: ArcEnvironment, keys: jax.Array) -> tuple[ArcState, jax.Array]:
    """A few random steps of a batch: the last states and all rewards."""

    def step(states: ArcState, actions: BboxAction) -> tuple[ArcState, jax.Array]:
        states, _, rewards, _, _ = environment.batch_step(states, actions)
        return states, rewards

    return jax.lax.scan(step, environment.batch_reset(keys)[0], ACTIONS)


@functools.cache
def played(environment: ArcEnvironment) -> tuple[list[jax.Array], jax.Array]:
    """The same with the environment as a constant."""
    states, rewards = jax.jit(lambda keys: play(environment, keys))(KEYS)
    return jax.tree.leaves(states), rewards


def kernels(environment: ArcEnvironment) -> ArcEnvironment:
    """The same in the backend of this machine's kernels, which compiles in a moment; backends play alike."""
    config = environment.config.model_copy(update={"backend": "auto"})
    return dataclasses.replace(environment, config=config)


def assert_equal(found: tuple[ArcState, jax.Array], environment: ArcEnvironment) -> None:
    expected = played(environment)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(found[0]), expected[0])


def test_curriculum_of_tasks_weights_and_rewards_compiles_once(backend: str) -> None:
    # Not `jit(play)`, which would share what other tests compiled.
    compiled = jax.jit(lambda environment, keys: play(environment, keys))
    first = TaskBuffer.from_tasks(stage(0), **ROOM)
    environment = ArcEnvironment.create(small(backend), first, weights=np.ones(9))
    stages = [
        environment,
        environment.with_tasks(stage(1)),
        environment.with_tasks(stage(2, count=5)).with_task_weights([0, 1, 0, 2, 0]),
        environment.with_task_weights(np.arange(9)),
        environment.with_reward(similarity_weight=5.0, step_penalty=-0.25),
    ]
    assert_equal(compiled(environment, KEYS), environment)
    for changed in stages:
        assert_equal(compiled(changed, KEYS), kernels(changed))
    assert compiled._cache_size() == 1
    rewards = [np.asarray(compiled(changed, KEYS)[1]) for changed in stages]
    assert len({reward.tobytes() for reward in rewards}) == len(stages), "each stage is another one"


def test_batch_functions_compile_once_for_buffers_of_one_shape() -> None:
    config = small()
    actions = BboxAction(*jnp.zeros((5, len(KEYS)), jnp.int32))
    seen = []
    for number in range(3):
        buffer = TaskBuffer.from_tasks(stage(number), **ROOM)
        states, _ = batch_reset(KEYS, config, buffer)
        after, *_ = batch_step(states, actions, config)
        assert states.tasks is buffer and after.tasks is buffer
        seen.append((_reset._cache_size(), _step._cache_size(), after.target_grid))
    assert seen[0][:2] == seen[1][:2] == seen[2][:2]
    assert not jnp.array_equal(seen[0][2], seen[1][2])


def test_episode_runner_and_auto_reset_accept_traced_environment() -> None:
    environment = ArcEnvironment.create(small(), TaskBuffer.from_tasks(stage(0), **ROOM))
    submit = BboxAction([34] * 12, *[[0] * 12] * 4)

    def reset_and_submit(layer: AutoReset, keys: jax.Array) -> tuple:
        return layer.step(layer.reset(keys)[0], submit)

    for changed in (environment, environment.with_tasks(stage(1))):
        _, observations, _, dones, _ = jax.jit(reset_and_submit)(AutoReset(changed), KEYS)
        assert dones.all()
        np.testing.assert_array_equal(observations, reset_and_submit(AutoReset(changed), KEYS)[1])

    def paint(states: ArcState, carried: None, key: jax.Array) -> tuple[BboxAction, None]:
        # An agent may look at the target of states that know their tasks.
        zero = jnp.zeros(len(KEYS), jnp.int32)
        return BboxAction(states.target_grid[:, 0, 0].astype(jnp.int32), zero, zero, zero, zero), None

    for changed in (environment, environment.with_tasks(stage(1))):
        states, _, _ = run_episode_batch(batch_reset(KEYS, changed), paint, 1, changed)
        np.testing.assert_array_equal(states.working_grid[:, 0, 0], states.target_grid[:, 0, 0])


def test_vmap_over_reward_weights_is_one_kernel_call(backend: str) -> None:
    environment = ArcEnvironment.create(small(backend), stage(0))
    weights = jnp.array([0.0, 1.0, 2.5])
    penalties = jnp.array([-0.5, 0.0, 0.125])

    def one(weight: jax.Array, penalty: jax.Array) -> jax.Array:
        return play(environment.with_reward(similarity_weight=weight, step_penalty=penalty), KEYS)[1]

    found = jax.jit(jax.vmap(one))(weights, penalties)
    for row, weight, penalty in zip(found, weights.tolist(), penalties.tolist(), strict=True):
        reward = RewardConfig(similarity_weight=weight, step_penalty=penalty)
        alone = ArcEnvironment.create(small(backend, reward=reward), stage(0))
        np.testing.assert_allclose(row, played(kernels(alone))[1], rtol=1e-6)
    if backend == "native":
        text = str(jax.make_jaxpr(jax.vmap(one))(weights, penalties))
        assert text.count("phalanx_arc_step") == 1


def test_vmap_over_tasks_and_weights_matches_single_environments(backend: str) -> None:
    first = ArcEnvironment.create(small(backend), TaskBuffer.from_tasks(stage(0), **ROOM), weights=np.ones(9))
    members = [first, first.with_tasks(stage(1)).with_task_weights([1, 0, 2, 0, 0, 0, 0, 0, 3])]
    members += [first.with_tasks(stage(2, count=4))]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
    states, rewards = jax.jit(jax.vmap(play, (0, None)))(stacked, KEYS)
    for row, member in enumerate(members):
        assert_equal(jax.tree.map(lambda leaf, row=row: leaf[row], (states, rewards)), kernels(member))
    # The other way round: single states inside, the population outside, episodes begun where they ended.
    done = jnp.arange(12) % 3 == 0

    def again(member: ArcEnvironment, states: ArcState) -> ArcState:
        return member.batch_reset_where(done, KEYS[::-1], states, states.working_grid)[0]

    begun = jax.jit(jax.vmap(again))(stacked, states)
    for row, member in enumerate(members):
        own = jax.tree.map(lambda leaf, row=row: leaf[row], states)
        expected = jax.jit(again)(member, own)
        jax.tree.map(
            np.testing.assert_array_equal, jax.tree.map(lambda leaf, row=row: leaf[row], begun), expected
        )


def test_order_of_nested_vmaps_does_not_matter() -> None:
    environment = ArcEnvironment.create(small(), stage(0))
    states, _ = environment.batch_reset(KEYS)
    actions = BboxAction(jnp.arange(12), *jnp.zeros((4, 12), jnp.int32))
    weights = jnp.array([0.5, 2.0])

    def one(weight: jax.Array, state: ArcState, action: BboxAction) -> jax.Array:
        return environment.with_reward(similarity_weight=weight).step(state, action)[2]

    outside = jax.vmap(jax.vmap(one, (None, 0, 0)), (0, None, None))(weights, states, actions)
    inside = jax.vmap(jax.vmap(one, (0, None, None)), (None, 0, 0))(weights, states, actions)
    np.testing.assert_array_equal(outside, inside.T)


def large_constants(text: str) -> list[str]:
    """Shapes of the constants of more than 64 numbers that a lowered program has."""
    found = re.findall(r"constant dense<[^>]*> : tensor<([0-9x]+)x\w+>", text)
    return [shape for shape in found if np.prod([int(side) for side in shape.split("x")]) > 64]


def test_task_buffer_is_not_a_constant_of_compiled_program() -> None:
    environment = ArcEnvironment.create(small(), stage(0))
    shape = "x".join(map(str, environment.task_arrays.pairs.shape))
    as_constant = jax.jit(lambda keys: play(environment, keys)).lower(KEYS).as_text()
    assert shape in large_constants(as_constant), "how a constant looks"
    as_argument = jax.jit(play).lower(environment, KEYS).as_text()
    assert large_constants(as_argument) == []

    def draw(environment: ArcEnvironment, keys: jax.Array) -> BboxAction:
        return jax.vmap(environment.sample_action)(keys, environment.batch_reset(keys)[0])

    assert large_constants(jax.jit(draw).lower(environment, KEYS).as_text()) == []
    jaxpr = jax.make_jaxpr(play)(environment, KEYS)
    assert all(np.size(constant) < 64 for constant in jaxpr.consts)


def test_states_of_traced_environment_have_no_tasks_until_attached(backend: str) -> None:
    environment = ArcEnvironment.create(small(backend), stage(0))
    states, _ = jax.jit(play)(environment, KEYS)
    assert states.tasks is None and states.working_grid.shape == (12, 7, 6)
    with pytest.raises(ValueError, match=r"does not know its tasks.*environment\.attach_names"):
        _ = states.target_grid
    with pytest.raises(ValueError, match="their tasks are unknown: pass the environment"):
        batch_step(states, BboxAction(*jnp.zeros((5, 12), jnp.int32)), environment.config)
    bound = environment.attach_names(states)
    assert bound.tasks is environment.tasks
    outputs = [task.pairs[pair].output for task, pair in _places(environment, bound)]
    expected = [0 if output is None else output.shape[0] for output in outputs]
    assert (bound.target_grid_mask.any(axis=2).sum(axis=1)).tolist() == expected
    assert environment.detach_names(bound).tasks is None
    # Inside the program, too, a state can be read; it is bound to the arrays there.
    inside = jax.jit(lambda e, s: e.attach_names(s).target_grid)(environment, states)
    np.testing.assert_array_equal(inside, bound.target_grid)


def _places(environment: ArcEnvironment, states: ArcState) -> list[tuple[ArcTask, int]]:
    places = zip(states.task_index.tolist(), states.pair_index.tolist(), strict=True)
    return [(environment.task_buffer[task], pair) for task, pair in places]


def test_composite_observation_matches_for_traced_and_constant_tasks(backend: str) -> None:
    see = ObservationConfig(input_grid=True, target_grid=True, num_demonstrations=2, scalars=True)
    environment = ArcEnvironment.create(small(backend, observation=see), stage(0))
    states, expected = environment.batch_reset(KEYS)
    _, traced = jax.jit(ArcEnvironment.batch_reset)(environment, KEYS)
    jax.tree.map(np.testing.assert_array_equal, traced, expected)
    seen = jax.jit(lambda e, s: e.observe(s))(environment, environment.detach_names(states))
    jax.tree.map(np.testing.assert_array_equal, seen, expected)


def test_states_of_other_tasks_are_rejected(backend: str) -> None:
    environment = ArcEnvironment.create(small(backend), stage(0))
    other = environment.with_tasks(stage(1))
    states, seen = environment.batch_reset(KEYS)
    actions = BboxAction(*jnp.zeros((5, 12), jnp.int32))
    for attempt in (
        lambda: batch_step(states, actions, other),
        lambda: other.batch_step(states, actions),
        lambda: other.batch_reset_where(jnp.ones(12, bool), KEYS, states, seen),
        lambda: other.detach_names(states),
    ):
        with pytest.raises(ValueError, match="belong to other tasks than the environment"):
            attempt()


def test_environments_can_be_static_arguments_and_compare_by_content() -> None:
    config = small()
    one, same = (ArcEnvironment.create(config, TaskBuffer.from_tasks(stage(0))) for _ in range(2))
    static = jax.jit(lambda environment, keys: environment.batch_reset(keys)[0], static_argnums=0)
    assert static(one, KEYS).tasks == one.tasks
    static(same, KEYS)
    assert static._cache_size() == 1 and one == same and hash(one) == hash(same)
    for other in (
        one.with_tasks(stage(1)),
        one.with_task_weights(np.ones(9)),
        one.with_reward(step_penalty=-1.0),
        one.with_reward(lambda happened: 0.0),
        ArcEnvironment.create(small(episode=EpisodeConfig(mode="evaluation")), stage(0)),
    ):
        assert other != one
    assert one.with_reward(step_penalty=-1.0) == one.with_reward(step_penalty=-1.0)

    def hashed(environment: ArcEnvironment) -> int:
        return hash(environment)

    with pytest.raises(TypeError, match="with traced arrays has no hash: pass it to jitted functions as"):
        jax.jit(hashed)(one)


def test_reprs_are_short() -> None:
    environment = ArcEnvironment.create(ArcConfig(), generate_tasks(num_tasks=64))
    states, _ = environment.batch_reset(KEYS)
    layered = AutoReset(environment).reset(KEYS)[0]
    assert repr(states) == "ArcState(batch of 12, canvas 30x30, TaskBuffer(64 tasks, 256 pairs, up to 10x10))"
    assert repr(states[0]).startswith("ArcState(canvas 30x30, ")
    assert repr(environment.detach_names(states)) == "ArcState(batch of 12, canvas 30x30, no tasks)"
    for thing in (
        states,
        environment,
        environment.with_task_weights(np.ones(64)),
        layered,
        AutoReset(environment),
    ):
        assert len(repr(thing)) < 400 and repr(thing).count("\n") < 6, repr(thing)
