"""Vectorized proof environments in training scripts of DeepProofLog."""

import argparse

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchrl")

from tensordict import TensorDict  # noqa: E402
from tensordict.nn import TensorDictModule  # noqa: E402
from torchrl.envs import ParallelEnv, SerialEnv  # noqa: E402
from torchrl.objectives.value import GAE  # noqa: E402

from phalanx.compat.deepprooflog.batched_env import BatchedVecEnv  # noqa: E402
from phalanx.compat.deepprooflog.env_factory import create_environments  # noqa: E402
from phalanx.compat.deepprooflog.model_eval import _configure_env_batch  # noqa: E402
from phalanx.integrations.torchrl import num_envs  # noqa: E402
from tests.helpers.ancestors import FALSE, TRUE, ancestors, data_handler, goals, index_manager  # noqa: E402


def test_batch_size_is_the_number_of_queries() -> None:
    vectorized = BatchedVecEnv(
        batch_size=5,
        queries=TRUE,
        data_handler=data_handler,
        index_manager=index_manager,
        kge_engine=None,
        padding_states=4,
    )
    assert vectorized.batch_size == (5,) and vectorized.reset()["sub_index"].shape == (5, 1, 3, 3)


def test_training_evaluation_and_callback_environments_are_created() -> None:
    args = argparse.Namespace(n_envs=4, n_eval_envs=2, padding_states=4)
    created = create_environments(args, data_handler, index_manager, kge_engine=None)
    assert [int(env.batch_size[0]) for env in created] == [4, 2, 2]
    assert all(isinstance(env, BatchedVecEnv) for env in created)
    with pytest.raises(TypeError, match="args has no n_envs"):
        create_environments({"n_eval_envs": 2}, data_handler, index_manager)


def test_number_of_environments_is_found_for_all_kinds() -> None:
    def make() -> BatchedVecEnv:
        return ancestors(1)

    kinds = [ancestors(3), ParallelEnv(2, make), SerialEnv(4, make)]
    assert [num_envs(env) for env in kinds] == [3, 2, 4]
    # Scripts read the number from either attribute.
    assert kinds[0].batch_size[0] == 3 and kinds[1].num_workers == kinds[1].batch_size[0] == 2
    assert not isinstance(kinds[0], ParallelEnv)


def test_queries_can_be_assigned_like_attributes_of_one_environment() -> None:
    env = ancestors(2, mode="train", labels=None)
    env.queries, env.labels, env.query_depths, env.mode = [FALSE, *TRUE], [0, 1, 1], [-1, 2, 2], "eval"
    data = env.reset()
    assert [goals(row) for row in data["sub_index"]] == [[str(FALSE)], [str(TRUE[0])]]
    assert (data["label"].tolist(), data["depth"].tolist()) == ([False, True], [-1, 2])
    assert _configure_env_batch(env, TRUE, labels=[1, 1], query_depths=[2, 2]) == 2
    data = env.reset()
    assert [goals(row) for row in data["sub_index"]] == [[str(query)] for query in TRUE]


def test_embedding_tables_have_rows_for_all_indices() -> None:
    largest = {
        "predicates": max(index_manager.predicate_idx2str.keys()),
        "constants": max(index_manager.constant_idx2str.keys()),
    }
    # The actions that ask an embedding have indices after those of the predicates.
    asked = [index for name, index in index_manager.predicate_str2idx.items() if name.endswith("_kge")]
    assert len(asked) == index_manager.predicate_no == 2
    assert index_manager.predicate_no < min(asked) and max(asked) == largest["predicates"]
    assert index_manager.num_predicate_embeddings == largest["predicates"] + 1
    assert index_manager.num_constant_embeddings == largest["constants"] + 1
    assert largest["constants"] > index_manager.constant_no
    observed = ancestors(3, end_proof_action=False).reset()["derived_sub_indices"]
    assert observed[..., 0].max() <= largest["predicates"] and observed[..., 1:].max() <= largest["constants"]


def test_advantages_are_computed_over_time() -> None:
    env = ancestors(3)
    stages = []
    data = env.reset()
    for action in (0, 0):
        data = env.step(data.set("action", torch.full((3,), action)))
        stages.append(data)
        data = data["next"].exclude("reward")
    rollout = torch.stack(stages)
    assert rollout.batch_size == (2, 3)
    critic = TensorDictModule(lambda goal: 0.0 * goal[..., 0, 0, :1], ["sub_index"], ["state_value"])
    estimate = GAE(gamma=0.5, lmbda=1.0, value_network=critic)
    # The advantage estimator of TorchRL expects time on the second axis.
    advantages: TensorDict = estimate(rollout.permute(1, 0)).permute(1, 0)
    assert advantages.batch_size == (2, 3) and advantages["advantage"].shape == (2, 3, 1)
    # Both true queries are proved in the second step; the false one is cut off there.
    rewards = rollout["next", "reward"].squeeze(-1)
    last = rewards[1].tolist()
    assert last[:2] == [1.0, 1.0] and rewards[0].tolist() == [0.0] * 3
    expected = [[value / 2 for value in last], last]
    torch.testing.assert_close(advantages["advantage"].squeeze(-1), torch.tensor(expected))
