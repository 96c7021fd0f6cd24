"""Sets of pairs of constants in sorted arrays, and the joins of rows of bindings with them.

Which relations are joined, and why, is up to `chaining` and `leave_one_out`.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Int32, Int64

from phalanx.proofs.knowledge.vocabulary import EncodedAtom, EncodedRule

CHUNK_ROWS = 1 << 21
"""A join hands out its rows in pieces of about this many, so that its memory is bounded."""

Bindings = dict[int, np.ndarray]
"""The values of variables, one column each; all of one length."""

Matches = Iterator[tuple[np.ndarray, np.ndarray]]
"""Rows of bindings and, beside each, the place of a pair that goes with it."""


class SortedPairs:
    """Pairs (first, second) below `size`, each as the number `first * size + second`, sorted and unique."""

    def __init__(self, codes: Int64[np.ndarray, " pairs"], size: int) -> None:
        self.codes = codes
        self.size = size

    def __len__(self) -> int:
        return len(self.codes)

    @functools.cached_property
    def first(self) -> np.ndarray:
        return self.codes // self.size

    @functools.cached_property
    def second(self) -> np.ndarray:
        return self.codes - self.first * self.size

    @functools.cached_property
    def _by_second(self) -> tuple[np.ndarray, np.ndarray]:
        """The pairs' places in the order of (second, first), and their swapped numbers in that order."""
        swapped = self.second * self.size + self.first
        order = np.argsort(swapped, kind="stable")
        return order, swapped[order]

    def places(self, codes: Int64[np.ndarray, " codes"]) -> Int64[np.ndarray, " codes"]:
        """The place of each code, -1 for those that are not among the pairs."""
        return places_in(self.codes, codes)

    def match(self, bindings: Mapping[int, np.ndarray], rows: int, variables: tuple[int, int]) -> Matches:
        """Every way in which a pair agrees with what a row binds; there are `rows` rows."""
        left, right = variables
        first, second = bindings.get(left), bindings.get(right)
        if first is not None and second is not None:
            found = self.places(first * self.size + second)
            kept = np.flatnonzero(found >= 0)
            yield kept, found[kept]
        elif first is not None:
            yield from _runs(self.codes, first, self.size)
        elif second is not None:
            order, swapped = self._by_second
            for kept, at in _runs(swapped, second, self.size):
                yield kept, order[at]
        else:
            free = np.flatnonzero(self.first == self.second) if left == right else np.arange(len(self))
            step = max(1, CHUNK_ROWS // max(1, len(free)))
            for start in range(0, rows, step):
                some = np.arange(start, min(start + step, rows))
                yield np.repeat(some, len(free)), np.tile(free, len(some))

    def bind(
        self, bindings: Bindings, variables: tuple[int, int], rows: np.ndarray, at: np.ndarray
    ) -> Bindings:
        """The bindings of matched rows, with the matched pairs' values."""
        joined = {variable: column[rows] for variable, column in bindings.items()}
        for variable, column in zip(variables, (self.first, self.second), strict=True):
            if variable not in joined:
                joined[variable] = column[at]
        return joined


def places_in(
    sorted_codes: Int64[np.ndarray, " pairs"], codes: Int64[np.ndarray, "*codes"]
) -> Int64[np.ndarray, "*codes"]:
    """Where each code stands in a sorted array, -1 for those that are not in it."""
    if not len(sorted_codes):
        return np.full(codes.shape, -1)
    at = np.minimum(np.searchsorted(sorted_codes, codes), len(sorted_codes) - 1)
    return np.where(sorted_codes[at] == codes, at, -1)


def merged(parts: list[np.ndarray]) -> Int64[np.ndarray, " codes"]:
    """All codes of the parts, sorted, each once."""
    if not parts:
        return np.zeros(0, np.int64)
    return np.unique(parts[0] if len(parts) == 1 else np.concatenate(parts))


def _runs(sorted_codes: np.ndarray, heads: np.ndarray, size: int) -> Matches:
    """Rows and places of the codes from `head * size` up to the next head's, in bounded pieces."""
    low = np.searchsorted(sorted_codes, heads * size)
    counts = np.searchsorted(sorted_codes, heads * size + size) - low
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.searchsorted(ends, np.arange(CHUNK_ROWS, total, CHUNK_ROWS)) + 1
    for start, stop in zip([0, *cuts], [*cuts, len(heads)], strict=True):
        some = counts[start:stop]
        length = int(some.sum())
        if not length:
            continue
        rows = np.repeat(np.arange(start, stop), some)
        offsets = np.repeat(low[start:stop] - (np.cumsum(some) - some), some)
        yield rows, np.arange(length) + offsets


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
