"""Atoms and rules, and the text that they are written in.

Files of them are read in `files`; their numbers are given out in `vocabulary`.
"""

import dataclasses
import math
import re
from typing import NamedTuple


class Atom(NamedTuple):
    """`predicate(first,second)`: two constants in a fact or a query, two variables in a rule."""

    predicate: str
    first: str
    second: str

    def __str__(self) -> str:
        # The special atoms of a finished proof, True and False, have no arguments.
        return f"{self.predicate}({self.first},{self.second})" if self.first else self.predicate


@dataclasses.dataclass(frozen=True)
class Rule:
    """`body -> head`: the head holds wherever every atom of the body does. All arguments are variables."""

    name: str
    weight: float
    body: tuple[Atom, ...]
    head: Atom

    def __post_init__(self) -> None:
        if not self.body:
            raise ValueError(f"rule {self.name!r} has no body; what holds always is a fact")

    def __str__(self) -> str:
        """The line of `rules.txt` that reads back as this rule."""
        return f"{self.name}:{self.weight!r}:{', '.join(map(str, self.body))} -> {self.head}"


# Names hold anything but blanks and the signs of the syntax: umls has `co-occurs_with`.
NAME = r"[^\s(),]+"
# Blanks and no line ends, so that the same pattern serves a line and, in `files`, a whole file.
ATOM = rf"({NAME})[ \t]*\([ \t]*({NAME})[ \t]*,[ \t]*({NAME})[ \t]*\)"
_ATOM = re.compile(ATOM)
_ATOM_LINE = re.compile(rf"[ \t]*{ATOM}[ \t]*\.?[ \t]*")
_COMMA = re.compile(r"[ \t]*,[ \t]*")


def name_order(name: str) -> tuple[bool, int, str]:
    """A key to sort names by: numerals as numbers, before other names."""
    numeral = name.isascii() and name.isdecimal()
    return not numeral, int(name) if numeral else 0, name


def parse_atom(text: str) -> Atom:
    """An atom from `aunt(5,76)`, with or without a final dot.

    >>> parse_atom("aunt(5,76).")
    Atom(predicate='aunt', first='5', second='76')
    """
    found = _ATOM_LINE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text.strip()!r} is not an atom; expected predicate(first,second)")
    return Atom(*found.groups())


def parse_rule(text: str) -> Rule:
    """A rule from `name:weight:body -> head`.

    >>> print(parse_rule("r26:0.69:wife(b,a) -> husband(a,b)"))
    r26:0.69:wife(b,a) -> husband(a,b)
    """
    line = text.strip()
    parts = line.split(":", 2)
    sides = parts[-1].split("->")
    if len(parts) != 3 or not parts[0].strip() or len(sides) != 2:
        raise ValueError(f"{line!r} is not a rule; expected name:weight:body -> head")
    try:
        weight = float(parts[1])
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight):
        raise ValueError(f"the weight of rule {parts[0].strip()!r} must be a number, got {parts[1]!r}")
    return Rule(parts[0].strip(), weight, _parse_body(sides[0].strip()), parse_atom(sides[1]))


def _parse_body(text: str) -> tuple[Atom, ...]:
    atoms, at = [], 0
    while found := _ATOM.match(text, at):
        atoms.append(Atom(*found.groups()))
        at = found.end()
        comma = _COMMA.match(text, at)
        if comma is None:
            break
        at = comma.end()
    if at != len(text) or not atoms or text.endswith(","):
        raise ValueError(f"{text!r} is not the body of a rule; expected atoms with commas between them")
    return tuple(atoms)
