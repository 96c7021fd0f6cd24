"""The batched vector environment is equivalent to Gymnasium's `SyncVectorEnv` of single environments."""

from typing import Any

import numpy as np
import pytest

gym = pytest.importorskip("gymnasium")

from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402

from phalanx.core.environment import Environment  # noqa: E402
from phalanx.integrations.gymnasium import GymnasiumEnv, GymnasiumVectorEnv  # noqa: E402
from tests.helpers.gymnasium_cases import ancestors, paintings  # noqa: E402
from tests.helpers.short_walk import ShortWalk  # noqa: E402
from tests.helpers.small_environments import Lane, arc  # noqa: E402

COUNT = 3


ENVIRONMENTS = {"arc": paintings, "proofs": ancestors, "walk": ShortWalk()}


def assert_same(left: Any, right: Any, where: str) -> None:
    """Compare dictionaries, arrays and objects. A Python number equals an array scalar."""
    if isinstance(left, dict):
        assert isinstance(right, dict) and left.keys() == right.keys(), where
        for name in left:
            assert_same(left[name], right[name], f"{where}, {name}")
    elif isinstance(left, np.ndarray) and left.dtype == object:
        assert right.dtype == object and len(left) == len(right), where
        for one, other in zip(left, right, strict=True):
            assert_same(one, other, where)
    else:
        np.testing.assert_array_equal(left, right, err_msg=where)


def random_actions(envs: GymnasiumVectorEnv, observations: Any, random: np.random.Generator) -> np.ndarray:
    """Sample actions, of which most are legal."""
    actions = np.stack([envs.single_action_space.sample() for _ in range(envs.num_envs)])
    if isinstance(observations, dict) and "action_mask" in observations and random.random() < 0.9:
        legal = random.random(observations["action_mask"].shape) * observations["action_mask"]
        if actions.ndim == 1:
            return legal.argmax(-1)
        actions[:, 0] = legal.argmax(-1)
        actions[:, 1:] = 0
    return actions


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_episodes_equal_sync_vector_env(name: str, mode: AutoresetMode) -> None:
    environment = ENVIRONMENTS[name]
    ours = GymnasiumVectorEnv(environment, COUNT, autoreset_mode=mode)
    theirs = SyncVectorEnv([lambda: GymnasiumEnv(environment)] * COUNT, autoreset_mode=mode)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.metadata == theirs.metadata
    random = np.random.default_rng(0)
    ours.single_action_space.seed(0)
    seen, infos = ours.reset(seed=3)
    for ours_one, theirs_one in zip((seen, infos), theirs.reset(seed=3), strict=True):
        assert_same(theirs_one, ours_one, "reset")
    ends = np.zeros(2, int)
    for step in range(40):
        actions = random_actions(ours, seen, random)
        mine, other = ours.step(actions), theirs.step(actions)
        parts = ("observations", "rewards", "terminations", "truncations", "infos")
        for part, ours_one, theirs_one in zip(parts, mine, other, strict=True):
            assert_same(theirs_one, ours_one, f"step {step}: {part}")
        seen, rewards, terminated, truncated, infos = mine
        assert seen in ours.observation_space
        assert rewards.dtype == np.float64 and terminated.dtype == truncated.dtype == np.bool_
        assert rewards.shape == terminated.shape == truncated.shape == (COUNT,)
        assert not (terminated & truncated).any()
        ended = terminated | truncated
        ends += terminated.sum(), truncated.sum()
        assert ("final_obs" in infos) == (mode is AutoresetMode.SAME_STEP and ended.any())
        if mode is AutoresetMode.DISABLED and ended.any():
            again = ours.reset(options={"reset_mask": ended})
            expected = theirs.reset(options={"reset_mask": ended})
            assert_same(expected[0], again[0], f"step {step}: partial reset")
            assert_same(expected[1], again[1], f"step {step}: infos of a partial reset")
            seen = again[0]
    assert (ends > 0).all(), "some episodes must terminate and some must be truncated"


def lane(count: Any, **settings: Any) -> GymnasiumVectorEnv:
    return GymnasiumVectorEnv(Lane(), count, **settings)


def test_next_step_mode_ignores_the_action_after_an_end() -> None:
    envs = lane(1)
    envs.reset(seed=0)
    for _ in range(5):
        seen, _, _, truncated, _ = envs.step(np.array([0]))
        assert not truncated[0]
    seen, rewards, terminated, truncated, _ = envs.step(np.array([0]))
    assert (rewards[0], terminated[0], truncated[0]) == (-0.125, False, True)
    assert seen["observation"][0].tolist() == [1, 0, 0, 0, 0, 6]
    seen, rewards, terminated, truncated, infos = envs.step(np.array([1]))
    assert (rewards[0], terminated[0], truncated[0]) == (0, False, False)
    assert seen["observation"][0, -1] == 0
    assert infos == {}


def test_same_step_mode_has_the_terminal_observation_in_the_infos() -> None:
    envs = lane(2, autoreset_mode="SameStep")
    first, _ = envs.reset(seed=[0, 1])
    start = first["observation"].argmax(1)
    steps = 4 - start
    for number in range(int(steps.min())):
        right = np.array([1, 0]) if steps[0] <= steps[1] else np.array([0, 1])
        seen, _, terminated, _, infos = envs.step(right)
        assert terminated.any() == (number + 1 == steps.min())
    ended = int(terminated.argmax())
    assert infos["_final_obs"].tolist() == terminated.tolist()
    assert infos["final_obs"][ended]["observation"].tolist() == [0, 0, 0, 0, 1, int(steps[ended])]
    assert infos["final_obs"][1 - ended] is None
    assert infos["final_info"]["position"][ended] == 4
    assert seen["observation"][ended, -1] == 0


def starts(envs: GymnasiumVectorEnv, episodes: int, **seed: Any) -> list[list[int]]:
    """Return the start positions of the episodes of each environment."""
    found = [envs.reset(**seed)[0]["observation"][:, 1].tolist()]
    found += [envs.reset()[0]["observation"][:, 1].tolist() for _ in range(episodes - 1)]
    return np.array(found).T.tolist()


def test_episodes_depend_only_on_the_seed_of_the_environment() -> None:
    three = starts(lane(3), 24, seed=7)
    assert starts(lane(3), 24, seed=[7, 8, 9]) == three
    assert starts(lane(1), 24, seed=8) == [three[1]]
    assert starts(lane(3), 24, seed=[9, 7, None])[:2] == [three[2], three[0]]
    assert len({tuple(one) for one in three}) == 3
    envs = lane(3)
    assert starts(envs, 24, seed=7) == starts(envs, 24, seed=7) == three
    assert envs.np_random_seed == (7, 8, 9)
    assert starts(lane(3), 24) != starts(lane(3), 24), "runs without a seed must differ"


def test_partial_reset_affects_only_selected_environments() -> None:
    envs = lane(3, autoreset_mode="Disabled")
    envs.reset(seed=0)
    seen, *_ = envs.step(np.array([1, 1, 1]))
    options = {"reset_mask": np.array([False, True, False])}
    after, infos = envs.reset(seed=50, options=options)
    assert after["observation"][:, -1].tolist() == [1, 0, 1]
    assert (after["observation"][[0, 2]] == seen["observation"][[0, 2]]).all()
    assert envs.np_random_seed == (0, 51, 2)
    assert list(options) == ["reset_mask"] and infos == {}


def test_disabled_autoreset_requires_reset_after_an_end() -> None:
    envs = GymnasiumVectorEnv(ENVIRONMENTS["arc"], COUNT, autoreset_mode=AutoresetMode.DISABLED)
    envs.reset(seed=0)
    _, _, terminated, _, _ = envs.step(np.array([[34, 0, 0], [2, 0, 0], [34, 0, 0]]))
    assert terminated.tolist() == [True, False, True]
    with pytest.raises(
        gym.error.ResetNeeded, match=r"2 of 3 environments ended.*environment 0: call reset\(options"
    ):
        envs.step(np.zeros((COUNT, 3), int))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([True, False, True], r"must be a NumPy array of 3 bool, got \[True, False, True\]"),
        (np.array([1, 0, 1]), r"must be a NumPy array of 3 bool, got array\(\[1, 0, 1\]\)"),
        (np.array([True]), r"must be a NumPy array of 3 bool, got array\(\[ True\]\)"),
        (np.zeros(3, bool), "at least one environment"),
    ],
)
def test_invalid_reset_mask_is_rejected(mask: Any, message: str) -> None:
    envs = lane(3)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        envs.reset(options={"reset_mask": mask})


def test_invalid_arguments_are_rejected() -> None:
    envs = lane(2)
    with pytest.raises(gym.error.ResetNeeded, match=r"call reset\(\) first"):
        envs.step(np.zeros(2, int))
    with pytest.raises(gym.error.ResetNeeded, match="the first reset must reset all"):
        envs.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(ValueError, match="unknown option 'task'"):
        envs.reset(options={"task": 3})
    with pytest.raises(ValueError, match="2 environments and 3 seeds"):
        envs.reset(seed=[1, 2, 3])
    with pytest.raises(TypeError, match="seed must be None, an integer or a list"):
        envs.reset(seed="four")
    with pytest.raises(ValueError, match=r"from 0 to 2\*\*64 - 1, got -1"):
        envs.reset(seed=-1)
    envs.reset(seed=2**64 - 2)
    with pytest.raises(ValueError, match=r"actions must have the shape \(2,\), got \(3,\)"):
        envs.step(np.zeros(3, int))
    with pytest.raises(TypeError, match="actions must be integers, got float64"):
        envs.step(np.zeros(2))
    with pytest.raises(ValueError, match="num_envs must be at least 1, got 0"):
        lane(0)
    with pytest.raises(TypeError, match="num_envs must be an integer, got 'two'"):
        lane("two")
    with pytest.raises(
        ValueError, match=r"autoreset_mode must be one of NEXT_STEP \('NextStep'\).*got 'later'"
    ):
        lane(2, autoreset_mode="later")
    with pytest.raises(ValueError, match="render_mode must be None or one of: none; got 'human'"):
        lane(2, render_mode="human")
    with pytest.raises(TypeError, match="Lane has no mask"):
        envs.action_masks()


def test_action_out_of_range_is_illegal() -> None:
    envs = GymnasiumVectorEnv(ENVIRONMENTS["arc"], 2)
    envs.reset(seed=[0, 0])
    *_, infos = envs.step(np.array([[3, 2**32, 0], [2**40 + 3, 0, 0]]))
    assert infos["operation_type"].tolist() == [-1, -1]


def test_returned_arrays_are_copies() -> None:
    def rollout(modify: bool) -> list[Any]:
        envs = GymnasiumVectorEnv(ENVIRONMENTS["arc"], COUNT, autoreset_mode="SameStep")
        results: list[Any] = [envs.reset(seed=1)]
        kept = [str(results[0])]
        for _ in range(6):
            actions = np.array([[2, 0, 1], [34, 0, 0], [3, 0, 0]])
            results.append(envs.step(actions))
            kept.append(str(results[-1]))
            if modify:
                actions[:] = 0
                seen, infos = results[-1][0], results[-1][-1]
                for array in (*seen.values(), infos["action_mask"], infos["_final_obs"]):
                    array[...] = 0
        return kept

    assert rollout(modify=True) == rollout(modify=False)


def test_bbox_actions_are_vectors_and_mask_actions_dictionaries() -> None:
    boxes = GymnasiumVectorEnv(arc("bbox"), 2)
    assert boxes.single_action_space == gym.spaces.MultiDiscrete([42, 2, 3, 2, 3])
    boxes.reset(seed=0)
    seen, *_ = boxes.step(np.array([[2, 0, 0, 0, 1], [2, 1, 2, 0, 0]]))
    assert seen["observation"][:, 0].tolist() == [[2, 2, -1], [2, 2, -1]]
    masks = GymnasiumVectorEnv(arc("mask"), 2)
    cells = gym.spaces.MultiBinary((2, 3))
    assert masks.single_action_space == gym.spaces.Dict(
        {"operation": gym.spaces.Discrete(42), "selection": cells}
    )
    masks.reset(seed=0)
    selection = np.array([[[0, 1, 0], [0, 0, 0]], [[1, 0, 0], [0, 0, 0]]], np.int8)
    seen, *_ = masks.step({"operation": np.array([2, 2]), "selection": selection})
    assert seen["observation"][:, 0].tolist() == [[0, 2, -1], [2, 0, -1]]
    assert masks.action_masks().shape == (2, 42)
    masks.step(masks.action_space.sample())
    with pytest.raises(TypeError, match=r"the keys operation, selection, got \['operation'\]"):
        masks.step({"operation": np.array([2, 2])})
    with pytest.raises(TypeError, match="must be a dictionary with the keys operation, selection"):
        masks.step(np.zeros(2))


def test_masks_contain_legal_actions() -> None:
    envs = GymnasiumVectorEnv(arc("point"), 2)
    seen, infos = envs.reset(seed=0)
    assert np.flatnonzero(seen["action_mask"][0]).tolist() == [2, 3, 34]
    assert (infos["action_mask"] == seen["action_mask"]).all()
    # Operation, row, column.
    assert envs.action_masks().shape == (2, 42 + 2 + 3)
    assert np.flatnonzero(envs.action_masks()[1]).tolist() == [2, 3, 34, 42, 43, 44, 45, 46]
    proving = GymnasiumVectorEnv(ENVIRONMENTS["proofs"], 2)
    seen, infos = proving.reset(seed=0)
    assert seen["action_mask"].dtype == infos["action_mask"].dtype == np.int8
    assert (proving.action_masks() == seen["action_mask"].astype(bool)).all()
    action = proving.single_action_space.sample(mask=infos["action_mask"][0])
    assert seen["action_mask"][0, action] == 1


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_flat_observation_is_one_vector(name: str) -> None:
    environment: Environment = ENVIRONMENTS[name]
    flat, nested = (GymnasiumVectorEnv(environment, 2, flatten=flat) for flat in (True, False))
    row, _ = flat.reset(seed=5)
    fields, infos = nested.reset(seed=5)
    if name == "arc":
        del fields["action_mask"]  # not part of the flat observation
    assert row in flat.observation_space and row.dtype == np.float32
    assert sorted(row.ravel().tolist()) == sorted(
        np.concatenate([field.reshape(2, -1) for field in fields.values()], axis=1).ravel().tolist()
    )
    assert "action_mask" in infos
    if name == "arc":
        assert row[0].tolist() == [*fields["observation"][0, 0], -1, -1, -1]


def test_environment_without_a_mask_has_none_in_observations_and_infos() -> None:
    envs = GymnasiumVectorEnv(Lane(), 2)
    seen, infos = envs.reset(seed=5)
    assert set(seen) == {"observation"} and infos == {}
    assert "action_mask" not in envs.step(np.array([1, 1]))[-1]
