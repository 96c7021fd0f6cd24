"""Every code block of the vectorization update, as it stands there but for its import lines and its dots.

The dots stand for arguments that it leaves out; what earlier parts leave behind comes from the fixtures.
"""
# The blocks keep the update's own quotes, layout and habits.
# ruff: noqa
# fmt: off

import dataclasses
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchrl")

from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.envs import ParallelEnv, SerialEnv
from torchrl.objectives.value import GAE

from phalanx.compat.deepprooflog.batched_env import BatchedVecEnv
from phalanx.integrations.torchrl import num_envs
from phalanx.kg.knowledge_base import DataHandler
from phalanx.kg.vocabulary import IndexManager


@dataclasses.dataclass
class Args:
    n_envs: int = 4
    n_eval_envs: int = 2


args = Args()


@pytest.fixture(scope="module")
def dh() -> DataHandler:
    return DataHandler(num_families=1, generations=3)


@pytest.fixture(scope="module")
def index_manager(dh: DataHandler) -> IndexManager:
    return IndexManager(dh)


def test_embedding_tables_are_sized_by_the_largest_index(dh: DataHandler, index_manager: IndexManager) -> None:
    max_predicate_idx = max(index_manager.predicate_idx2str.keys())  # 100
    max_constant_idx = max(index_manager.constant_idx2str.keys())

    assert max_predicate_idx == 2 * index_manager.num_predicates + 3
    tables = torch.nn.Embedding(max_predicate_idx + 1, 2), torch.nn.Embedding(max_constant_idx + 1, 2)
    twin = index_manager.predicate_str2idx[dh.predicates[-1] + "_kge"]
    assert tables[0](torch.tensor(twin)).shape == (2,)
    with pytest.raises(IndexError):
        torch.nn.Embedding(index_manager.num_predicates, 2)(torch.tensor(twin))
    env = BatchedVecEnv(index_manager=index_manager, data_handler=dh, queries=dh.train_queries, batch_size=args.n_envs)
    assert env.observation_spec["derived_sub_indices"].space.high.max() <= max(max_predicate_idx, max_constant_idx)


def test_advantages_over_time_and_back() -> None:
    steps, batch = 5, 3
    value_net = TensorDictModule(lambda value: value, in_keys=["value"], out_keys=["state_value"])
    gae = GAE(gamma=0.5, lmbda=1.0, value_network=value_net)
    zeros = torch.zeros(steps, batch, 1)
    last = zeros.clone(); last[-1] = 1
    batch_td_time = TensorDict({
        "value": zeros,
        "next": {"value": zeros, "reward": last, "done": last.bool(), "terminated": last.bool()},
    }, batch_size=[steps, batch])

    batch_td_time = batch_td_time.permute(1, 0)  # [T,B] -> [B,T]
    batch_td_time = gae(batch_td_time)
    batch_td_time = batch_td_time.permute(1, 0)  # [B,T] -> [T,B]

    assert batch_td_time.batch_size == (steps, batch)
    # What the last step pays is halved with every step back, in every environment.
    assert batch_td_time["advantage"][:, 1, 0].tolist() == [0.0625, 0.125, 0.25, 0.5, 1.0]
    assert batch_td_time["advantage"].shape == (steps, batch, 1)


def test_a_function_of_the_old_name_is_three_of_the_new_batches(dh: DataHandler, index_manager: IndexManager) -> None:
    def create_environments(args: Args, dh: DataHandler, index_manager: IndexManager, kge_engine: Any = None):
        def make(queries, batch_size: int, **kwargs: Any) -> BatchedVecEnv:
            return BatchedVecEnv(
                index_manager=index_manager, data_handler=dh, queries=queries, batch_size=batch_size, **kwargs
            )

        evaluated = make(dh.valid_queries, args.n_eval_envs, mode="eval")
        return make(dh.train_queries, args.n_envs), evaluated, make(dh.valid_queries, args.n_eval_envs, mode="eval")

    kge_engine = None
    env, eval_env, callback_env = create_environments(
        args, dh, index_manager, kge_engine=kge_engine
    )

    assert [num_envs(one) for one in (env, eval_env, callback_env)] == [4, 2, 2]


def test_direct_instantiation(dh: DataHandler, index_manager: IndexManager) -> None:
    env = BatchedVecEnv(
        index_manager=index_manager,
        data_handler=dh,
        queries=dh.train_queries,
        batch_size=args.n_envs,  # Now batch size, not number of workers
    )

    assert env.reset()["sub_index"].shape == (4, 1, 6, 3)


def test_batch_size_access(dh: DataHandler, index_manager: IndexManager) -> None:
    def make(batch_size: int = 1) -> BatchedVecEnv:
        return BatchedVecEnv(
            index_manager=index_manager, data_handler=dh, queries=dh.train_queries, batch_size=batch_size
        )

    environments = [make(4), SerialEnv(3, make), ParallelEnv(2, make)]
    assert [isinstance(env, (ParallelEnv, BatchedVecEnv)) for env in environments] == [True, False, True]
    counts = []
    for env in environments:
        # Works for both ParallelEnv and BatchedVecEnv
        if hasattr(env, 'batch_size'):
            n_envs = int(env.batch_size[0])
        elif hasattr(env, 'num_workers'):
            n_envs = int(env.num_workers)

        counts.append(n_envs)
        assert num_envs(env) == n_envs
    assert counts == [4, 3, 2]


def test_configuration_by_attributes(dh: DataHandler, index_manager: IndexManager) -> None:
    """"BatchedVecEnv supports direct attribute assignment like single envs"."""
    env = BatchedVecEnv(
        index_manager=index_manager, data_handler=dh, queries=dh.train_queries, batch_size=args.n_envs
    )

    def _configure_env_batch(env: Any, queries: Any, labels: Any, depths: Any) -> None:
        env.mode = "eval"
        env.queries = queries
        env.labels = labels
        env.query_depths = depths

    _configure_env_batch(env, dh.test_queries[:3], [1, 1, 0], [1, 2, -1])
    data = env.reset()

    first = [index_manager.decode_state(row.squeeze(0).numpy())[0] for row in data["sub_index"]]
    assert first == [*dh.test_queries[:3], dh.test_queries[0]]
    assert data["label"].tolist() == [True, True, False, True]
    assert data["depth"].tolist() == [1, 2, -1, 1]
