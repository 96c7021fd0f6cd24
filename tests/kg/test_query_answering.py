"""Query answering by rules: order, probabilities, proofs and errors."""

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
    train, held_out = (tuple(map(parse_atom, text.split())) for text in (FACTS, valid))
    return KnowledgeBase(train, tuple(map(parse_rule, RULES)), held_out)


def test_answers_are_sorted_by_fact_confidence_and_number_of_rules() -> None:
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


def test_tail_and_ground_queries_are_answered() -> None:
    assert [str(answer.atom) for answer in answer_query(family(), "aunt(zoe,Y)")] == [
        "aunt(zoe,kim)",
        "aunt(zoe,lea)",
    ]
    (answer,) = answer_query(family(), "aunt(eve,kim)")
    assert answer.confidence == 0.5
    assert answer_query(family(), "aunt(kim,eve)") == []


def test_answers_have_valid_proofs() -> None:
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


def test_rules_are_mined_if_there_are_none() -> None:
    data = KnowledgeBase.generate(num_families=3)
    without_rules = KnowledgeBase(data.facts, valid=data.valid)
    query = data.test[0]
    answers = answer_query(without_rules, f"{query.predicate}(X,{query.second})", explain=True)
    assert answers
    for answer in answers:
        for proof in answer.proofs:
            proof.check(without_rules.facts, answer.rules)


def test_probabilities_are_calibrated_on_validation() -> None:
    data = family("aunt(ann,kim)")
    answerer = QueryAnswerer(data)
    # The queries aunt(?,kim) and aunt(ann,?) have three answers, two of which are true.
    assert answerer.calibrate(np.array([0.5, 0.9])) == pytest.approx([2 / 3, 2 / 3])
    assert QueryAnswerer(family()).calibrate(np.array([0.3])) == [0.3]


def test_isotonic_regression_fits_a_monotonic_curve() -> None:
    points, share = isotonic_regression(
        np.array([1.0, 2.0, 2.0, 3.0, 4.0]), np.array([False, True, True, False, True])
    )
    assert points.tolist() == [1, 2, 3, 4] and share.tolist() == [0, 2 / 3, 2 / 3, 1]


def test_invalid_queries_raise_error() -> None:
    data = family()
    for query, message in (
        ("ant(X,kim)", "no predicate 'ant'.*'aunt'"),
        ("aunt(X,kin)", "no constant 'kin'.*'kim'"),
        ("aunt(X,Y)", "two variables"),
        ("aunt(X,X)", r"aunt\(X,X\) has a variable twice"),
        ("aunt", "not an atom"),
    ):
        with pytest.raises(ValueError, match=message):
            answer_query(data, query)
    with pytest.raises(ValueError, match="top must be at least 1"):
        answer_query(data, "aunt(X,kim)", top=0)


def test_given_rules_replace_those_of_the_knowledge_base() -> None:
    data = family()
    rules, _ = RuleSet.from_rules([parse_rule("r:.7:parent(A,Y), sister(X,A) -> aunt(X,Y)")], data.vocabulary)
    assert {
        answer.confidence for answer in answer_query(data, "aunt(X,kim)", exclude_facts=True, rules=rules)
    } == {0.7}


def test_single_fact_and_unsupported_rules_are_accepted() -> None:
    data = KnowledgeBase((parse_atom("p(a,b)"),))
    assert [answer.is_fact for answer in answer_query(data, "p(a,X)")] == [True]
    unsupported = parse_rule("odd:1:p(X,Z), p(Y,Z), p(X,Y) -> p(X,Y)")
    answerer = QueryAnswerer(KnowledgeBase((parse_atom("p(a,b)"),), (unsupported,)))
    assert answerer.unsupported_rules == (unsupported,) and len(answerer.rules) == 0
