"""Indices of predicates, constants and variables."""

import numpy as np
import pytest

from phalanx.kg.atoms import Atom, parse_atom, parse_rule
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.proofs.vocabulary import ProofVocabulary


def knowledge_base(*facts, rules=(), **parts):
    return KnowledgeBase(tuple(map(parse_atom, facts)), tuple(map(parse_rule, rules)), **parts)


@pytest.fixture
def index():
    data = knowledge_base(
        "wife(eve,adam)", "father(adam,10)", "father(adam,9)", rules=["r:1:wife(y,x) -> husband(x,y)"]
    )
    return ProofVocabulary(data)


def test_indices_of_predicates_special_predicates_and_kge_predicates(index):
    assert index.predicate_indices == {
        "father": 1, "husband": 2, "wife": 3,
        "True": 4, "False": 5, "End": 6,
        "father_kge": 7, "husband_kge": 8, "wife_kge": 9,
    }  # fmt: skip
    assert (index.padding, index.true_index, index.false_index, index.end_index) == (0, 4, 5, 6)
    assert index.predicate_names[index.predicate_indices["wife"] + index.kge_offset] == "wife_kge"


def test_constants_are_sorted_and_variables_follow(index):
    assert index.constant_indices == {"9": 1, "10": 2, "adam": 3, "eve": 4}
    assert index.first_variable == 5
    assert [index.term_names[number] for number in (1, 4, 5, 16)] == ["9", "eve", "_1", "_12"]
    assert index.num_variables == 12


def test_embedding_tables_have_a_row_for_every_index_of_a_state(index):
    # Tables with one row for each predicate and constant would be too small.
    predicates = np.zeros(index.num_predicate_embeddings)
    terms = np.zeros(index.num_constant_embeddings)
    for name in ("father", "wife", "True", "False", "End", "wife_kge"):
        predicates[index.predicate_indices[name]] += 1
    last_variable = index.first_variable + 2 * index.max_goals - 1
    terms[[index.padding, index.constant_indices["eve"], last_variable]] += 1
    assert len(predicates) == max(index.predicate_names) + 1 == 10
    assert len(terms) == last_variable + 1 == 17


def test_tables_without_rows_for_variables_are_too_small(index):
    num_predicates = index.num_predicates
    with pytest.raises(IndexError):
        np.zeros(num_predicates + 1)[index.predicate_indices["father_kge"]]
    with pytest.raises(IndexError):
        np.zeros(index.num_constants + 1)[index.first_variable]


def test_num_constant_embeddings_depends_on_max_goals(index):
    data = knowledge_base("a(x,y)")
    assert ProofVocabulary(data, max_goals=3).num_constant_embeddings == 1 + 2 + 6
    assert ProofVocabulary(data, max_goals=10).num_constant_embeddings == 1 + 2 + 20
    with pytest.raises(ValueError, match="max_goals must be at least 1, got 0"):
        ProofVocabulary(data, max_goals=0)


def test_atoms_can_be_encoded_and_decoded(index):
    atoms = [Atom("wife", "eve", "adam"), Atom("father", "adam", "10")]
    rows = index.encode(atoms)
    assert rows.dtype == np.int32
    np.testing.assert_array_equal(rows, [[3, 4, 3], [1, 3, 2]])
    assert [index.decode_atom(row) for row in rows] == atoms
    assert index.encode_atom(atoms[0]) == (3, 4, 3)
    assert index.encode([]).shape == (0, 3)


def test_rules_number_their_variables_by_first_occurrence(index):
    rule = parse_rule("r:1:wife(Z,X), father(X,Y) -> father(Y,Y)")
    assert index.encode_rules([rule]) == (((1, -1, -1), ((3, -2, -3), (1, -3, -1))),)


def test_decoded_state_has_no_padding(index):
    state = np.array([[3, 5, 3], [1, 3, 6], [0, 0, 0]], np.int32)
    assert [str(atom) for atom in index.decode_state(state)] == ["wife(_1,adam)", "father(adam,_2)"]
    assert [str(a) for a in index.decode_state(np.array([[4, 0, 0], [0, 0, 0]], np.int32))] == ["True"]


def test_unknown_name_is_rejected_with_a_suggestion(index):
    with pytest.raises(
        ValueError, match=r"no predicate 'fathr' .*\(in fathr\(adam,10\)\); did you mean 'father'"
    ):
        index.encode_atom(Atom("fathr", "adam", "10"))
    with pytest.raises(ValueError, match=r"no constant 'adm' in this knowledge base .* did you mean 'adam'"):
        index.encode([Atom("wife", "eve", "adm")])
    with pytest.raises(ValueError, match=r"\[1, 99, 1\] is not an atom: there is no index 99"):
        index.decode_atom([1, 99, 1])


def test_reserved_predicate_names_are_rejected():
    with pytest.raises(ValueError, match="'True' is reserved"):
        ProofVocabulary(knowledge_base("True(a,b)"))
    with pytest.raises(ValueError, match="'a_kge' is reserved"):
        ProofVocabulary(knowledge_base("a(x,y)", "a_kge(x,y)"))


def test_vocabulary_includes_all_splits():
    data = knowledge_base("a(x,y)", test=(Atom("b", "z", "x"),), extra_known=(Atom("a", "w", "x"),))
    index = ProofVocabulary(data)
    assert index.constants == ("w", "x", "y", "z")
    assert index.predicates == ("a", "b")
