"""Text interface of the proof environment: describes states as prompts and parses answers."""

import difflib
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from phalanx.core.text import TextInterface
from phalanx.core.vector import host_rows, parse_each
from phalanx.proofs.state import ProofState
from phalanx.proofs.vocabulary import END, ProofVocabulary

_GIVE_UP = "give up"


class ProofText(TextInterface[Any]):
    """Text interface of the proof environment. The environment needs a vocabulary."""

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.vocabulary = environment.require_vocabulary()

    def prompt(self, state: ProofState) -> str:
        return observation_text(state, self.vocabulary, self.environment.config.max_episode_steps)

    def prompts(self, states: ProofState, prompt_format: str = "full") -> list[str]:
        return [self.prompt(row) for row in host_rows(states, np.asarray)]

    def parse(self, answer: str, state: ProofState) -> Int32[Array, ""]:
        return jnp.int32(parse_action(answer, state, self.vocabulary))

    def parse_batch(
        self, answers: Sequence[str], states: ProofState
    ) -> tuple[Int32[Array, " batch"] | None, list[str]]:
        rows = zip(answers, host_rows(states, np.asarray), strict=True)
        found, errors = parse_each(parse_action, ((answer, row, self.vocabulary) for answer, row in rows))
        return None if found is None else jnp.asarray(found, jnp.int32), errors

    def format(self, action: Int32[Array, ""] | np.integer, state: ProofState) -> str:
        return list_choices(state, self.vocabulary)[int(action)]

    def formats(self, actions: Int32[Array | np.ndarray, " batch"], states: ProofState) -> list[str]:
        rows = zip(np.asarray(actions), host_rows(states, np.asarray), strict=True)
        return [self.format(action, row) for action, row in rows]


def query_name(state: ProofState, vocabulary: ProofVocabulary) -> str:
    """Return the query of a single state as text, prefixed with `not` if the query is false."""
    name = str(vocabulary.decode_atom(np.asarray(state.query.atom)))
    return name if bool(state.query.label) else f"not {name}"


def list_choices(state: ProofState, vocabulary: ProofVocabulary) -> list[str]:
    """Return one string per legal action in a single state: the goals that remain after the action."""
    return [format_goals(rows, vocabulary) for rows in np.asarray(state.successors)[: int(state.num_actions)]]


def format_goals(rows: Any, vocabulary: ProofVocabulary) -> str:
    """Format goals as text, such as `parent(a,_1), parent(_1,c)`.

    If no goals remain to be proved, the result is `True`. The end action is formatted as `give up`.
    """
    return ", ".join(
        _format_atom(vocabulary, *row) for row in np.asarray(rows).tolist() if row[0] != vocabulary.padding
    )


@functools.lru_cache(maxsize=65_536)
def _format_atom(vocabulary: ProofVocabulary, *row: int) -> str:
    atom = str(vocabulary.decode_atom(row))
    return _GIVE_UP if atom == END else atom


def episode_goals(states: Iterable[ProofState], vocabulary: ProofVocabulary) -> list[str]:
    """Return the remaining goals of each state of an episode, as one line of text per state."""
    return [", ".join(map(str, vocabulary.decode_state(state.goals))) for state in states]


def observation_text(state: ProofState, vocabulary: ProofVocabulary, max_steps: int) -> str:
    """Return a prompt for a single state, with the query, goals and choices, but without the label.

    The prompt also contains the number of steps so far and their maximum number, `max_steps`.
    """
    query = _format_atom(vocabulary, *np.asarray(state.query.atom).tolist())
    choices = "\n".join(
        f"{number}: {choice}" for number, choice in enumerate(list_choices(state, vocabulary))
    )
    return (
        "Prove the query from the facts and rules of a knowledge base, or give up where it cannot be proved. "
        "A step replaces the first goal by what a fact or a rule leaves of it; `True` is a finished proof. "
        "_1, _2, ... are variables.\n\n"
        f"Query: {query}\n"
        f"Goals: {format_goals(state.goals, vocabulary)}\n"
        f"Step {int(state.step_count)} of at most {max_steps}.\n\n"
        f"Choices:\n{choices}\n\n"
        "Answer with the number of a choice, or with its text."
    )


def parse_action(text: str, state: ProofState, vocabulary: ProofVocabulary) -> int:
    """Return the action that an answer selects, by the number or by the text of a choice.

    Raises `ValueError` if the answer does not match exactly one choice.
    """
    answer, count = text.strip(), int(state.num_actions)
    if answer.isdecimal():
        number = int(answer)
        if number < count:
            return number
        raise ValueError(f"there is no choice {number}; they are numbered from 0 to {count - 1}")
    choices = list_choices(state, vocabulary)
    # Names may differ only by case, so a case-sensitive match is preferred.
    for normalize in (_remove_blanks, lambda words: _remove_blanks(words).lower()):
        matches = [n for n, choice in enumerate(choices) if normalize(choice) == normalize(answer)]
        if len(matches) == 1:
            return matches[0]
    near = difflib.get_close_matches(answer, choices, 1)
    hint = f"the nearest is {near[0]!r}" if near else f"answer with a number from 0 to {len(choices) - 1}"
    shown = answer if len(answer) <= 60 else f"{answer[:57]}..."
    raise ValueError(f"{shown!r} is not among the choices; {hint}")


def render_ansi(state: ProofState, vocabulary: ProofVocabulary) -> str:
    """Render the goals and the choices of a single state as text for a terminal."""
    lines = [f"step {int(state.step_count)}: {format_goals(state.goals, vocabulary)}"]
    lines += [f"  {number}: {choice}" for number, choice in enumerate(list_choices(state, vocabulary))]
    return "\n".join(lines) + "\n"


def _remove_blanks(text: str) -> str:
    return "".join(text.split())
