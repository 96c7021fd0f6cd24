"""Gymnasium's vector wrappers and Stable-Baselines3 on Phalanx environments."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

gym = pytest.importorskip("gymnasium")

from gymnasium.vector import AutoresetMode  # noqa: E402
from gymnasium.wrappers import vector as wrappers  # noqa: E402

from phalanx.integrations.gymnasium import GymnasiumEnv, GymnasiumVectorEnv  # noqa: E402
from tests.helpers.small_environments import Lane, arc  # noqa: E402

RIGHT = np.array([1, 1])


def lane(**settings: Any) -> GymnasiumVectorEnv:
    return GymnasiumVectorEnv(Lane(), 2, **settings)


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
def test_episode_statistics_are_the_sums_of_rewards_and_steps(mode: AutoresetMode) -> None:
    envs = wrappers.RecordEpisodeStatistics(lane(autoreset_mode=mode))
    seen, _ = envs.reset(seed=0)
    lengths = (4 - seen["observation"][:, :5].argmax(1)).tolist()
    found = []
    for _ in range(30):
        _, _, terminated, truncated, infos = envs.step(RIGHT)
        ended = terminated | truncated
        if ended.any():
            found += zip(infos["episode"]["l"][ended], infos["episode"]["r"][ended], strict=True)
            if mode is AutoresetMode.DISABLED:
                envs.reset(options={"reset_mask": ended})
    assert envs.episode_count == len(found) >= 8
    assert sorted(lengths) == sorted(int(length) for length, _ in found[:2])
    assert all(total == 1 - 0.125 * (length - 1) for length, total in found)


def test_observations_are_normalized() -> None:
    envs = wrappers.NormalizeObservation(lane(flatten=True))
    envs.reset(seed=0)
    rows = np.concatenate([envs.step(RIGHT)[0] for _ in range(200)])
    assert rows in gym.spaces.Box(-np.inf, np.inf, rows.shape)
    assert np.abs(rows[100:].mean(0)).max() < 0.2 and np.abs(rows[100:, :5].std(0) - 1).max() < 0.3


def test_rewards_and_observations_can_be_transformed() -> None:
    envs = wrappers.ClipReward(wrappers.FlattenObservation(lane()), 0.0, 0.5)
    seen, _ = envs.reset(seed=0)
    assert seen.shape == (2, 6) and seen in envs.observation_space
    rewards = np.concatenate([envs.step(RIGHT)[1] for _ in range(8)])
    assert sorted(set(rewards.tolist())) == [0.0, 0.5]


def test_infos_are_converted_to_a_list_with_final_infos() -> None:
    envs = wrappers.DictInfoToList(lane(autoreset_mode="SameStep"))
    _, infos = envs.reset(seed=0)
    assert infos == [{}, {}]
    for _ in range(4):
        _, _, terminated, _, infos = envs.step(RIGHT)
        for ended, info in zip(terminated, infos, strict=True):
            assert ("final_info" in info) == ended and ("position" in info) != ended
            if ended:
                assert info["final_info"]["position"] == 4
                assert info["final_obs"]["observation"][4] == 1


def test_arrays_are_converted_to_tensors() -> None:
    torch = pytest.importorskip("torch")
    # Required by Gymnasium's array conversions and installed with gymnasium[torch].
    pytest.importorskip("array_api_compat")
    envs = wrappers.NumpyToTorch(GymnasiumVectorEnv(arc(), 2))
    seen, _ = envs.reset(seed=0)
    assert seen["observation"].dtype == torch.int8
    actions = torch.tensor([[2, 0, 1], [34, 0, 0]])
    seen, rewards, terminated, _, infos = envs.step(actions)
    assert rewards.shape == (2,) and terminated.tolist() == [False, True]
    assert seen["observation"][0, 0].tolist() == [0, 2, -1]
    assert infos["action_mask"].sum(1).tolist() == [3, 3]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Limit PyTorch to one thread, because its thread pool busy-waits on a machine with other jobs."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_ppo_of_stable_baselines3_learns_to_paint_a_cell() -> None:
    """PPO does not support masks, so it must learn to avoid illegal operations."""
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.env_checker import check_env
    from stable_baselines3.common.monitor import Monitor

    env = Monitor(GymnasiumEnv(arc(), flatten=True))
    check_env(env, skip_render_check=True)
    model = stable_baselines3.PPO(
        "MlpPolicy", env, n_steps=128, batch_size=64, n_epochs=4, learning_rate=2e-2, gamma=0.5, seed=0
    )
    model.learn(640)
    returns = env.get_episode_rewards()
    assert np.mean(returns[-30:]) > np.mean(returns[:30]) + 2, (np.mean(returns[:30]), np.mean(returns[-30:]))
