"""`DataHandler` and `IndexManager`: constructors and names of DeepProofLog."""

import pytest

from phalanx.compat.deepprooflog.data_handler import DataHandler
from phalanx.compat.deepprooflog.index_manager import IndexManager
from phalanx.kg.atoms import Atom, parse_atom
from phalanx.kg.knowledge_base import KnowledgeBase

FILES = {
    "train.txt": "wife(eve,adam).\nfather(adam,abel)\nmother(eve,abel).\n",
    "valid.txt": "father(adam,cain).\n",
    "test.txt": "husband(adam,eve).\nmother(eve,cain).",
    "test_depths.txt": "husband(adam,eve) 1\nmother(eve,cain) -1\n",
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "genesis").mkdir()
    for name, text in FILES.items():
        (tmp_path / "genesis" / name).write_text(text)
    return tmp_path / "genesis"


def test_a_folder_is_found_by_name_and_by_path(folder):
    by_name = DataHandler("genesis", path=folder.parent)
    by_path = DataHandler(path=str(folder))
    by_both = DataHandler("genesis", path=folder)
    assert by_name.facts == by_path.facts == by_both.facts
    assert by_name.dataset == by_path.dataset == "genesis"


def test_errors_name_the_available_knowledge_bases(folder):
    with pytest.raises(ValueError, match="no built-in knowledge base 'family'"):
        DataHandler("family")
    with pytest.raises(FileNotFoundError, match=r"no knowledge base 'exodus' in .*; available: genesis"):
        DataHandler("exodus", path=folder.parent)
    with pytest.raises(ValueError, match="num_families apply to the generated knowledge base only"):
        DataHandler(path=folder, num_families=3)


def test_queries_are_selected_by_depth_and_facts_are_kept(folder):
    data = DataHandler(path=folder, test_depth=[1, 2])
    assert data.test_queries == (parse_atom("husband(adam,eve)"),)
    assert Atom("mother", "eve", "cain") in data.known
    assert DataHandler(path=folder, test_depth=[9]).test_queries == ()
    with pytest.raises(ValueError, match=r"genesis has no train_depths\.txt"):
        DataHandler(path=folder, train_depth={1})


def test_queries_and_depths_have_their_old_names(folder):
    data = DataHandler(path=folder)
    assert data.train_queries == data.facts and data.valid_queries == data.valid
    assert data.train_depths is None and data.test_depths == data.depths("test")
    query = Atom("father", "adam", "abel")
    assert query in data.facts and query not in data.facts_for(query)


def test_arguments_of_the_generated_knowledge_base_are_passed_on():
    base = KnowledgeBase.generate(num_families=1, generations=3)
    assert DataHandler(num_families=1, generations=3).facts == base.facts


def test_an_index_manager_has_its_old_names():
    index_manager = IndexManager(DataHandler(num_families=1, generations=3), padding_atoms=4)
    count = index_manager.predicate_no
    assert (index_manager.true_idx, index_manager.false_idx, index_manager.end_idx) == (
        count + 1,
        count + 2,
        count + 3,
    )
    assert index_manager.runtime_var_start_index == index_manager.constant_no + 1
    assert index_manager.padding_atoms == 4 and index_manager.padding_idx == 0
    name = index_manager.predicates[0]
    assert index_manager.predicate_idx2str[index_manager.predicate_str2idx[name]] == name
    with pytest.raises(ValueError, match="padding_atoms must be at least 1, got 0"):
        IndexManager(DataHandler(num_families=1, generations=3), padding_atoms=0)
