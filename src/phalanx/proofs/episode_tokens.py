"""Proof episodes as tokens.

GOALS p a b p a b  OPTION p a b  OPTION p a b p a b  ACTION number END
|------- observation: loss mask 0 --------------| |- action: mask 1 -|
"""

import dataclasses
import enum
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float64, Int32

from phalanx.data.episode_tokens import StepTokens, TokenPart, full_part, join_parts, repeated_token
from phalanx.proofs.env import ProofEnvironment
from phalanx.proofs.state import ProofState

_ProofMark = enum.IntEnum("_ProofMark", ("PAD", "END", "GOALS", "OPTION", "ACTION"), start=0)
_PREDICATES = len(_ProofMark)


@dataclasses.dataclass(frozen=True)
class ProofTokenizer:
    """Tokens for the atoms of one program; an atom is its predicate and two terms, or three.

    Views are a dictionary of `goals` [atoms, 3], `successors` [states, atoms, 3], `count` of legal actions
    and the query's `depth`. An episode succeeds when a true query is proved or a false one is not; its
    difficulty is the query's depth over `max_depth`, where that is known.
    """

    num_predicates: int
    """Indices of predicates, 0 for none and those that mark ends among them."""
    num_terms: int
    """Indices of constants and variables, and 0 for none."""
    num_actions: int
    """Successors that a state offers at most."""
    max_depth: int
    """Steps of an episode at most."""
    arity: int = 2
    """Terms of an atom."""

    @classmethod
    def for_environment(cls, environment: ProofEnvironment) -> "ProofTokenizer":
        """Create the tokenizer for an environment."""
        config, program = environment.config, environment.program
        return cls(
            num_predicates=program.end_index + 1,
            num_terms=program.num_constants + program.arity * config.max_goals + 1,
            num_actions=config.max_actions,
            max_depth=config.max_episode_steps,
            arity=program.arity,
        )

    name: ClassVar[str] = "proofs"

    @property
    def max_steps(self) -> int:
        """Maximum number of steps of an episode."""
        return self.max_depth

    @property
    def _terms(self) -> int:
        return _PREDICATES + self.num_predicates

    @property
    def _numbers(self) -> int:
        return self._terms + self.num_terms

    @property
    def vocab_size(self) -> int:
        """Marks, predicates, terms, numbers of actions, and one for an action that does not exist."""
        return self._numbers + self.num_actions + 1

    def view(self, states: ProofState) -> dict[str, Array]:
        """Goals, successors, how many of them are legal, and the depth."""
        return {
            "goals": states.goals,
            "successors": states.successors,
            "count": states.num_actions,
            "depth": jnp.asarray(states.query.depth),
        }

    def encode(self, seen: dict[str, np.ndarray], actions: Any) -> StepTokens:
        """The tokens of a batch of views and actions."""
        steps, options = seen["successors"].shape[:2]
        legal = np.arange(options) < seen["count"][:, None]
        tokens, counts = self._atoms(seen["successors"])
        tokens = np.concatenate([np.full((steps, options, 1), _ProofMark.OPTION, np.int32), tokens], axis=2)
        counts = np.concatenate([np.ones((steps, options, 1), bool), counts], axis=2) & legal[:, :, None]
        choices = TokenPart(tokens.reshape(steps, -1), counts.reshape(steps, -1))
        action = np.asarray(actions)
        known = (action >= 0) & (action < self.num_actions)
        number = np.where(known, action, self.num_actions).astype(np.int32) + self._numbers
        return join_parts(
            [repeated_token(_ProofMark.GOALS, steps), TokenPart(*self._atoms(seen["goals"])), choices],
            [
                repeated_token(_ProofMark.ACTION, steps),
                full_part(number[:, None].astype(np.int32)),
                repeated_token(_ProofMark.END, steps),
            ],
        )

    def decode(self, tokens: Int32[np.ndarray, " tokens"]) -> tuple[dict[str, list[Any]], int]:
        """Goals and successors as lists of (predicate, first, second), and the action (-1: not one)."""
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
        goals, *successors = (self._read_atoms(group) for group in groups)
        action = rest[-2] - self._numbers
        return {"goals": goals, "successors": successors}, action if action < self.num_actions else -1

    def success(self, infos: Any) -> Bool[np.ndarray, " episodes"]:
        """Whether the answer was right: true queries proved, others not."""
        return np.asarray(infos.proved) == np.asarray(infos.label)

    def difficulty(self, seen: dict[str, np.ndarray]) -> Float64[np.ndarray, " episodes"]:
        """The query's depth over the steps that an episode may take; NaN where it is not known."""
        depth = np.asarray(seen["depth"], np.float64)
        return np.where(depth >= 0, np.minimum(depth / self.max_depth, 1.0), np.nan)

    def _atoms(
        self, atoms: Int32[np.ndarray, "*steps atoms atom"]
    ) -> tuple[Int32[np.ndarray, "*steps width"], Bool[np.ndarray, "*steps width"]]:
        """A token for each predicate and term; those of padding do not count."""
        offsets = np.array([_PREDICATES, *[self._terms] * self.arity], np.int32)
        counts = np.broadcast_to(atoms[..., :1] != 0, atoms.shape)
        shape = (*atoms.shape[:-2], atoms.shape[-1] * atoms.shape[-2])
        return (atoms + offsets).reshape(shape), counts.reshape(shape)

    def _read_atoms(self, tokens: list[int]) -> list[tuple[int, ...]]:
        size = 1 + self.arity
        if len(tokens) % size:
            raise ValueError(f"atoms are {'three' if size == 3 else size} tokens each, got {len(tokens)}")
        return [
            (tokens[at] - _PREDICATES, *(term - self._terms for term in tokens[at + 1 : at + size]))
            for at in range(0, len(tokens), size)
        ]
