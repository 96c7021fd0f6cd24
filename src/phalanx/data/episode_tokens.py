"""Episodes as token samples: the tokenizer protocol, and samples from the tokens of an episode's steps."""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64

from phalanx.data.samples import EpisodeStatus, Sample, SampleInfo, SampleOrigin


class StepTokens(NamedTuple):
    """Tokens of steps, end to end: those of the observation, then those of the action, for each step."""

    tokens: Int32[np.ndarray, " tokens"]
    seen: Int32[np.ndarray, " steps"]
    """Number of observation tokens, which do not count in the loss."""
    done: Int32[np.ndarray, " steps"]
    """Number of action tokens, which count in the loss."""


@runtime_checkable
class EpisodeTokenizer(Protocol):
    """Converts steps of an environment to tokens and back. It must be hashable, for example a frozen
    dataclass."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        ...

    def view(self, states: Any) -> Any:
        """Return the parts of a batch of states that are encoded; traced by JAX."""
        ...

    def encode(self, seen: Any, actions: Any) -> StepTokens:
        """Return the tokens of a batch of views and actions, given as NumPy arrays."""
        ...

    def decode(self, tokens: Int32[np.ndarray, " tokens"]) -> tuple[Any, Any]:
        """Return view and action of one step's tokens."""
        ...

    def success(self, infos: Any) -> Bool[np.ndarray, " episodes"]:
        """Return whether episodes succeeded, from the infos of their last steps."""
        ...

    def difficulty(self, seen: Any) -> Float64[np.ndarray, " episodes"]:
        """Return the difficulty from 0 to 1, from the first views of episodes; NaN if it is unknown."""
        ...


class EpisodeOutcomes(NamedTuple):
    """Results of a batch of episodes."""

    success: Bool[np.ndarray, " episodes"]
    difficulty: Float64[np.ndarray, " episodes"]
    terminated: Bool[np.ndarray, " episodes"]
    """Whether the episode ended on its own, not by truncation."""


def create_episode_samples(
    episode_ids: Sequence[str],
    num_steps: Int64[np.ndarray, " episodes"],
    steps: StepTokens,
    rewards: Any,
    outcomes: EpisodeOutcomes,
    *,
    dataset_id: str,
    per: Literal["step", "episode"] = "step",
) -> list[Sample]:
    """Create samples from the tokens of episodes.

    Args:
        episode_ids: Id of each episode.
        num_steps: Number of steps of each episode.
        steps: Tokens of all steps, episode after episode.
        rewards: Reward of each step.
        outcomes: Results of the episodes.
        dataset_id: Dataset of the samples.
        per: Whether each step or each episode is a sample.
    """
    parts = np.stack([steps.seen, steps.done], axis=1).reshape(-1)
    mask = np.repeat(np.tile(np.array([0, 1], np.int8), len(steps.seen)), parts)
    ends = np.concatenate([[0], np.cumsum(steps.seen + steps.done, dtype=np.int64)])
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
