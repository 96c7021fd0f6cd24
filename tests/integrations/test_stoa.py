"""The Stoa interface: episodes, termination and truncation, and Stoa's wrappers under jit."""

import importlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

stoa = pytest.importorskip("stoa")

from stoa import StepType, TimeStep  # noqa: E402
from stoa.core_wrappers.auto_reset import CachedAutoResetWrapper  # noqa: E402
from stoa.core_wrappers.vmap import VmapWrapper  # noqa: E402

from phalanx.core.testing.tree_diff import differences  # noqa: E402
from phalanx.integrations.stoa import PhalanxToStoa  # noqa: E402
from tests.helpers.small_environments import CELLS, LEFT, RIGHT, Lane, arc, proofs  # noqa: E402

# Environments are hashable static arguments, so that tests share compiled functions.
reset = jax.jit(lambda env, key: env.reset(key), static_argnums=0)
step = jax.jit(lambda env, state, action: env.step(state, action), static_argnums=0)

ENVIRONMENTS = {"lane": Lane(), "arc": arc(), "proofs": proofs()}


def as_dict(record: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if value is not None}


def vector(action: Any) -> Any:
    """Convert an action to Stoa's format, which is a vector for composite actions."""
    return action if isinstance(action, jax.Array) else jnp.stack(list(vars(action).values()))


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_episode_equals_core_steps(name: str) -> None:
    core, env = ENVIRONMENTS[name], PhalanxToStoa(ENVIRONMENTS[name])

    @jax.jit
    def rollout(key: jax.Array, action_keys: jax.Array) -> tuple[Any, ...]:
        """Run both environments with the same actions. Stoa's state has a key of its own."""
        state, first = env.reset(key)
        core_state, seen = core.reset(jax.random.split(key)[1])

        def step_both(states: tuple[Any, Any], key: jax.Array) -> tuple[Any, Any]:
            state, core_state = states
            action = core.sample_action(key, core_state)
            state, timestep = env.step(state, vector(action))
            core_state, *outcome = core.step(core_state, action)
            return (state, core_state), (timestep, outcome, state.base_env_state, core_state)

        _, steps = jax.lax.scan(step_both, (state, core_state), action_keys)
        return first, seen, steps

    first, seen, (timesteps, outcome, states, core_state) = rollout(
        jax.random.PRNGKey(1), jax.random.split(jax.random.PRNGKey(3 if name == "arc" else 2), 8)
    )
    observations, rewards, dones, info = outcome
    if name == "proofs":
        seen, observations = as_dict(seen), as_dict(observations)
    assert differences((seen, observations), (first.observation, timesteps.observation), "observations") == []
    assert differences((rewards, dones), (timesteps.reward, timesteps.last()), "rewards and dones") == []
    assert differences(as_dict(info), timesteps.extras["info"], "info") == []
    assert differences(core_state, states, "state") == []
    assert first.step_type == StepType.FIRST and bool(dones[-1]) and not bool(dones[0]), (
        "the episode must end"
    )
    assert jax.tree.structure(first) == jax.tree.structure(timesteps)


def walk(actions: list[int]) -> list[TimeStep]:
    env = PhalanxToStoa(Lane())
    state, timestep = reset(env, jax.random.PRNGKey(0))
    steps = [timestep]
    for action in actions:
        state, timestep = step(env, state, jnp.int32(action))
        steps.append(timestep)
    return steps


def test_discount_is_zero_only_after_termination() -> None:
    reached, cut = walk([RIGHT] * 5), walk([LEFT] * 7)
    kinds = [int(step.step_type) for step in reached]
    goal = kinds.index(int(StepType.TERMINATED))
    assert kinds[:goal] == [0] + [1] * (goal - 1) and goal in (3, 4)
    assert [float(step.discount) for step in reached[: goal + 1]] == [1.0] * goal + [0.0]
    assert [int(step.step_type) for step in cut] == [0, 1, 1, 1, 1, 1, 3, 3]
    assert [float(step.discount) for step in cut] == [1.0] * 8
    assert [float(step.reward) for step in cut] == [0.0] + [-0.125] * 6 + [0.0]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_time_steps_and_sampled_actions_are_in_the_spaces(name: str) -> None:
    env = PhalanxToStoa(ENVIRONMENTS[name])
    spaces = env.environment_space()
    state, _ = reset(env, jax.random.PRNGKey(1))
    action = spaces.actions.sample(jax.random.PRNGKey(4))
    _, timestep = step(env, state, action)
    assert spaces.contains(timestep, action)
    assert not spaces.contains(timestep, action + 50)
    assert len(spaces.state.spaces) == len(jax.tree.leaves(state))


def test_arc_actions_can_be_vectors_dictionaries_or_action_objects() -> None:
    env = PhalanxToStoa(arc())
    state, _ = reset(env, jax.random.PRNGKey(0))
    assert env.action_space().num_values.tolist() == [42, 2, 3]
    fields = {"operation": jnp.int32(3), "row": jnp.int32(0), "col": jnp.int32(0)}
    action_object = env.environment.action_space.constructor(**fields)
    for action in (jnp.array([3, 0, 0]), fields, action_object):
        _, timestep = step(env, state, action)
        assert timestep.observation.tolist() == [[3, 0, -1], [-1, -1, -1]]
        assert timestep.step_type == StepType.TERMINATED and timestep.extras["info"]["solved"]
    with pytest.raises(ValueError, match=r"the 3 numbers operation, row, col; got shape \(2,\)"):
        step(env, state, jnp.array([3, 0]))
    with pytest.raises(TypeError, match=r"the keys operation, row, col, got \['operation'\]"):
        step(env, state, {"operation": jnp.int32(3)})
    cells = PhalanxToStoa(arc("mask"))
    drawn = [cells.action_space().sample(jax.random.PRNGKey(n))["selection"] for n in range(3)]
    assert np.unique(drawn).tolist() == [False, True] and drawn[0].shape == (2, 3)
    with pytest.raises(TypeError, match="must be a dictionary with the keys operation, selection, got "):
        step(cells, state, jnp.array([3, 0]))


def test_mask_is_in_extras_and_optionally_in_the_observation() -> None:
    _, timestep = reset(PhalanxToStoa(proofs()), jax.random.PRNGKey(1))
    assert timestep.extras["action_mask"].tolist() == timestep.observation["action_mask"].tolist()
    shown = PhalanxToStoa(arc(), mask_in_observation=True)
    _, timestep = reset(shown, jax.random.PRNGKey(0))
    assert jnp.flatnonzero(timestep.observation["action_mask"]).tolist() == [2, 3, 34]
    assert timestep.observation["observation"].shape == (2, 3)
    assert shown.observation_space().contains(timestep.observation)
    masked = stoa.AddActionMaskWrapper(PhalanxToStoa(proofs()))
    _, timestep = jax.jit(masked.reset)(jax.random.PRNGKey(1))
    assert timestep.observation["action_mask"].shape == (4,)
    with pytest.raises(ValueError, match="Lane has no mask of legal actions"):
        PhalanxToStoa(Lane(), mask_in_observation=True)


def run(env: stoa.Environment, steps: int = 12, num_envs: int = 0) -> tuple[TimeStep, TimeStep]:
    """Return the first and the other time steps of a compiled run to the right, batched if `num_envs` > 0."""
    action = jnp.full((num_envs,) if num_envs else (), RIGHT, jnp.int32)

    @jax.jit
    def rollout(key: jax.Array) -> tuple[TimeStep, TimeStep]:
        state, first = env.reset(key)
        _, others = jax.lax.scan(lambda state, _: env.step(state, action), state, None, steps)
        return first, others

    return rollout(jax.random.PRNGKey(5))


def test_auto_reset_starts_a_new_episode_and_keeps_the_last_observation() -> None:
    env = stoa.AutoResetWrapper(PhalanxToStoa(Lane()), next_obs_in_extras=True)
    _, steps = run(stoa.RecordEpisodeMetrics(env), 24)
    ends = np.flatnonzero(steps.last())
    assert steps.terminated()[ends].all()
    last, first = steps.extras["next_obs"][ends], steps.observation[ends]
    assert (last[:, CELLS - 1] == 1).all() and (last[:, CELLS] > 0).all()
    assert (first[:, :2].sum(axis=1) == 1).all() and (first[:, CELLS] == 0).all()
    metrics = steps.extras["episode_metrics"]
    lengths = np.diff(ends, prepend=-1)
    assert metrics["episode_length"][ends].tolist() == lengths.tolist()
    assert set(lengths.tolist()) == {3, 4}, "episodes must start in both cells"
    returns = 1 - 0.125 * (lengths - 1)
    assert np.allclose(metrics["episode_return"][ends], returns)


def test_cached_auto_reset_repeats_the_episode() -> None:
    first, steps = run(CachedAutoResetWrapper(PhalanxToStoa(Lane())))
    ends = np.flatnonzero(steps.last())
    assert len(ends) >= 3
    assert (steps.observation[ends] == first.observation).all()


def test_vmapped_wrappers_run_many_environments() -> None:
    stack = VmapWrapper(stoa.RecordEpisodeMetrics(stoa.AutoResetWrapper(PhalanxToStoa(Lane()))), 6)
    first, steps = run(stack, num_envs=6)
    assert first.observation.shape == (6, CELLS + 1) and steps.reward.shape == (12, 6)
    starts = first.observation[:, :2].argmax(axis=1)
    assert set(starts.tolist()) == {0, 1}
    assert (jnp.argmax(steps.last(), axis=0) == CELLS - 2 - starts).all()


def test_vmapped_arc_environments_are_reset() -> None:
    stack = VmapWrapper(stoa.AutoResetWrapper(PhalanxToStoa(ENVIRONMENTS["arc"]), next_obs_in_extras=True), 2)
    state, first = jax.jit(stack.reset)(jax.random.PRNGKey(0))
    # Operation 3 at the left cell solves the task, at the right one it does not.
    _, steps = jax.jit(stack.step)(state, jnp.array([[3, 0, 0], [3, 0, 1]]))
    assert steps.last().tolist() == [True, False]
    assert steps.observation.tolist() == [first.observation[0].tolist(), [[0, 3, -1], [-1, -1, -1]]]
    assert steps.extras["next_obs"][0].tolist() == [[3, 0, -1], [-1, -1, -1]]


def test_vmapped_proof_environments_are_reset() -> None:
    stack = VmapWrapper(stoa.AutoResetWrapper(PhalanxToStoa(ENVIRONMENTS["proofs"])), 3)

    @jax.jit
    def rollout(key: jax.Array) -> TimeStep:
        state, _ = stack.reset(key)
        return jax.lax.scan(lambda state, _: stack.step(state, jnp.zeros(3, jnp.int32)), state, None, 5)[1]

    ends = rollout(jax.random.PRNGKey(0)).last()
    assert ends.tolist() == [[False] * 3, [True] * 3, [False] * 3, [True] * 3, [False] * 3]


WRAPPERS = {
    "keys": (stoa.AddRNGKey, (6,)),
    "flat": (stoa.FlattenObservationWrapper, (6,)),
    "frames": (lambda env: stoa.FrameStackingWrapper(env, num_frames=2), (12,)),
    "previous action": (stoa.AddStartFlagAndPrevAction, (9,)),
    "step limit": (lambda env: stoa.EpisodeStepLimitWrapper(env, 2), (6,)),
    "extracted": (
        lambda env: stoa.ObservationExtractWrapper(stoa.AddStepCountWrapper(env), "observation"),
        (6,),
    ),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_other_stoa_wrappers_can_be_compiled(name: str) -> None:
    wrap, shape = WRAPPERS[name]
    env = wrap(PhalanxToStoa(Lane()))
    first, steps = run(env, 4)
    assert first.observation.shape == env.observation_space().shape == shape
    assert steps.observation.shape == (4, *shape)
    if name == "step limit":
        assert steps.step_type.tolist()[1] == int(StepType.TRUNCATED) and steps.discount[1] == 1


def test_arc_action_can_be_a_single_integer() -> None:
    env = stoa.MultiDiscreteToDiscreteWrapper(stoa.AutoResetWrapper(PhalanxToStoa(arc())))
    assert env.action_space().num_values == 42 * 2 * 3
    state, _ = jax.jit(env.reset)(jax.random.PRNGKey(0))
    _, timestep = jax.jit(env.step)(state, jnp.int32(3 * 6))
    assert timestep.step_type == StepType.TERMINATED, "operation 3 at row 0, column 0"
    assert timestep.observation.tolist() == [[0, 0, -1], [-1, -1, -1]]


def test_rendering_works_through_wrappers() -> None:
    env = stoa.RecordEpisodeMetrics(PhalanxToStoa(arc()))
    state, _ = jax.jit(env.reset)(jax.random.PRNGKey(0))
    assert "<svg" in env.render(state)
    bare = PhalanxToStoa(Lane())
    with pytest.raises(TypeError, match="Lane cannot be rendered"):
        bare.render(reset(bare, jax.random.PRNGKey(0))[0])
    env.close()


def test_equal_environments_are_equal_and_can_be_static_arguments() -> None:
    one, same, other = PhalanxToStoa(arc()), PhalanxToStoa(arc()), PhalanxToStoa(Lane())
    assert one == same and hash(one) == hash(same) and one != other
    assert one != PhalanxToStoa(arc(), mask_in_observation=True)


def test_reinforce_learns_with_stoa_wrappers() -> None:
    env = VmapWrapper(stoa.RecordEpisodeMetrics(stoa.AutoResetWrapper(PhalanxToStoa(Lane()))), 16)
    optimizer = optax.adam(0.3)

    def act(weights: jax.Array, seen: jax.Array) -> jax.Array:
        return seen[:, :CELLS].astype(jnp.float32) @ weights

    def update(carry: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        weights, moments, state, seen = carry

        def step(carry: Any, key: jax.Array) -> tuple[Any, Any]:
            state, seen = carry
            chosen = jax.random.categorical(key, act(weights, seen))
            state, timestep = env.step(state, chosen)
            return (state, timestep.observation), (seen, chosen, timestep)

        (state, seen), (before, chosen, steps) = jax.lax.scan(step, (state, seen), jax.random.split(key, 12))

        def back(value: jax.Array, step: TimeStep) -> tuple[jax.Array, jax.Array]:
            value = step.reward + jnp.where(step.last(), 0.0, value)
            return value, value

        _, returns = jax.lax.scan(back, jnp.zeros(16), steps, reverse=True)

        def loss(weights: jax.Array) -> jax.Array:
            logps = jax.nn.log_softmax(jax.vmap(act, (None, 0))(weights, before))
            taken = jnp.take_along_axis(logps, chosen[..., None], -1)[..., 0]
            return -jnp.mean(taken * (returns - returns.mean()))

        updates, moments = optimizer.update(jax.grad(loss)(weights), moments)
        ended = steps.last()
        mean = jnp.sum(steps.extras["episode_metrics"]["episode_return"] * ended) / jnp.sum(ended)
        return (optax.apply_updates(weights, updates), moments, state, seen), mean

    @jax.jit
    def train(key: jax.Array) -> jax.Array:
        state, timestep = env.reset(key)
        weights = jnp.zeros((CELLS, 2))
        carry = (weights, optimizer.init(weights), state, timestep.observation)
        return jax.lax.scan(update, carry, jax.random.split(key, 30))[1]

    returns = train(jax.random.PRNGKey(0))
    # The maximum returns from the two cells are 0.625 and 0.75.
    assert returns[0] < 0.0 and returns[-5:].mean() > 0.6


def test_missing_library_is_reported_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for loaded in [name for name in sys.modules if name.partition(".")[0] == "stoa"]:
        monkeypatch.setitem(sys.modules, loaded, None)
    monkeypatch.delitem(sys.modules, "phalanx.integrations.stoa")
    with pytest.raises(ModuleNotFoundError, match=r"needs stoa.*: pip install 'phalanx\[stoa\]'"):
        importlib.import_module("phalanx.integrations.stoa")
