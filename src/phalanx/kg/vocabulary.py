"""Integer ids of entities and predicates, and checks of names and numbers of arguments."""

import contextlib
import difflib
import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, SupportsInt

import numpy as np
from jaxtyping import Int32

from phalanx.kg.atoms import Atom, Rule

if TYPE_CHECKING:
    from phalanx.kg.knowledge_base import KnowledgeBase

EncodedAtom = tuple[int, ...]
"""A predicate id, followed by `Vocabulary.arity` terms. If an atom has fewer arguments, the last one is
repeated."""
EncodedRule = tuple[EncodedAtom, Sequence[EncodedAtom]]
"""Head and body of a rule. Variables are -1, -2, ... in order of first occurrence, and constants are ids."""


class Vocabulary:
    """Integer ids of the entities and predicates of a knowledge base, in sorted order starting at 0.

    All encoded atoms have `arity` terms. The arity is 2, or 3 if a predicate has three arguments. Atoms with
    fewer arguments are padded by repeating the last one, so `human(X)` is encoded as `human(X,X)`. Padding
    does not change any proof, because atoms unify before padding if and only if they unify after it.
    """

    def __init__(self, knowledge_base: "KnowledgeBase") -> None:
        self.predicates: tuple[str, ...] = knowledge_base.predicates
        self.entities: tuple[str, ...] = knowledge_base.entities
        self.predicate_ids: dict[str, int] = {name: number for number, name in enumerate(self.predicates)}
        self.entity_ids: dict[str, int] = {name: number for number, name in enumerate(self.entities)}
        self.arities: Mapping[str, int] = knowledge_base.arities
        self.arity = max(2, *self.arities.values()) if self.arities else 2
        """Number of terms in an encoded atom: 2 or 3."""
        self.num_predicates, self.num_entities = len(self.predicates), len(self.entities)
        self._domains = knowledge_base.domains

    @functools.cached_property
    def entity_domains(self) -> Int32[np.ndarray, " entities"]:
        """Domain number of each entity, starting at 1; 0 for entities that are not in any domain.

        Raises `ValueError` if an entity is in more than one domain.
        """
        numbers = np.zeros(self.num_entities, np.int32)
        for number, (name, members) in enumerate(self._domains.items(), 1):
            ids = np.array([self.entity_ids[member] for member in members], np.int64)
            if len(taken := ids[numbers[ids] != 0]):
                raise ValueError(
                    f"{self.entities[taken[0]]!r} is in domain {name!r} and in another one; corruptions need "
                    "one domain per entity"
                )
            numbers[ids] = number
        return numbers

    def encode_atom(self, atom: Atom) -> EncodedAtom:
        """Encode a ground atom. Raises `ValueError` for an unknown name, and suggests similar names."""
        return self._encode(atom, [_look_up(name, self.entity_ids, "constant", atom) for name in atom[1:]])

    def _encode(self, atom: Atom, terms: Sequence[int]) -> EncodedAtom:
        predicate = _look_up(atom[0], self.predicate_ids, "predicate", atom)
        check_arity(atom, self.arities)
        return (predicate, *terms, *[terms[-1]] * (self.arity - len(terms)))

    def encode(self, atoms: Iterable[Atom]) -> Int32[np.ndarray, "atoms atom"]:
        """Encode ground atoms as rows of ids: predicate, first argument, second argument.

        If `arity` is 3, there is a fourth column for the third argument. The predicate comes first, unlike in
        PyKEEN's (head, relation, tail), because an atom can have one to three arguments. The rows are in the
        order of `atoms`.
        """
        atoms = tuple(atoms)
        predicates, entities = self.predicate_ids, self.entity_ids
        rows: list[EncodedAtom] = []
        if set(self.arities.values()) <= {2}:
            # Several times faster than `encode_atom`, which is only needed for its error messages.
            with contextlib.suppress(KeyError, ValueError):
                rows = [(predicates[name], entities[one], entities[other]) for name, one, other in atoms]
        if len(rows) != len(atoms):
            rows = [self.encode_atom(atom) for atom in atoms]
        return np.array(rows, np.int32).reshape(-1, 1 + self.arity)

    def encode_rule(self, rule: Rule) -> EncodedRule:
        """Encode a rule. Variables are -1, -2, ... in order of first occurrence, starting with the head."""
        terms = {name: -number for number, name in enumerate(rule.variables, 1)}

        def encode(atom: Atom) -> EncodedAtom:
            for name in rule.constants.intersection(atom[1:]):
                terms[name] = _look_up(name, self.entity_ids, "constant", atom)
            return self._encode(atom, [terms[name] for name in atom[1:]])

        return encode(rule.head), tuple(encode(atom) for atom in rule.body)

    def encode_rules(self, rules: Iterable[Rule]) -> tuple[EncodedRule, ...]:
        """Encode several rules."""
        return tuple(self.encode_rule(rule) for rule in rules)

    def decode_atom(self, row: Iterable[SupportsInt]) -> Atom:
        """Convert an encoded ground atom back to an `Atom`, without padding."""
        predicate, *terms = (int(number) for number in row)
        name = self.predicates[predicate]
        return Atom(name, *(self.entities[term] for term in terms[: self.arities[name]]))

    def __repr__(self) -> str:
        return f"Vocabulary({self.num_predicates} predicates, {self.num_entities} entities)"


def check_arity(atom: Atom, arities: Mapping[str, int]) -> None:
    """Raise `ValueError` unless the number of arguments of an atom matches the arity of its predicate."""
    if len(atom) - 1 != arities[atom[0]]:
        count = {1: "one argument", 2: "two arguments", 3: "three arguments"}[arities[atom[0]]]
        raise ValueError(
            f"{atom.predicate} has {count} in this knowledge base, but {len(atom) - 1} in {atom}"
        )


def check_binary(vocabulary: Vocabulary, purpose: str) -> None:
    """Raise `ValueError` if any predicate of a vocabulary does not have two arguments.

    Args:
        vocabulary: Vocabulary with the predicates to check.
        purpose: Name of the task that needs predicates with two arguments, such as `link prediction`, for
            the error message.
    """
    others = [name for name in vocabulary.predicates if vocabulary.arities[name] != 2]
    if others:
        arity = vocabulary.arities[others[0]]
        raise ValueError(f"{purpose} needs predicates with two arguments, but {others[0]} has {arity}")


def check_name(name: str, names: Collection[str], kind: str, atom: Atom, hint: str = "") -> None:
    """Raise `ValueError` if a name is unknown. The message suggests similar names.

    Args:
        name: The name to check.
        names: The known names.
        kind: `constant` or `predicate`, for the error message.
        atom: The atom that contains the name, for the error message.
        hint: A sentence to append to the error message.
    """
    if name not in names:
        similar = [other for other in names if other.casefold() == name.casefold()][:3]
        similar = similar or difflib.get_close_matches(name, names, n=3, cutoff=0.75)
        similar = similar or difflib.get_close_matches(name, names, n=1, cutoff=0.0)
        suggestion = f"; did you mean {' or '.join(map(repr, similar))}?" if similar else ""
        raise ValueError(
            f"no {kind} {name!r} in this knowledge base (in {atom}){suggestion}{hint and ' ' + hint}"
        )


def _look_up(name: str, ids: Mapping[str, int], kind: str, atom: Atom) -> int:
    """Return the id of a name. Raises `ValueError` if the name is unknown; see `check_name`.

    Args:
        name: The name to look up.
        ids: Id of each known name.
        kind: `constant` or `predicate`, for the error message.
        atom: The atom that contains the name, for the error message.
    """
    check_name(name, ids, kind, atom)
    return ids[name]
