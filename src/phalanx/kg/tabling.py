"""Tabling for exact proving: the least-cost answers of goals, computed top down."""

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from phalanx.kg.atoms import Atom, Rule
from phalanx.kg.proof_tree import free_arguments, match_head, merge_variables
from phalanx.kg.time_limit import TimeLimit

Terms = tuple[str, ...]
"""The arguments of an atom."""

PartialTerms = tuple[str | None, ...]
"""The arguments of an atom; None where they are not known."""

Rows = dict[tuple[str, ...], int]
"""Joint values of several variables, with their cost."""


class GoalPattern(NamedTuple):
    """A goal as resolution selects it, and the answers that are wanted."""

    predicate: str
    is_free: tuple[bool, ...]
    """True for arguments that are unbound when the goal is selected; they determine the cost of facts."""
    equal_to: tuple[int, ...]
    """For each argument, the position of the first argument that it must equal (its own if there is none)."""
    values: PartialTerms
    """The arguments of the wanted answers; None for any."""

    @property
    def fact_cost(self) -> int:
        """Cost of a fact: ground goals are dropped, any other goal is unified in one step."""
        return int(any(self.is_free))

    def admits(self, terms: Terms) -> bool:
        """Return whether arguments that must be equal are equal."""
        return all(terms[first] == term for first, term in zip(self.equal_to, terms, strict=True))


def first_positions(names: Sequence[str]) -> tuple[int, ...]:
    """Return, for each name, the position of its first occurrence.

    >>> first_positions(["X", "Y", "X"])
    (0, 1, 0)
    """
    return tuple(names.index(name) for name in names)


class FactIndex:
    """Facts by predicate and argument, and rules by the predicate of their head."""

    def __init__(self, facts: Iterable[Atom], rules: Iterable[Rule]) -> None:
        # A dictionary keeps the order, so the same proof is found every time.
        self.facts = dict.fromkeys(facts)
        self._by_predicate: dict[str, list[Terms]] = collections.defaultdict(list)
        self._by_argument: dict[tuple[str, int, str], list[Terms]] = collections.defaultdict(list)
        for predicate, *arguments in self.facts:
            terms = tuple(arguments)
            self._by_predicate[predicate].append(terms)
            for position, term in enumerate(terms):
                self._by_argument[predicate, position, term].append(terms)
        self.rules: dict[str, list[Rule]] = collections.defaultdict(list)
        for rule in rules:
            unbound = set(rule.head[1:]) - rule.constants.union(*(atom[1:] for atom in rule.body))
            if unbound:
                raise ValueError(
                    f"rule {rule.name!r} has {min(unbound)} in its head but not in its body, so its head "
                    "would be true of everything; proofs need every head variable in the body"
                )
            self.rules[rule.head.predicate].append(rule)

    def matches(self, goal: GoalPattern) -> Sequence[Terms]:
        """Return the arguments of the facts that match a goal."""
        predicate, values = goal.predicate, goal.values
        known = [position for position, value in enumerate(values) if value is not None]
        ground = tuple(value for value in values if value is not None)
        found: Sequence[Terms]
        if len(ground) == len(values):
            found = [ground] if Atom(predicate, *ground) in self.facts else []
        elif known:
            lists = [self._by_argument.get((predicate, at, values[at] or ""), ()) for at in known]
            found = min(lists, key=len)
            if len(known) > 1:
                found = [terms for terms in found if all(terms[at] == values[at] for at in known)]
        else:
            found = self._by_predicate.get(predicate, ())
        if goal.equal_to == tuple(range(len(values))):
            return found
        return [terms for terms in found if goal.admits(terms)]


class JoinStep(NamedTuple):
    """One body atom: how rows of values are joined with its answers."""

    position: int
    """Index of the atom in the body."""
    goal: GoalPattern
    """The atom as a goal without values."""
    columns: tuple[int, ...]
    """Column of each argument in the rows before the join; -1 if it is not bound yet."""
    sources: tuple[tuple[int, int], ...]
    """For each column after the join: its column before, or -1 and the argument that it comes from."""
    later_cost: int
    """Least cost of the atoms that follow."""


class JoinPlan(NamedTuple):
    """A rule as it is evaluated when its head is called with some arguments.

    The order of the body, from left to right, determines the cost of each goal. The order of the joins is
    free: it starts with the atoms that have the most bound arguments.
    """

    start: tuple[str, ...]
    """The initial columns: variables bound by the head, and constants."""
    steps: tuple[JoinStep, ...]
    head: tuple[int, ...]
    """Columns of the head's arguments in the final rows."""

    @classmethod
    def create(cls, rule: Rule, goal: GoalPattern) -> "JoinPlan":
        """Plan a rule for a goal with some known arguments."""
        head_free = _free_names(goal)
        merged = merge_variables(rule, head_free)
        free = free_arguments(rule, head_free)
        names = [tuple(merged.get(name, name) for name in atom[1:]) for atom in (*rule.body, rule.head)]
        given = [name for name, value in zip(names[-1], goal.values, strict=True) if value is not None]
        start = columns = tuple(dict.fromkeys((*given, *sorted(rule.constants))))
        remaining, steps = list(range(len(rule.body))), []
        costs = [int(any(arguments)) for arguments in free]
        while remaining:
            position = max(remaining, key=lambda at: (len({*names[at]} & {*columns}), -at))
            remaining.remove(position)
            atom_names = names[position]
            needed = {name for at in (*remaining, -1) for name in names[at]}
            after = tuple(name for name in dict.fromkeys((*columns, *atom_names)) if name in needed)
            steps.append(
                JoinStep(
                    position,
                    GoalPattern(
                        rule.body[position].predicate,
                        tuple(map(bool, free[position])),
                        first_positions(atom_names),
                        (None,) * len(atom_names),
                    ),
                    tuple(_find(columns, name) for name in atom_names),
                    tuple((_find(columns, name), _find(atom_names, name)) for name in after),
                    sum(costs[at] for at in remaining),
                )
            )
            columns = after
        return cls(start, tuple(steps), tuple(columns.index(name) for name in names[-1]))


def _free_names(goal: GoalPattern) -> tuple[str, ...]:
    """Return names for the free arguments, equal names for arguments that must be equal."""
    return tuple(
        f"_{first if goal.is_free[first] else position}" if free else ""
        for position, (free, first) in enumerate(zip(goal.is_free, goal.equal_to, strict=True))
    )


def _find(names: Sequence[str], name: str) -> int:
    return names.index(name) if name in names else -1


class GoalTables:
    """Costs of goals without one excluded fact: tables that grow with the requested budget.

    A rule costs one step, so the answers of a goal within a budget only need answers within smaller budgets.
    """

    def __init__(self, index: FactIndex, excluded: Atom | None, time_limit: TimeLimit | None = None) -> None:
        self.index, self.excluded = index, excluded
        self.time_limit = TimeLimit() if time_limit is None else time_limit
        self._tables: dict[GoalPattern, tuple[int, dict[Terms, int]]] = {}
        self._plans: dict[GoalPattern, list[tuple[Rule, JoinPlan]]] = {}

    def answers(self, goal: GoalPattern, budget: int) -> dict[Terms, int]:
        """Return the answers of a goal with their least costs; complete for costs up to the budget."""
        complete_to, table = self._tables.get(goal, (-1, {}))
        if complete_to >= budget:
            return table
        cost = goal.fact_cost
        table = dict.fromkeys(self._facts(goal), cost) if cost <= budget else {}
        # A ground goal that is a fact is dropped before a rule can be applied.
        if budget and not (table and cost == 0 and None not in goal.values):
            for rule, plan in self.plans(goal):
                for terms, body_cost in self._apply_rule(rule, plan, goal, budget - 1).items():
                    if body_cost + 1 < table.get(terms, budget + 1) and goal.admits(terms):
                        table[terms] = body_cost + 1
        self._tables[goal] = (budget, table)
        return table

    def plans(self, goal: GoalPattern) -> list[tuple[Rule, JoinPlan]]:
        """Return the rules that may prove a goal with their join plans."""
        form = goal._replace(values=tuple(None if value is None else "" for value in goal.values))
        if form not in self._plans:
            rules = self.index.rules.get(goal.predicate, ())
            self._plans[form] = [(rule, JoinPlan.create(rule, form)) for rule in rules]
        return self._plans[form]

    def start(self, rule: Rule, plan: JoinPlan, goal: GoalPattern) -> Rows:
        """Return the rows before the first join: one, or none if the head does not unify with the goal."""
        values = match_head(rule, goal.values)
        if values is None:
            return {}
        for name, other in merge_variables(rule, _free_names(goal)).items():
            if name in values and values.setdefault(other, values[name]) != values[name]:
                return {}
        return {tuple(values[name] for name in plan.start): 0}

    def _facts(self, goal: GoalPattern) -> Iterator[Terms]:
        for terms in self.index.matches(goal):
            if self.excluded is None or (goal.predicate, *terms) != self.excluded:
                yield terms

    def _apply_rule(self, rule: Rule, plan: JoinPlan, goal: GoalPattern, budget: int) -> Mapping[Terms, int]:
        rows = self.start(rule, plan, goal)
        for step in plan.steps:
            if not rows:
                return {}
            rows = self.join(step, rows, budget)
        return {tuple(values[column] for column in plan.head): cost for values, cost in rows.items()}

    def join(self, step: JoinStep, rows: Rows, budget: int) -> Rows:
        """Join rows with the answers of one body atom; keep the least cost of each resulting row."""
        self.time_limit.check(f"proving: {len(self._tables):,} goals so far")
        budget -= step.later_cost
        columns = _lookup_columns(step.columns, rows)
        least: dict[PartialTerms, int] = {}
        for values, cost in rows.items():
            wanted = _select(columns, values)
            least[wanted] = min(cost, least.get(wanted, cost))
        tables = {
            wanted: self.answers(step.goal._replace(values=wanted), budget - cost)
            for wanted, cost in least.items()
            if cost <= budget
        }
        joined: Rows = {}
        for values, row_cost in rows.items():
            table = tables.get(_select(columns, values), {})
            found: Iterable[tuple[Terms, int]]
            if min(step.columns) >= 0:
                terms = tuple(values[column] for column in step.columns)
                found = [(terms, table[terms])] if terms in table else ()
            else:
                found = table.items()
            for terms, cost in found:
                if row_cost + cost <= budget:
                    key = tuple(values[old] if old >= 0 else terms[new] for old, new in step.sources)
                    if row_cost + cost < joined.get(key, budget + 1):
                        joined[key] = row_cost + cost
        return joined


def _lookup_columns(columns: tuple[int, ...], rows: Rows) -> tuple[int, ...]:
    """Return the bound columns by which answers are looked up, -1 for the others.

    If all columns are bound, only the one with the fewest values is used, so that many rows share a table.
    """
    if min(columns) < 0:
        return columns
    counts = [len({values[column] for values in rows}) for column in columns]
    if max(counts) == 1:
        return columns
    best = counts.index(min(counts))
    return tuple(column if position == best else -1 for position, column in enumerate(columns))


def _select(columns: tuple[int, ...], values: tuple[str, ...]) -> PartialTerms:
    return tuple(values[column] if column >= 0 else None for column in columns)
