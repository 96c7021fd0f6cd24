"""A large generated family tree, with queries that need long proofs."""

import numpy as np

from phalanx.kg.atoms import Atom
from phalanx.kg.family_generator import (
    RULES,
    People,
    base_facts,
    decode_atoms,
    generate_names,
    generate_people,
)
from phalanx.kg.knowledge_base import KnowledgeBase


def generate_genealogy(
    num_facts: int, *, seed: int = 0, distances: tuple[int, ...] = (3, 4), num_queries: int = 1000
) -> tuple[KnowledgeBase, tuple[Atom, ...]]:
    """Generate a large family tree and `ancestor` queries about it.

    The facts are all father, mother, husband, wife, brother and sister atoms; no derived atom is a fact. A
    proof that someone is an ancestor k generations away takes 3k - 1 steps, for example 8 steps for three
    generations. No forward chaining is needed, so generating 100,000 facts takes a few seconds.

    Args:
        num_facts: Approximate number of facts.
        seed: Seed for the random number generator.
        distances: Numbers of generations between the two people in a query. The queries are divided equally
            among them.
        num_queries: Maximum number of queries.

    Returns:
        The knowledge base, whose `extra_known` contains the queries, and the queries in random order.
    """
    random = np.random.default_rng(seed)
    generations = max(distances) + 3
    # A couple has 2.5 children on average, some of whom marry each other.
    families = 1
    while len(base := base_facts(people := generate_people(families, generations, random))) < num_facts:
        families = max(families + 1, int(1.05 * families * num_facts / len(base)))
    names = generate_names(people, random)
    pairs: list[tuple[int, int]] = []
    for distance in distances:
        descendants = [person for person in range(len(names)) if _ancestor(people, person, distance, 0) >= 0]
        for person in random.choice(descendants, num_queries // len(distances)).tolist():
            pairs.append((_ancestor(people, person, distance, int(random.integers(2**distance))), person))
    shuffled = [pairs[index] for index in random.permutation(len(pairs))]
    queries = tuple(
        dict.fromkeys(Atom("ancestor", names[one], names[other]) for one, other in shuffled if one >= 0)
    )
    train = decode_atoms(base, names)
    return KnowledgeBase(train=train, rules=RULES, extra_known=queries, name="genealogy"), queries


def _ancestor(people: People, person: int, distance: int, path: int) -> int:
    """Return the ancestor who is `distance` generations above a person; -1 if there is no such ancestor.

    Bit k of `path` selects the father (0) or the mother (1) in step k, starting with the parents.
    """
    for step in range(distance):
        if person < 0:
            return -1
        person = people.parents[person][path >> step & 1]
    return person
