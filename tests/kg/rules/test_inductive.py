"""Rules and roles that were learned on one graph, for the entities of another."""

import numpy as np
import pytest

from phalanx.kg import KnowledgeBase, evaluate_inductive, mine_rules, parse_atom
from phalanx.kg.rules.inductive import RoleModel, transfer_rules


def graph(names: str, extra: tuple[str, ...] = ()) -> KnowledgeBase:
    """Each one has something, which is in it; the last two are asked about. Cities have no things."""
    pairs = [(f"{names}{n}", f"thing_{names}{n}") for n in range(8)]
    facts = [f"has({a},{b})" for a, b in pairs] + [f"in({b},{a})" for a, b in pairs[:6]] + list(extra)
    asked = [parse_atom(f"in({b},{a})") for a, b in pairs[6:]]
    return KnowledgeBase(train=tuple(map(parse_atom, facts)), valid=tuple(asked[:1]), test=tuple(asked[1:]))


SOURCE, TARGET = graph("a"), graph("b", ("also(b0,b1)", "has(b1,b2)"))


@pytest.fixture(scope="module")
def rules():
    return mine_rules(SOURCE, max_length=2, constant_rules=False, min_support=1)


def test_a_rule_says_the_same_by_the_numbers_of_another_graph(rules):
    index = TARGET.vocabulary
    assert index.predicates != SOURCE.vocabulary.predicates
    assert [str(rule) for rule in transfer_rules(rules, index)] == [str(rule) for rule in rules]
    few = KnowledgeBase(train=(parse_atom("has(a,b)"),)).vocabulary
    assert len(transfer_rules(rules, few)) == 0


def test_roles_tell_those_who_have_from_what_they_have():
    names = SOURCE.vocabulary
    fit = RoleModel(SOURCE).scores(SOURCE)
    thing, owner = (names.entity_ids[name] for name in ("thing_a6", "a6"))
    answer = 2 * names.predicate_ids["in"]
    assert fit[answer, owner] > fit[answer, thing], "things are in owners"
    assert fit[answer + 1, thing] > fit[answer + 1, owner]
    with pytest.raises(ValueError, match="no predicate 'also'"):
        RoleModel(SOURCE).scores(TARGET)


def test_queries_about_new_entities_rank_first_by_the_rules_and_the_target_is_not_looked_at(rules):
    target = graph("b")
    found = evaluate_inductive(rules, SOURCE, target, "test", "noisyor", num_negatives=10)
    assert (
        found.result.total.mrr == 1.0 and found.result.total.num_lists == 2 and found.num_rules == len(rules)
    )
    again = evaluate_inductive(rules, SOURCE, target, "valid", "noisyor", num_negatives=10)
    assert again.role_weight == found.role_weight
    nothing = rules.__class__(rules.vocabulary, rules.rows[:0], rules.confidence[:0])
    alone = evaluate_inductive(
        nothing, SOURCE, target, "test", "noisyor", num_negatives=10, role_weights=(0.0,)
    )
    assert alone.result.total.mrr < 1.0 and np.isfinite(alone.result.total.mrr)
