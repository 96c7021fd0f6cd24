"""Atoms and rules, and the text that they are written in.

Files of them are read in `files`; their numbers are given out in `vocabulary`.

Names in quotes, as `in('New York',usa)`, may hold anything; `\\'`, `\\\\`, `\\n`, `\\t` and `\\r` stand for
what cannot be written plainly. Facts have constants only, however they are spelled. In a rule a name that
begins with a capital letter, `_` or `?` is a variable (`_` alone is a new one each time, `?x` is x), and any
other one, and any quoted one, a constant; but a rule whose arguments are all single small letters, as in
`wife(b,a) -> husband(a,b)`, has them for variables, as many published rule files do.
"""

import dataclasses
import functools
import itertools
import math
import re
from typing import Any

# Plain names hold anything but blanks and the signs of the syntax: umls has `co-occurs_with`.
_PLAIN = r"[^\s(),'][^\s(),]*"
_QUOTED = r"'(?:[^'\\\n]|\\.|'')*'"
NAME = rf"({_QUOTED}|{_PLAIN})"
# Blanks and no line ends, so that the same pattern serves a line and, in `files`, a whole file. A group is
# empty where an argument is not there.
_NEXT = rf"[ \t]*,[ \t]*{NAME}"
ATOM = rf"{NAME}[ \t]*\([ \t]*{NAME}(?:{_NEXT})?(?:{_NEXT})?[ \t]*\)"
MOST_ARGUMENTS = 3
ATOM_FORM = "predicate(first,second), with one to three arguments"
_ATOM = re.compile(ATOM)
_ATOM_LINE = re.compile(rf"[ \t]*{ATOM}[ \t]*\.?[ \t]*")
_IS_PLAIN = re.compile(_PLAIN).fullmatch
_OLD_VARIABLE = re.compile("[a-z]").fullmatch
_ESCAPED = re.compile(r"\\(.)|''")
_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_MEANINGS = {"n": "\n", "t": "\t", "r": "\r"}


class Atom(tuple[str, ...]):
    """`predicate(first,second)`: constants in a fact or a query, variables too in a rule.

    A tuple of the predicate and one to three arguments. The special atoms of a finished proof, `True` and
    `False`, have none.

    >>> print(Atom("human", "ada"), Atom("gave", "ada", "book", "bob").arguments)
    human(ada) ('ada', 'book', 'bob')
    """

    __slots__ = ()

    def __new__(cls, predicate: str, *arguments: str) -> "Atom":
        if len(arguments) > MOST_ARGUMENTS:
            raise ValueError(
                f"{predicate} has {len(arguments)} arguments; a predicate has one to {MOST_ARGUMENTS}"
            )
        return tuple.__new__(cls, (predicate, *arguments))

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)

    @property
    def predicate(self) -> str:
        """What the atom says."""
        return self[0]

    @property
    def arguments(self) -> tuple[str, ...]:
        """What it says it of."""
        return tuple(self[1:])

    @property
    def first(self) -> str:
        """The first argument."""
        return self[1]

    @property
    def second(self) -> str:
        """The second argument, of an atom that has one."""
        return self[2]

    def __str__(self) -> str:
        name, *terms = self
        return f"{quoted(name)}({','.join(map(quoted, terms))})" if terms else name

    def __repr__(self) -> str:
        return f"Atom({', '.join(map(repr, self))})"


@dataclasses.dataclass(frozen=True)
class Rule:
    """`body -> head`: the head holds wherever every atom of the body does.

    Arguments are variables, but for those that are among the `constants`.
    """

    name: str
    weight: float
    body: tuple[Atom, ...]
    head: Atom
    constants: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not self.body:
            raise ValueError(f"rule {self.name!r} has no body; what holds always is a fact")
        if strange := self.constants.difference(self._arguments):
            raise ValueError(f"rule {self.name!r} names a constant that it does not have: {min(strange)!r}")

    @functools.cached_property
    def _arguments(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for atom in (self.head, *self.body) for name in atom[1:]))

    @property
    def variables(self) -> tuple[str, ...]:
        """Each once, those of the head first."""
        return tuple(name for name in self._arguments if name not in self.constants)

    def write(self, atom: Atom) -> str:
        """An atom of this rule as text, with variables that read back as such."""
        old = not self.constants and all(map(_OLD_VARIABLE, self._arguments))

        def term(name: str) -> str:
            if name in self.constants:
                plain = not _looks_variable(name) and not _OLD_VARIABLE(name)
                return quoted(name) if plain else _in_quotes(name)
            return name if old or (_looks_variable(name) and name[0] != "?" and name != "_") else f"?{name}"

        return f"{quoted(atom.predicate)}({','.join(map(term, atom[1:]))})"

    def __str__(self) -> str:
        """The line of `rules.txt` that reads back as this rule."""
        return (
            f"{self.name}:{self.weight!r}:{', '.join(map(self.write, self.body))} -> {self.write(self.head)}"
        )


def quoted(name: str) -> str:
    """The name as files have it: in quotes if it could not be read otherwise.

    >>> quoted("New York"), quoted("o'brien"), quoted("'tis")
    ("'New York'", "o'brien", "'\\\\'tis'")
    """
    return name if _IS_PLAIN(name) else _in_quotes(name)


def unquoted(text: str) -> str:
    """The name that a text of a file stands for.

    >>> unquoted("'New York'"), unquoted("york")
    ('New York', 'york')
    """
    if text[0] != "'":
        return text
    return _ESCAPED.sub(lambda found: _MEANINGS.get(found[1], found[1] or "'"), text[1:-1])


def _in_quotes(name: str) -> str:
    return "'" + "".join(_ESCAPES.get(sign, sign) for sign in name) + "'"


def _looks_variable(text: str) -> bool:
    return text[0].isupper() or text[0] in "_?"


def name_order(name: str) -> tuple[bool, int, str]:
    """A key to sort names by: numerals as numbers, before other names."""
    numeral = name.isascii() and name.isdecimal()
    return not numeral, int(name) if numeral else 0, name


def parse_atom(text: str) -> Atom:
    """An atom from `aunt(5,76)`, with or without a final dot.

    >>> parse_atom("in('New York',usa)."), parse_atom("city(oslo)")
    (Atom('in', 'New York', 'usa'), Atom('city', 'oslo'))
    """
    return Atom(*map(unquoted, split_atom(text)))


def split_atom(text: str) -> tuple[str, ...]:
    """Predicate and arguments of an atom as they are written, quotes and all."""
    found = _ATOM_LINE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text.strip()!r} is not an atom; expected {ATOM_FORM}")
    return _parts(found)


def _parts(found: re.Match[str]) -> tuple[str, ...]:
    return tuple(part for part in found.groups() if part is not None)


_FORM = "expected name:weight:body -> head, or head :- body."
_NAMED = re.compile(r"([^:]*):([^:(]*):")
_WEIGHTED = re.compile(r"([^\s:(]+)::")
_COMMA = re.compile(r"[ \t]*,[ \t]*")
_SIGN = re.compile(r"[ \t]*(->|:-)[ \t]*")


def parse_rule(text: str, name: str = "rule") -> Rule:
    """A rule from `name:weight:body -> head`, or from `head :- body.` with or without `weight::` before it.

    One that brings no name is called `name`, and one without a weight has the weight 1.

    >>> print(parse_rule("r26:0.69:wife(b,a) -> husband(a,b)"))
    r26:0.69:wife(b,a) -> husband(a,b)
    >>> print(parse_rule("0.9::european(X,europe) :- in(X,Y), in(Y,europe).", "r1"))
    r1:0.9:in(X,Y), in(Y,europe) -> european(X,europe)
    """
    line = text.strip()
    weight, clause = "1", line
    if found := _WEIGHTED.match(line):
        weight, clause = found[1], line[found.end() :]
    elif (found := _NAMED.match(line)) and (_number(found[2]) is not None or _sides(line)[1] != ":-"):
        name, weight, clause = found[1].strip(), found[2], line[found.end() :]
    left, sign, right = _sides(clause)
    if not name or not sign or (sign == "->" and clause == line):
        raise ValueError(f"{line!r} is not a rule; {_FORM}")
    number = _number(weight)
    if number is None:
        raise ValueError(f"the weight of rule {name!r} must be a number, got {weight!r}")
    body, head = (left, right) if sign == "->" else (right.removesuffix("."), left)
    return _rule(name, number, [*_body(body), split_atom(head)])


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _scan(text: str) -> tuple[list[tuple[str, ...]], int]:
    """The atoms that a text begins with, commas between them, and where they end."""
    atoms: list[tuple[str, ...]] = []
    at = 0
    while found := _ATOM.match(text, at):
        atoms.append(_parts(found))
        at = found.end()
        comma = _COMMA.match(text, at)
        if comma is None:
            break
        at = comma.end()
    return atoms, at


def _sides(clause: str) -> tuple[str, str, str]:
    """What stands before the arrow, the arrow, and what stands behind it; names may hold arrows as well."""
    sign = _SIGN.search(clause, _scan(clause)[1])
    return (clause[: sign.start()], sign[1], clause[sign.end() :]) if sign else (clause, "", "")


def _body(text: str) -> list[tuple[str, ...]]:
    atoms, at = _scan(text)
    if text[at:].strip() or not atoms or text.rstrip().endswith(","):
        raise ValueError(f"{text!r} is not the body of a rule; expected atoms with commas between them")
    return atoms


def _rule(name: str, weight: float, atoms: list[tuple[str, ...]]) -> Rule:
    """The rule of atoms as they are written, the head last."""
    texts = {term for atom in atoms for term in atom[1:]}
    old = all(map(_OLD_VARIABLE, texts))
    fresh = (f"_{number}" for number in itertools.count(1) if f"_{number}" not in texts)
    variables: set[str] = set()
    constants: set[str] = set()

    def term(text: str) -> str:
        if text == "_":
            text = next(fresh)
        variable = old or _looks_variable(text)
        found = text.removeprefix("?") if variable else unquoted(text)
        (variables if variable else constants).add(found)
        return found

    read = [Atom(unquoted(predicate), *map(term, terms)) for predicate, *terms in atoms]
    if both := variables & constants:
        raise ValueError(f"rule {name!r} calls a variable and a constant {min(both)!r}: rename the variable")
    return Rule(name, weight, tuple(read[:-1]), read[-1], frozenset(constants))
