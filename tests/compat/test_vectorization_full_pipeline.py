"""The seven-step pipeline of the vectorization document on the generated knowledge base."""

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchrl")

from tensordict import TensorDict  # noqa: E402
from tensordict.nn import InteractionType, TensorDictModule  # noqa: E402
from torchrl.modules import MaskedCategorical, ProbabilisticActor, ValueOperator  # noqa: E402
from torchrl.objectives import ClipPPOLoss  # noqa: E402
from torchrl.objectives.value import GAE  # noqa: E402

from phalanx.compat.deepprooflog.batched_env import BatchedVecEnv  # noqa: E402
from phalanx.compat.deepprooflog.data_handler import DataHandler  # noqa: E402
from phalanx.compat.deepprooflog.index_manager import IndexManager  # noqa: E402

BATCH, STEPS, ATOMS, STATES = 4, 16, 6, 64


class States(torch.nn.Module):
    """Embeds each index of an atom and averages over atoms."""

    def __init__(self, index_manager: IndexManager, width: int) -> None:
        super().__init__()
        self.predicates = torch.nn.Embedding(index_manager.num_predicate_embeddings, width, padding_idx=0)
        self.terms = torch.nn.Embedding(index_manager.num_constant_embeddings, width, padding_idx=0)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return (self.predicates(states[..., 0]) + self.terms(states[..., 1:]).sum(-2)).mean(-2)


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """Use one thread: several threads busy-wait, which is slow while other processes run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_torch_thread")
def test_the_full_pipeline() -> None:
    torch.manual_seed(0)
    # 1. Dataset loading
    data_handler = DataHandler(num_families=1, generations=3)
    index_manager = IndexManager(data_handler, padding_atoms=ATOMS)
    assert data_handler.train_queries and data_handler.rules

    # 2. BatchedVecEnv creation with batch_size=4
    env = BatchedVecEnv(
        index_manager=index_manager,
        data_handler=data_handler,
        queries=data_handler.train_queries,
        batch_size=BATCH,
    )
    assert env.batch_size == (BATCH,)

    # 3. Actor-critic module creation
    embed = States(index_manager, 8)

    def scores(state: torch.Tensor, successors: torch.Tensor) -> torch.Tensor:
        return (embed(state) * embed(successors)).sum(-1)

    actor = ProbabilisticActor(
        TensorDictModule(scores, in_keys=["sub_index", "derived_sub_indices"], out_keys=["logits"]),
        in_keys={"logits": "logits", "mask": "action_mask"},
        out_keys=["action"],
        distribution_class=MaskedCategorical,
        return_log_prob=True,
        default_interaction_type=InteractionType.RANDOM,
    )
    reader = torch.nn.Sequential(embed, torch.nn.Linear(8, 1), torch.nn.Flatten(-2, -1))
    critic = ValueOperator(reader, in_keys=["sub_index"])

    # 4. Environment reset and step operations
    first = env.reset()
    assert first["sub_index"].shape == (BATCH, 1, ATOMS, 3)
    assert first["derived_sub_indices"].shape == (BATCH, STATES, ATOMS, 3)
    assert first["action_mask"].shape == (BATCH, STATES) and first["action_mask"].any(-1).all()
    after = env.step(actor(first))
    assert after["action"].shape == (BATCH,)
    for name in ("reward", "done", "terminated", "truncated"):
        assert after["next", name].shape == (BATCH, 1)

    # 5. Rollout collection (16 steps x 4 parallel queries)
    env.set_seed(0)
    with torch.no_grad():
        steps: list[TensorDict] = []
        current = env.reset()
        for _ in range(STEPS):
            taken, current = env.step_and_maybe_reset(actor(current))
            steps.append(taken)
    batch_td_time = torch.stack(steps)
    assert batch_td_time.batch_size == (STEPS, BATCH)
    assert batch_td_time["next", "done"].any()

    # 6. PPO learning with GAE advantage computation
    gae = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    with torch.no_grad():
        batch_td_time = gae(batch_td_time.permute(1, 0)).permute(1, 0)
    loss_module = ClipPPOLoss(actor, critic)
    optimizer = torch.optim.Adam(embed.parameters(), lr=1e-2)
    before = embed.predicates.weight.detach().clone()
    for _ in range(3):
        terms = loss_module(batch_td_time.reshape(-1))
        loss = terms["loss_objective"] + terms["loss_critic"] + terms["loss_entropy"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert torch.isfinite(loss)
    assert not torch.equal(embed.predicates.weight, before)

    # 7. All tensor shapes and dimensions correct
    for name in ("advantage", "value_target", "state_value"):
        assert batch_td_time[name].shape == (STEPS, BATCH, 1)
    assert batch_td_time["action_log_prob"].shape == (STEPS, BATCH)
