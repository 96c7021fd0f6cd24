"""`BatchedVecEnv` compared with vectorized environments of TorchRL, and its configuration by attributes."""

import dataclasses
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("torchrl")

from torchrl.envs import ParallelEnv, SerialEnv

from phalanx.compat.deepprooflog.batched_env import BatchedVecEnv
from phalanx.compat.deepprooflog.data_handler import DataHandler
from phalanx.compat.deepprooflog.index_manager import IndexManager
from phalanx.integrations.torchrl import num_envs


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
        if hasattr(env, "batch_size"):
            n_envs = int(env.batch_size[0])
        elif hasattr(env, "num_workers"):
            n_envs = int(env.num_workers)

        counts.append(n_envs)
        assert num_envs(env) == n_envs
    assert counts == [4, 3, 2]


def test_configuration_by_attributes(dh: DataHandler, index_manager: IndexManager) -> None:
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
