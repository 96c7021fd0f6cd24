"""Tables of what goals can end with, and at what cost, grown from the goal down as budgets are asked for.

Proofs are read off them in `proving`; the depths of many queries at once come from joins, in
`knowledge.chaining`.
"""

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from phalanx.proofs.knowledge.atoms import Atom, Rule
from phalanx.proofs.knowledge.budget import Budget
from phalanx.proofs.search.proof_tree import free_arguments, match_head, merged_variables

Pair = tuple[str, str]
"""The two arguments of an atom."""

Rows = dict[tuple[str, ...], int]
"""What some variables may be together, and at what cost."""


class Goal(NamedTuple):
    """A goal as resolution calls it, and which of its answers are looked for."""

    predicate: str
    unknown: tuple[bool, bool]
    """Whether each argument is a variable still when the goal's turn comes; this decides what it costs."""
    same: bool
    """Whether both arguments must be equal."""
    first: str | None
    """The first argument of the answers that are looked for; None for any."""
    second: str | None
    """The second argument of these answers."""

    @property
    def fact_cost(self) -> int:
        """Steps that a fact costs: a ground goal vanishes, any other is unified in a step."""
        return int(any(self.unknown))


class Knowledge:
    """Facts by predicate and argument, and rules by the predicate of their head."""

    def __init__(self, facts: Iterable[Atom], rules: Iterable[Rule]) -> None:
        # In the order given, so that the same proof is found each time.
        self.facts = dict.fromkeys(facts)
        self._by_predicate: dict[str, list[Pair]] = collections.defaultdict(list)
        self._by_first: dict[Pair, list[Pair]] = collections.defaultdict(list)
        self._by_second: dict[Pair, list[Pair]] = collections.defaultdict(list)
        for predicate, first, second in self.facts:
            pair = first, second
            self._by_predicate[predicate].append(pair)
            self._by_first[predicate, first].append(pair)
            self._by_second[predicate, second].append(pair)
        self.rules: dict[str, list[Rule]] = collections.defaultdict(list)
        for rule in rules:
            loose = set(rule.head[1:]) - rule.constants.union(*(atom[1:] for atom in rule.body))
            if loose:
                raise ValueError(
                    f"rule {rule.name!r} has {min(loose)} in its head and not in its body, so that it holds "
                    "of everything; proofs need each variable of a head in the body"
                )
            self.rules[rule.head.predicate].append(rule)

    def matches(self, goal: Goal) -> Sequence[Pair]:
        """The arguments of the facts that are looked for."""
        predicate, _, same, first, second = goal
        pairs: Sequence[Pair]
        if first is not None and second is not None:
            pairs = [(first, second)] if Atom(predicate, first, second) in self.facts else []
        elif first is not None:
            pairs = self._by_first.get((predicate, first), ())
        elif second is not None:
            pairs = self._by_second.get((predicate, second), ())
        else:
            pairs = self._by_predicate.get(predicate, ())
        return [pair for pair in pairs if pair[0] == pair[1]] if same else pairs


class Step(NamedTuple):
    """One atom of a body, as rows of values are joined with its answers."""

    place: int
    """Where the atom stands in the body."""
    goal: Goal
    """The atom as a goal, without values."""
    columns: tuple[int, int]
    """Where its arguments stand in the rows so far; -1 where they are not known yet."""
    sources: tuple[tuple[int, int], ...]
    """For each column afterwards: its column before, or -1 and which argument it is."""
    later_cost: int
    """What the atoms that follow cost at least."""


class Plan(NamedTuple):
    """A rule as it runs when its head is called in one way.

    What a goal costs is decided by the order of the body, from the left. In which order the answers are
    joined is free, and here begins with what is known.
    """

    start: tuple[str, ...]
    """The variables that are known from the head, and the constants: what the rows start with."""
    steps: tuple[Step, ...]
    head: tuple[int, int]
    """Where the arguments of the head stand in the last rows."""

    @classmethod
    def of(cls, rule: Rule, goal: Goal) -> "Plan":
        """The plan for a goal with some known arguments."""
        called = _called(goal)
        same = merged_variables(rule, called)
        unknown = free_arguments(rule, called)
        names = [tuple(same.get(name, name) for name in atom[1:]) for atom in (*rule.body, rule.head)]
        given = [name for name, value in zip(names[-1], goal[3:], strict=True) if value is not None]
        start = columns = tuple(dict.fromkeys((*given, *sorted(rule.constants))))
        left, steps = list(range(len(rule.body))), []
        costs = [int(any(free)) for free in unknown]
        while left:
            place = max(left, key=lambda at: (len({*names[at]} & {*columns}), -at))
            left.remove(place)
            pair = names[place]
            needed = {name for at in (*left, -1) for name in names[at]}
            after = tuple(name for name in dict.fromkeys((*columns, *pair)) if name in needed)
            free = unknown[place]
            steps.append(
                Step(
                    place,
                    Goal(
                        rule.body[place].predicate,
                        (bool(free[0]), bool(free[1])),
                        pair[0] == pair[1],
                        None,
                        None,
                    ),
                    (_place(columns, pair[0]), _place(columns, pair[1])),
                    tuple((_place(columns, name), _place(pair, name)) for name in after),
                    sum(costs[at] for at in left),
                )
            )
            columns = after
        first, second = (columns.index(name) for name in names[-1])
        return cls(start, tuple(steps), (first, second))


def _called(goal: Goal) -> tuple[str, str]:
    first, second = goal.unknown
    return "_" if first else "", ("_" if goal.same and first else "__") if second else ""


def _place(names: Sequence[str], name: str) -> int:
    return names.index(name) if name in names else -1


class GoalTables:
    """What goals cost when one atom is no fact: tables that grow with the budget that is asked for.

    A rule costs a step, so that a goal's answers within a budget need only answers within smaller ones.
    """

    def __init__(self, knowledge: Knowledge, excluded: Atom | None, budget: Budget | None = None) -> None:
        self.knowledge, self.excluded = knowledge, excluded
        self.budget = Budget() if budget is None else budget
        self._tables: dict[Goal, tuple[int, dict[Pair, int]]] = {}
        self._plans: dict[Goal, list[tuple[Rule, Plan]]] = {}

    def answers(self, goal: Goal, budget: int) -> dict[Pair, int]:
        """The pairs that the goal can end with, and their least costs; whole for costs up to the budget."""
        done, table = self._tables.get(goal, (-1, {}))
        if done >= budget:
            return table
        cost = goal.fact_cost
        table = dict.fromkeys(self._facts(goal), cost) if cost <= budget else {}
        # A single ground goal that is a fact vanishes before a rule can be tried.
        if budget and not (table and cost == 0 and None not in goal[3:]):
            for rule, plan in self.plans(goal):
                for pair, spent in self._by_rule(rule, plan, goal, budget - 1).items():
                    if spent + 1 < table.get(pair, budget + 1) and (pair[0] == pair[1] or not goal.same):
                        table[pair] = spent + 1
        self._tables[goal] = (budget, table)
        return table

    def plans(self, goal: Goal) -> list[tuple[Rule, Plan]]:
        """The rules that may prove a goal, and how they run."""
        form = goal._replace(
            first=None if goal.first is None else "", second=None if goal.second is None else ""
        )
        if form not in self._plans:
            rules = self.knowledge.rules.get(goal.predicate, ())
            self._plans[form] = [(rule, Plan.of(rule, form)) for rule in rules]
        return self._plans[form]

    def start(self, rule: Rule, plan: Plan, goal: Goal) -> Rows:
        """The rows that a rule begins with: one, or none if its head does not unify."""
        values = match_head(rule, (goal.first, goal.second))
        if values is None:
            return {}
        for name, other in merged_variables(rule, _called(goal)).items():
            if name in values and values.setdefault(other, values[name]) != values[name]:
                return {}
        return {tuple(values[name] for name in plan.start): 0}

    def _facts(self, goal: Goal) -> Iterator[Pair]:
        for pair in self.knowledge.matches(goal):
            if self.excluded is None or (goal.predicate, *pair) != self.excluded:
                yield pair

    def _by_rule(self, rule: Rule, plan: Plan, goal: Goal, budget: int) -> Mapping[Pair, int]:
        rows = self.start(rule, plan, goal)
        for step in plan.steps:
            if not rows:
                return {}
            rows = self.join(step, rows, budget)
        first, second = plan.head
        return {(values[first], values[second]): cost for values, cost in rows.items()}

    def join(self, step: Step, rows: Rows, budget: int) -> Rows:
        """The rows that are left after one more atom of a body, each with its least cost."""
        self.budget.check(f"proving: {len(self._tables):,} goals so far")
        budget -= step.later_cost
        sides = _sides(step.columns, rows)
        least: dict[tuple[str | None, str | None], int] = {}
        for values, spent in rows.items():
            asked = _asked(step.columns, sides, values)
            least[asked] = min(spent, least.get(asked, spent))
        tables = {
            asked: self.answers(step.goal._replace(first=asked[0], second=asked[1]), budget - spent)
            for asked, spent in least.items()
            if spent <= budget
        }
        joined: Rows = {}
        first, second = step.columns
        for values, spent in rows.items():
            table = tables.get(_asked(step.columns, sides, values), {})
            if first >= 0 and second >= 0:
                pair = values[first], values[second]
                found: Iterable[tuple[Pair, int]] = [(pair, table[pair])] if pair in table else ()
            else:
                found = table.items()
            for pair, cost in found:
                if spent + cost <= budget:
                    key = tuple(values[old] if old >= 0 else pair[new] for old, new in step.sources)
                    if spent + cost < joined.get(key, budget + 1):
                        joined[key] = spent + cost
        return joined


def _sides(columns: tuple[int, int], rows: Rows) -> tuple[bool, bool]:
    """By which arguments answers are looked up: where rows have many values, by the other side's few."""
    first, second = columns
    if first < 0 or second < 0:
        return first >= 0, second >= 0
    firsts, seconds = (len({values[at] for values in rows}) for at in columns)
    return firsts <= seconds, seconds < firsts or firsts == seconds == 1


def _asked(
    columns: tuple[int, int], sides: tuple[bool, bool], values: tuple[str, ...]
) -> tuple[str | None, str | None]:
    return values[columns[0]] if sides[0] else None, values[columns[1]] if sides[1] else None
