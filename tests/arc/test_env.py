"""The ARC environment: task sampling, observations, batching and validation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.arc import (
    ActionConfig,
    ArcConfig,
    ArcEnvironment,
    ArcObservation,
    ArcTask,
    BboxAction,
    DatasetConfig,
    EpisodeConfig,
    GridPair,
    MaskAction,
    ObservationConfig,
    PointAction,
    TaskBuffer,
    arc_reset,
    arc_step,
    as_grid,
    batch_reset,
    batch_step,
    generate_tasks,
    legal_operations,
    validate_action,
)
from phalanx.arc.bitplanes import pack_grid, unpack_cells
from phalanx.native import is_native_available, native_unavailable_reason

BACKENDS = ["native", "xla"]
SUBMIT = 34


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "native" and not is_native_available():
        pytest.skip(native_unavailable_reason())
    return request.param


def create_task(name: str = "two", demos: int = 2, tests: int = 1) -> ArcTask:
    """Create a task: demonstration k maps color k + 1 to k + 2, test k maps k + 5 to k + 6."""

    def pair(color: int) -> GridPair:
        return GridPair(as_grid([[color] * 3] * 2), as_grid([[color + 1] * 3] * 2))

    return ArcTask(name, tuple(pair(k + 1) for k in range(demos)), tuple(pair(k + 5) for k in range(tests)))


def create_config(backend: str = "auto", **sections: object) -> ArcConfig:
    return ArcConfig(backend=backend, dataset=DatasetConfig(max_grid_height=4, max_grid_width=5), **sections)


def test_state_of_30x30_grid_has_1236_bytes() -> None:
    states, _ = batch_reset(jax.random.split(jax.random.key(0), 16), ArcConfig(), create_task())
    assert states.working_grid.shape == (16, 30, 30)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(states)) / 16 == 1236


def test_each_key_samples_its_own_task_and_pair() -> None:
    buffer = TaskBuffer.from_tasks(
        [create_task("a", demos=2), create_task("b", demos=3), create_task("c", demos=1)]
    )
    keys = jax.random.split(jax.random.key(1), 300)
    states, _ = batch_reset(keys, create_config(), buffer)
    sampled = set(zip(states.task_index.tolist(), states.pair_index.tolist(), strict=True))
    assert sampled == {(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 0)}
    assert (states.working_grid[:, 0, 0] == states.pair_index + 1).all()
    single, _ = arc_reset(keys[7], create_config(), buffer)
    assert (single.task_index, single.pair_index) == (states.task_index[7], states.pair_index[7])


def test_evaluation_hides_target_and_similarity_until_submission(backend: str) -> None:
    observation_config = ObservationConfig(target_grid=True, scalars=True)
    config = create_config(backend, observation=observation_config, episode=EpisodeConfig(mode="evaluation"))
    state, observation = arc_reset(jax.random.key(0), config, create_task())
    assert isinstance(observation, ArcObservation)
    assert state.working_grid[0, 0] == 5 and (state.target_grid == -1).all()
    assert (observation.target_grid == -1).all() and observation.similarity == 0.0
    for row in range(2):
        action = BboxAction(6, row, 0, row, 2)
        state, observation, reward, done, info = arc_step(state, action, config)
        assert info.similarity == 0.0 == state.similarity_score == observation.similarity
        assert not done and not info.solved and not state.solved_pairs.any()
        assert reward == np.float32(-0.01), "the reward must not depend on similarity"
    state, observation, reward, done, info = arc_step(state, BboxAction(34, 0, 0, 0, 0), config)
    assert done and info.solved and info.similarity == 1.0 == observation.similarity
    assert reward == pytest.approx(10 - 0.01)
    assert (observation.target_grid == -1).all(), "only environment.with_answers shows the target"
    revealed = ArcEnvironment.create(config, state.tasks).with_answers(state)
    assert (revealed.target_grid[:2, :3] == 6).all()


def test_demonstrations_exclude_current_pair() -> None:
    config = create_config(observation=ObservationConfig(num_demonstrations=3))
    buffer = TaskBuffer.from_tasks(create_task(demos=3))
    states, observation = batch_reset(jax.random.split(jax.random.key(0), 40), config, buffer)
    inputs = np.asarray(observation.demonstrations[:, :, 0, 0, 0])
    outputs = np.asarray(observation.demonstrations[:, :, 1, 0, 0])
    for row, out, pair in zip(inputs, outputs, np.asarray(states.pair_index), strict=True):
        others = [k + 1 for k in range(3) if k != pair]
        assert row.tolist() == [*others, -1]
        assert out.tolist() == [*(k + 1 for k in others), -1]


def test_working_grid_observation_can_be_disabled(backend: str) -> None:
    config = create_config(backend, observation=ObservationConfig(working_grid=False))
    states, observation = batch_reset(jax.random.split(jax.random.key(0), 3), config, create_task())
    states, observation, *_ = batch_step(states, PointAction([0] * 3, [0] * 3, [0] * 3), config)
    assert observation.shape == (3, 0, 0)
    assert (states.working_grid[:, 0, 0] == 0).all()


def test_action_formats_and_operations_can_be_mixed() -> None:
    config = create_config()
    states, _ = batch_reset(jax.random.split(jax.random.key(0), 4), config, create_task(demos=1))
    states, *_ = batch_step(states, PointAction([0, 9, 23, 26], [0, 1, 0, 0], [0, 2, 0, 1]), config)
    mask = jnp.zeros((4, 4, 5), bool).at[:, 0, 1].set(True).at[:, 1, 0].set(True)
    states, _, _, _, info = batch_step(states, MaskAction([7, 7, 31, 34], mask), config)
    assert states.working_grid[0, :2, :3].tolist() == [[0, 7, 1], [7, 1, 1]]
    assert states.working_grid[1, :2, :3].tolist() == [[1, 7, 1], [7, 1, 9]]
    assert states.working_grid[2, :2, :3].tolist() == [[0, 0, 1], [0, 1, 1]]
    assert info.operation_type.tolist() == [7, 7, 31, 34]
    assert info.terminated.tolist() == [False, False, False, True]


@pytest.mark.slow
def test_vmap_and_nested_vmap_match_batch_step(backend: str) -> None:
    config = create_config(backend)
    environment = ArcEnvironment.create(
        config, TaskBuffer.from_tasks([create_task("a"), create_task("b", demos=3)])
    )
    keys = jax.random.split(jax.random.key(3), 6)
    states, _ = environment.batch_reset(keys)
    actions = BboxAction([0, 25, 30, 33, 11, 99], [0] * 6, [0] * 6, [1, 1, 0, 3, 0, 0], [1, 0, 1, 4, 0, 0])
    expected = jax.jit(environment.batch_step)(states, actions)
    one_vmap = jax.jit(jax.vmap(environment.step))(states, actions)
    fold = lambda tree: jax.tree.map(lambda x: x.reshape(2, 3, *x.shape[1:]), tree)  # noqa: E731
    nested = jax.jit(jax.vmap(jax.vmap(environment.step)))(fold(states), fold(actions))
    for other in (one_vmap, jax.tree.map(lambda x: x.reshape(6, *x.shape[2:]), nested)):
        jax.tree.map(np.testing.assert_array_equal, expected, other)


@pytest.mark.slow
def test_single_action_is_broadcast_under_vmap(backend: str) -> None:
    environment = ArcEnvironment.create(create_config(backend), create_task())
    states, _ = environment.batch_reset(jax.random.split(jax.random.key(0), 3))
    new, *_ = jax.vmap(environment.step, in_axes=(0, None))(states, PointAction(9, 0, 0))
    assert (new.working_grid[:, 0, 0] == 9).all()


def test_generated_tasks_are_solved_by_their_solutions(backend: str) -> None:
    config = ArcConfig(backend=backend, dataset=DatasetConfig(max_grid_height=10, max_grid_width=10))
    tasks = generate_tasks(num_tasks=60, seed=5)
    buffer = TaskBuffer.from_tasks(tasks)
    keys = jax.random.split(jax.random.key(0), 256)
    states, _ = batch_reset(keys, config, buffer)
    solutions = [
        buffer[t].solutions[p]
        for t, p in zip(states.task_index.tolist(), states.pair_index.tolist(), strict=True)
    ]
    lengths = np.array([len(solution) for solution in solutions])
    for at in range(lengths.max()):
        rows = [s[at] if at < len(s) else s[-1] for s in solutions]
        action = BboxAction(
            *(jnp.array([getattr(r, f) for r in rows]) for f in ("operation", "r1", "c1", "r2", "c2"))
        )
        states, *_ = batch_step(states, action, config)
        assert np.asarray(states.solved).tolist() == (lengths <= at + 1).tolist()


def test_backends_match_in_long_random_episodes() -> None:
    if not is_native_available():
        pytest.skip(native_unavailable_reason())
    tasks = TaskBuffer.from_tasks(generate_tasks(num_tasks=20, seed=9))
    keys = jax.random.split(jax.random.key(0), 64)
    rng = np.random.default_rng(0)
    configs = [
        ArcConfig(backend=e, dataset=DatasetConfig(max_grid_height=10, max_grid_width=12)) for e in BACKENDS
    ]
    runs = [batch_reset(keys, config, tasks)[0] for config in configs]
    for _ in range(40):
        operation, r1, c1, r2, c2 = rng.integers(0, 42, 64), *rng.integers(0, 10, (4, 64))
        operation = np.where((operation == SUBMIT) & (rng.random(64) < 0.9), 28, operation)
        action = BboxAction(operation, r1, c1, r2, c2)
        results = [batch_step(run, action, config) for run, config in zip(runs, configs, strict=True)]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), *results)
        runs = [result[0] for result in results]


def test_legal_operations_and_validation_follow_config() -> None:
    config = create_config(action=ActionConfig(allowed_operations=(3, 34)))
    state, _ = arc_reset(jax.random.key(0), config, create_task())
    assert np.flatnonzero(legal_operations(state, config)).tolist() == [3, 34]
    assert validate_action(PointAction(3, 0, 0), state, config)
    for invalid in (PointAction(4, 0, 0), PointAction(-1, 0, 0), PointAction(3, 4, 0), PointAction(3, 0, 5)):
        assert not validate_action(invalid, state, config)


EVALUATION = EpisodeConfig(mode="evaluation")
SECRET = ArcTask("secret", (), (GridPair(as_grid([[1]]), None),))
CANNOT_SUBMIT = create_config(episode=EVALUATION, action=ActionConfig(allowed_operations=(1, 2)))


@pytest.mark.parametrize(
    ("config", "tasks", "message"),
    [
        (
            ArcConfig(dataset=DatasetConfig(max_grid_height=1)),
            create_task(),
            "needs a canvas of 2x3, the config",
        ),
        (create_config(episode=EVALUATION), create_task(tests=0), "no test pair to evaluate on"),
        (create_config(), SECRET, "pair 0 has no output"),
        (CANNOT_SUBMIT, create_task(), r"must contain 34 \(Submit\)"),
    ],
)
def test_tasks_incompatible_with_config_are_reported(config: ArcConfig, tasks: ArcTask, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ArcEnvironment.create(config, tasks)


def test_invalid_configs_are_reported() -> None:
    with pytest.raises(ValueError, match=r"(?s)max_grid_height.*less than or equal to 30"):
        DatasetConfig(max_grid_height=40)
    with pytest.raises(ValueError, match=r"(?s)allowed_operations\.1.*less than or equal to 41"):
        ActionConfig(allowed_operations=(1, 42))


def test_unavailable_native_backend_raises_error_with_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PHALANX_NATIVE", "0")
    assert ArcEnvironment.create(create_config(), create_task()).config.backend == "xla"
    with pytest.raises(RuntimeError, match="disabled by PHALANX_NATIVE=0"):
        ArcEnvironment.create(create_config("native"), create_task())


def test_buffer_finds_tasks_by_id_and_rejects_duplicates() -> None:
    buffer = TaskBuffer.from_tasks([create_task("a"), create_task("b")])
    assert buffer.index_of("b") == 1 and buffer[1].id == "b" and len(buffer) == 2
    with pytest.raises(KeyError, match="no task 'c' among the 2"):
        buffer.index_of("c")
    with pytest.raises(ValueError, match="two tasks have the id 'a'"):
        TaskBuffer.from_tasks([create_task("a"), create_task("a")])


def test_equal_buffers_give_equal_tree_structures() -> None:
    config = create_config()
    keys = jax.random.split(jax.random.key(0), 2)
    first, _ = batch_reset(keys, config, TaskBuffer.from_tasks([create_task("a")]))
    second, _ = batch_reset(keys, config, TaskBuffer.from_tasks([create_task("a")]))
    assert jax.tree.structure(first) == jax.tree.structure(second)


def test_bitplanes_round_trip_for_every_size() -> None:
    rng = np.random.default_rng(0)
    for height, width in [(1, 1), (30, 30), (3, 7), (8, 8), (30, 1), (5, 29)]:
        grid = rng.integers(0, 10, (height, width))
        bitplanes = jnp.asarray(pack_grid(grid, 30))
        inside = jnp.where(jnp.arange(30) < height, jnp.uint32((1 << width) - 1), jnp.uint32(0))
        cells = np.asarray(unpack_cells(bitplanes, inside, 30))
        assert (cells[:height, :width] == grid).all()
        assert (cells[height:] == -1).all() and (cells[:, width:] == -1).all()


def test_copied_config_hashes_like_new_config() -> None:
    config = ArcConfig()
    hash(config)
    copied = config.model_copy(update={"backend": "xla"})
    assert copied == ArcConfig(backend="xla") and hash(copied) == hash(ArcConfig(backend="xla"))
    assert hash(copied) != hash(config)
