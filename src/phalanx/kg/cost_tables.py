"""What goals cost in steps of the environment: rules adorned with the modes of their calls, tables by call.

The joins are in `joins`; the depths of queries are read off the tables in `chaining` and `leave_one_out`.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Int32

from phalanx.kg.joins import Bindings, SortedTuples, codes_of, merged, places_in
from phalanx.kg.time_limit import TimeLimit
from phalanx.kg.vocabulary import EncodedRule

Mode = str
"""A letter for each argument of a goal: `b` bound, `f` free, `s` where one free variable stands in several
places. With three arguments at most, there is no more than one such variable."""

Call = tuple[int, Mode]
"""A predicate and the mode that it is called in."""


@dataclasses.dataclass(frozen=True)
class AdornedRule:
    """A rule as it runs when its head is called in one mode."""

    head: Call
    head_terms: tuple[int, ...]
    body: tuple[Call, ...]
    body_terms: tuple[tuple[int, ...], ...]

    def bound(self, columns: Sequence[np.ndarray]) -> tuple[np.ndarray, Bindings]:
        """Which ground goals the head unifies with, and what that and the constants bind."""
        return bind_head(self.head_terms, self.body_terms, columns)


def all_bound(arity: int) -> Mode:
    """The mode of a ground goal."""
    return "b" * arity


def fact_cost(mode: Mode) -> int:
    """Steps that a fact costs: a ground goal that is a fact is dropped, any other is a choice among facts."""
    return 0 if set(mode) == {"b"} else 1


def adorn(
    rules: Iterable[EncodedRule], predicates: Iterable[int], arity: int
) -> tuple[list[AdornedRule], set[Call]]:
    """The rules in every mode that ground goals of these predicates lead to, and all calls that occur."""
    by_head: dict[int, list[EncodedRule]] = {}
    for rule in rules:
        by_head.setdefault(rule[0][0], []).append(rule)
    todo: list[Call] = [(predicate, all_bound(arity)) for predicate in sorted(set(predicates))]
    calls, adorned = set(todo), []
    while todo:
        call = todo.pop()
        for rule in by_head.get(call[0], ()):
            if (made := _adorn_rule(rule, call)) is None:
                continue
            adorned.append(made)
            for goal in made.body:
                if goal not in calls:
                    calls.add(goal)
                    todo.append(goal)
    return adorned, calls


def check_rules(rules: Sequence[EncodedRule]) -> None:
    """Raises unless every variable in the head of a rule is in its body."""
    for number, (head, body) in enumerate(rules):
        if not {term for term in head[1:] if term < 0}.issubset(term for atom in body for term in atom[1:]):
            raise ValueError(
                f"rule {number} has a variable in its head that is not in its body, so that it holds of "
                "every constant; forward chaining needs each variable of a head in the body"
            )


def constant_columns(terms: Iterable[tuple[int, ...]], rows: int) -> Bindings:
    """A column for each constant among the arguments of a rule."""
    return {term: np.full(rows, term, np.int64) for some in terms for term in some if term > 0}


def bind_head(
    head: tuple[int, ...], body: Iterable[tuple[int, ...]], columns: Sequence[np.ndarray]
) -> tuple[np.ndarray, Bindings]:
    """Which of some ground goals the head of a rule unifies with, and what that and the constants bind."""
    fits = np.full(len(columns[0]), True)
    for place, (term, column) in enumerate(zip(head, columns, strict=True)):
        if term > 0:
            fits &= column == term
        elif (first := head.index(term)) < place:
            fits &= column == columns[first]
    goals = np.flatnonzero(fits)
    bindings = constant_columns(body, len(goals))
    return goals, bindings | {term: column[goals] for term, column in zip(head, columns, strict=True)}


def _adorn_rule(rule: EncodedRule, call: Call) -> AdornedRule | None:
    """The rule as it runs in the call's mode; None where its head is not of that form."""
    head, body = rule
    mode, terms = call[1], head[1:]
    # One variable of the call stands in these places, so the head's terms there are one, or one constant.
    shared = {term for term, letter in zip(terms, mode, strict=True) if letter == "s"}
    if len(constants := {term for term in shared if term > 0}) > 1:
        return None
    if shared:
        one = max(constants or shared)
        renamed = dict.fromkeys(shared, one)
        terms = tuple(renamed.get(term, term) for term in terms)
        body = tuple((atom[0], *(renamed.get(term, term) for term in atom[1:])) for atom in body)
    bound = {term for term, letter in zip(terms, mode, strict=True) if letter == "b"}
    bound.update(term for atom in (head, *body) for term in atom[1:] if term > 0)
    calls: list[Call] = []
    for predicate, *arguments in body:
        calls.append((predicate, _mode(arguments, bound)))
        bound.update(arguments)
    return AdornedRule(call, terms, tuple(calls), tuple(atom[1:] for atom in body))


def _mode(arguments: Sequence[int], bound: set[int]) -> Mode:
    return "".join(
        "b" if argument in bound else "s" if arguments.count(argument) > 1 else "f" for argument in arguments
    )


@dataclasses.dataclass(frozen=True)
class CostTable:
    """The atoms that one call can end with, and what each costs."""

    atoms: SortedTuples
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
    arity: int


class _Levels:
    """A table while it grows: its atoms by cost, and all of them."""

    def __init__(self, codes: np.ndarray, cost: int, size: int, arity: int) -> None:
        self.size, self.arity = size, arity
        self.facts = codes
        self.all = codes
        self.by_cost = {cost: SortedTuples(codes, size, arity)} if len(codes) else {}

    def add(self, cost: int, parts: list[np.ndarray]) -> int:
        """Adds the atoms that did not cost less; says how many those were."""
        codes = merged(parts)
        codes = codes[places_in(self.all, codes) < 0]
        if len(codes):
            self.all = merged([self.all, codes])
            same = [self.by_cost[cost].codes] if cost in self.by_cost else []
            self.by_cost[cost] = SortedTuples(merged([*same, codes]), self.size, self.arity)
        return len(codes)

    def table(self) -> CostTable:
        costs = np.zeros(len(self.all), np.int64)
        for cost, atoms in self.by_cost.items():
            costs[places_in(self.all, atoms.codes)] = cost
        every = SortedTuples(self.all, self.size, self.arity)
        return CostTable(every, costs, places_in(self.facts, self.all) >= 0)


def cost_tables(
    facts: Int32[np.ndarray, "facts atom"],
    rules: Sequence[EncodedRule],
    predicates: Iterable[int],
    size: int,
    limit: int,
    budget: TimeLimit,
) -> CostTables:
    """Costs up to `limit` of every goal that ground goals of these predicates lead to.

    Each rule adds one step, so that the atoms of one cost follow from those of lower costs: one round of
    joins for each cost, and for each rule one join for each way to share the cost among its body.
    """
    arity = facts.shape[1] - 1
    adorned, calls = adorn(rules, predicates, arity)
    levels = {
        call: _Levels(_fact_codes(facts, call, size), fact_cost(call[1]), size, arity) for call in calls
    }
    longest = max((len(rule.body) for rule in adorned), default=0)
    last = 1
    for cost in range(1, limit + 1):
        if cost > 1 + longest * last:  # nothing new came, and nothing can
            break
        found: dict[Call, list[np.ndarray]] = {}
        for number, rule in enumerate(adorned, 1):
            check = functools.partial(budget.check, f"goals of {cost} steps: rule {number} of {len(adorned)}")
            for bindings, _ in _bodies(rule, levels, len(rule.body) - 1, cost - 1, check):
                codes = codes_of([bindings[term] for term in rule.head_terms], size)
                found.setdefault(rule.head, []).append(merged([codes]))
        for call, parts in found.items():
            budget.check(f"goals of {cost} steps: putting together what {len(found)} predicates have")
            if levels[call].add(cost, parts):
                last = cost
    by_head: dict[Call, list[AdornedRule]] = {}
    for rule in adorned:
        by_head.setdefault(rule.head, []).append(rule)
    tables = {}
    for call, level in levels.items():
        budget.check(f"tables of {len(levels)} kinds of goals")
        tables[call] = level.table()
    return CostTables(tables, by_head, size, arity)


def _fact_codes(facts: np.ndarray, call: Call, size: int) -> np.ndarray:
    rows = facts[facts[:, 0] == call[0]].astype(np.int64)
    shared = [1 + place for place, letter in enumerate(call[1]) if letter == "s"]
    for place in shared[1:]:
        rows = rows[rows[:, shared[0]] == rows[:, place]]
    return merged([codes_of(rows.T[1:], size)])


def _bodies(
    rule: AdornedRule, levels: Mapping[Call, _Levels], last: int, cost: int, check: Callable[[], None]
) -> Iterator[tuple[Bindings, int]]:
    """The ways to prove the body up to its atom `last` at exactly this cost, and how many rows they are."""
    if last < 0:
        if cost == 0:
            yield constant_columns((*rule.body_terms, rule.head_terms), 1), 1
        return
    terms = rule.body_terms[last]
    for spent, atoms in levels[rule.body[last]].by_cost.items():
        if spent <= cost:
            for bindings, count in _bodies(rule, levels, last - 1, cost - spent, check):
                for rows, at in atoms.match(bindings, count, terms):
                    check()
                    if len(rows):
                        yield atoms.bind(bindings, terms, rows, at), len(rows)
