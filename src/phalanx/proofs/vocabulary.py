"""Integer encoding of proof states: the indices of predicates, constants and variables, and their names."""

import functools
from collections.abc import Iterable
from typing import SupportsInt

import numpy as np
from jaxtyping import Int32

from phalanx.kg.atoms import Atom, Rule
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.kg.vocabulary import EncodedAtom, EncodedRule

TRUE, FALSE, END = "True", "False", "End"
KGE_SUFFIX = "_kge"


class AtomIndexing:
    """Integer encoding of the atoms of proof states, for P predicates and C constants.

    Predicates and terms are numbered separately, and index 0 is padding in both cases. The predicate indices
    are: 1 to P for the predicates of the knowledge base, then `True`, `False` and `End`, and then P further
    indices, one `_kge` predicate for each predicate of the knowledge base. A `_kge` predicate marks a goal
    that is closed with an embedding. The term indices are: 1 to C for the constants, and then the variables.
    There are as many variables as a state can have terms.
    """

    num_predicates: int
    """P, the number of predicates of the knowledge base."""
    num_constants: int
    """C, the number of constants of the knowledge base."""

    @property
    def true_index(self) -> int:
        """Index of the `True` predicate, which marks a proved state."""
        return self.num_predicates + 1

    @property
    def false_index(self) -> int:
        """Index of the `False` predicate, which marks a failed state."""
        return self.num_predicates + 2

    @property
    def end_index(self) -> int:
        """Index of the `End` predicate, which marks the action of giving up.

        It is the last predicate before the `_kge` predicates.
        """
        return self.num_predicates + 3

    @property
    def kge_offset(self) -> int:
        """Difference between the index of a `_kge` predicate and the index of its original predicate."""
        return self.end_index

    @property
    def first_variable(self) -> int:
        """Index of the first variable among the terms. All larger term indices are also variables."""
        return self.num_constants + 1


class ProofVocabulary(AtomIndexing):
    """Integer encoding of proof states for a knowledge base, with the names of predicates and constants.

    The indices of predicates and constants are the ids of the knowledge base's `Vocabulary` plus one. The
    embedding tables of a network need `num_predicate_embeddings` and `num_constant_embeddings` rows.

    Args:
        knowledge_base: The predicates and constants.
        max_goals: Maximum number of goals in a state, which determines the number of variables.
    """

    padding = 0

    def __init__(self, knowledge_base: KnowledgeBase, max_goals: int = 6) -> None:
        if max_goals < 1:
            raise ValueError(f"max_goals must be at least 1, got {max_goals}")
        self.max_goals = max_goals
        self.kg = knowledge_base.vocabulary
        """Vocabulary of the knowledge base. Its ids start at 0, and the indices of this class at 1."""
        self.num_predicates = self.kg.num_predicates
        """P, the number of predicates. For an embedding table, use `num_predicate_embeddings` instead."""
        self.num_constants = self.kg.num_entities
        """C, the number of constants. For an embedding table, use `num_constant_embeddings` instead."""
        names = [*self.predicates, TRUE, FALSE, END, *(name + KGE_SUFFIX for name in self.predicates)]
        self.predicate_indices: dict[str, int] = {name: index for index, name in enumerate(names, 1)}
        if len(self.predicate_indices) != len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            raise ValueError(
                f"the predicate name {repeated!r} is reserved: {TRUE}, {FALSE}, {END} and the name of "
                f"another predicate followed by {KGE_SUFFIX} cannot be used"
            )

    @property
    def predicates(self) -> tuple[str, ...]:
        """Names of the predicates with indices 1, 2, ..., P."""
        return self.kg.predicates

    @property
    def constants(self) -> tuple[str, ...]:
        """Names of the constants with indices 1, 2, ..., C."""
        return self.kg.entities

    @functools.cached_property
    def constant_indices(self) -> dict[str, int]:
        """Index of each constant, by name."""
        return {name: index for index, name in enumerate(self.constants, 1)}

    @property
    def arity(self) -> int:
        """Number of terms in an encoded atom, which is 2 or 3."""
        return self.kg.arity

    @property
    def num_variables(self) -> int:
        """Maximum number of variables in a state."""
        return self.arity * self.max_goals

    @functools.cached_property
    def predicate_names(self) -> dict[int, str]:
        """Mapping from predicate indices to names, including those of special and `_kge` predicates."""
        return {index: name for name, index in self.predicate_indices.items()}

    @functools.cached_property
    def term_names(self) -> dict[int, str]:
        """Name of each constant and variable, by index. Variables are named `_1`, `_2`, ..."""
        variables = (f"_{number}" for number in range(1, self.num_variables + 1))
        return dict(enumerate([*self.constants, *variables], 1))

    @property
    def num_predicate_embeddings(self) -> int:
        """Number of rows in an embedding table for all predicates and padding."""
        return len(self.predicate_indices) + 1

    @property
    def num_constant_embeddings(self) -> int:
        """Number of rows in an embedding table for all constants, variables and padding."""
        return max(self.term_names) + 1

    @functools.cached_property
    def constant_domains(self) -> Int32[np.ndarray, " constants_and_one"]:
        """Domain number of each constant, or 0 if it is not in any domain. Entry 0 is for padding."""
        return np.concatenate([[0], self.kg.entity_domains]).astype(np.int32)

    @functools.cached_property
    def predicate_arities(self) -> Int32[np.ndarray, " predicates_and_one"]:
        """Number of arguments of each predicate. Entry 0 is for padding and is 0."""
        return np.array([0, *(self.kg.arities[name] for name in self.predicates)], np.int32)

    def encode_atom(self, atom: Atom) -> EncodedAtom:
        """Encode a ground atom. Raises `ValueError` with suggestions if a name is unknown."""
        return tuple(index + 1 for index in self.kg.encode_atom(atom))

    def encode(self, atoms: Iterable[Atom]) -> Int32[np.ndarray, "atoms atom"]:
        """Encode ground atoms as rows (predicate, terms), in the given order."""
        return self.kg.encode(atoms) + np.int32(1)

    def encode_rules(self, rules: Iterable[Rule]) -> tuple[EncodedRule, ...]:
        """Encode rules. Variables are -1, -2, ... in order of first occurrence, starting with the head."""
        encoded = self.kg.encode_rules(rules)
        return tuple((_shift(head), tuple(map(_shift, body))) for head, body in encoded)

    def decode_atom(self, row: Iterable[SupportsInt]) -> Atom:
        """Convert an encoded atom to an `Atom`. Variables are named `_1`, `_2`, ..."""
        predicate, *terms = (int(index) for index in row)
        try:
            name = self.predicate_names[predicate]
            names = [self.term_names[index] for index in terms if index]
        except KeyError as error:
            raise ValueError(
                f"{[predicate, *terms]} is not an atom: there is no index {error.args[0]}"
            ) from None
        if not names:
            return Atom(name)
        base = self.predicates[(predicate - 1) % self.kge_offset]
        return Atom(name, *names[: self.kg.arities[base]])

    def decode_state(self, state: Iterable[Iterable[SupportsInt]]) -> tuple[Atom, ...]:
        """Convert the encoded goals of a single state to atoms, without padding."""
        return tuple(self.decode_atom(row) for row in np.asarray(state) if row[0] != self.padding)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.num_predicates} predicates, {self.num_constants} constants, "
            f"{self.num_variables} variables)"
        )


def _shift(atom: EncodedAtom) -> EncodedAtom:
    # Variables are negative and stay as they are.
    return tuple(index + 1 if index >= 0 else index for index in atom)


def check_atoms(
    atoms: Int32[np.ndarray, "atoms atom"], num_predicates: int, num_constants: int, kind: str = "triple"
) -> None:
    """Raise `ValueError` unless every row has a predicate from 1 to P and constants from 1 to C.

    Args:
        atoms: Encoded atoms, one per row.
        num_predicates: P, the number of predicates.
        num_constants: C, the number of constants.
        kind: What a row is called in the error message.
    """
    limits = np.array([num_predicates, *[num_constants] * (atoms.shape[1] - 1)])
    if wrong := np.flatnonzero(np.any((atoms < 1) | (atoms > limits), axis=1)).tolist():
        raise ValueError(
            f"{kind} {wrong[0]} is {atoms[wrong[0]].tolist()}, but predicates are 1..{num_predicates} and "
            f"constants 1..{num_constants}"
        )
