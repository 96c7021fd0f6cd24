"""Text environments played by a language model, a batch at a time: it is asked, it answers, it is told.

What it comes to is measured in `puzzle_scores`; how tokens are written is in `generation`.
"""

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import drawsvg as draw
import jax

from phalanx.core.environment import Key
from phalanx.lm.generation import generate_batch
from phalanx.lm.model import LanguageModel
from phalanx.lm.sampling import SamplingConfig
from phalanx.lm.tasks import PromptTokenizer
from phalanx.svg import BAD, BORDER, GOOD, MONO, MUTED, SHEET, TEXT, clean, text_width
from phalanx.text.env import TextVectorEnvironment

_LEAST_BATCH = 8
_LINE, _SIZE = 18, 14


class Turn(NamedTuple):
    """One prompt and what was answered."""

    prompt: str
    answer: str
    refused: str
    """Why it was no move; empty where it was one."""
    reward: float
    read: list[int]
    """The prompt's tokens."""
    written: list[int]
    """The answer's, with the one that ended it; empty where no model wrote it."""
    log_probs: list[float]
    """Of the tokens that were written."""
    allowed: Sequence[Sequence[int]] = ()
    """The tokens that could be written at each place; empty where all could."""
    board: str = ""
    """How things stood when it was asked; empty where nothing tells puzzles apart."""


@dataclasses.dataclass
class Conversation:
    """An episode in words."""

    turns: list[Turn] = dataclasses.field(default_factory=list)
    solved: bool = False

    @property
    def total_reward(self) -> float:
        return sum(turn.reward for turn in self.turns)

    @property
    def legal(self) -> int:
        """Answers that were moves."""
        return sum(not turn.refused for turn in self.turns)


@dataclasses.dataclass(frozen=True)
class LMPolicy:
    """A model and how it answers; with `legal_only` it chooses among legal moves, where they are known."""

    model: LanguageModel
    prompter: PromptTokenizer
    sampling: SamplingConfig = SamplingConfig(temperature=0.0)  # noqa: RUF009 - frozen
    max_new_tokens: int = 64
    legal_only: bool = False

    def answer(
        self, prompts: Sequence[str], key: Key | None, legal: Sequence[Any] | None, size: int = 0
    ) -> list[Turn]:
        """An answer to each prompt; nothing is known yet of what becomes of it.

        They are written in a batch of `size` at least, of few sizes, so that few programs are compiled.
        """
        read = [self.prompter.prompt(prompt) for prompt in prompts]
        # What is added is thrown away.
        filler = max(_LEAST_BATCH, 1 << (max(size, len(read)) - 1).bit_length()) - len(read)
        choices = None
        if legal is not None:
            # Few moves are told apart, and each is legal on many boards.
            moves_as_tokens = {
                move: self.prompter.answer(move) for move in {move for moves in legal for move in moves}
            }
            choices = [[moves_as_tokens[move] for move in moves] for moves in legal]
            choices += choices[:1] * filler
        said = generate_batch(
            self.model,
            read + read[:1] * filler,
            self.max_new_tokens,
            sampling=self.sampling,
            key=key,
            stop_token_id=self.prompter.end,
            choices=choices,
        )
        return [
            Turn(
                prompts[at],
                self.prompter.text(written),
                "",
                0.0,
                read[at],
                written,
                said.logps[at],
                () if choices is None else allowed_token_ids(choices[at], written),
            )
            for at, written in enumerate(said.completion_ids[: len(read)])
        ]


def allowed_token_ids(choices: Sequence[Sequence[int]], written: Sequence[int]) -> list[list[int]]:
    """The tokens that go on with a choice, at each place of what was written.

    >>> allowed_tokens([[1, 2, 0], [1, 3, 0], [4, 0]], [1, 3, 0])
    [[1, 4], [2, 3], [0]]
    """
    found = []
    for at in range(len(written)):
        begun = list(written[:at])
        found.append(sorted({text[at] for text in choices if len(text) > at and text[:at] == begun}))
    return found


def rollout(player: LMPolicy, batch: TextVectorEnvironment, key: Key | None = None) -> list[Conversation]:
    """Play episodes that have begun to their ends; where the player draws, the key says what."""

    def answer(places: list[int], step: int) -> list[Turn]:
        prompts = batch.prompts
        legal = None
        if player.legal_only:
            found = batch.legal_actions(places)
            legal = None if any(moves is None for moves in found) else found
        now = None if key is None else jax.random.fold_in(key, step)
        turns = player.answer([prompts[place] for place in places], now, legal, len(batch))
        keys = batch.state_keys()
        boards = (keys[place] for place in places)
        return [turn._replace(board=board) for turn, board in zip(turns, boards, strict=True)]

    return _played(batch, answer)


def played_by(batch: TextVectorEnvironment, command: Callable[[int], str]) -> list[Conversation]:
    """Play episodes that have begun by what is said for each place."""

    def answer(places: list[int], step: int) -> list[Turn]:
        return [Turn(batch.prompts[place], command(place), "", 0.0, [], [], []) for place in places]

    return _played(batch, answer)


def play_at_random(batch: TextVectorEnvironment, seed: int = 0) -> list[Conversation]:
    """Play episodes that have begun by random legal moves."""
    draws = random.Random(seed)
    return played_by(batch, lambda place: batch.sample_actions([place], draws)[0])


def _played(batch: TextVectorEnvironment, answer: Any) -> list[Conversation]:
    conversations = [Conversation() for _ in range(len(batch))]
    running, step = list(range(len(batch))), 0
    while running:
        turns = dict(zip(running, answer(running, step), strict=True))
        stepped = batch.step([turns[place].answer if place in turns else "" for place in range(len(batch))])
        for place in running:
            info = stepped.infos[place]
            turn = turns[place]._replace(refused=info.error, reward=float(stepped.rewards[place]))
            conversations[place].turns.append(turn)
            conversations[place].solved = info.solved
        running = [place for place in running if not stepped.dones[place]]
        step += 1
    return conversations


@dataclasses.dataclass(frozen=True)
class RenderedTurn:
    """A turn as the report shows it: what was asked, and what was answered."""

    turn: Turn
    solved: bool

    def _repr_svg_(self) -> str:
        told = self.turn.refused and f"Not possible: {self.turn.refused}"
        looks = ((self.turn.prompt, MUTED), (self.turn.answer or "(nothing)", TEXT), (told, BAD))
        lines = [(line, color) for text, color in looks if text for line in clean(text).split("\n")]
        if self.solved:
            lines.append(("Solved.", GOOD))
        width = 40 + max(text_width(line, _SIZE, mono=True) for line, _ in lines)
        picture = draw.Drawing(width, 30 + _LINE * len(lines))
        picture.append(draw.Rectangle(0, 0, width, 30 + _LINE * len(lines), fill=SHEET, stroke=BORDER, rx=8))
        for place, (line, color) in enumerate(lines):
            kept = line.replace(" ", "\u00a0")
            picture.append(draw.Text(kept, _SIZE, 20, 28 + _LINE * place, fill=color, font_family=MONO))
        return str(picture.as_svg())


def episode_record(name: str, conversation: Conversation, update: int, place: int) -> dict[str, Any]:
    """A conversation as `ExperimentLogger.log_episode_summary` takes it."""
    turns = conversation.turns
    shown = [
        RenderedTurn(turn, conversation.solved and at == len(turns) - 1) for at, turn in enumerate(turns)
    ]
    return {
        "episode_num": update,
        "environment_id": place,
        "task_id": name,
        "total_reward": conversation.total_reward,
        "total_steps": len(turns),
        "success": conversation.solved,
        "turns": [{"prompt": turn.prompt, "answer": turn.answer, "refused": turn.refused} for turn in turns],
        "initial_state": shown[0],
        "step_states": shown[1:],
        "final_state": shown[-1],
    }
