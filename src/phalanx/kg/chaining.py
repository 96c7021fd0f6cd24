"""Forward chaining: what facts and rules entail, in how many rounds, and how deep the shortest proofs are.

All of it is exact. The joins are in `joins`, the costs of goals in `cost_tables`, and the queries that may
not use themselves in `leave_one_out`.
"""

import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int32

from phalanx.kg.cost_tables import (
    CostTables,
    all_bound,
    bind_head,
    check_rules,
    constant_columns,
    cost_tables,
)
from phalanx.kg.joins import Bindings, SortedTuples, codes_of, columns_of, merged, places_in
from phalanx.kg.leave_one_out import cheapest_rules, costs_without_themselves
from phalanx.kg.time_limit import TimeLimit, TimeLimitExceeded
from phalanx.kg.vocabulary import EncodedRule

DEFAULT_MAX_DEPTH = 6


def proof_depths(
    queries: Int32[np.ndarray, "queries atom"],
    facts: Int32[np.ndarray, "facts atom"],
    rules: Sequence[EncodedRule],
    max_depth: int = DEFAULT_MAX_DEPTH,
) -> Int32[np.ndarray, " queries"]:
    """The length of each query's shortest proof, -1 where none has at most `max_depth` steps.

    A step is a transition of the proof environment: the first goal is replaced by the body of a rule, or
    unified with a fact; ground goals that are facts vanish at once and cost nothing. So `husband(a,b)` by
    `wife(b,a) -> husband(a,b)` has depth 1, and a rule with a body of two facts that share a new variable has
    depth 2. A query that is a fact may not use itself: its depth is that of a proof without it. Limits of
    the environment on the atoms and the successors of a state are not regarded.
    """
    return depths_in_time(queries, facts, rules, max_depth, TimeLimit())[0]


def depths_in_time(
    queries: Int32[np.ndarray, "queries atom"],
    facts: Int32[np.ndarray, "facts atom"],
    rules: Sequence[EncodedRule],
    max_depth: int,
    budget: TimeLimit,
) -> tuple[Int32[np.ndarray, " queries"], Bool[np.ndarray, " queries"]]:
    """The depths of `proof_depths` as far as the time suffices, and which of them are settled.

    Depths are looked for in turn, the small ones first; -1 that is settled means no proof within `max_depth`.
    """
    if max_depth < 1:
        raise ValueError(f"max_depth must be at least 1, got {max_depth}")
    check_rules(rules)
    depths = np.full(len(queries), -1, np.int32)
    for limit in [max_depth] if budget.seconds is None else range(1, max_depth + 1):
        left = np.flatnonzero(depths < 0)
        try:
            depths[left] = _depths_to(limit, queries[left], facts, rules, budget)
        except TimeLimitExceeded:
            budget.say(
                f"out of time after {budget.spent:.0f} s: proofs of {limit} and more steps of {len(left)} of "
                f"{len(queries)} queries were not looked for to the end"
            )
            return depths, depths >= 0
    return depths, np.ones(len(queries), bool)


def _depths_to(
    max_depth: int, queries: np.ndarray, facts: np.ndarray, rules: Sequence[EncodedRule], budget: TimeLimit
) -> np.ndarray:
    size = _size(rules, queries, facts)
    tables = cost_tables(facts, rules, np.unique(queries[:, 0]).tolist(), size, max_depth - 1, budget)
    codes = codes_of(queries.T[1:], size)
    depths = np.full(len(queries), -1, np.int32)
    own_fact = np.zeros(len(queries), bool)
    for predicate in np.unique(queries[:, 0]).tolist():
        mine = np.flatnonzero(queries[:, 0] == predicate)
        depths[mine], own_fact[mine] = _table_depths(tables, predicate, codes[mine])
        # The tables end one step short: in the last step only the queries themselves are of interest.
        deepest = mine[(depths[mine] < 0) & ~own_fact[mine]]
        check = functools.partial(budget.check, f"queries of {max_depth} steps")
        depths[deepest] = cheapest_rules(
            tables, (predicate, all_bound(tables.arity)), codes[deepest], max_depth, check
        )
    depths[own_fact] = costs_without_themselves(
        tables, queries[own_fact, 0], codes[own_fact], max_depth, budget
    )
    return depths


def _table_depths(tables: CostTables, predicate: int, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Depths of the queries that a table has, -1 for the others and for facts; and which are facts."""
    table = tables.tables[predicate, all_bound(tables.arity)]
    at = table.atoms.places(codes)
    if not len(table.atoms):
        return at, np.zeros(len(codes), bool)
    facts = (at >= 0) & table.facts[at]
    return np.where((at >= 0) & ~facts, table.costs[at], -1), facts


def entail(
    facts: Int32[np.ndarray, "facts atom"], rules: Sequence[EncodedRule], max_rounds: int | None = None
) -> tuple[Int32[np.ndarray, "atoms atom"], Int32[np.ndarray, " atoms"]]:
    """Every atom that follows within so many rounds (in all, without a limit), sorted, and its first round.

    In a round every rule is applied once to all atoms so far; facts have round 0.
    """
    check_rules(rules)
    rounds = _Rounds(facts, rules, _size(rules, facts))
    rounds.run(max_rounds)
    return rounds.atoms()


def chaining_rounds(
    queries: Int32[np.ndarray, "queries atom"],
    facts: Int32[np.ndarray, "facts atom"],
    rules: Sequence[EncodedRule],
    max_rounds: int | None = None,
    budget: TimeLimit | None = None,
) -> Int32[np.ndarray, " queries"]:
    """The round in which each query first follows, -1 for never (within the limit) and 0 for facts.

    With a limit the last round looks at the queries alone, so that it does not build all that would follow.
    When the budget's time is up, the limit is the last round that was finished; it is said which.
    """
    check_rules(rules)
    size = _size(rules, queries, facts)
    rounds = _Rounds(facts, rules, size)
    if not rounds.run(None if max_rounds is None else max_rounds - 1, budget):
        max_rounds = None
    codes = codes_of(queries.T[1:], size)
    found = np.full(len(queries), -1, np.int32)
    for predicate in np.unique(queries[:, 0]).tolist():
        mine = np.flatnonzero(queries[:, 0] == predicate)
        found[mine] = rounds.first_round(predicate, codes[mine])
        if max_rounds:
            rest = mine[found[mine] < 0]
            found[rest[rounds.follows(predicate, codes[rest])]] = max_rounds
    return found


class _Rounds:
    """Atoms by predicate and round: those of the round before last and earlier, of the last, and of all."""

    def __init__(self, facts: np.ndarray, rules: Sequence[EncodedRule], size: int) -> None:
        self.rules, self.size, self.arity = rules, size, facts.shape[1] - 1
        self.budget, self.doing = TimeLimit(), "forward chaining"
        predicates = {atom[0] for head, body in rules for atom in (head, *body)}
        predicates.update(np.unique(facts[:, 0]).tolist())
        self.last = {}
        for predicate in sorted(predicates):
            rows = facts[facts[:, 0] == predicate].astype(np.int64)
            self.last[predicate] = self._sorted(merged([codes_of(rows.T[1:], size)]))
        self.all = dict(self.last)
        self.before = {predicate: self._sorted(np.zeros(0, np.int64)) for predicate in predicates}
        self.by_round = {predicate: [atoms.codes] for predicate, atoms in self.last.items()}

    def _sorted(self, codes: np.ndarray) -> SortedTuples:
        return SortedTuples(codes, self.size, self.arity)

    def run(self, max_rounds: int | None, budget: TimeLimit | None = None) -> bool:
        """Rounds until nothing new comes, or so many; whether the time sufficed for them."""
        done = 0
        self.budget = TimeLimit() if budget is None else budget
        try:
            while (max_rounds is None or done < max_rounds) and any(map(len, self.last.values())):
                self._next_round(done + 1)
                done += 1
        except TimeLimitExceeded:
            self.budget.say(
                f"out of time after {self.budget.spent:.0f} s: what follows in more than {done} rounds of "
                "forward chaining is left out"
            )
            return False
        return True

    def _next_round(self, number: int) -> None:
        """A new atom needs one of the last round in its body: each place is tried with what is new."""
        found: dict[int, list[np.ndarray]] = {}
        for place, (head, body) in enumerate(self.rules, 1):
            self.doing = f"round {number} of forward chaining: rule {place} of {len(self.rules)}"
            for new in range(len(body)):
                if not len(self.last[body[new][0]]):
                    continue
                sources = [
                    (self.before if at < new else self.last if at == new else self.all)[atom[0]]
                    for at, atom in enumerate(body)
                ]
                terms = [atom[1:] for atom in body]
                start = constant_columns((*terms, head[1:]), 1)
                codes = self._heads(head[1:], terms, sources, start, 1)
                found.setdefault(head[0], []).append(codes)
        self.before = self.all
        self.all, self.last = dict(self.all), {}
        for predicate in self.before:
            codes = merged(found.get(predicate, []))
            codes = codes[places_in(self.before[predicate].codes, codes) < 0]
            self.last[predicate] = self._sorted(codes)
            self.by_round[predicate].append(codes)
            if len(codes):
                self.all[predicate] = self._sorted(merged([self.before[predicate].codes, codes]))

    def _heads(
        self,
        head: tuple[int, ...],
        body: Sequence[tuple[int, ...]],
        sources: Sequence[SortedTuples],
        bindings: Bindings,
        count: int,
    ) -> np.ndarray:
        """The heads that follow from rows of bindings and the rest of a body, sorted, each once."""
        self.budget.check(self.doing)
        if not body:
            return merged([codes_of([bindings[term] for term in head], self.size)])
        atoms, variables = sources[0], body[0]
        return merged(
            [
                self._heads(head, body[1:], sources[1:], atoms.bind(bindings, variables, rows, at), len(rows))
                for rows, at in atoms.match(bindings, count, variables)
                if len(rows)
            ]
        )

    def follows(self, predicate: int, codes: np.ndarray) -> np.ndarray:
        """Whether each ground atom follows by one rule from all atoms so far."""
        found = np.zeros(len(codes), bool)
        for head, body in self.rules:
            if head[0] == predicate and len(codes):
                terms = [atom[1:] for atom in body]
                columns = columns_of(codes, self.size, self.arity)
                asked, bindings = bind_head(head[1:], terms, columns)
                sources = [self.all[atom[0]] for atom in body]
                heads = self._heads(head[1:], terms, sources, bindings, len(asked))
                found |= places_in(heads, codes) >= 0
        return found

    def first_round(self, predicate: int, codes: np.ndarray) -> np.ndarray:
        """The round of each atom, -1 for those that no round had."""
        found = np.full(len(codes), -1)
        for number, known in enumerate(self.by_round.get(predicate, [])):
            found[places_in(known, codes) >= 0] = number
        return found

    def atoms(self) -> tuple[np.ndarray, np.ndarray]:
        """All atoms as sorted rows, and the round of each."""
        rows, numbers = [np.zeros((0, 1 + self.arity), np.int32)], [np.zeros(0, np.int32)]
        for predicate, atoms in self.all.items():
            columns = (np.full(len(atoms), predicate), *atoms.columns)
            rows.append(np.stack(columns, axis=1).astype(np.int32))
            numbers.append(self.first_round(predicate, atoms.codes).astype(np.int32))
        return np.concatenate(rows), np.concatenate(numbers)


def _size(rules: Sequence[EncodedRule], *atoms: np.ndarray) -> int:
    """One more than the greatest constant, so that the terms of an atom make one number."""
    terms = (max(atom[1:]) for head, body in rules for atom in (head, *body))
    size = 1 + max(0, *(int(rows[:, 1:].max(initial=0)) for rows in atoms), *terms)
    arity = atoms[0].shape[1] - 1
    if size**arity >= 1 << 62:
        raise ValueError(f"{size} constants are too many for chaining over atoms with {arity} arguments")
    return size
