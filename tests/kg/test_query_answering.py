"""Questions answered by rules: order, likelihood, proofs, and what is said of bad questions."""

import numpy as np
import pytest

from phalanx.kg.atoms import parse_atom, parse_rule
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.kg.query_answering import QueryAnswerer, answer_query, isotonic_regression
from phalanx.kg.rules.ruleset import RuleSet

FACTS = "sister(ann,bob) sister(eve,bob) parent(bob,kim) likes(ann,kim) aunt(zoe,kim) likes(zoe,lea)"
RULES = (
    "near:0.5:sister(X,A), parent(A,Y) -> aunt(X,Y)",
    "fond:0.4:likes(X,Y) -> aunt(X,Y)",
    "all:0.1:sister(X,Y) -> aunt(X,kim)",
)


def family(valid: str = "") -> KnowledgeBase:
    train, held = (tuple(map(parse_atom, text.split())) for text in (FACTS, valid))
    return KnowledgeBase(train, tuple(map(parse_rule, RULES)), held)


def test_facts_come_first_then_the_most_certain_with_more_rules_ahead() -> None:
    answers = answer_query(family(), "aunt(X,kim)")
    assert [(str(answer.atom), answer.confidence, answer.is_fact) for answer in answers] == [
        ("aunt(zoe,kim)", 0.0, True),
        ("aunt(ann,kim)", 0.5, False),
        ("aunt(eve,kim)", 0.5, False),
    ]
    assert [answer.probability for answer in answers] == [1.0, 0.5, 0.5]
    assert [
        str(answer.atom) for answer in answer_query(family(), "aunt(X,kim)", top=1, exclude_facts=True)
    ] == ["aunt(ann,kim)"]


def test_the_other_side_and_ground_queries_are_answered_too() -> None:
    assert [str(answer.atom) for answer in answer_query(family(), "aunt(zoe,Y)")] == [
        "aunt(zoe,kim)",
        "aunt(zoe,lea)",
    ]
    (answer,) = answer_query(family(), "aunt(eve,kim)")
    assert answer.confidence == 0.5
    assert answer_query(family(), "aunt(kim,eve)") == []


def test_each_answer_has_its_proofs_and_they_hold() -> None:
    data = family()
    ann = answer_query(data, "aunt(X,kim)", explain=True, exclude_facts=True)[0]
    assert [rule.weight for rule in ann.rules] == [0.5, 0.4, 0.1]
    assert [[str(child.goal) for child in proof.children] for proof in ann.proofs] == [
        ["sister(ann,bob)", "parent(bob,kim)"],
        ["likes(ann,kim)"],
        ["sister(ann,bob)"],
    ]
    for proof in ann.proofs:
        proof.check(data.facts, ann.rules)


def test_without_rules_they_are_mined() -> None:
    data = KnowledgeBase.generate(num_families=3)
    bare = KnowledgeBase(data.facts, valid=data.valid)
    query = data.test[0]
    answers = answer_query(bare, f"{query.predicate}(X,{query.second})", explain=True)
    assert answers
    for answer in answers:
        for proof in answer.proofs:
            proof.check(bare.facts, answer.rules)


def test_likelihoods_are_calibrated_on_validation() -> None:
    data = family("aunt(ann,kim)")
    asker = QueryAnswerer(data)
    # Asked for aunt(?,kim) and aunt(ann,?): ann twice, which is true, eve once, which is not known to be.
    assert asker.calibrate(np.array([0.5, 0.9])) == pytest.approx([2 / 3, 2 / 3])
    assert QueryAnswerer(family()).calibrate(np.array([0.3])) == [0.3]


def test_a_rising_curve_is_fitted() -> None:
    points, share = isotonic_regression(
        np.array([1.0, 2.0, 2.0, 3.0, 4.0]), np.array([False, True, True, False, True])
    )
    assert points.tolist() == [1, 2, 3, 4] and share.tolist() == [0, 2 / 3, 2 / 3, 1]


def test_bad_questions_are_refused_in_words() -> None:
    data = family()
    for query, said in (
        ("ant(X,kim)", "no predicate 'ant'.*'aunt'"),
        ("aunt(X,kin)", "no constant 'kin'.*'kim'"),
        ("aunt(X,Y)", "two variables"),
        ("aunt(X,X)", r"aunt\(X,X\) has a variable twice"),
        ("aunt", "not an atom"),
    ):
        with pytest.raises(ValueError, match=said):
            answer_query(data, query)
    with pytest.raises(ValueError, match="top must be at least 1"):
        answer_query(data, "aunt(X,kim)", top=0)


def test_given_rules_are_used_in_place_of_the_knowledge_base_s_own() -> None:
    data = family()
    rules = RuleSet.from_rules(
        [parse_rule("r:.7:parent(A,Y), sister(X,A) -> aunt(X,Y)")], data.vocabulary
    ).rules
    assert {
        answer.confidence for answer in answer_query(data, "aunt(X,kim)", exclude_facts=True, rules=rules)
    } == {0.7}


def test_one_fact_and_rules_of_other_shapes() -> None:
    data = KnowledgeBase((parse_atom("p(a,b)"),))
    assert [answer.is_fact for answer in answer_query(data, "p(a,X)")] == [True]
    odd = parse_rule("odd:1:p(X,Z), p(Y,Z), p(X,Y) -> p(X,Y)")
    asker = QueryAnswerer(KnowledgeBase((parse_atom("p(a,b)"),), (odd,)))
    assert asker.unsupported_rules == (odd,) and len(asker.rules) == 0
