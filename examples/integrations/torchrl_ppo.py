"""Train TorchRL's PPO on proof search, with its collector, advantage estimator and loss.

The environments generate families, and the agent proves queries about them from facts and rules. A proof has
reward 1. At the end, the policy ranks held-out queries among corrupted ones, and the result is compared with
the untrained policy.

python examples/integrations/torchrl_ppo.py

It needs `pip install ".[torch]"`.
"""

import argparse

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.modules import MaskedCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from phalanx.compat.deepprooflog.batched_env import BatchedVecEnv
from phalanx.compat.deepprooflog.data_handler import DataHandler
from phalanx.compat.deepprooflog.index_manager import IndexManager
from phalanx.compat.deepprooflog.model_eval import evaluate_policy
from phalanx.proofs import ProofConfig

WIDTH = 32


class Goals(nn.Module):
    """Embeds goals as the mean of their atoms. An atom is the sum of its predicate and terms."""

    def __init__(self, names: IndexManager) -> None:
        super().__init__()
        sizes = max(names.predicate_idx2str) + 1, *[max(names.constant_idx2str) + 1] * 2
        self.tables = nn.ModuleList(nn.Embedding(size, WIDTH, padding_idx=0) for size in sizes)

    def forward(self, goals: torch.Tensor) -> torch.Tensor:
        atoms = sum(table(goals[..., place]) for place, table in enumerate(self.tables))
        # Small, so that an untrained policy tries everything.
        return 0.1 * atoms.mean(-2)


class Scores(nn.Module):
    """Computes a logit for each successor from the current goals and the successor's goals."""

    def __init__(self, names: IndexManager) -> None:
        super().__init__()
        self.goals = Goals(names)
        self.judge = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    def forward(self, goals: torch.Tensor, successors: torch.Tensor) -> torch.Tensor:
        there = self.goals(successors)
        here = self.goals(goals).expand_as(there)
        return self.judge(torch.cat([here, there], -1)).squeeze(-1)


class Worth(nn.Module):
    """Estimates the value of the current goals."""

    def __init__(self, names: IndexManager) -> None:
        super().__init__()
        self.read = nn.Sequential(Goals(names), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    def forward(self, goals: torch.Tensor) -> torch.Tensor:
        return self.read(goals).squeeze(-2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--queries", type=int, default=40, help="held-out queries to rank [40]")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # JAX has the other cores

    data = DataHandler(num_families=2, generations=3)
    names = IndexManager(data)
    config = ProofConfig(
        max_actions=16, max_episode_steps=6, reward={"type": 0}, queries={"negative_ratio": 0, "min_depth": 1}
    )
    env = BatchedVecEnv(
        index_manager=names,
        data_handler=data,
        queries=data.train_queries,
        batch_size=arguments.num_envs,
        config=config,
    )
    actor = ProbabilisticActor(
        TensorDictModule(Scores(names), in_keys=["sub_index", "derived_sub_indices"], out_keys=["logits"]),
        in_keys={"logits": "logits", "mask": "action_mask"},
        distribution_class=MaskedCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(Worth(names), in_keys=["sub_index"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss_module = ClipPPOLoss(actor, critic, entropy_coeff=0.01)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=1e-2)

    held_out = (*data.valid_queries, *data.test_queries)[: arguments.queries]
    before = evaluate_policy(actor, env, held_out, n_corruptions=20).total

    frames = arguments.num_envs * 16
    collector = Collector(
        env,
        actor,
        frames_per_batch=frames,
        total_frames=frames * arguments.updates,
        auto_register_policy_transforms=False,
    )
    collector.set_seed(0)
    returns = []
    for number, batch in enumerate(collector, 1):
        with torch.no_grad():
            advantage(batch)
        for _ in range(4):
            losses = loss_module(batch.reshape(-1))
            loss = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        ended = batch["next", "done"].sum()
        returns.append(float(batch["next", "reward"].sum() / ended))
        if number == 1 or number % 5 == 0:
            bar = "#" * round(40 * returns[-1])
            print(f"update {number:3}  {bar:40} mean return {returns[-1]:.2f} of {ended} episodes")
    collector.shutdown()
    print(f"mean return of the first update {returns[0]:.2f}, of the last {returns[-1]:.2f}")
    after = evaluate_policy(actor, env, held_out, n_corruptions=20).total
    print(f"untrained: {before.describe()}")
    print(f"trained:   {after.describe()}")


if __name__ == "__main__":
    main()
