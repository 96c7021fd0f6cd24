"""Proof search in words: goals as atoms with names, successors by number, and the actions that name one.

Pictures are in `phalanx.proofs.rendering`; episodes as tokens are in `phalanx.data`.
"""

import difflib
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from phalanx.core.vector import host_rows, read_actions
from phalanx.kg.vocabulary import END, IndexManager
from phalanx.proofs.state import ProofState

_GIVE_UP = "give up"


def query_name(state: ProofState, names: IndexManager) -> str:
    """The query of one state, with `not` before one that is false: for people, who may know."""
    name = str(names.decode_atom(np.asarray(state.query)))
    return name if bool(state.label) else f"not {name}"


def choices_of(state: ProofState, names: IndexManager) -> list[str]:
    """What each legal action of one state leads to, in their order."""
    return [goals_text(rows, names) for rows in np.asarray(state.successors)[: int(state.count)]]


def goals_text(rows: Any, names: IndexManager) -> str:
    """Goals as they are written: `parent(a,_1), parent(_1,c)`; `True`, or `give up` for the end action."""
    return ", ".join(
        _atom_text(names, *row) for row in np.asarray(rows).tolist() if row[0] != names.padding_idx
    )


@functools.lru_cache(maxsize=65_536)
def _atom_text(names: IndexManager, *row: int) -> str:
    atom = str(names.decode_atom(row))
    return _GIVE_UP if atom == END else atom


def observation_text(state: ProofState, names: IndexManager, max_steps: int) -> str:
    """The query, what is left to prove, and the successors to choose from; whether it is true is not told."""
    query = _atom_text(names, *np.asarray(state.query).tolist())
    choices = "\n".join(f"{number}: {choice}" for number, choice in enumerate(choices_of(state, names)))
    return (
        "Prove the query from the facts and rules of a knowledge base, or give up where it cannot be proved. "
        "A step replaces the first goal by what a fact or a rule leaves of it; `True` is a finished proof. "
        "_1, _2, ... are variables.\n\n"
        f"Query: {query}\n"
        f"Goals: {goals_text(state.goals, names)}\n"
        f"Step {int(state.step_count)} of at most {max_steps}.\n\n"
        f"Choices:\n{choices}\n\n"
        "Answer with the number of a choice, or with its text."
    )


def observation_texts(states: ProofState, names: IndexManager, max_steps: int) -> list[str]:
    """`observation_text` of a batch."""
    return [observation_text(row, names, max_steps) for row in host_rows(states, np.asarray)]


def parse_actions(
    texts: Sequence[str], states: ProofState, names: IndexManager
) -> tuple[list[int] | None, list[str]]:
    """`parse_action` of a batch, and why a text names no successor; see `Environment.parse_actions`."""
    rows = zip(texts, host_rows(states, np.asarray), strict=True)
    return read_actions(parse_action, ((text, row, names) for text, row in rows))


def parse_action(text: str, state: ProofState, names: IndexManager) -> int:
    """The number of the successor that a text names, by its number or by its goals."""
    answer, count = text.strip(), int(state.count)
    if answer.isdecimal():
        number = int(answer)
        if number < count:
            return number
        raise ValueError(f"there is no choice {number}; they are numbered from 0 to {count - 1}")
    choices = choices_of(state, names)
    # Names may differ by case alone, so the case counts where it must.
    for plain in (_without_blanks, lambda words: _without_blanks(words).lower()):
        meant = [number for number, choice in enumerate(choices) if plain(choice) == plain(answer)]
        if len(meant) == 1:
            return meant[0]
    near = difflib.get_close_matches(answer, choices, 1)
    hint = f"the nearest is {near[0]!r}" if near else f"answer with a number from 0 to {len(choices) - 1}"
    shown = answer if len(answer) <= 60 else f"{answer[:57]}..."
    raise ValueError(f"{shown!r} is not among the choices; {hint}")


def render_ansi(state: ProofState, names: IndexManager) -> str:
    """The goals, and what each legal action leads to."""
    lines = [f"step {int(state.step_count)}: {goals_text(state.goals, names)}"]
    lines += [f"  {number}: {choice}" for number, choice in enumerate(choices_of(state, names))]
    return "\n".join(lines) + "\n"


def _without_blanks(text: str) -> str:
    return "".join(text.split())
