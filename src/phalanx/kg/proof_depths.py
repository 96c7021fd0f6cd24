"""Exact proof depths (lengths of shortest proofs) of many queries at once.

Goal-directed proving (`prove`) returns proof trees but handles one query at a time. This module returns only
lengths. It computes the costs of all goals that the queries lead to, with joins over sorted arrays. The cost
of a goal is the number of steps of its shortest proof.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Int32, Int64

from phalanx.kg.chaining import bind_head, check_rules, constant_columns, encoding_base
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

DEFAULT_MAX_DEPTH = 6
"""Default maximum number of steps of a proof."""
NO_PROOF = -1
"""Depth of a query that has no proof with at most the maximum number of steps."""
UNDECIDED = -2
"""Depth of a query whose search did not finish within the time limit."""

_QUERIES_PER_BATCH = 1024
"""Number of queries whose leave-one-out proofs are searched together. Larger batches need more memory."""
_INFINITE_COST = np.iinfo(np.int32).max // 64

Mode = str
"""Binding pattern of a goal, with one letter per argument.

`b` is a bound argument, `f` is a free variable, and `s` is a free variable that occurs at several positions.
With at most three arguments, at most one variable can repeat.
"""
Call = tuple[int, Mode]
"""A predicate and the binding pattern with which it is called."""


def compute_proof_depths(
    queries: Int32[np.ndarray, "queries atom"],
    facts: Int32[np.ndarray, "facts atom"],
    rules: Sequence[EncodedRule],
    max_depth: int = DEFAULT_MAX_DEPTH,
    time_limit: TimeLimit | None = None,
) -> Int32[np.ndarray, " queries"]:
    """Return the proof depth of each query: the number of steps of its shortest proof.

    A step is a step of the proof environment. It replaces the first goal by the body of a rule, or unifies it
    with a fact. Ground goals that are facts are dropped immediately and cost nothing. For example, a proof of
    `husband(a,b)` from the fact `wife(b,a)` by the rule `wife(b,a) -> husband(a,b)` has depth 1. If the body
    of a rule consists of two facts that share a new variable, the depth is 2. A query that is a fact is not
    used in its own proof. The environment's limits on the number of goals and successors do not apply.

    Args:
        queries: Encoded ground atoms.
        facts: Encoded ground atoms.
        rules: Encoded rules. All variables of a head must occur in the body.
        max_depth: Maximum number of steps of a proof.
        time_limit: Time limit for the search. Short proofs are searched first.

    Returns:
        The depth of each query. It is `NO_PROOF` if there is no proof with at most `max_depth` steps, and
        `UNDECIDED` if the time limit was reached before the search for a proof was complete.
    """
    if max_depth < 1:
        raise ValueError(f"max_depth must be at least 1, got {max_depth}")
    check_rules(rules)
    limit = TimeLimit() if time_limit is None else time_limit
    depths = np.full(len(queries), NO_PROOF, np.int32)
    for depth in [max_depth] if limit.seconds is None else range(1, max_depth + 1):
        open_queries = np.flatnonzero(depths < 0)
        try:
            depths[open_queries] = _depths_up_to(depth, queries[open_queries], facts, rules, limit)
        except TimeLimitExceeded:
            limit.log(
                f"out of time after {limit.elapsed:.0f} s: the search for proofs of {depth} and more steps "
                f"is incomplete for {len(open_queries)} of {len(queries)} queries"
            )
            return np.where(depths >= 0, depths, UNDECIDED).astype(np.int32)
    return depths


def _depths_up_to(
    max_depth: int, queries: np.ndarray, facts: np.ndarray, rules: Sequence[EncodedRule], limit: TimeLimit
) -> np.ndarray:
    base = encoding_base(rules, queries, facts)
    tables = _build_cost_tables(facts, rules, np.unique(queries[:, 0]).tolist(), base, max_depth - 1, limit)
    codes = encode_tuples(queries.T[1:], base)
    depths = np.full(len(queries), NO_PROOF, np.int32)
    is_fact = np.zeros(len(queries), bool)
    for predicate in np.unique(queries[:, 0]).tolist():
        rows = np.flatnonzero(queries[:, 0] == predicate)
        depths[rows], is_fact[rows] = _look_up(tables, predicate, codes[rows])
        # The tables end one step early: in the last step, only the queries themselves matter.
        rest = rows[(depths[rows] < 0) & ~is_fact[rows]]
        check = functools.partial(limit.check, f"queries of {max_depth} steps")
        call = predicate, _ground_mode(tables.arity)
        depths[rest] = _cheapest_rules(tables, call, codes[rest], max_depth, check)
    depths[is_fact] = _costs_without_query(tables, queries[is_fact, 0], codes[is_fact], max_depth, limit)
    return depths


# Costs of goals, bottom up


@dataclasses.dataclass(frozen=True)
class _AdornedRule:
    """A rule together with the binding patterns of its head and of its body atoms."""

    head: Call
    head_terms: tuple[int, ...]
    body: tuple[Call, ...]
    body_terms: tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class _CostTable:
    """Provable ground instances of a call, with their least costs and whether they are facts."""

    atoms: SortedTuples
    costs: np.ndarray
    is_fact: np.ndarray

    @property
    def min_cost(self) -> int:
        return int(self.costs.min())


@dataclasses.dataclass(frozen=True)
class _CostTables:
    """Cost tables of all calls, and the adorned rules by their head. All constants are less than `base`."""

    tables: Mapping[Call, _CostTable]
    rules: Mapping[Call, Sequence[_AdornedRule]]
    base: int
    arity: int


def _ground_mode(arity: int) -> Mode:
    return "b" * arity


def _fact_cost(mode: Mode) -> int:
    """Return the cost of proving a goal by a fact: 0 for a ground goal, and 1 for a goal with variables."""
    return 0 if set(mode) == {"b"} else 1


def _adorn(
    rules: Iterable[EncodedRule], predicates: Iterable[int], arity: int
) -> tuple[list[_AdornedRule], set[Call]]:
    """Find all calls that ground goals of some predicates lead to.

    Returns:
        The rules, adorned with each binding pattern in which their head is called, and all calls.
    """
    by_head: dict[int, list[EncodedRule]] = {}
    for rule in rules:
        by_head.setdefault(rule[0][0], []).append(rule)
    pending: list[Call] = [(predicate, _ground_mode(arity)) for predicate in sorted(set(predicates))]
    calls, adorned = set(pending), []
    while pending:
        call = pending.pop()
        for rule in by_head.get(call[0], ()):
            if (found := _adorn_rule(rule, call)) is None:
                continue
            adorned.append(found)
            for goal in found.body:
                if goal not in calls:
                    calls.add(goal)
                    pending.append(goal)
    return adorned, calls


def _adorn_rule(rule: EncodedRule, call: Call) -> _AdornedRule | None:
    """Return the rule adorned for a call; None if the head of the rule cannot match the call."""
    head, body = rule
    mode, terms = call[1], head[1:]
    # One variable of the call is at all positions marked `s`, so the head's terms there must be equal.
    shared = {term for term, letter in zip(terms, mode, strict=True) if letter == "s"}
    if len(constants := {term for term in shared if term >= 0}) > 1:
        return None
    if shared:
        representative = max(constants or shared)
        renamed = dict.fromkeys(shared, representative)
        terms = tuple(renamed.get(term, term) for term in terms)
        body = tuple((atom[0], *(renamed.get(term, term) for term in atom[1:])) for atom in body)
    bound = {term for term, letter in zip(terms, mode, strict=True) if letter == "b"}
    bound.update(term for atom in (head, *body) for term in atom[1:] if term >= 0)
    calls: list[Call] = []
    for predicate, *arguments in body:
        calls.append((predicate, _call_mode(arguments, bound)))
        bound.update(arguments)
    return _AdornedRule(call, terms, tuple(calls), tuple(atom[1:] for atom in body))


def _call_mode(arguments: Sequence[int], bound: set[int]) -> Mode:
    return "".join(
        "b" if argument in bound else "s" if arguments.count(argument) > 1 else "f" for argument in arguments
    )


class _CostLevels:
    """A cost table under construction, which stores its atoms grouped by cost."""

    def __init__(self, fact_codes: np.ndarray, cost: int, base: int, arity: int) -> None:
        self.base, self.arity = base, arity
        self.facts = fact_codes
        self.all = fact_codes
        self.by_cost = {cost: SortedTuples(fact_codes, base, arity)} if len(fact_codes) else {}

    def add(self, cost: int, parts: list[np.ndarray]) -> int:
        """Add atoms of a given cost unless they are already in the table; return how many were added."""
        codes = merge_codes(parts)
        codes = codes[find_sorted(self.all, codes) < 0]
        if len(codes):
            self.all = merge_codes([self.all, codes])
            same = [self.by_cost[cost].codes] if cost in self.by_cost else []
            self.by_cost[cost] = SortedTuples(merge_codes([*same, codes]), self.base, self.arity)
        return len(codes)

    def finish(self) -> _CostTable:
        costs = np.zeros(len(self.all), np.int64)
        for cost, atoms in self.by_cost.items():
            costs[find_sorted(self.all, atoms.codes)] = cost
        atoms = SortedTuples(self.all, self.base, self.arity)
        return _CostTable(atoms, costs, find_sorted(self.facts, self.all) >= 0)


def _build_cost_tables(
    facts: np.ndarray,
    rules: Sequence[EncodedRule],
    predicates: Iterable[int],
    base: int,
    max_cost: int,
    limit: TimeLimit,
) -> _CostTables:
    """Compute the costs, up to `max_cost`, of all goals that ground goals of some predicates lead to.

    Each rule adds one step, so atoms of one cost follow from atoms of lower costs. Costs are therefore
    computed in ascending order. For each cost and rule, there is one join for every way to distribute the
    cost over the atoms of the body.
    """
    arity = facts.shape[1] - 1
    adorned, calls = _adorn(rules, predicates, arity)
    levels = {
        call: _CostLevels(_fact_codes(facts, call, base), _fact_cost(call[1]), base, arity) for call in calls
    }
    longest_body = max((len(rule.body) for rule in adorned), default=0)
    last_new_cost = 1
    for cost in range(1, max_cost + 1):
        if cost > 1 + longest_body * last_new_cost:  # no combination of known costs reaches this cost
            break
        found: dict[Call, list[np.ndarray]] = {}
        for number, rule in enumerate(adorned, 1):
            check = functools.partial(limit.check, f"goals of {cost} steps: rule {number} of {len(adorned)}")
            for bindings, _ in _body_bindings(rule, levels, len(rule.body) - 1, cost - 1, check):
                codes = encode_tuples([bindings[term] for term in rule.head_terms], base)
                found.setdefault(rule.head, []).append(merge_codes([codes]))
        for call, parts in found.items():
            limit.check(f"goals of {cost} steps: merging the results of {len(found)} calls")
            if levels[call].add(cost, parts):
                last_new_cost = cost
    by_head: dict[Call, list[_AdornedRule]] = {}
    for rule in adorned:
        by_head.setdefault(rule.head, []).append(rule)
    tables = {}
    for call, level in levels.items():
        limit.check(f"tables of {len(levels)} calls")
        tables[call] = level.finish()
    return _CostTables(tables, by_head, base, arity)


def _fact_codes(facts: np.ndarray, call: Call, base: int) -> np.ndarray:
    rows = facts[facts[:, 0] == call[0]].astype(np.int64)
    shared = [1 + position for position, letter in enumerate(call[1]) if letter == "s"]
    for position in shared[1:]:
        rows = rows[rows[:, shared[0]] == rows[:, position]]
    return merge_codes([encode_tuples(rows.T[1:], base)])


def _body_bindings(
    rule: _AdornedRule, levels: Mapping[Call, _CostLevels], last: int, cost: int, check: Callable[[], None]
) -> Iterator[tuple[Bindings, int]]:
    """Yield bindings with which the body atoms up to index `last` are proved at exactly this total cost.

    Each item consists of the bindings and their number of rows.
    """
    if last < 0:
        if cost == 0:
            yield constant_columns((*rule.body_terms, rule.head_terms), 1), 1
        return
    terms = rule.body_terms[last]
    for atom_cost, atoms in levels[rule.body[last]].by_cost.items():
        if atom_cost <= cost:
            for bindings, num_rows in _body_bindings(rule, levels, last - 1, cost - atom_cost, check):
                for rows, indices in atoms.match(bindings, num_rows, terms):
                    check()
                    if len(rows):
                        yield atoms.bind(bindings, terms, rows, indices), len(rows)


def _look_up(tables: _CostTables, predicate: int, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the cost of each ground query, and whether it is a fact.

    The cost is -1 for facts and for atoms that are not in the table.
    """
    table = tables.tables[predicate, _ground_mode(tables.arity)]
    indices = table.atoms.find(codes)
    if not len(table.atoms):
        return indices, np.zeros(len(codes), bool)
    is_fact = (indices >= 0) & table.is_fact[indices]
    return np.where((indices >= 0) & ~is_fact, table.costs[indices], -1), is_fact


# Proofs top down: the last step, and queries that are facts and may not use themselves


@dataclasses.dataclass(frozen=True)
class _BodyProofs:
    """Instances of one rule's body that prove some goals."""

    goal: np.ndarray
    """[instances]: index of the goal that each instance proves."""
    atoms: np.ndarray
    """[instances, body atoms]: index of each body atom in its cost table."""
    costs: np.ndarray
    """[instances, body atoms]: least cost of each body atom."""


def _cheapest_rules(
    tables: _CostTables,
    call: Call,
    codes: Int64[np.ndarray, " goals"],
    max_cost: int,
    check: Callable[[], None],
) -> Int64[np.ndarray, " goals"]:
    """Return the least cost of proving each goal by a rule; -1 if it is more than `max_cost`."""
    best = np.full(len(codes), _INFINITE_COST)
    for rule in tables.rules.get(call, ()):
        for proofs in _prove_bodies(tables, rule, codes, np.full(len(codes), max_cost), check):
            np.minimum.at(best, proofs.goal, 1 + proofs.costs.sum(axis=1))
    return np.where(best <= max_cost, best, -1)


def _costs_without_query(
    tables: _CostTables,
    predicates: Int32[np.ndarray, " queries"],
    codes: Int64[np.ndarray, " queries"],
    max_cost: int,
    limit: TimeLimit,
) -> Int64[np.ndarray, " queries"]:
    """Return the cost of each ground query without using it as a fact; -1 if it is more than `max_cost`.

    All queries are facts in the cost tables, so the costs in the tables are lower bounds. For each query, a
    budget starts at the lower bound of its best rule and grows by one step at a time. All rule instances
    below the query that fit into the budget and do not use the query are collected, and the cheapest proof
    that they contain is computed. It is optimal as soon as it fits into the budget.
    """
    answers = np.full(len(codes), -1)
    for start in range(0, len(codes), _QUERIES_PER_BATCH):
        batch = slice(start, start + _QUERIES_PER_BATCH)
        activity = f"proofs of up to {max_cost} steps without the query: query {start + 1} of {len(codes)}"
        check = functools.partial(limit.check, activity)
        answers[batch] = _LeaveOneOutSearch(tables, predicates[batch], codes[batch], check).run(max_cost)
    return answers


class _LeaveOneOutSearch:
    """Searches for proofs of several queries, each in its own "world" in which the query is not a fact.

    A node is a goal in a world, encoded as one number. An edge is a rule instance that proves the goal.
    """

    def __init__(
        self, tables: _CostTables, predicates: np.ndarray, codes: np.ndarray, check: Callable[[], None]
    ) -> None:
        self.tables, self.predicates, self.codes, self.check = tables, predicates, codes, check
        self.calls = list(tables.tables)
        self.call_numbers = {call: number for number, call in enumerate(self.calls)}
        self.num_codes = tables.base**tables.arity
        self.ground = _ground_mode(tables.arity)
        if len(codes) * len(self.calls) * self.num_codes >= 1 << 63:
            raise ValueError(
                f"{tables.base} constants are too many for the depths of atoms with {tables.arity} arguments"
            )

    def run(self, max_cost: int) -> np.ndarray:
        answers = np.full(len(self.codes), -1)
        budgets = np.full(len(self.codes), max_cost)
        for predicate in np.unique(self.predicates):
            rows = np.flatnonzero(self.predicates == predicate)
            call = int(predicate), self.ground
            bounds = _cheapest_rules(self.tables, call, self.codes[rows], max_cost, self.check)
            budgets[rows] = np.where(bounds < 0, max_cost + 1, bounds)
        while len(pending := np.flatnonzero((answers < 0) & (budgets <= max_cost))):
            costs = self._solve(pending, budgets[pending])
            within = costs <= budgets[pending]
            answers[pending[within]] = costs[within]
            budgets[pending] += 1
        return answers

    def _solve(self, worlds: np.ndarray, budgets: np.ndarray) -> np.ndarray:
        """Return the least cost of each world's query among the proofs that fit into its budget."""
        roots = np.empty(len(worlds), np.int64)
        for predicate in np.unique(self.predicates[worlds]):
            rows = self.predicates[worlds] == predicate
            call = int(predicate), self.ground
            roots[rows] = self._encode_nodes(call, worlds[rows], self.codes[worlds[rows]])
        edges = list(self._edges(roots, budgets))
        nodes = merge_codes([roots, *(heads for heads, _, _ in edges)])
        costs = np.full(len(nodes) + 1, _INFINITE_COST)  # the last entry is a goal without a proof
        indexed = [
            (find_sorted(nodes, heads), np.where(bodies < 0, -2, find_sorted(nodes, bodies)), fixed_cost)
            for heads, bodies, fixed_cost in edges
        ]
        while True:
            before = costs.copy()
            for heads, bodies, fixed_cost in indexed:
                # -2 marks a fact, whose cost is part of `fixed_cost`; -1 is the goal without a proof.
                open_costs = np.where(bodies == -2, 0, costs[bodies])
                total = fixed_cost + open_costs.sum(axis=1)
                np.minimum.at(costs, heads, np.minimum(total, _INFINITE_COST))
            if np.array_equal(before, costs):
                return costs[find_sorted(nodes, roots)]

    def _edges(
        self, nodes: np.ndarray, budgets: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield all edges below some nodes that fit into the budgets.

        Each item consists of the heads, the nodes of their body atoms (-1 for facts), and the cost of the
        rule and of the facts in its body.
        """
        seen, seen_budget = np.zeros(0, np.int64), np.zeros(0, np.int64)
        while len(nodes):
            nodes, budgets = _max_budgets(nodes, budgets)
            known = find_sorted(seen, nodes)
            fresh = known < 0 if not len(seen) else (known < 0) | (budgets > seen_budget[known])
            nodes, budgets = nodes[fresh], budgets[fresh]
            seen, seen_budget = _max_budgets(
                np.concatenate([seen, nodes]), np.concatenate([seen_budget, budgets])
            )
            next_nodes, next_budgets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
            worlds, rest = np.divmod(nodes, self.num_codes * len(self.calls))
            numbers, codes = np.divmod(rest, self.num_codes)
            for number in np.unique(numbers):
                mask = numbers == number
                call = self.calls[number]
                for heads, bodies, fixed_cost, allowed in self._expand(
                    call, worlds[mask], codes[mask], budgets[mask]
                ):
                    yield nodes[mask][heads], bodies, fixed_cost
                    next_nodes.append(bodies[bodies >= 0])
                    next_budgets.append(allowed[bodies >= 0])
            nodes, budgets = np.concatenate(next_nodes), np.concatenate(next_budgets)

    def _expand(
        self, call: Call, worlds: np.ndarray, codes: np.ndarray, budgets: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        for rule in self.tables.rules.get(call, ()):
            for proofs in _prove_bodies(self.tables, rule, codes, budgets, self.check):
                world = worlds[proofs.goal]
                bodies = np.full(proofs.atoms.shape, -1)
                fixed_cost = np.ones(len(world), np.int64)
                allowed = (
                    budgets[proofs.goal, None] - 1 - proofs.costs.sum(axis=1, keepdims=True) + proofs.costs
                )
                usable = np.ones(len(world), bool)
                for position, goal in enumerate(rule.body):
                    table = self.tables.tables[goal]
                    indices = proofs.atoms[:, position]
                    code, is_fact = table.atoms.codes[indices], table.is_fact[indices]
                    # No shortest proof needs its own query, neither as a fact nor as a goal.
                    usable &= (self.predicates[world] != goal[0]) | (self.codes[world] != code)
                    bodies[:, position] = np.where(is_fact, -1, self._encode_nodes(goal, world, code))
                    fixed_cost += np.where(is_fact, proofs.costs[:, position], 0)
                yield proofs.goal[usable], bodies[usable], fixed_cost[usable], allowed[usable]

    def _encode_nodes(self, call: Call, worlds: np.ndarray, codes: np.ndarray) -> np.ndarray:
        return (worlds.astype(np.int64) * len(self.calls) + self.call_numbers[call]) * self.num_codes + codes


def _prove_bodies(
    tables: _CostTables,
    rule: _AdornedRule,
    codes: np.ndarray,
    budgets: np.ndarray,
    check: Callable[[], None],
) -> Iterator[_BodyProofs]:
    """Yield all instances of a rule that prove some goals at a cost within the budget of the goal."""
    body = [tables.tables[call] for call in rule.body]
    if not all(len(table.atoms) for table in body):
        return
    columns = decode_tuples(codes, tables.base, tables.arity)
    goals, bindings = bind_head(rule.head_terms, rule.body_terms, columns)
    later_cost = [sum(table.min_cost for table in body[position + 1 :]) for position in range(len(body))]

    def extend(
        position: int, goals: np.ndarray, bindings: Bindings, atoms: list[np.ndarray], costs: list[np.ndarray]
    ) -> Iterator[_BodyProofs]:
        if position == len(body):
            yield _BodyProofs(goals, np.stack(atoms, axis=1), np.stack(costs, axis=1))
            return
        table, terms = body[position], rule.body_terms[position]
        remaining = budgets[goals] - 1 - later_cost[position] - sum(costs, np.zeros(len(goals), np.int64))
        for rows, indices in table.atoms.match(bindings, len(goals), terms):
            check()
            affordable = table.costs[indices] <= remaining[rows]
            rows, indices = rows[affordable], indices[affordable]
            if len(rows):
                yield from extend(
                    position + 1,
                    goals[rows],
                    table.atoms.bind(bindings, terms, rows, indices),
                    [*(column[rows] for column in atoms), indices],
                    [*(column[rows] for column in costs), table.costs[indices]],
                )

    if len(goals):
        yield from extend(0, goals, bindings, [], [])


def _max_budgets(nodes: np.ndarray, budgets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct nodes in ascending order, each with the largest of its budgets."""
    unique, inverse = np.unique(nodes, return_inverse=True)
    largest = np.full(len(unique), -1)
    np.maximum.at(largest, inverse, budgets)
    return unique, largest
