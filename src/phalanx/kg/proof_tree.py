"""A proof as a tree of goals, each proved by a rule or a fact, and the check that it is one.

Finding proofs is in `proving`, drawing them in `phalanx.proofs.rendering`.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping

from phalanx.kg.atoms import Atom, Rule

Substitution = tuple[tuple[str, str], ...]
"""(variable, constant) pairs."""


@dataclasses.dataclass(frozen=True)
class Proof:
    """A goal and why it holds: it is a fact, or a rule's body holds."""

    goal: Atom
    """What is proved, without variables."""
    free: tuple[str, ...] = ()
    """For each argument, the variable that stood there when the goal's turn came; empty if it was known."""
    rule: Rule | None = None
    """The rule that was used; None for a fact."""
    substitution: Substitution = ()
    """What every variable of the rule stands for."""
    children: tuple["Proof", ...] = ()
    """The proofs of the rule's body, in its order; none for a fact."""

    def __post_init__(self) -> None:
        if not self.free:
            object.__setattr__(self, "free", ("",) * (len(self.goal) - 1))

    @property
    def asked(self) -> Atom:
        """The goal as it stood when its turn came, with the variables that it still had."""
        terms = (name or term for name, term in zip(self.free, self.goal[1:], strict=True))
        return Atom(self.goal.predicate, *terms)

    @property
    def depth(self) -> int:
        """Steps of the environment: one a rule, and one a fact that was found for a goal with variables.

        Ground goals that are facts vanish and cost nothing; a query that is a fact takes a step even so.
        """
        return max(1, self._cost)

    @property
    def _cost(self) -> int:
        if self.rule is None:
            return int(any(self.free))
        return 1 + sum(child._cost for child in self.children)

    def nodes(self) -> Iterator["Proof"]:
        """This proof and all below it, from the top and from the left."""
        yield self
        for child in self.children:
            yield from child.nodes()

    def check(self, facts: Collection[Atom], rules: Collection[Rule]) -> None:
        """Raises unless the proof follows from facts and rules, step by step, without its own goal."""
        facts = facts if isinstance(facts, set | frozenset) else frozenset(facts)
        if self.rule is not None:
            facts = facts - {self.goal}
        self._check(facts, rules)

    def _check(self, facts: Collection[Atom], rules: Collection[Rule]) -> None:
        if self.rule is None:
            if self.goal not in facts or self.children or self.substitution:
                raise ValueError(f"{self.goal} is not a fact that this proof may use")
            return
        rule, values = self.rule, dict(self.substitution)
        if rule not in rules:
            raise ValueError(f"{self.goal} is proved by {rule.name}, which is not one of the rules")
        values |= {name: name for name in rule.constants}
        if _instance(rule.head, values) != self.goal:
            raise ValueError(f"the head of {rule.name} is not {self.goal} under {values}")
        if tuple(_instance(atom, values) for atom in rule.body) != tuple(c.goal for c in self.children):
            raise ValueError(f"below {self.goal} are other goals than the body of {rule.name} under {values}")
        for child, free in zip(self.children, free_arguments(rule, self.free), strict=True):
            if child.free != free:
                raise ValueError(f"{child.goal} was asked with {free} unknown, the proof says {child.free}")
            child._check(facts, rules)


def free_arguments(rule: Rule, called: tuple[str, ...]) -> list[tuple[str, ...]]:
    """For each atom of the body, the variables that are unknown when its turn comes, as in `Proof.free`.

    `called` has the unknown arguments of the goal that the rule's head was unified with. Constants are known.

    >>> rule = Rule("r", 1.0, (Atom("near", "X", "Z"), Atom("in", "Z", "Y")), Atom("in", "X", "Y"))
    >>> free_arguments(rule, ("", "Y"))
    [('', 'Z'), ('', 'Y')]
    """
    same = merged_variables(rule, called)
    known = {same.get(term, term) for term, name in zip(rule.head[1:], called, strict=True) if not name}
    known |= rule.constants
    free = []
    for atom in rule.body:
        terms = tuple(same.get(term, term) for term in atom[1:])
        free.append(tuple("" if term in known else term for term in terms))
        known.update(terms)
    return free


def merged_variables(rule: Rule, called: tuple[str, ...]) -> Mapping[str, str]:
    """What variables of the head equal, where one unknown is asked for in several arguments.

    Each is told as the constant that is among them, or else as the first of them.
    """
    same: dict[str, str] = {}

    def one(term: str) -> str:
        while term in same:
            term = same[term]
        return term

    standing: dict[str, str] = {}
    for term, name in zip(rule.head[1:], called, strict=True):
        if not name:
            continue
        kept, other = one(standing.setdefault(name, term)), one(term)
        if kept == other or rule.constants >= {kept, other}:
            continue
        if other in rule.constants:
            kept, other = other, kept
        same[other] = kept
    return {term: one(term) for term in same}


def match_head(rule: Rule, terms: tuple[str | None, ...]) -> dict[str, str] | None:
    """The values of the head's variables and of all constants; None where the head is not of this form."""
    values = {name: name for name in rule.constants}
    for name, term in zip(rule.head[1:], terms, strict=True):
        if term is not None and values.setdefault(name, term) != term:
            return None
    return values


def _instance(atom: Atom, values: Mapping[str, str]) -> Atom:
    # A variable without a value stands for nothing that a goal could have.
    return Atom(atom.predicate, *(values.get(variable, "") for variable in atom[1:]))
