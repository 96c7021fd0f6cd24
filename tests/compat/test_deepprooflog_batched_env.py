"""`BatchedVecEnv` under TorchRL: specs, shapes, partial resets, seeds and copies."""

import copy
import pickle

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchrl")

from tensordict import TensorDict  # noqa: E402
from torchrl.envs import ActionMask, SerialEnv, TransformedEnv, check_env_specs  # noqa: E402

from phalanx.compat.deepprooflog.batched_env import BatchedVecEnv  # noqa: E402
from phalanx.integrations.torchrl import num_envs  # noqa: E402
from tests.helpers.ancestors import TRUE, ancestors, goals  # noqa: E402


def act(env: BatchedVecEnv, *actions: int) -> TensorDict:
    return env.step(TensorDict({"action": torch.tensor(actions)}, batch_size=env.batch_size))["next"]


def flags(data: TensorDict, *names: str) -> list[list[bool]]:
    return [data[name].squeeze(-1).tolist() for name in names]


def host(env: BatchedVecEnv) -> list[np.ndarray]:
    return [np.array(leaf) for leaf in jax.tree.leaves(env.state)]


def test_data_matches_the_specs() -> None:
    check_env_specs(ancestors(), break_when_any_done="both", seed=1)


def test_reset_and_step_have_the_documented_shapes() -> None:
    env = ancestors()
    first, after = env.reset(), act(env, 0, 0, 0)
    assert env.batch_size == first.batch_size == (3,)
    for data in (first, after):
        assert data["sub_index"].shape == (3, 1, 3, 3)
        assert data["derived_sub_indices"].shape == (3, 4, 3, 3)
        assert data["action_mask"].shape == (3, 4) and data["action_mask"].dtype == torch.bool
        assert data["label"].tolist() == [True, True, False]
        for name in ("done", "terminated", "truncated"):
            assert data[name].shape == (3, 1) and data[name].dtype == torch.bool
    assert after["reward"].shape == (3, 1) and after["reward"].dtype == torch.float32
    assert after["episode_step"].tolist() == [1, 1, 1]


def test_finished_episode_keeps_its_last_observation_until_reset() -> None:
    env = ancestors()
    assert goals(env.reset()["sub_index"][0]) == ["grandparent(a,c)"]
    middle = act(env, 0, 0, 0)
    assert goals(middle["sub_index"][2]) == ["parent(a,_1)", "parent(_1,d)"]
    # The end action is behind the only fact that fits.
    assert middle["action_mask"].tolist() == [[True, True, False, False]] * 3
    end = act(env, 0, 1, 0)
    assert [goals(row) for row in end["sub_index"]] == [["True"], ["False"], ["parent(b,d)"]]
    assert end["reward"].squeeze(-1).tolist() == [1.0, -1.0, 1.0]
    assert flags(end, "terminated", "truncated", "done") == [
        [True, True, False],
        [False, False, True],
        [True, True, True],
    ]
    assert env.last_info["proved"].tolist() == [True, False, False]
    assert env.last_info["gave_up"].tolist() == [False, True, False]
    again = act(env, 0, 0, 0)
    assert again["reward"].squeeze(-1).tolist() == [0.0, 0.0, 0.0]
    assert (again.exclude("reward") == end.exclude("reward")).all()


@pytest.mark.parametrize("column", [True, False], ids=["[B, 1]", "[B]"])
def test_partial_reset_resets_only_the_selected_environments(column: bool) -> None:
    env = ancestors()
    env.reset()
    before, state = act(env, 0, 0, 0), host(env)
    mask = torch.tensor([False, True, False])
    asked = before.exclude("reward").clone().set("_reset", mask.unsqueeze(-1) if column else mask)
    # TorchRL's own merging of a reset takes the form of `done`.
    after = env.reset(asked) if column else env._reset(asked)
    assert [goals(row) for row in after["sub_index"]] == [
        ["parent(a,_1)", "parent(_1,c)"],
        ["grandparent(a,c)"],
        ["parent(a,_1)", "parent(_1,d)"],
    ]
    assert after["episode_step"].tolist() == [1, 0, 1]
    assert all((new[[0, 2]] == old[[0, 2]]).all() for new, old in zip(host(env), state, strict=True))


def test_partial_reset_keeps_the_flags_of_other_finished_environments() -> None:
    env = ancestors()
    env.reset()
    act(env, 0, 0, 0)
    end = act(env, 0, 0, 0).set("_reset", torch.tensor([[True], [False], [False]]))
    after = env.reset(end)
    assert flags(after, "terminated", "truncated", "done") == [
        [False, True, False],
        [False, False, True],
        [False, True, True],
    ]


def test_reset_of_no_environment_changes_nothing() -> None:
    env = ancestors()
    data = env.reset()
    before = host(env)
    env.reset(data.set("_reset", torch.zeros(3, 1, dtype=torch.bool)))
    assert all((new == old).all() for new, old in zip(host(env), before, strict=True))


def test_first_reset_must_include_all_environments() -> None:
    env = ancestors()
    some = TensorDict({"_reset": torch.tensor([[True], [False], [True]])}, batch_size=[3])
    with pytest.raises(RuntimeError, match="first reset must reset all environments"):
        env.reset(some)


def test_step_before_the_first_reset_is_rejected() -> None:
    with pytest.raises(RuntimeError, match="have not been reset: call reset"):
        act(ancestors(), 0, 0, 0)


def test_environments_excluded_from_a_step_do_not_change() -> None:
    env = ancestors()
    data = env.reset().set("action", torch.tensor([0, 0, 0])).set("_step", torch.tensor([True, False, True]))
    after = env.step(data)["next"]
    assert after["episode_step"].tolist() == [1, 0, 1]
    assert goals(after["sub_index"][1]) == ["grandparent(b,d)"]
    assert after["reward"].squeeze(-1).tolist() == [0.0, 0.0, 0.0]


def test_rollout_across_episodes_has_the_terminal_observation_in_next() -> None:
    env = TransformedEnv(ancestors(), ActionMask())
    torch.manual_seed(0)
    data = env.rollout(12, break_when_any_done=False)
    assert data.batch_size == (3, 12) and data["next", "reward"].shape == (3, 12, 1)
    done = data["next", "done"].squeeze(-1)
    assert 9 <= int(done.sum()) < 36
    follows = done[:, :-1]
    assert (data["episode_step"][:, 1:][follows] == 0).all()
    assert (data["next", "episode_step"][done] > 0).all()
    kept = data["next", "sub_index"][:, :-1][~follows] == data["sub_index"][:, 1:][~follows]
    assert kept.all()
    assert data["action_mask"].gather(-1, data["action"].unsqueeze(-1)).all()


def test_rollout_until_all_are_done_does_not_change_finished_environments() -> None:
    env = ancestors()
    env.reset()
    give_up_first = iter([[1, 0, 0], [0, 0, 0]])
    data = env.rollout(
        5,
        lambda td: td.set("action", torch.tensor(next(give_up_first))),
        break_when_any_done=False,
        break_when_all_done=True,
    )
    assert data["next", "done"].squeeze(-1).tolist() == [[True, True], [False, True], [False, True]]
    assert data["next", "reward"].squeeze(-1)[:, -1].tolist() == [-1.0, 1.0, 1.0]


def drawn(env: BatchedVecEnv, steps: int = 6) -> TensorDict:
    torch.manual_seed(3)
    return TransformedEnv(env, ActionMask()).rollout(steps, break_when_any_done=False)


def test_episodes_depend_on_the_seed() -> None:
    env = ancestors(64, mode="train", queries=TRUE, labels=None)
    env.set_seed(5)
    first = drawn(env)
    assert not (drawn(env) == first).all()
    env.set_seed(5)
    assert (drawn(env) == first).all()
    assert (drawn(ancestors(64, mode="train", queries=TRUE, labels=None, seed=5)) == first).all()
    env.set_seed(6)
    assert not (drawn(env) == first).all()


def test_seeding_does_not_end_running_episodes() -> None:
    env = ancestors()
    env.reset()
    act(env, 0, 0, 0)
    env.set_seed(9)
    assert act(env, 0, 0, 0)["episode_step"].tolist() == [2, 2, 2]


def test_changing_a_tensordict_does_not_change_the_environment() -> None:
    env = ancestors()
    first = env.reset()
    before, seen = host(env), first.clone()
    for tensor in first.values(include_nested=True, leaves_only=True):
        tensor.fill_(1)
    assert all((new == old).all() for new, old in zip(host(env), before, strict=True))
    assert (env._entries(env.state) == seen).all()


def test_changing_an_action_after_the_step_does_not_change_the_state() -> None:
    env = ancestors()
    env.reset()
    for kind in (torch.int64, torch.int32):
        env.reset()
        actions = torch.zeros(3, dtype=kind)
        env.step(TensorDict({"action": actions}, batch_size=[3]))
        result = np.array(env._info.action)
        actions.fill_(2)
        assert (np.array(env._info.action) == result).all()
        assert result.tolist() == [0, 0, 0]


def test_actions_without_successor_are_invalid_and_change_nothing() -> None:
    env = ancestors()
    first = env.reset()
    # The last would be a legal 0 if it were cut to 32 bits.
    after = act(env, -1, 3, 2**32)
    assert (after["sub_index"] == first["sub_index"]).all()
    assert after["reward"].squeeze(-1).tolist() == [-1.0, -1.0, -1.0]


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (torch.zeros(3, 1, dtype=torch.int64), r"shape \(3,\), got \(3, 1\)"),
        (torch.zeros(3), "integers"),
    ],
)
def test_malformed_action_is_rejected(action: torch.Tensor, message: str) -> None:
    env = ancestors()
    env.reset()
    with pytest.raises((ValueError, TypeError), match=message):
        env.step(TensorDict({"action": action}, batch_size=[3]))


def test_copies_continue_from_the_same_state() -> None:
    env = ancestors()
    env.reset()
    act(env, 0, 0, 0)
    copies = [pickle.loads(pickle.dumps(env)), copy.deepcopy(env)]
    ends = [act(one, 0, 1, 0) for one in (env, *copies)]
    assert all((end == ends[0]).all() for end in ends[1:])
    assert (drawn(copies[0]) == drawn(copies[1])).all()


def test_num_envs_is_known_for_all_kinds_of_batches() -> None:
    env = ancestors()
    assert num_envs(env) == num_envs(TransformedEnv(env, ActionMask())) == 3
    serial = SerialEnv(2, [lambda: ancestors(1), lambda: ancestors(1)])
    assert num_envs(serial) == 2

    class Workers:
        num_workers = 5

    class Single:
        batch_size = torch.Size([])

    assert num_envs(Workers()) == 5
    assert num_envs(Single()) == num_envs(object()) == 1


def test_serial_env_steps_all_batches() -> None:
    env = SerialEnv(2, [lambda: ancestors(), lambda: ancestors()])
    data = env.rollout(2, lambda td: td.set("action", torch.zeros(2, 3, dtype=torch.int64)))
    assert data.batch_size == (2, 3, 2)
    assert data["next", "reward"][..., -1, 0].tolist() == [[1.0, 1.0, 1.0]] * 2
    env.close()


def test_environment_can_be_moved_to_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    # The only other device that every machine has is "meta", whose tensors hold nothing to check specs by.
    monkeypatch.setattr("torchrl.data.tensor_specs.torch.allclose", lambda *_, **__: True)
    env = ancestors().to("meta")
    assert env.device == torch.device("meta")
    assert {leaf.device.type for leaf in env.observation_spec.values(True, True)} == {"meta"}
    data = env._reset()
    assert {leaf.device.type for leaf in data.values(True, True)} == {"meta"}
    assert env.to("meta") is env


@pytest.mark.parametrize(
    ("size", "message"), [(0, "at least 1, got 0"), (2.5, "integer"), ([2, 3], "size with one axis")]
)
def test_invalid_batch_size_is_rejected(size: object, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        ancestors(size)  # type: ignore[arg-type]


def test_config_settings_are_keyword_arguments_and_unknown_ones_are_rejected() -> None:
    assert ancestors(max_depth=7).environment.config.max_episode_steps == 7
    assert repr(ancestors()) == "BatchedVecEnv(ProofEnvironment, batch_size=3, device='cpu')"
    with pytest.raises(TypeError, match="no argument 'max_dept' here; did you mean max_depth"):
        ancestors(max_dept=7)
    with pytest.raises(ValueError, match=r"IndexManager\(data_handler, padding_atoms=6\)"):
        ancestors(padding_atoms=6)
