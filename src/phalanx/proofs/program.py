"""Programs: encoded facts and rules with the indices that resolution looks things up in.

Reading files and numbering names is in `knowledge`; what is derived from a program is in `resolution`.
"""

import dataclasses
import functools
import hashlib
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, UInt32

from phalanx.core.fingerprint import Fingerprinted
from phalanx.kg.knowledge_base import DataHandler
from phalanx.kg.vocabulary import EncodedAtom, EncodedRule, IndexManager, check_triples
from phalanx.native import require_native

_MAX_INDEX = 1 << 28
"""Cells of an offset table; 1 GB of int32."""


class FactSet(NamedTuple):
    """A set of atoms that can be asked on the device whether it has one: cuckoo hashing."""

    table: Int32[Array, "2 places arguments"]
    """The atoms by two hashes, as (predicate and first, others); each is at one of its two places."""
    salt: UInt32[Array, ""]
    """What the hashes are mixed with, chosen so that every atom finds a place."""

    @classmethod
    def of(cls, atoms: Int32[np.ndarray, "facts atom"], num_constants: int) -> "FactSet":
        """The set of some ground atoms, each there once."""
        table, salt = _nests(atoms, num_constants)
        return cls(jnp.asarray(table), jnp.asarray(salt))

    def contain(self, atoms: Int32[Array, "*atoms atom"], num_constants: int) -> Bool[Array, "*atoms"]:
        """Whether atoms are in it; False for variables and padding."""
        # Predicate times constants stays below `_MAX_INDEX`, so only variables could run into another key.
        ground = jnp.all((atoms[..., 1:] >= 1) & (atoms[..., 1:] <= num_constants), axis=-1)
        key, others = atoms[..., 0] * num_constants + atoms[..., 1], atoms[..., 2:]
        found = jnp.zeros_like(ground)
        for side in (0, 1):
            hashed = key.astype(jnp.uint32), others.astype(jnp.uint32)
            place = _nest(self.salt, *hashed, side, self.table.shape[1])
            there = self.table[side, place.astype(jnp.int32)]
            found |= (there[..., 0] == key) & jnp.all(there[..., 1:] == others, axis=-1)
        return ground & found


class ProgramArrays(NamedTuple):
    """A program on the device, as the XLA engine reads it."""

    starts: Int32[Array, "arguments cells"]
    """For each argument: where the facts of (predicate, argument) begin in its order; then the end."""
    facts: Int32[Array, "arguments facts arguments"]
    """Arguments of the facts, for each argument sorted by predicate, that argument, and then all in turn; one
    empty row when there are none."""
    nests: FactSet
    """The facts themselves, to be looked up."""
    rule_start: Int32[Array, " predicates_and_two"]
    """Where the rules of a head predicate begin."""
    heads: Int32[Array, "rules arguments"]
    """Arguments of the rules' heads; one empty row when there are none."""
    bodies: Int32[Array, "rules longest atom"]
    """The rules' bodies, zero rows behind."""


@dataclasses.dataclass(frozen=True, eq=False)
class Program(Fingerprinted):
    """Facts and rules, indexed. Equal when facts and rules are equal, and static under `jit`.

    Predicates are 1..P and constants 1..C; `True`, `False` and `End` are P + 1, P + 2 and P + 3; variables of
    a running proof are C + 1 and up. All atoms have two arguments, or all three; see `IndexManager`.
    """

    facts: np.ndarray
    """int32 [facts, 1 + arity], sorted and unique."""
    heads: np.ndarray
    """int32 [rules, 1 + arity], grouped by predicate, in the given order within a predicate."""
    bodies: np.ndarray
    """int32 [rules, longest body, 1 + arity], zero rows behind."""
    rule_order: np.ndarray
    """int32 [rules]: where each of these rules stood in the list that was given."""
    num_predicates: int
    """Real predicates."""
    num_constants: int

    @classmethod
    def of_data(cls, data: DataHandler, index: IndexManager) -> "Program":
        """The facts and rules of a knowledge base."""
        facts, rules = index.encode_atoms(data.facts), index.encode_rules(data.rules)
        return cls.create(facts, rules, index.num_predicates, index.num_constants)

    @classmethod
    def create(
        cls,
        facts: Int32[np.ndarray, "facts atom"],
        rules: Sequence[EncodedRule],
        num_predicates: int,
        num_constants: int,
    ) -> "Program":
        """Index facts (in any order, repeats allowed) and rules; raises on what the encoding forbids."""
        if num_predicates < 1 or num_constants < 1:
            raise ValueError(
                f"a program needs predicates and constants, got {num_predicates} and {num_constants}"
            )
        if num_predicates * num_constants >= _MAX_INDEX:
            raise ValueError(
                f"{num_predicates} predicates times {num_constants} constants exceed the index's {_MAX_INDEX}"
            )
        arity = facts.shape[1] - 1
        if arity not in (2, 3):
            raise ValueError(f"facts must have a predicate and two or three terms, got rows of {arity + 1}")
        if num_predicates * num_constants**arity >= 1 << 62:
            raise ValueError(f"{num_constants} constants are too many for atoms with {arity} arguments")
        check_triples(facts, num_predicates, num_constants, "fact")
        for number, (head, body) in enumerate(rules):
            for atom in (head, *body):
                _check_rule_atom(number, atom, arity, num_predicates, num_constants)
        order = np.array(sorted(range(len(rules)), key=lambda r: rules[r][0][0]), np.int32)
        heads = np.zeros((len(rules), 1 + arity), np.int32)
        longest = max((len(body) for _, body in rules), default=0)
        bodies = np.zeros((len(rules), longest, 1 + arity), np.int32)
        for place, number in enumerate(order):
            head, body = rules[number]
            heads[place] = head
            if body:
                bodies[place, : len(body)] = body
        unique = np.unique(facts.astype(np.int32), axis=0).reshape(-1, 1 + arity)
        for array in (unique, heads, bodies, order):
            array.setflags(write=False)
        return cls(unique, heads, bodies, order, num_predicates, num_constants)

    @property
    def arity(self) -> int:
        """Terms of an atom."""
        return self.facts.shape[1] - 1

    @property
    def true_index(self) -> int:
        """The predicate of a state with nothing left to prove."""
        return self.num_predicates + 1

    @property
    def false_index(self) -> int:
        """The predicate of a failed state."""
        return self.num_predicates + 2

    @property
    def end_index(self) -> int:
        """The predicate that marks the action of giving up."""
        return self.num_predicates + 3

    @property
    def runtime_var_start_index(self) -> int:
        """The first variable of a running proof."""
        return self.num_constants + 1

    @property
    def max_body(self) -> int:
        """Atoms of the longest body."""
        return self.bodies.shape[1]

    @functools.cached_property
    def rule_start(self) -> np.ndarray:
        """int32 [predicates + 2]: where the rules of a head predicate begin; predicate 0 has none."""
        return np.searchsorted(self.heads[:, 0], np.arange(self.num_predicates + 2)).astype(np.int32)

    @functools.cached_property
    def arrays(self) -> ProgramArrays:
        """The indices on the device, concrete even when first asked for under a trace."""
        with jax.ensure_compile_time_eval():
            return ProgramArrays(*jax.tree.map(jnp.asarray, self._host_arrays()))

    def _host_arrays(self) -> tuple[Any, ...]:
        facts, arguments = self.facts, range(1, 1 + self.arity)
        # A gather needs a row to read, also where nothing can come of it.
        blank = np.zeros((1, self.arity), np.int32)
        # The facts come sorted, and a stable sort keeps that order within an argument.
        orders = [np.lexsort((facts[:, side], facts[:, 0])) for side in arguments]
        ordered = np.stack([facts[order, 1:] if len(facts) else blank for order in orders])
        heads = self.heads[:, 1:] if len(self.heads) else blank
        bodies = self.bodies if len(self.bodies) else np.zeros((1, self.max_body, 1 + self.arity), np.int32)
        starts = [
            offsets(facts[:, 0], facts[:, side], self.num_predicates, self.num_constants)
            for side in arguments
        ]
        nests = FactSet.of(facts, self.num_constants)
        return (np.stack(starts), ordered, nests, self.rule_start, heads, bodies)

    @property
    def native(self) -> Any:
        """This program in the compiled extension's memory; freed when the last equal program goes."""
        return self._native_home[0]

    @functools.cached_property
    def _native_home(self) -> list[Any]:
        extension = require_native("proof search with the native backend")
        key = int.from_bytes(bytes.fromhex(self.fingerprint)[:8], "little", signed=True)
        home = [
            extension.ProofProgram(
                key, self.facts, self.heads, self.bodies, self.num_predicates, self.num_constants
            )
        ]
        # Compiled functions keep their program to the very end, when the extension would report a leak.
        weakref.finalize(self, home.clear)
        return home

    @functools.cached_property
    def compiled(self) -> dict[Any, Any]:
        """Functions that `resolution` has made for this program; they go when it goes."""
        return {}

    @functools.cached_property
    def fingerprint(self) -> str:
        """A digest of facts and rules, in order."""
        digest = hashlib.sha256(f"{self.num_predicates} {self.num_constants} {self.max_body} ".encode())
        for array in (self.facts, self.heads, self.bodies, self.rule_order):
            digest.update(f"{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        # Compiled functions and the extension's memory stay in this process; a copy makes its own.
        return Program, tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    def __repr__(self) -> str:
        return (
            f"Program({len(self.facts)} facts, {len(self.heads)} rules, {self.num_predicates} predicates, "
            f"{self.num_constants} constants)"
        )


jax.tree_util.register_static(Program)


def offsets(
    predicates: Int32[np.ndarray, " rows"],
    arguments: Int32[np.ndarray, " rows"],
    num_predicates: int,
    num_constants: int,
) -> Int32[np.ndarray, " cells"]:
    """Where the rows of (predicate, argument) begin once the rows are sorted by them; the end at the end."""
    cells = (predicates.astype(np.int64) - 1) * num_constants + arguments - 1
    counts = np.bincount(cells, minlength=num_predicates * num_constants)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def _nest(salt: Any, key: Any, others: Any, side: int, size: int) -> Any:
    """One of the two places where a fact may be, by its predicate-and-first key and its other arguments."""
    factors = ((0x9E3779B1, 0x85EBCA6B, 0x165667B1), (0xC2B2AE35, 0x27D4EB2F, 0xD3A2646D))[side]
    mixed = (key ^ salt) * np.uint32(factors[0])
    for column, factor in enumerate(factors[1 : 1 + others.shape[-1]]):
        mixed = mixed ^ others[..., column] * np.uint32(factor)
    mixed = (mixed ^ (mixed >> np.uint32(15))) * np.uint32(0x2C1B3C6D)
    return (mixed ^ (mixed >> np.uint32(13))) & np.uint32(size - 1)


def _nests(facts: np.ndarray, num_constants: int) -> tuple[np.ndarray, np.uint32]:
    """Cuckoo hashing: two tables in which every fact has one place each, and sits in one of them."""
    keys = (facts[:, 0].astype(np.int64) * num_constants + facts[:, 1]).astype(np.uint32)
    others = facts[:, 2:].astype(np.uint32)
    size = 1 << max(2, int(np.ceil(np.log2(max(len(facts), 1) / 0.8))))
    salt = np.uint32(0)
    while True:
        places = np.stack([_nest(salt, keys, others, side, size).astype(np.int64) for side in (0, 1)])
        owner = np.full((2, size), -1, np.int64)
        side = np.zeros(len(facts), np.int64)
        homeless = np.arange(len(facts))
        for _ in range(500):
            here = side[homeless], places[side[homeless], homeless]
            evicted = owner[here]
            owner[here] = homeless
            # Of those that wanted the same place the last has it; all others try their other place.
            lost = homeless[owner[here] != homeless]
            homeless = np.unique(np.concatenate([lost, evicted[evicted >= 0]]))
            if not len(homeless):
                taken = owner >= 0
                table = np.zeros((2, size, facts.shape[1] - 1), np.int32)
                table[taken, 0] = keys[owner[taken]].astype(np.int32)
                table[taken, 1:] = others[owner[taken]].astype(np.int32)
                return table, salt
            side[homeless] ^= 1
        salt = np.uint32((int(salt) + 0x27D4EB2F) % 2**32)
        if int(salt) % 4 == 0:
            size *= 2


def _check_rule_atom(
    number: int, atom: EncodedAtom, arity: int, num_predicates: int, num_constants: int
) -> None:
    predicate, *arguments = atom
    if len(arguments) != arity:
        raise ValueError(f"rule {number}: {atom} has {len(arguments)} terms, where facts have {arity}")
    if not 1 <= predicate <= num_predicates:
        raise ValueError(f"rule {number}: predicate {predicate} in {atom} is not among 1..{num_predicates}")
    for argument in arguments:
        if argument == 0 or argument > num_constants:
            raise ValueError(
                f"rule {number}: argument {argument} in {atom} is neither a variable (negative) nor a "
                f"constant 1..{num_constants}"
            )
