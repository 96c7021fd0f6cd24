"""Fresh tasks for every update, and training on them."""

import functools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import phalanx
from phalanx.arc import ArcConfig, ArcEnvironment
from phalanx.arc.generators import generate_tasks
from phalanx.arc.operations import Operation
from phalanx.arc.spec import ArcTasks, make_arc
from phalanx.training.ppo import PPO, PPOConfig, PPOState
from tests.helpers.arc_grids import task

CANVAS: dict[str, Any] = {"max_grid_height": 4, "max_grid_width": 4}
SIZE = {"max_height": 4, "max_width": 4}


def create_tasks(seed: int = 0, **dataset: Any) -> ArcTasks:
    settings = {**CANVAS, "num_generated_tasks": 6, "tasks_per_update": 4, **dataset}
    return ArcTasks(phalanx.make("arc", dataset=settings), seed)


def grids(environment: ArcEnvironment) -> list[Any]:
    return [[pair.input.tolist() for pair in each.pairs] for each in environment.task_buffer]


def shapes(environment: ArcEnvironment) -> Any:
    return jax.tree.structure(environment), [np.shape(leaf) for leaf in jax.tree.leaves(environment)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset of ten tasks with one to four pairs."""
    (tmp_path / "training").mkdir()
    for number, each in enumerate(generate_tasks((), 10, seed=5, **SIZE)):
        data = each.to_dict()
        data["train"] = data["train"][: 1 + number % 3]
        (tmp_path / "training" / f"{each.id}.json").write_text(json.dumps(data))
    return tmp_path


def test_fresh_tasks_depend_only_on_seed_and_update() -> None:
    tasks = create_tasks()
    updates = [grids(tasks.training(update)) for update in range(3)]
    assert all(len(each) == 4 for each in updates)
    assert updates[0] != updates[1] != updates[2]
    # In any order, and from another task source.
    assert grids(create_tasks().training(2)) == updates[2]
    assert grids(create_tasks(num_generated_tasks=3).training(1)) == updates[1]
    assert grids(create_tasks(seed=1).training(1)) != updates[1]


def test_fresh_tasks_of_a_dataset_are_sampled_without_replacement(folder: Path) -> None:
    tasks = create_tasks(source=str(folder))
    known = {each.id for each in tasks.environment.task_buffer}
    updates = [[each.id for each in tasks.training(update).task_buffer] for update in range(8)]
    assert all(len(set(each)) == 4 and set(each) <= known for each in updates)
    assert set().union(*updates) == known
    again = create_tasks(source=str(folder)).training(5)
    assert [each.id for each in again.task_buffer] == updates[5]
    everything = create_tasks(source=str(folder), tasks_per_update=99).training(0)
    assert {each.id for each in everything.task_buffer} == known


def test_augmented_tasks_differ_from_those_of_the_dataset(folder: Path) -> None:
    plain, augmented = (create_tasks(source=str(folder), augment=each).training(0) for each in (False, True))
    assert grids(augmented) != grids(plain)
    again = create_tasks(source=str(folder), augment=True).training(0)
    assert grids(augmented) == grids(again)


@pytest.mark.parametrize("tasks_per_update", [4, 40])
def test_fresh_tasks_have_equal_shapes(folder: Path, tasks_per_update: int) -> None:
    for source in ("generated", str(folder)):
        tasks = create_tasks(source=source, tasks_per_update=tasks_per_update)
        first = shapes(tasks.training(0))
        assert all(shapes(tasks.training(update)) == first for update in range(1, 5)), source


def test_without_fresh_tasks_every_update_has_the_same_environment() -> None:
    tasks = create_tasks(tasks_per_update=None)
    assert tasks.training(0) is tasks.training(7) is tasks.environment
    assert tasks.keeps_episodes
    assert not create_tasks().keeps_episodes


def test_metadata_and_fingerprint_describe_the_tasks() -> None:
    tasks = create_tasks(families=("gravity", "fill_enclosed"))
    assert tasks.metadata == {"families": ["fill_enclosed", "gravity"]}
    assert (
        tasks.fingerprint
        == create_tasks(families=("gravity", "fill_enclosed"), tasks_per_update=None).fingerprint
    )
    assert tasks.fingerprint != create_tasks(families=("gravity",)).fingerprint


def test_environment_has_the_given_task_or_tasks() -> None:
    config = ArcConfig(dataset=CANVAS)
    own = task("own", [("00/00", "30/00")])
    (id, *_) = [each.id for each in make_arc(config).task_buffer]
    assert [each.id for each in make_arc(config, task=own).task_buffer] == ["own"]
    assert [each.id for each in make_arc(config, task=id).task_buffer] == [id]
    assert [each.id for each in phalanx.make("arc", config, tasks=[own]).task_buffer] == ["own"]
    assert make_arc(config, max_episode_steps=3).max_episode_steps == 3
    with pytest.raises(TypeError, match="both task and tasks were given; pass only one of them"):
        make_arc(config, task=own, tasks=[own])


# Copy does not change the grid, so working grids are always the inputs of the current tasks. No episode ends.
@functools.cache
def create_ppo(*overrides: str) -> PPO:
    settings = (
        *("env.dataset.max_grid_height=4", "env.dataset.max_grid_width=4"),
        *("env.dataset.num_generated_tasks=6", "env.dataset.families=[]", "env.dataset.tasks_per_update=4"),
        *("env.episode.max_episode_steps=100", "env.episode.require_submit=false"),
        f"env.action.allowed_operations=[{int(Operation.COPY)}]",
        *("network.kind=conv", "network.hidden_dim=8", "network.num_layers=1"),
        *("num_envs=8", "num_steps=2", "num_updates=4", "num_minibatches=1", "update_epochs=1"),
    )
    return PPO(PPOConfig.load("arc", (*settings, *overrides)))


def assert_states_belong_to(environment: ArcEnvironment, state: PPOState) -> None:
    states = state.rollout.environments.states
    rows = zip(states.task_index.tolist(), states.pair_index.tolist(), states.working_grid, strict=True)
    for index, pair, grid in rows:
        expected = environment.task_buffer[index].pairs[pair].input
        np.testing.assert_array_equal(grid[: expected.shape[0], : expected.shape[1]], expected)


@pytest.mark.slow
def test_ppo_restarts_episodes_when_the_tasks_change() -> None:
    ppo = create_ppo()
    state = ppo.init(jax.random.key(0))
    for update in range(3):
        state, _ = ppo.update(state)
        assert_states_belong_to(ppo.tasks.training(update), state)
        assert state.rollout.environments.states.step_count.tolist() == [2] * 8
        assert state.rollout.lengths.tolist() == [2] * 8
    ppo.close()


@pytest.mark.slow
def test_ppo_continues_episodes_on_fixed_tasks() -> None:
    ppo = create_ppo("env.dataset.tasks_per_update=null")
    state = ppo.init(jax.random.key(0))
    for _ in range(3):
        state, _ = ppo.update(state)
    assert_states_belong_to(ppo.environment, state)
    assert state.rollout.environments.states.step_count.tolist() == [6] * 8
    ppo.close()


@pytest.mark.slow
def test_other_tasks_do_not_recompile_the_update(caplog: pytest.LogCaptureFixture) -> None:
    fresh = create_ppo()
    fixed = create_ppo("env.dataset.tasks_per_update=null")
    others = [
        PPO(fixed.config, fixed.environment.with_tasks(generate_tasks((), 6, seed, **SIZE)))
        for seed in (1, 2)
    ]
    weights = []
    for runs in ([fresh], others):
        for number, ppo in enumerate(runs):
            state = ppo.init(jax.random.key(0))
            if number == 0:
                state, _ = ppo.update(state)
                state = ppo.init(jax.random.key(0))
            with jax.log_compiles():
                for _ in range(2):
                    state, _ = ppo.update(state)
            ppo.close()
            weights.append(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.params)]))
    assert not [text for text in caplog.messages if "Finished XLA compilation of jit(_update)" in text]
    assert not np.array_equal(*weights[1:])
