"""`phalanx prove`: proof trees, images, answers and failures."""

import json

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    (base / "train.txt").write_text(
        "sister(ann,bob).\nparent(bob,cat).\nparent(bob,kim).\nwife(eve,dan).\nbrother(dan,bob).\n"
        "aunt(ann,kim).\n"
    )
    (base / "rules.txt").write_text(
        "r1:1:sister(X,Z), parent(Z,Y) -> aunt(X,Y)\n"
        "r2:1:wife(X,Z), uncle(Z,Y) -> aunt(X,Y)\n"
        "r3:1:brother(X,Z), parent(Z,Y) -> uncle(X,Y)\n"
    )
    return base


def test_proof_is_printed_as_a_tree(phalanx, folder):
    result = phalanx("prove", "aunt(eve,cat)", "--data", folder)
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == [
        "aunt(eve,cat)  4 steps",
        "└── by r2 with X = eve, Y = cat, Z = dan",
        "    ├── wife(eve,dan)  fact",
        "    └── uncle(dan,cat)",
        "        └── by r3 with X = dan, Y = cat, Z = bob",
        "            ├── brother(dan,bob)  fact",
        "            └── parent(bob,cat)  fact",
        "",
        "r2  wife(X,Z), uncle(Z,Y) -> aunt(X,Y)",
        "r3  brother(X,Z), parent(Z,Y) -> uncle(X,Y)",
    ]


def test_proof_is_drawn_as_svg(phalanx, folder, tmp_path):
    out = tmp_path / "proof.svg"
    result = phalanx("prove", "aunt(eve,cat)", "--data", folder, "--out", out)
    assert result.out.splitlines()[-1] == str(out)
    picture = out.read_text()
    assert picture.startswith(("<?xml", "<svg"))
    assert "brother(dan,bob)" in picture and "proved in 4 steps" in picture


def test_fact_is_not_proved_by_itself(phalanx, folder):
    lines = phalanx("prove", "aunt(ann,kim).", "--data", folder).out.splitlines()
    assert lines[:2] == ["aunt(ann,kim) is a fact; proved without it.", "aunt(ann,kim)  2 steps"]


def test_query_with_variables_lists_its_answers(phalanx, folder, tmp_path):
    result = phalanx("prove", "aunt(X,kim)", "--data", folder, "--out", tmp_path / "a.svg")
    assert result.code == 0
    heads = [line for line in result.out.splitlines() if line.startswith("aunt(")]
    assert heads == ["aunt(ann,kim)  fact, 1 step", "aunt(eve,kim)  4 steps"]
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == ["a-2.svg", "a.svg"]
    new = phalanx("prove", "aunt(X,kim)", "--data", folder, "--exclude-facts").out
    assert new.startswith("aunt(eve,kim)") and "aunt(ann,kim)" not in new
    one = phalanx("prove", "aunt(X,kim)", "--data", folder, "--limit", 1).out
    assert one.splitlines()[-1] == "There are more answers; show them with --limit 2."


def test_several_proofs_can_be_shown(phalanx, folder):
    with (folder / "train.txt").open("a") as file:
        file.write("sister(ann,tom).\nparent(tom,cat).\n")
    out = phalanx("prove", "aunt(ann,cat)", "--data", folder, "--limit", 5).out
    assert out.splitlines().count("aunt(ann,cat)  2 steps") == 2
    assert "Z = bob" in out and "Z = tom" in out


def test_unprovable_query_exits_with_1_and_the_reason(phalanx, folder):
    result = phalanx("prove", "aunt(eve,bob)", "--data", folder)
    assert result.code == 1
    assert result.out.splitlines() == [
        "aunt(eve,bob): no proof within 6 steps",
        "  r1: no sister(eve,Z)",
        "  r2: no uncle(Z,bob) with wife(eve,Z)",
    ]
    result = phalanx("prove", "aunt(eve,cat)", "--data", folder, "--max-depth", 1)
    assert (result.code, result.out.splitlines()[0]) == (1, "aunt(eve,cat): no proof within 1 step")
    result = phalanx("prove", "wife(X,eve)", "--data", folder)
    assert result.out.splitlines() == [
        "wife(X,eve): no answer within 6 steps", "  no rule has wife in its head"
    ]  # fmt: skip


def test_fact_can_be_excluded(phalanx, folder):
    command = ("prove", "aunt(ann,cat)", "--data", folder)
    assert phalanx(*command).code == 0
    assert phalanx(*command, "--without-fact", "sister(ann,bob)").code == 1
    result = phalanx(*command, "--without-fact", "sister(bob,ann)")
    assert (result.code, result.err) == (
        2, "phalanx: --without-fact sister(bob,ann): this is not a fact of base\n"
    )  # fmt: skip


def test_proofs_are_printed_as_json(phalanx, folder):
    found = json.loads(phalanx("prove", "aunt(ann,cat)", "--data", folder, "--json").out)
    assert found["proofs"] == [
        {
            "goal": "aunt(ann,cat)",
            "selected_goal": "aunt(ann,cat)",
            "depth": 2,
            "rule": "r1",
            "substitution": {"X": "ann", "Y": "cat", "Z": "bob"},
            "body": [
                {"goal": "sister(ann,bob)", "selected_goal": "sister(ann,Z)", "depth": 1, "fact": True},
                {"goal": "parent(bob,cat)", "selected_goal": "parent(bob,cat)", "depth": 1, "fact": True},
            ],
        }
    ]
    result = phalanx("prove", "aunt(cat,ann)", "--data", folder, "--json")
    assert result.code == 1
    assert json.loads(result.out)["reasons"] == ["r1: no sister(cat,Z)", "r2: no wife(cat,Z)"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("ant(X,cat)",), "no predicate 'ant' in this knowledge base (in ant(X,cat)); did you mean 'aunt'?"),
        (
            ("aunt(anna,cat)",),
            "no constant 'anna' in this knowledge base (in aunt(anna,cat)); did you mean 'ann'?",
        ),
        (("aunt(ann)",), "aunt has two arguments in this knowledge base, but 1 in aunt(ann)"),
        (("aunt(ann,cat)", "--out", "/no/such/folder/a.svg"), "/no/such/folder"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(phalanx, folder, arguments, complaint):
    result = phalanx("prove", *arguments, "--data", folder)
    assert result.code == 2
    assert complaint in result.err and result.err.count("\n") == 1


def test_generated_knowledge_base_is_the_default(phalanx):
    result = phalanx("prove", "aunt(X,Y)", "--limit", 1)
    assert result.code == 0
    assert result.out.startswith("aunt(")
    assert phalanx("prove", "aunt(5,76)").code == 2


def test_search_reports_its_time_limit(phalanx, folder):
    result = phalanx("prove", "aunt(eve,cat)", "--data", folder, "--max-seconds", 0)
    assert result.code == 1
    assert result.out == "aunt(eve,cat): no proof within 0 s\n"
    assert result.err == "The search is incomplete: increase --max-seconds, or decrease --max-depth\n"
    found = json.loads(phalanx("prove", "aunt(X,cat)", "--data", folder, "--max-seconds", 0, "--json").out)
    assert (found["complete"], found["proofs"]) == (False, [])
    assert json.loads(phalanx("prove", "aunt(eve,cat)", "--data", folder, "--json").out)["complete"]


def test_misspelled_constant_is_not_a_variable(phalanx, folder):
    result = phalanx("prove", "aunt(Eve,X)", "--data", folder)
    assert result.code == 2
    assert "no constant 'Eve' in this knowledge base (in aunt(Eve,X)); did you mean 'eve'?" in result.err


def test_names_with_special_characters_can_be_queried(phalanx, tmp_path):
    (tmp_path / "train.txt").write_text("New York\tis in\tU.S. (mainland)\n")
    (tmp_path / "rules.txt").write_text("has(Y,X) :- 'is in'(X,Y).\n")
    result = phalanx("prove", "has('U.S. (mainland)',X)", "--data", tmp_path)
    assert result.out.splitlines()[0] == "has('U.S. (mainland)','New York')  2 steps"
