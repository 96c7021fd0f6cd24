"""Generated families: correct and provable atoms, splits without leaks, and reproducibility."""

import hashlib
from collections import Counter

import pytest

from phalanx.kg.atoms import Atom
from phalanx.kg.family_generator import RULES, generate_family
from phalanx.kg.knowledge_base import KnowledgeBase

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def base():
    return generate_family()


def compute_true_atoms(base):
    """Compute all true atoms from parents, marriages and siblings, without forward chaining."""
    pairs = {name: {(a.first, a.second) for a in base.train if a.predicate == name} for name in
             ("father", "mother", "husband", "wife", "brother", "sister")}  # fmt: skip
    parent = pairs["father"] | pairs["mother"]
    children = {}
    for one, child in parent:
        children.setdefault(one, set()).add(child)
    parents = {}
    for one, child in parent:
        parents.setdefault(child, set()).add(one)
    siblings = {
        (child, other)
        for child, own in parents.items()
        for one in own
        for other in children[one]
        if other != child
    }
    found = dict(pairs)
    found["parent"], found["sibling"] = parent, siblings
    found["grandparent"] = {(a, c) for a, b in parent for c in children.get(b, ())}
    found["cousin"] = {
        (a, b) for p, q in siblings for a in children.get(p, ()) for b in children.get(q, ())
    }  # fmt: skip
    for name, by_blood, by_marriage in (("aunt", "sister", "wife"), ("uncle", "brother", "husband")):
        blood = {(a, c) for a, p in pairs[by_blood] for c in children.get(p, ())}
        others = {(p, c) for p, q in siblings for c in children.get(q, ())}
        found[name] = blood | {(a, c) for a, s in pairs[by_marriage] for p, c in others if p == s}
    ancestor = set(parent)
    while more := {(a, c) for a, b in ancestor for c in children.get(b, ())} - ancestor:
        ancestor |= more
    found["ancestor"] = ancestor
    return {Atom(name, *pair) for name, related in found.items() for pair in related}


def test_entailed_atoms_match_the_definitions_of_the_relations(base):
    stated = {*base.train, *base.valid, *base.test, *base.extra_known}
    assert stated == compute_true_atoms(base)


def test_atoms_relate_two_different_people(base):
    assert all(
        atom.first != atom.second for atom in (*base.train, *base.valid, *base.test, *base.extra_known)
    )


def test_splits_are_disjoint(base):
    parts = [set(base.train), set(base.valid), set(base.test), set(base.extra_known)]
    assert sum(map(len, parts)) == len(set().union(*parts))
    assert KnowledgeBase.generate(on_leak="error").leaks() == {}


def test_queries_cover_depths_one_to_five(base):
    for split in ("valid", "test"):
        assert set(base.split_depths[split]) == set(base.queries(split))
        assert Counter(base.split_depths[split].values()) == {1: 8, 2: 8, 3: 8, 4: 8, 5: 8}
    assert set(base.split_depths["train"]) == set(base.train)
    assert max(base.split_depths["train"].values()) > 5


def test_default_size_is_similar_to_countries(base):
    assert 150 < len(base.domains["people"]) < 400
    assert 700 < len(base.train) < 1500
    assert base.rules == RULES


def test_names_are_unique(base):
    people = base.domains["people"]
    assert len(set(people)) == len(people)
    assert {name for atom in base.train for name in atom[1:]} == set(people)


def test_same_seed_generates_same_families(base):
    lines = "\n".join(map(str, (*base.train, *base.valid, *base.test)))
    assert hashlib.sha256(lines.encode()).hexdigest()[:16] == "71df0ff8ff2d994c"
    assert generate_family() == base
    assert generate_family(seed=1).train != base.train


def test_more_families_and_generations_give_more_facts(base):
    assert len(generate_family(20, 4).train) > 2 * len(base.train)
    assert len(generate_family(8, 5).train) > len(base.train)


def test_smallest_family_has_test_queries():
    small = generate_family(1, 2, queries_per_depth=1)
    assert small.test
    assert set(small.split_depths["test"].values()) <= {1, 2, 3, 4, 5}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0, 4), "num_families must be at least 1"), ((8, 1), "generations must be at least 2")],
)
def test_invalid_sizes_raise_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        generate_family(*arguments)


def test_saved_families_round_trip_with_all_known_atoms(base, tmp_path):
    base.save(tmp_path / "families")
    assert KnowledgeBase.load(tmp_path / "families") == base
    assert KnowledgeBase.load(tmp_path / "families").known == KnowledgeBase.generate().known


def test_generate_forwards_its_settings():
    assert KnowledgeBase.generate(num_families=2, generations=3, seed=5) == generate_family(2, 3, seed=5)
