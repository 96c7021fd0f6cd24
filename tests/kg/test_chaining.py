"""Forward chaining: rounds and depths in literals, and against a search that tries every proof."""

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
needs_shared_data = pytest.mark.skipif(not SHARED.exists(), reason="shared knowledge bases are not here")


def ask(function, queries, facts, rules, *limit):
    """`function` on atoms and rules as text: {query: answer}."""
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
    return ask(compute_proof_depths, queries, facts, rules, limit)


INVERSE = ["wife(y,x) -> husband(x,y)", "husband(y,x) -> wife(x,y)"]
REGIONS = ["near(X,Y), in(Y,Z) -> in(X,Z)", "near(X,Y), near(Y,K), in(K,Z) -> in(X,Z)"]


def test_a_ground_body_that_is_a_fact_costs_one_step():
    assert depths("husband(a,b)", "wife(b,a)", INVERSE) == {"husband(a,b)": 1}


def test_choosing_a_fact_for_a_new_variable_costs_another_step():
    assert depths("in(a,e)", "near(a,b) in(b,e)", REGIONS) == {"in(a,e)": 2}


def test_three_atoms_in_a_body_cost_three_steps_where_two_variables_are_new():
    assert depths("in(a,e)", "near(a,b) near(b,c) in(c,e)", REGIONS) == {"in(a,e)": 3}


def test_the_shortest_way_of_many_neighbors_is_counted():
    chain = "near(a,b) near(b,c) near(c,d) near(d,f) near(f,g) in(g,e)"
    found = depths("in(g,e) in(f,e) in(d,e) in(c,e) in(b,e) in(a,e)", chain, REGIONS, 10)
    assert found == {"in(g,e)": -1, "in(f,e)": 2, "in(d,e)": 3, "in(c,e)": 5, "in(b,e)": 6, "in(a,e)": 8}


def test_what_is_called_with_a_variable_costs_more_than_what_is_called_ground():
    # r(a,V) by its rule, then q(a,V) by a fact; ground, the same atom costs one step.
    rules = ["q(X,Y) -> r(X,Y)", "r(X,Z), s(Z,Y) -> p(X,Y)"]
    assert depths("r(a,b) p(a,c)", "q(a,b) s(b,c)", rules) == {"r(a,b)": 1, "p(a,c)": 3}


def test_a_proof_longer_than_the_limit_is_none():
    facts = "near(a,b) near(b,c) in(c,e)"
    assert depths("in(a,e)", facts, REGIONS, 2) == {"in(a,e)": -1}
    assert depths("in(a,e)", facts, REGIONS, 3) == {"in(a,e)": 3}


def test_a_query_that_is_a_fact_may_not_prove_itself():
    assert depths("husband(a,b)", "husband(a,b)", INVERSE) == {"husband(a,b)": -1}
    assert depths("husband(a,b)", "husband(a,b) wife(b,a)", INVERSE) == {"husband(a,b)": 1}


def test_the_query_is_no_fact_deeper_in_its_own_proof_either():
    # wife(b,a) follows from husband(a,b) alone, so it is no help for husband(a,b) itself.
    rules = [*INVERSE, "near(X,Z), husband(Z,Y) -> husband(X,Y)"]
    assert depths("husband(a,b)", "husband(a,b) near(a,c)", rules) == {"husband(a,b)": -1}
    assert depths("husband(a,b)", "husband(a,b) near(a,c) wife(b,c)", rules) == {"husband(a,b)": 3}


def test_one_variable_in_both_places_asks_for_equal_arguments():
    rules = ["loop(X,X), to(X,Y) -> out(X,Y)", "same(X,Y) -> loop(X,Y)", "loop(X,X), to(X,Y) -> end(Y,Y)"]
    facts = "loop(a,a) loop(b,c) same(c,c) to(a,d) to(b,d) to(c,d) to(b,e) to(c,f)"
    known = depths("out(a,d) out(b,d) out(c,d)", facts, rules)
    assert known == {"out(a,d)": 1, "out(b,d)": -1, "out(c,d)": 2}
    searched = depths("end(d,d) end(e,e) end(f,f) end(d,f)", facts, rules)
    assert searched == {"end(d,d)": 2, "end(e,e)": -1, "end(f,f)": 3, "end(d,f)": -1}


def test_rounds_count_the_layers_of_rules_and_facts_have_none():
    rules = ["near(X,Y) -> linked(X,Y)", "near(X,Z), linked(Z,Y) -> linked(X,Y)"]
    facts = "near(a,b) near(b,c) near(c,d)"
    found = {"near(a,b)": 0, "linked(a,b)": 1, "linked(a,c)": 2, "linked(a,d)": 3, "linked(d,a)": -1}
    assert ask(chaining_rounds, " ".join(found), facts, rules) == found
    assert ask(chaining_rounds, "linked(a,d) linked(a,c)", facts, rules, 2) == {
        "linked(a,d)": -1,
        "linked(a,c)": 2,
    }
    assert ask(chaining_rounds, "near(a,b) linked(a,b)", facts, rules, 0) == {
        "near(a,b)": 0,
        "linked(a,b)": -1,
    }


def test_everything_that_follows_is_listed_once_and_in_order():
    symmetric_and_transitive = (((1, -1, -2), ((1, -2, -1),)), ((1, -1, -2), ((1, -1, -3), (1, -3, -2))))
    atoms, rounds = entail(np.array([[1, 2, 1], [1, 2, 3]], np.int32), symmetric_and_transitive)
    np.testing.assert_array_equal(atoms, [[1, a, b] for a in (1, 2, 3) for b in (1, 2, 3)])
    np.testing.assert_array_equal(rounds, [2, 1, 2, 0, 2, 0, 2, 1, 2])


def test_nothing_asked_and_nothing_known_are_fine():
    nothing = np.zeros((0, 3), np.int32)
    rule = ((1, -1, -2), ((1, -2, -1),))
    assert compute_proof_depths(nothing, nothing, [rule]).shape == (0,)
    assert compute_proof_depths(np.array([[1, 1, 2]], np.int32), nothing, [rule]).tolist() == [-1]
    assert entail(nothing, [rule])[0].shape == (0, 3)


def test_rules_that_hold_of_everything_are_refused():
    fact, rule = np.array([[1, 1, 2]], np.int32), ((1, -1, -2), ((1, -1, -3),))
    for function in (lambda: compute_proof_depths(fact, fact, [rule]), lambda: entail(fact, [rule])):
        with pytest.raises(ValueError, match="head that does not occur in its body"):
            function()


EUROPEAN = ["in(X,Y), in(Y,europe) -> european(X,europe)"]
PLACES = "in(oslo,norway) in(norway,europe) in(tokyo,japan) in(japan,asia)"


def test_a_constant_in_a_rule_stands_for_itself():
    queries = "european(oslo,europe) european(tokyo,europe) european(tokyo,asia)"
    found = {"european(oslo,europe)": 2, "european(tokyo,europe)": -1, "european(tokyo,asia)": -1}
    assert depths(queries, PLACES, EUROPEAN) == found
    rounds = {"european(oslo,europe)": 1, "european(tokyo,europe)": -1, "european(tokyo,asia)": -1}
    assert ask(chaining_rounds, queries, PLACES, EUROPEAN) == rounds
    assert ask(chaining_rounds, queries, PLACES, EUROPEAN, 1) == rounds


def test_a_constant_that_no_fact_and_no_query_has_is_not_taken_for_another():
    # Constants are paired to one number; 9 is greater than all in the facts.
    fact, rule = np.array([[1, 1, 2]], np.int32), ((2, -1, 9), ((1, -1, -2),))
    atoms, rounds = entail(fact, [rule])
    assert atoms.tolist() == [[1, 1, 2], [2, 1, 9]] and rounds.tolist() == [0, 1]
    assert compute_proof_depths(np.array([[2, 1, 2]], np.int32), fact, [rule]).tolist() == [-1]


def shortest_by_search(query, facts, rules, limit):
    """Tries every proof, shortest first, as the proof environment steps; variables are 1000 and up."""
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
                following.add(renamed([atom for atom in goals if atom not in known]))
        if () in following:
            return depth
        states = following
    return -1


def shift(atom):
    return atom[0], *(5000 - term if term < 0 else term for term in atom[1:])


def renamed(goals):
    names = {}
    return tuple(
        (p, *(t if t < 1000 else names.setdefault(t, 1000 + len(names)) for t in arguments))
        for p, *arguments in goals
    )


def random_program(seed):
    """Facts and rules; every second seed has some constants in its rules."""
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
            places = [random.random() < 0.8 for _ in range(2 * len(body))]
            body = tuple((p, *(chosen.get(t, t) if places.pop() else t for t in terms)) for p, *terms in body)
            bound = {term for atom in body for term in atom[1:]}
            head = (head[0], *(t if t in bound else chosen[t] for t in head[1:]))
        rules.append((head, body))
    return facts.astype(np.int32), tuple(rules)


@pytest.mark.parametrize("seed", range(30))
def test_depths_are_those_of_a_search_through_all_proofs(seed, monkeypatch):
    # Small pieces, so that the ways round large joins and many queries are taken too.
    monkeypatch.setattr(joins, "MAX_CHUNK_ROWS", 7)
    monkeypatch.setattr(proof_depths, "_QUERIES_PER_BATCH", 5)
    facts, rules = random_program(seed)
    random = np.random.default_rng(seed)
    others = np.stack([random.integers(1, high, 6) for high in (4, 5, 5)], axis=1).astype(np.int32)
    queries = np.concatenate([facts, others])
    known = [tuple(fact) for fact in facts.tolist()]
    expected = [shortest_by_search(tuple(query), known, rules, 3) for query in queries.tolist()]
    np.testing.assert_array_equal(compute_proof_depths(queries, facts, rules, 3), expected)


@pytest.mark.parametrize("seed", range(30))
def test_rounds_are_those_of_applying_every_rule_until_nothing_is_new(seed):
    facts, rules = random_program(seed)
    known = {tuple(fact): 0 for fact in facts.tolist()}
    number = 0
    while True:
        number += 1
        new = {}
        for head, body in rules:
            # A constant stands for itself.
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
def test_the_depth_files_of_the_shared_countries_are_right():
    data = KnowledgeBase.load(SHARED / "countries_s3", on_leak="allow")
    index = data.vocabulary
    program = index.encode(data.facts), index.encode_rules(data.rules)
    for split in ("train", "valid", "test"):
        given = data.depths(split)
        found = compute_proof_depths(index.encode(list(given)), *program, 10)
        assert found.tolist() == list(given.values())


@needs_shared_data
def test_the_depth_file_of_the_shared_family_overlooks_822_proofs_of_two_steps():
    data = KnowledgeBase.load(SHARED / "family")
    index = data.vocabulary
    program = index.encode(data.facts), index.encode_rules(data.rules)
    unproved = [atom for atom, depth in data.depths("test").items() if depth == -1]
    found = compute_proof_depths(index.encode(unproved), *program, 2)
    assert (len(unproved), int((found == 2).sum())) == (1261, 822)
