"""Inductive evaluation: rules and roles that are learned on one graph and applied to another."""

import numpy as np
import pytest

from phalanx.kg import KnowledgeBase, evaluate_inductive, mine_rules, parse_atom
from phalanx.kg.rules.inductive import NaiveBayesRoleModel, transfer_rules


def graph(names: str, extra: tuple[str, ...] = ()) -> KnowledgeBase:
    """Create a graph of owners and things with `has` and `in`; the last two `in` atoms are queries."""
    pairs = [(f"{names}{n}", f"thing_{names}{n}") for n in range(8)]
    facts = [f"has({a},{b})" for a, b in pairs] + [f"in({b},{a})" for a, b in pairs[:6]] + list(extra)
    queries = [parse_atom(f"in({b},{a})") for a, b in pairs[6:]]
    return KnowledgeBase(
        train=tuple(map(parse_atom, facts)), valid=tuple(queries[:1]), test=tuple(queries[1:])
    )


SOURCE, TARGET = graph("a"), graph("b", ("also(b0,b1)", "has(b1,b2)"))


@pytest.fixture(scope="module")
def rules():
    return mine_rules(SOURCE, max_length=2, constant_rules=False, min_support=1)


def test_transferred_rules_have_the_same_text(rules):
    index = TARGET.vocabulary
    assert index.predicates != SOURCE.vocabulary.predicates
    assert [str(rule) for rule in transfer_rules(rules, index)] == [str(rule) for rule in rules]
    smaller = KnowledgeBase(train=(parse_atom("has(a,b)"),)).vocabulary
    assert len(transfer_rules(rules, smaller)) == 0


def test_role_scores_separate_heads_from_tails():
    names = SOURCE.vocabulary
    fit = NaiveBayesRoleModel(SOURCE).scores(SOURCE)
    thing, owner = (names.entity_ids[name] for name in ("thing_a6", "a6"))
    answer = 2 * names.predicate_ids["in"]
    assert fit[answer, owner] > fit[answer, thing], "things are in owners"
    assert fit[answer + 1, thing] > fit[answer + 1, owner]
    with pytest.raises(ValueError, match="no predicate 'also'"):
        NaiveBayesRoleModel(SOURCE).scores(TARGET)


def test_rules_rank_new_entities_first_and_role_weight_ignores_the_target(rules):
    target = graph("b")
    found = evaluate_inductive(rules, SOURCE, target, "test", "noisyor", num_negatives=10)
    assert (
        found.result.total.mrr == 1.0 and found.result.total.num_lists == 2 and found.num_rules == len(rules)
    )
    on_valid = evaluate_inductive(rules, SOURCE, target, "valid", "noisyor", num_negatives=10)
    assert on_valid.role_weight == found.role_weight
    no_rules = rules.__class__(rules.vocabulary, rules.rows[:0], rules.confidence[:0])
    without_rules = evaluate_inductive(
        no_rules, SOURCE, target, "test", "noisyor", num_negatives=10, role_weights=(0.0,)
    )
    assert without_rules.result.total.mrr < 1.0 and np.isfinite(without_rules.result.total.mrr)
