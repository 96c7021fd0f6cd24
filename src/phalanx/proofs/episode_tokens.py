"""Tokenizer for proof episodes, for training sequence models.

A step is encoded as shown below. An atom is a predicate token p, followed by term tokens a and b. The atoms
after GOALS are the goals of the state, and the atoms after each OPTION are the goals that one action leads
to. The loss is only computed on the action (loss mask 1).

GOALS p a b p a b  OPTION p a b  OPTION p a b p a b  ACTION number END
|------- observation: loss mask 0 --------------| |- action: mask 1 -|
"""

import dataclasses
import enum
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float64, Int32

from phalanx.data.episode_tokens import (
    PaddedStepTokens,
    TokenizedSteps,
    full_part,
    join_parts,
    repeated_token,
)
from phalanx.proofs.state import ProofState

_ProofMark = enum.IntEnum("_ProofMark", ("PAD", "END", "GOALS", "OPTION", "ACTION"), start=0)
_PREDICATES = len(_ProofMark)


@dataclasses.dataclass(frozen=True)
class ProofTokenizer:
    """Converts steps of proof episodes to tokens. Each predicate and each term of an atom is one token.

    A view is the part of a state that the tokenizer needs. It is a dictionary with `goals` [atoms, 3],
    `successors` [actions, atoms, 3], `count` (the number of legal actions), and `depth` (the proof depth of
    the query). The last dimension is 4 if atoms have three terms.
    """

    num_predicates: int
    """Number of predicate indices, including padding, `True`, `False` and `End`."""
    num_terms: int
    """Number of term indices: constants, variables and padding."""
    num_actions: int
    """Maximum number of successors of a state."""
    max_steps: int
    """Maximum number of steps in an episode."""
    arity: int = 2
    """Number of terms in an atom, which is 2 or 3."""

    name: ClassVar[str] = "proofs"

    @property
    def _terms(self) -> int:
        return _PREDICATES + self.num_predicates

    @property
    def _numbers(self) -> int:
        return self._terms + self.num_terms

    @property
    def vocab_size(self) -> int:
        """Number of tokens in the vocabulary, which consists of predicates, terms, actions, a token for
        invalid actions, and special tokens such as GOALS."""
        return self._numbers + self.num_actions + 1

    def view(self, states: ProofState) -> dict[str, Array]:
        """Return the parts of a batch of states that the tokenizer needs; see the class docstring."""
        return {
            "goals": states.goals,
            "successors": states.successors,
            "count": states.num_actions,
            "depth": jnp.asarray(states.query.depth),
        }

    def encode(self, seen: dict[str, np.ndarray], actions: Any) -> TokenizedSteps:
        """Encode a batch of views and actions as tokens.

        Args:
            seen: Views of the states, stacked along the first axis; see the class docstring.
            actions: Index of the action that was taken in each state. All actions that are out of range are
                encoded as the same token, "invalid action".
        """
        steps, options = seen["successors"].shape[:2]
        legal = np.arange(options) < seen["count"][:, None]
        tokens, counts = self._atoms(seen["successors"])
        tokens = np.concatenate([np.full((steps, options, 1), _ProofMark.OPTION, np.int32), tokens], axis=2)
        counts = np.concatenate([np.ones((steps, options, 1), bool), counts], axis=2) & legal[:, :, None]
        choices = PaddedStepTokens(tokens.reshape(steps, -1), counts.reshape(steps, -1))
        action = np.asarray(actions)
        is_valid = (action >= 0) & (action < self.num_actions)
        number = np.where(is_valid, action, self.num_actions).astype(np.int32) + self._numbers
        return join_parts(
            [repeated_token(_ProofMark.GOALS, steps), PaddedStepTokens(*self._atoms(seen["goals"])), choices],
            [
                repeated_token(_ProofMark.ACTION, steps),
                full_part(number[:, None].astype(np.int32)),
                repeated_token(_ProofMark.END, steps),
            ],
        )

    def decode(self, tokens: Int32[np.ndarray, " tokens"]) -> tuple[dict[str, list[Any]], int]:
        """Decode the tokens of one step.

        Returns:
            A pair. The first item is a dictionary with the goals and the successors as lists of encoded
            atoms. The second item is the action, or -1 for an invalid action.
        """
        rest = tokens.tolist()
        frame = [_ProofMark.GOALS, _ProofMark.ACTION, _ProofMark.END]
        if len(rest) < 4 or [rest[0], rest[-3], rest[-1]] != frame:
            raise ValueError("these are not the tokens of a step: expected GOALS ... ACTION number END")
        groups: list[list[int]] = [[]]
        for token in rest[1:-3]:
            if token == _ProofMark.OPTION:
                groups.append([])
            else:
                groups[-1].append(token)
        goals, *successors = (self._decode_atoms(group) for group in groups)
        action = rest[-2] - self._numbers
        return {"goals": goals, "successors": successors}, action if action < self.num_actions else -1

    def success(self, infos: Any) -> Bool[np.ndarray, " episodes"]:
        """Return a mask of the episodes in which a true query was proved or a false query was not proved."""
        return np.asarray(infos.proved) == np.asarray(infos.label)

    def difficulty(self, seen: dict[str, np.ndarray]) -> Float64[np.ndarray, " episodes"]:
        """Return the difficulty of each episode, from 0 to 1.

        The difficulty is the proof depth of the query divided by `max_steps`, and is limited to 1. It is NaN
        if the depth is not known.
        """
        depth = np.asarray(seen["depth"], np.float64)
        return np.where(depth >= 0, np.minimum(depth / self.max_steps, 1.0), np.nan)

    def _atoms(
        self, atoms: Int32[np.ndarray, "*steps atoms atom"]
    ) -> tuple[Int32[np.ndarray, "*steps width"], Bool[np.ndarray, "*steps width"]]:
        """Return a token for each predicate and term, and a mask that is False for padding."""
        offsets = np.array([_PREDICATES, *[self._terms] * self.arity], np.int32)
        counts = np.broadcast_to(atoms[..., :1] != 0, atoms.shape)
        shape = (*atoms.shape[:-2], atoms.shape[-1] * atoms.shape[-2])
        return (atoms + offsets).reshape(shape), counts.reshape(shape)

    def _decode_atoms(self, tokens: list[int]) -> list[tuple[int, ...]]:
        size = 1 + self.arity
        if len(tokens) % size:
            raise ValueError(f"an atom has {size} tokens, so {len(tokens)} tokens are not a list of atoms")
        return [
            (tokens[start] - _PREDICATES, *(term - self._terms for term in tokens[start + 1 : start + size]))
            for start in range(0, len(tokens), size)
        ]
