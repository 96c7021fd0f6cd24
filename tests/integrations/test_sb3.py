"""The Stable-Baselines3 vector environment is equivalent to the Gymnasium one, and PPO trains on it."""

import numpy as np
import pytest

stable_baselines3 = pytest.importorskip("stable_baselines3")

from stable_baselines3.common.vec_env import VecMonitor  # noqa: E402

from phalanx.integrations.gymnasium import GymnasiumVectorEnv  # noqa: E402
from phalanx.integrations.sb3 import SB3VecEnv  # noqa: E402
from tests.helpers.small_environments import Lane, arc  # noqa: E402


def test_steps_equal_the_vector_environment_and_infos_report_ends() -> None:
    venv = SB3VecEnv(Lane(), 3, flatten=False, seed=4)
    reference = GymnasiumVectorEnv(Lane(), 3, autoreset_mode="SameStep")
    seen, (expected, _) = venv.reset(), reference.reset(seed=[4, 5, 6])
    np.testing.assert_array_equal(seen["observation"], expected["observation"])
    ended = 0
    for step in range(8):
        actions = np.array([1, 1, step % 2])
        seen, rewards, done, infos = venv.step(actions)
        expected, expected_rewards, terminated, truncated, expected_infos = reference.step(actions)
        np.testing.assert_array_equal(seen["observation"], expected["observation"])
        np.testing.assert_array_equal(rewards, expected_rewards.astype(np.float32))
        np.testing.assert_array_equal(done, terminated | truncated)
        for index in range(3):
            assert ("terminal_observation" in infos[index]) == done[index]
            if done[index]:
                ended += 1
                last = infos[index]["terminal_observation"]["observation"]
                np.testing.assert_array_equal(last, expected_infos["final_obs"][index]["observation"])
                assert infos[index]["TimeLimit.truncated"] == (truncated[index] and not terminated[index])
    assert ended >= 3


def test_masks_are_returned_per_environment_or_reported_missing() -> None:
    venv = SB3VecEnv(arc(), 2, seed=0)
    venv.reset()
    assert venv.has_attr("action_masks")
    masks = venv.env_method("action_masks")
    assert len(masks) == 2
    assert masks[0].dtype == bool
    assert len(masks[0]) == sum(venv.action_space.nvec)
    assert len(venv.env_method("action_masks", indices=[1])) == 1
    assert not SB3VecEnv(Lane(), 2).has_attr("action_masks")
    with pytest.raises(AttributeError, match="only action_masks and render can be called, not 'fly'"):
        venv.env_method("fly")
    with pytest.raises(AttributeError, match="cannot set 'goal'"):
        venv.set_attr("goal", 1)
    assert venv.env_is_wrapped(VecMonitor) == [False, False]


def test_ppo_of_stable_baselines3_trains_on_a_batch() -> None:
    venv = VecMonitor(SB3VecEnv(arc(), 8))
    model = stable_baselines3.PPO(
        "MlpPolicy", venv, n_steps=32, batch_size=64, n_epochs=2, learning_rate=2e-2, gamma=0.5, seed=0
    )
    model.learn(1024)
    returns = [episode["r"] for episode in model.ep_info_buffer]
    assert np.mean(returns[-30:]) > np.mean(returns[:30]), (np.mean(returns[:30]), np.mean(returns[-30:]))


def test_maskable_ppo_never_acts_illegally() -> None:
    contrib = pytest.importorskip("sb3_contrib")
    venv = SB3VecEnv(arc(), 4)
    model = contrib.MaskablePPO("MlpPolicy", venv, n_steps=16, batch_size=32, n_epochs=1, seed=0)
    model.learn(128)
    seen = venv.reset()
    for _ in range(6):
        masks = np.stack(venv.env_method("action_masks"))
        actions, _ = model.predict(seen, action_masks=masks)
        assert masks[np.arange(4), actions[:, 0]].all()
        seen, *_ = venv.step(actions)
