"""`phalanx bench tokens`: its ways of printing, the curve, and the hand-over to the comparison."""

import json
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import phalanx as package

FIGURES = {
    "plan predictable",
    "plan throughput",
    "suggest 4 buckets",
    "suggest 8 buckets",
    "assign best_fit_decreasing",
    "assign hybrid",
    "pack tokens",
    "pack tokens in parts",
    "save plan",
    "load plan",
    "write lengths",
    "read lengths",
    "shard for eight ranks",
    "growth",
}


def test_json_prints_every_figure_with_its_conditions_on_a_line(phalanx):
    result = phalanx("bench", "tokens", "--json", "--samples", 500, "--repeats", 1)
    assert (result.code, result.err) == (0, "")
    records = [json.loads(line) for line in result.out.splitlines()]
    assert {record["figure"] for record in records} == FIGURES
    for record in records:
        assert record["samples"] == 500
        assert 0 < record["seconds_median"] <= record["seconds_worst"]
        assert {"load_average", "nproc", "cpu", "numpy", "phalanx"} <= set(record)


def test_without_json_a_table_shows_the_figures(phalanx, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "140")
    result = phalanx("bench", "tokens", "--samples", 500, "--repeats", 1)
    assert result.code == 0
    assert "plan throughput" in result.out
    assert "distribution hard, fill 0.9" in result.out
    assert result.out.splitlines()[-1].startswith("500 samples, ")


def test_the_curve_is_drawn_and_printed(phalanx, tmp_path: Path):
    target = tmp_path / "curve.svg"
    result = phalanx("bench", "tokens", "--samples", 2000, "--curve", target)
    assert result.code == 0
    header, *rows, path = result.out.splitlines()
    assert header.split() == ["POOL_BATCHES", "BATCHES", "EFFICIENCY", "MIXING", "DRIFT"]
    assert [row.split()[0] for row in rows[:3]] == ["1", "2", "4"]
    assert path == str(target)
    assert ElementTree.parse(target).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_peers_are_measured_by_the_comparison_in_the_sources(phalanx, monkeypatch: pytest.MonkeyPatch):
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    result = phalanx("bench", "tokens", "--json", "--samples", 500, "--repeats", 1, "--peers")
    assert result.code == 1
    script = Path(package.__file__).parents[2] / "benchmarks" / "compare_tokens.py"
    assert asked[0][1:] == [str(script), "--repeats", "1", "--json"]


def test_peers_and_the_curve_are_not_measured_together(phalanx, tmp_path: Path):
    result = phalanx("bench", "tokens", "--curve", tmp_path / "c.svg", "--peers")
    assert result.code == 2
    assert "give one of them" in result.err


def test_peers_need_the_sources(phalanx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(package, "__file__", str(tmp_path / "site-packages" / "phalanx" / "__init__.py"))
    result = phalanx("bench", "tokens", "--json", "--samples", 500, "--repeats", 1, "--peers")
    assert result.code == 2
    assert "--peers needs a checkout of Phalanx's sources" in result.err
