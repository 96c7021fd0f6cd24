"""Exact proving: proofs of ground queries, and answers to queries with variables."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from phalanx.kg.atoms import Atom, Rule, name_sort_key, split_atom, unquote_name
from phalanx.kg.proof_depths import DEFAULT_MAX_DEPTH
from phalanx.kg.proof_tree import Proof, free_arguments, match_head
from phalanx.kg.tabling import FactIndex, GoalPattern, GoalTables, JoinPlan, Terms, first_positions
from phalanx.kg.time_limit import TimeLimit
from phalanx.kg.vocabulary import check_arity, check_name

if TYPE_CHECKING:
    from phalanx.kg.knowledge_base import KnowledgeBase

_VARIABLE = re.compile(r"[A-Z]|[_?].*").fullmatch


class ProofQuery(NamedTuple):
    """An atom to prove, possibly with variables."""

    atom: Atom
    free: Terms = ()
    """For each argument, the name of its variable, or an empty string if it is a constant. An empty tuple
    means that all arguments are constants."""

    @property
    def is_ground(self) -> bool:
        """True if the query has no variables."""
        return not any(self.free)

    @property
    def pattern(self) -> GoalPattern:
        """The query as a goal pattern, in which arguments with the same variable must be equal."""
        predicate, *terms = self.atom
        free = self.free or ("",) * len(terms)
        # Constants may be equal but do not have to be.
        names = [name or f"={position}" for position, name in enumerate(free)]
        values = tuple(None if name else term for term, name in zip(terms, free, strict=True))
        return GoalPattern(predicate, tuple(map(bool, free)), first_positions(names), values)


class Prover:
    """Finds all proofs up to a given depth from facts and rules.

    If a ground query is itself a fact, this fact is not used to prove it. The proof environment's limits on
    the number of goals and successors do not apply. Methods raise `TimeLimitExceeded` when the time limit is
    reached.

    Args:
        facts: Ground atoms.
        rules: Rules. All variables of a head must occur in the body.
        time_limit: Time limit for all searches of this prover together. None means no limit.
    """

    def __init__(
        self, facts: Iterable[Atom], rules: Iterable[Rule], time_limit: TimeLimit | None = None
    ) -> None:
        self._index, self._time_limit = FactIndex(facts, rules), time_limit

    def is_fact(self, atom: Atom) -> bool:
        """Return whether an atom is one of the facts."""
        return atom in self._index.facts

    def proofs(self, query: ProofQuery, max_depth: int = DEFAULT_MAX_DEPTH) -> Iterator[Proof]:
        """Yield all proofs of a ground query, shortest first.

        Proofs in which a goal occurs below itself are left out.

        Args:
            query: A query without variables.
            max_depth: Maximum number of steps in a proof.
        """
        _check_max_depth(max_depth)
        if not query.is_ground:
            raise ValueError(f"{query.atom} has variables; use `answers` to list their values")
        tables = GoalTables(self._index, query.atom, self._time_limit)
        goal, terms = query.pattern, query.atom.arguments
        for cost in range(1, max_depth + 1):
            if tables.answers(goal, cost).get(terms, cost + 1) <= cost:
                yield from _build_proofs(tables, goal, ("",) * len(terms), terms, cost)

    def answers(self, query: ProofQuery, max_depth: int = DEFAULT_MAX_DEPTH) -> Iterator[Proof]:
        """Yield the shortest proof of each answer to a query with variables.

        Answers are sorted by the depth of their proof and then by name.

        Args:
            query: A query with at least one variable.
            max_depth: Maximum number of steps in a proof.
        """
        _check_max_depth(max_depth)
        if query.is_ground:
            raise ValueError(f"{query.atom} has no variables; use `proofs` to list its proofs")
        tables, goal = GoalTables(self._index, None, self._time_limit), query.pattern
        for depth in range(1, max_depth + 1):
            found = [terms for terms, cost in tables.answers(goal, depth).items() if cost == depth]
            for terms in sorted(found, key=lambda terms: [name_sort_key(name) for name in terms]):
                yield next(_build_proofs(tables, goal, query.free, terms, depth))

    def explain_failure(self, query: ProofQuery, max_depth: int = DEFAULT_MAX_DEPTH) -> list[str]:
        """Explain why a query has no proof.

        The result has one sentence for each rule whose head has the query's predicate, or one sentence that
        says that there is no such rule.

        Args:
            query: A query without a proof.
            max_depth: Maximum number of steps in a proof.
        """
        atom = query.atom
        rules = self._index.rules.get(atom.predicate, ())
        reasons = []
        if query.is_ground and self.is_fact(atom):
            reasons.append(f"{atom} is a fact, which cannot prove itself")
        if not rules:
            return [*reasons, f"no rule has {atom.predicate} in its head"]
        tables = GoalTables(self._index, atom if query.is_ground else None, self._time_limit)
        goal, plans = query.pattern, tables.plans(query.pattern)
        return reasons + [_explain_rule(tables, goal, rule, plan, max_depth) for rule, plan in plans]


def _explain_rule(tables: GoalTables, goal: GoalPattern, rule: Rule, plan: JoinPlan, max_depth: int) -> str:
    rows = tables.start(rule, plan, goal)
    if not rows:
        return f"{rule.name}: its head, {rule.format_atom(rule.head)}, does not match"
    values = {name: term for name, term in zip(rule.head[1:], goal.values, strict=True) if term is not None}
    satisfied: list[str] = []
    for step in plan.steps:
        body = rule.body[step.position]
        atom = Atom(body.predicate, *(values.get(name, name) for name in body[1:]))
        rows = tables.join(step, rows, max_depth - 1)
        if not rows:
            return f"{rule.name}: no {atom}" + (f" with {', '.join(satisfied)}" if satisfied else "")
        satisfied.append(str(atom))
    return f"{rule.name}: its body can only be proved with the query itself"


def explain_failure(
    knowledge_base: "KnowledgeBase", query: Atom | str, max_depth: int = DEFAULT_MAX_DEPTH
) -> list[str]:
    """Explain why a query has no proof.

    The result has one sentence for each rule whose head has the query's predicate, or one sentence that says
    that there is no such rule.

    Args:
        knowledge_base: The facts and rules.
        query: A query without a proof; see `parse_query`.
        max_depth: Maximum number of steps in a proof.
    """
    prover = Prover(knowledge_base.facts, knowledge_base.rules)
    return prover.explain_failure(parse_query(knowledge_base, query), max_depth)


def _build_proofs(
    tables: GoalTables,
    goal: GoalPattern,
    free: Terms,
    terms: Terms,
    cost: int,
    ancestors: frozenset[Atom] = frozenset(),
) -> Iterator[Proof]:
    """Yield all proofs of one answer to a goal, each with exactly `cost` steps.

    Args:
        tables: Cached answers to goals, with their costs.
        goal: The goal.
        free: Free variables of the goal, in the format of `Proof.free`.
        terms: Arguments of the answer.
        cost: Number of steps in each proof.
        ancestors: Goals on the path from the query to `goal`. They must not occur in the proofs.
    """
    atom = Atom(goal.predicate, *terms)
    if atom in tables.index.facts and atom != tables.excluded:
        if goal.fact_cost == cost:
            yield Proof(atom, free)
        return
    for rule in tables.index.rules.get(goal.predicate, ()):
        values = match_head(rule, terms)
        if values is not None:
            body = list(zip(rule.body, free_arguments(rule, free), strict=True))
            for children, bound in _build_bodies(tables, body, values, cost - 1, ancestors | {atom}):
                substitution = tuple((name, bound[name]) for name in rule.variables)
                yield Proof(atom, free, rule, substitution, children)


def _build_bodies(
    tables: GoalTables,
    body: Sequence[tuple[Atom, Terms]],
    values: dict[str, str],
    cost: int,
    ancestors: frozenset[Atom],
) -> Iterator[tuple[tuple[Proof, ...], dict[str, str]]]:
    """Find all ways to prove the remaining body atoms of a rule in a total of exactly `cost` steps.

    Args:
        tables: Cached answers to goals, with their costs.
        body: The remaining body atoms, each with its free variables in the format of `Proof.free`.
        values: Values of the rule's variables that are already bound. All head variables are bound.
        cost: Total number of steps in the proofs.
        ancestors: Goals that must not occur in the proofs.

    Yields:
        A tuple with one proof for each remaining body atom, and a dictionary with the values of all variables
        of the rule.
    """
    if not body:
        if cost == 0:
            yield (), values
        return
    (atom, free), *others = body
    # Arguments that are equal because of a shared variable in the parent goal are equal here, too.
    names = [name or term for name, term in zip(free, atom[1:], strict=True)]
    known = tuple(map(values.get, atom[1:]))
    goal = GoalPattern(atom.predicate, tuple(map(bool, free)), first_positions(names), known)
    for terms, least in tables.answers(goal, cost).items():
        if least > cost or Atom(atom.predicate, *terms) in ancestors:
            continue
        extended = values | dict(zip(atom[1:], terms, strict=True))
        for child_cost in range(least if others else cost, cost + 1):
            for child in _build_proofs(tables, goal, free, terms, child_cost, ancestors):
                for rest, bound in _build_bodies(tables, others, extended, cost - child_cost, ancestors):
                    yield (child, *rest), bound


def prove(
    knowledge_base: "KnowledgeBase", query: Atom | str, max_depth: int = DEFAULT_MAX_DEPTH
) -> Proof | None:
    """Return the shortest proof of a query; None if it has no proof with at most `max_depth` steps.

    A query without variables is not used as a fact in its own proof. For a query with variables, the shortest
    proof of any answer is returned.

    >>> from phalanx.kg import KnowledgeBase
    >>> families = KnowledgeBase.generate(num_families=2)
    >>> query = families.queries("test")[0]
    >>> prove(families, query).depth == families.depths("test")[query]
    True
    """
    parsed = parse_query(knowledge_base, query)
    prover = Prover(knowledge_base.facts, knowledge_base.rules)
    found = prover.proofs(parsed, max_depth) if parsed.is_ground else prover.answers(parsed, max_depth)
    return next(found, None)


def parse_query(knowledge_base: "KnowledgeBase", query: Atom | str) -> ProofQuery:
    """Parse a query and check its names.

    A single capital letter, or a name that starts with `_` or `?`, is a variable, unless the knowledge base
    has a constant with this name. All other names, and all quoted names, must be constants of the knowledge
    base. For an unknown name, the message of the `ValueError` suggests similar names.
    """
    texts = split_atom(query) if isinstance(query, str) else query
    atom = Atom(*map(unquote_name, texts)) if isinstance(query, str) else query
    constants = frozenset(knowledge_base.entities)
    check_name(atom.predicate, knowledge_base.predicates, "predicate", atom)
    check_arity(atom, knowledge_base.arities)
    free = [""] * (len(atom) - 1)
    for position, (text, name) in enumerate(zip(texts[1:], atom[1:], strict=True)):
        if name not in constants and _VARIABLE(text):
            # Each `_` is a separate variable.
            free[position] = f"_{position + 1}" if text == "_" else name
        else:
            hint = "A variable is one capital letter, ?name or _name"
            check_name(name, constants, "constant", atom, hint)
    return ProofQuery(atom, tuple(free))


def _check_max_depth(max_depth: int) -> None:
    if max_depth < 1:
        raise ValueError(f"max_depth must be at least 1, got {max_depth}")
