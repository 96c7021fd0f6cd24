"""Environments are written with two spaces and three methods; the base class does the rest."""

import copy
import dataclasses
import pickle
import re
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from phalanx.core import (
    Box,
    Composite,
    Discrete,
    Environment,
    EpisodeState,
    Space,
    array_field,
    host_field,
    is_done,
)
from phalanx.core.environment import mask_size

pytestmark = pytest.mark.slow

LEFT, RIGHT = 0, 1
KEY = jax.random.key(0)


class Place(EpisodeState):
    cell: Array
    moves: Array


class Line(Environment[Place, Any, Array]):
    """Walk from cell 0 to the last cell. A step to the left of cell 0 is illegal."""

    num_cells: int = 4
    max_episode_steps: int = 5
    illegal_action_reward = -2.0

    @property
    def observation_space(self) -> Space:
        mask = Box(0, 1, (2,), np.bool_)
        return Composite.of(dict, {"cell": Discrete(self.num_cells), "action_mask": mask})

    @property
    def action_space(self) -> Space:
        return Discrete(2)

    def initial_state(self, key: Any) -> Place:
        return Place(jnp.int32(0), jnp.int32(0))

    def transition(self, state: Place, action: Any) -> tuple[Any, Any, Any]:
        cell = state.cell + jnp.where(action == RIGHT, 1, -1)
        return Place(cell, state.moves + 1), 1.0, cell == self.num_cells - 1

    def observe(self, state: Place) -> Any:
        mask = jnp.stack([state.cell > 0, jnp.bool_(True)])
        return {"cell": state.cell, "action_mask": mask}


def walk(environment: Environment, actions: list[Any]) -> list[Any]:
    """Return the results of `reset` and of each step."""
    step = jax.jit(environment.step)
    results: list[Any] = [environment.reset(KEY)]
    for action in actions:
        results.append(step(results[-1][0], action))
    return results


def test_step_counts_observes_and_terminates() -> None:
    first, *steps = walk(Line(), [RIGHT, RIGHT, RIGHT])
    states = [first[0], *(step[0] for step in steps)]
    assert [int(state.cell) for state in states] == [0, 1, 2, 3]
    assert [int(state.step_count) for state in states] == [0, 1, 2, 3]
    assert [bool(is_done(state)) for state in states] == [False, False, False, True]
    assert [bool(step[3]) for step in steps] == [False, False, True]
    assert bool(states[-1].terminated) and not bool(states[-1].truncated)
    assert [int(result[1]["cell"]) for result in (first, *steps)] == [0, 1, 2, 3]
    assert eqx.tree_equal(steps[-1][4], states[-1])


def test_transition_that_leaves_out_the_flags_does_not_reset_them() -> None:
    """`transition` returns a new instance of the state, whose step count has the default 0."""
    state = walk(Line(), [RIGHT, LEFT])[-1][0]
    assert (int(state.step_count), int(state.moves)) == (2, 2)


@pytest.mark.parametrize("action", [LEFT, 2, -1], ids=["masked", "too large", "negative"])
def test_illegal_action_only_takes_time(action: int) -> None:
    (before, _), (after, observation, reward, done, _) = walk(Line(), [action])
    assert (int(after.cell), int(after.moves), int(after.step_count)) == (0, 0, 1)
    assert (float(reward), bool(done), int(observation["cell"])) == (-2.0, False, 0)
    assert int(before.step_count) == 0


def test_step_limit_truncates_and_termination_takes_precedence() -> None:
    steps = walk(Line(max_episode_steps=2), [RIGHT, RIGHT])
    state = steps[-1][0]
    assert bool(state.truncated) and not bool(state.terminated) and bool(steps[-1][3])
    last = walk(Line(max_episode_steps=3), [RIGHT, RIGHT, RIGHT])[-1][0]
    assert bool(last.terminated) and not bool(last.truncated)


def test_illegal_actions_reach_the_step_limit() -> None:
    state = walk(Line(max_episode_steps=2), [LEFT, LEFT])[-1][0]
    assert bool(state.truncated)


@pytest.mark.parametrize(
    "actions", [[RIGHT] * 3, [RIGHT, LEFT, RIGHT, LEFT, RIGHT]], ids=["terminated", "truncated"]
)
def test_finished_episode_is_left_as_it_is(actions: list[int]) -> None:
    last, again = walk(Line(), [*actions, RIGHT])[-2:]
    assert eqx.tree_equal((last[0], last[1]), (again[0], again[1]))
    assert (float(again[2]), bool(again[3])) == (0.0, True)
    assert float(walk(Line(), [*actions, 7])[-1][2]) == 0.0


def test_batches_equal_single_environments() -> None:
    environment = Line()
    states, observations = environment.batch_reset(jax.random.split(KEY, 2))
    states, observations, rewards, _, _ = jax.jit(environment.batch_step)(states, jnp.array([LEFT, RIGHT]))
    assert states.cell.tolist() == observations["cell"].tolist() == [0, 1]
    assert rewards.tolist() == [-2.0, 1.0]
    mask = jnp.array([False, True])
    keys = jax.random.split(KEY, 2)
    states, observations = environment.batch_reset_where(mask, keys, states, observations)
    assert (states.step_count.tolist(), observations["cell"].tolist()) == ([1, 0], [0, 0])


def test_mask_is_found_in_observations_of_both_kinds() -> None:
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Seen:
        cell: Any
        action_mask: Any

    class SeenLine(Line):
        def observe(self, state: Place) -> Any:
            return Seen(**super().observe(state))

    class Unmasked(Line):
        def observe(self, state: Place) -> Any:
            return state.cell

    class Hint(Line):
        """The mask is an input of the network, but all actions are legal."""

        def legal_actions(self, state: Place) -> None:
            return None

    for environment in (Line(), SeenLine()):
        state, _ = environment.reset(KEY)
        assert environment.legal_actions(state).tolist() == [False, True]
        assert mask_size(environment) == 2
    for permissive in (Unmasked(), Hint()):
        state, _ = permissive.reset(KEY)
        assert permissive.legal_actions(state) is None and mask_size(permissive) is None
        assert int(permissive.step(state, LEFT)[0].cell) == -1


def test_sampled_actions_are_legal() -> None:
    state, _ = Line().reset(KEY)
    actions = jax.vmap(Line().sample_action, (0, None))(jax.random.split(KEY, 20), state)
    assert actions.tolist() == [RIGHT] * 20
    moved = Line().step(state, RIGHT)[0]
    actions = jax.vmap(Line().sample_action, (0, None))(jax.random.split(KEY, 20), moved)
    assert set(actions.tolist()) == {LEFT, RIGHT}


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (lambda: jnp.ones(3, bool), r"must be bool\[2\], got bool\[3\]"),
        (lambda: jnp.ones(2), r"must be bool\[2\], got float32\[2\]"),
    ],
)
def test_mask_of_another_shape_or_dtype_is_refused(mask: Any, message: str) -> None:
    class Wrong(Line):
        def legal_actions(self, state: Place) -> Any:
            return mask()

    state, _ = Wrong().reset(KEY)
    with pytest.raises(
        TypeError, match=r"Wrong.legal_actions \(or action_mask of its observation\) " + message
    ):
        Wrong().step(state, RIGHT)


def test_boxes_of_floats_are_clipped_and_have_no_mask() -> None:
    class Push(Line):
        observation_space = Discrete(4)
        action_space = Box(-1.0, 1.0, (2,))

        def transition(self, state: Place, action: Any) -> tuple[Any, Any, Any]:
            return state, jnp.sum(action), False

        def observe(self, state: Place) -> Any:
            return state.cell

    assert float(walk(Push(), [jnp.array([7.0, -0.25])])[-1][2]) == 0.75

    class Masked(Push):
        def observe(self, state: Place) -> Any:
            return Line.observe(self, state)

    with pytest.raises(
        TypeError, match=r"must be None, because the action has no choice to mask, got bool\[2\]"
    ):
        walk(Masked(), [jnp.zeros(2)])


def test_missing_method_is_one_line() -> None:
    class Unfinished(Line):
        pass

    class OnlySpaces(Environment):
        observation_space = action_space = Discrete(2)

    assert Unfinished().num_cells == 4
    with pytest.raises(
        TypeError, match=r"abstract.*OnlySpaces.*initial_state.*observe.*transition"
    ) as caught:
        OnlySpaces()
    assert "\n" not in str(caught.value)


def test_state_of_another_class_is_refused() -> None:
    class Bare(Line):
        def initial_state(self, key: Any) -> Any:
            return {"cell": jnp.int32(0)}

    message = "Bare.initial_state must return an instance of a subclass of EpisodeState, got dict"
    with pytest.raises(TypeError, match=re.escape(message)):
        Bare().reset(KEY)


class Other(EpisodeState):
    cell: Array


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda state: Place(state.cell.astype(jnp.float32), state.moves),
            r"Wrong.transition changed state.cell from int32[] to float32[]: return the same shape and dtype",
        ),
        (
            lambda state: Place(state.cell, jnp.zeros(2, jnp.int32)),
            r"Wrong.transition changed state.moves from int32[] to int32[2]: return the same shape and dtype",
        ),
        (
            lambda state: Place(state.cell, 0.5),
            "Wrong.transition changed state.moves from int32[] to float32[]",
        ),
        (lambda state: Other(state.cell), "Wrong.transition returned another structure than its state: "),
    ],
    ids=["dtype", "shape", "Python float", "class"],
)
def test_transition_that_changes_the_types_of_the_state_is_refused(change: Any, message: str) -> None:
    class Wrong(Line):
        def transition(self, state: Place, action: Any) -> tuple[Any, Any, Any]:
            return change(state), 0.0, False

    with pytest.raises(TypeError, match=re.escape(message)) as caught:
        walk(Wrong(), [RIGHT])
    assert "\n" not in str(caught.value).partition("\n---")[0].strip()


def test_python_numbers_get_the_types_of_the_state() -> None:
    class Numbers(Line):
        def initial_state(self, key: Any) -> Place:
            return Place(0, 0)  # type: ignore[arg-type]

        def transition(self, state: Place, action: Any) -> tuple[Any, Any, Any]:
            return Place(1, 1), 1, True  # type: ignore[arg-type]

    (first, _), (second, _, reward, done, _) = walk(Numbers(), [RIGHT])
    for state in (first, second):
        assert (state.cell.dtype, state.moves.dtype, state.step_count.dtype) == (np.int32,) * 3
        assert not any(leaf.weak_type for leaf in jax.tree.leaves(state))
    assert (reward.dtype, done.dtype) == (np.float32, bool)


def test_weak_types_do_not_compile_a_step_twice() -> None:
    class Weak(Line):
        def initial_state(self, key: Any) -> Place:
            return Place(jnp.asarray(0), jnp.where(True, 0, 1))

    environment, step = Weak(), jax.jit(Weak.step)
    state, _ = environment.reset(KEY)
    for _ in range(3):
        state = step(environment, state, RIGHT)[0]
    assert step._cache_size() == 1


class Tasks(Line):
    """Each task is a length, and tasks have names."""

    bonus: float = 0.5
    lengths: Array = array_field(default_factory=lambda: jnp.array([2, 3]))
    names: Any = host_field(default=("short", "long"))

    def transition(self, state: Place, action: Any) -> tuple[Any, Any, Any]:
        state, _, _ = super().transition(state, action)
        return state, self.bonus, state.cell == self.lengths[0]


def test_settings_arrays_and_host_fields() -> None:
    environment = Tasks(bonus=1.0)
    assert [leaf.tolist() for leaf in jax.tree.leaves(environment)] == [[2, 3]]
    seen = []

    @jax.jit
    def total(environment: Tasks) -> Array:
        seen.append((environment.bonus, environment.names, environment.num_cells))
        return environment.lengths.sum()

    assert int(total(environment)) == 5
    assert int(total(Tasks(bonus=1.0, lengths=jnp.array([7, 8]), names=("a", "b")))) == 15
    assert seen == [(1.0, None, 4)], "other arrays and names use the same program"
    total(Tasks(bonus=2.0))
    assert len(seen) == 2, "another setting is another program"


def test_environments_with_arrays_can_be_captured_and_static() -> None:
    longer = Tasks(lengths=jnp.array([4, 4]))
    first = Tasks().reset(KEY)[0]
    assert [bool(jax.jit(one.step)(first, RIGHT)[3]) for one in (Tasks(), longer)] == [False, False]
    last_step = jax.jit(lambda one, state: one.step(state, RIGHT)[3], static_argnums=0)
    near = dataclasses.replace(first, cell=jnp.int32(1))
    assert [bool(last_step(one, near)) for one in (Tasks(), longer)] == [True, False]
    with pytest.raises(
        TypeError, match="a Tasks with traced arrays has no hash: pass it to jitted functions as"
    ):
        jax.jit(hash)(Tasks())


def test_equality_and_hash_follow_the_content() -> None:
    assert Line() == Line(4) != Line(5)
    assert len({Line(), Line(4), Line(5), Line(max_episode_steps=6)}) == 3
    assert Tasks() == Tasks() and hash(Tasks()) == hash(Tasks())
    assert Tasks() != Tasks(lengths=jnp.array([2, 4]))
    assert Tasks() != Tasks(names=("short", "longer"))
    assert Line() != Tasks() and Line() != "line"

    class Renamed(Line):
        pass

    assert Renamed() != Line()


def test_environments_are_frozen_pickled_and_replaced() -> None:
    environment = Tasks(bonus=0.25)
    hash(environment)
    with pytest.raises(dataclasses.FrozenInstanceError):
        environment.bonus = 1.0  # type: ignore[misc]
    for clone in (pickle.loads(pickle.dumps(environment)), copy.deepcopy(environment)):
        assert clone == environment and hash(clone) == hash(environment)
    assert dataclasses.replace(environment, bonus=2.0).bonus == 2.0
    assert repr(Line()) == "Line(num_cells=4, max_episode_steps=5)"


def test_unhashable_setting_is_one_line_with_the_remedy() -> None:
    class Lists(Line):
        walls: Any = None

    message = (
        "Lists.walls must be hashable, got list: use a tuple, or declare it with array_field() if it is an "
        "array"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        jax.tree.structure(Lists(walls=[1, 2]))


def test_spaces_can_be_fields() -> None:
    class Anything(Environment):
        observation_space: Any
        action_space: Any = Discrete(5)

        def initial_state(self, key: Any) -> Place:
            return Place(jnp.int32(0), jnp.int32(0))

        def transition(self, state: Place, action: Any) -> tuple[Any, Any, Any]:
            return state, 0.0, False

        def observe(self, state: Place) -> Any:
            return state.cell

    environment = Anything(Discrete(9))
    assert (environment.observation_space, environment.action_space) == (Discrete(9), Discrete(5))
    assert environment == Anything(observation_space=Discrete(9)) != Anything(Discrete(8))
    assert jax.tree.map(lambda leaf: leaf, environment).observation_space == Discrete(9)
    with pytest.raises(TypeError, match="observation_space"):
        Anything()


def test_optional_methods_have_defaults() -> None:
    class Named(Line):
        render_modes: ClassVar = ("ansi",)

    state, _ = Line().reset(KEY)
    assert (Line().metrics(state), Line().kernel(), Line().render_modes) == ({}, None, ())
    assert [field.name for field in dataclasses.fields(Named)] == ["num_cells", "max_episode_steps"]
    with pytest.raises(ValueError, match="Line cannot be rendered: it defines no render method"):
        Line().render(state)
