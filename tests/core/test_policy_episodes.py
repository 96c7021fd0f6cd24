"""Recorded episodes of a policy: actions, probabilities, values, and images of environments of every kind."""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from phalanx.core import Box, Composite, Discrete, Environment
from phalanx.core.environment import EpisodeState
from phalanx.core.evaluation import EpisodeEvaluationConfig, EvaluationEpisodes, sampled_episodes
from phalanx.core.policy_episodes import MAX_STEPS, NUM_EPISODES, _select, record_policy_episodes
from phalanx.core.spec import EPISODES, EnvSpec, Evaluation, FixedTasks
from phalanx.core.text import TextInterface
from phalanx.nn.distributions import DiagonalGaussian, Factored, MaskedCategorical


class Line(EpisodeState):
    position: Array


class Walk(Environment):
    """Walk right to cell 3. Action 0 walks left, 1 stays and 2 walks right."""

    observation_space = Box(0, 3, (), np.int32)
    action_space = Discrete(3)
    max_episode_steps: int = 5
    modes: tuple[str, ...] = ("ansi",)

    @property
    def render_modes(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.modes

    def initial_state(self, key: Any) -> Line:
        return Line(jax.random.randint(key, (), 0, 3))

    def transition(self, state: Line, action: Any) -> tuple[Line, Any, Any]:
        position = jnp.clip(state.position + self.offset(action), 0, 3)
        return Line(position), -0.5, position == 3

    def offset(self, action: Any) -> Any:
        return action - 1

    def observe(self, state: Line) -> Array:
        return state.position

    def metrics(self, state: Line) -> dict[str, Any]:
        return {"success": state.terminated}

    def render(self, state: Line, mode: str = "ansi") -> Any:
        if mode == "rgb_array":
            return np.full((2, 4, 3), int(state.position), np.uint8)
        cells = "".join("A" if cell == int(state.position) else "." for cell in range(4))
        return cells if mode == "ansi" else f"<svg>{cells}</svg>"


LOGITS = jnp.log(jnp.array([0.2, 0.1, 0.7]))


class WalkRight(eqx.Module):
    logits: Array = eqx.field(default_factory=lambda: LOGITS)

    def __call__(self, observation: Array) -> tuple[Any, Array]:
        return MaskedCategorical(self.logits), -observation / 2


def record(environment: Environment, network: Any, num_episodes: int = 6, **spec: Any) -> Any:
    return record_policy_episodes(
        EnvSpec(make=type(environment), **spec),
        FixedTasks(environment),
        network,
        EpisodeEvaluationConfig(num_episodes=num_episodes),
    )


def test_record_contains_the_states_actions_probabilities_and_values() -> None:
    found = record(Walk(), WalkRight())
    assert found["num_evaluated"] == 6 and len(found["episodes"]) == 6
    settings = EpisodeEvaluationConfig(num_episodes=6)
    starts = jax.vmap(Walk().initial_state)(sampled_episodes(Walk(), settings).starts).position
    for start, episode in zip(starts.tolist(), found["episodes"], strict=True):
        steps = 3 - start
        assert (episode["num_steps"], episode["total_reward"]) == (steps, -0.5 * steps)
        assert episode["solved"] is True
        assert len(episode["frames"]) == steps + 1 and len(episode["decisions"]) == steps
        expected = ["." * cell + "A" + "." * (3 - cell) for cell in range(start, 4)]
        assert [text in frame for text, frame in zip(expected, episode["frames"], strict=True)] == [True] * (
            steps + 1
        )
        for step, decision in enumerate(episode["decisions"]):
            assert decision["actions"] == ["2", "0", "1"]
            assert decision["probabilities"] == pytest.approx([0.7, 0.2, 0.1], abs=1e-5)
            assert decision["chosen"] == 0 and decision["value"] == -(start + step) / 2


def test_labels_come_from_the_text_interface() -> None:
    class Names(TextInterface[Any]):
        def prompt(self, state: Line) -> str:
            return ""

        def parse(self, answer: str, state: Line) -> int:
            return 0

        def format(self, action: Any, state: Line) -> str:
            return f"{('left', 'stay', 'right')[int(action)]} from {int(state.position)}"

    first = record(Walk(), WalkRight(), text=Names)["episodes"][0]
    start = 3 - first["num_steps"]
    assert first["decisions"][0]["actions"] == [f"{word} from {start}" for word in ("right", "left", "stay")]


@pytest.mark.parametrize(("mode", "content"), [("svg", "<svg>"), ("rgb_array", "data:image/png;base64,")])
def test_every_render_mode_gives_images(mode: str, content: str) -> None:
    found = record(Walk(modes=(mode,)), WalkRight())
    assert all(content in frame for episode in found["episodes"] for frame in episode["frames"])


def test_environment_that_cannot_render_has_no_record() -> None:
    assert record(Walk(modes=()), WalkRight()) is None
    assert record(Walk(), WalkRight(), num_episodes=0) is None


def test_long_episodes_are_cut_off_but_counted_completely() -> None:
    network = WalkRight(jnp.log(jnp.array([0.7, 0.1, 0.2])))
    found = record(Walk(max_episode_steps=MAX_STEPS + 30), network, num_episodes=2)
    for episode in found["episodes"]:
        assert episode["num_steps"] == MAX_STEPS + 30 and episode["solved"] is False
        assert len(episode["decisions"]) == MAX_STEPS and len(episode["frames"]) == MAX_STEPS + 1


class Move(eqx.Module):
    direction: Array
    speed: Array


class FactoredWalk(Walk):
    action_space = Composite.of(Move, {"direction": Discrete(3), "speed": Box(0.0, 1.0, (2,), np.float32)})

    def offset(self, action: Move) -> Any:
        return action.direction - 1


def test_continuous_fields_have_a_mean_and_a_deviation() -> None:
    def network(observation: Array) -> tuple[Any, Array]:
        speed = DiagonalGaussian(jnp.array([0.25, 0.5]), jnp.log(jnp.array([0.1, 2.0])))
        parts = {"direction": MaskedCategorical(LOGITS), "speed": speed}
        return Factored(parts, Move), jnp.float32(jnp.nan)

    decision = record(FactoredWalk(), network)["episodes"][0]["decisions"][0]
    assert decision["actions"] == [
        "direction 2",
        "direction 0",
        "direction 1",
        "direction 2, speed [0.25, 0.5 ]",
    ]
    assert decision["probabilities"][:3] == pytest.approx([0.7, 0.2, 0.1], abs=1e-5)
    assert decision["chosen"] == 3 and decision["probabilities"][3] is None
    assert decision["value"] is None, "NaN is not valid JSON"
    (first, second) = decision["normals"]
    assert first["name"] == "speed[0]" and second["name"] == "speed[1]"
    assert (first["mean"], first["deviation"]) == pytest.approx((0.25, 0.1))
    assert (second["mean"], second["deviation"]) == pytest.approx((0.5, 2.0))


def test_selection_is_proportional_to_the_groups_and_independent_of_results() -> None:
    groups = ["a", "b", "b", "b"] * 100
    rows = _select(groups)
    assert len(rows) == len(set(rows.tolist())) == NUM_EPISODES
    assert [groups[row] for row in rows].count("a") == NUM_EPISODES // 4
    assert math.isclose(rows.mean(), 200, rel_tol=0.1), "episodes from the whole evaluation"
    assert _select(["x"] * 3).tolist() == [0, 1, 2]


def test_groups_are_recorded() -> None:
    def episodes(tasks: Any, settings: Any) -> EvaluationEpisodes:
        found = sampled_episodes(tasks.held_out(settings), settings)
        return dataclasses.replace(found, groups=["even", "odd"] * 3)

    evaluation = Evaluation(EpisodeEvaluationConfig, EPISODES.run, episodes)
    found = record(Walk(), WalkRight(), evaluation=evaluation)["episodes"]
    assert [episode["group"] for episode in found] == ["even", "odd"] * 3


def test_evaluation_without_known_episodes_shows_other_ones() -> None:
    found = record(Walk(), WalkRight(), evaluation=Evaluation(EpisodeEvaluationConfig, EPISODES.run))
    assert found["num_evaluated"] is None and len(found["episodes"]) == NUM_EPISODES
