"""`phalanx bench proofs`: its ways of printing, and what it refuses."""

import json

import pytest

from phalanx.agents import proof_benchmark
from phalanx.core import engine as native
from phalanx.proofs import benchmark

FACTS = {"engine": "native", "worst": 590_000, "compile_seconds": 3.25, "peak_rss_mb": 386}


@pytest.fixture
def measured(monkeypatch):
    """Figures without a measurement; what was asked for is kept."""
    monkeypatch.delenv("PHALANX_KG", raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    asked = []

    def run(self):
        asked.append(self)
        yield benchmark.record_of(
            "environment", "family", 620_000.4, "steps/s", peers={"eager": 62.0, "compiled": 175.0},
            facts=FACTS, targets={"times_eager": {"at_least": 100}, "compile_seconds": {"at_most": 15.0}},
        )  # fmt: skip
        yield benchmark.record_of(
            "ranking", "family", 12.5, "candidates/s", targets={"value": {"at_least": 14}}
        )

    monkeypatch.setattr(benchmark.ProofBenchmark, "run", run)
    return asked


def test_a_line_of_json_a_figure(phalanx, measured):
    result = phalanx("bench", "proofs", "--json")
    assert (result.code, result.err) == (0, "")
    first, second = map(json.loads, result.out.splitlines())
    assert (first["value"], first["times_eager"], first["times_compiled"]) == (620_000, 10_000.0, 3_542.9)
    assert first["peer"] == "DeepProofLog, measured on 2 cores, shared reference"
    assert (first["passed"], second["passed"]) == (True, False)
    assert "nproc" in first and "load_average" in second
    assert measured[0] == benchmark.ProofBenchmark(engines=benchmark.engines_at_hand())


def test_a_table_has_the_peers_and_how_many_times_faster(phalanx, measured):
    out = phalanx("bench", "proofs").out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if "│" in line]
    assert rows == [
        [
            "environment native",
            "family",
            "620,000 steps/s",
            "590,000",
            "eager 62",
            "10,000",
            "3.2",
            "386",
            "pass",
        ],
        ["", "", "", "", "compiled 175", "3,542.9", "", "", ""],
        ["ranking", "family", "12.5 candidates/s", "", "", "", "", "", "FAIL"],
    ]
    assert "Peer: DeepProofLog, measured on 2 cores, shared reference." in out


def test_options_are_passed_on(phalanx, measured, tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(proof_benchmark, "run", lambda *asked: trained.append(asked) or iter(()))
    (tmp_path / "family").mkdir()
    (tmp_path / "family/train.txt").write_text("wife(a,b).\n")
    options = ("--engine", "xla", "--environments", 8, "--repeats", 2, "--data", tmp_path)
    assert phalanx("bench", "proofs", "--json", *options).code == 0
    (asked,) = measured
    assert asked == benchmark.ProofBenchmark(tmp_path, ("xla",), batch=8, repeats=2)
    assert [workload.dataset for workload in asked.workloads] == ["family"]
    assert trained == [(tmp_path, 2, False)]


def test_a_folder_without_known_knowledge_bases_is_refused(phalanx, measured, tmp_path):
    result = phalanx("bench", "proofs", "--data", tmp_path)
    assert result.code == 2
    assert "holds none of family, wn18rr, countries_s3" in result.err
    assert measured == []


def test_the_native_engine_is_refused_where_it_cannot_be_used(phalanx, measured, monkeypatch):
    monkeypatch.setattr(native, "available", lambda: False)
    monkeypatch.setattr(native, "reason", lambda: "it is not built")
    result = phalanx("bench", "proofs", "--engine", "native")
    assert (result.code, result.err) == (2, "phalanx: the native engine cannot be used: it is not built\n")
