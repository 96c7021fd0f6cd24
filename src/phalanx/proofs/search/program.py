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

from phalanx.core.files import ByFingerprint
from phalanx.proofs.knowledge.data import DataHandler
from phalanx.proofs.knowledge.vocabulary import EncodedAtom, EncodedRule, IndexManager, check_triples

_MAX_INDEX = 1 << 28
"""Cells of an offset table; 1 GB of int32."""


class ProgramArrays(NamedTuple):
    """A program on the device, as the XLA engine reads it."""

    start_by_first: Int32[Array, " firsts"]
    """Where the facts of (predicate, first) begin among the sorted facts; an end behind the last."""
    start_by_second: Int32[Array, " seconds"]
    """The same for (predicate, second) in the second order."""
    facts: Int32[Array, "facts 2"]
    """Arguments of the facts, sorted by predicate, first, second; one empty row when there are none."""
    by_second: Int32[Array, "facts 2"]
    """Arguments of the facts, sorted by predicate, second, first."""
    nests: Int32[Array, "2 places 2"]
    """The facts by two hashes, as (predicate and first, second); each is at one of its two places."""
    salt: UInt32[Array, ""]
    """What the hashes are mixed with, chosen so that every fact finds a place."""
    rule_start: Int32[Array, " predicates_and_two"]
    """Where the rules of a head predicate begin."""
    heads: Int32[Array, "rules 2"]
    """Arguments of the rules' heads; one empty row when there are none."""
    bodies: Int32[Array, "rules longest 3"]
    """The rules' bodies, zero rows behind."""


@dataclasses.dataclass(frozen=True, eq=False)
class Program(ByFingerprint):
    """Facts and rules, indexed. Equal when facts and rules are equal, and static under `jit`.

    Predicates are 1..P and constants 1..C; `True`, `False` and `End` are P + 1, P + 2 and P + 3; variables of
    a running proof are C + 1 and up.
    """

    facts: np.ndarray
    """int32 [facts, 3], sorted and unique."""
    heads: np.ndarray
    """int32 [rules, 3], grouped by predicate, in the given order within a predicate."""
    bodies: np.ndarray
    """int32 [rules, longest body, 3], zero rows behind."""
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
        facts: Int32[np.ndarray, "facts 3"],
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
        check_triples(facts, num_predicates, num_constants, "fact")
        for number, (head, body) in enumerate(rules):
            for atom in (head, *body):
                _check_rule_atom(number, atom, num_predicates, num_constants)
        order = np.array(sorted(range(len(rules)), key=lambda r: rules[r][0][0]), np.int32)
        heads = np.zeros((len(rules), 3), np.int32)
        bodies = np.zeros((len(rules), max((len(body) for _, body in rules), default=0), 3), np.int32)
        for place, number in enumerate(order):
            head, body = rules[number]
            heads[place] = head
            if body:
                bodies[place, : len(body)] = body
        unique = np.unique(facts.astype(np.int32), axis=0).reshape(-1, 3)
        for array in (unique, heads, bodies, order):
            array.setflags(write=False)
        return cls(unique, heads, bodies, order, num_predicates, num_constants)

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
            return ProgramArrays(*(jnp.asarray(array) for array in self._host_arrays()))

    def _host_arrays(self) -> tuple[Any, ...]:
        facts = self.facts
        second_order = np.lexsort((facts[:, 1], facts[:, 2], facts[:, 0]))
        arguments = [facts[:, 1:], facts[second_order, 1:], self.heads[:, 1:]]
        # A gather needs a row to read, also where nothing can come of it.
        arguments = [rows if len(rows) else np.zeros((1, 2), np.int32) for rows in arguments]
        bodies = self.bodies if len(self.bodies) else np.zeros((1, self.max_body, 3), np.int32)
        starts = [
            offsets(facts[:, 0], facts[:, side], self.num_predicates, self.num_constants) for side in (1, 2)
        ]
        nests, salt = _nests(facts, self.num_constants)
        return (*starts, arguments[0], arguments[1], nests, salt, self.rule_start, arguments[2], bodies)

    @property
    def native(self) -> Any:
        """This program in the compiled extension's memory; freed when the last equal program goes."""
        return self._native_home[0]

    @functools.cached_property
    def _native_home(self) -> list[Any]:
        import phalanx._native as _native

        key = int.from_bytes(bytes.fromhex(self.fingerprint)[:8], "little", signed=True)
        home = [
            _native.ProofProgram(
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


def is_fact(
    arrays: ProgramArrays,
    num_constants: int,
    predicate: Int32[Array, "*atoms"],
    first: Int32[Array, "*atoms"],
    second: Int32[Array, "*atoms"],
) -> Bool[Array, "*atoms"]:
    """Whether atoms are facts; False for variables and padding."""
    # Predicate times constants stays below `_MAX_INDEX`, so only variables could run into another key.
    ground = (first >= 1) & (first <= num_constants) & (second >= 1) & (second <= num_constants)
    key = predicate * num_constants + first
    size = arrays.nests.shape[1]
    found = jnp.zeros_like(ground)
    for side in (0, 1):
        place = _nest(arrays.salt, key.astype(jnp.uint32), second.astype(jnp.uint32), side, size)
        there = arrays.nests[side, place.astype(jnp.int32)]
        found |= (there[..., 0] == key) & (there[..., 1] == second)
    return ground & found


def _nest(salt: Any, key: Any, second: Any, side: int, size: int) -> Any:
    """One of the two places where a fact may be, by its predicate-and-first key and its second argument."""
    factors = ((0x9E3779B1, 0x85EBCA6B), (0xC2B2AE35, 0x27D4EB2F))[side]
    mixed = (key ^ salt) * np.uint32(factors[0]) ^ second * np.uint32(factors[1])
    mixed = (mixed ^ (mixed >> np.uint32(15))) * np.uint32(0x2C1B3C6D)
    return (mixed ^ (mixed >> np.uint32(13))) & np.uint32(size - 1)


def _nests(facts: np.ndarray, num_constants: int) -> tuple[np.ndarray, np.uint32]:
    """Cuckoo hashing: two tables in which every fact has one place each, and sits in one of them."""
    keys = (facts[:, 0].astype(np.int64) * num_constants + facts[:, 1]).astype(np.uint32)
    seconds = facts[:, 2].astype(np.uint32)
    size = 1 << max(2, int(np.ceil(np.log2(max(len(facts), 1) / 0.8))))
    salt = np.uint32(0)
    while True:
        places = np.stack([_nest(salt, keys, seconds, side, size).astype(np.int64) for side in (0, 1)])
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
                table = np.zeros((2, size, 2), np.int32)
                table[taken, 0] = keys[owner[taken]].astype(np.int32)
                table[taken, 1] = seconds[owner[taken]].astype(np.int32)
                return table, salt
            side[homeless] ^= 1
        salt = np.uint32((int(salt) + 0x27D4EB2F) % 2**32)
        if int(salt) % 4 == 0:
            size *= 2


def _check_rule_atom(number: int, atom: EncodedAtom, num_predicates: int, num_constants: int) -> None:
    predicate, *arguments = atom
    if not 1 <= predicate <= num_predicates:
        raise ValueError(f"rule {number}: predicate {predicate} in {atom} is not among 1..{num_predicates}")
    for argument in arguments:
        if argument == 0 or argument > num_constants:
            raise ValueError(
                f"rule {number}: argument {argument} in {atom} is neither a variable (negative) nor a "
                f"constant 1..{num_constants}"
            )
