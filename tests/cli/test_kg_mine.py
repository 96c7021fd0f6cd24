"""`phalanx kg mine`, `evaluate`, `path-network` and `query`."""

import json

import pytest

from phalanx.kg.formats import load_rules


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


def test_rules_are_mined_saved_and_evaluated(phalanx, folder):
    out = folder / "rules.txt"
    result = phalanx("kg", "mine", folder, "max_length=2", "--out", out, "--threads", 1, "--evaluate", "test")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0] == "2 rules from 14 facts: 2 paths and 0 with constants"
    assert lines[1].startswith("test, 1 queries, 32 candidates by 2 rules, maxplus, ties random: MRR 1.000")
    assert [(str(rule.head), rule.weight) for rule in load_rules(out)] == [
        ("has(X,Y)", 6 / 11),
        ("in(X,Y)", 6 / 13),
    ]
    again = phalanx(
        "kg", "evaluate", folder, "--rules", out, "--split", "valid", "--aggregation", "noisyor", "--json"
    )
    record = json.loads(again.out)
    assert (record["mrr"], record["mrr_realistic"], record["ties"]) == (1.0, 1.0, "random")
    assert record["mode"] == "2 rules, noisyor"


def test_best_rules_are_printed_without_an_output_file(phalanx, folder):
    result = phalanx(
        "kg", "mine", folder, "constant_rules=false", "confidence_smoothing=0", "--max-seconds", 20
    )
    assert result.out.splitlines()[1:] == ["  r1:1.0:in(Y,X) -> has(X,Y)", "  r2:0.75:has(Y,X) -> in(X,Y)"]


@pytest.mark.slow
def test_embedding_is_evaluated(phalanx, folder, tmp_path):
    run = tmp_path / "kge"
    trained = phalanx(
        "train", "kge", f"dataset={folder}", "model.embedding_dim=4", "num_epochs=1", "--out", run
    )
    assert trained.code == 0, trained.err
    result = phalanx(
        "kg", "mine", folder, "--evaluate", "test", "--kge", run, "--aggregation", "learned", "--json"
    )
    assert result.code == 0, result.err
    assert set(json.loads(result.out)["selected"]) == {"valid_mrr", "learning", "kge_weight"}


def test_path_network_is_trained_saved_and_loaded(phalanx, folder, tmp_path):
    file = tmp_path / "network.npz"
    settings = ("num_layers=1", "num_epochs=20", "batch_size=4")
    options = ("--evaluate", "test", "--threads", 1)
    first = phalanx("kg", "path-network", folder, file, *settings, *options, "--json")
    assert first.code == 0, first.err
    record = json.loads(first.out)
    assert (record["mode"], record["mrr"]) == ("path network", 1.0)
    again = phalanx("kg", "path-network", folder, file, *options)
    assert again.out.startswith("test, 1 queries, 32 candidates by path network, ties random: MRR 1.000")
    refused = phalanx("kg", "path-network", folder, file, "num_layers=2")
    assert refused.code == 2 and "already exists, so settings have no effect" in refused.err


def test_higher_power_is_closer_to_the_maximum(phalanx, folder):
    result = phalanx(
        "kg", "mine", folder, "--evaluate", "test", "--aggregation", "power", "--power", 6, "--json"
    )
    assert result.code == 0 and json.loads(result.out)["mrr"] == 1.0, result.err


def test_errors_are_reported(phalanx, folder, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "train.txt").write_text("")
    for arguments, output in (
        ((empty,), "has no triples to mine rules from"),
        ((tmp_path / "nowhere",), "nowhere"),
        ((folder, "max_lenght=3"), "max_lenght"),
        ((folder, "length=3"), "did you mean 'max_length'?"),
        ((folder, "max_triples=3"), "did you mean 'max_start_triples'?"),
    ):
        result = phalanx("kg", "mine", *arguments)
        assert result.code == 2 and output in result.err, result.err


def test_single_fact_has_no_rules(phalanx, tmp_path):
    (tmp_path / "one.txt").write_text("p(a,b).\n")
    result = phalanx("kg", "mine", tmp_path / "one.txt")
    assert (result.code, result.out) == (0, "0 rules from 1 fact: 0 paths and 0 with constants\n")


def test_query_is_answered_with_proofs_and_images(phalanx, folder, tmp_path):
    result = phalanx(
        "kg",
        "query",
        folder,
        "in(b7,X)",
        "--top",
        2,
        "--explain",
        "--max-seconds",
        5,
        "--out",
        tmp_path / "a.svg",
    )
    assert result.code == 0 and "has no rules.txt: mining rules" in result.err
    lines = result.out.splitlines()
    assert lines[0].endswith("in(b7,a7)  confidence 0.462")
    assert "    └── has(a7,b7)  fact" in lines
    assert lines[-1] == str(tmp_path / "a.svg") and (tmp_path / "a.svg").read_text().startswith(
        ("<?xml", "<svg")
    )


def test_query_with_given_rules_and_excluded_facts(phalanx, folder, tmp_path):
    (tmp_path / "r.txt").write_text("r:0.25:has(Y,X) -> in(X,Y)\n")
    found = phalanx("kg", "query", folder, "in(b1,X)", "--rules", tmp_path / "r.txt", "--json")
    (answer,) = json.loads(found.out)["answers"]
    assert (answer["atom"], answer["fact"], answer["confidence"]) == ("in(b1,a1)", True, 0.25)
    none = phalanx("kg", "query", folder, "in(b1,X)", "--rules", tmp_path / "r.txt", "--exclude-facts")
    assert (none.code, none.out) == (1, "in(b1,X): no answer\n")


@pytest.mark.parametrize("command", [("query", "in(b1,X)"), ("evaluate",)])
def test_given_rules_that_are_not_supported_are_reported(phalanx, folder, tmp_path, command):
    (tmp_path / "r.txt").write_text("good:0.5:has(Y,X) -> in(X,Y)\nloop:0.5:has(X,X) -> in(X,X)\n")
    name, *arguments = command
    result = phalanx("kg", name, folder, *arguments, "--rules", tmp_path / "r.txt")
    assert result.code == 0
    assert "1 rule left out because their form is not supported, such as loop" in result.err


def test_unknown_relation_is_reported(phalanx, folder):
    result = phalanx("kg", "query", folder, "inn(b1,X)")
    assert result.code == 2 and "no predicate 'inn'" in result.err and "'in'" in result.err


def test_tie_rule_can_be_chosen(phalanx, folder):
    rules = folder / "rules.txt"
    rules.write_text("r1:1.0:in(Y,X) -> has(X,Y)\n")  # scores all answers to in(b7,?) and in(?,a7) alike
    found = {}
    for ties in ("realistic", "pessimistic"):
        result = phalanx("kg", "evaluate", folder, "--rules", rules, "--ties", ties, "--json")
        assert result.code == 0, result.err
        record = json.loads(result.out)
        assert record["ties"] == ties
        found[ties] = record["mrr"]
    # Sixteen entities; no other answer to either query is known.
    assert found == {"realistic": pytest.approx(1 / 8.5), "pessimistic": pytest.approx(1 / 16)}
