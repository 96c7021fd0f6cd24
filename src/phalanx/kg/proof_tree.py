"""Proof trees and their verification."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping

from phalanx.kg.atoms import Atom, Rule

Substitution = tuple[tuple[str, str], ...]
"""Values of variables, as (variable, constant) pairs."""


@dataclasses.dataclass(frozen=True)
class Proof:
    """A proof tree: a goal that is either a fact, or the head of a rule whose body atoms are proved."""

    goal: Atom
    """The proved atom, without variables."""
    free: tuple[str, ...] = ()
    """For each argument, the name of the variable that was in its place when the proof search selected the
    goal, or an empty string if the argument was already bound. If an empty tuple is passed to the
    constructor, it is replaced by one empty string per argument."""
    rule: Rule | None = None
    """The rule that was applied; None for a fact."""
    substitution: Substitution = ()
    """The value of every variable of the rule."""
    children: tuple["Proof", ...] = ()
    """Proofs of the rule's body atoms, in order; empty for a fact."""

    def __post_init__(self) -> None:
        if not self.free:
            object.__setattr__(self, "free", ("",) * (len(self.goal) - 1))

    @property
    def selected_goal(self) -> Atom:
        """The goal as the proof search selected it, with variables for arguments that were not yet bound."""
        terms = (name or term for name, term in zip(self.free, self.goal[1:], strict=True))
        return Atom(self.goal.predicate, *terms)

    @property
    def depth(self) -> int:
        """Number of steps that this proof takes in the proof environment.

        Each application of a rule takes one step, and so does each unification of a fact with a goal that has
        variables. Ground goals that are facts take no step. However, the depth is at least 1, even if
        the query itself is a fact.
        """
        return max(1, self._cost)

    @property
    def _cost(self) -> int:
        if self.rule is None:
            return int(any(self.free))
        return 1 + sum(child._cost for child in self.children)

    def format_substitution(self) -> str:
        """Format the values of the rule's variables, as in `X = ann, Y = bob`."""
        return ", ".join(f"{name} = {term}" for name, term in self.substitution)

    def nodes(self) -> Iterator["Proof"]:
        """Yield this proof and all of its subproofs in preorder."""
        yield self
        for child in self.children:
            yield from child.nodes()

    def check(self, facts: Collection[Atom], rules: Collection[Rule]) -> None:
        """Raise `ValueError` unless the proof is valid.

        In a valid proof, every step follows from the given facts and rules. If the root's goal is proved by a
        rule, this goal must not be used as a fact elsewhere in the tree.
        """
        excluded = () if self.rule is None else (self.goal,)
        self._check(frozenset(facts).difference(excluded), rules)

    def _check(self, facts: Collection[Atom], rules: Collection[Rule]) -> None:
        if self.rule is None:
            if self.goal not in facts or self.children or self.substitution:
                raise ValueError(f"{self.goal} is not a fact that this proof may use")
            return
        rule, values = self.rule, dict(self.substitution)
        if rule not in rules:
            raise ValueError(f"{self.goal} is proved by {rule.name}, which is not one of the rules")
        values |= {name: name for name in rule.constants}
        if _instantiate(rule.head, values) != self.goal:
            raise ValueError(f"the head of {rule.name} is not {self.goal} under {values}")
        if tuple(_instantiate(atom, values) for atom in rule.body) != tuple(c.goal for c in self.children):
            raise ValueError(f"the goals below {self.goal} are not the body of {rule.name} under {values}")
        for child, free in zip(self.children, free_arguments(rule, self.free), strict=True):
            if child.free != free:
                raise ValueError(
                    f"{child.goal} was selected with free arguments {free}, but the proof has {child.free}"
                )
            child._check(facts, rules)


def free_arguments(rule: Rule, head_free: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return which arguments of each body atom are free when the proof search selects the atom.

    Body atoms are selected from left to right. Proving an atom binds all of its variables. The result has one
    tuple per body atom, in the format of `Proof.free`.

    Args:
        rule: The rule.
        head_free: `Proof.free` of the goal that the head was unified with.

    >>> rule = Rule("r", 1.0, (Atom("near", "X", "Z"), Atom("in", "Z", "Y")), Atom("in", "X", "Y"))
    >>> free_arguments(rule, ("", "Y"))
    [('', 'Z'), ('', 'Y')]
    """
    merged = merge_variables(rule, head_free)
    bound = {merged.get(term, term) for term, name in zip(rule.head[1:], head_free, strict=True) if not name}
    bound |= rule.constants
    free = []
    for atom in rule.body:
        terms = tuple(merged.get(term, term) for term in atom[1:])
        free.append(tuple("" if term in bound else term for term in terms))
        bound.update(terms)
    return free


def merge_variables(rule: Rule, head_free: tuple[str, ...]) -> Mapping[str, str]:
    """Unify terms of a rule's head that must be equal because the goal repeats a variable.

    If a free variable occurs at several positions of the goal, the head's terms at these positions must be
    equal. They are replaced by one of them: a constant if there is one, and otherwise the first variable.

    Args:
        rule: The rule.
        head_free: `Proof.free` of the goal with which the head is unified.

    Returns:
        A mapping from each head variable that is replaced to its replacement.
    """
    terms = list(rule.head[1:])
    for position, name in enumerate(head_free):
        kept, other = terms[head_free.index(name)], terms[position]
        if name and not rule.constants >= {kept, other}:
            if other in rule.constants:
                kept, other = other, kept
            terms = [kept if term == other else term for term in terms]
    return {old: new for old, new in zip(rule.head[1:], terms, strict=True) if old != new}


def match_head(rule: Rule, terms: tuple[str | None, ...]) -> dict[str, str] | None:
    """Match the head of a rule with the arguments of a goal.

    Args:
        rule: The rule.
        terms: Arguments of the goal; None for arguments that are not known.

    Returns:
        A dictionary that maps head variables to the known arguments of the goal, and each constant of the
        rule to itself. None if the head does not match.
    """
    values = {name: name for name in rule.constants}
    for name, term in zip(rule.head[1:], terms, strict=True):
        if term is not None and values.setdefault(name, term) != term:
            return None
    return values


def _instantiate(atom: Atom, values: Mapping[str, str]) -> Atom:
    # The empty string, which no goal contains, stands for a variable without a value.
    return Atom(atom.predicate, *(values.get(variable, "") for variable in atom[1:]))
