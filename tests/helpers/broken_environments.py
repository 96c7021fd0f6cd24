"""Corridors that break one rule each, with the check that must find it out."""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp

from phalanx.core.testing import capability_checks as capabilities, transition_checks as conformance
from tests.helpers.corridor import Corridor, WalkInfo

_calls = itertools.count()


class DrawsFromACounter(Corridor):
    def reset(self, key):
        return super().reset(key + jnp.uint32(next(_calls)))


class FeelsTheBatchSize(Corridor):
    def batch_reset(self, keys):
        return super().batch_reset(keys + jnp.uint32(len(keys)))


class SharesOneKey(Corridor):
    def batch_reset(self, keys):
        return super().batch_reset(jnp.broadcast_to(keys[0], keys.shape))


class PaysMoreUnderJit(Corridor):
    def step(self, state, action):
        state, observation, reward, done, info = super().step(state, action)
        bonus = 1.0 if isinstance(reward, jax.core.Tracer) else 0.0
        return state, observation, reward + bonus, done, info


class PaysMoreInABatch(Corridor):
    def batch_step(self, states, actions):
        states, observations, rewards, dones, infos = super().batch_step(states, actions)
        return states, observations, rewards * 2, dones, infos


class ResetsEverybody(Corridor):
    def batch_reset_where(self, mask, keys, states, observations):
        return self.batch_reset(keys)


class PaysAfterTheEnd(Corridor):
    def step(self, state, action):
        state, observation, reward, done, info = super().step(state, action)
        return state, observation, jnp.where(state.terminated, 1.0, reward), done, info


class CountsAfterTheEnd(Corridor):
    def step(self, state, action):
        over = self.is_done(state)
        state, *rest = super().step(state, action)
        return dataclasses.replace(state, clock=state.clock + over), *rest


class RisesFromTheDead(Corridor):
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


class CallsTruncationTermination(Corridor):
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


class LosesTheTerminalObservation(Corridor):
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


class MasksTwoOfThree(Corridor):
    def legal_actions(self, state):
        return super().legal_actions(state)[..., :2]


class MasksWithNumbers(Corridor):
    def legal_actions(self, state):
        return super().legal_actions(state).astype(jnp.float32)


class SamplesWhatIsMasked(Corridor):
    def legal_actions(self, state):
        return super().legal_actions(state).at[..., 1].set(False)


class AllowsNothing(Corridor):
    def legal_actions(self, state):
        return super().legal_actions(state) & (state.clock[..., None] != 2)


class MasksOnlySingles(Corridor):
    def legal_actions(self, state):
        mask = super().legal_actions(state)
        return mask if mask.ndim == 1 else ~mask


class CarriesOutWhatIsMasked(Corridor):
    """A leap is masked out and never sampled, but `step` takes it."""

    def legal_actions(self, state):
        return super().legal_actions(state).at[..., 2].set(False)

    def sample_action(self, key, state):
        return jnp.int32(1)


class SaysNothing(Corridor):
    def observation_text(self, state):
        return ""


class MistakesItsOwnWords(Corridor):
    def action_text(self, action, state):
        return "right"


class RefusesItsOwnWords(Corridor):
    def parse_action(self, text, state):
        raise ValueError("no")


class UnderstandsEverything(Corridor):
    def parse_action(self, text, state):
        return super().parse_action(text, state) if text in ("left", "right", "leap") else jnp.int32(1)


class WordsItsRowsOtherwise(Corridor):
    def observation_texts(self, states):
        return [text.upper() for text in super().observation_texts(states)]


class ReadsEveryRowAsTheFirst(Corridor):
    def parse_actions(self, texts, states):
        actions, _ = super().parse_actions(texts, states)
        return actions, [""] * len(texts)


class DrawsNothing(Corridor):
    def render(self, state, mode="svg"):
        return None if mode == "ansi" else super().render(state, mode)


class DrawsFloats(Corridor):
    def render(self, state, mode="svg"):
        return super().render(state, mode) / 255.0 if mode == "rgb_array" else super().render(state, mode)


class NamesNumbers(Corridor):
    def task_name(self, state):
        return int(state.position)


class HasNoVersion(Corridor):
    version = 0


BROKEN: list[tuple[type[Corridor], Any, str]] = [
    (DrawsFromACounter, conformance.check_determinism, "second run without jit"),
    (FeelsTheBatchSize, conformance.check_batch_of_one_equals_single, "environment 0 of a batch of 1"),
    (SharesOneKey, conformance.check_batch_equals_loop, "environment 1 of a batch of 3"),
    (PaysMoreUnderJit, conformance.check_jit_equals_eager, "compiled step 0.rewards"),
    (
        PaysMoreInABatch,
        conformance.check_vmap_equals_batch_functions,
        r"batch_step, by step and environment: .rewards\[0, 0\]",
    ),
    (ResetsEverybody, conformance.check_vmap_equals_batch_functions, "batch_reset_where"),
    (PaysAfterTheEnd, conformance.check_done_states_are_absorbing, "was then paid"),
    (CountsAfterTheEnd, conformance.check_done_states_are_absorbing, "state of environment .*clock"),
    (RisesFromTheDead, conformance.check_done_states_are_absorbing, "was then not done"),
    (ResetsItself, conformance.check_done_states_are_absorbing, "state of environment"),
    (NeverEnds, conformance.check_done_states_are_absorbing, "no episode ended within 24"),
    (CallsTruncationTermination, conformance.check_termination_flags, "clock is a trunc"),
    (SetsBothFlags, conformance.check_termination_flags, "both terminated and truncated"),
    (ForgetsTruncation, conformance.check_termination_flags, "done is not"),
    (ResetsItself, conformance.check_terminal_observation_in_same_step_mode, "never resets itself"),
    (LosesTheTerminalObservation, conformance.check_terminal_observation_in_same_step_mode, "final_obs"),
    (StartsFinished, conformance.check_terminal_observation_in_same_step_mode, "already done"),
    (LosesTheTerminalObservation, conformance.check_terminal_observation_in_next_step_mode, "with done"),
    (PaysAfterTheEnd, conformance.check_terminal_observation_in_next_step_mode, "reward of a reset step"),
    (MovesOnAnInvalidAction, conformance.check_invalid_actions_change_nothing, "content after an invalid"),
    (ObservesTwos, conformance.check_observations_lie_in_their_space, "observation of reset is not in"),
    (MasksTwoOfThree, capabilities.check_legal_actions, r"bool\[2\], the actions have bool\[3\]"),
    (MasksWithNumbers, capabilities.check_legal_actions, r"mask of one state is float32\[3\]"),
    (SamplesWhatIsMasked, capabilities.check_legal_actions, "sampled action is illegal by the mask"),
    (AllowsNothing, capabilities.check_legal_actions, "nothing is legal, and the episode goes on"),
    (MasksOnlySingles, capabilities.check_legal_actions, "legal_actions of a batch"),
    (CarriesOutWhatIsMasked, capabilities.check_legal_actions, "content after the masked-out 2"),
    (SaysNothing, capabilities.check_text_round_trip, "observation_text is ''"),
    (MistakesItsOwnWords, capabilities.check_text_round_trip, "what 'right' reads as"),
    (RefusesItsOwnWords, capabilities.check_text_round_trip, "names a legal action and is refused: no"),
    (UnderstandsEverything, capabilities.check_text_round_trip, "takes '' for an action"),
    (WordsItsRowsOtherwise, capabilities.check_text_round_trip, "texts of a batch are not those of its"),
    (ReadsEveryRowAsTheFirst, capabilities.check_text_round_trip, "takes or refuses what parse_action"),
    (DrawsNothing, capabilities.check_render_modes, "'ansi'.* gives None"),
    (DrawsFloats, capabilities.check_render_modes, "'rgb_array'.* gives array"),
    (NamesNumbers, capabilities.check_task_name_and_version, "task_name is .*, which is no text"),
    (
        HasNoVersion,
        capabilities.check_task_name_and_version,
        "version must be a whole number from 1 on, got 0",
    ),
    (SamplesOutside, conformance.check_sampled_actions_lie_in_their_space, "sampled at step 0 is not in"),
]
