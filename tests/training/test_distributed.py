"""Training on several devices of one process, compared with training on one device."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from phalanx.core.vector import without_key_type
from phalanx.logging import LoggingConfig
from phalanx.training import CheckpointConfig, Progress, create_mesh, load_metadata, train
from phalanx.training.checkpoints import open_checkpoint
from phalanx.training.optimizer import OptimizerConfig
from phalanx.training.ppo import PPO, PPOConfig
from tests.helpers.short_walk import ShortWalk, WalkNetwork
from tests.helpers.small_training import metrics_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

# The learning rate is so large that updates stop at target_kl.
CONFIG = PPOConfig(
    num_envs=8,
    num_steps=12,
    num_updates=3,
    update_epochs=2,
    num_minibatches=3,
    optimizer=OptimizerConfig(
        learning_rate=0.03, end_learning_rate=0.02, lr_schedule="linear", max_grad_norm=0.5, eps=1e-5
    ),
    target_kl=1e-5,
    evaluation={"num_episodes": 0},
    checkpoint=CheckpointConfig(every=1, keep=9),
    logging=LoggingConfig(log_frequency=1),
)


def create_ppo(num_devices: int, **settings: Any) -> PPO:
    """Create a PPO trainer that uses the first devices of this process."""
    config = CONFIG.model_copy(update=settings)
    return PPO(config, ShortWalk(), WalkNetwork, create_mesh(jax.devices()[:num_devices]))


def update_once(num_devices: int) -> dict[str, np.ndarray]:
    """Return the arrays of the state, the metrics and the episodes after an update with one minibatch."""
    ppo = create_ppo(num_devices, num_minibatches=1, target_kl=None)
    state, result = ppo.update(ppo.init(jax.random.key(0)))
    return arrays({"state": state, "metrics": dict(result.metrics), "episodes": dict(result.episodes)})


def arrays(tree: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(without_key_type(leaf)) for path, leaf in leaves}


ON_TWO_DEVICES = """
import sys
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from phalanx.training import BC, create_mesh, train
from phalanx.training.device_mesh import AXIS
from tests.helpers.descent import Descent, DescentConfig
from tests.helpers.short_walk import ShortWalk, WalkNetwork
from tests.training import test_bc
from tests.training.test_distributed import arrays, create_ppo, update_once

folder = sys.argv[1]
assert jax.device_count() == 2
np.savez(f"{folder}/update.npz", **update_once(2))

try:
    create_ppo(2, num_envs=9, num_minibatches=1).init(jax.random.key(0))
except ValueError as error:
    open(f"{folder}/indivisible.txt", "w").write(str(error))
train(create_ppo(2), f"{folder}/two")
train(create_ppo(2), f"{folder}/again")
# This run was started on one device, and is continued on two.
ppo = create_ppo(2)
first_update = ppo.update
def update(state):
    if state.step == 1:
        assert len(state.rollout.lengths.devices()) == 2
        np.savez(f"{folder}/resumed.npz", **arrays(state))
    return first_update(state)
ppo.update = update
train(ppo, f"{folder}/continued", resume=True)

class ShardedEpisodes(Descent):
    def update(self, state):
        state, result = super().update(state)
        returns = jax.device_put(jnp.arange(4.0), NamedSharding(create_mesh(), P(AXIS)))
        return state, result._replace(episodes={"episode_returns": returns, "success_mask": returns > 1})

train(ShardedEpisodes(DescentConfig(num_updates=1)), f"{folder}/sharded")

# Only the last environment, which belongs to the second device, is in its first episode.
ended, lengths = np.ones((12, 8), bool), np.ones((12, 8), np.int32)
ended[:, 7], lengths[:, 7] = False, np.arange(1, 13)
mask = jax.shard_map(
    lambda *episodes: ppo.unbiased_episodes(
        ShortWalk(max_episode_steps=1000),
        dict(zip(("episode_mask", "episode_lengths"), episodes)),
        jnp.int32(0),
    ),
    mesh=ppo.mesh, in_specs=P(None, AXIS), out_specs=P(None, AXIS), check_vma=False,
)(ended, lengths)
np.save(f"{folder}/unbiased.npy", mask)

clones = []
for count in (1, 2):
    bc = BC(test_bc.WALK, network=WalkNetwork, mesh=create_mesh(jax.devices()[:count]))
    state, result = bc.update(bc.init(jax.random.key(0)))
    bc.close()
    clones.append(arrays((state.params, dict(result.metrics))))
np.savez(f"{folder}/bc.npz", *(np.stack([one[name] for one in clones]) for name in clones[0]))
"""


def stop_after_first_update(progress: Progress) -> None:
    if progress.update == 1:
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on one device, run `ON_TWO_DEVICES`, and return the folder of the results."""
    folder = tmp_path_factory.mktemp("devices")
    train(create_ppo(1), folder / "one")
    train(create_ppo(1), folder / "continued", show=stop_after_first_update)
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    command = [sys.executable, "-c", ON_TWO_DEVICES, str(folder)]
    subprocess.run(command, check=True, env=os.environ | {"XLA_FLAGS": flags}, cwd=ROOT)
    return folder


def checkpoint(run: Path, step: int) -> dict[str, np.ndarray]:
    """Return the arrays of the environments in a checkpoint by name."""
    like = create_ppo(1).init(jax.random.key(0))
    with open_checkpoint(run, step) as (checkpoints, _, _):
        return arrays(checkpoints.restore(step, like))


def test_update_with_one_minibatch_is_equal_on_one_and_two_devices_up_to_rounding(folder: Path) -> None:
    one, two = update_once(1), dict(np.load(folder / "update.npz"))
    assert one.keys() == two.keys()
    for name, expected in one.items():
        if name.startswith("['episodes']") or (".rollout" in name and expected.dtype != np.float32):
            np.testing.assert_array_equal(two[name], expected, err_msg=name)
        else:
            np.testing.assert_allclose(two[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_result_is_bit_identical_for_the_same_number_of_devices(folder: Path) -> None:
    assert metrics_of(folder / "two") == metrics_of(folder / "again")
    assert any(metrics["gradient_steps"] < 6 for metrics in metrics_of(folder / "two").values())
    one, other = (checkpoint(folder / run, 3) for run in ("two", "again"))
    for name, array in one.items():
        np.testing.assert_array_equal(other[name], array, err_msg=name)


def test_episodes_of_all_devices_are_logged(folder: Path) -> None:
    one, two = metrics_of(folder / "one"), metrics_of(folder / "two")
    assert list(one) == list(two) == [1, 2, 3]
    # The first update acts with the same initial parameters on any number of devices.
    for name in ("num_episodes", "reward_mean", "episode_length_mean", "success_rate"):
        assert two[1][name] == pytest.approx(one[1][name])
    logged = metrics_of(folder / "sharded")[1]
    assert (logged["reward_mean"], logged["reward_max"], logged["success_rate"]) == (1.5, 3.0, 0.5)


def test_run_on_one_device_continues_on_two_with_the_same_environments(folder: Path) -> None:
    resumed, saved = dict(np.load(folder / "resumed.npz")), checkpoint(folder / "one", 1)
    assert resumed.keys() == saved.keys()
    for name, array in saved.items():
        np.testing.assert_array_equal(resumed[name], array, err_msg=name)
    one, continued = (checkpoint(folder / run, 3) for run in ("one", "continued"))
    assert (continued[".rollout.env_ids"] == np.arange(8)).all()
    # Every environment still draws its episodes from its own key.
    first = [
        jax.random.key_data(key) for key in create_ppo(1).init(jax.random.key(0)).rollout.environments.keys
    ]
    for keys in (one, continued):
        assert len(np.unique(keys[".rollout.environments.keys"], axis=0)) == 8
        assert not (keys[".rollout.environments.keys"] == np.stack(first)).all(axis=1).any()
    assert load_metadata(folder / "continued")["env_steps"] == 3 * 8 * 12
    # It can also return to one device.
    assert train(create_ppo(1, num_updates=4), folder / "continued", resume=True, extend=True).update == 4


def test_episode_means_wait_for_the_environments_of_all_devices(folder: Path) -> None:
    assert not np.load(folder / "unbiased.npy").any()


def test_behavior_cloning_is_equal_on_one_and_two_devices_up_to_rounding(folder: Path) -> None:
    for one, two in np.load(folder / "bc.npz").values():
        np.testing.assert_allclose(two, one, rtol=1e-4, atol=1e-6)


def test_environments_and_minibatches_must_be_divisible_by_the_number_of_devices(folder: Path) -> None:
    message = (folder / "indivisible.txt").read_text()
    assert "9 environments and 108 samples per minibatch cannot be divided among 2 devices" in message
