"""What goals cost in steps of the environment: rules adorned with the modes of their calls, tables by call.

The joins are in `joins`; the depths of queries are read off the tables in `chaining` and `leave_one_out`.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Int32

from phalanx.proofs.knowledge.joins import Bindings, SortedPairs, merged, places_in
from phalanx.proofs.knowledge.vocabulary import EncodedAtom, EncodedRule

Mode = Literal["bb", "bf", "fb", "ff", "ss"]
"""For each argument of a goal: bound or free; `ss` for one free variable in both places."""

Call = tuple[int, Mode]
"""A predicate and the mode that it is called in."""


@dataclasses.dataclass(frozen=True)
class AdornedRule:
    """A rule as it runs when its head is called in one mode."""

    head: Call
    head_variables: tuple[int, int]
    body: tuple[Call, ...]
    body_variables: tuple[tuple[int, int], ...]


def fact_cost(mode: Mode) -> int:
    """Steps that a fact costs: a ground goal that is a fact is dropped, any other is a choice among facts."""
    return 0 if mode == "bb" else 1


def adorn(rules: Iterable[EncodedRule], predicates: Iterable[int]) -> tuple[list[AdornedRule], set[Call]]:
    """The rules in every mode that ground goals of these predicates lead to, and all calls that occur."""
    by_head: dict[int, list[EncodedRule]] = {}
    for rule in rules:
        by_head.setdefault(rule[0][0], []).append(rule)
    todo: list[Call] = [(predicate, "bb") for predicate in sorted(set(predicates))]
    calls, adorned = set(todo), []
    while todo:
        call = todo.pop()
        for rule in by_head.get(call[0], ()):
            adorned.append(_adorn_rule(rule, call))
            for goal in adorned[-1].body:
                if goal not in calls:
                    calls.add(goal)
                    todo.append(goal)
    return adorned, calls


def check_rules(rules: Sequence[EncodedRule]) -> None:
    """Raises unless every rule has variables only, and in its head none that its body does not bind."""
    for number, (head, body) in enumerate(rules):
        if any(argument >= 0 for atom in (head, *body) for argument in atom[1:]):
            raise ValueError(
                f"rule {number} has a constant; forward chaining takes rules with variables only"
            )
        if not set(head[1:]) <= {variable for atom in body for variable in atom[1:]}:
            raise ValueError(
                f"rule {number} has a variable in its head that is not in its body, so that it holds of "
                "every constant; forward chaining needs each variable of a head in the body"
            )


def _adorn_rule(rule: EncodedRule, call: Call) -> AdornedRule:
    head, body = rule
    mode = call[1]
    left, right = head[1:]
    if mode == "ss":
        # Both arguments of the call are one variable, and so are both of the head's.
        body = tuple(_replace(atom, right, left) for atom in body)
        right = left
    bound = {variable for variable, letter in zip((left, right), mode, strict=True) if letter == "b"}
    calls: list[Call] = []
    for predicate, *arguments in body:
        calls.append((predicate, _mode(arguments, bound)))
        bound.update(arguments)
    return AdornedRule(call, (left, right), tuple(calls), tuple(atom[1:] for atom in body))


def _mode(arguments: Sequence[int], bound: set[int]) -> Mode:
    first, second = (argument in bound for argument in arguments)
    if first and second:
        return "bb"
    if first or second:
        return "bf" if first else "fb"
    return "ss" if arguments[0] == arguments[1] else "ff"


def _replace(atom: EncodedAtom, old: int, new: int) -> EncodedAtom:
    predicate, first, second = atom
    return predicate, new if first == old else first, new if second == old else second


@dataclasses.dataclass(frozen=True)
class CostTable:
    """The atoms that one call can end with, and what each costs."""

    pairs: SortedPairs
    costs: np.ndarray
    facts: np.ndarray
    """Whether each of the atoms is a fact."""

    @property
    def least(self) -> int:
        """The cheapest atom's cost."""
        return int(self.costs.min())


@dataclasses.dataclass(frozen=True)
class CostTables:
    """Tables by call and rules by head, for goals over constants below `size`."""

    tables: Mapping[Call, CostTable]
    rules: Mapping[Call, Sequence[AdornedRule]]
    size: int


class _Levels:
    """A table while it grows: its atoms by cost, and all of them."""

    def __init__(self, codes: np.ndarray, cost: int, size: int) -> None:
        self.size = size
        self.facts = codes
        self.all = codes
        self.by_cost = {cost: SortedPairs(codes, size)} if len(codes) else {}

    def add(self, cost: int, parts: list[np.ndarray]) -> int:
        """Adds the atoms that did not cost less; says how many those were."""
        codes = merged(parts)
        codes = codes[places_in(self.all, codes) < 0]
        if len(codes):
            self.all = merged([self.all, codes])
            same = [self.by_cost[cost].codes] if cost in self.by_cost else []
            self.by_cost[cost] = SortedPairs(merged([*same, codes]), self.size)
        return len(codes)

    def table(self) -> CostTable:
        costs = np.zeros(len(self.all), np.int64)
        for cost, pairs in self.by_cost.items():
            costs[places_in(self.all, pairs.codes)] = cost
        return CostTable(SortedPairs(self.all, self.size), costs, places_in(self.facts, self.all) >= 0)


def cost_tables(
    facts: Int32[np.ndarray, "facts 3"],
    rules: Sequence[EncodedRule],
    predicates: Iterable[int],
    size: int,
    limit: int,
) -> CostTables:
    """Costs up to `limit` of every goal that ground goals of these predicates lead to.

    Each rule adds one step, so that the atoms of one cost follow from those of lower costs: one round of
    joins for each cost, and for each rule one join for each way to share the cost among its body.
    """
    adorned, calls = adorn(rules, predicates)
    levels = {call: _Levels(_fact_codes(facts, call, size), fact_cost(call[1]), size) for call in calls}
    longest = max((len(rule.body) for rule in adorned), default=0)
    last = 1
    for cost in range(1, limit + 1):
        if cost > 1 + longest * last:  # nothing new came, and nothing can
            break
        found: dict[Call, list[np.ndarray]] = {}
        for rule in adorned:
            for bindings, _ in _bodies(rule, levels, len(rule.body) - 1, cost - 1):
                first, second = (bindings[variable] for variable in rule.head_variables)
                found.setdefault(rule.head, []).append(merged([first * size + second]))
        if sum(levels[call].add(cost, parts) for call, parts in found.items()):
            last = cost
    by_head: dict[Call, list[AdornedRule]] = {}
    for rule in adorned:
        by_head.setdefault(rule.head, []).append(rule)
    return CostTables({call: level.table() for call, level in levels.items()}, by_head, size)


def _fact_codes(facts: np.ndarray, call: Call, size: int) -> np.ndarray:
    rows = facts[facts[:, 0] == call[0]].astype(np.int64)
    if call[1] == "ss":
        rows = rows[rows[:, 1] == rows[:, 2]]
    return merged([rows[:, 1] * size + rows[:, 2]])


def _bodies(
    rule: AdornedRule, levels: Mapping[Call, _Levels], last: int, cost: int
) -> Iterator[tuple[Bindings, int]]:
    """The ways to prove the body up to its atom `last` at exactly this cost, and how many rows they are."""
    if last < 0:
        if cost == 0:
            yield {}, 1
        return
    variables = rule.body_variables[last]
    for spent, pairs in levels[rule.body[last]].by_cost.items():
        if spent <= cost:
            for bindings, count in _bodies(rule, levels, last - 1, cost - spent):
                for rows, at in pairs.match(bindings, count, variables):
                    if len(rows):
                        yield pairs.bind(bindings, variables, rows, at), len(rows)
