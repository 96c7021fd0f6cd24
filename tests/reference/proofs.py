"""Reference implementation of resolution in Python.

Atoms are tuples (predicate, first, second, ...) of integers, states are tuples of atoms, and variables of
rules are negative.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

Atom = tuple[int, ...]
State = tuple[Atom, ...]
Rule = tuple[Atom, Sequence[Atom]]


class KnowledgeBase:
    def __init__(
        self,
        facts: Iterable[Sequence[int]],
        rules: Sequence[Rule],
        predicates: int,
        constants: int,
        arity: int = 2,
    ):
        self.facts = sorted({tuple(int(x) for x in fact) for fact in facts})
        self.fact_set = set(self.facts)
        self.rules = rules
        self.constants = constants
        nothing = (0,) * arity
        self.true: State = ((predicates + 1, *nothing),)
        self.false: State = ((predicates + 2, *nothing),)
        self.end: State = ((predicates + 3, *nothing),)
        self._by: dict[tuple, list[Atom]] = {}
        for fact in self.facts:
            self._by.setdefault((fact[0],), []).append(fact)
            for place, term in enumerate(fact[1:]):
                self._by.setdefault((fact[0], place, term), []).append(fact)

    def is_variable(self, term: int) -> bool:
        return term < 0 or term > self.constants

    def facts_like(self, goal: Atom) -> list[Atom]:
        """Return the facts that have the constants of a goal, or a superset of them."""
        for place, term in enumerate(goal[1:]):
            if not self.is_variable(term):
                return self._by.get((goal[0], place, term), [])
        return self._by.get((goal[0],), [])


class Expansion(NamedTuple):
    states: list[State]
    overflow: bool
    too_long: int


def walk(term: int, bindings: dict[int, int]) -> int:
    while term in bindings:
        term = bindings[term]
    return term


def unify(kb: KnowledgeBase, left: Atom, right: Atom) -> dict[int, int] | None:
    """Return bindings that make two atoms equal, or None."""
    if left[0] != right[0]:
        return None
    bindings: dict[int, int] = {}
    for a, b in zip(left[1:], right[1:], strict=True):
        a, b = walk(a, bindings), walk(b, bindings)
        if a == b:
            continue
        if kb.is_variable(a):
            bindings[a] = b
        elif kb.is_variable(b):
            bindings[b] = a
        else:
            return None
    return bindings


def apply(atom: Atom, bindings: dict[int, int]) -> Atom:
    return (atom[0], *(walk(term, bindings) for term in atom[1:]))


def canonical(kb: KnowledgeBase, state: Iterable[Atom]) -> State:
    """Rename variables by first occurrence: C + 1, C + 2, ..."""
    names: dict[int, int] = {}

    def name(term: int) -> int:
        if not kb.is_variable(term):
            return term
        return names.setdefault(term, kb.constants + 1 + len(names))

    return tuple((predicate, *map(name, terms)) for predicate, *terms in state)


def usable(kb: KnowledgeBase, atom: Atom, query: Atom | None) -> bool:
    """Return whether an atom is a fact other than the query."""
    return atom in kb.fact_set and atom != query


def resolvents(kb: KnowledgeBase, state: State, query: Atom | None) -> Iterator[State]:
    """List the resolvents of the first goal by facts, then by rules."""
    goal, rest = state[0], state[1:]
    clauses: list[Rule] = [(fact, ()) for fact in kb.facts_like(goal) if fact != query]
    clauses += kb.rules
    for head, body in clauses:
        # No variable of a rule is negative elsewhere, so a rule's variables are fresh as they are.
        bindings = unify(kb, head, goal)
        if bindings is None:
            continue
        goals = [apply(atom, bindings) for atom in (*body, *rest)]
        yield canonical(kb, (atom for atom in goals if not usable(kb, atom, query)))


def expand(
    kb: KnowledgeBase,
    state: State,
    query: Atom | None,
    *,
    visited: Iterable[State] = (),
    max_atoms: int = 6,
    max_states: int = 10**9,
    end_action: bool = False,
) -> Expansion:
    """Return the successors; `query` is None if the query may be used as a fact."""
    budget = max_states - end_action
    seen = set(visited)
    states: list[State] = []
    too_long = 0
    overflow = False
    for goals in resolvents(kb, state, query):
        if len(goals) > max_atoms:
            too_long += 1
            continue
        successor = goals or kb.true
        if successor in seen:
            continue
        if len(states) == budget:
            overflow = True
            break
        seen.add(successor)
        states.append(successor)
    if not states:
        states = [kb.false]
    elif end_action:
        states.append(kb.end)
    return Expansion(states, overflow, too_long)


def closure(kb: KnowledgeBase, excluded: Atom | None) -> set[Atom]:
    """Compute everything that follows from all facts except one by forward chaining."""
    known = set(kb.fact_set) - {excluded}
    while True:
        new: set[Atom] = set()
        by_start: dict[Atom, list[Atom]] = {}
        for atom in known:
            for start in (atom[:1], atom[:2]):
                by_start.setdefault(start, []).append(atom)
        for head, body in kb.rules:
            for bindings in _matches(body, by_start, {}):
                # A variable that is in the head alone stands for any constant.
                loose = {t for t in head[1:] if t < 0 and t not in bindings}
                for values in product(range(1, kb.constants + 1), repeat=len(loose)):
                    new.add(apply(head, bindings | dict(zip(loose, values, strict=True))))
        if new <= known:
            return known
        known |= new


def _matches(
    body: Sequence[Atom], known: dict[Atom, list[Atom]], bindings: dict[int, int]
) -> Iterator[dict[int, int]]:
    if not body:
        yield bindings
        return
    goal = apply(body[0], bindings)
    terms = goal[1:]
    # The facts of its predicate, and of its first argument where that is known.
    for fact in known.get(goal[:2] if terms[0] > 0 else goal[:1], []):
        more = dict(bindings)
        # A constant stands for itself; a variable that has a value already stands for that.
        if all(
            (t > 0 and t == v) or (t < 0 and more.setdefault(t, v) == v)
            for t, v in zip(terms, fact[1:], strict=True)
        ):
            yield from _matches(body[1:], known, more)
