"""Conversion of episodes to tokens and back, and creation of token samples from episodes."""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64

from phalanx.data.samples import EpisodeStatus, Sample, SampleInfo, SampleOrigin


class TokenizedSteps(NamedTuple):
    """Tokens of several steps, concatenated in one array.

    Each step consists of the tokens of its observation, followed by those of its action.
    """

    tokens: Int32[np.ndarray, " tokens"]
    """Tokens of all steps, one after another."""
    observation_lengths: Int32[np.ndarray, " steps"]
    """Number of observation tokens in each step. Their loss mask is 0."""
    action_lengths: Int32[np.ndarray, " steps"]
    """Number of action tokens in each step. Their loss mask is 1."""


@runtime_checkable
class EpisodeTokenizer(Protocol):
    """Interface for classes that convert the steps of an environment to tokens and back.

    A tokenizer must be hashable, for example a frozen dataclass. `view` is traced by JAX. All other methods
    use NumPy arrays.
    """

    @property
    def name(self) -> str:
        """Name of the environment, which is also the default dataset id of its samples."""

    @property
    def vocab_size(self) -> int:
        """Number of different token ids."""

    @property
    def max_steps(self) -> int | None:
        """Maximum number of steps in an episode. None if it is unknown."""

    def view(self, states: Any) -> Any:
        """Extract the observations that `encode` needs from a batch of states. Traced by JAX."""

    def encode(self, seen: Any, actions: Any) -> TokenizedSteps:
        """Encode a batch of steps. `seen` contains the observations that `view` returned."""

    def decode(self, tokens: Int32[np.ndarray, " tokens"]) -> tuple[Any, Any]:
        """Decode the observation and the action of one step."""

    def success(self, infos: Any) -> Bool[np.ndarray, " episodes"]:
        """Return a boolean array that is True for successful episodes, given the info of their last steps."""

    def difficulty(self, seen: Any) -> Float64[np.ndarray, " episodes"]:
        """Return the difficulty of each episode, given its first observation.

        The difficulty is a number from 0 to 1, or NaN if it is unknown.
        """


class PaddedStepTokens(NamedTuple):
    """Tokens of one part of each step, such as one field of the observation.

    Rows are padded to the same width. `join_parts` removes this padding.
    """

    tokens: Int32[np.ndarray, "steps width"]
    """Token ids, including padding."""
    counts: Bool[np.ndarray, "steps width"]
    """True for tokens that are not padding."""


def full_part(tokens: Int32[np.ndarray, "steps width"]) -> PaddedStepTokens:
    """Create a part (see `PaddedStepTokens`) in which no token is padding."""
    return PaddedStepTokens(tokens, np.ones(tokens.shape, bool))


def repeated_token(token: int, steps: int) -> PaddedStepTokens:
    """Create a part (see `PaddedStepTokens`) that consists of `token` in every step."""
    return full_part(np.full((steps, 1), token, np.int32))


def join_parts(
    observation_parts: list[PaddedStepTokens], action_parts: list[PaddedStepTokens]
) -> TokenizedSteps:
    """Concatenate the tokens of all parts, step by step, and remove the padding."""
    every = [*observation_parts, *action_parts]
    tokens = np.concatenate([part.tokens for part in every], axis=1)
    counts = np.concatenate([part.counts for part in every], axis=1)
    lengths = [sum(part.counts.sum(axis=1) for part in parts) for parts in (observation_parts, action_parts)]
    return TokenizedSteps(tokens[counts], *(np.asarray(length, np.int32) for length in lengths))


class EpisodeOutcomes(NamedTuple):
    """Outcome of each episode in a batch."""

    success: Bool[np.ndarray, " episodes"]
    """True for episodes that succeeded."""
    difficulty: Float64[np.ndarray, " episodes"]
    """Difficulty from 0 to 1, or NaN if it is unknown."""
    terminated: Bool[np.ndarray, " episodes"]
    """True for episodes that terminated, and False for those that were truncated."""


def create_episode_samples(
    episode_ids: Sequence[str],
    num_steps: Int64[np.ndarray, " episodes"],
    steps: TokenizedSteps,
    rewards: Any,
    outcomes: EpisodeOutcomes,
    *,
    dataset_id: str,
    per: Literal["step", "episode"] = "step",
) -> list[Sample]:
    """Create samples from the tokens of episodes.

    Args:
        episode_ids: Id of each episode.
        num_steps: Number of steps in each episode.
        steps: Tokens of all steps, one episode after another.
        rewards: Reward of each step, in the same order as `steps`.
        outcomes: Outcome of each episode.
        dataset_id: Dataset id of the samples.
        per: Create one sample for each step ("step") or for each episode ("episode").
    """
    lengths = np.stack([steps.observation_lengths, steps.action_lengths], axis=1)
    mask = np.repeat(np.tile(np.array([0, 1], np.int8), len(lengths)), lengths.reshape(-1))
    ends = np.concatenate([[0], np.cumsum(lengths.sum(axis=1), dtype=np.int64)])
    samples = []
    row = 0
    for episode, count in enumerate(num_steps.tolist()):
        episode_id = episode_ids[episode]
        success, difficulty = bool(outcomes.success[episode]), float(outcomes.difficulty[episode])
        status = EpisodeStatus.SUCCESS if success else EpisodeStatus.FAILURE
        complete = per == "episode"
        for step in [0] if complete else range(count):
            end = row + (count if complete else 1)
            tokens = slice(int(ends[row]), int(ends[end]))
            samples.append(
                Sample(
                    episode_id if complete else f"{episode_id}_step{step}",
                    steps.tokens[tokens],
                    mask[tokens],
                    info=SampleInfo(
                        dataset_id=dataset_id,
                        origin=SampleOrigin.ENVIRONMENT,
                        episode_id=episode_id,
                        episode_status=status if outcomes.terminated[episode] else EpisodeStatus.TIMEOUT,
                        step_index=None if complete else step,
                        total_steps=count,
                        reward=float(rewards[row:end].sum()),
                        difficulty=None if math.isnan(difficulty) else difficulty,
                        success=success,
                    ),
                )
            )
            row = end
    return samples
