"""Forward chaining: computes all atoms that follow from facts and rules.

Chaining proceeds in rounds. Facts belong to round 0. Round n adds the atoms that one application of a rule
derives from atoms of earlier rounds.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int32

from phalanx.kg.joins import (
    Bindings,
    SortedTuples,
    decode_tuples,
    encode_tuples,
    find_sorted,
    merge_codes,
)
from phalanx.kg.time_limit import TimeLimit, TimeLimitExceeded
from phalanx.kg.vocabulary import EncodedRule


def entail(
    facts: Int32[np.ndarray, "facts atom"], rules: Sequence[EncodedRule], max_rounds: int | None = None
) -> tuple[Int32[np.ndarray, "atoms atom"], Int32[np.ndarray, " atoms"]]:
    """Compute all atoms that follow from facts and rules.

    Each round applies every rule once to all atoms found so far.

    Args:
        facts: Facts, encoded by `Vocabulary.encode`.
        rules: Rules, encoded by `Vocabulary.encode_rules`.
        max_rounds: Maximum number of rounds. If it is None, chaining continues until nothing new follows.

    Returns:
        The facts and all atoms that follow from them, as one sorted array of encoded atoms, and the round in
        which each atom was first derived (0 for facts).
    """
    check_rules(rules)
    rounds = _Rounds(facts, rules, encoding_base(rules, facts))
    rounds.run(max_rounds)
    return rounds.atoms()


def chaining_rounds(
    queries: Int32[np.ndarray, "queries atom"],
    facts: Int32[np.ndarray, "facts atom"],
    rules: Sequence[EncodedRule],
    max_rounds: int | None = None,
    time_limit: TimeLimit | None = None,
) -> Int32[np.ndarray, " queries"]:
    """Return the round of forward chaining in which each query is first derived.

    Each round applies every rule once to all atoms found so far. If `max_rounds` is set, this function is
    faster than `entail`, because the last round only checks the queries instead of deriving all atoms.

    Args:
        queries: Ground atoms, encoded by `Vocabulary.encode`.
        facts: Facts, encoded by `Vocabulary.encode`.
        rules: Rules, encoded by `Vocabulary.encode_rules`.
        max_rounds: Maximum number of rounds. If it is None, chaining continues until nothing new follows.
        time_limit: Time limit for chaining. When it is reached, a message is logged, and the result is based
            on the completed rounds. None means no limit.

    Returns:
        The round of each query: 0 for facts, and -1 for queries that were not derived within the limits.
    """
    check_rules(rules)
    base = encoding_base(rules, queries, facts)
    rounds = _Rounds(facts, rules, base)
    if not rounds.run(None if max_rounds is None else max_rounds - 1, time_limit):
        max_rounds = None
    codes = encode_tuples(queries.T[1:], base)
    found = np.full(len(queries), -1, np.int32)
    for predicate in np.unique(queries[:, 0]).tolist():
        rows = np.flatnonzero(queries[:, 0] == predicate)
        found[rows] = rounds.first_round(predicate, codes[rows])
        if max_rounds:
            rest = rows[found[rows] < 0]
            found[rest[rounds.follows(predicate, codes[rest])]] = max_rounds
    return found


def check_rules(rules: Sequence[EncodedRule]) -> None:
    """Raise `ValueError` if a rule has a variable in its head that does not occur in its body."""
    for number, rule in enumerate(rules):
        if not can_chain([rule]):
            raise ValueError(
                f"rule {number} has a variable in its head that does not occur in its body, so its head "
                "would be true of every constant; forward chaining needs every head variable in the body"
            )


def can_chain(rules: Sequence[EncodedRule]) -> bool:
    """Return whether forward chaining can use the rules: all head variables must occur in the rule's body."""
    return all(
        {term for term in head[1:] if term < 0} <= {term for atom in body for term in atom[1:]}
        for head, body in rules
    )


def constant_columns(terms: Iterable[tuple[int, ...]], num_rows: int) -> Bindings:
    """Create bindings with one column for each constant that occurs in the given atoms.

    Args:
        terms: Terms of each atom, without the predicate. Variables are ignored.
        num_rows: Number of rows in the bindings. All rows of a column contain the same constant.
    """
    return {term: np.full(num_rows, term, np.int64) for atom in terms for term in atom if term >= 0}


def bind_head(
    head: tuple[int, ...], body: Iterable[tuple[int, ...]], columns: Sequence[np.ndarray]
) -> tuple[np.ndarray, Bindings]:
    """Unify the head of a rule with ground goals.

    Args:
        head: Terms of the head, without the predicate.
        body: Terms of each body atom, without the predicate. Only their constants are used.
        columns: Arguments of the goals, as one array per argument position.

    Returns:
        The indices of the goals that unify with the head, and bindings with one row for each of these goals.
        The bindings have one column for each term of the head and each constant of the body.
    """
    unifies = np.full(len(columns[0]), True)
    for position, (term, column) in enumerate(zip(head, columns, strict=True)):
        if term >= 0:
            unifies &= column == term
        elif (first := head.index(term)) < position:
            unifies &= column == columns[first]
    goals = np.flatnonzero(unifies)
    bindings = constant_columns(body, len(goals))
    return goals, bindings | {term: column[goals] for term, column in zip(head, columns, strict=True)}


def encoding_base(rules: Sequence[EncodedRule], *atoms: np.ndarray) -> int:
    """Return the base for encoding the arguments of an atom as one number; see `encode_tuples`.

    The base is one more than the largest constant id in the rules and atoms. Raises `ValueError` if the
    encoded numbers would not fit into 64 bits.
    """
    terms = (max(atom[1:]) for head, body in rules for atom in (head, *body))
    base = 1 + max(0, *(int(rows[:, 1:].max(initial=0)) for rows in atoms), *terms)
    arity = atoms[0].shape[1] - 1
    if base**arity >= 1 << 62:
        raise ValueError(f"{base} constants are too many for chaining over atoms with {arity} arguments")
    return base


class _Rounds:
    """State of semi-naive forward chaining.

    For each predicate, `last` contains the atoms that were new in the last round, `before` contains the atoms
    that were found earlier, and `all` contains both. `by_round` lists the encoded atoms that were new in each
    round.
    """

    def __init__(self, facts: np.ndarray, rules: Sequence[EncodedRule], base: int) -> None:
        self.rules, self.base, self.arity = rules, base, facts.shape[1] - 1
        self.time_limit, self.activity = TimeLimit(), "forward chaining"
        predicates = {atom[0] for head, body in rules for atom in (head, *body)}
        predicates.update(np.unique(facts[:, 0]).tolist())
        codes = encode_tuples(facts.T[1:], base)
        self.last = {p: self._tuples(np.unique(codes[facts[:, 0] == p])) for p in sorted(predicates)}
        self.all = dict(self.last)
        self.before = {predicate: self._tuples(np.zeros(0, np.int64)) for predicate in predicates}
        self.by_round = {predicate: [atoms.codes] for predicate, atoms in self.last.items()}

    def _tuples(self, codes: np.ndarray) -> SortedTuples:
        return SortedTuples(codes, self.base, self.arity)

    def run(self, max_rounds: int | None, time_limit: TimeLimit | None = None) -> bool:
        """Run rounds of forward chaining until nothing new follows or a limit is reached.

        Returns False if the time limit was reached, and True otherwise.
        """
        completed = 0
        self.time_limit = TimeLimit() if time_limit is None else time_limit
        try:
            while (max_rounds is None or completed < max_rounds) and any(map(len, self.last.values())):
                self._next_round(completed + 1)
                completed += 1
        except TimeLimitExceeded:
            self.time_limit.log(
                f"out of time after {self.time_limit.elapsed:.0f} s: atoms that need more than {completed} "
                "rounds of forward chaining are left out"
            )
            return False
        return True

    def _next_round(self, number: int) -> None:
        """Run one round: apply each rule once to the atoms found so far.

        Only rule applications that use at least one atom that was new in the previous round are considered.
        All other applications were already considered in earlier rounds.

        Args:
            number: Round number, counted from 1. It is only used in progress messages.
        """
        found: dict[int, list[np.ndarray]] = {}
        for rule_number, (head, body) in enumerate(self.rules, 1):
            self.activity = f"round {number} of forward chaining: rule {rule_number} of {len(self.rules)}"
            for new in range(len(body)):
                if not len(self.last[body[new][0]]):
                    continue
                sources = [
                    (self.before if position < new else self.last if position == new else self.all)[atom[0]]
                    for position, atom in enumerate(body)
                ]
                terms = [atom[1:] for atom in body]
                bindings = constant_columns((*terms, head[1:]), 1)
                codes = self._heads(head[1:], terms, sources, bindings, 1)
                found.setdefault(head[0], []).append(codes)
        self.before = self.all
        self.all, self.last = dict(self.all), {}
        for predicate in self.before:
            codes = merge_codes(found.get(predicate, []))
            codes = codes[find_sorted(self.before[predicate].codes, codes) < 0]
            self.last[predicate] = self._tuples(codes)
            self.by_round[predicate].append(codes)
            if len(codes):
                self.all[predicate] = self._tuples(merge_codes([self.before[predicate].codes, codes]))

    def _heads(
        self,
        head: tuple[int, ...],
        body: Sequence[tuple[int, ...]],
        sources: Sequence[SortedTuples],
        bindings: Bindings,
        num_rows: int,
    ) -> np.ndarray:
        """Match the body atoms of a rule recursively, and return the resulting heads, encoded and sorted.

        Args:
            head: Terms of the head, without the predicate.
            body: Terms of each body atom that has not been matched yet, without the predicate.
            sources: For each of these body atoms, the set of atoms that it is matched with.
            bindings: Values of the terms that are already bound.
            num_rows: Number of rows in the bindings.
        """
        self.time_limit.check(self.activity)
        if not body:
            return merge_codes([encode_tuples([bindings[term] for term in head], self.base)])
        (atoms, *others), (terms, *other_terms) = sources, body
        matches = (match for match in atoms.match(bindings, num_rows, terms) if len(match[0]))
        chunks = ((atoms.bind(bindings, terms, rows, indices), len(rows)) for rows, indices in matches)
        return merge_codes([self._heads(head, other_terms, others, *chunk) for chunk in chunks])

    def follows(self, predicate: int, codes: np.ndarray) -> np.ndarray:
        """Return whether each atom follows from the atoms found so far by a single rule application.

        Args:
            predicate: Predicate of the atoms.
            codes: Encoded arguments of each atom; see `encode_tuples`.
        """
        found = np.zeros(len(codes), bool)
        for head, body in self.rules:
            if head[0] == predicate and len(codes):
                terms = [atom[1:] for atom in body]
                goals, bindings = bind_head(head[1:], terms, decode_tuples(codes, self.base, self.arity))
                sources = [self.all[atom[0]] for atom in body]
                heads = self._heads(head[1:], terms, sources, bindings, len(goals))
                found |= find_sorted(heads, codes) >= 0
        return found

    def first_round(self, predicate: int, codes: np.ndarray) -> np.ndarray:
        """Return the round in which each atom was first derived; -1 for atoms that were not derived.

        Args:
            predicate: Predicate of the atoms.
            codes: Encoded arguments of each atom; see `encode_tuples`.
        """
        found = np.full(len(codes), -1)
        for number, known in enumerate(self.by_round.get(predicate, [])):
            found[find_sorted(known, codes) >= 0] = number
        return found

    def atoms(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all atoms found so far as sorted rows, and the round in which each was first derived."""
        rows, rounds = [np.zeros((0, 1 + self.arity), np.int32)], [np.zeros(0, np.int32)]
        for predicate, atoms in self.all.items():
            columns = (np.full(len(atoms), predicate), *atoms.columns)
            rows.append(np.stack(columns, axis=1).astype(np.int32))
            rounds.append(self.first_round(predicate, atoms.codes).astype(np.int32))
        return np.concatenate(rows), np.concatenate(rounds)
