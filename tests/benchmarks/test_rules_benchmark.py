"""The benchmark of mined rules: its records, and the facts that it generates."""

import json
import sys

import pytest
import rules as benchmark

from phalanx.kg import MiningConfig


def test_generated_facts_have_rules_in_them() -> None:
    record = benchmark.million(4000, threads=1)
    assert 3900 < record["facts"] <= 4000 and record["complete"]
    assert record["rules"] > 40 and "->" in record["first"][0]


def test_a_split_is_ranked_and_held_to_its_bar(tmp_path, monkeypatch, capsys) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    pairs = [(f"a{n}", f"b{n}") for n in range(8)]
    train = [f"{a}\thas\t{b}\n" for a, b in pairs] + [f"{b}\tin\t{a}\n" for a, b in pairs[:6]]
    (folder / "train.txt").write_text("".join(train))
    (folder / "test.txt").write_text("b7\tin\ta7\n")
    monkeypatch.setattr(
        benchmark, "WORKLOADS", (benchmark.Workload("small", MiningConfig(max_length=2), 0.9),)
    )
    monkeypatch.setattr(
        sys, "argv", ["rules.py", "--data", str(tmp_path), "--split", "test", "--only", "small"]
    )
    with pytest.raises(SystemExit) as ended:
        benchmark.main()
    record = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0 and record["holds"] and record["mrr"] == 1.0
    assert record["settings"] == {"max_length": 2} and record["num_queries"] == 1
