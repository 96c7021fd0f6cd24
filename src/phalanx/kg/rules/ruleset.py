"""Mined rules as arrays, and the way between them and the rules of `rules.txt`.

How they are found is in `miner`, how they are applied in `rank`.
"""

import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int32, Int64

from phalanx.io.atomic import atomic_write
from phalanx.kg.atoms import Atom, Rule
from phalanx.kg.rules.config import LONGEST
from phalanx.kg.vocabulary import IndexManager

HEAD, BODY, HEAD_CONSTANT, BODY_CONSTANT = 0, slice(1, 1 + LONGEST), 1 + LONGEST, 2 + LONGEST
"""The columns of a rule: relations are 2r forth and 2r + 1 back, from 0; -1 where there is none."""
COLUMNS = 3 + LONGEST


class Shapes(NamedTuple):
    """Rules as arrays, and those that have no such shape."""

    rules: "RuleSet"
    left_out: tuple[Rule, ...]


@dataclasses.dataclass(frozen=True)
class RuleSet:
    """Rules with their confidences, the most certain first.

    Of two shapes: a path from X to Y, `h(X,Y) <- b(X,A), c(B,A), d(B,Y)`, or with constants,
    `h(X,c) <- b(X,d)` and `h(X,c) <- b(X,Y)`, relations either way round. Different variables stand for
    different entities.
    """

    index: IndexManager
    rows: Int32[np.ndarray, "rules columns"]
    confidence: Float64[np.ndarray, " rules"]
    counts: Int64[np.ndarray, "rules 3"] | None = None
    """Support, predictions, and predictions whose X has the relation (-1: not counted); None if read."""
    complete: bool = True
    """False where time was up before the work was done."""

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def sorted(
        cls,
        index: IndexManager,
        rows: Int32[np.ndarray, "rules columns"],
        confidence: Float64[np.ndarray, " rules"],
        counts: Int64[np.ndarray, "rules 3"] | None = None,
        *,
        most: int | None = None,
        complete: bool = True,
    ) -> "RuleSet":
        """Rules in order, the best `most` of them; equally certain ones by support, then as they come."""
        support = np.zeros(len(rows), np.int64) if counts is None else counts[:, 0]
        order = np.lexsort((-support, -confidence))[:most]
        kept = None if counts is None else counts[order]
        return cls(index, rows[order], confidence[order], kept, complete)

    def __getitem__(self, place: int) -> Rule:
        """A rule as text has it; its name is its place, from 1."""
        return self._rule(place, self._names)

    def __iter__(self) -> Iterator[Rule]:
        names = self._names
        return (self._rule(place, names) for place in range(len(self)))

    @property
    def _names(self) -> list[str]:
        names = []
        for name in "XYABCD":
            # A variable must not be called as a constant is.
            while name in self.index.constant_str2idx:
                name = f"_{name}"
            names.append(name)
        return names

    def _rule(self, place: int, names: Sequence[str]) -> Rule:
        row = self.rows[place].tolist()
        x, y, *between = names
        body = [relation for relation in row[BODY] if relation >= 0]
        constants: list[str] = []
        if row[HEAD_CONSTANT] >= 0:
            c = self.index.constants[row[HEAD_CONSTANT]]
            d = y if row[BODY_CONSTANT] < 0 else self.index.constants[row[BODY_CONSTANT]]
            constants = [c] if row[BODY_CONSTANT] < 0 else [c, d]
            head, atoms = self._atom(row[HEAD], x, c), [self._atom(body[0], x, d)]
        else:
            stops = [x, *between[: len(body) - 1], y]
            head = self._atom(row[HEAD], x, y)
            atoms = [self._atom(r, a, b) for r, (a, b) in zip(body, itertools.pairwise(stops), strict=True)]
        return Rule(f"r{place + 1}", float(self.confidence[place]), tuple(atoms), head, frozenset(constants))

    def _atom(self, relation: int, first: str, second: str) -> Atom:
        pair = (second, first) if relation % 2 else (first, second)
        return Atom(self.index.predicates[relation // 2], *pair)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the lines of a `rules.txt`; the weights are the confidences."""
        with atomic_write(path, "w") as file:
            file.writelines(f"{rule}\n" for rule in self)

    @classmethod
    def of_rules(cls, rules: Iterable[Rule], index: IndexManager) -> Shapes:
        """Rules that were read, as arrays; those that say the same as a more certain one are not repeated."""
        rows: dict[tuple[int, ...], float] = {}
        left_out = []
        for rule in rules:
            row = _row(rule, index)
            if row is None:
                left_out.append(rule)
            else:
                rows[row] = max(rule.weight, rows.get(row, 0.0))
        table = np.array(list(rows), np.int32).reshape(-1, COLUMNS)
        weights = np.array(list(rows.values()), np.float64)
        # In the order of the file, so that what was written reads back as it was.
        order = np.argsort(-weights, kind="stable")
        return Shapes(cls(index, table[order], weights[order]), tuple(left_out))


def _row(rule: Rule, index: IndexManager) -> tuple[int, ...] | None:
    """The numbers of a rule; None for one of another shape, or that can predict nothing here."""
    names = {name for atom in (rule.head, *rule.body) for name in atom[1:] if name in rule.constants}
    predicates = {atom.predicate for atom in (rule.head, *rule.body)}
    if not predicates <= set(index.predicates) or not names <= index.constant_str2idx.keys():
        return None
    if (
        not 0 <= rule.weight <= 1
        or len(rule.body) > LONGEST
        or any(len(atom) != 3 for atom in (rule.head, *rule.body))
        or any(a.first == a.second for a in (rule.head, *rule.body))
    ):
        return None
    x, y = rule.head[1:]
    if x not in rule.constants and y not in rule.constants:
        return _path_row(rule, index) if not names else None
    if len(rule.body) != 1 or (x in rule.constants and y in rule.constants):
        return None
    back = x in rule.constants
    if back:
        x, y = y, x
    steps = _steps(rule.body[0], x, index)
    if steps is None:
        return None
    relation, other = steps
    d = -1 if other in rule.variables else index.constant_str2idx[other] - 1
    head = 2 * (index.predicate_str2idx[rule.head.predicate] - 1) + back
    padded = (relation, *(-1,) * (LONGEST - 1))
    return head, *padded, index.constant_str2idx[y] - 1, d


def _path_row(rule: Rule, index: IndexManager) -> tuple[int, ...] | None:
    left, at, body = list(rule.body), rule.head.first, []
    seen = {at}
    while left:
        steps = [(atom, step) for atom in left if (step := _steps(atom, at, index)) is not None]
        if len(steps) != 1:
            return None
        atom, (relation, at) = steps[0]
        left.remove(atom)
        body.append(relation)
        if at in seen or (at == rule.head.second and left):
            return None
        seen.add(at)
    if at != rule.head.second:
        return None
    head = 2 * (index.predicate_str2idx[rule.head.predicate] - 1)
    if body == [head]:
        return None
    return head, *body, *(-1,) * (LONGEST - len(body)), -1, -1


def _steps(atom: Atom, at: str, index: IndexManager) -> tuple[int, str] | None:
    """The relation that leads on from here by an atom, and where to."""
    if at not in atom[1:]:
        return None
    back = atom.second == at
    return 2 * (index.predicate_str2idx[atom.predicate] - 1) + back, atom.first if back else atom.second
