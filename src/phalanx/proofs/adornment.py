"""Rules told apart by which arguments are known when they are called, as resolution calls them.

Resolution takes goals from the left, so the call of a rule's head decides what is known at each atom of its
body. The chaining that counts the steps of resolution is in `chaining`.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Literal

from phalanx.proofs.vocabulary import EncodedAtom, EncodedRule

Mode = Literal["bb", "bf", "fb", "ff", "ss"]
"""For each argument of a goal: bound or free; `ss` for one free variable in both places."""

Call = tuple[int, Mode]
"""A predicate and the mode that it is called in."""


@dataclasses.dataclass(frozen=True)
class AdornedRule:
    """A rule as it runs when its head is called in one mode."""

    head: Call
    head_variables: tuple[int, int]
    body: tuple[Call, ...]
    body_variables: tuple[tuple[int, int], ...]


def fact_cost(mode: Mode) -> int:
    """Steps that a fact costs: a ground goal that is a fact is dropped, any other is a choice among facts."""
    return 0 if mode == "bb" else 1


def adorn(rules: Iterable[EncodedRule], predicates: Iterable[int]) -> tuple[list[AdornedRule], set[Call]]:
    """The rules in every mode that ground goals of these predicates lead to, and all calls that occur."""
    by_head: dict[int, list[EncodedRule]] = {}
    for rule in rules:
        by_head.setdefault(rule[0][0], []).append(rule)
    todo: list[Call] = [(predicate, "bb") for predicate in sorted(set(predicates))]
    calls, adorned = set(todo), []
    while todo:
        call = todo.pop()
        for rule in by_head.get(call[0], ()):
            adorned.append(_adorn_rule(rule, call))
            for goal in adorned[-1].body:
                if goal not in calls:
                    calls.add(goal)
                    todo.append(goal)
    return adorned, calls


def check_rules(rules: Sequence[EncodedRule]) -> None:
    """Raises unless every rule has variables only, and in its head none that its body does not bind."""
    for number, (head, body) in enumerate(rules):
        if any(argument >= 0 for atom in (head, *body) for argument in atom[1:]):
            raise ValueError(
                f"rule {number} has a constant; forward chaining takes rules with variables only"
            )
        if not set(head[1:]) <= {variable for atom in body for variable in atom[1:]}:
            raise ValueError(
                f"rule {number} has a variable in its head that is not in its body, so that it holds of "
                "every constant; forward chaining needs each variable of a head in the body"
            )


def _adorn_rule(rule: EncodedRule, call: Call) -> AdornedRule:
    head, body = rule
    mode = call[1]
    left, right = head[1:]
    if mode == "ss":
        # Both arguments of the call are one variable, and so are both of the head's.
        body = tuple(_replace(atom, right, left) for atom in body)
        right = left
    bound = {variable for variable, letter in zip((left, right), mode, strict=True) if letter == "b"}
    calls: list[Call] = []
    for predicate, *arguments in body:
        calls.append((predicate, _mode(arguments, bound)))
        bound.update(arguments)
    return AdornedRule(call, (left, right), tuple(calls), tuple(atom[1:] for atom in body))


def _mode(arguments: Sequence[int], bound: set[int]) -> Mode:
    first, second = (argument in bound for argument in arguments)
    if first and second:
        return "bb"
    if first or second:
        return "bf" if first else "fb"
    return "ss" if arguments[0] == arguments[1] else "ff"


def _replace(atom: EncodedAtom, old: int, new: int) -> EncodedAtom:
    predicate, first, second = atom
    return predicate, new if first == old else first, new if second == old else second
