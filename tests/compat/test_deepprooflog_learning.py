"""TorchRL collectors, advantages and PPO on a batch of proofs."""

import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchrl")

from torchrl.objectives import ClipPPOLoss  # noqa: E402
from torchrl.objectives.value import GAE  # noqa: E402

from phalanx.compat.deepprooflog.batched_env import BatchedVecEnv  # noqa: E402
from phalanx.compat.deepprooflog.data_handler import DataHandler  # noqa: E402
from phalanx.compat.deepprooflog.index_manager import IndexManager  # noqa: E402
from phalanx.proofs.config import ProofConfig  # noqa: E402
from phalanx.training.ppo import gae  # noqa: E402
from tests.helpers.ancestors import ancestors, index_manager  # noqa: E402
from tests.helpers.torch_policies import actor_and_critic, ppo_update  # noqa: E402


@pytest.mark.filterwarnings("ignore:Creating .* which inherits from WeightUpdaterBase:DeprecationWarning")
def test_collector_gathers_complete_batches_across_episodes() -> None:
    from torchrl.collectors import Collector

    torch.manual_seed(0)
    policy, _ = actor_and_critic(index_manager)
    collector = Collector(
        ancestors(), policy, frames_per_batch=24, total_frames=72, auto_register_policy_transforms=False
    )
    collector.set_seed(4)
    batches = list(collector)
    collector.shutdown()
    assert [batch.batch_size for batch in batches] == [(3, 8)] * 3
    for batch in batches:
        done = batch["next", "done"].squeeze(-1)
        assert done.any() and batch["next", "reward"].shape == (3, 8, 1)
        assert (batch["episode_step"][:, 1:][done[:, :-1]] == 0).all()
        assert (batch["next", "episode_step"][done] >= 1).all()
        assert batch["action_mask"].gather(-1, batch["action"].unsqueeze(-1)).all()
        ids = batch["collector", "traj_ids"]
        assert (ids[:, 1:] - ids[:, :-1] > 0).equal(done[:, :-1])


def test_advantages_equal_those_of_torchrl() -> None:
    torch.manual_seed(1)
    actor, critic = actor_and_critic(index_manager)
    with torch.no_grad():
        data = ancestors().rollout(8, actor, break_when_any_done=False)
        GAE(gamma=0.9, lmbda=0.8, value_network=critic)(data)
        after = critic(data["next"].clone())["state_value"]

    def steps_first(tensor: torch.Tensor) -> np.ndarray:
        return tensor.squeeze(-1).T.numpy()

    ours, targets = gae(
        *(
            jnp.asarray(steps_first(tensor))
            for tensor in (
                data["next", "reward"],
                data["state_value"],
                after,
                data["next", "terminated"],
                data["next", "done"],
            )
        ),
        0.9,
        0.8,
    )
    np.testing.assert_allclose(steps_first(data["advantage"]), ours, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(steps_first(data["value_target"]), targets, rtol=1e-4, atol=1e-5)


def test_torchrl_ppo_learns_to_prove() -> None:
    """An untrained policy proves a third of the queries; ten small updates make it two of three at least."""
    torch.manual_seed(0)
    data_handler = DataHandler(num_families=1, generations=3)
    vocabulary = IndexManager(data_handler)
    config = ProofConfig(
        max_actions=12, max_episode_steps=5, reward={"type": 0}, queries={"negative_ratio": 0, "min_depth": 1}
    )
    env = BatchedVecEnv(
        index_manager=vocabulary,
        data_handler=data_handler,
        queries=data_handler.train_queries,
        batch_size=32,
        config=config,
    )
    actor, critic = actor_and_critic(vocabulary)
    advantages = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss_module = ClipPPOLoss(actor, critic, entropy_coeff=0.01)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=3e-2)
    shares = []
    for _ in range(12):
        with torch.no_grad():
            data = env.rollout(16, actor, break_when_any_done=False)
            proved = (data["next", "reward"] > 0).sum() / data["next", "done"].sum()
            advantages(data)
        losses = ppo_update(loss_module, optimizer, data)
        assert np.isfinite(losses).all()
        shares.append(float(proved))
    assert shares[0] < 0.5
    assert np.mean(shares[-2:]) > 0.66, shares
