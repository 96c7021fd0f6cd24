"""Environments that violate one rule each, with the check that must fail."""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from phalanx.core.testing import capability_checks as capabilities, transition_checks as conformance
from tests.helpers.corridor import LEFT, Corridor, RightExpert, WalkInfo

_calls = itertools.count()


class DependsOnCallCount(Corridor):
    def reset(self, key):
        return super().reset(key + jnp.uint32(next(_calls)))


class DependsOnBatchSize(Corridor):
    def batch_reset(self, keys):
        return super().batch_reset(keys + jnp.uint32(len(keys)))


class SharesOneKey(Corridor):
    def batch_reset(self, keys):
        return super().batch_reset(jnp.broadcast_to(keys[0], keys.shape))


class HigherRewardUnderJit(Corridor):
    def step(self, state, action):
        state, observation, reward, done, info = super().step(state, action)
        bonus = 1.0 if isinstance(reward, jax.core.Tracer) else 0.0
        return state, observation, reward + bonus, done, info


class HigherRewardInBatch(Corridor):
    def batch_step(self, states, actions):
        states, observations, rewards, dones, infos = super().batch_step(states, actions)
        return states, observations, rewards * 2, dones, infos


class ResetsAllRows(Corridor):
    def batch_reset_where(self, mask, keys, states, observations):
        return self.batch_reset(keys)


class RewardAfterEnd(Corridor):
    def step(self, state, action):
        state, observation, reward, done, info = super().step(state, action)
        return state, observation, jnp.where(state.terminated, 1.0, reward), done, info


class CountsStepsAfterEnd(Corridor):
    def step(self, state, action):
        over = self.is_done(state)
        state, *rest = super().step(state, action)
        return dataclasses.replace(state, clock=state.clock + over), *rest


class NotDoneAfterEnd(Corridor):
    def step(self, state, action):
        over = self.is_done(state)
        state, observation, reward, done, info = super().step(state, action)
        return state, observation, reward, done & ~over, info


class ResetsItself(Corridor):
    def step(self, state, action):
        new, observation, reward, done, info = super().step(state, action)
        fresh, first = self.reset(new.key)
        new = jax.tree.map(lambda a, b: jnp.where(done, a, b), fresh, new)
        return new, jnp.where(done, first, observation), reward, done, info


class ReportsTruncationAsTermination(Corridor):
    def step(self, state, action):
        state, observation, reward, done, info = super().step(state, action)
        return state, observation, reward, done, WalkInfo(done, jnp.zeros_like(done), info.invalid)


class SetsBothFlags(Corridor):
    def step(self, state, action):
        state, observation, reward, done, info = super().step(state, action)
        return state, observation, reward, done, WalkInfo(done, done, info.invalid)


class ForgetsTruncation(Corridor):
    def step(self, state, action):
        state, observation, reward, _, info = super().step(state, action)
        return state, observation, reward, info.terminated, info


class DropsTerminalObservation(Corridor):
    def step(self, state, action):
        state, observation, reward, done, info = super().step(state, action)
        return state, jnp.where(done, jnp.zeros_like(observation), observation), reward, done, info


class StartsFinished(Corridor):
    def batch_reset_where(self, mask, keys, states, observations):
        states, observations = super().batch_reset_where(mask, keys, states, observations)
        return dataclasses.replace(states, truncated=states.truncated | mask), observations


class MovesOnAnInvalidAction(Corridor):
    def step(self, state, action):
        new, _, *rest = super().step(state, action)
        moved = dataclasses.replace(new, position=jnp.where(new.clock == 3, 0, new.position))
        return moved, self.observe(moved), *rest


class ObservesTwos(Corridor):
    def observe(self, state):
        return super().observe(state) * jnp.int8(2)


class SamplesOutside(Corridor):
    def sample_action(self, key, state):
        return jnp.where(state.clock == 0, 3, super().sample_action(key, state)).astype(jnp.int32)


class NeverEnds(Corridor):
    def step(self, state, action):
        return super().step(dataclasses.replace(state, clock=jnp.int32(0)), jnp.int32(0))


class MaskTooShort(Corridor):
    def legal_actions(self, state):
        return super().legal_actions(state)[..., :2]


class MaskOfFloats(Corridor):
    def legal_actions(self, state):
        return super().legal_actions(state).astype(jnp.float32)


class SamplesIllegalActions(Corridor):
    def legal_actions(self, state):
        return super().legal_actions(state).at[..., 1].set(False)


class NoLegalActions(Corridor):
    def legal_actions(self, state):
        return super().legal_actions(state) & (state.clock[..., None] != 2)


class InvertsMaskOfBatch(Corridor):
    def legal_actions(self, state):
        mask = super().legal_actions(state)
        return mask if mask.ndim == 1 else ~mask


class ExecutesIllegalActions(Corridor):
    """A leap is illegal and never sampled, but `step` executes it."""

    def legal_actions(self, state):
        return super().legal_actions(state).at[..., 2].set(False)

    def sample_action(self, key, state):
        return jnp.int32(1)


class EmptyObservationText(Corridor):
    def observation_text(self, state):
        return ""


class SameTextForAllActions(Corridor):
    def action_text(self, action, state):
        return "right"


class RejectsItsOwnText(Corridor):
    def parse_action(self, text, state):
        raise ValueError("no")


class AcceptsAnyText(Corridor):
    def parse_action(self, text, state):
        return super().parse_action(text, state) if text in ("left", "right", "leap") else jnp.int32(1)


class DifferentTextInBatch(Corridor):
    def observation_texts(self, states):
        return [text.upper() for text in super().observation_texts(states)]


class AcceptsAnyTextInBatch(Corridor):
    def parse_actions(self, texts, states):
        actions, _ = super().parse_actions(texts, states)
        return actions, [""] * len(texts)


class RendersNothing(Corridor):
    def render(self, state, mode="svg"):
        return None if mode == "ansi" else super().render(state, mode)


class RendersFloats(Corridor):
    def render(self, state, mode="svg"):
        return super().render(state, mode) / 255.0 if mode == "rgb_array" else super().render(state, mode)


class ExpertWalksIntoWalls(Corridor):
    def expert(self):
        class LeftExpert(RightExpert):
            def label(self, states, memory):
                labels = super().label(states, memory)
                return labels._replace(actions=np.full_like(labels.actions, LEFT))

        return LeftExpert()


class ExpertActsOutsideTheSpace(Corridor):
    def expert(self):
        class InvalidExpert(RightExpert):
            def label(self, states, memory):
                labels = super().label(states, memory)
                return labels._replace(actions=np.full_like(labels.actions, 3))

        return InvalidExpert()


class TaskNameIsInteger(Corridor):
    def task_name(self, state):
        return int(state.position)


class VersionZero(Corridor):
    version = 0


BROKEN: list[tuple[type[Corridor], Any, str]] = [
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
        "state after stepping a finished state.clock",
    ),
    (NotDoneAfterEnd, conformance.check_done_states_are_absorbing, "was not done after another step"),
    (ResetsItself, conformance.check_done_states_are_absorbing, "state after stepping a finished state"),
    (NeverEnds, conformance.check_done_states_are_absorbing, "no episode ended within 24"),
    (ReportsTruncationAsTermination, conformance.check_termination_flags, "a time limit must truncate"),
    (SetsBothFlags, conformance.check_termination_flags, "both terminated and truncated"),
    (ForgetsTruncation, conformance.check_termination_flags, "done is not"),
    (ResetsItself, conformance.check_terminal_observation_in_same_step_mode, "step must not reset"),
    (DropsTerminalObservation, conformance.check_terminal_observation_in_same_step_mode, "final_obs"),
    (StartsFinished, conformance.check_terminal_observation_in_same_step_mode, "already done"),
    (DropsTerminalObservation, conformance.check_terminal_observation_in_next_step_mode, "with done"),
    (RewardAfterEnd, conformance.check_terminal_observation_in_next_step_mode, "reward of a reset step"),
    (
        MovesOnAnInvalidAction,
        conformance.check_invalid_actions_change_nothing,
        "comparable_state after an invalid",
    ),
    (ObservesTwos, conformance.check_observations_lie_in_their_space, "observation of reset is not in"),
    (MaskTooShort, capabilities.check_legal_actions, r"bool\[2\], expected bool\[3\]"),
    (MaskOfFloats, capabilities.check_legal_actions, r"mask of one state is float32\[3\]"),
    (SamplesIllegalActions, capabilities.check_legal_actions, "sampled action is not legal"),
    (NoLegalActions, capabilities.check_legal_actions, "no action is legal, but the episode is not done"),
    (InvertsMaskOfBatch, capabilities.check_legal_actions, "legal_actions of a batch"),
    (ExecutesIllegalActions, capabilities.check_legal_actions, "comparable_state after illegal 2"),
    (EmptyObservationText, capabilities.check_text_round_trip, "observation_text is ''"),
    (SameTextForAllActions, capabilities.check_text_round_trip, r"parse_action\('right'\)"),
    (RejectsItsOwnText, capabilities.check_text_round_trip, "the text of a legal action: no"),
    (AcceptsAnyText, capabilities.check_text_round_trip, "parse_action accepts ''"),
    (DifferentTextInBatch, capabilities.check_text_round_trip, "observation_texts differs from"),
    (AcceptsAnyTextInBatch, capabilities.check_text_round_trip, "accept different text"),
    (RendersNothing, capabilities.check_render_modes, "'ansi'.* returned None"),
    (RendersFloats, capabilities.check_render_modes, "'rgb_array'.* returned array"),
    (ExpertWalksIntoWalls, capabilities.check_expert, "the action of the expert is not legal"),
    (ExpertActsOutsideTheSpace, capabilities.check_expert, "choice 0 of environment 0 is not in"),
    (TaskNameIsInteger, capabilities.check_task_name_and_version, "task_name must be a string"),
    (
        VersionZero,
        capabilities.check_task_name_and_version,
        "version must be a positive integer, got 0",
    ),
    (SamplesOutside, conformance.check_sampled_actions_lie_in_their_space, "sampled at step 0 is not in"),
]
