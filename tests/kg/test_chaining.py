"""Forward chaining: expected rounds and depths, and a comparison with exhaustive search."""

from pathlib import Path

import numpy as np
import pytest

from phalanx.kg import joins, proof_depths
from phalanx.kg.atoms import parse_atom, parse_rule
from phalanx.kg.chaining import chaining_rounds, entail
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.kg.proof_depths import compute_proof_depths

pytestmark = pytest.mark.slow

SHARED = Path(__file__).parents[2].parent / "shared/data/kg"
needs_shared_data = pytest.mark.skipif(
    not SHARED.exists(), reason="the shared knowledge bases are not available"
)


def evaluate(function, queries, facts, rules, *limit):
    """Call `function` on atoms and rules given as text, and return the result of each query."""
    queries = queries.split()
    base = KnowledgeBase(
        tuple(map(parse_atom, facts.split())),
        tuple(parse_rule(f"r{n}:1:{rule}") for n, rule in enumerate(rules)),
        test=tuple(map(parse_atom, queries)),
    )
    data = base.replace(on_leak="allow")
    index = data.vocabulary
    encoded = index.encode(data.facts), index.encode_rules(data.rules)
    return dict(zip(queries, function(index.encode(data.test), *encoded, *limit).tolist(), strict=True))


def depths(queries, facts, rules, limit=6):
    return evaluate(compute_proof_depths, queries, facts, rules, limit)


INVERSE = ["wife(y,x) -> husband(x,y)", "husband(y,x) -> wife(x,y)"]
REGIONS = ["near(X,Y), in(Y,Z) -> in(X,Z)", "near(X,Y), near(Y,K), in(K,Z) -> in(X,Z)"]


def test_ground_body_that_is_a_fact_has_depth_one():
    assert depths("husband(a,b)", "wife(b,a)", INVERSE) == {"husband(a,b)": 1}


def test_binding_a_new_variable_adds_one_step():
    assert depths("in(a,e)", "near(a,b) in(b,e)", REGIONS) == {"in(a,e)": 2}


def test_two_new_variables_add_two_steps():
    assert depths("in(a,e)", "near(a,b) near(b,c) in(c,e)", REGIONS) == {"in(a,e)": 3}


def test_depth_is_that_of_the_shortest_proof():
    chain = "near(a,b) near(b,c) near(c,d) near(d,f) near(f,g) in(g,e)"
    found = depths("in(g,e) in(f,e) in(d,e) in(c,e) in(b,e) in(a,e)", chain, REGIONS, 10)
    assert found == {"in(g,e)": -1, "in(f,e)": 2, "in(d,e)": 3, "in(c,e)": 5, "in(b,e)": 6, "in(a,e)": 8}


def test_goal_with_a_variable_needs_more_steps_than_a_ground_goal():
    # The goal r(a,V) needs its rule and then a fact for q(a,V); the ground goal r(a,b) needs one step.
    rules = ["q(X,Y) -> r(X,Y)", "r(X,Z), s(Z,Y) -> p(X,Y)"]
    assert depths("r(a,b) p(a,c)", "q(a,b) s(b,c)", rules) == {"r(a,b)": 1, "p(a,c)": 3}


def test_proof_longer_than_the_limit_is_not_found():
    facts = "near(a,b) near(b,c) in(c,e)"
    assert depths("in(a,e)", facts, REGIONS, 2) == {"in(a,e)": -1}
    assert depths("in(a,e)", facts, REGIONS, 3) == {"in(a,e)": 3}


def test_query_that_is_a_fact_does_not_prove_itself():
    assert depths("husband(a,b)", "husband(a,b)", INVERSE) == {"husband(a,b)": -1}
    assert depths("husband(a,b)", "husband(a,b) wife(b,a)", INVERSE) == {"husband(a,b)": 1}


def test_query_is_not_a_fact_in_its_subproofs():
    # wife(b,a) follows only from husband(a,b), so it cannot prove husband(a,b).
    rules = [*INVERSE, "near(X,Z), husband(Z,Y) -> husband(X,Y)"]
    assert depths("husband(a,b)", "husband(a,b) near(a,c)", rules) == {"husband(a,b)": -1}
    assert depths("husband(a,b)", "husband(a,b) near(a,c) wife(b,c)", rules) == {"husband(a,b)": 3}


def test_repeated_variable_requires_equal_arguments():
    rules = ["loop(X,X), to(X,Y) -> out(X,Y)", "same(X,Y) -> loop(X,Y)", "loop(X,X), to(X,Y) -> end(Y,Y)"]
    facts = "loop(a,a) loop(b,c) same(c,c) to(a,d) to(b,d) to(c,d) to(b,e) to(c,f)"
    known = depths("out(a,d) out(b,d) out(c,d)", facts, rules)
    assert known == {"out(a,d)": 1, "out(b,d)": -1, "out(c,d)": 2}
    searched = depths("end(d,d) end(e,e) end(f,f) end(d,f)", facts, rules)
    assert searched == {"end(d,d)": 2, "end(e,e)": -1, "end(f,f)": 3, "end(d,f)": -1}


def test_facts_have_round_zero_and_derived_atoms_their_first_round():
    rules = ["near(X,Y) -> linked(X,Y)", "near(X,Z), linked(Z,Y) -> linked(X,Y)"]
    facts = "near(a,b) near(b,c) near(c,d)"
    found = {"near(a,b)": 0, "linked(a,b)": 1, "linked(a,c)": 2, "linked(a,d)": 3, "linked(d,a)": -1}
    assert evaluate(chaining_rounds, " ".join(found), facts, rules) == found
    assert evaluate(chaining_rounds, "linked(a,d) linked(a,c)", facts, rules, 2) == {
        "linked(a,d)": -1,
        "linked(a,c)": 2,
    }
    assert evaluate(chaining_rounds, "near(a,b) linked(a,b)", facts, rules, 0) == {
        "near(a,b)": 0,
        "linked(a,b)": -1,
    }


def test_entail_returns_sorted_unique_atoms():
    symmetric_and_transitive = (((1, -1, -2), ((1, -2, -1),)), ((1, -1, -2), ((1, -1, -3), (1, -3, -2))))
    atoms, rounds = entail(np.array([[1, 2, 1], [1, 2, 3]], np.int32), symmetric_and_transitive)
    np.testing.assert_array_equal(atoms, [[1, a, b] for a in (1, 2, 3) for b in (1, 2, 3)])
    np.testing.assert_array_equal(rounds, [2, 1, 2, 0, 2, 0, 2, 1, 2])


def test_empty_queries_and_facts_are_accepted():
    empty = np.zeros((0, 3), np.int32)
    rule = ((1, -1, -2), ((1, -2, -1),))
    assert compute_proof_depths(empty, empty, [rule]).shape == (0,)
    assert compute_proof_depths(np.array([[1, 1, 2]], np.int32), empty, [rule]).tolist() == [-1]
    assert entail(empty, [rule])[0].shape == (0, 3)


def test_unbound_head_variable_raises_error():
    fact, rule = np.array([[1, 1, 2]], np.int32), ((1, -1, -2), ((1, -1, -3),))
    for function in (lambda: compute_proof_depths(fact, fact, [rule]), lambda: entail(fact, [rule])):
        with pytest.raises(ValueError, match="head that does not occur in its body"):
            function()


EUROPEAN = ["in(X,Y), in(Y,europe) -> european(X,europe)"]
PLACES = "in(oslo,norway) in(norway,europe) in(tokyo,japan) in(japan,asia)"


def test_constant_in_a_rule_matches_only_itself():
    queries = "european(oslo,europe) european(tokyo,europe) european(tokyo,asia)"
    found = {"european(oslo,europe)": 2, "european(tokyo,europe)": -1, "european(tokyo,asia)": -1}
    assert depths(queries, PLACES, EUROPEAN) == found
    rounds = {"european(oslo,europe)": 1, "european(tokyo,europe)": -1, "european(tokyo,asia)": -1}
    assert evaluate(chaining_rounds, queries, PLACES, EUROPEAN) == rounds
    assert evaluate(chaining_rounds, queries, PLACES, EUROPEAN, 1) == rounds


def test_constant_that_occurs_only_in_a_rule_is_distinct():
    # Pairs of constants are encoded as one integer; 9 is larger than all constants of the facts.
    fact, rule = np.array([[1, 1, 2]], np.int32), ((2, -1, 9), ((1, -1, -2),))
    atoms, rounds = entail(fact, [rule])
    assert atoms.tolist() == [[1, 1, 2], [2, 1, 9]] and rounds.tolist() == [0, 1]
    assert compute_proof_depths(np.array([[2, 1, 2]], np.int32), fact, [rule]).tolist() == [-1]


def search_shortest_proof(query, facts, rules, limit):
    """Return the depth of the shortest proof by breadth-first search, or -1. Variables are 1000 and above."""
    known = set(facts) - {query}

    def unify(goal, head):
        bindings = {}
        for one, other in zip(goal[1:], head[1:], strict=True):
            while one in bindings:
                one = bindings[one]
            while other in bindings:
                other = bindings[other]
            if one != other:
                if other >= 1000:
                    bindings[other] = one
                elif one >= 1000:
                    bindings[one] = other
                else:
                    return None
        return bindings

    def value(term, bindings):
        while term in bindings:
            term = bindings[term]
        return term

    states = {(query,)}
    for depth in range(1, limit + 1):
        following = set()
        for goal, *rest in states:
            clauses = [(fact, ()) for fact in known if fact[0] == goal[0]]
            clauses += [
                tuple_rule for tuple_rule in ((shift(head), tuple(map(shift, body))) for head, body in rules)
                if tuple_rule[0][0] == goal[0]
            ]  # fmt: skip
            for head, body in clauses:
                bindings = unify(goal, head)
                if bindings is None:
                    continue
                goals = [(p, value(a, bindings), value(b, bindings)) for p, a, b in (*body, *rest)]
                following.add(rename_variables([atom for atom in goals if atom not in known]))
        if () in following:
            return depth
        states = following
    return -1


def shift(atom):
    return atom[0], *(5000 - term if term < 0 else term for term in atom[1:])


def rename_variables(goals):
    names = {}
    return tuple(
        (p, *(t if t < 1000 else names.setdefault(t, 1000 + len(names)) for t in arguments))
        for p, *arguments in goals
    )


def random_program(seed):
    """Return facts and rules. Rules of odd seeds contain constants."""
    random = np.random.default_rng(seed)
    facts = np.unique(np.stack([random.integers(1, high, 18) for high in (4, 5, 5)], axis=1), axis=0)
    rules = []
    while len(rules) < 6:
        body = tuple((int(random.integers(1, 4)), *(-random.integers(1, 4, 2)).tolist()) for _ in range(
            random.integers(1, 4)))  # fmt: skip
        variables = sorted({term for atom in body for term in atom[1:]})
        head = (int(random.integers(1, 4)), *random.choice(variables, 2).tolist())
        if seed % 2:
            chosen = {term: int(random.integers(1, 5)) for term in variables if random.random() < 0.3}
            is_replaced = [random.random() < 0.8 for _ in range(2 * len(body))]
            body = tuple(
                (p, *(chosen.get(t, t) if is_replaced.pop() else t for t in terms)) for p, *terms in body
            )
            bound = {term for atom in body for term in atom[1:]}
            head = (head[0], *(t if t in bound else chosen[t] for t in head[1:]))
        rules.append((head, body))
    return facts.astype(np.int32), tuple(rules)


@pytest.mark.parametrize("seed", range(30))
def test_depths_match_exhaustive_search(seed, monkeypatch):
    # Small chunks and batches, so that the code for large joins and many queries runs too.
    monkeypatch.setattr(joins, "MAX_CHUNK_ROWS", 7)
    monkeypatch.setattr(proof_depths, "_QUERIES_PER_BATCH", 5)
    facts, rules = random_program(seed)
    random = np.random.default_rng(seed)
    others = np.stack([random.integers(1, high, 6) for high in (4, 5, 5)], axis=1).astype(np.int32)
    queries = np.concatenate([facts, others])
    known = [tuple(fact) for fact in facts.tolist()]
    expected = [search_shortest_proof(tuple(query), known, rules, 3) for query in queries.tolist()]
    np.testing.assert_array_equal(compute_proof_depths(queries, facts, rules, 3), expected)


@pytest.mark.parametrize("seed", range(30))
def test_rounds_match_naive_forward_chaining(seed):
    facts, rules = random_program(seed)
    known = {tuple(fact): 0 for fact in facts.tolist()}
    number = 0
    while True:
        number += 1
        new = {}
        for head, body in rules:
            # A constant matches only itself.
            rows = [{constant: constant for constant in range(1, 5)}]
            for p, *variables in body:
                rows = [
                    row | dict(zip(variables, atom[1:], strict=True))
                    for row in rows
                    for atom in known
                    if atom[0] == p
                    and all(row.get(v, t) == t for v, t in zip(variables, atom[1:], strict=True))
                    and (variables[0] != variables[1] or atom[1] == atom[2])
                ]
            new |= {(head[0], row[head[1]], row[head[2]]): number for row in rows}
        new = {atom: n for atom, n in new.items() if atom not in known}
        if not new:
            break
        known |= new
    atoms, rounds = entail(facts, rules)
    assert dict(zip(map(tuple, atoms.tolist()), rounds.tolist(), strict=True)) == known
    assert chaining_rounds(atoms, facts, rules).tolist() == rounds.tolist()
    limited = np.where(rounds <= 2, rounds, -1)
    assert chaining_rounds(atoms, facts, rules, 2).tolist() == limited.tolist()


@needs_shared_data
def test_depth_files_of_countries_match_computed_depths():
    data = KnowledgeBase.load(SHARED / "countries_s3", on_leak="allow")
    index = data.vocabulary
    program = index.encode(data.facts), index.encode_rules(data.rules)
    for split in ("train", "valid", "test"):
        expected = data.depths(split)
        found = compute_proof_depths(index.encode(list(expected)), *program, 10)
        assert found.tolist() == list(expected.values())


@needs_shared_data
def test_depth_file_of_family_misses_822_proofs_of_two_steps():
    data = KnowledgeBase.load(SHARED / "family")
    index = data.vocabulary
    program = index.encode(data.facts), index.encode_rules(data.rules)
    unproved = [atom for atom, depth in data.depths("test").items() if depth == -1]
    found = compute_proof_depths(index.encode(unproved), *program, 2)
    assert (len(unproved), int((found == 2).sum())) == (1261, 822)
