"""The benchmarks of guided search and of inductive transfer: their records on something small."""

import json
import sys

import guided_search
import inductive
import pytest

LINE = "{0}\thas\tthing_{0}\n"


def test_every_method_is_told_at_equal_budgets(monkeypatch, capsys) -> None:
    small = {"queries_per_update": 20, "num_updates": 1}
    monkeypatch.setattr(guided_search, "TRAINING", {"genealogy": small})
    monkeypatch.setattr(guided_search, "BUDGETS", (10, 30))
    options = ["--only", "genealogy", "--facts", "300", "--queries", "8", "--set", "update_epochs=1"]
    monkeypatch.setattr(sys, "argv", ["guided_search.py", *options])
    guided_search.main()
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["method"] for record in records] == list(guided_search.METHODS)
    assert all(record["held_out"] == 8 and record["expanded@10"] <= 80 for record in records)


def test_a_pair_is_ranked_beside_its_bar(tmp_path, monkeypatch, capsys) -> None:
    for folder in ("wn18rr_v1", "wn18rr_v1_ind"):
        (tmp_path / folder).mkdir()
        names = [f"{folder[-1]}{n}" for n in range(8)]
        inside = [f"thing_{name}\tin\t{name}\n" for name in names]
        (tmp_path / folder / "train.txt").write_text(
            "".join(LINE.format(n) for n in names) + "".join(inside[:6])
        )
        (tmp_path / folder / "valid.txt").write_text(inside[6])
        (tmp_path / folder / "test.txt").write_text(inside[7])
    monkeypatch.setattr(
        sys, "argv", ["inductive.py", "--data", str(tmp_path), "--split", "test", "--only", "wn18rr_v1"]
    )
    with pytest.raises(SystemExit) as ended:
        inductive.main()
    record = json.loads(capsys.readouterr().out)
    assert record["hits@10"] == 1.0 and record["holds"] and ended.value.code == 0
