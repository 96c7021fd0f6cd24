"""Whole episodes of a policy in a small environment whose outcome is plain."""

import dataclasses
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, Int32

from phalanx.arc import ArcEnvironment
from phalanx.arc.rendering import draw_state
from phalanx.arc.spec import attach_tasks, task_name
from phalanx.core.environment import Environment, EpisodeState, is_done
from phalanx.core.episodes import record_episodes, rollout_episodes
from phalanx.core.evaluation import EpisodeEvaluationConfig, evaluate_episodes
from phalanx.core.spaces import Box, Discrete
from phalanx.logging import ExperimentLogger, FileHandler, LoggingConfig, SVGHandler
from phalanx.nn.distributions import MaskedCategorical
from phalanx.nn.policy_network import select_action
from tests.helpers.policies import CELL, EVERY_COLOR, cell_task, keys_of, only

pytestmark = pytest.mark.slow


class Fuse(EpisodeState):
    left: Int32[Array, "*batch"]
    late: Int32[Array, "*batch"]
    """Number of steps after the end."""


class Burning(Environment[Fuse, Array, Array]):
    """A fuse burns down by as many cells as the action says, 1 or 2, and every step pays 1.

    The key's last word is the length. Against the rules, a step after the end is counted and pays 100.
    """

    @property
    def observation_space(self) -> Box:
        return Box(0, 9, (), np.int32)

    @property
    def action_space(self) -> Discrete:
        return Discrete(3)

    def initial_state(self, key: Array) -> Fuse:
        return Fuse(jax.random.key_data(key)[-1].astype(jnp.int32) % 4 + 1, jnp.int32(0))

    def transition(self, state: Fuse, action: Array) -> tuple[Fuse, Array, Array]:
        left = jnp.maximum(state.left - action, 0)
        return Fuse(left, state.late), jnp.float32(1), left == 0

    def observe(self, state: Fuse) -> Array:
        return state.left

    def metrics(self, state: Fuse) -> dict[str, Array]:
        return {"success": state.terminated, "left": state.left - 10 * state.late}

    def kernel(self) -> "PaysAfterTheEnd":
        return PaysAfterTheEnd()


class BurningOnce(Burning):
    def kernel(self) -> None:
        return None


class PaysAfterTheEnd:
    """A kernel that counts steps after the end and pays 100 for each."""

    def reset(self, keys: Array) -> tuple[Fuse, Array]:
        return jax.vmap(BurningOnce().reset)(keys)

    def step(self, states: Fuse, actions: Array) -> tuple[Fuse, Array, Array, Array, Fuse]:
        over = is_done(states)
        states, _, rewards, done, _ = jax.vmap(BurningOnce().step)(states, actions)
        states = dataclasses.replace(states, late=states.late + over)
        return states, states.left, jnp.where(over, 100.0, rewards), done, states


class Burns(eqx.Module):
    """By 1 with the weight `one`, by 2 with the weight `two`; counts how often it is traced."""

    one: Float[Array, ""]
    two: Float[Array, ""]
    traces: list[int] = eqx.field(static=True)

    def __call__(self, observation: Array) -> tuple[MaskedCategorical, Array]:
        self.traces[0] += 1
        logits = jnp.stack([-jnp.inf, jnp.log(self.one), jnp.log(self.two)])
        return MaskedCategorical(logits, jnp.array([False, True, True])), jnp.float32(0)


class Traces(list[int]):
    """A counter that is as good as any other, so that it does not ask for a new compilation."""

    def __hash__(self) -> int:  # type: ignore[override]
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Traces)


TRACES = Traces([0])
SLOW = Burns(jnp.float32(1), jnp.float32(0), TRACES)
FAST = Burns(jnp.float32(0), jnp.float32(1), TRACES)
EITHER = Burns(jnp.float32(1), jnp.float32(1), TRACES)


def burn(network: Burns, lengths: list[int], **settings: Any) -> Any:
    left, zeros = jnp.array(lengths, jnp.int32), jnp.zeros(len(lengths), jnp.int32)
    flags = {"step_count": zeros, "terminated": left == 0, "truncated": zeros > 0}
    states = Fuse(left, zeros, **flags)
    keys = settings.pop("keys", None)
    act = eqx.Partial(select_action, network)
    return rollout_episodes(Burning(), act, states, states.left, keys, **{"max_steps": 4} | settings)


def test_finished_episodes_take_no_further_steps() -> None:
    played = burn(SLOW, [1, 3, 4, 0])
    assert played.lengths.tolist() == [1, 3, 4, 0]
    assert played.returns.tolist() == [1.0, 3.0, 4.0, 0.0]
    assert played.done.tolist() == [True] * 4
    assert played.final_states.left.tolist() == [0, 0, 0, 0]


def test_metrics_are_those_of_the_last_step_of_each_episode() -> None:
    # A step after the end would say -10.
    assert burn(SLOW, [1, 3, 4, 2]).episode_metrics["left"].tolist() == [0, 0, 0, 0]


def test_episode_longer_than_max_steps_is_not_done() -> None:
    played = burn(SLOW, [1, 3, 9, 6])
    assert played.done.tolist() == [True, True, False, False]
    assert played.lengths.tolist() == [1, 3, 4, 4]
    assert played.episode_metrics["left"].tolist() == [0, 0, 5, 2]
    assert played.episode_metrics["success_mask"].tolist() == [True, True, False, False]


def test_recorded_states_repeat_the_last_one() -> None:
    played = burn(SLOW, [1, 3, 4, 0], record=True)
    assert played.step_states.left.T.tolist() == [[0, 0, 0, 0], [2, 1, 0, 0], [3, 2, 1, 0], [0, 0, 0, 0]]
    assert played.lengths.tolist() == [1, 3, 4, 0]


def test_other_weights_do_not_compile_again() -> None:
    slow = burn(SLOW, [1, 3, 4, 0])
    traced = TRACES[0]
    fast = burn(FAST, [1, 3, 4, 0])
    assert TRACES[0] == traced
    assert (slow.lengths.tolist(), fast.lengths.tolist()) == ([1, 3, 4, 0], [1, 2, 2, 0])


def test_sampled_episode_depends_only_on_its_key() -> None:
    lengths, numbers = [9, 9, 9, 9], [0, 1, 2, 3]
    forth = burn(EITHER, lengths, keys=keys_of(numbers))
    back = burn(EITHER, lengths, keys=keys_of(numbers[::-1]))
    assert forth.final_states.left.tolist() == back.final_states.left.tolist()[::-1]
    assert len(set(forth.final_states.left.tolist())) > 1


def test_large_batch_gives_the_same_episodes_as_a_small_one() -> None:
    lengths = [0, 0, 0, 1] * 74 + [4, 3, 2, 1]
    assert burn(SLOW, lengths).lengths.tolist() == lengths


def test_invalid_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="max_steps must be at least 1, got 0"):
        burn(SLOW, [1], max_steps=0)
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        record_episodes(Burning(), SLOW, jax.random.key(0), 0, 4)


def test_recorded_episodes_are_complete_and_deterministic() -> None:
    episodes = record_episodes(Burning(), SLOW, jax.random.key(3), 5, 4, episode_num=50)
    again = record_episodes(Burning(), SLOW, jax.random.key(3), 5, 4, episode_num=50)
    other = record_episodes(Burning(), SLOW, jax.random.key(4), 5, 4, episode_num=50)
    starts = [[int(episode["initial_state"].left) for episode in run] for run in (episodes, again, other)]
    assert starts[0] == starts[1] != starts[2]
    for number, (start, episode) in enumerate(zip(starts[0], episodes, strict=True)):
        assert episode["environment_id"] == number
        assert episode["episode_num"] == 50
        assert episode["total_steps"] == episode["total_reward"] == start
        assert [int(state.left) for state in episode["step_states"]] == list(range(start))[::-1]
        assert int(episode["final_state"].left) == 0
        assert episode["success"] is True
        assert episode["task_id"] == ""
        assert "final_similarity" not in episode


def test_default_evaluation_has_a_seed_and_a_standard_error() -> None:
    class TwoSteps(Burning):
        """Episodes that start with one or two cells succeed."""

        max_episode_steps = 2

    def evaluate(settings: EpisodeEvaluationConfig) -> dict[str, Any]:
        [result] = evaluate_episodes(TwoSteps(), SLOW, settings)
        assert f"of {settings.num_episodes} episodes solved" in result.describe()[0]
        return result.as_record()

    in_training = evaluate(EpisodeEvaluationConfig(num_episodes=50))
    by_seed = [evaluate(EpisodeEvaluationConfig(num_episodes=50, seed=seed)) for seed in (0, 1)]
    assert by_seed[0] == in_training
    assert by_seed[1]["episode_length"] != in_training["episode_length"]
    rate = in_training["success_rate"]
    assert 0.3 < rate < 0.7
    assert in_training["success_rate_se"] == pytest.approx((rate * (1 - rate) / 49) ** 0.5)


def test_the_logger_draws_recorded_arc_episodes(tmp_path: Path) -> None:
    environment = ArcEnvironment.create(CELL, cell_task("red", [2]))
    [episode] = record_episodes(
        environment, only(2), jax.random.key(0), 1, 1, episode_num=7, task_name=task_name
    )
    assert (episode["task_id"], episode["success"], episode["final_similarity"]) == ("red", True, 1.0)
    handlers = {"file": FileHandler(tmp_path), "svg": SVGHandler(tmp_path / "episodes", draw_state)}
    with ExperimentLogger(LoggingConfig(), handlers) as logger:
        [drawable] = attach_tasks(environment, [episode])
        logger.log_episode_summary(drawable)
    assert logger.failures == {}
    drawn = sorted(path.name for path in (tmp_path / "episodes" / "episode_000007_env_0000").iterdir())
    assert drawn == ["final.svg", "initial.svg", "step_0001.svg"]


def test_recorded_episodes_can_be_sampled() -> None:
    environment = ArcEnvironment.create(CELL, cell_task("red", [2]))
    colors = [
        int(episode["final_state"].working_grid[0, 0])
        for episode in record_episodes(environment, EVERY_COLOR, jax.random.key(0), 20, 1)
    ]
    assert len(set(colors)) > 3
