"""Tabling for exact proving: computes and caches the answers to goals, and the cost of each answer.

An answer to a goal is a provable ground atom that matches the goal. The cost of an answer is the number of
steps in its shortest proof.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from phalanx.kg.atoms import Atom, Rule
from phalanx.kg.proof_tree import free_arguments, match_head, merge_variables
from phalanx.kg.time_limit import TimeLimit

Terms = tuple[str, ...]
"""The arguments of an atom."""

PartialTerms = tuple[str | None, ...]
"""The arguments of an atom. Arguments that are not known are None."""

Rows = dict[tuple[str, ...], int]
"""Intermediate result of a join. A row is a tuple with one value per column, and each column holds the values
of one variable or constant. The dictionary maps each row to the least total cost of the atoms joined so
far."""


class GoalPattern(NamedTuple):
    """A goal whose answers are requested.

    The arguments of an answer must have the values in `values` and satisfy the equalities in `equal_to`.
    """

    predicate: str
    is_free: tuple[bool, ...]
    """For each argument, whether it is still a variable when the proof search selects the goal. `fact_cost`
    depends on this. The value of an argument that is not free can still be None in `values`. In this case,
    the answers for all of its possible values are computed at once."""
    equal_to: tuple[int, ...]
    """For each argument, the position of the first argument that it must be equal to. If there is no such
    restriction, this is the argument's own position."""
    values: PartialTerms
    """Required value of each argument, or None if any value is allowed."""

    @property
    def fact_cost(self) -> int:
        """Cost of proving the goal by a fact: 0 for a ground goal, and 1 for a goal with free variables."""
        return int(any(self.is_free))

    def admits(self, terms: Terms) -> bool:
        """Return whether the arguments of an answer satisfy the equalities in `equal_to`."""
        return all(terms[first] == term for first, term in zip(self.equal_to, terms, strict=True))


def first_positions(names: Sequence[str]) -> tuple[int, ...]:
    """Return, for each name, the position of its first occurrence.

    >>> first_positions(["X", "Y", "X"])
    (0, 1, 0)
    """
    return tuple(names.index(name) for name in names)


class FactIndex:
    """Index of facts by predicate and argument, and of rules by the predicate of their head."""

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
        """Return the arguments of each fact that matches a goal."""
        predicate = goal.predicate
        known = [(position, value) for position, value in enumerate(goal.values) if value is not None]
        found: Sequence[Terms] = self._by_predicate.get(predicate, ())
        if len(known) == len(goal.values):
            ground = tuple(value for _, value in known)
            found = [ground] if (predicate, *ground) in self.facts else []
        elif known:
            found = min((self._by_argument.get((predicate, *term), ()) for term in known), key=len)
            if len(known) > 1:
                found = [terms for terms in found if all(terms[at] == value for at, value in known)]
        if goal.equal_to == tuple(range(len(goal.values))):
            return found
        return [terms for terms in found if goal.admits(terms)]


class JoinStep(NamedTuple):
    """A step of a join plan. It joins the current rows with the answers to one body atom."""

    position: int
    """Index of the atom in the rule's body."""
    goal: GoalPattern
    """The atom as a goal pattern whose `values` are all None."""
    columns: tuple[int, ...]
    """For each argument of the atom, the column that holds its value in the rows before the join; -1 if the
    argument is not bound yet."""
    sources: tuple[int, ...]
    """For each column after the join, the index of its value in the concatenation of the row before the join
    and the arguments of the answer."""
    later_cost: int
    """Lower bound on the total cost of the body atoms that are joined in later steps."""


class JoinPlan(NamedTuple):
    """The order in which the body atoms of a rule are joined to prove a goal.

    The atom with the most bound arguments is always joined next. The order of joins only affects the speed,
    not the costs. Costs are defined by resolution, which processes the body from left to right: the cost of a
    body atom depends on which of the atom's arguments are bound when resolution reaches it.
    """

    start: tuple[str, ...]
    """Column names of the initial row: the head variables that the goal binds, and the rule's constants."""
    steps: tuple[JoinStep, ...]
    """The joins, in the order in which they are executed."""
    head: tuple[int, ...]
    """For each argument of the rule's head, the column of the join result that holds its value."""

    @classmethod
    def create(cls, rule: Rule, goal: GoalPattern) -> "JoinPlan":
        """Plan the joins of a rule for a goal.

        The plan depends on which values of the goal are known, but not on the values themselves.
        """
        head_free = _free_names(goal)
        merged, free = merge_variables(rule, head_free), free_arguments(rule, head_free)
        names = [tuple(merged.get(name, name) for name in atom[1:]) for atom in (*rule.body, rule.head)]
        given = [name for name, value in zip(names[-1], goal.values, strict=True) if value is not None]
        start = columns = tuple(dict.fromkeys((*given, *sorted(rule.constants))))
        remaining, steps = list(range(len(rule.body))), []
        costs = [int(any(arguments)) for arguments in free]
        while remaining:
            position = max(remaining, key=lambda at: (len({*names[at]} & {*columns}), -at))
            remaining.remove(position)
            own, is_free = names[position], tuple(map(bool, free[position]))
            needed = {name for at in (*remaining, -1) for name in names[at]}
            after = tuple(name for name in dict.fromkeys((*columns, *own)) if name in needed)
            pattern = GoalPattern(
                rule.body[position].predicate, is_free, first_positions(own), (None,) * len(own)
            )
            own_columns = tuple(columns.index(name) if name in columns else -1 for name in own)
            sources = tuple((*columns, *own).index(name) for name in after)
            later_cost = sum(costs[at] for at in remaining)
            steps.append(JoinStep(position, pattern, own_columns, sources, later_cost))
            columns = after
        return cls(start, tuple(steps), tuple(columns.index(name) for name in names[-1]))


def _free_names(goal: GoalPattern) -> tuple[str, ...]:
    """Return a variable name for each free argument, and an empty string for each bound argument.

    Free arguments that must be equal have the same name.
    """
    return tuple(
        f"_{first if goal.is_free[first] else position}" if free else ""
        for position, (free, first) in enumerate(zip(goal.is_free, goal.equal_to, strict=True))
    )


class GoalTables:
    """Cache of the answers to goals, with the least cost of each answer.

    Answers are computed up to a budget, which is a maximum cost. Applying a rule costs one step, so answers
    that cost at most n depend only on answers that cost at most n - 1.

    Args:
        index: Facts and rules.
        excluded: A fact that proofs must not use, usually the query. None if proofs can use all facts.
        time_limit: Time limit for computing answers. None means no limit.
    """

    def __init__(self, index: FactIndex, excluded: Atom | None, time_limit: TimeLimit | None = None) -> None:
        self.index, self.excluded = index, excluded
        self.time_limit = TimeLimit() if time_limit is None else time_limit
        self._tables: dict[GoalPattern, tuple[int, dict[Terms, int]]] = {}
        self._plans: dict[GoalPattern, list[tuple[Rule, JoinPlan]]] = {}

    def answers(self, goal: GoalPattern, budget: int) -> dict[Terms, int]:
        """Return the answers to a goal, as a dictionary from their arguments to their least costs.

        The result contains all answers with a cost of at most `budget`, and possibly more expensive answers.
        """
        complete_to, table = self._tables.get(goal, (-1, {}))
        if complete_to >= budget:
            return table
        cost = goal.fact_cost
        facts = (terms for terms in self.index.matches(goal) if (goal.predicate, *terms) != self.excluded)
        table = dict.fromkeys(facts, cost) if cost <= budget else {}
        # A ground goal that is a fact is dropped before a rule can be applied.
        if budget and not (table and cost == 0 and None not in goal.values):
            for rule, plan in self.plans(goal):
                for terms, body_cost in self._apply_rule(rule, plan, goal, budget - 1).items():
                    if body_cost + 1 < table.get(terms, budget + 1) and goal.admits(terms):
                        table[terms] = body_cost + 1
        self._tables[goal] = (budget, table)
        return table

    def plans(self, goal: GoalPattern) -> list[tuple[Rule, JoinPlan]]:
        """Return the rules for the predicate of a goal, each with its join plan."""
        form = goal._replace(values=tuple(None if value is None else "" for value in goal.values))
        if form not in self._plans:
            rules = self.index.rules.get(goal.predicate, ())
            self._plans[form] = [(rule, JoinPlan.create(rule, form)) for rule in rules]
        return self._plans[form]

    def start(self, rule: Rule, plan: JoinPlan, goal: GoalPattern) -> Rows:
        """Return the initial row of a join, with cost 0.

        The result is empty if the rule's head does not match the goal.
        """
        values = match_head(rule, goal.values)
        if values is None:
            return {}
        for name, other in merge_variables(rule, _free_names(goal)).items():
            if name in values and values.setdefault(other, values[name]) != values[name]:
                return {}
        return {tuple(values[name] for name in plan.start): 0}

    def _apply_rule(self, rule: Rule, plan: JoinPlan, goal: GoalPattern, budget: int) -> Mapping[Terms, int]:
        rows = self.start(rule, plan, goal)
        for step in plan.steps:
            if not rows:
                return {}
            rows = self.join(step, rows, budget)
        return {tuple(values[column] for column in plan.head): cost for values, cost in rows.items()}

    def join(self, step: JoinStep, rows: Rows, budget: int) -> Rows:
        """Join rows with the answers to one body atom.

        Args:
            step: The step of the join plan, which determines the body atom.
            rows: The rows before the join.
            budget: Maximum total cost of all body atoms of the rule.

        Returns:
            The rows after the join, each with its least cost.
        """
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
                    both = values + terms
                    key = tuple(both[source] for source in step.sources)
                    if row_cost + cost < joined.get(key, budget + 1):
                        joined[key] = row_cost + cost
        return joined


def _lookup_columns(columns: tuple[int, ...], rows: Rows) -> tuple[int, ...]:
    """Return the columns whose values determine which table of answers a row is joined with.

    If all arguments are bound, only the column with the fewest distinct values is used, so that many rows
    share a table.

    Args:
        columns: For each argument of the body atom, the column that holds its value; -1 if it is not bound.
        rows: The rows before the join.

    Returns:
        The entries of `columns`, with -1 for columns that are not used.
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
