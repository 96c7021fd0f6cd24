"""Episodes as tokens: ARC, proofs, and user environments."""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Bool

from phalanx.arc.actions import BboxAction, MaskAction, PointAction
from phalanx.arc.config import ActionConfig, ArcConfig, DatasetConfig, EpisodeConfig
from phalanx.arc.env import ArcEnvironment
from phalanx.arc.episode_tokens import ArcTokenizer
from phalanx.arc.operations import OPERATIONS, Operation
from phalanx.arc.tasks import ArcTask, GridPair, as_grid
from phalanx.core.environment import Environment
from phalanx.core.spaces import Discrete, Space
from phalanx.data import EpisodeStatus, Sample, SampleInfo
from phalanx.data.episode_tokens import EpisodeTokenizer, TokenizedSteps
from phalanx.lm import EnvironmentStream
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.env import ProofEnvironment
from phalanx.proofs.episode_tokens import ProofTokenizer
from phalanx.proofs.program import Program

pytestmark = pytest.mark.slow

GRID = np.array([[[1, 2, -1], [3, 4, -1]], [[5, -1, -1], [-1, -1, -1]]], np.int8)
TOKEN_NAMES = [
    *("PAD", "END", "ROW", "INPUT", "WORKING", "TARGET", "ACTION"),
    *(str(color) for color in range(10)),
    *(operation.name for operation in OPERATIONS),
    "no operation",
    *(f"@{cell}" for cell in range(32)),
    "off the board",
]


def two_observations() -> dict[str, np.ndarray]:
    return {"working": GRID, "target": GRID[::-1], "similarity": np.array([0.25, 1.0], np.float32)}


def row(rows: TokenizedSteps, number: int) -> np.ndarray:
    ends = np.concatenate([[0], np.cumsum(rows.observation_lengths + rows.action_lengths)])
    return rows.tokens[ends[number] : ends[number + 1]]


def test_arc_step_is_encoded_as_grids_and_action() -> None:
    tokenizer = ArcTokenizer("point")
    rows = tokenizer.encode(two_observations(), PointAction([3, -1], [0, 31], [2, 99]))
    text = " ".join(TOKEN_NAMES[token] for token in row(rows, 0).tolist())
    assert text == "WORKING 1 2 ROW 3 4 ROW TARGET 5 ROW ACTION Fill 3 @0 @2 END"
    assert (rows.observation_lengths.tolist(), rows.action_lengths.tolist()) == ([10, 10], [5, 5])
    text = " ".join(TOKEN_NAMES[token] for token in row(rows, 1).tolist())
    assert text == "WORKING 5 ROW TARGET 1 2 ROW 3 4 ROW ACTION no operation @31 off the board END"
    assert tokenizer.difficulty(two_observations()).tolist() == [0.75, 0.0]
    assert rows.tokens.max() < tokenizer.vocab_size == len(TOKEN_NAMES)


@pytest.mark.parametrize("kind", ["point", "bbox", "mask"])
def test_arc_step_round_trip(kind: Any) -> None:
    selection = np.array([[[1, 0, 0], [0, 1, 0]], [[0, 0, 0], [1, 1, 1]]], bool)
    actions = {
        "point": PointAction([3, 41], [0, 1], [2, 0]),
        "bbox": BboxAction([3, 41], [0, 1], [2, 0], [1, 1], [0, 2]),
        "mask": MaskAction([3, 41], selection),
    }[kind]
    tokenizer = ArcTokenizer(kind)
    rows = tokenizer.encode(two_observations(), actions)
    for number in range(2):
        observation, action = tokenizer.decode(row(rows, number))
        large, small = [[1, 2], [3, 4]], [[5]]
        assert observation["working"].tolist() == (large, small)[number]
        assert observation["target"].tolist() == (small, large)[number]
        for name, value in action.items():
            assert np.array_equal(value, np.asarray(getattr(actions, name))[number])


def test_invalid_step_tokens_are_rejected() -> None:
    with pytest.raises(ValueError, match="expected token 4, found token 1"):
        ArcTokenizer().decode(np.array([1, 2], np.int32))
    with pytest.raises(ValueError, match="expected GOALS"):
        ProofTokenizer(4, 9, 4, 5).decode(np.array([1, 2, 3, 4], np.int32))
    with pytest.raises(ValueError, match="grids must be some of"):
        ArcTokenizer(grids=())


def test_proof_step_is_encoded_as_goals_options_and_choice() -> None:
    tokenizer = ProofTokenizer(num_predicates=4, num_terms=9, num_actions=2, max_steps=10)
    goals = np.array([[[1, 2, 3], [2, 3, 8], [0, 0, 0]]], np.int32)
    successors = np.array([[[[2, 3, 8], [0, 0, 0], [0, 0, 0]], [[3, 0, 0], [0, 0, 0], [0, 0, 0]]]], np.int32)
    observation = {"goals": goals, "successors": successors, "count": np.array([2]), "depth": np.array([-1])}
    rows = tokenizer.encode(observation, np.array([1]))
    p, t, n = 5, 9, 18
    assert rows.tokens.tolist() == [
        *[2, p + 1, t + 2, t + 3, p + 2, t + 3, t + 8],
        *[3, p + 2, t + 3, t + 8],
        *[3, p + 3, t, t],
        *[4, n + 1, 1],
    ]
    assert rows.observation_lengths.tolist() == [15] and rows.action_lengths.tolist() == [3]
    assert tokenizer.vocab_size == 21
    assert tokenizer.decode(rows.tokens) == (
        {"goals": [(1, 2, 3), (2, 3, 8)], "successors": [[(2, 3, 8)], [(3, 0, 0)]]},
        1,
    )
    assert np.isnan(tokenizer.difficulty(observation)).all()


@functools.cache
def arc() -> ArcEnvironment:
    pair = GridPair(as_grid([[1, 2], [3, 4]]), as_grid([[1, 2], [3, 5]]))
    config = ArcConfig(
        dataset=DatasetConfig(max_grid_height=3, max_grid_width=3),
        episode=EpisodeConfig(max_episode_steps=4),
        action=ActionConfig(selection_format="point"),
    )
    return ArcEnvironment.create(config, ArcTask("one", (pair,), (pair,)))


@functools.cache
def arc_samples() -> tuple[Sample, ...]:
    return tuple(EnvironmentStream(arc(), episodes=6, batch_size=4, seed=3))


def info_of(sample: Sample) -> SampleInfo:
    assert sample.info is not None
    return sample.info


def test_arc_episodes_become_samples_step_by_step() -> None:
    tokenizer = ArcTokenizer.for_config(arc().config)
    samples = arc_samples()
    assert len({one.sample_id for one in samples}) == len(samples)
    assert list(dict.fromkeys(info_of(one).episode_id for one in samples)) == [f"arc_3_{n}" for n in range(6)]
    for one in samples:
        assert one.sample_id == f"{info_of(one).episode_id}_step{info_of(one).step_index}"
        assert 0 <= (info_of(one).step_index or 0) < (info_of(one).total_steps or 0) <= 4
        observation, action = tokenizer.decode(one.input_ids)
        assert observation["target"].tolist() == [[1, 2], [3, 5]]
        if info_of(one).step_index == 0:
            assert observation["working"].tolist() == [[1, 2], [3, 4]]
        assert 0 <= action["operation"] < 42
        # The loss mask starts at the ACTION token.
        action_start = one.input_ids.tolist().index(6)
        assert one.loss_mask.tolist() == [0] * action_start + [1] * (one.length - action_start)
        assert info_of(one).difficulty == 0.25
        assert info_of(one).episode_status is not None
        assert (info_of(one).episode_status is EpisodeStatus.SUCCESS) == info_of(one).success


def test_random_episodes_depend_only_on_the_seed() -> None:
    assert tuple(EnvironmentStream(arc(), episodes=6, batch_size=4, seed=3)) == arc_samples()
    assert tuple(EnvironmentStream(arc(), episodes=6, batch_size=4, seed=4)) != arc_samples()


def solve(states: Any, count: Any, key: Any) -> tuple[PointAction, Any]:
    """Fill a correct cell in the first step, and the wrong cell in the second step."""
    operation = jnp.where(count == 1, Operation.FILL_5, Operation.FILL_1)
    position = jnp.where(count == 1, 1, 0) * jnp.ones_like(states.height)
    return PointAction(operation * jnp.ones_like(states.height), position, position), count + 1


def test_agent_episodes_can_be_single_samples() -> None:
    stream = EnvironmentStream(
        arc(), solve, agent_state=jnp.int32(0), episodes=4, batch_size=4, per="episode", dataset_id="solved"
    )
    samples = list(stream)
    assert [one.sample_id for one in samples] == [f"solved_0_{n}" for n in range(4)]
    tokenizer = ArcTokenizer.for_config(arc().config)
    for one in samples:
        assert (info_of(one).success, info_of(one).total_steps, info_of(one).step_index) == (True, 2, None)
        assert info_of(one).episode_status is EpisodeStatus.SUCCESS
        half = one.length // 2
        first, second = (tokenizer.decode(one.input_ids[cut])[1] for cut in (slice(half), slice(half, None)))
        assert (first, second) == (
            {"operation": Operation.FILL_1, "row": 0, "col": 0},
            {"operation": Operation.FILL_5, "row": 1, "col": 1},
        )


def test_proof_episodes_become_samples() -> None:
    facts = np.array([[1, 1, 2], [1, 2, 3], [1, 3, 4]], np.int32)
    program = Program.create(facts, [((2, -1, -2), [(1, -1, -3), (1, -3, -2)])], 2, 4)
    config = ProofConfig(max_goals=3, max_actions=6, max_episode_steps=4)
    queries = np.array([[2, 1, 3], [2, 2, 4]], np.int32)
    environment = ProofEnvironment.create(config, program, queries, depths=np.array([2, 2], np.int32))
    samples = list(EnvironmentStream(environment, episodes=12, batch_size=8, seed=1))
    tokenizer = environment.tokenizer()
    firsts = [one for one in samples if info_of(one).step_index == 0]
    assert len(firsts) == 12
    for one in samples:
        observation, action = tokenizer.decode(one.input_ids)
        assert 0 <= action < len(observation["successors"])
        assert max(one.input_ids) < tokenizer.vocab_size
        following = [two for two in samples if info_of(two).episode_id == info_of(one).episode_id]
        if (info_of(one).step_index or 0) + 1 < len(following):
            after, _ = tokenizer.decode(following[(info_of(one).step_index or 0) + 1].input_ids)
            assert after["goals"] == observation["successors"][action]
    for one in firsts:
        (query,) = tokenizer.decode(one.input_ids)[0]["goals"]
        positive = list(query) in queries.tolist()
        assert info_of(one).difficulty == (0.5 if positive else None)
    assert {info_of(one).success for one in firsts} == {True, False}


def test_random_episodes_do_not_depend_on_the_batch_size() -> None:
    four, three = (
        list(EnvironmentStream(Walk(), tokenizer=WalkTokenizer(), max_steps=4, episodes=8, batch_size=batch))
        for batch in (4, 3)
    )
    assert four == three
    assert len({info_of(one).total_steps for one in four}) > 1


class WalkInfo(eqx.Module):
    terminated: Array
    truncated: Array


@dataclasses.dataclass(frozen=True)
class Walk(Environment):
    """An environment that counts up by 1 or 2 until it reaches 3."""

    @property
    def observation_space(self) -> Space:
        return Discrete(5)

    @property
    def action_space(self) -> Space:
        return Discrete(2)

    def reset(self, key: Any) -> tuple[Any, Any]:
        return jnp.int32(0), jnp.int32(0)

    def step(self, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        new = jnp.where(state < 3, state + 1 + action, state)
        return new, new, (new != state).astype(jnp.float32), new >= 3, WalkInfo(new >= 3, new < 0)

    def observe(self, state: Any) -> Any:
        return state

    def is_done(self, state: Any) -> Any:
        return state >= 3

    def sample_action(self, key: Any, state: Any) -> Any:
        return jax.random.randint(key, (), 0, 2)


@dataclasses.dataclass(frozen=True)
class WalkTokenizer:
    """A tokenizer that encodes a step as the position and the action."""

    vocab_size: int = 5
    name: str = "walk"
    max_steps: int | None = None

    def view(self, states: Any) -> Any:
        return states

    def encode(self, seen: Any, actions: Any) -> TokenizedSteps:
        ones = np.ones(len(seen), np.int32)
        return TokenizedSteps(np.stack([seen, actions], axis=1).reshape(-1).astype(np.int32), ones, ones)

    def decode(self, tokens: Any) -> tuple[int, int]:
        return int(tokens[0]), int(tokens[1])

    def success(self, infos: Any) -> Bool[np.ndarray, " episodes"]:
        return np.asarray(infos.terminated)

    def difficulty(self, seen: Any) -> Any:
        return np.full(len(seen), np.nan)


def test_user_environment_needs_a_tokenizer_and_a_length() -> None:
    assert isinstance(WalkTokenizer(), EpisodeTokenizer)
    with pytest.raises(TypeError, match="Walk has no tokenizer for its episodes; pass one"):
        EnvironmentStream(Walk(), max_steps=3)
    with pytest.raises(TypeError, match="pass max_steps"):
        EnvironmentStream(Walk(), tokenizer=WalkTokenizer())
    with pytest.raises(ValueError, match="at least 1, got 0 and None"):
        EnvironmentStream(Walk(), tokenizer=WalkTokenizer(), max_steps=3, batch_size=0)

    class WalkWithTokenizer(Walk):
        def tokenizer(self) -> WalkTokenizer:
            return WalkTokenizer(max_steps=3)

    stream = EnvironmentStream(WalkWithTokenizer())
    assert (stream.tokenizer, stream.max_steps, stream.dataset_id) == (WalkTokenizer(max_steps=3), 3, "walk")
    always_one = lambda states, nothing, key: (jnp.zeros_like(states), nothing)  # noqa: E731
    walk = functools.partial(
        EnvironmentStream, Walk(), always_one, tokenizer=WalkTokenizer(), batch_size=2, per="episode"
    )
    samples = list(walk(max_steps=5, episodes=3))
    assert [one.input_ids.tolist() for one in samples] == [[0, 0, 1, 0, 2, 0]] * 3
    infos = [info_of(one) for one in samples]
    assert [(info.reward, info.episode_status, info.dataset_id) for info in infos] == [
        (3.0, EpisodeStatus.SUCCESS, "Walk")
    ] * 3
    (truncated,) = walk(max_steps=2, episodes=1)
    assert truncated.input_ids.tolist() == [0, 0, 1, 0]
    assert (info_of(truncated).episode_status, info_of(truncated).success) == (EpisodeStatus.TIMEOUT, False)
