"""Rule mining: counts, agreement with the reference implementation, prediction and files."""

import itertools

import numpy as np
import pytest

from phalanx.kg import MiningConfig, RulePredictor, RuleSet, evaluate_link_prediction, mine_rules
from phalanx.kg.atoms import Atom, parse_atom, parse_rule
from phalanx.kg.evaluation import LinkPredictionResult, RankCounts, count_ranks
from phalanx.kg.formats import load_rules
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.kg.predictor_ensemble import best_per_relation
from phalanx.kg.rules.predictor import (
    AGGREGATORS,
    PER_RELATION_CHOICES,
    RuleApplier,
    WeightLearningSettings,
    rule_weights,
)
from phalanx.kg.rules.ruleset import HEAD_CONSTANT
from phalanx.native import native_module
from tests.reference import rule_mining as reference

native = native_module()
needs_native = pytest.mark.skipif(native is None, reason="the compiled extension is not available")


def base(train: str, valid: str = "", test: str = "") -> KnowledgeBase:
    splits = [tuple(map(parse_atom, text.split())) for text in (train, valid, test)]
    return KnowledgeBase(train=splits[0], valid=splits[1], test=splits[2])


def test_repr_of_a_rule_set_is_short() -> None:
    knowledge_base = base("p(a,b) p(b,c)")
    rules, _ = RuleSet.from_rules([parse_rule("r1:0.5:p(X,Y) -> p(Y,X)")], knowledge_base.vocabulary)
    assert repr(rules) == "RuleSet(num_rules=1, vocabulary=Vocabulary(1 predicates, 3 entities))"


def random_base(seed: int, facts: int = 60, entities: int = 9, relations: int = 3) -> KnowledgeBase:
    draw = np.random.default_rng(seed)
    rows = draw.integers(0, (relations, entities, entities), (facts, 3)).tolist()
    atoms = tuple(dict.fromkeys(Atom(f"p{r}", f"e{a}", f"e{b}") for r, a, b in rows))
    cut = len(atoms) * 3 // 4
    splits = {"train": atoms[:cut], "valid": atoms[cut : cut + 4], "test": atoms[cut + 4 :]}
    return KnowledgeBase(**splits)


def counts_by_rule(rules: RuleSet) -> dict[str, tuple[int, ...]]:
    assert rules.counts is not None
    return {
        str(rule).split(":", 2)[2]: tuple(row) for rule, row in zip(rules, rules.counts.tolist(), strict=True)
    }


def count_test_ranks(rules: RuleSet, data: KnowledgeBase, aggregation: str = "maxplus") -> RankCounts:
    """Return the rank counts of the test queries."""
    known = data.known_answers
    return count_ranks(RulePredictor.fit(rules, data, aggregation), data.triples("test"), known)


def fit_and_evaluate(
    rules: RuleSet, data: KnowledgeBase, split: str = "test", aggregation: str = "maxplus", **settings
) -> LinkPredictionResult:
    """Fit a predictor and evaluate it."""
    predictor = RulePredictor.fit(rules, data, aggregation, **settings)
    return evaluate_link_prediction(predictor, data, split, ties="random")


FAMILY = base(
    "sister(ann,bob) parent(bob,cat) parent(bob,kim) aunt(ann,kim) "
    "sister(eve,dan) parent(dan,lea) aunt(eve,lea)"
)


def test_path_rule_counts_predictions_and_facts() -> None:
    found = counts_by_rule(mine_rules(FAMILY, constant_rules=False, max_length=2, num_threads=1))
    # aunt(ann,cat) is predicted too, but is not a fact. Ann and Eve, the X of all three, have aunt facts.
    assert found["sister(X,A), parent(A,Y) -> aunt(X,Y)"] == (2, 3, 3)


def test_inverse_relations_are_mined() -> None:
    found = counts_by_rule(
        mine_rules(base("in(a,b) in(c,d) has(b,a) has(d,c) has(f,e)"), constant_rules=False, num_threads=1)
    )
    assert found == {"has(Y,X) -> in(X,Y)": (2, 3, 2), "in(Y,X) -> has(X,Y)": (2, 2, 2)}


def test_rules_with_constants_and_dangling_variables_are_mined() -> None:
    facts = (
        "born(ann,rome) born(bob,rome) born(cat,rome) speaks(ann,latin) speaks(bob,latin) speaks(dan,greek)"
    )
    found = counts_by_rule(mine_rules(base(facts), max_length=1, confidence="pca", num_threads=1))
    # Ann, Bob and Cat were born in Rome. Two of them speak Latin; Cat has no known language.
    assert found["born(X,rome) -> speaks(X,latin)"] == (2, 3, 2)
    assert found["speaks(X,latin) -> born(X,rome)"] == (2, 2, 2)
    # Y is any entity other than Rome, so Dan counts. No rule has its head as its body.
    assert found["speaks(X,Y) -> born(X,rome)"] == (2, 3, 2)
    assert "speaks(X,Y) -> speaks(X,latin)" not in found and "speaks(X,latin) -> speaks(X,latin)" not in found


def test_confidence_is_smoothed_and_pca_counts_only_known_subjects() -> None:
    data = base("in(a,b) in(c,d) has(b,a) has(d,c) has(f,e)")
    for kind, tried in (("standard", 3), ("pca", 2)):
        rules = mine_rules(
            data, constant_rules=False, confidence=kind, confidence_smoothing=1.0, num_threads=1
        )
        confidence = {rule.head.predicate: rule.weight for rule in rules}
        assert confidence["in"] == 2 / (tried + 1)


def test_rule_bodies_do_not_use_the_predicted_triple() -> None:
    # One edge only: a body that follows it in both directions would use it again.
    assert (
        len(mine_rules(base("p(a,b)"), max_length=5, min_support=1, min_confidence=0.0, num_threads=1)) == 0
    )
    assert (
        len(
            mine_rules(
                base("p(a,b) p(c,b) q(a,a)"), max_length=4, constant_rules=False, min_support=1, num_threads=1
            )
        )
        == 0
    )


def mine_by_brute_force(data: KnowledgeBase, length: int) -> dict[str, tuple[int, int, int]]:
    """Find all path rules of a small graph by trying all walks between all pairs of entities."""
    index = data.vocabulary
    graph = reference.TripleGraph(data.triples("train"), index.num_entities, index.num_predicates)
    rows, counts = [], []
    for size in range(1, length + 1):
        for body in itertools.product(range(graph.directed), repeat=size):
            pairs = [(x, y) for x in range(graph.entities) for y in graph.ends(body, x, 10**6)]
            for head in range(0, graph.directed, 2):
                num_correct = sum(y in graph.to.get((x, head), ()) for x, y in pairs)
                if num_correct and body != (head,):
                    rows.append((head, *body, *(-1,) * (5 - size), -1, -1))
                    counts.append((num_correct, len(pairs), sum((x, head) in graph.to for x, _ in pairs)))
    return counts_by_rule(
        RuleSet(index, np.array(rows, np.int32), np.ones(len(rows)), np.array(counts, np.int64))
    )


@pytest.mark.parametrize("seed", range(3))
def test_mined_path_rules_match_brute_force(seed: int) -> None:
    data = random_base(seed, facts=16, entities=6, relations=2)
    found = counts_by_rule(
        mine_rules(
            data,
            constant_rules=False,
            min_support=1,
            min_confidence=0.0,
            num_threads=1,
            max_edges_per_step=1000,
        )
    )
    assert found == mine_by_brute_force(data, 3)


@needs_native
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_length": 2, "confidence": "pca", "min_support": 1},
        {
            "max_length": 4,
            "max_edges_per_step": 2,
            "max_predictions": 20,
            "max_paths_per_entity": 3,
            "max_start_triples": 17,
            "max_path_rules": 30,
        },
        {"max_length": 1, "max_constant_rule_degree": 6, "max_constant_rules": 12, "seed": 5},
    ],
)
def test_native_mining_matches_reference(settings, monkeypatch) -> None:
    monkeypatch.setattr("phalanx.kg.rules.mining._ENTITIES_PER_ROUND", 2)
    data = random_base(11)
    fast = [mine_rules(data, num_threads=threads, **settings) for threads in (1, 2, 3)]
    monkeypatch.setattr("phalanx.kg.rules.mining.require_native", lambda feature: reference)
    slow = mine_rules(data, **settings)
    assert len(slow) > 5
    for rules in fast:
        np.testing.assert_array_equal(rules.rows, slow.rows)
        np.testing.assert_array_equal(rules.counts, slow.counts)
        np.testing.assert_array_equal(rules.confidence, slow.confidence)


@needs_native
def test_limit_on_rules_with_constants_does_not_drop_path_rules() -> None:
    families = KnowledgeBase.generate(num_families=2)

    def count(**settings: int) -> tuple[int, int]:
        constants = mine_rules(families, max_length=2, **settings).rows[:, HEAD_CONSTANT] >= 0
        return int((~constants).sum()), int(constants.sum())

    num_paths, num_constants = count()
    assert num_constants > 50
    assert count(max_constant_rules=50) == (num_paths, 50)


@needs_native
@pytest.mark.parametrize("seed", range(2))
def test_native_prediction_matches_reference(seed, monkeypatch) -> None:
    data = random_base(seed)
    rules = mine_rules(data, max_length=2, min_support=1)
    known = data.known_answers
    pairs = np.array([(0, 1), (3, 2)], np.int32)

    def compute_all() -> list[np.ndarray]:
        applier = RuleApplier(rules, data, max_paths_per_entity=20)
        found = []
        for aggregation in AGGREGATORS[:-1]:
            weights = rule_weights(applier, aggregation, WeightLearningSettings(2, 0.05, 0.1))
            predictor = RulePredictor(applier, aggregation, weights)
            counts = count_ranks(predictor, data.triples("test"), known)
            found += [counts.higher, counts.tied, weights, predictor.raw_scores(pairs)]
        return [*found, *applier.native.predict(2, 3)]

    fast = compute_all()
    monkeypatch.setattr("phalanx.kg.rules.mining.require_native", lambda feature: reference)
    monkeypatch.setattr("phalanx.kg.rules.predictor.require_native", lambda feature: reference)
    for native_result, reference_result in zip(fast, compute_all(), strict=True):
        np.testing.assert_allclose(native_result, reference_result, rtol=1e-6)


def test_maxplus_breaks_ties_with_the_next_best_rule() -> None:
    train = "p(a,b) p(a,c) q(a,c) p(a,d) q(a,d) s(a,d) r(z,y)"
    data = base(train, test="r(a,b) r(a,c) r(a,d)")
    rules, unsupported = RuleSet.from_rules(
        [
            parse_rule(text)
            for text in ("x:.9:p(X,Y) -> r(X,Y)", "y:.5:q(X,Y) -> r(X,Y)", "z:.4:s(X,Y) -> r(X,Y)")
        ],
        data.vocabulary,
    )
    assert unsupported == ()
    ranks = count_test_ranks(rules, data)
    # Each tail is first because the other two, which are also true, are filtered.
    assert ranks.higher[:3].tolist() == [0, 0, 0] and ranks.tied[:3].tolist() == [0, 0, 0]
    data = base(train, test="r(a,b)")
    rules, _ = RuleSet.from_rules(list(rules), data.vocabulary)
    for aggregation in ("maxplus", "noisyor"):
        assert count_test_ranks(rules, data, aggregation).higher.tolist() == [2, 0]


def test_unpredicted_entities_are_tied() -> None:
    data = base("p(a,b) p(c,d) q(a,a)", test="p(a,d) q(a,b)")
    rules, _ = RuleSet.from_rules([parse_rule("r:.5:p(X,A), p(A,Y) -> p(X,Y)")], data.vocabulary)
    result = fit_and_evaluate(rules, data)
    # Of four entities, p(a,?) filters b, p(?,d) filters c, and q(a,?) filters a, although it is a loop.
    ranks = count_test_ranks(rules, data)
    assert ranks.tied.tolist() == [2, 2, 2, 3] and ranks.higher.tolist() == [0, 0, 0, 0]
    assert result.total.num_queries == 2 and result.mrr_realistic == pytest.approx((3 / 2 + 1 / 2.5) / 4)


def test_kge_weight_is_selected_on_validation_and_breaks_ties() -> None:
    data = random_base(3)

    class OracleKGE:
        """Scores known triples higher than all others."""

        def table(self, relations, entities, inverse):
            scores = np.zeros((len(relations), len(data.entities)), np.float32)
            for r, a, b in data.known_triples.tolist():
                own, other = (b, a) if inverse else (a, b)
                scores[(relations == r) & (entities == own), other] = 1.0
            return scores

        def score_tails(self, relations, heads):
            return self.table(relations, heads, inverse=False)

        def score_heads(self, relations, tails):
            return self.table(relations, tails, inverse=True)

    rules = mine_rules(data, max_length=2)
    alone = fit_and_evaluate(rules, data, "test")
    both = fit_and_evaluate(rules, data, "test", kge=OracleKGE())
    assert both.total.mrr == 1.0 > alone.total.mrr
    assert both.selected["kge_weight"] > 0 and both.selected["valid_mrr"] == pytest.approx(1.0)


def test_per_relation_aggregation_is_selected_on_validation(monkeypatch) -> None:
    data = random_base(5)
    rules = mine_rules(data, max_length=2)
    monkeypatch.setattr("phalanx.kg.predictor_ensemble._PRIOR_QUERIES", 0.0)
    found = fit_and_evaluate(rules, data, "valid", "per_relation")
    alone = [
        fit_and_evaluate(rules, data, "valid", way, power=power).total.mrr
        for way, power in PER_RELATION_CHOICES
    ]
    assert found.selected["valid_mrr"] > max(alone)
    assert sum(times for name, times in found.selected.items() if name != "valid_mrr") == 6
    assert "per_relation" in found.predictor
    with pytest.raises(ValueError, match="no validation queries to select settings with"):
        fit_and_evaluate(mine_rules(FAMILY), FAMILY, aggregation="per_relation")


def test_weight_learning_is_selected_on_validation() -> None:
    result = fit_and_evaluate(mine_rules(random_base(4), max_length=2), random_base(4), aggregation="learned")
    assert set(result.selected) == {"valid_mrr", "learning"}
    with pytest.raises(ValueError, match="no validation queries to select settings with"):
        fit_and_evaluate(mine_rules(FAMILY), FAMILY, aggregation="learned")
    with pytest.raises(ValueError, match="no test queries"):
        fit_and_evaluate(mine_rules(FAMILY), FAMILY)


def test_saved_rules_round_trip(tmp_path) -> None:
    facts = [
        Atom("likes it", "X", "New York"),
        Atom("likes it", "b", "New York"),
        Atom("q", "X", "a"),
        Atom("q", "b", "a"),
    ]
    for data in (KnowledgeBase(tuple(facts)), random_base(5, facts=14)):
        rules = mine_rules(data, max_length=2, min_support=1, min_confidence=0.0)
        rules.save(tmp_path / "rules.txt")
        read = load_rules(tmp_path / "rules.txt")
        restored, unsupported = RuleSet.from_rules(read, rules.vocabulary)
        assert unsupported == () and len(restored) > 2
        np.testing.assert_array_equal(restored.rows, rules.rows)
        np.testing.assert_array_equal(restored.confidence, rules.confidence)
        # A knowledge base accepts them with the same constants and variables.
        reloaded = KnowledgeBase(data.facts, read, data.valid, data.test)
        assert reloaded.rules == read


def test_unsupported_rules_are_returned() -> None:
    texts = [
        "a:1:aunt(X,Z), aunt(Y,Z), parent(W,W) -> aunt(X,Y)",
        "b:1:parent(X,Y), sister(X,Y) -> aunt(X,Y)",
    ]
    texts += ["c:1:aunt(X,Y) -> aunt(X,Y)", "d:1:unknown(X,Y) -> aunt(X,Y)", "e:2:parent(Y,X) -> aunt(X,Y)"]
    found, unsupported = RuleSet.from_rules(map(parse_rule, texts), FAMILY.vocabulary)
    assert len(found) == 0 and [rule.name for rule in unsupported] == ["a", "b", "c", "d", "e"]


def test_mining_stops_at_the_time_limit_and_is_marked_incomplete(monkeypatch) -> None:
    monkeypatch.setattr("phalanx.kg.rules.mining._ENTITIES_PER_ROUND", 1)
    rules = mine_rules(random_base(6), max_seconds=1e-9)
    assert not rules.is_complete and len(rules) > 0
    assert mine_rules(random_base(6)).is_complete


def test_invalid_mining_settings_raise_error() -> None:
    with pytest.raises(ValueError, match="max_length"):
        mine_rules(FAMILY, max_length=6)
    with pytest.raises(ValueError, match="max_triples\\n  Extra inputs are not permitted"):
        mine_rules(FAMILY, max_triples=2)
    assert MiningConfig().max_length == 3


def test_best_per_relation_falls_back_to_the_global_choice() -> None:
    # Weight 0 is best for relation 0 and weight 1 for relation 1. Relation 2 has no queries.
    relations = np.repeat([0, 1], [30, 60])
    reciprocal = np.stack([np.where(relations == 0, 1.0, 0.2), np.where(relations == 0, 0.1, 0.9)])
    assert best_per_relation(reciprocal, relations, 3).tolist() == [0, 1, 1]
    few = np.array([0, *[1] * 60])
    assert best_per_relation(reciprocal[:, 29:], few, 2).tolist() == [1, 1], "one query is not enough"
