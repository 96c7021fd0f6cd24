"""Parsing and formatting of atoms and rules."""

import pytest
from hypothesis import given, strategies as st

from phalanx.kg.atoms import Atom, Rule, parse_atom, parse_rule

names = st.text(st.characters(exclude_characters="(),:", exclude_categories=["Z", "C"]), min_size=1).filter(
    lambda name: "->" not in name
)


def test_atom_str_matches_its_syntax():
    assert str(Atom("aunt", "5", "76")) == "aunt(5,76)"


@pytest.mark.parametrize("text", ["aunt(5,76)", "aunt(5,76).", "  aunt ( 5 , 76 ) . "])
def test_parse_atom_ignores_final_dot_and_whitespace(text):
    assert parse_atom(text) == Atom("aunt", "5", "76")


def test_names_may_contain_punctuation_outside_the_syntax():
    assert parse_atom("co-occurs_with(a/b,c.d)") == Atom("co-occurs_with", "a/b", "c.d")


@pytest.mark.parametrize(
    "text", ["", "aunt", "aunt()", "aunt(5,76,1,2)", "aunt(5,)", "(5,76)", "a(1,2) b(1,2)"]
)
def test_malformed_atom_raises_error_with_expected_syntax(text):
    with pytest.raises(ValueError, match=r"is not an atom; expected predicate\(first,second\)"):
        parse_atom(text)


def test_parse_rule_returns_name_weight_body_and_head():
    rule = parse_rule("r0:0.619035224:sister(p,q), father(q,r) -> aunt(p,r)")
    assert rule.name == "r0"
    assert rule.weight == 0.619035224
    assert rule.body == (Atom("sister", "p", "q"), Atom("father", "q", "r"))
    assert rule.head == Atom("aunt", "p", "r")


def test_parse_rule_accepts_spaces_before_commas_and_capital_variables():
    rule = parse_rule("r1:1:near(X,Y) , in(Y,Z) -> in(X,Z)")
    assert str(rule) == "r1:1.0:near(X,Y), in(Y,Z) -> in(X,Z)"


def test_body_atom_may_repeat_a_variable():
    assert parse_rule("r:1:male(X,X), parent(X,Y) -> father(X,Y)").body[0] == Atom("male", "X", "X")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("brother(a,h) -> son(a,b)", "expected name:weight:body -> head"),
        ("r0:1:brother(a,h), mother(b,h)", "expected name:weight:body -> head"),
        (":1:a(x,y) -> b(x,y)", "expected name:weight:body -> head"),
        ("r0:heavy:a(x,y) -> b(x,y)", "weight of rule 'r0' must be a number, got 'heavy'"),
        ("r0:nan:a(x,y) -> b(x,y)", "must be a number"),
        ("r0:1: -> b(x,y)", "not the body of a rule"),
        ("r0:1:a(x,y), -> b(x,y)", "not the body of a rule"),
        ("r0:1:a(x,y) c(x,y) -> b(x,y)", "not the body of a rule"),
        ("r0:1:a(x,y) -> b(x,y), c(x,y)", "is not an atom"),
    ],
)
def test_malformed_rule_raises_error(text, message):
    with pytest.raises(ValueError, match=message):
        parse_rule(text)


def test_rule_without_body_raises_error():
    with pytest.raises(ValueError, match="has no body"):
        Rule("r", 1.0, (), Atom("a", "x", "y"))


@given(st.tuples(names, names, names))
def test_atom_str_round_trips(parts):
    atom = Atom(*parts)
    assert parse_atom(f"{atom}.") == atom


@given(
    names,
    st.floats(allow_nan=False, allow_infinity=False),
    st.lists(st.tuples(names, names, names), min_size=2),
)
def test_rule_str_round_trips(name, weight, parts):
    atoms = [Atom(*part) for part in parts]
    rule = Rule(name, weight, tuple(atoms[1:]), atoms[0])
    assert parse_rule(str(rule)) == rule
