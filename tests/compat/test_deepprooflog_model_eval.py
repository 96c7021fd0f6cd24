"""Evaluation of Torch policies, KGE actions and names of training scripts."""

import argparse
import functools

import numpy as np
import pytest
import torch
from torchrl.envs import ParallelEnv, SerialEnv, StepCounter, TransformedEnv

from phalanx.compat.deepprooflog.env_factory import create_environments
from phalanx.compat.deepprooflog.model_eval import (
    _configure_env_batch,
    evaluate_policy,
    evaluate_policy_torchrl,
)
from phalanx.integrations.torchrl import BatchedVecEnv as TorchRLVecEnv, num_envs
from phalanx.kg import parse_atom
from phalanx.kg.kge import KGE
from phalanx.kg.kge.models import KGEModelConfig
from tests.helpers.ancestors import FALSE, TRUE, ancestors, data_handler, index_manager
from tests.helpers.torch_policies import actor_and_critic

MODEL = KGE.create(
    KGEModelConfig(embedding_dim=4),
    index_manager.num_predicates,
    index_manager.num_constants,
    np.random.default_rng(0),
)


@pytest.fixture(scope="module")
def env():
    return ancestors(end_proof_action=False)


@pytest.fixture(scope="module")
def actor():
    torch.manual_seed(0)
    return actor_and_critic(index_manager)[0]


def test_step_counter_transform_works(env):
    counted = TransformedEnv(env, StepCounter())
    data = counted.rollout(2, break_when_any_done=False)
    assert data["next", "step_count"].squeeze(-1).tolist() == data["next", "episode_step"].tolist()


def test_each_query_is_evaluated_once_and_the_environment_is_unchanged(env, actor):
    attempts = evaluate_policy_torchrl(actor, env, [*TRUE, FALSE, *TRUE])
    assert attempts.proved.tolist() == [True, True, False, True, True]
    assert attempts.length.tolist() == [2, 2, 2, 2, 2]
    # One successor at each step, so the policy has no choice.
    np.testing.assert_allclose(attempts.log_prob, 0, atol=1e-6)
    assert attempts.reward.tolist() == [1, 1, -1, 1, 1]
    assert env.queries == [*TRUE, FALSE] and env.mode == "eval"
    assert env.reset()["proved"].tolist() == [False] * 3


def test_ranking_by_policy_by_embedding_and_by_both(env, actor):
    ranked = evaluate_policy(actor, env, TRUE, n_corruptions=None)
    assert ranked.total.mrr == 1.0 and ranked.total.proved_rate == 1.0
    believed = evaluate_policy(None, env, TRUE, mode="kge", kge_engine=MODEL, n_corruptions=None)
    both = evaluate_policy(actor, env, TRUE, mode="hybrid", kge_engine=MODEL, n_corruptions=None)
    assert believed.total.mrr < both.total.mrr <= 1.0
    with pytest.raises(ValueError, match="mode 'hybrid' needs kge_engine"):
        evaluate_policy(actor, env, TRUE, mode="hybrid")


def test_embedding_action_closes_goals_and_adds_to_the_score(actor):
    env = ancestors(kge_engine=MODEL, end_proof_action=False, max_depth=3)
    _configure_env_batch(env, [FALSE] * 3)
    step = env.reset()
    for action in (0, 0, 1):
        step = env.step(step.set("action", torch.full((3,), action)))["next"]
    belief = MODEL.log_prob(index_manager.kg.encode([parse_atom("parent(b,d)")]))[0]
    assert step["proved"].all()
    np.testing.assert_allclose(step["kge_log_score"].numpy(), float(belief), rtol=1e-5)
    attempts = evaluate_policy_torchrl(actor, env, [FALSE])
    if attempts.proved[0]:
        assert attempts.log_prob[0] < float(belief)


def test_create_environments_returns_three_environments():
    args = argparse.Namespace(
        n_envs=2, n_eval_envs=3, padding_states=4, reward_type=2, train_neg_ratio=0.0, lr=1e-4, seed=1
    )
    made = create_environments(args, data_handler, index_manager, kge_engine=MODEL)
    assert [num_envs(env) for env in made] == [2, 3, 3]
    assert [env.mode for env in made] == ["train", "eval", "eval"]
    config = made[0].environment.config
    assert (config.max_actions, config.reward.type, config.queries.negative_ratio) == (4, 2, 0.0)
    assert made[1].queries == data_handler.test_queries
    assert max(index_manager.predicate_idx2str) == 2 * index_manager.predicate_no + 3


@pytest.mark.parametrize(
    ("name", "answer"),
    [("reward_type", "reward="), ("n_envs", "batch_size"), ("padding_state", "padding_states")],
)
def test_renamed_argument_is_rejected_with_the_new_name(name, answer):
    with pytest.raises(TypeError, match=f"no argument '{name}' here; .*{answer}"):
        ancestors(**{name: 2})


def test_policy_is_evaluated_only_on_environments_whose_queries_can_be_assigned(env):
    with pytest.raises(TypeError, match="evaluated on a BatchedVecEnv"):
        evaluate_policy_torchrl(torch.nn.Identity(), TorchRLVecEnv(env.environment, 1))


def test_policy_is_evaluated_on_serial_and_parallel_envs(actor):
    expected = evaluate_policy_torchrl(actor, ancestors(2), TRUE)
    for kind in (SerialEnv, ParallelEnv):
        env = kind(2, functools.partial(ancestors, 2))
        found = evaluate_policy_torchrl(actor, env, TRUE)
        assert found.proved.tolist() == expected.proved.tolist()
        env.close(raise_if_closed=False)


def test_use_parallel_envs_is_ignored_with_a_warning():
    with pytest.warns(UserWarning, match="use_parallel_envs is ignored"):
        created = create_environments(
            {"n_envs": 2, "padding_states": 4, "use_parallel_envs": True}, data_handler, index_manager
        )
    assert [num_envs(env) for env in created] == [2, 2, 2]
