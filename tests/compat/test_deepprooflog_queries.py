"""Queries of a batch: assignment, order in evaluation, labels and depths."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchrl")

from tensordict import TensorDict  # noqa: E402

from phalanx.integrations.torchrl import episode_keys  # noqa: E402
from tests.helpers.ancestors import FACTS, FALSE, TRUE, ancestors, goals, index_manager  # noqa: E402

AC, BD, AD = "grandparent(a,c)", "grandparent(b,d)", "grandparent(a,d)"


def starts(data: TensorDict) -> list[str]:
    return [goals(row)[0] for row in data["sub_index"]]


def test_evaluation_cycles_through_the_queries_in_order() -> None:
    env = ancestors(2)
    first = env.reset()
    assert starts(first) == [AC, BD] and env.query_indices.tolist() == [0, 1]
    second = env.reset()
    assert starts(second) == [AD, AC] and env.query_indices.tolist() == [2, 0]
    assert second["label"].tolist() == [False, True]


def test_partial_reset_in_evaluation_takes_the_next_queries() -> None:
    env = ancestors(2)
    data = env.reset().set("_reset", torch.tensor([[False], [True]]))
    assert starts(env.reset(data)) == [AC, AD]
    assert env.query_indices.tolist() == [0, 2]


def test_assigned_batch_is_used_from_the_next_reset_on() -> None:
    env = ancestors(3)
    env.reset()
    env.queries, env.labels, env.query_depths = [FALSE, AC, BD], [0, 1, 1], [-1, 2, 2]
    going_on = env.step(TensorDict({"action": torch.zeros(3, dtype=torch.int64)}, [3]))["next"]
    assert starts(going_on) == ["parent(a,_1)", "parent(b,_1)", "parent(a,_1)"]
    data = env.reset()
    assert starts(data) == [AD, AC, BD]
    assert data["label"].tolist() == [False, True, True] and data["depth"].tolist() == [-1, 2, 2]


@pytest.mark.parametrize("count", [1, 2, 7])
def test_batch_of_another_length_is_processed_in_order(count: int) -> None:
    env = ancestors(3)
    given = [AC, BD, AD, *map(str, FACTS), AC][:count]
    env.queries, env.labels = given, None
    taken = [goal for _ in range(3) for goal in starts(env.reset())]
    assert taken == (given * 9)[:9]


def test_assigned_queries_start_with_the_first() -> None:
    env = ancestors(2)
    env.reset()
    env.queries = [BD, AC, AD]
    assert starts(env.reset()) == [BD, AC]


def test_shorter_batch_does_not_change_running_episodes() -> None:
    env = ancestors(3)
    data = env.reset().set("_reset", torch.tensor([[True], [False], [False]]))
    env.queries, env.labels = [BD], None
    after = env.reset(data)
    assert starts(after) == [BD, BD, AD] and after["label"].tolist() == [True, True, False]
    assert env.query_indices.tolist() == [0, 1, 2]


def test_depths_default_to_those_of_the_data_handler() -> None:
    assert ancestors(3).reset()["depth"].tolist() == [2, -1, -1]


def test_labels_of_another_length_are_rejected_at_reset() -> None:
    env = ancestors(3)
    env.queries = [AC]
    with pytest.raises(
        ValueError, match=r"labels has shape \(3,\), but there are 1 queries; assign as many labels"
    ):
        env.reset()
    env.labels = [1]
    assert starts(env.reset()) == [AC, AC, AC]
    env.query_depths = [1, 2]
    with pytest.raises(ValueError, match=r"query_depths has shape \(2,\), but there are 1 queries"):
        env.reset()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("queries", [], "at least one query"),
        ("queries", ["grandparant(a,c)"], "did you mean 'grandparent'"),
        ("queries", np.zeros((2, 2), np.int32), r"shape \(n, 3\), got \(2, 2\)"),
        ("labels", [0, 1, 2], r"labels must be 0 or 1, got \[0, 1, 2\]"),
    ],
)
def test_invalid_batches_are_rejected(name: str, value: object, message: str) -> None:
    env = ancestors(3)
    setattr(env, name, value)
    with pytest.raises(ValueError, match=message):
        env.reset()


def test_unknown_mode_is_rejected_on_assignment() -> None:
    env = ancestors(3)
    with pytest.raises(ValueError, match="'train' or 'eval', got 'test'"):
        env.mode = "test"
    assert env.mode == "eval"


def test_training_samples_queries_and_unknown_negatives() -> None:
    env = ancestors(64, mode="train", queries=TRUE, labels=None)
    data = env.reset()
    assert set(env.query_indices.tolist()) == {-1}
    positive = {goal for goal, label in zip(starts(data), data["label"], strict=True) if label}
    negative = {goal for goal, label in zip(starts(data), data["label"], strict=True) if not label}
    assert positive == {AC, BD}
    assert negative and not negative & {AC, BD, *map(str, FACTS)}
    assert 16 < int(data["label"].sum()) < 48
    assert data["depth"][~data["label"]].unique().tolist() == [-1]


def test_assigned_training_queries_are_sampled_from_the_next_reset_on() -> None:
    env = ancestors(64, mode="train", queries=TRUE, labels=None)
    env.reset()
    env.queries = [BD]
    data = env.reset()
    assert {goal for goal, label in zip(starts(data), data["label"], strict=True) if label} == {BD}


def test_training_on_labeled_queries_samples_no_negatives() -> None:
    env = ancestors(64, mode="train")
    data = env.reset()
    assert set(zip(starts(data), data["label"].tolist(), strict=True)) == {
        (AC, True),
        (BD, True),
        (AD, False),
    }
    drawn = env.query_indices
    env.set_seed(0)
    env.reset()
    assert (env.query_indices == drawn).all()


def test_environment_can_alternate_between_training_and_evaluation() -> None:
    env = ancestors(64, mode="train", queries=TRUE, labels=None)
    env.reset()
    env.mode, env.queries, env.labels = "eval", [AC, AD], [1, 0]
    assert starts(env.reset()) == [AC, AD] * 32
    env.mode, env.queries, env.labels = "train", TRUE, None
    assert set(env.reset()["label"].tolist()) == {True, False} and set(env.query_indices) == {-1}


def test_queries_can_be_assigned_as_indices() -> None:
    env = ancestors(3)
    env.queries, env.labels = index_manager.encode_atoms([FALSE, *TRUE]), [0, 1, 1]
    assert starts(env.reset()) == [AD, AC, BD]
    assert env.reset()["depth"].tolist() == [-1, 2, -1]


def test_each_environment_and_episode_has_its_own_key() -> None:
    episodes = np.zeros(100, np.uint64)
    keys = [episode_keys(seed, episodes + np.uint64(n)) for seed in (0, 1) for n in range(20)]
    assert len(np.unique(np.concatenate(keys), axis=0)) == 2 * 20 * 100
    # An environment's episodes do not depend on the batch that it is in.
    assert (episode_keys(0, episodes[:10]) == keys[0][:10]).all()
    assert episode_keys(-1, episodes).shape == (100, 2)
