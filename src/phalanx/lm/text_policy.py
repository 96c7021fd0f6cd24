"""Policies for text environments: a language model, or random legal actions."""

import dataclasses
import random
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from phalanx.core.environment import Key
from phalanx.lm.generation import generate_batch
from phalanx.lm.model import LanguageModel
from phalanx.lm.prompt_tokenizer import PromptTokenizer
from phalanx.lm.sampling import SamplingConfig
from phalanx.text.env import TextVectorEnvironment

_MIN_BATCH_SIZE = 8


class Turn(NamedTuple):
    """A prompt, the answer to it, and its outcome."""

    prompt: str
    answer: str
    error: str = ""
    """Why the answer was invalid; empty if it was valid."""
    reward: float = 0.0
    prompt_ids: Sequence[int] = ()
    completion_ids: Sequence[int] = ()
    """Tokens of the answer, including the stop token. Empty if no language model generated it."""
    logps: Sequence[float] = ()
    """Log-probability of each generated token."""
    allowed_token_ids: Sequence[Sequence[int]] = ()
    """Tokens that could be generated at each position. Empty if all could."""
    state_key: str = ""
    """Identifies the state of the environment before the answer. Empty if the environment has no such key."""


@runtime_checkable
class TextPolicy(Protocol):
    """Answers the prompts of a text environment."""

    def act(self, env: TextVectorEnvironment, rows: Sequence[int], key: Key | None) -> list[Turn]:
        """Answer the current prompts of some rows of a vector environment."""
        ...


@dataclasses.dataclass(frozen=True)
class LMPolicy:
    """A language model as a policy for text environments."""

    model: LanguageModel
    tokenizer: PromptTokenizer
    sampling: SamplingConfig = SamplingConfig(temperature=0.0)  # noqa: RUF009 - frozen
    """The default is greedy."""
    max_new_tokens: int = 64
    legal_actions_only: bool = False
    """Restrict generation to legal actions if the environment can list them."""

    def act(self, env: TextVectorEnvironment, rows: Sequence[int], key: Key | None) -> list[Turn]:
        """Generate answers to the current prompts of some rows. A key is required for sampling."""
        legal_actions = None
        if self.legal_actions_only:
            actions_by_row = env.legal_actions(rows)
            if not any(actions is None for actions in actions_by_row):
                legal_actions = actions_by_row
        prompts, state_keys = env.prompts, env.state_keys()
        turns = self.answer([prompts[row] for row in rows], key, legal_actions, min_batch_size=len(env))
        return [turn._replace(state_key=state_keys[row]) for turn, row in zip(turns, rows, strict=True)]

    def answer(
        self,
        prompts: Sequence[str],
        key: Key | None = None,
        legal_actions: Sequence[Sequence[str] | None] | None = None,
        min_batch_size: int = 0,
    ) -> list[Turn]:
        """Generate an answer to each prompt, optionally one of its legal actions.

        Batches are padded to a power of two and to at least `min_batch_size` rows, so that few batch sizes
        are compiled.
        """
        prompt_ids = [self.tokenizer.encode_prompt(prompt) for prompt in prompts]
        batch_size = 1 << (max(min_batch_size, len(prompts)) - 1).bit_length()
        num_filler = max(_MIN_BATCH_SIZE, batch_size) - len(prompts)
        choices = None
        if legal_actions is not None:
            # The same few actions are legal in many rows, so each is encoded once.
            actions = {action for row in legal_actions for action in row or ()}
            action_ids = {action: self.tokenizer.encode_completion(action) for action in actions}
            choices = [[action_ids[action] for action in row or ()] for row in legal_actions]
            choices += choices[:1] * num_filler
        output = generate_batch(
            self.model,
            prompt_ids + prompt_ids[:1] * num_filler,
            self.max_new_tokens,
            sampling=self.sampling,
            key=key,
            stop_token_id=self.tokenizer.stop_token_id,
            choices=choices,
        )
        turns = []
        for row, prompt in enumerate(prompts):
            completion_ids = output.completion_ids[row]
            turns.append(
                Turn(
                    prompt,
                    self.tokenizer.decode(completion_ids),
                    prompt_ids=prompt_ids[row],
                    completion_ids=completion_ids,
                    logps=output.logps[row],
                    allowed_token_ids=()
                    if choices is None
                    else allowed_token_ids(choices[row], completion_ids),
                )
            )
        return turns


class RandomTextPolicy:
    """A baseline that answers with random legal actions."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = random.Random(seed)

    def act(self, env: TextVectorEnvironment, rows: Sequence[int], key: Key | None = None) -> list[Turn]:
        """Choose a legal action for each row. The key is not used."""
        prompts, actions = env.prompts, env.sample_actions(rows, self._rng)
        return [Turn(prompts[row], action) for row, action in zip(rows, actions, strict=True)]


def allowed_token_ids(choices: Sequence[Sequence[int]], completion_ids: Sequence[int]) -> list[list[int]]:
    """List the tokens that continue a choice, at each position of a completion.

    >>> allowed_token_ids([[1, 2, 0], [1, 3, 0], [4, 0]], [1, 3, 0])
    [[1, 4], [2, 3], [0]]
    """
    allowed = []
    for position in range(len(completion_ids)):
        prefix = list(completion_ids[:position])
        matching = (choice for choice in choices if len(choice) > position and choice[:position] == prefix)
        allowed.append(sorted({choice[position] for choice in matching}))
    return allowed
