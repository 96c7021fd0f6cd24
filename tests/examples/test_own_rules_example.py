"""The example of facts and rules of one's own proves, draws, trains and ranks."""

import re
from pathlib import Path

import pytest

from phalanx.kg.knowledge_base import KnowledgeBase
from tests.helpers.example_runs import run_example


def test_text_becomes_proofs_and_a_ranking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rules"
    run_example("proofs/own_rules.py", "--updates", 1, "--num-envs", 16, "--out", out)
    told = capsys.readouterr().out
    # By hand: the cover is part of the saddle, that of the frame, that of the bicycle.
    for goal in ("holds(bicycle,leather)  by inside", "part(saddle,frame)  fact", "of(cover,leather)  fact"):
        assert goal in told
    data = KnowledgeBase.load(out / "things", on_leak="error")
    assert len(data.rules) == 4 and not set(data.test) & set(data.facts)
    assert (out / "proof.svg").read_text().lstrip().startswith("<?xml")
    assert re.search(r"unseen truths that the policy proves: \d+% before, \d+% after", told)
    ranked = {mode: float(mrr) for mode, mrr in re.findall(r"by (\w+), ties \w+: MRR ([\d.]+)", told)}
    assert set(ranked) == {"policy", "exact"}
    assert 0.5 < ranked["policy"] <= ranked["exact"] == 1.0
