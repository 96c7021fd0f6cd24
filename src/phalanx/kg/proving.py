"""Exact proofs: the shortest proof of a query, other proofs of it, the answers to a query with variables.

What a proof is, and how it is checked, is in `proof_tree`; depths of many queries at once are in
`knowledge.chaining`.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from phalanx.kg.atoms import Atom, Rule, name_order, split_atom, unquoted
from phalanx.kg.proof_tree import Proof, free_arguments, match_head
from phalanx.kg.tabling import FactIndex, GoalPattern, GoalTables, JoinPlan, Terms, equal_places
from phalanx.kg.time_limit import TimeLimit
from phalanx.kg.vocabulary import check_arity, check_name

if TYPE_CHECKING:
    from phalanx.kg.knowledge_base import DataHandler
    from phalanx.kg.vocabulary import IndexManager
    from phalanx.proofs.state import ProofState

DEFAULT_MAX_DEPTH = 6
_VARIABLE = re.compile(r"[A-Z]|[_?].*").fullmatch


class ProofQuery(NamedTuple):
    """What is asked: an atom, and the variables in it."""

    atom: Atom
    free: Terms = ()
    """For each argument the variable that stands there, empty for a constant; may be left out if all are."""

    @property
    def ground(self) -> bool:
        """Whether it has no variables."""
        return not any(self.free)


class Prover:
    """Finds proofs from facts by rules; exact, and complete within the depth that is asked for.

    A query that is a fact never serves in its own proof. Limits of the environment on the atoms and the
    successors of a state are not regarded. When a budget's time is up, `TimeLimitExceeded` is raised.
    """

    def __init__(self, facts: Iterable[Atom], rules: Iterable[Rule], budget: TimeLimit | None = None) -> None:
        self._knowledge, self._budget = FactIndex(facts, rules), budget

    def is_fact(self, atom: Atom) -> bool:
        """Whether it is among the facts."""
        return atom in self._knowledge.facts

    def proofs(self, query: ProofQuery, max_depth: int = DEFAULT_MAX_DEPTH) -> Iterator[Proof]:
        """All proofs of a ground query, the shortest first; no goal in them is needed to prove itself."""
        _check_depth(max_depth)
        if not query.ground:
            raise ValueError(f"{query.atom} has variables; `answers` lists what they can be")
        tables = GoalTables(self._knowledge, query.atom, self._budget)
        goal, terms = _goal(query), query.atom.arguments
        for cost in range(1, max_depth + 1):
            if tables.answers(goal, cost).get(terms, cost + 1) <= cost:
                yield from _Derivation(tables).proofs(goal, ("",) * len(terms), terms, cost, frozenset())

    def answers(self, query: ProofQuery, max_depth: int = DEFAULT_MAX_DEPTH) -> Iterator[Proof]:
        """The shortest proof of each atom that a query with variables can become, by depth and name."""
        _check_depth(max_depth)
        if query.ground:
            raise ValueError(f"{query.atom} has no variables; `proofs` lists its proofs")
        tables, goal = GoalTables(self._knowledge, None, self._budget), _goal(query)
        for depth in range(1, max_depth + 1):
            found = [terms for terms, cost in tables.answers(goal, depth).items() if cost == depth]
            for terms in sorted(found, key=lambda terms: [name_order(name) for name in terms]):
                yield next(_Derivation(tables).proofs(goal, query.free, terms, depth, frozenset()))

    def why_not(self, query: ProofQuery, max_depth: int = DEFAULT_MAX_DEPTH) -> list[str]:
        """What is missing, a sentence for each rule that could have led to the query."""
        atom = query.atom
        rules = self._knowledge.rules.get(atom.predicate, ())
        said = []
        if query.ground and self.is_fact(atom):
            said.append(f"{atom} is a fact, which may not prove itself")
        if not rules:
            return [*said, f"no rule has {atom.predicate} in its head"]
        tables = GoalTables(self._knowledge, atom if query.ground else None, self._budget)
        goal = _goal(query)
        return said + [_what_fails(tables, goal, rule, plan, max_depth) for rule, plan in tables.plans(goal)]


def _what_fails(tables: GoalTables, goal: GoalPattern, rule: Rule, plan: JoinPlan, max_depth: int) -> str:
    rows = tables.start(rule, plan, goal)
    if not rows:
        return f"{rule.name}: its head, {rule.write(rule.head)}, is of another form"
    values = {name: term for name, term in zip(rule.head[1:], goal.values, strict=True) if term is not None}
    held: list[str] = []
    for step in plan.steps:
        body = rule.body[step.place]
        atom = Atom(body.predicate, *(values.get(name, name) for name in body[1:]))
        rows = tables.join(step, rows, max_depth - 1)
        if not rows:
            return f"{rule.name}: no {atom}" + (f" with {', '.join(held)}" if held else "")
        held.append(str(atom))
    return f"{rule.name}: its body holds, but not without what is to be proved"


@dataclasses.dataclass(frozen=True)
class _Derivation:
    """Proof trees of an exact cost, made from what the tables say."""

    tables: GoalTables

    def proofs(
        self, goal: GoalPattern, free: Terms, terms: Terms, cost: int, above: frozenset[Atom]
    ) -> Iterator[Proof]:
        """The proofs that this goal ends with these arguments; `above` are the goals they are part of."""
        atom = Atom(goal.predicate, *terms)
        if atom in self.tables.knowledge.facts and atom != self.tables.excluded:
            if goal.fact_cost == cost:
                yield Proof(atom, free)
            return
        for rule in self.tables.knowledge.rules.get(goal.predicate, ()):
            values = match_head(rule, terms)
            if values is None:
                continue
            unknown = free_arguments(rule, free)
            for children, whole in self._bodies(rule, unknown, values, cost - 1, above | {atom}):
                substitution = tuple((name, whole[name]) for name in rule.variables)
                yield Proof(atom, free, rule, substitution, children)

    def _bodies(
        self,
        rule: Rule,
        unknown: list[Terms],
        values: dict[str, str],
        cost: int,
        above: frozenset[Atom],
        place: int = 0,
    ) -> Iterator[tuple[tuple[Proof, ...], dict[str, str]]]:
        """Proofs of the body from this place on, and the values of all variables.

        `values` has the constants and those of the head from the start: which answer is wanted is known, and
        only `unknown` says what the goals are asked with.
        """
        if place == len(rule.body):
            if cost == 0:
                yield (), values
            return
        atom, free = rule.body[place], unknown[place]
        # What one unknown of the goal above made equal is equal here, too.
        names = [name or term for name, term in zip(free, atom[1:], strict=True)]
        goal = GoalPattern(
            atom.predicate,
            tuple(map(bool, free)),
            equal_places(names),
            tuple(values.get(term) for term in atom[1:]),
        )
        last = place == len(rule.body) - 1
        for terms, least in self.tables.answers(goal, cost).items():
            if least > cost or Atom(atom.predicate, *terms) in above:
                continue
            further = values | dict(zip(atom[1:], terms, strict=True))
            for spent in range(cost if last else least, cost + 1):
                for child in self.proofs(goal, free, terms, spent, above):
                    for rest, whole in self._bodies(rule, unknown, further, cost - spent, above, place + 1):
                        yield (child, *rest), whole


def prove(data: "DataHandler", query: Atom | str, max_depth: int = DEFAULT_MAX_DEPTH) -> Proof | None:
    """The shortest proof of a query, of any answer if it has variables; None within so many steps.

    >>> from phalanx.kg.knowledge_base import DataHandler
    >>> data = DataHandler(num_families=2)
    >>> prove(data, data.test_queries[0]).depth == data.test_depths[data.test_queries[0]]
    True
    """
    asked = parse_query(data, query)
    prover = Prover(data.facts, data.rules)
    found = prover.proofs(asked, max_depth) if asked.ground else prover.answers(asked, max_depth)
    return next(found, None)


def parse_query(data: "DataHandler", query: Atom | str) -> ProofQuery:
    """A query about a knowledge base; raises with the nearest names on one that it does not have.

    A single capital letter and what begins with `_` or `?` are variables, unless they are constants there;
    all else must be a constant, so that a mistyped one is not taken for a variable. A name in quotes always
    is a constant.
    """
    predicate, *terms = split_atom(query) if isinstance(query, str) else query
    atom = Atom(*map(unquoted, (predicate, *terms)) if isinstance(query, str) else query)
    constants = frozenset(data.entities)
    check_name(atom.predicate, data.predicates, "predicate", atom)
    check_arity(atom, data.arities)
    free = [""] * len(terms)
    for place, (text, name) in enumerate(zip(terms, atom[1:], strict=True)):
        if name not in constants and _VARIABLE(text):
            # Each `_` is a variable of its own.
            free[place] = f"_{place + 1}" if text == "_" else name
        else:
            hint = "; a variable is one capital letter, ?name or _name"
            check_name(name, constants, "constant", atom, hint)
    return ProofQuery(atom, tuple(free))


def episode_goals(states: Iterable["ProofState"], index_manager: "IndexManager") -> list[str]:
    """What is left to prove in each state of an episode, a line for each."""
    return [", ".join(map(str, index_manager.decode_state(state.goals))) for state in states]


def _goal(query: ProofQuery) -> GoalPattern:
    predicate, *terms = query.atom
    free = query.free or ("",) * len(terms)
    # Constants may be equal without having to be.
    names = [name or f"={place}" for place, name in enumerate(free)]
    values = tuple(None if name else term for term, name in zip(terms, free, strict=True))
    return GoalPattern(predicate, tuple(map(bool, free)), equal_places(names), values)


def _check_depth(max_depth: int) -> None:
    if max_depth < 1:
        raise ValueError(f"max_depth must be at least 1, got {max_depth}")
