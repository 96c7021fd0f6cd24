"""Proofs from the goal down: the bodies that a goal can have, and proofs that avoid their own query.

The costs that bound the search come from `cost_tables`.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Int32, Int64

from phalanx.kg.cost_tables import AdornedRule, Call, CostTables, all_bound
from phalanx.kg.joins import Bindings, columns_of, merged, places_in
from phalanx.kg.time_limit import TimeLimit

QUERIES_AT_ONCE = 1024
"""Queries whose proofs are searched together; more of them need more memory."""

_NEVER = np.iinfo(np.int32).max // 64


@dataclasses.dataclass(frozen=True)
class _Bodies:
    """Ways to prove goals by one rule: a goal's row, and its body's atoms as places in their tables."""

    goal: np.ndarray
    atoms: np.ndarray
    """[ways, atoms of the body]"""
    costs: np.ndarray
    """What each of those atoms costs at least, in the same shape."""


def cheapest_rules(
    tables: CostTables,
    call: Call,
    codes: Int64[np.ndarray, " goals"],
    limit: int,
    check: Callable[[], None],
) -> Int64[np.ndarray, " goals"]:
    """What each goal costs by its best rule, at most `limit`; -1 where it costs more."""
    best = np.full(len(codes), _NEVER)
    for rule in tables.rules.get(call, ()):
        for bodies in _rule_bodies(tables, rule, codes, np.full(len(codes), limit), check):
            np.minimum.at(best, bodies.goal, 1 + bodies.costs.sum(axis=1))
    return np.where(best <= limit, best, -1)


def costs_without_themselves(
    tables: CostTables,
    predicate: Int32[np.ndarray, " queries"],
    codes: Int64[np.ndarray, " queries"],
    limit: int,
    budget: TimeLimit,
) -> Int64[np.ndarray, " queries"]:
    """The cost of each ground query when it is no fact itself, at most `limit`; -1 where it costs more.

    The tables' costs, in which every query is a fact, are lower bounds. So for each query a budget grows from
    the bound of its best rule; within the budget all bodies of all goals below it are gathered, leaving out
    those that need the query, and the cheapest proof among them is found. It is exact once it is within.
    """
    answers = np.full(len(codes), -1)
    for start in range(0, len(codes), QUERIES_AT_ONCE):
        some = slice(start, start + QUERIES_AT_ONCE)
        doing = f"proofs of up to {limit} steps without the query, from query {start + 1} of {len(codes)}"
        check = functools.partial(budget.check, doing)
        answers[some] = _Search(tables, predicate[some], codes[some], check).run(limit)
    return answers


class _Search:
    """Proofs of some queries, each in a world of its own in which it is no fact.

    A node is a goal in a world, as one number; an edge is a way to prove it by a rule.
    """

    def __init__(
        self, tables: CostTables, predicate: np.ndarray, codes: np.ndarray, check: Callable[[], None]
    ) -> None:
        self.tables, self.predicate, self.codes, self.check = tables, predicate, codes, check
        self.calls = list(tables.tables)
        self.number = {call: number for number, call in enumerate(self.calls)}
        self.span = tables.size**tables.arity
        self.ground = all_bound(tables.arity)
        if len(codes) * len(self.calls) * self.span >= 1 << 63:
            raise ValueError(
                f"{tables.size} constants are too many for the depths of atoms with {tables.arity} arguments"
            )

    def run(self, limit: int) -> np.ndarray:
        answers = np.full(len(self.codes), -1)
        budgets = np.full(len(self.codes), limit)
        for predicate in np.unique(self.predicate):
            mine = np.flatnonzero(self.predicate == predicate)
            bounds = cheapest_rules(
                self.tables, (int(predicate), self.ground), self.codes[mine], limit, self.check
            )
            budgets[mine] = np.where(bounds < 0, limit + 1, bounds)
        while len(open_ := np.flatnonzero((answers < 0) & (budgets <= limit))):
            costs = self._solve(open_, budgets[open_])
            within = costs <= budgets[open_]
            answers[open_[within]] = costs[within]
            budgets[open_] += 1
        return answers

    def _solve(self, worlds: np.ndarray, budgets: np.ndarray) -> np.ndarray:
        """The least cost of each world's query by proofs that stay within its budget."""
        roots = np.empty(len(worlds), np.int64)
        for predicate in np.unique(self.predicate[worlds]):
            mine = self.predicate[worlds] == predicate
            roots[mine] = self._nodes((int(predicate), self.ground), worlds[mine], self.codes[worlds[mine]])
        edges = list(self._edges(roots, budgets))
        nodes = merged([roots, *(heads for heads, _, _ in edges)])
        costs = np.full(len(nodes) + 1, _NEVER)  # the last one: a goal below which nothing was found
        placed = [
            (places_in(nodes, heads), np.where(below < 0, -2, places_in(nodes, below)), spent)
            for heads, below, spent in edges
        ]
        while True:
            before = costs.copy()
            for heads, below, spent in placed:
                # -2 marks a fact, whose cost is in `spent`; -1 is the goal without proof.
                open_costs = np.where(below == -2, 0, costs[below])
                total = spent + open_costs.sum(axis=1)
                np.minimum.at(costs, heads, np.minimum(total, _NEVER))
            if np.array_equal(before, costs):
                return costs[places_in(nodes, roots)]

    def _edges(
        self, nodes: np.ndarray, budgets: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Below these nodes: heads, the nodes of their bodies (-1 for facts), the facts' cost plus one."""
        seen, seen_budget = np.zeros(0, np.int64), np.zeros(0, np.int64)
        while len(nodes):
            nodes, budgets = _most(nodes, budgets)
            known = places_in(seen, nodes)
            fresh = known < 0 if not len(seen) else (known < 0) | (budgets > seen_budget[known])
            nodes, budgets = nodes[fresh], budgets[fresh]
            seen, seen_budget = _most(np.concatenate([seen, nodes]), np.concatenate([seen_budget, budgets]))
            next_nodes, next_budgets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
            worlds, rest = np.divmod(nodes, self.span * len(self.calls))
            numbers, codes = np.divmod(rest, self.span)
            for number in np.unique(numbers):
                mine = numbers == number
                call = self.calls[number]
                for heads, below, spent, allowed in self._expand(
                    call, worlds[mine], codes[mine], budgets[mine]
                ):
                    yield nodes[mine][heads], below, spent
                    next_nodes.append(below[below >= 0])
                    next_budgets.append(allowed[below >= 0])
            nodes, budgets = np.concatenate(next_nodes), np.concatenate(next_budgets)

    def _expand(
        self, call: Call, worlds: np.ndarray, codes: np.ndarray, budgets: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        for rule in self.tables.rules.get(call, ()):
            for bodies in _rule_bodies(self.tables, rule, codes, budgets, self.check):
                world = worlds[bodies.goal]
                below = np.full(bodies.atoms.shape, -1)
                spent = np.ones(len(world), np.int64)
                allowed = (
                    budgets[bodies.goal, None] - 1 - bodies.costs.sum(axis=1, keepdims=True) + bodies.costs
                )
                usable = np.ones(len(world), bool)
                for place, goal in enumerate(rule.body):
                    table = self.tables.tables[goal]
                    at = bodies.atoms[:, place]
                    code, fact = table.atoms.codes[at], table.facts[at]
                    # No shortest proof needs its own query, whether as a fact or as a goal.
                    usable &= (self.predicate[world] != goal[0]) | (self.codes[world] != code)
                    below[:, place] = np.where(fact, -1, self._nodes(goal, world, code))
                    spent += np.where(fact, bodies.costs[:, place], 0)
                yield bodies.goal[usable], below[usable], spent[usable], allowed[usable]

    def _nodes(self, call: Call, worlds: np.ndarray, codes: np.ndarray) -> np.ndarray:
        return (worlds.astype(np.int64) * len(self.calls) + self.number[call]) * self.span + codes


def _rule_bodies(
    tables: CostTables,
    rule: AdornedRule,
    codes: np.ndarray,
    budgets: np.ndarray,
    check: Callable[[], None],
) -> Iterator[_Bodies]:
    """Every body of the rule for these goals whose atoms cost no more than each goal's budget allows."""
    body = [tables.tables[call] for call in rule.body]
    if not all(len(table.atoms) for table in body):
        return
    goals, bindings = rule.bound(columns_of(codes, tables.size, tables.arity))
    later = [sum(table.least for table in body[place + 1 :]) for place in range(len(body))]

    def extend(
        place: int, goals: np.ndarray, bindings: Bindings, atoms: list[np.ndarray], costs: list[np.ndarray]
    ) -> Iterator[_Bodies]:
        if place == len(body):
            yield _Bodies(goals, np.stack(atoms, axis=1), np.stack(costs, axis=1))
            return
        table, terms = body[place], rule.body_terms[place]
        left_over = budgets[goals] - 1 - later[place] - sum(costs, np.zeros(len(goals), np.int64))
        for rows, at in table.atoms.match(bindings, len(goals), terms):
            check()
            cheap = table.costs[at] <= left_over[rows]
            rows, at = rows[cheap], at[cheap]
            if len(rows):
                yield from extend(
                    place + 1,
                    goals[rows],
                    table.atoms.bind(bindings, terms, rows, at),
                    [*(column[rows] for column in atoms), at],
                    [*(column[rows] for column in costs), table.costs[at]],
                )

    if len(goals):
        yield from extend(0, goals, bindings, [], [])


def _most(nodes: np.ndarray, budgets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each node once, in order, with the greatest of its budgets."""
    unique, place = np.unique(nodes, return_inverse=True)
    most = np.full(len(unique), -1)
    np.maximum.at(most, place, budgets)
    return unique, most
