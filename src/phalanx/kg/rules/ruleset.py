"""Rule sets: mined rules as arrays, and their conversion to and from `Rule` objects."""

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Float64, Int32, Int64

from phalanx.io.atomic import atomic_write
from phalanx.kg.atoms import Atom, Rule
from phalanx.kg.vocabulary import Vocabulary

MAX_BODY_LENGTH = 5
"""Maximum number of body atoms in a path rule. The C++ code expects this many columns for the body."""
HEAD, BODY = 0, slice(1, 1 + MAX_BODY_LENGTH)
HEAD_CONSTANT, BODY_CONSTANT = 1 + MAX_BODY_LENGTH, 2 + MAX_BODY_LENGTH
"""Column indices of `RuleSet.rows` for the constants in the head and in the body.

`HEAD` is the column of the head's relation, and `BODY` is the range of columns of the body's relations.
Relation r is stored as 2r, or as 2r + 1 if it is followed backward (from tail to head). Unused columns are
-1.
"""
NUM_COLUMNS = 3 + MAX_BODY_LENGTH


@dataclasses.dataclass(frozen=True)
class RuleSet:
    """Rules with their confidences, sorted by descending confidence.

    There are two kinds of rules. In a path rule, such as `h(X,Y) <- b(X,A), c(B,A), d(B,Y)`, the body is a
    path from X to Y, which can follow relations in both directions. Rules with constants have the form
    `h(X,c) <- b(X,d)` or `h(X,c) <- b(X,Y)`, where the arguments of h and b can be swapped. Different
    variables of a rule must have different values.
    """

    vocabulary: Vocabulary
    """Ids of the relations and constants."""
    rows: Int32[np.ndarray, "rules columns"]
    """Encoded rules; see `HEAD`, `BODY`, `HEAD_CONSTANT` and `BODY_CONSTANT`."""
    confidence: Float64[np.ndarray, " rules"]
    counts: Int64[np.ndarray, "rules 3"] | None = None
    """For each rule, three numbers of predictions: those that are facts (support), all predictions, and the
    predictions h(x, y) for which there is at least one fact h(x, z). The third number is -1 if it was not
    counted. None if the rules were not mined."""
    is_complete: bool = True
    """False if mining stopped early because of its time limit."""

    def __repr__(self) -> str:
        return f"RuleSet(num_rules={len(self)}, vocabulary={self.vocabulary!r})"

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Rule]:
        return (self[index] for index in range(len(self)))

    @functools.cached_property
    def _variable_names(self) -> list[str]:
        names = []
        for name in "XYABCD":
            # A variable must not have the name of a constant.
            while name in self.vocabulary.entity_ids:
                name = f"_{name}"
            names.append(name)
        return names

    def __getitem__(self, index: int) -> Rule:
        """Return the rule at an index as a `Rule`. The first rule is named `r1`."""
        row = self.rows[index].tolist()
        x, y, *between = self._variable_names
        body = [relation for relation in row[BODY] if relation >= 0]
        constants = [self.vocabulary.entities[c] for c in row[HEAD_CONSTANT:] if c >= 0]
        # Rules with constants are h(X,c) <- b(X,d) or h(X,c) <- b(X,Y).
        last = constants[0] if constants else y
        path = [x, *between[: len(body) - 1], constants[1] if len(constants) == 2 else y]
        atoms = [self._atom(r, a, b) for r, (a, b) in zip(body, itertools.pairwise(path), strict=True)]
        head = self._atom(row[HEAD], x, last)
        return Rule(f"r{index + 1}", float(self.confidence[index]), tuple(atoms), head, frozenset(constants))

    def _atom(self, relation: int, first: str, second: str) -> Atom:
        arguments = (second, first) if relation % 2 else (first, second)
        return Atom(self.vocabulary.predicates[relation // 2], *arguments)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the rules in the format of `rules.txt`, with their confidences as weights."""
        with atomic_write(path, "w") as file:
            file.writelines(f"{rule}\n" for rule in self)

    @classmethod
    def from_rules(cls, rules: Iterable[Rule], vocabulary: Vocabulary) -> tuple["RuleSet", tuple[Rule, ...]]:
        """Convert rules to a rule set. The weight of each rule becomes its confidence.

        If several rules are equivalent, only the one with the largest weight is kept.

        Returns:
            The rule set, and the rules that a `RuleSet` cannot represent.
        """
        rows: dict[tuple[int, ...], float] = {}
        unsupported = []
        for rule in rules:
            row = _encode_rule(rule, vocabulary)
            if row is None:
                unsupported.append(rule)
            else:
                rows[row] = max(rule.weight, rows.get(row, 0.0))
        table = np.array(list(rows), np.int32).reshape(-1, NUM_COLUMNS)
        weights = np.array(list(rows.values()), np.float64)
        # A stable sort keeps the order of a saved file for rules with equal weights.
        order = np.argsort(-weights, kind="stable")
        return cls(vocabulary, table[order], weights[order]), tuple(unsupported)


def _encode_rule(rule: Rule, vocabulary: Vocabulary) -> tuple[int, ...] | None:
    """Encode a rule as a row of `RuleSet.rows`. Return None if a `RuleSet` cannot represent the rule."""
    atoms, constants = (rule.head, *rule.body), rule.constants
    if (
        not 0 <= rule.weight <= 1
        or len(rule.body) > MAX_BODY_LENGTH
        or any(len(atom) != 3 or atom.first == atom.second for atom in atoms)
        or any(atom.predicate not in vocabulary.predicate_ids for atom in atoms)
        or not constants <= vocabulary.entity_ids.keys()
    ):
        return None
    # The variable X of h(X,Y), h(X,c) or h(c,X).
    x = next((name for name in rule.head[1:] if name not in constants), None)
    if x is None or (constants and (constants.isdisjoint(rule.head[1:]) or len(rule.body) != 1)):
        return None
    head, end = _follow(rule.head, x, vocabulary)
    remaining, current, visited, body = list(rule.body), x, {x}, []
    while remaining:
        following = [atom for atom in remaining if current in atom[1:]]
        if len(following) != 1:
            return None
        relation, current = _follow(following[0], current, vocabulary)
        remaining.remove(following[0])
        body.append(relation)
        if current in visited or (current == end and remaining):
            return None
        visited.add(current)
    if not constants and (current != end or body == [head]):
        return None
    padding = (-1,) * (MAX_BODY_LENGTH - len(body))
    ids = {name: vocabulary.entity_ids[name] for name in constants}
    return head, *body, *padding, ids.get(end, -1), ids.get(current, -1)


def _follow(atom: Atom, current: str, vocabulary: Vocabulary) -> tuple[int, str]:
    """Follow an atom, as an edge of the graph, from its argument `current` to its other argument.

    Returns:
        The directed relation and the other argument. The directed relation of predicate r is 2r, or 2r + 1 if
        `current` is the second argument.
    """
    backwards = atom.second == current
    relation = 2 * vocabulary.predicate_ids[atom.predicate] + backwards
    return relation, atom.first if backwards else atom.second
