"""Torch policies ranked on a batch, KGE actions, and the names that training scripts use."""

import argparse

import numpy as np
import pytest
import torch
from torchrl.envs import StepCounter, TransformedEnv

from phalanx.compat.deepprooflog.batched_env import create_environments
from phalanx.compat.deepprooflog.model_eval import (
    _configure_env_batch,
    evaluate_policy,
    evaluate_policy_torchrl,
)
from phalanx.integrations.torchrl import BatchedVecEnv as TorchRLVecEnv, num_envs
from phalanx.kg import parse_atom
from phalanx.kg.kge import KGE, KGEConfig
from tests.helpers.ancestors import FALSE, TRUE, ancestors, data_handler, index_manager
from tests.helpers.torch_policies import actor_and_critic

MODEL = KGE.create(
    KGEConfig(dim=4), index_manager.num_predicates, index_manager.num_constants, np.random.default_rng(0)
)


@pytest.fixture(scope="module")
def env():
    return ancestors(end_proof_action=False)


@pytest.fixture(scope="module")
def actor():
    torch.manual_seed(0)
    return actor_and_critic(index_manager)[0]


def test_a_step_counter_counts_beside_the_environment_s_own_steps(env):
    counted = TransformedEnv(env, StepCounter())
    data = counted.rollout(2, break_when_any_done=False)
    assert data["next", "step_count"].squeeze(-1).tolist() == data["next", "episode_step"].tolist()


def test_each_query_is_tried_once_and_the_environment_keeps_its_own(env, actor):
    attempts = evaluate_policy_torchrl(actor, env, [*TRUE, FALSE, *TRUE])
    assert attempts.proved.tolist() == [True, True, False, True, True]
    assert attempts.length.tolist() == [2, 2, 2, 2, 2]
    # One successor at each step, so the policy has no choice.
    np.testing.assert_allclose(attempts.log_prob, 0, atol=1e-6)
    assert attempts.reward.tolist() == [1, 1, -1, 1, 1]
    assert env.queries == [*TRUE, FALSE] and env.mode == "eval"
    assert env.reset()["proved"].tolist() == [False] * 3


def test_a_policy_ranks_by_its_proofs_an_embedding_by_its_scores_and_both_together(env, actor):
    ranked = evaluate_policy(actor, env, TRUE, n_corruptions=None)
    assert ranked.total.mrr == 1.0 and ranked.total.proved == 1.0
    believed = evaluate_policy(None, env, TRUE, mode="kge", kge_engine=MODEL, n_corruptions=None)
    both = evaluate_policy(actor, env, TRUE, mode="hybrid", kge_engine=MODEL, n_corruptions=None)
    assert believed.total.mrr < both.total.mrr <= 1.0
    with pytest.raises(ValueError, match="mode 'hybrid' needs kge_engine"):
        evaluate_policy(actor, env, TRUE, mode="hybrid")


def test_an_embedding_closes_goals_in_a_batch_and_counts_in_the_score(actor):
    env = ancestors(kge_engine=MODEL, end_proof_action=False, max_depth=3)
    _configure_env_batch(env, [FALSE] * 3)
    step = env.reset()
    for action in (0, 0, 1):
        step = env.step(step.set("action", torch.full((3,), action)))["next"]
    belief = MODEL.log_probability(index_manager.encode_atoms([parse_atom("parent(b,d)")]))[0]
    assert step["proved"].all()
    np.testing.assert_allclose(step["kge_log_score"].numpy(), float(belief), rtol=1e-5)
    attempts = evaluate_policy_torchrl(actor, env, [FALSE])
    if attempts.proved[0]:
        assert attempts.log_prob[0] < float(belief)


def test_a_script_s_arguments_make_three_environments():
    args = argparse.Namespace(
        n_envs=2, n_eval_envs=3, padding_states=4, reward_type=2, train_neg_ratio=0.0, lr=1e-4, seed=1
    )
    made = create_environments(args, data_handler, index_manager, kge_engine=MODEL)
    assert [num_envs(env) for env in made] == [2, 3, 3]
    assert [env.mode for env in made] == ["train", "eval", "eval"]
    config = made[0].environment.config
    assert (config.padding_states, config.reward.type, config.queries.negative_ratio) == (4, 2, 0.0)
    assert made[1].queries == data_handler.test_queries
    assert max(index_manager.predicate_idx2str) == 2 * index_manager.predicate_no + 3


@pytest.mark.parametrize(
    ("name", "answer"),
    [("reward_type", "reward="), ("n_envs", "batch_size"), ("padding_state", "padding_states")],
)
def test_an_argument_by_another_name_is_answered_with_the_name_here(name, answer):
    with pytest.raises(TypeError, match=f"no argument '{name}' here; .*{answer}"):
        ancestors(**{name: 2})


def test_as_many_environments_as_memory_allows(monkeypatch):
    monkeypatch.setattr("phalanx.core.profiling.available_memory", lambda: 40_000)
    env = ancestors("auto")
    assert 1 <= num_envs(env) < 16
    with pytest.raises(TypeError, match="evaluated on a BatchedVecEnv"):
        evaluate_policy_torchrl(torch.nn.Identity(), TorchRLVecEnv(env.environment, 1))
