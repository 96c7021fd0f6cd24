"""The numbers of predicates, constants and variables, and the way between them and their names.

What is numbered comes from `data`; facts and rules become a searchable program in `program`.
"""

import difflib
import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, SupportsInt

import numpy as np
from jaxtyping import Int32

from phalanx.kg.atoms import Atom, Rule

if TYPE_CHECKING:
    from phalanx.kg.knowledge_base import DataHandler

EncodedAtom = tuple[int, ...]
"""A predicate and as many terms as the knowledge base's largest arity; see `IndexManager`."""
EncodedRule = tuple[EncodedAtom, Sequence[EncodedAtom]]
"""Head and body; variables are -1, -2, ... by first occurrence, constants are positive."""

TRUE, FALSE, END = "True", "False", "End"
KGE_SUFFIX = "_kge"


class IndexManager:
    """Numbers everything that a state of a proof can hold.

    Predicates: 0 is padding, then the P real ones in order, `True`, `False`, `End`, then a `_kge` twin of
    every real one (the predicate that a knowledge-graph embedding scores). Terms: 0 is padding, then the C
    constants in order (numerals as numbers), then the variables of a running proof, as many for each atom of
    a state as atoms have terms. Embedding tables have `num_predicate_embeddings` and
    `num_constant_embeddings` rows: every index that exists is a row, twins and variables included.

    All atoms have `arity` terms, which is 2, or 3 where some predicate has three arguments. One with fewer
    repeats its last argument, as a term and as a variable alike: `human(X)` is held as `human(X,X)`. That
    changes no proof, since what unifies with one unifies with the other; names and files have the plain atom.
    """

    padding_idx = 0

    def __init__(self, data_handler: "DataHandler", padding_atoms: int = 6) -> None:
        if padding_atoms < 1:
            raise ValueError(f"padding_atoms must be at least 1, got {padding_atoms}")
        self.padding_atoms = padding_atoms
        self.predicates: tuple[str, ...] = data_handler.predicates
        self.constants: tuple[str, ...] = data_handler.entities
        names = [*self.predicates, TRUE, FALSE, END, *(name + KGE_SUFFIX for name in self.predicates)]
        self.predicate_str2idx: dict[str, int] = {name: index for index, name in enumerate(names, 1)}
        if len(self.predicate_str2idx) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(
                f"the predicate {twice!r} has a name that is taken: {TRUE}, {FALSE}, {END} and names that "
                f"end in {KGE_SUFFIX} beside the name without it are given out here"
            )
        self.constant_str2idx: dict[str, int] = {name: at for at, name in enumerate(self.constants, 1)}
        self._domains = data_handler.domains
        self.arities: Mapping[str, int] = data_handler.arities
        self.arity = max(2, *self.arities.values()) if self.arities else 2
        """Terms of an encoded atom."""

    @property
    def num_predicates(self) -> int:
        """P: how many real predicates there are. Not the size of a table: see `num_predicate_embeddings`."""
        return len(self.predicates)

    @property
    def num_constants(self) -> int:
        """C: how many constants there are. Not the size of a table: see `num_constant_embeddings`."""
        return len(self.constants)

    @property
    def predicate_no(self) -> int:
        """`num_predicates` by its older name; tables are sized by `num_predicate_embeddings`."""
        return self.num_predicates

    @property
    def constant_no(self) -> int:
        """`num_constants` by its older name; tables are sized by `num_constant_embeddings`."""
        return self.num_constants

    @property
    def true_idx(self) -> int:
        """The predicate of a state with nothing left to prove."""
        return self.num_predicates + 1

    @property
    def false_idx(self) -> int:
        """The predicate of a failed state."""
        return self.num_predicates + 2

    @property
    def end_idx(self) -> int:
        """The predicate that marks the action of giving up."""
        return self.num_predicates + 3

    @property
    def kge_offset(self) -> int:
        """What to add to a real predicate's index for its `_kge` twin."""
        return self.num_predicates + 3

    @property
    def runtime_var_start_index(self) -> int:
        """The first variable of a running proof."""
        return self.num_constants + 1

    @property
    def num_variables(self) -> int:
        """How many variables a state can hold."""
        return self.arity * self.padding_atoms

    @functools.cached_property
    def predicate_idx2str(self) -> dict[int, str]:
        """Every index in a state's first column, but padding."""
        return {index: name for name, index in self.predicate_str2idx.items()}

    @functools.cached_property
    def constant_idx2str(self) -> dict[int, str]:
        """Every index in a state's other columns, but padding: constants, then variables `_1`, `_2`, ..."""
        variables = (f"_{number}" for number in range(1, self.num_variables + 1))
        return dict(enumerate([*self.constants, *variables], 1))

    @property
    def num_predicate_embeddings(self) -> int:
        """Rows of a table that holds every predicate index."""
        return max(self.predicate_idx2str) + 1

    @property
    def num_constant_embeddings(self) -> int:
        """Rows of a table that holds every constant's and variable's index."""
        return max(self.constant_idx2str) + 1

    @functools.cached_property
    def constant_domains(self) -> Int32[np.ndarray, " constants_and_one"]:
        """A number for the domain of each constant; 0 for padding and for constants of no domain."""
        numbers = np.zeros(self.num_constants + 1, np.int32)
        for number, (name, constants) in enumerate(self._domains.items(), 1):
            places = np.array([self.constant_str2idx[constant] for constant in constants], np.int64)
            if len(taken := places[numbers[places] != 0]):
                raise ValueError(
                    f"{self.constants[taken[0] - 1]!r} is in domain {name!r} and in another; a corruption "
                    "needs one domain for each constant"
                )
            numbers[places] = number
        return numbers

    @functools.cached_property
    def predicate_arities(self) -> Int32[np.ndarray, " predicates_and_one"]:
        """The arguments of each real predicate by its index; 0 for padding."""
        return np.array([0, *(self.arities[name] for name in self.predicates)], np.int32)

    def encode_atom(self, atom: Atom) -> EncodedAtom:
        """The indices of a ground atom; an unknown name's error names the nearest one."""
        return self._encoded(
            atom, [_index(name, self.constant_str2idx, "constant", atom) for name in atom[1:]]
        )

    def _encoded(self, atom: Atom, terms: Sequence[int]) -> EncodedAtom:
        predicate = _index(atom[0], self.predicate_str2idx, "predicate", atom)
        check_arity(atom, self.arities)
        return (predicate, *terms, *[terms[-1]] * (self.arity - len(terms)))

    def encode_atoms(self, atoms: Iterable[Atom]) -> Int32[np.ndarray, "atoms atom"]:
        """One row for each ground atom, in their order."""
        atoms = atoms if isinstance(atoms, Sequence) else tuple(atoms)
        predicates, constants = self.predicate_str2idx, self.constant_str2idx
        rows: list[EncodedAtom]
        try:
            rows = [(predicates[name], constants[first], constants[second]) for name, first, second in atoms]
            plain = self._all_binary
        except (KeyError, ValueError):
            plain = False
        if not plain:
            rows = [self.encode_atom(atom) for atom in atoms]
        return np.array(rows, np.int32).reshape(-1, 1 + self.arity)

    @functools.cached_property
    def _all_binary(self) -> bool:
        return set(self.arities.values()) <= {2}

    def encode_rule(self, rule: Rule) -> EncodedRule:
        """Head and body, variables numbered -1, -2, ... as they occur in the head and then in the body."""
        terms = {name: -number for number, name in enumerate(rule.variables, 1)}

        def encode(atom: Atom) -> EncodedAtom:
            for name in rule.constants.intersection(atom[1:]):
                terms[name] = _index(name, self.constant_str2idx, "constant", atom)
            return self._encoded(atom, [terms[name] for name in atom[1:]])

        return encode(rule.head), tuple(encode(atom) for atom in rule.body)

    def encode_rules(self, rules: Iterable[Rule]) -> tuple[EncodedRule, ...]:
        """`encode_rule` of each."""
        return tuple(self.encode_rule(rule) for rule in rules)

    def decode_atom(self, row: Iterable[SupportsInt]) -> Atom:
        """The atom of some indices; `True`, `False` and `End` have no arguments, variables are `_1`, ..."""
        predicate, *terms = (int(index) for index in row)
        try:
            name = self.predicate_idx2str[predicate]
            names = [self.constant_idx2str[index] for index in terms if index]
        except KeyError as error:
            raise ValueError(
                f"no atom has the indices {[predicate, *terms]}: {error.args[0]} is not given out"
            ) from None
        real = self.predicates[(predicate - 1) % self.kge_offset] if names else ""
        return Atom(name, *names[: self.arities[real]]) if names else Atom(name)

    def decode_state(self, state: Iterable[Iterable[SupportsInt]]) -> tuple[Atom, ...]:
        """The goals of a state, without its padding."""
        return tuple(self.decode_atom(row) for row in np.asarray(state) if row[0] != self.padding_idx)

    def __repr__(self) -> str:
        return (
            f"IndexManager({self.num_predicates} predicates, {self.num_constants} constants, "
            f"{self.num_variables} variables)"
        )


def check_triples(
    triples: Int32[np.ndarray, "triples atom"], num_predicates: int, num_constants: int, kind: str = "triple"
) -> None:
    """Raises unless every row has a predicate from 1 to P and constants from 1 to C."""
    limits = np.array([num_predicates, *[num_constants] * (triples.shape[1] - 1)])
    if wrong := np.flatnonzero(np.any((triples < 1) | (triples > limits), axis=1)).tolist():
        raise ValueError(
            f"{kind} {wrong[0]} is {triples[wrong[0]].tolist()}; predicates are 1..{num_predicates} and "
            f"constants 1..{num_constants}"
        )


def check_arity(atom: Atom, arities: Mapping[str, int]) -> None:
    """Raises unless the atom has as many arguments as its predicate has elsewhere."""
    if len(atom) - 1 != arities[atom[0]]:
        count = {1: "one argument", 2: "two arguments", 3: "three arguments"}[arities[atom[0]]]
        raise ValueError(
            f"{atom.predicate} has {count} in this knowledge base, and {len(atom) - 1} in {atom}"
        )


def check_binary(names: IndexManager, what: str) -> None:
    """Raises where a predicate has one argument or three, which `what` cannot deal with."""
    if others := [name for name in names.predicates if names.arities[name] != 2]:
        raise ValueError(
            f"{what} need predicates of two arguments, and {others[0]} has {names.arities[others[0]]}"
        )


def check_name(name: str, names: Collection[str], kind: str, where: Atom, hint: str = "") -> None:
    """Raises unless the name is among these; the error tells where it stands, and the nearest ones."""
    if name not in names:
        names = [other for other in names if not other.endswith(KGE_SUFFIX)]
        close = [other for other in names if other.casefold() == name.casefold()]
        close = close[:3] or difflib.get_close_matches(name, names, n=3, cutoff=0.75)
        close = close or difflib.get_close_matches(name, names, n=1, cutoff=0.0)
        near = f"; the nearest {'is' if len(close) == 1 else 'are'} {', '.join(map(repr, close))}"
        raise ValueError(
            f"no {kind} {name!r} in this knowledge base (in {where}){near if close else ''}{hint}"
        )


def _index(name: str, indices: Mapping[str, int], kind: str, atom: Atom) -> int:
    check_name(name, indices, kind, atom)
    return indices[name]
