"""The prover: shortest proofs, answers, checks and explanations of failures."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from phalanx.kg.atoms import Atom, Rule, parse_atom, parse_rule
from phalanx.kg.chaining import entail
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.kg.proof_depths import compute_proof_depths
from phalanx.kg.proving import Proof, ProofQuery, Prover, parse_query, prove
from phalanx.proofs.vocabulary import ProofVocabulary
from tests.reference import proofs as reference

pytestmark = pytest.mark.slow

FACTS = "sister(ann,bob). parent(bob,cat). wife(eve,dan). brother(dan,bob). aunt(ann,kim)."
RULES = [
    "r1:1:sister(X,Z), parent(Z,Y) -> aunt(X,Y)",
    "r2:1:wife(X,Z), uncle(Z,Y) -> aunt(X,Y)",
    "r3:1:brother(X,Z), parent(Z,Y) -> uncle(X,Y)",
]
AUNT, BY_WIFE, UNCLE = map(parse_rule, RULES)


def family(facts=FACTS, rules=RULES):
    return KnowledgeBase(tuple(map(parse_atom, facts.split())), tuple(map(parse_rule, rules)))


def fact(text, *free):
    return Proof(parse_atom(text), free or ("", ""))


def test_proof_is_a_tree_of_rules_with_facts_as_leaves():
    assert prove(family(), "aunt(eve,cat)") == Proof(
        parse_atom("aunt(eve,cat)"),
        ("", ""),
        BY_WIFE,
        (("X", "eve"), ("Y", "cat"), ("Z", "dan")),
        (
            fact("wife(eve,dan)", "", "Z"),
            Proof(
                parse_atom("uncle(dan,cat)"),
                ("", ""),
                UNCLE,
                (("X", "dan"), ("Y", "cat"), ("Z", "bob")),
                (fact("brother(dan,bob)", "", "Z"), fact("parent(bob,cat)")),
            ),
        ),
    )


def test_depth_counts_rules_and_facts_that_bind_variables():
    assert prove(family(), "aunt(eve,cat)").depth == 4
    assert prove(family(), "aunt(ann,cat)").depth == 2
    assert fact("aunt(ann,kim)").depth == 1


def test_selected_goal_keeps_unbound_variables():
    first, second = prove(family(), "aunt(ann,cat)").children
    assert [str(first.selected_goal), str(second.selected_goal)] == ["sister(ann,Z)", "parent(bob,cat)"]


def test_max_depth_limits_proofs():
    assert prove(family(), "aunt(eve,cat)", max_depth=3) is None
    with pytest.raises(ValueError, match="max_depth must be at least 1, got 0"):
        prove(family(), "aunt(eve,cat)", max_depth=0)


def test_query_is_not_used_as_a_fact():
    assert prove(family(), "aunt(ann,kim)") is None
    married = family("husband(dan,eve). wife(eve,dan).", ["r:1:wife(Y,X) -> husband(X,Y)"])
    assert prove(married, "husband(dan,eve)").children == (fact("wife(eve,dan)"),)
    circle = family("husband(dan,eve).", ["a:1:wife(Y,X) -> husband(X,Y)", "b:1:husband(Y,X) -> wife(X,Y)"])
    assert prove(circle, "husband(dan,eve)") is None
    assert prove(circle, "wife(eve,dan)").depth == 1


def test_query_with_variables_is_answered_by_facts_and_rules():
    data = family()
    prover = Prover(data.facts, data.rules)
    found = [(str(proof.goal), proof.depth) for proof in prover.answers(parse_query(data, "aunt(X,Y)"))]
    assert found == [("aunt(ann,kim)", 1), ("aunt(ann,cat)", 3), ("aunt(eve,cat)", 5)]
    found = [str(proof.goal) for proof in prover.answers(parse_query(data, "aunt(X,cat)"))]
    assert found == ["aunt(ann,cat)", "aunt(eve,cat)"]
    assert list(prover.answers(parse_query(data, "aunt(X,X)"))) == []


def test_repeated_variable_binds_to_one_constant():
    data = family("likes(a,b). likes(b,a). likes(a,c).", ["r:1:likes(X,Z), likes(Z,Y) -> knows(X,Y)"])
    prover = Prover(data.facts, data.rules)
    proofs = list(prover.answers(parse_query(data, "knows(X,X)")))
    assert [str(proof.goal) for proof in proofs] == ["knows(a,a)", "knows(b,b)"]
    for proof in proofs:
        proof.check(data.facts, data.rules)


def test_query_variable_syntax():
    data = family("in(Paris,France). in(X,France).", [])
    assert parse_query(data, "in(Paris,Y)") == ProofQuery(Atom("in", "Paris", "Y"), ("", "Y"))
    assert parse_query(data, "in(_place,?x)").free == ("_place", "?x")
    assert parse_query(data, "in(Paris,France).").is_ground
    assert parse_query(data, "in(X,'France')").is_ground
    # Each `_` is a variable of its own, so that both arguments may differ.
    assert len(list(Prover(data.facts, data.rules).answers(parse_query(data, "in(_,_)")))) == 2


@pytest.mark.parametrize("query", ["in(Pari,Y)", "in(Where,France)", "in('Y',France)", "in(paris,France)"])
def test_unknown_constant_is_not_parsed_as_a_variable(query):
    with pytest.raises(ValueError, match=r"no constant .*did you mean '.* A variable is one capital"):
        parse_query(family("in(Paris,France).", []), query)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (
            "ant(ann,cat)",
            r"no predicate 'ant' in this knowledge base \(in ant\(ann,cat\)\); did you mean 'aunt'",
        ),
        ("aunt_kge(ann,cat)", r"no predicate 'aunt_kge' .*; did you mean 'aunt'"),
        (
            "aunt(anne,X)",
            r"no constant 'anne' in this knowledge base \(in aunt\(anne,X\)\); did you mean 'ann'",
        ),
        ("aunt(ann", r"'aunt\(ann' is not an atom"),
    ],
)
def test_unknown_name_raises_error_with_suggestion(query, message):
    with pytest.raises(ValueError, match=message):
        parse_query(family(), query)


def test_unbound_head_variable_raises_error():
    with pytest.raises(ValueError, match="rule 'r' has Y in its head but not in its body"):
        Prover([], [parse_rule("r:1:wife(X,Z) -> aunt(X,Y)")])


def test_explain_failure_lists_the_failing_goal_of_each_rule():
    data = family()
    prover = Prover(data.facts, data.rules)

    def explain(query, depth=6):
        return prover.explain_failure(parse_query(data, query), depth)

    assert explain("aunt(cat,bob)") == [
        "r1: no sister(cat,Z)",
        "r2: no wife(cat,Z)",
    ]
    assert explain("aunt(eve,kim)") == ["r1: no sister(eve,Z)", "r2: no uncle(Z,kim) with wife(eve,Z)"]
    assert explain("aunt(eve,cat)", 3)[1] == "r2: no uncle(Z,cat) with wife(eve,Z)"
    assert explain("wife(ann,X)") == ["no rule has wife in its head"]
    assert explain("aunt(ann,kim)")[0] == "aunt(ann,kim) is a fact, which cannot prove itself"
    same_arguments = Prover([], [parse_rule("r:1:likes(X,X) -> knows(X,X)")])
    assert same_arguments.explain_failure(ProofQuery(Atom("knows", "a", "b"))) == [
        "r: its head, knows(X,X), does not match"
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"children": ()}, "are not the body of r1"),
        ({"goal": parse_atom("aunt(ann,bob)")}, r"the head of r1 is not aunt\(ann,bob\)"),
        ({"rule": dataclasses.replace(AUNT, weight=2.0)}, "r1, which is not one of the rules"),
        ({"substitution": (("X", "ann"), ("Y", "cat"), ("Z", "dan"))}, "are not the body"),
        ({"substitution": (("X", "ann"), ("Y", "cat"))}, "are not the body"),
        ({"children": (fact("sister(ann,bob)"), fact("parent(bob,cat)"))}, "was selected with"),
        (
            {"rule": None, "substitution": (), "children": (), "goal": parse_atom("aunt(ann,cat)")},
            r"aunt\(ann,cat\) is not a fact",
        ),
    ],
)
def test_check_rejects_invalid_proof(change, message):
    data = family()
    proof = prove(data, "aunt(ann,cat)")
    proof.check(data.facts, data.rules)
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(proof, **change).check(data.facts, data.rules)


def test_check_rejects_query_used_as_its_own_fact():
    loop = Rule("loop", 1.0, (Atom("aunt", "X", "Y"),), Atom("aunt", "X", "Y"))
    kim = parse_atom("aunt(ann,kim)")
    proof = Proof(kim, ("", ""), loop, (("X", "ann"), ("Y", "kim")), (Proof(kim),))
    with pytest.raises(ValueError, match="is not a fact that this proof may use"):
        proof.check({kim}, [loop])
    with pytest.raises(ValueError, match="is not a fact that this proof may use"):
        fact("parent(bob,cat)").check(set(), [])


PREDICATES, CONSTANTS, VARIABLES = "pqr", "abcd", "XYZ"


def atom_tuples(terms):
    return st.tuples(st.sampled_from(PREDICATES), st.sampled_from(terms), st.sampled_from(terms))


@st.composite
def programs(draw):
    """Draw facts and rules as tuples, because type-checked classes cannot be created in a strategy."""
    facts = draw(st.lists(atom_tuples(CONSTANTS), max_size=9))
    rules = []
    for _ in range(draw(st.integers(0, 5))):
        terms = VARIABLES + (CONSTANTS[:2] if draw(st.booleans()) else "")
        body = draw(st.lists(atom_tuples(terms), min_size=1, max_size=3))
        bound = sorted({name for atom in body for name in atom[1:]} | set(terms).difference(VARIABLES))
        rules.append((body, draw(atom_tuples(bound))))
    return facts, rules


def build_program(program):
    facts, rules = program
    return [Atom(*atom) for atom in facts], tuple(
        build_rule(f"r{number}", tuple(Atom(*atom) for atom in body), Atom(*head))
        for number, (body, head) in enumerate(rules)
    )


def build_rule(name, body, head):
    terms = {term for atom in (head, *body) for term in atom[1:]}
    return Rule(name, 1.0, body, head, frozenset(terms.intersection(CONSTANTS)))


ALL_ATOMS = [Atom(p, a, b) for p in PREDICATES for a in CONSTANTS for b in CONSTANTS]


def encode_program(facts, rules):
    data = KnowledgeBase(tuple(facts), rules, extra_known=tuple(ALL_ATOMS), on_leak="allow")
    index = ProofVocabulary(data)
    return index, index.encode(tuple(dict.fromkeys(facts))), index.encode_rules(rules)


@settings(max_examples=40, deadline=None)
@given(programs(), st.integers(1, 5))
def test_shortest_proof_depth_matches_forward_chaining(program, max_depth):
    facts, rules = build_program(program)
    index, *arrays = encode_program(facts, rules)
    depths = compute_proof_depths(index.encode(ALL_ATOMS), *arrays, max_depth)
    prover = Prover(facts, rules)
    for atom, depth in zip(ALL_ATOMS, depths.tolist(), strict=True):
        proof = next(prover.proofs(ProofQuery(atom), max_depth), None)
        assert (-1 if proof is None else proof.depth) == depth, atom
        if proof is not None:
            proof.check(facts, rules)


@pytest.mark.parametrize("seed", range(8))
def test_provable_atoms_match_forward_chaining(seed):
    random = np.random.default_rng(seed)
    facts = [ALL_ATOMS[n] for n in random.choice(len(ALL_ATOMS), 7, replace=False)]
    rules = []
    for number in range(4):
        body = tuple(
            Atom(PREDICATES[random.integers(3)], *random.choice(list(VARIABLES + "a"), 2).tolist())
            for _ in range(random.integers(1, 3))
        )
        bound = sorted({name for atom in body for name in atom[1:]})
        head = Atom(PREDICATES[random.integers(3)], *random.choice(bound, 2).tolist())
        rules.append(build_rule(f"r{number}", body, head))
    index, *program = encode_program(facts, tuple(rules))
    follows = {index.decode_atom(row) for row in entail(*program)[0]} - set(facts)
    prover = Prover(facts, rules)
    rest = [atom for atom in ALL_ATOMS if atom not in facts]
    found = {atom for atom in rest if next(prover.proofs(ProofQuery(atom), 14), None)}
    assert found == follows


@settings(max_examples=40, deadline=None)
@given(programs(), st.sampled_from([("a", "X"), ("X", "b"), ("X", "Y"), ("X", "X")]))
def test_answers_match_reference_resolution(program, terms):
    facts, rules = build_program(program)
    limit = 3
    index, fact_rows, encoded_rules = encode_program(facts, rules)
    kb = reference.KnowledgeBase(fact_rows.tolist(), encoded_rules, len(PREDICATES) + 1, len(CONSTANTS))
    names = {"X": len(CONSTANTS) + 1, "Y": len(CONSTANTS) + 2}
    numbers = [names.get(term) or index.constant_indices[term] for term in terms]
    # A last goal that cannot be proved keeps the values of the variables.
    kept_predicate = len(PREDICATES) + 1
    states, expected = {reference.canonical(kb, [(1, *numbers), (kept_predicate, *numbers)])}, {}
    for depth in range(1, limit + 1):
        following = {after for state in states for after in reference.resolvents(kb, state, None)}
        for state in following:
            if state[0][0] == kept_predicate:
                expected.setdefault(index.decode_atom((1, *state[0][1:])), depth)
        states = {state for state in following if state[0][0] != kept_predicate}
    free = tuple(term if term in names else "" for term in terms)
    proofs = list(Prover(facts, rules).answers(ProofQuery(Atom("p", *terms), free), limit))
    assert {proof.goal: proof.depth for proof in proofs} == expected
    assert len(proofs) == len(expected)
    for proof in proofs:
        proof.check(facts, rules)


@settings(max_examples=20, deadline=None)
@given(programs())
def test_proofs_are_distinct_sorted_by_depth_and_acyclic(program):
    facts, rules = build_program(program)
    prover = Prover(facts, rules)
    for atom in ALL_ATOMS[:16]:
        proofs = [proof for proof, _ in zip(prover.proofs(ProofQuery(atom), 4), range(20), strict=False)]
        assert len(set(proofs)) == len(proofs)
        assert [proof.depth for proof in proofs] == sorted(proof.depth for proof in proofs)
        for proof in proofs:
            proof.check(facts, rules)
            assert is_acyclic(proof, set())


def is_acyclic(proof, ancestors):
    return proof.goal not in ancestors and all(
        is_acyclic(child, ancestors | {proof.goal}) for child in proof.children
    )
