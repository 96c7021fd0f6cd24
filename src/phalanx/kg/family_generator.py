"""The built-in knowledge base: families over generations, made from a seed, with rules for their relations.

Files of it are written and read in `files`.
"""

import dataclasses

import numpy as np

from phalanx.kg.atoms import Atom, Rule, parse_rule
from phalanx.kg.chaining import entail, proof_depths
from phalanx.kg.formats import KnowledgeBase
from phalanx.kg.vocabulary import EncodedRule

DEEPEST = 5
"""Test and validation queries have depths from 1 to this."""

_TRAINING_DEPTH = 10
_TRAINING_SHARE = 0.1
_INTERMARRIAGE = 0.4
_MAX_CHILDREN = 4

# Rules have no inequality, and a sibling by a shared parent would be one's own sibling. So brothers and
# sisters are facts, which no one is of oneself, and every relation derived from them is right as it stands.
_RULES = """
father(X,Y) -> parent(X,Y)
mother(X,Y) -> parent(X,Y)
brother(X,Y) -> sibling(X,Y)
sister(X,Y) -> sibling(X,Y)
husband(X,Z), mother(Z,Y) -> father(X,Y)
wife(X,Z), father(Z,Y) -> mother(X,Y)
wife(Y,X) -> husband(X,Y)
husband(Y,X) -> wife(X,Y)
parent(X,Z), parent(Z,Y) -> grandparent(X,Y)
sister(X,Z), parent(Z,Y) -> aunt(X,Y)
wife(X,Z), uncle(Z,Y) -> aunt(X,Y)
brother(X,Z), parent(Z,Y) -> uncle(X,Y)
husband(X,Z), aunt(Z,Y) -> uncle(X,Y)
parent(Z,X), sibling(Z,W), parent(W,Y) -> cousin(X,Y)
parent(X,Y) -> ancestor(X,Y)
parent(X,Z), ancestor(Z,Y) -> ancestor(X,Y)
"""
RULES: tuple[Rule, ...] = tuple(
    parse_rule(f"r{number}:1.0:{line}") for number, line in enumerate(_RULES.strip().split("\n"))
)

_RELATIONS = tuple(sorted({atom.predicate for rule in RULES for atom in (*rule.body, rule.head)}))
_DERIVED = ("ancestor", "aunt", "cousin", "grandparent", "parent", "sibling", "uncle")
_SYLLABLES = tuple(a + b for a in "bdfgklmnrstv" for b in "aeiou")


@dataclasses.dataclass
class _People:
    """Everyone by number; parents are -1 for founders and those who married in."""

    male: list[bool] = dataclasses.field(default_factory=list)
    parents: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    couples: list[tuple[int, int]] = dataclasses.field(default_factory=list)

    def add(self, male: bool, parents: tuple[int, int] = (-1, -1)) -> int:
        self.male.append(male)
        self.parents.append(parents)
        return len(self.male) - 1


def generate_family(
    num_families: int = 8, generations: int = 4, *, seed: int = 0, queries_per_depth: int = 8
) -> KnowledgeBase:
    """Families that grow from as many founding couples, and marry into one another.

    Facts (`train`): all of father, mother, husband, wife, brother and sister, and a tenth of what follows
    from them by `RULES`. `valid` and `test`: others that follow, as many of each depth from 1 to 5 where
    there are enough, none of them a fact. All else that follows is in `also_true`. Depths are exact, for
    training queries without themselves and up to 10. The same arguments give the same anywhere.
    """
    for name, value in (
        ("num_families", num_families), ("generations", generations), ("queries_per_depth", queries_per_depth)
    ):  # fmt: skip
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if generations < 2:
        raise ValueError("generations must be at least 2: without children nothing is to be proved")
    random = np.random.default_rng(seed)
    people = _grow(num_families, generations, random)
    names = _names(people, random)
    base = _base_facts(people)
    rules = _encoded_rules()
    atoms, rounds = entail(base, rules)
    derived = atoms[rounds > 0]
    taught = random.random(len(derived)) < _TRAINING_SHARE
    train = np.concatenate([base, derived[taught]])
    rest = random.permutation(derived[~taught])
    depths = proof_depths(rest, train, rules, DEEPEST)
    split = _split(depths, queries_per_depth)

    def named(rows: np.ndarray) -> tuple[Atom, ...]:
        return tuple(Atom(_RELATIONS[p - 1], names[a - 1], names[b - 1]) for p, a, b in rows.tolist())

    training_depths = proof_depths(train, train, rules, _TRAINING_DEPTH)
    valid, test, others = (named(rest[split == part]) for part in (1, 2, 0))
    return KnowledgeBase(
        train=(facts := named(train)),
        rules=RULES,
        valid=valid,
        test=test,
        also_true=others,
        depths={
            "train": dict(zip(facts, training_depths.tolist(), strict=True)),
            "valid": dict(zip(valid, depths[split == 1].tolist(), strict=True)),
            "test": dict(zip(test, depths[split == 2].tolist(), strict=True)),
        },
        domains={"people": tuple(sorted(names))},
    )


def generate_genealogy(
    facts: int, *, seed: int = 0, distances: tuple[int, ...] = (3, 4), queries: int = 1000
) -> tuple[KnowledgeBase, tuple[Atom, ...]]:
    """About so many facts of father, mother, husband, wife, brother and sister, and queries about ancestors.

    Nothing that follows is a fact. An ancestor k generations away takes a proof of 3k - 1 steps: 8 for three
    generations, 11 for four. As many of each distance, in random order. Small ones are made in no time, and
    those of 100,000 facts in seconds, as nothing is chained.
    """
    random = np.random.default_rng(seed)
    generations = max(distances) + 3
    # A couple has 2.5 children on average, of whom some marry one another.
    families = 1
    while len(base := _base_facts(people := _grow(families, generations, random))) < facts:
        families = max(families + 1, int(1.05 * families * facts / len(base)))
    names = _names(people, random)
    pairs: list[tuple[int, int]] = []
    for distance in distances:
        descendants = [person for person in range(len(names)) if _forebear(people, person, distance, 0) >= 0]
        for person in random.choice(descendants, queries // len(distances)).tolist():
            pairs.append((_forebear(people, person, distance, int(random.integers(2**distance))), person))
    chosen = [pairs[place] for place in random.permutation(len(pairs))]
    asked = dict.fromkeys(Atom("ancestor", names[one], names[other]) for one, other in chosen if one >= 0)
    atoms = tuple(Atom(_RELATIONS[p - 1], names[a - 1], names[b - 1]) for p, a, b in base.tolist())
    return KnowledgeBase(train=atoms, valid=(), test=(), rules=RULES, also_true=tuple(asked)), tuple(asked)


def _forebear(people: _People, person: int, distance: int, turns: int) -> int:
    """The ancestor that is found by going to the father or the mother, as the bits of `turns` say; or -1."""
    for step in range(distance):
        if person < 0:
            return -1
        person = people.parents[person][turns >> step & 1]
    return person


def _grow(num_families: int, generations: int, random: np.random.Generator) -> _People:
    people = _People()
    couples = [(people.add(True), people.add(False)) for _ in range(num_families)]
    for generation in range(1, generations + 1):
        people.couples += couples
        if generation == generations:
            break
        children = [
            people.add(bool(random.integers(2)), couple)
            for couple in couples
            for _ in range(int(random.integers(1, _MAX_CHILDREN + 1)))
        ]
        couples = _marry(people, children, random)
    return people


def _marry(people: _People, children: list[int], random: np.random.Generator) -> list[tuple[int, int]]:
    """A couple for each child: some with a child of other parents, the others with someone from elsewhere."""
    order = [children[place] for place in random.permutation(len(children))]
    women = [child for child in order if not people.male[child]]
    couples = []
    for man in (child for child in order if people.male[child]):
        bride = None
        if random.random() < _INTERMARRIAGE:
            places = range(len(women) - 1, -1, -1)
            match = next((p for p in places if people.parents[women[p]] != people.parents[man]), None)
            bride = None if match is None else women.pop(match)
        couples.append((man, people.add(False) if bride is None else bride))
    couples += [(people.add(True), woman) for woman in women]
    return couples


def _base_facts(people: _People) -> np.ndarray:
    number = {name: index for index, name in enumerate(_RELATIONS, 1)}
    rows = []
    siblings: dict[tuple[int, int], list[int]] = {}
    for child, (father, mother) in enumerate(people.parents):
        if father >= 0:
            rows += [(number["father"], father, child), (number["mother"], mother, child)]
            siblings.setdefault((father, mother), []).append(child)
    for husband, wife in people.couples:
        rows += [(number["husband"], husband, wife), (number["wife"], wife, husband)]
    for children in siblings.values():
        rows += [
            (number["brother" if people.male[one] else "sister"], one, other)
            for one in children
            for other in children
            if one != other
        ]
    facts = np.array(rows, np.int32)
    facts[:, 1:] += 1
    return facts


def _encoded_rules() -> tuple[EncodedRule, ...]:
    number = {name: index for index, name in enumerate(_RELATIONS, 1)}
    letters = {letter: -1 - index for index, letter in enumerate("XYZW")}

    def encode(atom: Atom) -> tuple[int, int, int]:
        return number[atom.predicate], letters[atom.first], letters[atom.second]

    return tuple((encode(rule.head), tuple(map(encode, rule.body))) for rule in RULES)


def _names(people: _People, random: np.random.Generator) -> list[str]:
    """A name for each, of two syllables or more and an ending that tells men from women."""
    count = len(people.male)
    length = 2
    while len(_SYLLABLES) ** length < count:
        length += 1
    names = []
    for number, male in zip(random.permutation(count).tolist(), people.male, strict=True):
        digits = [number // len(_SYLLABLES) ** place % len(_SYLLABLES) for place in range(length)]
        names.append("".join(_SYLLABLES[digit] for digit in digits) + ("n" if male else "la"))
    return names


def _split(depths: np.ndarray, queries_per_depth: int) -> np.ndarray:
    """For each atom: 1 in validation, 2 in test, 0 in neither. Few of one depth are shared evenly."""
    split = np.zeros(len(depths), np.int64)
    for depth in range(1, DEEPEST + 1):
        some = np.flatnonzero(depths == depth)[: 2 * queries_per_depth]
        split[some[0::2]] = 2
        split[some[1::2]] = 1
    return split
