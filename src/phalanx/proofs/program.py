"""Programs: encoded facts and rules, with indexes for resolution."""

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

from phalanx.core.backends import BackendFunction
from phalanx.core.fingerprint import Fingerprinted
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.kg.vocabulary import EncodedRule
from phalanx.native import require_native
from phalanx.proofs.vocabulary import AtomIndexing, ProofVocabulary, check_atoms
from phalanx.ragged import counts_to_offsets

_MAX_OFFSETS = 1 << 28
"""Maximum size of the result of `row_offsets`. An array of this size takes 1 GB."""


class FactSet(NamedTuple):
    """A set of ground atoms on the device, stored as a cuckoo hash table."""

    table: Int32[Array, "2 slots arguments"]
    """Two hash tables. Each atom is in one of them, in the slot given by its hash for that table. An atom
    is stored as one number that combines the predicate and the first argument, followed by the other
    arguments."""
    salt: UInt32[Array, ""]
    """Seed of the hash functions, chosen such that every atom finds a slot in one of the two tables."""

    @classmethod
    def create(cls, atoms: Int32[np.ndarray, "facts atom"], num_constants: int) -> "FactSet":
        """Build the set from distinct ground atoms."""
        table, salt = _build_cuckoo_table(atoms, num_constants)
        return cls(jnp.asarray(table), jnp.asarray(salt))

    def contains(self, atoms: Int32[Array, "*atoms atom"], num_constants: int) -> Bool[Array, "*atoms"]:
        """Return whether each atom is in the set. Padding and atoms with variables are never in the set."""
        # Predicate times constants is below `_MAX_OFFSETS`, so only variables could collide with another key.
        ground = jnp.all((atoms[..., 1:] >= 1) & (atoms[..., 1:] <= num_constants), axis=-1)
        key, others = atoms[..., 0] * num_constants + atoms[..., 1], atoms[..., 2:]
        found = jnp.zeros_like(ground)
        for side in (0, 1):
            hashed = key.astype(jnp.uint32), others.astype(jnp.uint32)
            slot = _hash(self.salt, *hashed, side, self.table.shape[1])
            entry = self.table[side, slot.astype(jnp.int32)]
            found |= (entry[..., 0] == key) & jnp.all(entry[..., 1:] == others, axis=-1)
        return ground & found


class ProgramArrays(NamedTuple):
    """Facts and rules of a `Program` as device arrays, for the XLA backend."""

    starts: Int32[Array, "arguments cells"]
    """For each argument position, offsets into `facts`. With C constants, the facts with predicate p and
    constant c at this position start at index `starts[position, (p - 1) * C + c - 1]` and end before the next
    offset. The last entry is the total number of facts."""
    facts: Int32[Array, "arguments facts arguments"]
    """One copy of the facts per argument position, without predicates. The copy for a position is sorted by
    predicate, then by the argument at this position, and then by all arguments. If there are no facts, each
    copy has one row of zeros."""
    fact_set: FactSet
    """Set of all facts."""
    rule_start: Int32[Array, " predicates_and_two"]
    """Offsets of the rules by head predicate. The rules for predicate p have the indices from `rule_start[p]`
    up to, but not including, `rule_start[p + 1]`. There are two more entries than predicates: the first one
    is for predicate 0, which is padding and has no rules, and the last one is the number of rules."""
    heads: Int32[Array, "rules arguments"]
    """Arguments of the rule heads. If there are no rules, there is one row of zeros."""
    bodies: Int32[Array, "rules longest atom"]
    """Bodies of the rules, padded with zero rows."""


@dataclasses.dataclass(frozen=True, eq=False)
class Program(Fingerprinted, AtomIndexing):
    """Facts and rules, with indexes for resolution.

    Programs are compared by content and are static under `jit`. Atoms are encoded by a `ProofVocabulary`. All
    atoms of a program have the same number of terms, which is two or three.
    """

    facts: np.ndarray
    """Facts as int32 [facts, 1 + arity], sorted and unique."""
    heads: np.ndarray
    """Rule heads as int32 [rules, 1 + arity], sorted by predicate. Rules whose heads have the same
    predicate are in the order in which they were passed to `create`."""
    bodies: np.ndarray
    """Rule bodies as int32 [rules, longest body, 1 + arity], padded with zero rows."""
    rule_order: np.ndarray
    """Position of each rule in the list passed to `create`, as int32 [rules]."""
    num_predicates: int
    """Number of predicates of the knowledge base."""
    num_constants: int
    """Number of constants of the knowledge base."""

    @classmethod
    def from_knowledge_base(cls, knowledge_base: KnowledgeBase, vocabulary: ProofVocabulary) -> "Program":
        """Create a program from the facts and rules of a knowledge base."""
        facts = vocabulary.encode(knowledge_base.facts)
        rules = vocabulary.encode_rules(knowledge_base.rules)
        return cls.create(facts, rules, vocabulary.num_predicates, vocabulary.num_constants)

    @classmethod
    def create(
        cls,
        facts: Int32[np.ndarray, "facts atom"],
        rules: Sequence[EncodedRule],
        num_predicates: int,
        num_constants: int,
    ) -> "Program":
        """Create a program. Raises `ValueError` for indices that are out of range.

        Args:
            facts: Encoded ground atoms, in any order. They can be repeated.
            rules: Encoded rules.
            num_predicates: Number of predicates.
            num_constants: Number of constants.
        """
        if num_predicates < 1 or num_constants < 1:
            raise ValueError(
                f"a program needs predicates and constants, got {num_predicates} and {num_constants}"
            )
        if num_predicates * num_constants >= _MAX_OFFSETS:
            raise ValueError(
                f"{num_predicates} predicates times {num_constants} constants are more than {_MAX_OFFSETS}"
            )
        arity = facts.shape[1] - 1
        if arity not in (2, 3):
            raise ValueError(f"facts must have a predicate and two or three terms, got rows of {arity + 1}")
        if num_predicates * num_constants**arity >= 1 << 62:
            raise ValueError(f"{num_constants} constants are too many for atoms with {arity} arguments")
        check_atoms(facts, num_predicates, num_constants, "fact")
        for number, (head, body) in enumerate(rules):
            for atom in (head, *body):
                predicate, *terms = atom
                has_valid_terms = len(terms) == arity and all(t and t <= num_constants for t in terms)
                if not (1 <= predicate <= num_predicates and has_valid_terms):
                    raise ValueError(
                        f"rule {number}: {atom} must be a predicate from 1 to {num_predicates} and {arity} "
                        f"terms, each of which is a variable (negative) or a constant 1..{num_constants}"
                    )
        order = np.array(sorted(range(len(rules)), key=lambda r: rules[r][0][0]), np.int32)
        heads = np.zeros((len(rules), 1 + arity), np.int32)
        longest = max((len(body) for _, body in rules), default=0)
        bodies = np.zeros((len(rules), longest, 1 + arity), np.int32)
        for row, number in enumerate(order):
            head, body = rules[number]
            heads[row] = head
            bodies[row, : len(body)] = np.reshape(body, (len(body), 1 + arity))
        unique = np.unique(facts.astype(np.int32), axis=0).reshape(-1, 1 + arity)
        return cls(unique, heads, bodies, order, num_predicates, num_constants)

    @property
    def arity(self) -> int:
        """Number of terms in an atom, which is 2 or 3."""
        return self.facts.shape[1] - 1

    @functools.cached_property
    def arrays(self) -> ProgramArrays:
        """The program on the device. The arrays are concrete even while JAX is tracing."""
        facts, arguments = self.facts, range(1, 1 + self.arity)
        sizes = self.num_predicates, self.num_constants
        starts = [row_offsets(facts[:, 0], facts[:, side], *sizes) for side in arguments]
        # The facts are sorted, and a stable sort keeps that order for equal arguments.
        orders = [np.lexsort((facts[:, side], facts[:, 0])) for side in arguments]
        # A gather needs at least one row.
        blank = np.zeros((1, self.arity), np.int32)
        blank_body = np.zeros((1, *self.bodies.shape[1:]), np.int32)
        rule_start = np.searchsorted(self.heads[:, 0], np.arange(self.num_predicates + 2))
        with jax.ensure_compile_time_eval():
            return ProgramArrays(
                starts=jnp.asarray(np.stack(starts)),
                facts=jnp.asarray(np.stack([facts[order, 1:] if len(facts) else blank for order in orders])),
                fact_set=FactSet.create(facts, self.num_constants),
                rule_start=jnp.asarray(rule_start, jnp.int32),
                heads=jnp.asarray(self.heads[:, 1:] if len(self.heads) else blank),
                bodies=jnp.asarray(self.bodies if len(self.bodies) else blank_body),
            )

    @property
    def native(self) -> Any:
        """The program as a C++ object, which is shared by equal programs and freed with the last of them."""
        return self._native_owner[0]

    @functools.cached_property
    def _native_owner(self) -> list[Any]:
        extension = require_native("proof search with the native backend")
        key = int.from_bytes(bytes.fromhex(self.fingerprint)[:8], "little", signed=True)
        sizes = self.num_predicates, self.num_constants
        owner = [extension.ProofProgram(key, self.facts, self.heads, self.bodies, *sizes)]
        # Compiled functions keep their program until the process exits, when the extension would report a
        # leak.
        weakref.finalize(self, owner.clear)
        return owner

    @functools.cached_property
    def expand(self) -> BackendFunction:
        """Function that expands nodes with this program. It caches its compiled versions.

        Do not call it directly; call `phalanx.proofs.backends.expand`.
        """
        from phalanx.proofs.backends import native, xla

        return BackendFunction(functools.partial(native.expand, self), functools.partial(xla.expand, self))

    @functools.cached_property
    def fingerprint(self) -> str:
        """Digest of the facts and rules."""
        sizes = f"{self.num_predicates} {self.num_constants} {self.bodies.shape[1]} "
        digest = hashlib.sha256(sizes.encode())
        for array in (self.facts, self.heads, self.bodies, self.rule_order):
            digest.update(f"{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        # Compiled functions and the extension's memory cannot be pickled; a copy creates its own.
        return Program, tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    def __repr__(self) -> str:
        return (
            f"Program({len(self.facts)} facts, {len(self.heads)} rules, {self.num_predicates} predicates, "
            f"{self.num_constants} constants)"
        )


jax.tree_util.register_static(Program)


def row_offsets(
    predicates: Int32[np.ndarray, " rows"],
    arguments: Int32[np.ndarray, " rows"],
    num_predicates: int,
    num_constants: int,
) -> Int32[np.ndarray, " cells"]:
    """Return the offset of each (predicate, argument) group when rows are sorted by predicate and argument.

    The groups are ordered by predicate and then by argument. The indices of predicates and arguments start at
    1. There is a group for every possible pair, so groups can be empty. The last entry of the result is the
    number of rows.
    """
    cells = (predicates.astype(np.int64) - 1) * num_constants + arguments - 1
    counts = np.bincount(cells, minlength=num_predicates * num_constants)
    return counts_to_offsets(counts).astype(np.int32)


def _hash(salt: Any, key: Any, others: Any, side: int, size: int) -> Any:
    """Return the slot of an atom in one of the two hash tables.

    Args:
        salt: Number that is mixed into the hash.
        key: Number for the predicate and first argument.
        others: The other arguments.
        side: Index of the hash table, 0 or 1.
        size: Number of slots of a table, which is a power of two.
    """
    factors = ((0x9E3779B1, 0x85EBCA6B, 0x165667B1), (0xC2B2AE35, 0x27D4EB2F, 0xD3A2646D))[side]
    mixed = (key ^ salt) * np.uint32(factors[0])
    for column, factor in enumerate(factors[1 : 1 + others.shape[-1]]):
        mixed = mixed ^ others[..., column] * np.uint32(factor)
    mixed = (mixed ^ (mixed >> np.uint32(15))) * np.uint32(0x2C1B3C6D)
    return (mixed ^ (mixed >> np.uint32(13))) & np.uint32(size - 1)


def _build_cuckoo_table(facts: np.ndarray, num_constants: int) -> tuple[np.ndarray, np.uint32]:
    """Build a cuckoo hash table of the facts, and return the table and the salt of the hash function.

    The first axis of the table has length 2. Each fact is stored in one of the two halves, in the slot that
    `_hash` returns for this half.
    """
    keys = (facts[:, 0].astype(np.int64) * num_constants + facts[:, 1]).astype(np.uint32)
    others = facts[:, 2:].astype(np.uint32)
    size = 1 << max(2, int(np.ceil(np.log2(max(len(facts), 1) / 0.8))))
    salt = np.uint32(0)
    while True:
        slots = np.stack([_hash(salt, keys, others, side, size).astype(np.int64) for side in (0, 1)])
        owner = np.full((2, size), -1, np.int64)
        side = np.zeros(len(facts), np.int64)
        unassigned = np.arange(len(facts))
        for _ in range(500):
            target = side[unassigned], slots[side[unassigned], unassigned]
            evicted = owner[target]
            owner[target] = unassigned
            # The last of several facts with the same slot gets it; all others try their other slot.
            lost = unassigned[owner[target] != unassigned]
            unassigned = np.unique(np.concatenate([lost, evicted[evicted >= 0]]))
            if not len(unassigned):
                taken = owner >= 0
                table = np.zeros((2, size, facts.shape[1] - 1), np.int32)
                table[taken, 0] = keys[owner[taken]].astype(np.int32)
                table[taken, 1:] = others[owner[taken]].astype(np.int32)
                return table, salt
            side[unassigned] ^= 1
        salt = np.uint32((int(salt) + 0x27D4EB2F) % 2**32)
        if int(salt) % 4 == 0:
            size *= 2
