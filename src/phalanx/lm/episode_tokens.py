"""How episodes of an environment become tokens: what a tokenizer offers, and those of ARC and proofs.

    WORKING c c c ROW c c c ROW  TARGET c c ROW c c ROW  ACTION operation row column END      (ARC)
    GOALS p a b p a b  OPTION p a b  OPTION p a b p a b  ACTION number END                    (proofs)
    |------------- what was observed: loss mask 0 -----| |-- the action: loss mask 1 ---|

Playing the episodes is in `environment_stream`; tokenizers of text are in `phalanx.data`.
"""

import dataclasses
import enum
import functools
from typing import Any, Literal, NamedTuple, get_args

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float64, Int8, Int32

from phalanx.arc.config import ArcConfig, SelectionFormat
from phalanx.arc.env import ArcEnvironment
from phalanx.arc.operations import NUM_COLORS, NUM_OPERATIONS, operation_name
from phalanx.arc.state import ArcState
from phalanx.core.environment import Environment
from phalanx.data.episode_tokens import EpisodeTokenizer, StepTokens
from phalanx.proofs.env import ProofEnvironment
from phalanx.proofs.state import ProofState


class KnownEpisodes(NamedTuple):
    """What a stream must know of an environment whose episodes it tells."""

    name: str
    tokenizer: EpisodeTokenizer
    max_steps: int
    """Steps of an episode at most."""


@functools.singledispatch
def known_episodes(environment: Environment) -> KnownEpisodes | None:
    """What is known of an environment's episodes; None for a kind that nothing is registered for.

    `known_episodes.register(Maze, of_maze)` makes a kind of your own known, by a function of the environment.
    """
    return None


class _Part(NamedTuple):
    """Some tokens of each step, with gaps: those that do not count are left out when rows are made."""

    tokens: Int32[np.ndarray, "steps width"]
    counts: Bool[np.ndarray, "steps width"]


def _full(tokens: Int32[np.ndarray, "steps width"]) -> _Part:
    """Tokens that all count."""
    return _Part(tokens, np.ones(tokens.shape, bool))


def _mark(token: int, steps: int) -> _Part:
    """The same token for every step."""
    return _full(np.full((steps, 1), token, np.int32))


def _rows(seen: list[_Part], done: list[_Part]) -> StepTokens:
    """Rows from the parts that tell what was seen and those that tell what was done."""
    every = [*seen, *done]
    tokens = np.concatenate([part.tokens for part in every], axis=1)
    counts = np.concatenate([part.counts for part in every], axis=1)
    lengths = [sum(part.counts.sum(axis=1) for part in parts) for parts in (seen, done)]
    return StepTokens(tokens[counts], *(np.asarray(length, np.int32) for length in lengths))


GridName = Literal["input", "working", "target"]

_ArcMark = enum.IntEnum("_ArcMark", ("PAD", "END", "ROW", "INPUT", "WORKING", "TARGET", "ACTION"), start=0)
_COLORS = len(_ArcMark)
_OPERATIONS = _COLORS + NUM_COLORS
_NO_OPERATION = _OPERATIONS + NUM_OPERATIONS
_PLACES = _NO_OPERATION + 1
_NO_PLACE = _PLACES + 32
_ARC_VOCABULARY = _NO_PLACE + 1
_CELL_FIELDS = {"point": ("row", "col"), "bbox": ("r1", "c1", "r2", "c2")}


@dataclasses.dataclass(frozen=True)
class ArcTokenizer:
    """93 tokens for grids of up to 32 by 32. An operation that does not exist, or a cell off the board, has a
    token too, and is read back as -1.

    Views are a dictionary of grids [rows, columns] with -1 outside the area, and the `similarity`. An episode
    succeeds when it is solved; its difficulty is the part of the cells that are wrong at the start.
    """

    selection_format: SelectionFormat = "point"
    """How actions name cells."""
    grids: tuple[GridName, ...] = ("working", "target")
    """What is seen of a state, in this order."""

    def __post_init__(self) -> None:
        if not self.grids or any(grid not in get_args(GridName) for grid in self.grids):
            raise ValueError(f"grids must be some of {get_args(GridName)}, got {self.grids}")

    @classmethod
    def for_config(cls, config: ArcConfig) -> "ArcTokenizer":
        """The tokenizer that fits a config; in evaluation the target is not seen."""
        hidden = config.episode.mode == "evaluation"
        return cls(config.action.selection_format, ("input", "working") if hidden else ("working", "target"))

    @property
    def vocab_size(self) -> int:
        """93."""
        return _ARC_VOCABULARY

    def view(self, states: ArcState) -> dict[str, Array]:
        """The grids, and how much of the target is reached."""
        grids = {name: getattr(states, f"{name}_grid") for name in self.grids}
        return grids | {"similarity": states.similarity}

    def encode(self, seen: dict[str, np.ndarray], actions: Any) -> StepTokens:
        """The tokens of a batch of views and actions."""
        steps = len(seen["similarity"])
        parts: list[_Part] = []
        for name in self.grids:
            parts += [_mark(_ArcMark[name.upper()], steps), _grid(seen[name])]
        operation = np.asarray(actions.operation)
        known = (operation >= 0) & (operation < NUM_OPERATIONS)
        token = np.where(known, _OPERATIONS + operation, _NO_OPERATION).astype(np.int32)
        done = [_mark(_ArcMark.ACTION, steps), _full(token[:, None])]
        if self.selection_format == "mask":
            done.append(_grid(np.asarray(actions.selection).astype(np.int8)))
        else:
            names = _CELL_FIELDS[self.selection_format]
            places = np.stack([np.asarray(getattr(actions, name)) for name in names], axis=1)
            inside = (places >= 0) & (places < 32)
            done.append(_full(np.where(inside, _PLACES + places, _NO_PLACE).astype(np.int32)))
        return _rows(parts, [*done, _mark(_ArcMark.END, steps)])

    def decode(self, tokens: Int32[np.ndarray, " tokens"]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Grids by name, each as large as its area, and the action's fields."""
        rest = tokens.tolist()
        seen: dict[str, np.ndarray] = {}
        for name in self.grids:
            _expect(rest, _ArcMark[name.upper()])
            seen[name] = _read_grid(rest)
        _expect(rest, _ArcMark.ACTION)
        operation = rest.pop(0) - _OPERATIONS
        action: dict[str, Any] = {"operation": operation if operation < NUM_OPERATIONS else -1}
        if self.selection_format == "mask":
            action["selection"] = _read_grid(rest).astype(bool)
        else:
            for field in _CELL_FIELDS[self.selection_format]:
                place = rest.pop(0) - _PLACES
                action[field] = place if place < 32 else -1
        _expect(rest, _ArcMark.END)
        return seen, action

    def success(self, infos: Any) -> Bool[np.ndarray, " episodes"]:
        """Whether the episodes were solved."""
        return np.asarray(infos.solved)

    def difficulty(self, seen: dict[str, np.ndarray]) -> Float64[np.ndarray, " episodes"]:
        """The part of the cells that are wrong at the start."""
        return np.clip(1.0 - np.asarray(seen["similarity"], np.float64), 0.0, 1.0)

    def name(self, token: int) -> str:
        """What a token stands for."""
        if not 0 <= token < _ARC_VOCABULARY:
            raise ValueError(f"there is no token {token}; tokens are 0 to {_ARC_VOCABULARY - 1}")
        if token < _COLORS:
            return _ArcMark(token).name
        if token < _OPERATIONS:
            return str(token - _COLORS)
        if token < _NO_OPERATION:
            return operation_name(token - _OPERATIONS)
        if token == _NO_OPERATION:
            return "no operation"
        return "off the board" if token == _NO_PLACE else f"@{token - _PLACES}"


def _grid(grids: Int8[np.ndarray, "steps rows columns"]) -> _Part:
    """Row after row, each with ROW behind it; cells of -1 are outside and do not count."""
    steps, rows, columns = grids.shape
    tokens = np.full((steps, rows, columns + 1), _ArcMark.ROW, np.int32)
    tokens[:, :, :columns] = grids.astype(np.int32) + _COLORS
    counts = np.empty(tokens.shape, bool)
    counts[:, :, :columns] = grids >= 0
    counts[:, :, columns] = counts[:, :, :columns].any(axis=2)
    return _Part(tokens.reshape(steps, -1), counts.reshape(steps, -1))


def _read_grid(rest: list[int]) -> Int8[np.ndarray, "rows columns"]:
    """Take rows off the front while there are any."""
    rows: list[list[int]] = []
    while _COLORS <= rest[0] < _OPERATIONS:
        end = rest.index(_ArcMark.ROW)
        rows.append([token - _COLORS for token in rest[:end]])
        del rest[: end + 1]
    return np.array(rows, np.int8).reshape(len(rows), -1 if rows else 0)


def _expect(rest: list[int], token: int) -> None:
    if not rest or rest[0] != token:
        found = "the end" if not rest else f"token {rest[0]}"
        raise ValueError(f"these are not the tokens of a step: expected token {int(token)}, found {found}")
    del rest[0]


@known_episodes.register(ArcEnvironment)
def _arc_episodes(environment: ArcEnvironment) -> KnownEpisodes:
    config = environment.config
    return KnownEpisodes("arc", ArcTokenizer.for_config(config), config.episode.max_episode_steps)


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
        """The tokenizer that fits an environment."""
        config, program = environment.config, environment.program
        return cls(
            num_predicates=program.end_index + 1,
            num_terms=program.num_constants + program.arity * config.padding_atoms + 1,
            num_actions=config.padding_states,
            max_depth=config.max_depth,
            arity=program.arity,
        )

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
            "count": states.count,
            "depth": jnp.asarray(states.depth),
        }

    def encode(self, seen: dict[str, np.ndarray], actions: Any) -> StepTokens:
        """The tokens of a batch of views and actions."""
        steps, options = seen["successors"].shape[:2]
        legal = np.arange(options) < seen["count"][:, None]
        tokens, counts = self._atoms(seen["successors"])
        tokens = np.concatenate([np.full((steps, options, 1), _ProofMark.OPTION, np.int32), tokens], axis=2)
        counts = np.concatenate([np.ones((steps, options, 1), bool), counts], axis=2) & legal[:, :, None]
        choices = _Part(tokens.reshape(steps, -1), counts.reshape(steps, -1))
        action = np.asarray(actions)
        known = (action >= 0) & (action < self.num_actions)
        number = np.where(known, action, self.num_actions).astype(np.int32) + self._numbers
        return _rows(
            [_mark(_ProofMark.GOALS, steps), _Part(*self._atoms(seen["goals"])), choices],
            [
                _mark(_ProofMark.ACTION, steps),
                _full(number[:, None].astype(np.int32)),
                _mark(_ProofMark.END, steps),
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


@known_episodes.register(ProofEnvironment)
def _proof_episodes(environment: ProofEnvironment) -> KnownEpisodes:
    tokenizer = ProofTokenizer.for_environment(environment)
    return KnownEpisodes("proofs", tokenizer, environment.config.max_depth)
