"""`phalanx mine` and `phalanx ask`: every flag, files, and what is said of mistakes."""

import json

import pytest

from phalanx.kg.formats import read_rules


@pytest.fixture
def folder(tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    pairs = [(f"a{n}", f"b{n}") for n in range(8)]
    (base / "train.txt").write_text(
        "".join(f"{a}\thas\t{b}\n" for a, b in pairs) + "".join(f"{b}\tin\t{a}\n" for a, b in pairs[:6])
    )
    (base / "valid.txt").write_text("b6\tin\ta6\n")
    (base / "test.txt").write_text("b7\tin\ta7\n")
    return base


def test_rules_are_mined_written_and_ranked_by(phalanx, folder):
    out = folder / "rules.txt"
    result = phalanx("mine", folder, "--out", out, "--length", 2, "--threads", 1, "--rank", "test")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0] == "2 rules from 14 facts: 2 paths and 0 with constants"
    assert lines[1].startswith("test, 1 queries by 2 rules, maximum: MRR 1.000")
    assert [(str(rule.head), rule.weight) for rule in read_rules(out)] == [
        ("has(X,Y)", 6 / 11),
        ("in(X,Y)", 6 / 13),
    ]
    again = phalanx("mine", folder, "--rules", out, "--rank", "valid", "--aggregation", "noisy-or", "--json")
    record = json.loads(again.out)
    assert (record["mrr"], record["mrr_mean_ties"], record["aggregation"]) == (1.0, 1.0, "noisy-or")


def test_without_a_file_the_best_rules_are_shown(phalanx, folder):
    result = phalanx("mine", folder, "--seconds", 20, "--set", "constants=false", "--set", "pessimism=0")
    assert result.out.splitlines()[1:] == ["  r1:1.0:in(Y,X) -> has(X,Y)", "  r2:0.75:has(Y,X) -> in(X,Y)"]


def test_an_embedding_ranks_too(phalanx, folder, tmp_path):
    run = tmp_path / "kge"
    trained = phalanx("train", "kge", f"dataset={folder}", "kge.dim=4", "kge.epochs=1", "--out", run)
    assert trained.code == 0, trained.err
    result = phalanx("mine", folder, "--rank", "test", "--kge", run, "--aggregation", "learned", "--json")
    assert result.code == 0, result.err
    assert set(json.loads(result.out)["chosen"]) == {"valid_mrr", "learning", "kge_weight"}


def test_a_network_is_learned_written_and_read_again(phalanx, folder, tmp_path):
    file = tmp_path / "network.npz"
    given = ("mine", folder, "--rank", "test", "--aggregation", "network", "--network", file, "--threads", 1)
    first = phalanx(*given, "--set", "layers=1", "--set", "epochs=20", "--set", "batch_size=4", "--json")
    assert first.code == 0, first.err
    record = json.loads(first.out)
    assert (record["aggregation"], record["mrr"]) == ("network over paths", 1.0)
    again = phalanx(*given)
    assert again.out.startswith("test, 1 queries by a network over paths: MRR 1.000")
    told = phalanx(*given, "--set", "layers=2")
    assert told.code == 2 and "is learned already" in told.err


def test_a_higher_power_is_nearer_to_the_maximum(phalanx, folder):
    result = phalanx("mine", folder, "--rank", "test", "--aggregation", "power", "--power", 6, "--json")
    assert result.code == 0 and json.loads(result.out)["mrr"] == 1.0, result.err


def test_mistakes_are_told(phalanx, folder, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "train.txt").write_text("")
    for arguments, said in (
        ((empty,), "has no triples to mine rules from"),
        ((tmp_path / "nowhere",), "nowhere"),
        ((folder, "--rules", "r.txt"), "give --rank, and no --out"),
        ((folder, "--set", "lenght=3"), "lenght"),
        ((folder, "--aggregation", "network"), "a network ranks without rules: give --rank"),
        ((folder, "--network", "n.npz"), "--network is a file of --aggregation network"),
    ):
        result = phalanx("mine", *arguments)
        assert result.code == 2 and said in result.err, result.err


def test_one_fact_gives_no_rules(phalanx, tmp_path):
    (tmp_path / "one.txt").write_text("p(a,b).\n")
    result = phalanx("mine", tmp_path / "one.txt")
    assert (result.code, result.out) == (0, "0 rules from 1 fact: 0 paths and 0 with constants\n")


def test_a_question_is_answered_with_proofs_and_pictures(phalanx, folder, tmp_path):
    result = phalanx(
        "ask", folder, "in(b7,X)", "--top", 2, "--explain", "--seconds", 5, "--out", tmp_path / "a.svg"
    )
    assert result.code == 0 and "has no rules.txt: mining rules" in result.err
    lines = result.out.splitlines()
    assert lines[0].endswith("in(b7,a7)  confidence 0.462")
    assert "    └── has(a7,b7)  fact" in lines
    assert lines[-1] == str(tmp_path / "a.svg") and (tmp_path / "a.svg").read_text().startswith(
        ("<?xml", "<svg")
    )


def test_given_rules_answer_and_facts_can_be_left_out(phalanx, folder, tmp_path):
    (tmp_path / "r.txt").write_text("r:0.25:has(Y,X) -> in(X,Y)\n")
    told = phalanx("ask", folder, "in(b1,X)", "--rules", tmp_path / "r.txt", "--json")
    (answer,) = json.loads(told.out)["answers"]
    assert (answer["atom"], answer["fact"], answer["confidence"]) == ("in(b1,a1)", True, 0.25)
    none = phalanx("ask", folder, "in(b1,X)", "--rules", tmp_path / "r.txt", "--new")
    assert (none.code, none.out) == (1, "in(b1,X): no rule has an answer\n")


def test_an_unknown_relation_is_told(phalanx, folder):
    result = phalanx("ask", folder, "inn(b1,X)")
    assert result.code == 2 and "no predicate 'inn'" in result.err and "'in'" in result.err
