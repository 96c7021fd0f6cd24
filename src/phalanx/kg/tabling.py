"""Tables of what goals can end with, and at what cost, grown from the goal down as budgets are asked for.

Proofs are read off them in `proving`; the depths of many queries at once come from joins, in
`knowledge.chaining`.
"""

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from phalanx.kg.atoms import Atom, Rule
from phalanx.kg.proof_tree import free_arguments, match_head, merged_variables
from phalanx.kg.time_limit import TimeLimit

Terms = tuple[str, ...]
"""The arguments of an atom."""

Known = tuple[str | None, ...]
"""The arguments of an atom as far as they are known."""

Rows = dict[tuple[str, ...], int]
"""What some variables may be together, and at what cost."""


class GoalPattern(NamedTuple):
    """A goal as resolution calls it, and which of its answers are looked for."""

    predicate: str
    unknown: tuple[bool, ...]
    """Whether each argument is a variable still when the goal's turn comes; this decides what it costs."""
    same: tuple[int, ...]
    """For each argument the place of the first one that it must equal; its own where there is none."""
    values: Known
    """The arguments of the answers that are looked for; None for any."""

    @property
    def fact_cost(self) -> int:
        """Steps that a fact costs: a ground goal vanishes, any other is unified in a step."""
        return int(any(self.unknown))

    def admits(self, terms: Terms) -> bool:
        """Whether arguments that must be equal are."""
        return all(terms[first] == term for first, term in zip(self.same, terms, strict=True))


def equal_places(names: Sequence[str]) -> tuple[int, ...]:
    """For each name the place where it stands first.

    >>> equal_places(["X", "Y", "X"])
    (0, 1, 0)
    """
    return tuple(names.index(name) for name in names)


class FactIndex:
    """Facts by predicate and argument, and rules by the predicate of their head."""

    def __init__(self, facts: Iterable[Atom], rules: Iterable[Rule]) -> None:
        # In the order given, so that the same proof is found each time.
        self.facts = dict.fromkeys(facts)
        self._by_predicate: dict[str, list[Terms]] = collections.defaultdict(list)
        self._by_argument: dict[tuple[str, int, str], list[Terms]] = collections.defaultdict(list)
        for predicate, *arguments in self.facts:
            terms = tuple(arguments)
            self._by_predicate[predicate].append(terms)
            for place, term in enumerate(terms):
                self._by_argument[predicate, place, term].append(terms)
        self.rules: dict[str, list[Rule]] = collections.defaultdict(list)
        for rule in rules:
            loose = set(rule.head[1:]) - rule.constants.union(*(atom[1:] for atom in rule.body))
            if loose:
                raise ValueError(
                    f"rule {rule.name!r} has {min(loose)} in its head and not in its body, so that it holds "
                    "of everything; proofs need each variable of a head in the body"
                )
            self.rules[rule.head.predicate].append(rule)

    def matches(self, goal: GoalPattern) -> Sequence[Terms]:
        """The arguments of the facts that are looked for."""
        predicate, values = goal.predicate, goal.values
        known = [place for place, value in enumerate(values) if value is not None]
        whole = tuple(value for value in values if value is not None)
        found: Sequence[Terms]
        if len(whole) == len(values):
            found = [whole] if Atom(predicate, *whole) in self.facts else []
        elif known:
            lists = [self._by_argument.get((predicate, place, values[place] or ""), ()) for place in known]
            found = min(lists, key=len)
            if len(known) > 1:
                found = [terms for terms in found if all(terms[place] == values[place] for place in known)]
        else:
            found = self._by_predicate.get(predicate, ())
        if goal.same == tuple(range(len(values))):
            return found
        return [terms for terms in found if goal.admits(terms)]


class JoinStep(NamedTuple):
    """One atom of a body, as rows of values are joined with its answers."""

    place: int
    """Where the atom stands in the body."""
    goal: GoalPattern
    """The atom as a goal, without values."""
    columns: tuple[int, ...]
    """Where its arguments stand in the rows so far; -1 where they are not known yet."""
    sources: tuple[tuple[int, int], ...]
    """For each column afterwards: its column before, or -1 and which argument it is."""
    later_cost: int
    """What the atoms that follow cost at least."""


class JoinPlan(NamedTuple):
    """A rule as it runs when its head is called in one way.

    What a goal costs is decided by the order of the body, from the left. In which order the answers are
    joined is free, and here begins with what is known.
    """

    start: tuple[str, ...]
    """The variables that are known from the head, and the constants: what the rows start with."""
    steps: tuple[JoinStep, ...]
    head: tuple[int, ...]
    """Where the arguments of the head stand in the last rows."""

    @classmethod
    def of(cls, rule: Rule, goal: GoalPattern) -> "JoinPlan":
        """The plan for a goal with some known arguments."""
        called = _called(goal)
        same = merged_variables(rule, called)
        unknown = free_arguments(rule, called)
        names = [tuple(same.get(name, name) for name in atom[1:]) for atom in (*rule.body, rule.head)]
        given = [name for name, value in zip(names[-1], goal.values, strict=True) if value is not None]
        start = columns = tuple(dict.fromkeys((*given, *sorted(rule.constants))))
        left, steps = list(range(len(rule.body))), []
        costs = [int(any(free)) for free in unknown]
        while left:
            place = max(left, key=lambda at: (len({*names[at]} & {*columns}), -at))
            left.remove(place)
            here = names[place]
            needed = {name for at in (*left, -1) for name in names[at]}
            after = tuple(name for name in dict.fromkeys((*columns, *here)) if name in needed)
            called_with = tuple(map(bool, unknown[place]))
            steps.append(
                JoinStep(
                    place,
                    GoalPattern(
                        rule.body[place].predicate, called_with, equal_places(here), (None,) * len(here)
                    ),
                    tuple(_place(columns, name) for name in here),
                    tuple((_place(columns, name), _place(here, name)) for name in after),
                    sum(costs[at] for at in left),
                )
            )
            columns = after
        return cls(start, tuple(steps), tuple(columns.index(name) for name in names[-1]))


def _called(goal: GoalPattern) -> tuple[str, ...]:
    """Names for the unknown arguments, equal ones where they must be equal."""
    return tuple(
        f"_{first if goal.unknown[first] else place}" if unknown else ""
        for place, (unknown, first) in enumerate(zip(goal.unknown, goal.same, strict=True))
    )


def _place(names: Sequence[str], name: str) -> int:
    return names.index(name) if name in names else -1


class GoalTables:
    """What goals cost when one atom is no fact: tables that grow with the budget that is asked for.

    A rule costs a step, so that a goal's answers within a budget need only answers within smaller ones.
    """

    def __init__(self, knowledge: FactIndex, excluded: Atom | None, budget: TimeLimit | None = None) -> None:
        self.knowledge, self.excluded = knowledge, excluded
        self.budget = TimeLimit() if budget is None else budget
        self._tables: dict[GoalPattern, tuple[int, dict[Terms, int]]] = {}
        self._plans: dict[GoalPattern, list[tuple[Rule, JoinPlan]]] = {}

    def answers(self, goal: GoalPattern, budget: int) -> dict[Terms, int]:
        """What the goal can end with and at what least cost; whole for costs up to the budget."""
        done, table = self._tables.get(goal, (-1, {}))
        if done >= budget:
            return table
        cost = goal.fact_cost
        table = dict.fromkeys(self._facts(goal), cost) if cost <= budget else {}
        # A single ground goal that is a fact vanishes before a rule can be tried.
        if budget and not (table and cost == 0 and None not in goal.values):
            for rule, plan in self.plans(goal):
                for terms, spent in self._by_rule(rule, plan, goal, budget - 1).items():
                    if spent + 1 < table.get(terms, budget + 1) and goal.admits(terms):
                        table[terms] = spent + 1
        self._tables[goal] = (budget, table)
        return table

    def plans(self, goal: GoalPattern) -> list[tuple[Rule, JoinPlan]]:
        """The rules that may prove a goal, and how they run."""
        form = goal._replace(values=tuple(None if value is None else "" for value in goal.values))
        if form not in self._plans:
            rules = self.knowledge.rules.get(goal.predicate, ())
            self._plans[form] = [(rule, JoinPlan.of(rule, form)) for rule in rules]
        return self._plans[form]

    def start(self, rule: Rule, plan: JoinPlan, goal: GoalPattern) -> Rows:
        """The rows that a rule begins with: one, or none if its head does not unify."""
        values = match_head(rule, goal.values)
        if values is None:
            return {}
        for name, other in merged_variables(rule, _called(goal)).items():
            if name in values and values.setdefault(other, values[name]) != values[name]:
                return {}
        return {tuple(values[name] for name in plan.start): 0}

    def _facts(self, goal: GoalPattern) -> Iterator[Terms]:
        for terms in self.knowledge.matches(goal):
            if self.excluded is None or (goal.predicate, *terms) != self.excluded:
                yield terms

    def _by_rule(self, rule: Rule, plan: JoinPlan, goal: GoalPattern, budget: int) -> Mapping[Terms, int]:
        rows = self.start(rule, plan, goal)
        for step in plan.steps:
            if not rows:
                return {}
            rows = self.join(step, rows, budget)
        return {tuple(values[at] for at in plan.head): cost for values, cost in rows.items()}

    def join(self, step: JoinStep, rows: Rows, budget: int) -> Rows:
        """The rows that are left after one more atom of a body, each with its least cost."""
        self.budget.check(f"proving: {len(self._tables):,} goals so far")
        budget -= step.later_cost
        places = _looked_up(step.columns, rows)
        least: dict[Known, int] = {}
        for values, spent in rows.items():
            asked = _asked(places, values)
            least[asked] = min(spent, least.get(asked, spent))
        tables = {
            asked: self.answers(step.goal._replace(values=asked), budget - spent)
            for asked, spent in least.items()
            if spent <= budget
        }
        joined: Rows = {}
        for values, spent in rows.items():
            table = tables.get(_asked(places, values), {})
            found: Iterable[tuple[Terms, int]]
            if min(step.columns) >= 0:
                terms = tuple(values[at] for at in step.columns)
                found = [(terms, table[terms])] if terms in table else ()
            else:
                found = table.items()
            for terms, cost in found:
                if spent + cost <= budget:
                    key = tuple(values[old] if old >= 0 else terms[new] for old, new in step.sources)
                    if spent + cost < joined.get(key, budget + 1):
                        joined[key] = spent + cost
        return joined


def _looked_up(columns: tuple[int, ...], rows: Rows) -> tuple[int, ...]:
    """The columns by which answers are looked up, -1 for the others: those that are known.

    Where all are, it is the one with the fewest values, so that many rows share what is found.
    """
    if min(columns) < 0:
        return columns
    counts = [len({values[at] for values in rows}) for at in columns]
    if max(counts) == 1:
        return columns
    best = counts.index(min(counts))
    return tuple(at if place == best else -1 for place, at in enumerate(columns))


def _asked(columns: tuple[int, ...], values: tuple[str, ...]) -> Known:
    return tuple(values[at] if at >= 0 else None for at in columns)
