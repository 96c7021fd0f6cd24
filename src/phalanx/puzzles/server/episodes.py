"""Playing one puzzle from start to end, by its hints or by a policy, and turning the play into token samples.

The streams that hand the samples out are in `gym_stream`; connections are in `client` and `pool`.
"""

import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from phalanx.data.samples import EpisodeStatus, Sample, SampleInfo, SampleOrigin
from phalanx.puzzles.server.client import PuzzleClient
from phalanx.puzzles.server.errors import CommandError
from phalanx.puzzles.server.pool import EpisodeSpec
from phalanx.puzzles.server.protocol import (
    PuzzleGame,
    PuzzleHint,
    PuzzleObservation,
    PuzzleResult,
    nearest_game,
)

Policy: TypeAlias = Callable[[PuzzleObservation, PuzzleHint | None], str | Awaitable[str | None] | None]
"""From the puzzle as it stands, and a hint where hints are asked for, to a command; None gives the puzzle up.

It is asked once for each move, whatever becomes of the connection.
"""

Encode: TypeAlias = Callable[[str], Sequence[int]]
"""From a text to its tokens."""

Prompt: TypeAlias = Callable[[str, PuzzleObservation], str]
"""From the game's id and the puzzle as it stands to the text that asks for a move."""


@dataclasses.dataclass(frozen=True)
class StepRewards:
    """What each kind of step is worth."""

    solved: float = 1.0
    valid: float = 0.0
    invalid: float = -0.1
    lost: float = -1.0


@dataclasses.dataclass(frozen=True)
class EpisodeStep:
    """One move and what became of it."""

    prompt: str
    """The text that asks for the move."""
    command: str
    """The move."""
    accepted: bool
    reward: float
    message: str = ""
    """What the server said to it."""


@dataclasses.dataclass(frozen=True)
class PuzzleEpisode:
    """A puzzle that was played to an end."""

    episode_id: str
    game: str
    difficulty: float
    """0 (easy) to 1 (hard)."""
    steps: tuple[EpisodeStep, ...]
    status: EpisodeStatus

    @property
    def success(self) -> bool:
        """Whether it was solved."""
        return self.status is EpisodeStatus.SUCCESS


def move_prompt(game: str, observation: PuzzleObservation) -> str:
    """The usual prompt: the game, how hard it is, the picture, and a line that waits for the move."""
    picture = "\n".join(line.rstrip() for line in observation.grid_display.splitlines())
    return f"Puzzle: {game} ({observation.difficulty.value})\n{picture}\nMove: "


async def rollout_episode(
    client: PuzzleClient,
    spec: EpisodeSpec,
    *,
    policy: Policy | None = None,
    hints: bool = True,
    max_steps: int = 99,
    max_invalid_answers: int = 10,
    prompt: Prompt = move_prompt,
    rewards: StepRewards = StepRewards(),  # noqa: B008 - frozen
    on_step: Callable[[PuzzleHint | None, PuzzleResult], Any] | None = None,
) -> PuzzleEpisode:
    """Play a puzzle: without a policy each hint is followed, with one it decides.

    `hints=False` asks the server for none, and the policy sees None. The episode ends solved, lost, given up,
    after `max_steps` moves, or after `max_invalid_answers` refused moves one after another (one, if hints are
    followed, for the next hint would be the same).
    """
    if policy is None and not hints:
        raise ValueError("an episode without a policy is played by its hints; leave hints=True")
    observation = await client.start_puzzle(spec.game, spec.difficulty, spec.seed)
    steps: list[EpisodeStep] = []
    status, refused = EpisodeStatus.SUCCESS, 0
    while not observation.is_complete:
        if len(steps) == max_steps:
            status = EpisodeStatus.TIMEOUT
            break
        hint = await client.get_hint() if hints else None
        command = await _next_command(policy, observation, hint)
        if command is None:
            status = EpisodeStatus.FAILURE
            break
        result = await move_outcome(client, command)
        if on_step is not None:
            on_step(hint, result)
        reward = step_reward(result, rewards)
        steps.append(
            EpisodeStep(prompt(spec.game, observation), command, result.success, reward, result.message)
        )
        observation = result.state or observation
        refused = 0 if result.success else refused + 1
        if result.game_over or refused >= (1 if policy is None else max_invalid_answers):
            status = EpisodeStatus.FAILURE
            break
    return PuzzleEpisode(spec.episode_id, spec.game, spec.difficulty.level, tuple(steps), status)


def episode_samples(
    episode: PuzzleEpisode,
    encode: Encode,
    *,
    dataset_id: str = "puzzle_arcade",
    origin: SampleOrigin = SampleOrigin.ENVIRONMENT,
) -> list[Sample]:
    """One sample for each move: the prompt, which is read, and the move with a line end, which is learned."""
    samples = []
    for number, step in enumerate(episode.steps):
        asked, answer = tuple(encode(step.prompt)), tuple(encode(f"{step.command}\n"))
        samples.append(
            Sample(
                f"{episode.episode_id}_step{number}",
                asked + answer,
                (0,) * len(asked) + (1,) * len(answer),
                info=SampleInfo(
                    dataset_id=dataset_id,
                    origin=origin,
                    episode_id=episode.episode_id,
                    episode_status=episode.status,
                    step_index=number,
                    total_steps=len(episode.steps),
                    reward=step.reward,
                    difficulty=episode.difficulty,
                    success=episode.success,
                ),
            )
        )
    return samples


def require_playable_by_hints(games: Sequence[str]) -> None:
    """Refuse games whose hints are not understood here."""
    for game in games:
        if game not in list(PuzzleGame):
            raise ValueError(
                f"the hints of {game!r} are not known as commands here; pass a policy that plays it"
                f"{nearest_game(game)}"
            )


async def _next_command(
    policy: Policy | None, observation: PuzzleObservation, hint: PuzzleHint | None
) -> str | None:
    if policy is None:
        return hint.command if hint is not None and hint.success else None
    chosen = policy(observation, hint)
    return await chosen if inspect.isawaitable(chosen) else chosen


async def move_outcome(client: PuzzleClient, command: str) -> PuzzleResult:
    """What became of a command, whatever it is."""
    try:
        return await client.send_action(command)
    except CommandError as error:
        # A policy may say anything; what cannot be sent is a refused move like any other.
        return PuzzleResult(success=False, code="NOT_SENT", message=str(error), state=client.observation)


def step_reward(result: PuzzleResult, rewards: StepRewards) -> float:
    """What a move is worth."""
    if result.game_over:
        return rewards.lost
    if not result.success:
        return rewards.invalid
    return rewards.solved if result.solved else rewards.valid
