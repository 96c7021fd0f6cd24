"""Generates synthetic knowledge bases about families, with rules such as "a parent's sister is an aunt"."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np

from phalanx.kg.atoms import Atom, Rule
from phalanx.kg.chaining import entail
from phalanx.kg.formats import load_rules
from phalanx.kg.knowledge_base import GENERATED, KnowledgeBase
from phalanx.kg.proof_depths import compute_proof_depths

MAX_QUERY_DEPTH = 5
"""Largest proof depth of the validation and test queries that `generate_family` samples."""

_MAX_TRAINING_DEPTH = 10
_TRAINING_FRACTION = 0.1
_INTERMARRIAGE_PROB = 0.4
_MAX_CHILDREN = 4

RULES: tuple[Rule, ...] = load_rules(Path(__file__).parent / "family_rules.txt")
"""Rules of the generated knowledge bases."""

_VOCABULARY = KnowledgeBase(train=(), rules=RULES).vocabulary
_ENCODED_RULES = _VOCABULARY.encode_rules(RULES)
_SYLLABLES = tuple(a + b for a in "bdfgklmnrstv" for b in "aeiou")


@dataclasses.dataclass
class People:
    """Sex, parents and marriages of all people, who are identified by number.

    `parents` contains a (father, mother) pair for each person, and `couples` contains (husband, wife) pairs.
    Founders and people who married into a family have the parents (-1, -1).
    """

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
    """Generate a knowledge base about families that descend from founding couples and intermarry.

    The base facts are all father, mother, husband, wife, brother and sister atoms. All other atoms that
    follow from them by `RULES` are called derived atoms. The training atoms are the base facts and about a
    tenth of the derived atoms. For each proof depth from 1 to 5, up to `queries_per_depth` validation queries
    and up to `queries_per_depth` test queries are sampled from the other derived atoms. Derived atoms that
    are not in any split are stored in `extra_known`.

    All proof depths are exact. A training query is not used as a fact in its own proof, and its depth is -1
    if it has no proof with at most 10 steps. The same arguments give the same result on any machine.

    Args:
        num_families: Number of founding couples.
        generations: Number of generations, including the founders.
        seed: Seed for the random number generator.
        queries_per_depth: Maximum number of validation queries, and maximum number of test queries, for each
            proof depth.
    """
    sizes = {"num_families": num_families, "generations": generations, "queries_per_depth": queries_per_depth}
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if generations < 2:
        raise ValueError("generations must be at least 2: without children there is nothing to prove")
    random = np.random.default_rng(seed)
    people = generate_people(num_families, generations, random)
    names = generate_names(people, random)
    base = base_facts(people)
    atoms, rounds = entail(base, _ENCODED_RULES)
    derived = atoms[rounds > 0]
    in_training = random.random(len(derived)) < _TRAINING_FRACTION
    train = np.concatenate([base, derived[in_training]])
    rest = random.permutation(derived[~in_training])
    depths = compute_proof_depths(rest, train, _ENCODED_RULES, MAX_QUERY_DEPTH)
    split = _assign_splits(depths, queries_per_depth)
    training_depths = compute_proof_depths(train, train, _ENCODED_RULES, _MAX_TRAINING_DEPTH)
    facts = decode_atoms(train, names)
    valid, test, others = (decode_atoms(rest[split == part], names) for part in (1, 2, 0))
    return KnowledgeBase(
        train=facts,
        rules=RULES,
        valid=valid,
        test=test,
        extra_known=others,
        split_depths={
            "train": dict(zip(facts, training_depths.tolist(), strict=True)),
            "valid": dict(zip(valid, depths[split == 1].tolist(), strict=True)),
            "test": dict(zip(test, depths[split == 2].tolist(), strict=True)),
        },
        domains={"people": tuple(sorted(names))},
        name=GENERATED,
    )


def decode_atoms(rows: np.ndarray, names: list[str]) -> tuple[Atom, ...]:
    """Convert rows (relation, person, person) to atoms."""
    return tuple(Atom(_VOCABULARY.predicates[p], names[a], names[b]) for p, a, b in rows.tolist())


def generate_people(num_families: int, generations: int, random: np.random.Generator) -> People:
    """Generate people who descend from founding couples and intermarry."""
    people = People()
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


def _marry(people: People, children: list[int], random: np.random.Generator) -> list[tuple[int, int]]:
    """Marry each child either to a child of different parents or to a new person, and return the couples."""
    order = [children[index] for index in random.permutation(len(children))]
    women = [child for child in order if not people.male[child]]
    couples = []
    for man in (child for child in order if people.male[child]):
        bride = None
        if random.random() < _INTERMARRIAGE_PROB:
            indices = range(len(women) - 1, -1, -1)
            match = next((i for i in indices if people.parents[women[i]] != people.parents[man]), None)
            bride = None if match is None else women.pop(match)
        couples.append((man, people.add(False) if bride is None else bride))
    couples += [(people.add(True), woman) for woman in women]
    return couples


def base_facts(people: People) -> np.ndarray:
    """Return all father, mother, husband, wife, brother and sister atoms.

    Each atom is a row (relation, person, person).
    """
    rows: list[tuple[str, int, int]] = []
    siblings: dict[tuple[int, int], list[int]] = {}
    for child, (father, mother) in enumerate(people.parents):
        if father >= 0:
            rows += [("father", father, child), ("mother", mother, child)]
            siblings.setdefault((father, mother), []).append(child)
    for husband, wife in people.couples:
        rows += [("husband", husband, wife), ("wife", wife, husband)]
    for children in siblings.values():
        for one, other in itertools.permutations(children, 2):
            rows.append(("brother" if people.male[one] else "sister", one, other))
    ids = _VOCABULARY.predicate_ids
    return np.array([(ids[relation], one, other) for relation, one, other in rows], np.int32)


def generate_names(people: People, random: np.random.Generator) -> list[str]:
    """Return distinct names with two or more syllables. Men's names end in `n`, and women's names in `la`."""
    count, base = len(people.male), len(_SYLLABLES)
    length = next(length for length in itertools.count(2) if base**length >= count)
    names = []
    for number, male in zip(random.permutation(count).tolist(), people.male, strict=True):
        syllables = (_SYLLABLES[number // base**position % base] for position in range(length))
        names.append("".join(syllables) + ("n" if male else "la"))
    return names


def _assign_splits(depths: np.ndarray, queries_per_depth: int) -> np.ndarray:
    """Return the split of each query: 1 for validation, 2 for test, and 0 for neither.

    For each depth from 1 to `MAX_QUERY_DEPTH`, validation and test each get up to `queries_per_depth`
    queries. If there are not enough queries with this depth, they are divided evenly between the two splits.
    """
    split = np.zeros(len(depths), np.int64)
    for depth in range(1, MAX_QUERY_DEPTH + 1):
        rows = np.flatnonzero(depths == depth)[: 2 * queries_per_depth]
        split[rows[0::2]] = 2
        split[rows[1::2]] = 1
    return split
