"""`phalanx kg`: output, written files and error messages."""

import json

import pytest

from phalanx.kg.formats import load_depths
from phalanx.kg.knowledge_base import KnowledgeBase


@pytest.fixture(autouse=True)
def no_path(monkeypatch):
    monkeypatch.delenv("PHALANX_KG", raising=False)


@pytest.fixture
def folder(tmp_path):
    """Write a small knowledge base with a leaked query and a depth file with two wrong lines of four."""
    files = {
        "train.txt": "near(a,b).\nnear(b,c).\nin(c,east).\nin(d,east).\n",
        "test.txt": "in(b,east).\nin(a,east).\nin(d,east).\nnear(d,a).\n",
        "rules.txt": "r1:1:near(X,Y), in(Y,Z) -> in(X,Z)\n",
        "test_depths.txt": "in(b,east) 2\nin(a,east) -1\nin(d,east) 1\nnear(d,a) -1\n",
    }
    (tmp_path / "places").mkdir()
    for name, text in files.items():
        (tmp_path / "places" / name).write_text(text)
    return tmp_path


def test_builtin_knowledge_base_is_listed(phalanx):
    result = phalanx("kg", "list")
    assert (result.code, result.err) == (0, "")
    assert " ".join(result.out.splitlines()[0].split()) == "NAME ENTITIES PREDICATES RULES FACTS VALID TEST"
    assert result.out.splitlines()[1].split()[0] == "generated"


def test_knowledge_bases_in_a_folder_are_listed(phalanx, folder):
    assert phalanx("kg", "list", folder).out.splitlines()[1:] == [
        "places         5           2      1      4      0     4"
    ]
    (row,) = json.loads(phalanx("kg", "list", folder, "--json").out)
    assert row == {
        "name": "places", "entities": 5, "predicates": 2, "rules": 1, "facts": 4, "valid": 0, "test": 4
    }  # fmt: skip


def test_show_counts_and_reports_leaks(phalanx, folder):
    lines = phalanx("kg", "show", folder / "places").out.splitlines()
    assert "facts        4" in lines
    assert "test depths  -1: 2, 1: 1, 2: 1" in lines
    assert "test leaks   1 queries are facts, such as in(d,east)" in lines
    found = json.loads(phalanx("kg", "show", folder / "places", "--json").out)
    assert found["leaks"] == {"test": ["in(d,east)"]}
    assert found["rule_lines"] == ["r1:1.0:near(X,Y), in(Y,Z) -> in(X,Z)"]


def test_depths_are_counted_and_wrong_ones_reported(phalanx, folder):
    result = phalanx("kg", "depths", folder / "places")
    assert result.code == 0
    assert result.out.splitlines() == [
        "DEPTH      QUERIES",
        "none to 6        2",
        "2                1",
        "4                1",
        "test_depths.txt: 4 depths, 2 wrong",
        "  1 given as -1, exact 4",
        "  1 given as 1, exact none to 6",
        "  in(a,east): given -1, exact 4",
        "  in(d,east): given 1, exact none to 6",
    ]


def test_check_fails_until_wrong_depths_are_corrected(phalanx, folder):
    command = ("kg", "depths", folder / "places", "--check")
    assert phalanx(*command).code == 1
    file = folder / "places/test_depths.txt"
    result = phalanx(*command[:-1], "--out", file)
    assert result.out.splitlines()[-1] == f"{file}: 4 depths written"
    assert list(load_depths(file).values()) == [2, 4, -1, -1]
    assert phalanx(*command).code == 0
    # Beyond the limit a given depth is neither confirmed nor wrong.
    assert phalanx(*command, "--max-depth", 3).code == 0


def test_depths_are_printed_as_json(phalanx, folder):
    found = json.loads(phalanx("kg", "depths", folder / "places", "--max-depth", 5, "--json").out)
    assert found["depths"] == {"-1": 2, "2": 1, "4": 1}
    assert found["wrong"][0] == {"atom": "in(a,east)", "given": -1, "exact": 4}


def test_training_queries_are_not_proved_by_themselves(phalanx, folder):
    out = phalanx("kg", "depths", folder / "places", "--split", "train").out
    assert out.splitlines() == ["DEPTH      QUERIES", "none to 6        4"]


def test_generated_knowledge_base_round_trips(phalanx, tmp_path):
    out = tmp_path / "families"
    options = ("--families", 2, "--generations", 3, "--seed", 7)
    result = phalanx("kg", "generate", "--out", out, *options)
    assert result.code == 0
    assert result.out.startswith(f"{out}: ")
    made = KnowledgeBase.generate(num_families=2, generations=3, seed=7)
    assert KnowledgeBase.load(out) == made
    assert phalanx("kg", "depths", tmp_path / "families", "--check").code == 0
    again = phalanx("kg", "generate", "--out", out)
    assert again.code == 2
    assert "already exists" in again.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("show", "family"), "download it with `phalanx kg download family`"),
        (("show", "{}/nowhere"), "nowhere: it is not a folder"),
        (("list", "{}/places/none"), "is not a folder"),
        (
            ("depths", "{}/places", "--split", "train", "--check"),
            "has no train_depths.txt to check",
        ),
    ],
)
def test_errors_are_one_line(phalanx, folder, arguments, complaint):
    result = phalanx("kg", *(argument.replace("{}", str(folder)) for argument in arguments))
    assert result.code == 2
    assert complaint in result.err
    assert result.err.count("\n") == 1


def test_malformed_line_is_reported_by_number(phalanx, folder):
    (folder / "places/rules.txt").write_text("near(X,Y)\n")
    result = phalanx("kg", "show", folder / "places")
    assert result.code == 2
    assert "rules.txt:1: 'near(X,Y)' is not a rule" in result.err


def test_depths_unknown_at_the_time_limit_are_reported_and_not_written(phalanx, tmp_path):
    out = tmp_path / "depths.txt"
    result = phalanx("kg", "depths", "--max-seconds", 0, "--out", out)
    assert result.code == 0 and "undecided       40" in result.out
    assert "out of time after 0 s" in result.err
    assert out.read_text() == ""
    found = json.loads(phalanx("kg", "depths", "--max-seconds", 0, "--json").out)
    assert (found["queries"], found["undecided"], found["depths"], found["wrong"]) == (40, 40, {}, [])
