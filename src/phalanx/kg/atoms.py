r"""Atoms, rules and their text syntax.

Quoted names, as in `in('New York',usa)`, may contain any character. The escape sequences are `\'`, `\\`,
`\n`, `\t` and `\r`. All arguments of facts are constants. In a rule, names that start with a capital letter,
`_` or `?` are variables. Every occurrence of `_` alone is a different variable, and `?x` is the variable x.
All other names, and all quoted names, are constants. There is one exception: if all arguments of a rule are
single lowercase letters, as in `wife(b,a) -> husband(a,b)`, they are variables, because many published rule
files use this style.
"""

import dataclasses
import functools
import itertools
import math
import re
from typing import Any

# Unquoted names can contain anything except whitespace and the punctuation of the syntax. For example, UMLS
# has `co-occurs_with`.
_UNQUOTED = r"[^\s(),'][^\s(),]*"
_QUOTED = r"'(?:[^'\\\n]|\\.|'')*'"
NAME = rf"({_QUOTED}|{_UNQUOTED})"
# Only spaces and tabs, no newlines, so that the same pattern can be applied to a line or to a complete file.
# The group of a missing argument is empty.
_NEXT_ARGUMENT = rf"[ \t]*,[ \t]*{NAME}"
ATOM = rf"{NAME}[ \t]*\([ \t]*{NAME}(?:{_NEXT_ARGUMENT})?(?:{_NEXT_ARGUMENT})?[ \t]*\)"
MAX_ARGUMENTS = 3
ATOM_FORM = "predicate(first,second), with one to three arguments"
_ATOM = re.compile(ATOM)
_ATOM_LINE = re.compile(rf"[ \t]*{ATOM}[ \t]*\.?[ \t]*")
_IS_UNQUOTED = re.compile(_UNQUOTED).fullmatch
_LOWERCASE_VARIABLE = re.compile("[a-z]").fullmatch
_ESCAPE_SEQUENCE = re.compile(r"\\(.)|''")
_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_ESCAPED_CHARACTERS = {"n": "\n", "t": "\t", "r": "\r"}


class Atom(tuple[str, ...]):
    """An atom such as `predicate(first,second)`, stored as a tuple of the predicate and its arguments.

    An atom has one to three arguments, except for the special atoms `True` and `False`, which end a proof
    search and have no arguments. Arguments of facts are constants. Arguments of rule atoms can also be
    variables.

    >>> print(Atom("human", "ada"), Atom("gave", "ada", "book", "bob").arguments)
    human(ada) ('ada', 'book', 'bob')
    """

    __slots__ = ()

    def __new__(cls, predicate: str, *arguments: str) -> "Atom":
        if len(arguments) > MAX_ARGUMENTS:
            raise ValueError(
                f"{predicate} has {len(arguments)} arguments; a predicate has one to {MAX_ARGUMENTS}"
            )
        return tuple.__new__(cls, (predicate, *arguments))

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)

    @property
    def predicate(self) -> str:
        """The name of the predicate (relation)."""
        return self[0]

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments as a tuple of names, without the predicate."""
        return tuple(self[1:])

    @property
    def first(self) -> str:
        """The first argument."""
        return self[1]

    @property
    def second(self) -> str:
        """The second argument. Raises `IndexError` if the atom has fewer than two arguments."""
        return self[2]

    def __str__(self) -> str:
        name, *terms = self
        return f"{quote_name(name)}({','.join(map(quote_name, terms))})" if terms else name

    def __repr__(self) -> str:
        return f"Atom({', '.join(map(repr, self))})"


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule `body -> head`: if every atom of the body is true, the head is true."""

    name: str
    weight: float
    """Weight of the rule. Query answering interprets it as the rule's confidence, a number from 0 to 1."""
    body: tuple[Atom, ...]
    head: Atom
    constants: frozenset[str] = frozenset()
    """Names of the arguments that are constants. All other arguments of the rule are variables."""

    @property
    def atoms(self) -> tuple[Atom, ...]:
        """The head, followed by the body atoms."""
        return self.head, *self.body

    def __post_init__(self) -> None:
        if not self.body:
            raise ValueError(f"rule {self.name!r} has no body; write an atom that is always true as a fact")
        if unused := self.constants.difference(self._arguments):
            raise ValueError(f"rule {self.name!r} lists a constant that it does not contain: {min(unused)!r}")

    @functools.cached_property
    def _arguments(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for atom in self.atoms for name in atom[1:]))

    @property
    def variables(self) -> tuple[str, ...]:
        """The distinct variables in order of first occurrence, starting with the head."""
        return tuple(name for name in self._arguments if name not in self.constants)

    def format_atom(self, atom: Atom) -> str:
        """Format an atom of this rule. Constants and variables are written so that `parse_rule` can tell them
        apart."""
        lowercase = not self.constants and all(map(_LOWERCASE_VARIABLE, self._arguments))

        def format_term(name: str) -> str:
            if name in self.constants:
                unambiguous = not _looks_like_variable(name) and not _LOWERCASE_VARIABLE(name)
                return quote_name(name) if unambiguous else _add_quotes(name)
            if lowercase or (_looks_like_variable(name) and name[0] != "?" and name != "_"):
                return name
            return f"?{name}"

        return f"{quote_name(atom.predicate)}({','.join(map(format_term, atom[1:]))})"

    def format_clause(self, arrow: str = "->") -> str:
        """Format the body, an arrow and the head, as in `wife(b,a) -> husband(a,b)`."""
        return f"{', '.join(map(self.format_atom, self.body))} {arrow} {self.format_atom(self.head)}"

    def __str__(self) -> str:
        """Return the rule as a line of `rules.txt`. `parse_rule` converts this line back to an equal rule."""
        return f"{self.name}:{self.weight!r}:{self.format_clause()}"


def quote_name(name: str) -> str:
    """Return a name as it is written in an atom, with quotes only if they are needed.

    >>> quote_name("New York"), quote_name("o'brien"), quote_name("'tis")
    ("'New York'", "o'brien", "'\\\\'tis'")
    """
    return name if _IS_UNQUOTED(name) else _add_quotes(name)


def unquote_name(text: str) -> str:
    """Remove the quotes around a name and decode its escape sequences.

    An unquoted name is returned unchanged.

    >>> unquote_name("'New York'"), unquote_name("york")
    ('New York', 'york')
    """
    if text[0] != "'":
        return text
    return _ESCAPE_SEQUENCE.sub(lambda found: _ESCAPED_CHARACTERS.get(found[1], found[1] or "'"), text[1:-1])


def _add_quotes(name: str) -> str:
    return "'" + "".join(_ESCAPES.get(character, character) for character in name) + "'"


def _looks_like_variable(text: str) -> bool:
    return text[0].isupper() or text[0] in "_?"


def name_sort_key(name: str) -> tuple[bool, int, str]:
    """Return a sort key that puts numerals such as `12` first, ordered by value, and then all other names."""
    is_numeral = name.isascii() and name.isdecimal()
    return not is_numeral, int(name) if is_numeral else 0, name


def parse_atom(text: str) -> Atom:
    """Parse an atom such as `aunt(5,76)`, with or without a final period.

    >>> parse_atom("in('New York',usa)."), parse_atom("city(oslo)")
    (Atom('in', 'New York', 'usa'), Atom('city', 'oslo'))
    """
    return Atom(*map(unquote_name, split_atom(text)))


def split_atom(text: str) -> tuple[str, ...]:
    """Split an atom into its predicate and its arguments. Quotes around names are kept."""
    found = _ATOM_LINE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text.strip()!r} is not an atom; expected {ATOM_FORM}")
    return _groups(found)


def _groups(found: re.Match[str]) -> tuple[str, ...]:
    return tuple(group for group in found.groups() if group is not None)


_RULE_FORM = "expected name:weight:body -> head, or head :- body."
_NAME_AND_WEIGHT = re.compile(r"([^:]*):([^:(]*):")
_WEIGHT = re.compile(r"([^\s:(]+)::")
_COMMA = re.compile(r"[ \t]*,[ \t]*")
_ARROW = re.compile(r"[ \t]*(->|:-)[ \t]*")


def parse_rule(text: str, name: str = "rule") -> Rule:
    """Parse `name:weight:body -> head`, or `head :- body.` with an optional `weight::` in front.

    Args:
        text: The rule. If it contains no weight, the weight is 1.
        name: Name of the rule if the text does not contain a name.

    >>> print(parse_rule("r26:0.69:wife(b,a) -> husband(a,b)"))
    r26:0.69:wife(b,a) -> husband(a,b)
    >>> print(parse_rule("0.9::european(X,europe) :- in(X,Y), in(Y,europe).", "r1"))
    r1:0.9:in(X,Y), in(Y,europe) -> european(X,europe)
    """
    line = text.strip()
    weight, clause = "1", line
    if found := _WEIGHT.match(line):
        weight, clause = found[1], line[found.end() :]
    elif (found := _NAME_AND_WEIGHT.match(line)) and (
        _parse_number(found[2]) is not None or _split_at_arrow(line)[1] != ":-"
    ):
        name, weight, clause = found[1].strip(), found[2], line[found.end() :]
    left, arrow, right = _split_at_arrow(clause)
    if not name or not arrow or (arrow == "->" and clause == line):
        raise ValueError(f"{line!r} is not a rule; {_RULE_FORM}")
    number = _parse_number(weight)
    if number is None:
        raise ValueError(f"the weight of rule {name!r} must be a number, got {weight!r}")
    body, head = (left, right) if arrow == "->" else (right.removesuffix("."), left)
    return _build_rule(name, number, [*_split_body(body), split_atom(head)])


def _parse_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _scan_atoms(text: str) -> tuple[list[tuple[str, ...]], int]:
    """Parse the comma-separated atoms at the start of a string.

    Returns:
        The predicate and the arguments of each atom, exactly as written, and the position in the string at
        which the atoms end.
    """
    atoms: list[tuple[str, ...]] = []
    position = 0
    while found := _ATOM.match(text, position):
        atoms.append(_groups(found))
        position = found.end()
        comma = _COMMA.match(text, position)
        if comma is None:
            break
        position = comma.end()
    return atoms, position


def _split_at_arrow(clause: str) -> tuple[str, str, str]:
    """Split a clause at its arrow, skipping arrows inside names.

    Returns the text before the arrow, the arrow and the text after it. If there is no arrow, returns the
    clause and two empty strings.
    """
    arrow = _ARROW.search(clause, _scan_atoms(clause)[1])
    return (clause[: arrow.start()], arrow[1], clause[arrow.end() :]) if arrow else (clause, "", "")


def _split_body(text: str) -> list[tuple[str, ...]]:
    atoms, position = _scan_atoms(text)
    if text[position:].strip() or not atoms or text.rstrip().endswith(","):
        raise ValueError(f"{text!r} is not the body of a rule; expected atoms separated by commas")
    return atoms


def _build_rule(name: str, weight: float, atoms: list[tuple[str, ...]]) -> Rule:
    """Build a rule from its body atoms followed by its head, each in the format that `split_atom` returns."""
    texts = {term for atom in atoms for term in atom[1:]}
    lowercase = all(map(_LOWERCASE_VARIABLE, texts))
    fresh = (f"_{number}" for number in itertools.count(1) if f"_{number}" not in texts)
    variables: set[str] = set()
    constants: set[str] = set()

    def parse_term(text: str) -> str:
        if text == "_":
            text = next(fresh)
        is_variable = lowercase or _looks_like_variable(text)
        found = text.removeprefix("?") if is_variable else unquote_name(text)
        (variables if is_variable else constants).add(found)
        return found

    parsed = [Atom(unquote_name(predicate), *map(parse_term, terms)) for predicate, *terms in atoms]
    if both := variables & constants:
        raise ValueError(
            f"rule {name!r} uses {min(both)!r} as a variable and as a constant: rename the variable"
        )
    return Rule(name, weight, tuple(parsed[:-1]), parsed[-1], frozenset(constants))
