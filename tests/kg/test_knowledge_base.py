"""Loading knowledge bases: file formats, errors, splits, depths, leaks and known atoms."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phalanx.kg.atoms import Atom, parse_atom
from phalanx.kg.formats import list_knowledge_bases
from phalanx.kg.knowledge_base import KnowledgeBase

SHARED = Path(__file__).parents[2].parent / "shared/data/kg"
needs_shared_data = pytest.mark.skipif(
    not SHARED.exists(), reason="the shared knowledge bases are not available"
)

FILES = {
    "train.txt": "wife(eve,adam).\nfather(adam,abel)\n\nmother(eve,abel).\n",
    "valid.txt": "father(adam,cain).\n",
    "test.txt": "husband(adam,eve).\nmother(eve,cain).",
    "rules.txt": "r0:1:wife(y,x) -> husband(x,y)\nr1:0.5:wife(x,z), father(z,y) -> mother(x,y)",
    "test_depths.txt": "husband(adam,eve) 1\nmother(eve,cain) -1\n",
    "domain2constants.txt": "people adam eve abel cain seth\n",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / "genesis").mkdir(exist_ok=True)
        (tmp_path / "genesis" / name).write_text(text)
    return tmp_path / "genesis"


def atoms(*texts):
    return tuple(map(parse_atom, texts))


def test_load_reads_facts_queries_rules_depths_and_domains(folder):
    data = KnowledgeBase.load(folder)
    assert data.facts == atoms("wife(eve,adam)", "father(adam,abel)", "mother(eve,abel)")
    assert data.queries("train") == data.facts
    assert data.valid == atoms("father(adam,cain)")
    assert data.test == data.queries("test") == atoms("husband(adam,eve)", "mother(eve,cain)")
    assert [str(rule) for rule in data.rules] == [
        "r0:1.0:wife(y,x) -> husband(x,y)",
        "r1:0.5:wife(x,z), father(z,y) -> mother(x,y)",
    ]
    assert data.depths("train") is None
    assert data.depths("test") == {Atom("husband", "adam", "eve"): 1, Atom("mother", "eve", "cain"): -1}
    assert data.domains == {"people": ("adam", "eve", "abel", "cain", "seth")}
    assert data.entities == ("abel", "adam", "cain", "eve", "seth")
    assert data.predicates == ("father", "husband", "mother", "wife")


def test_known_contains_all_splits_including_unproved_queries(folder):
    data = KnowledgeBase.load(folder)
    assert data.known == {*data.facts, *data.valid, *data.test}
    assert Atom("mother", "eve", "cain") in data.known


def test_only_the_training_file_is_required(tmp_path):
    (tmp_path / "train.txt").write_text("a(x,y).")
    data = KnowledgeBase.load(tmp_path)
    assert data.facts == atoms("a(x,y)")
    assert (data.rules, data.valid, data.test, data.domains) == ((), (), (), {})


def test_tab_separated_triples_are_parsed(tmp_path):
    (tmp_path / "train.txt").write_text("adam\tfather\tabel\r\nNew York \tin\tU.S. (mainland)\n")
    assert KnowledgeBase.load(tmp_path).facts == (
        Atom("father", "adam", "abel"),
        Atom("in", "New York", "U.S. (mainland)"),
    )


def test_duplicate_facts_are_removed(tmp_path):
    (tmp_path / "train.txt").write_text("a(x,y).\na(x,y)\nb(x,y)\n")
    assert KnowledgeBase.load(tmp_path).facts == atoms("a(x,y)", "b(x,y)")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("train.txt", "a(x,y).\na(x y).\n", r"train\.txt:2: 'a\(x y\)\.' is malformed; expected predicate"),
        ("train.txt", "a(x,y).\nx\ta\ty\n", r"train\.txt:2: 'x\\ta\\ty' is malformed; expected predicate"),
        ("train.txt", "x\ta\ty\na(x,y).\n", r"train\.txt:2: 'a\(x,y\)\.' is malformed; expected head<TAB>"),
        ("train.txt", "x\ta\n", r"train\.txt:1: 'x\\ta' is malformed; expected head<TAB>relation<TAB>tail"),
        ("test.txt", "a(x,y). b(x,y).\n", r"test\.txt:1: .* is malformed"),
        ("rules.txt", "\nr0:1:a(x,y) = b(x,y)\n", r"rules\.txt:2: 'r0:1:a\(x,y\) = b\(x,y\)' is not a rule"),
        (
            "rules.txt",
            "r:1:a(x,y) -> b(x,y)\nr:1:b(x,y) -> a(x,y)",
            r"rules\.txt:2: .*the name 'r' is already used",
        ),
        ("test_depths.txt", "husband(adam,eve) two\n", r"test_depths\.txt:1: .* expected .* its depth"),
        ("test_depths.txt", "husband(adam,eve) -2\n", r"test_depths\.txt:1: .* is malformed"),
        ("test_depths.txt", "husband(eve,adam) 1\n", r"husband\(eve,adam\) is not in test\.txt"),
        ("test_depths.txt", "mother(eve,cain) 1\nmother(eve,cain) 2", "has more than one depth"),
        (
            "domain2constants.txt",
            "people adam\nbeasts\n",
            r"domain2constants\.txt:2: 'beasts' has no constants",
        ),
        (
            "domain2constants.txt",
            "people adam\npeople eve\n",
            r"domain2constants\.txt:2: the domain 'people'",
        ),
    ],
)
def test_malformed_line_is_reported_with_file_and_line_number(folder, name, text, message):
    (folder / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        KnowledgeBase.load(folder)


def test_file_that_is_not_utf8_raises_error(folder):
    (folder / "train.txt").write_bytes(b"a(x,\xff).")
    with pytest.raises(ValueError, match=r"train\.txt: byte 4 is not UTF-8"):
        KnowledgeBase.load(folder)


def test_missing_files_and_splits_are_reported(folder):
    with pytest.raises(FileNotFoundError, match="download it with `phalanx kg download fb15k-237`"):
        KnowledgeBase.load("fb15k-237")
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        KnowledgeBase.load(folder / "nowhere")
    (folder / "train.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no train\.txt"):
        KnowledgeBase.load(folder)
    with pytest.raises(ValueError, match="split must be one of train, valid, test"):
        KnowledgeBase(()).queries("dev")


def test_leaked_queries_are_reported(folder):
    (folder / "train.txt").write_text("wife(eve,adam).\nhusband(adam,eve).\nfather(adam,cain).\n")
    message = r"training file contains 1 of 1 valid queries \(father.* and 1 of 2 test queries \(husband"
    with pytest.warns(UserWarning, match=message):
        KnowledgeBase.load(folder)
    with pytest.raises(ValueError, match=message):
        KnowledgeBase.load(folder, on_leak="error")


def test_leaked_facts_can_be_allowed_or_dropped(folder):
    (folder / "train.txt").write_text("wife(eve,adam).\nhusband(adam,eve).\n")
    allowed = KnowledgeBase.load(folder, on_leak="allow")
    assert allowed.leaks() == {"test": atoms("husband(adam,eve)")}
    assert allowed.facts == atoms("wife(eve,adam)", "husband(adam,eve)")
    dropped = KnowledgeBase.load(folder, on_leak="drop")
    assert dropped.facts == dropped.queries("train") == atoms("wife(eve,adam)")
    assert dropped.known == allowed.known


def test_knowledge_base_without_leaks_loads_with_on_leak_error(folder):
    assert KnowledgeBase.load(folder, on_leak="error").leaks() == {}


RING = "".join(f"next({n},{(n + 1) % 20}).\nskip({n},{(n + 2) % 20}).\n" for n in range(20)) + "rare(1,2).\n"


def test_facts_are_held_out_with_a_warning_if_there_are_no_validation_queries(tmp_path):
    (tmp_path / "train.txt").write_text(RING)
    data = KnowledgeBase.load(tmp_path)
    with pytest.warns(UserWarning, match="no validation queries: 4 of 41 training triples are held out"):
        split = data.with_validation()
    assert len(split.valid) == 4 and len(split.facts) == 37
    assert not set(split.valid) & set(split.facts)
    assert split.known == data.known == {*split.valid, *split.facts}
    assert Atom("rare", "1", "2") in split.facts
    assert {name for atom in split.facts for name in atom[1:]} == set(data.entities)
    with pytest.warns(UserWarning, match="held out"):
        assert data.with_validation().valid == split.valid


def test_with_validation_keeps_existing_validation_queries(folder):
    data = KnowledgeBase.load(folder)
    assert data.with_validation() is data


def test_too_few_facts_to_hold_out_raises_error(tmp_path):
    (tmp_path / "train.txt").write_text("a(x,y).\nb(x,y).\n")
    with pytest.raises(ValueError, match=r"no fact can be held out.* add a valid\.txt"):
        KnowledgeBase.load(tmp_path).with_validation()


def test_entities_sort_numerals_numerically_before_names():
    base = KnowledgeBase(atoms("a(10,9)", "a(x,2)", "a(009,9)"))
    assert base.entities == ("2", "009", "9", "10", "x")


def test_saved_knowledge_base_round_trips(folder, tmp_path):
    base = KnowledgeBase.load(folder)
    base.save(tmp_path / "copy")
    assert KnowledgeBase.load(tmp_path / "copy") == base


def test_atoms_of_known_file_are_known_but_in_no_split(folder):
    (folder / "known.txt").write_text("father(adam,seth).\n")
    data = KnowledgeBase.load(folder)
    extra = Atom("father", "adam", "seth")
    assert extra in data.known
    assert extra not in (*data.facts, *data.valid, *data.test)


def test_list_knowledge_bases_finds_folders_with_a_training_file(folder):
    (folder.parent / "empty").mkdir()
    assert list_knowledge_bases(folder.parent) == [folder]
    assert list_knowledge_bases(folder) == [folder]


@pytest.mark.slow
@needs_shared_data
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("countries_s3", (271, 4, 983, 24, 2)),
        ("family", (2968, 12, 19845, 5626, 87)),
        ("umls", (134, 46, 1959, 3245, 104)),
        ("nations", (14, 55, 1592, 201, 2107)),
        ("wn18rr", (40559, 11, 86835, 2924, 32)),
    ],
)
def test_shared_knowledge_bases_have_their_published_sizes(name, sizes):
    start = time.process_time()
    data = KnowledgeBase.load(SHARED / name, on_leak="allow")
    assert time.process_time() - start < 5
    entities, predicates = len(data.entities), len(data.predicates)
    assert (entities, predicates, len(data.facts), len(data.test), len(data.rules)) == sizes


@needs_shared_data
def test_shared_countries_leak_only_validation_queries():
    leaks = KnowledgeBase.load(SHARED / "countries_s3", on_leak="allow").leaks()
    assert {split: len(found) for split, found in leaks.items()} == {"valid": 6}


def test_warnings_refer_to_the_line_of_the_caller(folder):
    (folder / "train.txt").write_text("wife(eve,adam).\nhusband(adam,eve).\nwife(zoe,tom).\nhuman(eve).\n")
    (folder / "rules.txt").unlink()
    lines = (
        "from phalanx.kg import KnowledgeBase, mine_rules",
        f"base = KnowledgeBase.load({str(folder)!r})",
        "base.replace(on_leak='warn')",
        "KnowledgeBase(base.train, test=base.test, on_leak='warn')",
        "base.binary()",
        "mine_rules(base.replace(on_leak='allow'), num_threads=1)",
        "base.replace(valid=(), on_leak='allow').with_validation()",
    )
    (folder / "script.py").write_text("\n".join(lines))
    command = [sys.executable, "-W", "always", str(folder / "script.py")]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert re.findall(r"(\w+\.py):(\d+): UserWarning", found) == [("script.py", str(n)) for n in range(2, 8)]
