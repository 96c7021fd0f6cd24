"""Every integration returns the mask of legal actions and rejects float actions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.core.environment import Environment, mask_size
from phalanx.core.spaces import Composite
from phalanx.integrations.gymnax import GymnaxEnv
from phalanx.registry import register
from tests.helpers.lights_out import LAMPS, LightsOut, all_but
from tests.helpers.small_environments import Lane, arc

PRESSED = 4
MIXED = [all_but(PRESSED), all_but(0)]


def test_mask_size_is_the_number_of_choices_or_none() -> None:
    assert [mask_size(environment) for environment in (LightsOut(), arc(), Lane())] == [LAMPS, 42, None]


def test_gymnasium_mask_is_in_observations_infos_and_action_masks() -> None:
    gym = pytest.importorskip("gymnasium")
    from phalanx.integrations.gymnasium import GymnasiumEnv, GymnasiumVectorEnv, register_environments

    envs = GymnasiumVectorEnv(LightsOut(), 2)
    seen, infos = envs.reset(seed=0)
    assert seen["action_mask"].tolist() == infos["action_mask"].tolist() == [[1] * LAMPS] * 2
    seen, *_, infos = envs.step(np.array([PRESSED, 0]))
    assert seen["action_mask"].astype(bool).tolist() == infos["action_mask"].astype(bool).tolist() == MIXED
    assert envs.action_masks().tolist() == MIXED
    assert envs.observation_space.contains(seen)
    # Environments that are registered later are added to Gymnasium by another call.
    register("masked-lamps-v1", LightsOut)
    register_environments()
    single = gym.make("phalanx/masked-lamps-v1", max_episode_steps=3, render_mode="ansi")
    assert isinstance(single.unwrapped, GymnasiumEnv)
    single.reset(seed=0)
    *_, info = single.step(PRESSED)
    assert info["action_mask"].astype(bool).tolist() == all_but(PRESSED)
    assert set(single.render()) <= set("#. \n")
    # `gym.make` enforces this limit itself.
    assert [single.step(lamp)[3] for lamp in (0, PRESSED)] == [False, True]


def test_gymnasium_final_mask_belongs_to_the_terminal_state() -> None:
    pytest.importorskip("gymnasium")
    from phalanx.integrations.gymnasium import GymnasiumVectorEnv

    envs = GymnasiumVectorEnv(LightsOut(max_episode_steps=1), 2, autoreset_mode="SameStep")
    envs.reset(seed=0)
    seen, *_, infos = envs.step(np.array([PRESSED, 0]))
    assert seen["action_mask"].tolist() == [[1] * LAMPS] * 2, "a new episode has begun"
    assert infos["final_info"]["action_mask"].astype(bool).tolist() == MIXED
    assert [one["action_mask"].astype(bool).tolist() for one in infos["final_obs"]] == MIXED


def test_torchrl_mask_is_found_by_action_mask_transform() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchrl")
    from tensordict import TensorDict
    from torchrl.envs import ActionMask, TransformedEnv, check_env_specs

    from phalanx.integrations.torchrl import BatchedVecEnv

    env = BatchedVecEnv(LightsOut(), 2)
    check_env_specs(env)
    assert env.reset()["action_mask"].tolist() == [[True] * LAMPS] * 2
    after = env.step(TensorDict({"action": torch.tensor([PRESSED, 0])}, [2]))["next"]
    assert after["action_mask"].tolist() == MIXED
    data = TransformedEnv(env, ActionMask()).rollout(10, break_when_any_done=False)
    presses = data["action"]
    running = ~data["next", "done"][:, :-1, 0]
    assert ((presses[:, 1:] != presses[:, :-1]) | ~running).all(), "no lamp twice in a row"


def test_stoa_mask_is_in_extras_and_observation() -> None:
    pytest.importorskip("stoa")
    from phalanx.integrations.stoa import PhalanxToStoa

    env = PhalanxToStoa(LightsOut(), mask_in_observation=True)
    state, first = jax.jit(env.reset)(jax.random.PRNGKey(0))
    assert first.extras["action_mask"].all()
    _, step = jax.jit(env.step)(state, jnp.int32(PRESSED))
    assert step.extras["action_mask"].tolist() == step.observation["action_mask"].tolist() == all_but(PRESSED)
    assert set(step.observation) == {"lamps", "action_mask"}
    assert env.observation_space().contains(step.observation)
    assert set(env.render(state)) <= set("#. \n")


def test_gymnax_mask_is_in_the_info() -> None:
    env = GymnaxEnv(LightsOut())
    key = jax.random.PRNGKey(0)
    _, state = env.reset(key)
    assert env.action_mask(state).all()
    *_, info = jax.jit(env.step)(key, state, jnp.int32(PRESSED))
    assert info["action_mask"].tolist() == all_but(PRESSED)
    keys = jax.random.split(key, 2)
    _, states = jax.vmap(env.reset)(keys)
    *_, info = jax.vmap(env.step)(keys, states, jnp.array([PRESSED, 0]))
    assert info["action_mask"].tolist() == MIXED


@pytest.mark.parametrize("environment", [LightsOut(), arc(), Lane()], ids=lambda e: type(e).__name__)
def test_float_actions_are_rejected(environment: Environment) -> None:
    key = jax.random.PRNGKey(0)
    state, _ = environment.reset(key)
    float_action = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), environment.sample_action(key, state))
    with pytest.raises(TypeError, match=r"action.* must be integers, got float32"):
        GymnaxEnv(environment).step(key, state, float_action)
    with pytest.raises(TypeError, match=r"action.* must be integers, got float32"):
        GymnaxEnv(environment).step_env(key, state, float_action)
    numbers = np.stack([np.asarray(leaf) for leaf in jax.tree.leaves(float_action)])
    numbers = numbers if isinstance(environment.action_space, Composite) else numbers[0]
    pytest.importorskip("stoa")
    from phalanx.integrations.stoa import PhalanxToStoa

    stoa = PhalanxToStoa(environment)
    with pytest.raises(TypeError, match=r"action.* must be integers, got float32"):
        jax.jit(stoa.step)(stoa.reset(key)[0], numbers)
    pytest.importorskip("gymnasium")
    from phalanx.integrations.gymnasium import GymnasiumVectorEnv

    envs = GymnasiumVectorEnv(environment, 1)
    envs.reset(seed=0)
    with pytest.raises(TypeError, match="actions must be integers, got float"):
        envs.step(numbers[None])


def test_float_cell_masks_are_rejected() -> None:
    pytest.importorskip("gymnasium")
    from phalanx.integrations.gymnasium import GymnasiumVectorEnv

    envs = GymnasiumVectorEnv(arc("mask"), 1)
    envs.reset(seed=0)
    half = {"operation": np.array([3]), "selection": np.full((1, 2, 3), 0.5)}
    with pytest.raises(TypeError, match=r"actions\['selection'\] must be integers, got float"):
        envs.step(half)
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchrl")
    from tensordict import TensorDict

    from phalanx.integrations.torchrl import BatchedVecEnv as TorchRLVecEnv

    env = TorchRLVecEnv(arc("mask"), 1)
    env.reset()
    entries = {"operation": torch.tensor([3]), "selection": torch.full((1, 2, 3), 0.5)}
    with pytest.raises(TypeError, match="'action, selection' must be integers, got torch"):
        env.step(TensorDict({"action": entries}, [1]))
