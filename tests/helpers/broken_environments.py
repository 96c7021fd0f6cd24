"""Environments that violate one rule each, with the check that must fail.

The base class enforces most rules for `initial_state` and `transition`, but not for a kernel.
"""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from phalanx.core.environment import is_done
from phalanx.core.spaces import Box, Composite
from phalanx.core.spec import EnvSpec
from phalanx.core.testing import capability_checks as capabilities, transition_checks as conformance
from phalanx.core.vector import select_rows
from tests.helpers.corridor import LEFT, RIGHT, SPEC, Corridor, CorridorText, RightExpert, Walker

_calls = itertools.count()


class Kernel:
    """A correct kernel, which calls the methods of an environment without a kernel."""

    def __init__(self, corridor: Corridor) -> None:
        self.corridor = corridor

    def reset(self, keys: Any) -> tuple[Walker, Any]:
        return (self.corridor.batch_reset if keys.ndim > 1 else self.corridor.reset)(keys)

    def step(self, states: Walker, actions: Any) -> tuple[Walker, Any, Any, Any, Any]:
        return (self.corridor.batch_step if states.position.ndim else self.corridor.step)(states, actions)

    def reset_where(self, mask: Any, keys: Any, states: Walker, observations: Any) -> tuple[Walker, Any]:
        return self.corridor.batch_reset_where(mask, keys, states, observations)


def corridor_with(kernel: type[Kernel]) -> type[Corridor]:
    """Turn a kernel into a corridor that uses it."""
    create = lambda self: kernel(Corridor(self.max_episode_steps))  # noqa: E731
    return type(kernel.__name__, (Corridor,), {"kernel": create, "__module__": __name__})


@corridor_with
class HasCorrectKernel(Kernel):
    pass


class DependsOnCallCount(Corridor):
    def initial_state(self, key):
        return super().initial_state(key + jnp.uint32(next(_calls)))


@corridor_with
class DependsOnBatchSize(Kernel):
    def reset(self, keys):
        return super().reset(keys + jnp.uint32(len(keys)) if keys.ndim > 1 else keys)


@corridor_with
class SharesOneKey(Kernel):
    def reset(self, keys):
        return super().reset(jnp.broadcast_to(keys[0], keys.shape) if keys.ndim > 1 else keys)


class HigherRewardUnderJit(Corridor):
    def transition(self, state, action):
        state, reward, terminated = super().transition(state, action)
        return state, reward + (1.0 if isinstance(reward, jax.core.Tracer) else 0.0), terminated


@corridor_with
class HigherRewardInBatch(Kernel):
    def step(self, states, actions):
        states, observations, rewards, *rest = super().step(states, actions)
        return states, observations, rewards * (2 if rewards.ndim else 1), *rest


@corridor_with
class ResetsAllRows(Kernel):
    def reset_where(self, mask, keys, states, observations):
        return self.reset(keys)


@corridor_with
class RewardAfterEnd(Kernel):
    def step(self, states, actions):
        states, observations, rewards, *rest = super().step(states, actions)
        return states, observations, jnp.where(states.terminated, 1.0, rewards), *rest


@corridor_with
class CountsStepsAfterEnd(Kernel):
    def step(self, states, actions):
        over = is_done(states)
        states, *rest = super().step(states, actions)
        return dataclasses.replace(states, step_count=states.step_count + over), *rest


@corridor_with
class NotDoneAfterEnd(Kernel):
    def step(self, states, actions):
        over = is_done(states)
        states, observations, rewards, dones, info = super().step(states, actions)
        return states, observations, rewards, dones & ~over, info


@corridor_with
class ResetsItself(Kernel):
    def step(self, states, actions):
        states, observations, rewards, dones, info = super().step(states, actions)
        fresh = self.reset(states.key)
        return *select_rows(dones, fresh, (states, observations)), rewards, dones, info


class NeverEnds(Corridor):
    max_episode_steps: int = 1000

    def transition(self, state, action):
        return state, -0.1, False


@corridor_with
class ReportsTruncationAsTermination(Kernel):
    def step(self, states, actions):
        states, observations, rewards, dones, info = super().step(states, actions)
        states = dataclasses.replace(states, terminated=dones, truncated=jnp.zeros_like(dones))
        return states, observations, rewards, dones, info


@corridor_with
class SetsBothFlags(Kernel):
    def step(self, states, actions):
        states, observations, rewards, dones, info = super().step(states, actions)
        states = dataclasses.replace(states, terminated=dones, truncated=dones)
        return states, observations, rewards, dones, info


@corridor_with
class ForgetsTruncation(Kernel):
    def step(self, states, actions):
        states, observations, rewards, _, info = super().step(states, actions)
        return states, observations, rewards, states.terminated, info


@corridor_with
class CountsTwice(Kernel):
    def step(self, states, actions):
        states, *rest = super().step(states, actions)
        return dataclasses.replace(states, step_count=states.step_count + 1), *rest


@corridor_with
class StartsAtOne(Kernel):
    def reset(self, keys):
        states, observations = super().reset(keys)
        return dataclasses.replace(states, step_count=states.step_count + 1), observations


class IgnoresLimit(Corridor):
    max_episode_steps: int = 4

    def kernel(self):
        return Kernel(Corridor())


@corridor_with
class DropsTerminalObservation(Kernel):
    def step(self, states, actions):
        states, observations, rewards, dones, info = super().step(states, actions)
        return states, select_rows(~dones, observations, 0 * observations), rewards, dones, info


@corridor_with
class StartsFinished(Kernel):
    def reset_where(self, mask, keys, states, observations):
        states, observations = super().reset_where(mask, keys, states, observations)
        return dataclasses.replace(states, truncated=states.truncated | mask), observations


@corridor_with
class MovesOnAnInvalidAction(Kernel):
    def step(self, states, actions):
        states, observations, rewards, *rest = super().step(states, actions)
        position = jnp.where(rewards == -1, 0, states.position)
        return dataclasses.replace(states, position=position), observations, rewards, *rest


class ObservesTwos(Corridor):
    def observe(self, state):
        return super().observe(state) * jnp.int8(2)


class SamplesOutside(Corridor):
    def sample_action(self, key, state):
        return jnp.where(state.step_count == 0, 3, super().sample_action(key, state)).astype(jnp.int32)


class MaskTooShort(Corridor):
    def legal_actions(self, state):
        return super().legal_actions(state)[:2]


class MaskOfFloats(Corridor):
    def legal_actions(self, state):
        return super().legal_actions(state).astype(jnp.float32)


class SamplesIllegalActions(Corridor):
    def legal_actions(self, state):
        return super().legal_actions(state).at[RIGHT].set(False)

    def sample_action(self, key, state):
        return jnp.int32(RIGHT)


class NoLegalActions(Corridor):
    def legal_actions(self, state):
        return super().legal_actions(state) & (state.step_count != 2)


class ExecutesIllegalActions(Corridor):
    """A leap is illegal, but the kernel executes it."""

    def legal_actions(self, state):
        return super().legal_actions(state).at[2].set(False)

    def kernel(self):
        return Kernel(Corridor())


class ObservesAnotherMask(Corridor):
    """The observation says that all moves are legal."""

    @property
    def observation_space(self):
        spaces = {"cells": super().observation_space, "action_mask": Box(0, 1, (3,), np.bool_)}
        return Composite.of(dict, spaces)

    def observe(self, state):
        return {"cells": super().observe(state), "action_mask": jnp.ones(3, bool)}


class RendersNothing(Corridor):
    def render(self, state, mode="svg"):
        return None if mode == "ansi" else super().render(state, mode)


class RendersFloats(Corridor):
    def render(self, state, mode="svg"):
        return super().render(state, mode) / 255.0 if mode == "rgb_array" else super().render(state, mode)


class EmptyPrompt(CorridorText):
    def prompt(self, state):
        return ""


class SameTextForAllActions(CorridorText):
    def format(self, action, state):
        return "right"


class RejectsItsOwnText(CorridorText):
    def parse(self, answer, state):
        raise ValueError("no")


class AcceptsAnyText(CorridorText):
    def parse(self, answer, state):
        return super().parse(answer, state) if answer in ("left", "right", "leap") else jnp.int32(1)


class DifferentPromptsInBatch(CorridorText):
    def prompts(self, states, prompt_format="full"):
        return [text.upper() for text in super().prompts(states)]


class DifferentAnswersInBatch(CorridorText):
    def formats(self, actions, states):
        return [text.upper() for text in super().formats(actions, states)]


class AcceptsAnyTextInBatch(CorridorText):
    def parse_batch(self, answers, states):
        actions, _ = super().parse_batch(answers, states)
        return actions, [""] * len(answers)


class ExpertWalksIntoWalls(RightExpert):
    def label(self, states, memory):
        labels = super().label(states, memory)
        return labels._replace(actions=np.full_like(labels.actions, LEFT))


class ExpertActsOutsideTheSpace(RightExpert):
    def label(self, states, memory):
        labels = super().label(states, memory)
        return labels._replace(actions=np.full_like(labels.actions, 3))


def task_name_is_integer(environment: Corridor, state: Walker) -> Any:
    return int(state.position)


def broken_spec(part: Any) -> EnvSpec:
    """Return the spec of the corridor in which one part is broken."""
    if not isinstance(part, type):
        return dataclasses.replace(SPEC, task_name=part)
    if issubclass(part, CorridorText):
        return dataclasses.replace(SPEC, text=part)
    if issubclass(part, RightExpert):
        return dataclasses.replace(SPEC, expert=lambda environment: part())
    return dataclasses.replace(SPEC, make=part)


BROKEN: list[tuple[Any, Any, str]] = [
    (DependsOnCallCount, conformance.check_determinism, "second run without jit"),
    (DependsOnBatchSize, conformance.check_batch_of_one_equals_single, "environment 0 of a batch of 1"),
    (SharesOneKey, conformance.check_batch_equals_loop, "environment 1 of a batch of 3"),
    (HigherRewardUnderJit, conformance.check_jit_equals_eager, "compiled step 0.rewards"),
    (
        HigherRewardInBatch,
        conformance.check_vmap_equals_batch_functions,
        r"batch_step, by step and environment: .rewards\[0, 0\]",
    ),
    (ResetsAllRows, conformance.check_vmap_equals_batch_functions, "batch_reset_where"),
    (RewardAfterEnd, conformance.check_done_states_are_absorbing, "must give reward 0"),
    (
        CountsStepsAfterEnd,
        conformance.check_done_states_are_absorbing,
        "state after stepping a finished state.step_count",
    ),
    (NotDoneAfterEnd, conformance.check_done_states_are_absorbing, "was not done after another step"),
    (ResetsItself, conformance.check_done_states_are_absorbing, "state after stepping a finished state"),
    (NeverEnds, conformance.check_done_states_are_absorbing, "no episode ended within 24"),
    (ReportsTruncationAsTermination, conformance.check_termination_flags, "a step limit must truncate"),
    (SetsBothFlags, conformance.check_termination_flags, "both terminated and truncated"),
    (ForgetsTruncation, conformance.check_termination_flags, "done is not"),
    (CountsTwice, conformance.check_step_limit, "step_count must increase by 1"),
    (StartsAtOne, conformance.check_step_limit, "step_count must be 0 after reset"),
    (IgnoresLimit, conformance.check_step_limit, r"not ended after max_episode_steps \(4\) steps"),
    (ResetsItself, conformance.check_terminal_observation_in_same_step_mode, "step must not reset"),
    (DropsTerminalObservation, conformance.check_terminal_observation_in_same_step_mode, "final_obs"),
    (StartsFinished, conformance.check_terminal_observation_in_same_step_mode, "already done"),
    (DropsTerminalObservation, conformance.check_terminal_observation_in_next_step_mode, "with done"),
    (RewardAfterEnd, conformance.check_terminal_observation_in_next_step_mode, "reward of a reset step"),
    (
        MovesOnAnInvalidAction,
        conformance.check_invalid_actions_change_nothing,
        "state after an invalid action",
    ),
    (ObservesTwos, conformance.check_observations_lie_in_their_space, "observation of reset is not in"),
    (MaskTooShort, capabilities.check_legal_actions, r"must be bool\[3\], got bool\[2\]"),
    (MaskOfFloats, capabilities.check_legal_actions, r"must be bool\[3\], got float32\[3\]"),
    (SamplesIllegalActions, capabilities.check_legal_actions, "sampled action is not legal"),
    (NoLegalActions, capabilities.check_legal_actions, "no action is legal, but the episode is not done"),
    (ExecutesIllegalActions, capabilities.check_legal_actions, "state after illegal 2"),
    (ObservesAnotherMask, capabilities.check_legal_actions, "action_mask, compared with legal_actions,"),
    (EmptyPrompt, capabilities.check_text_round_trip, "prompt is ''"),
    (SameTextForAllActions, capabilities.check_text_round_trip, r"parse\('right'\)"),
    (RejectsItsOwnText, capabilities.check_text_round_trip, "the text of a legal action: no"),
    (AcceptsAnyText, capabilities.check_text_round_trip, "parse accepts ''"),
    (DifferentPromptsInBatch, capabilities.check_text_round_trip, "prompts differs from"),
    (DifferentAnswersInBatch, capabilities.check_text_round_trip, "formats differs from"),
    (AcceptsAnyTextInBatch, capabilities.check_text_round_trip, "accept different text"),
    (RendersNothing, capabilities.check_render_modes, "'ansi'.* returned None"),
    (RendersFloats, capabilities.check_render_modes, "'rgb_array'.* returned array"),
    (ExpertWalksIntoWalls, capabilities.check_expert, "the action of the expert is not legal"),
    (ExpertActsOutsideTheSpace, capabilities.check_expert, "choice 0 of environment 0 is not in"),
    (task_name_is_integer, capabilities.check_task_name, "task_name must be a string"),
    (SamplesOutside, conformance.check_sampled_actions_lie_in_their_space, "sampled at step 0 is not in"),
]
