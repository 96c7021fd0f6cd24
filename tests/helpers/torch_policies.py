"""A small actor-critic for proofs, built from TorchRL's modules, and a PPO update.

An atom is the sum of the embeddings of its three parts, and a state is the mean of its atoms. The actor
scores every successor against the state, and the critic reads the state.
"""

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, TensorDictModule
from torch import nn
from torchrl.modules import MaskedCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss

from phalanx.compat.deepprooflog.index_manager import IndexManager


class StateEncoder(nn.Module):
    def __init__(self, index_manager: IndexManager, width: int) -> None:
        super().__init__()
        self.predicates = nn.Embedding(max(index_manager.predicate_idx2str) + 1, width, padding_idx=0)
        self.terms = nn.ModuleList(
            nn.Embedding(max(index_manager.constant_idx2str) + 1, width, padding_idx=0) for _ in range(2)
        )

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        first, second = (table(states[..., i + 1]) for i, table in enumerate(self.terms))
        # Small embeddings give an untrained policy nearly uniform probabilities.
        return 0.1 * (self.predicates(states[..., 0]) + first + second).mean(-2)


class SuccessorScores(nn.Module):
    def __init__(self, embed: StateEncoder, width: int) -> None:
        super().__init__()
        self.embed = embed
        self.project = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))
        self.prior = nn.Linear(width, 1)

    def forward(self, sub_index: torch.Tensor, derived: torch.Tensor) -> torch.Tensor:
        state, successors = self.project(self.embed(sub_index)), self.embed(derived)
        return (state * successors).sum(-1) + self.prior(successors).squeeze(-1)


class ValueHead(nn.Module):
    def __init__(self, embed: StateEncoder, width: int) -> None:
        super().__init__()
        self.embed = embed
        self.value = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, sub_index: torch.Tensor) -> torch.Tensor:
        return self.value(self.embed(sub_index).squeeze(-2))


def actor_and_critic(
    index_manager: IndexManager, width: int = 16
) -> tuple[ProbabilisticActor, ValueOperator]:
    scores = TensorDictModule(
        SuccessorScores(StateEncoder(index_manager, width), width),
        in_keys=["sub_index", "derived_sub_indices"],
        out_keys=["logits"],
    )
    actor = ProbabilisticActor(
        scores,
        in_keys={"logits": "logits", "mask": "action_mask"},
        out_keys=["action"],
        distribution_class=MaskedCategorical,
        return_log_prob=True,
        default_interaction_type=InteractionType.RANDOM,
    )
    critic = ValueOperator(ValueHead(StateEncoder(index_manager, width), width), in_keys=["sub_index"])
    return actor, critic


def ppo_update(
    loss_module: ClipPPOLoss, optimizer: torch.optim.Optimizer, data: TensorDictBase, epochs: int = 4
) -> list[float]:
    """Train for several epochs on data with advantages and return the losses."""
    losses = []
    for _ in range(epochs):
        terms = loss_module(data.reshape(-1))
        loss = terms["loss_objective"] + terms["loss_critic"] + terms["loss_entropy"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses
