"""The benchmark of single environments and batches measures rates and writes its results."""

import json
from pathlib import Path

import pytest

from benchmarks import simple_benchmark


def test_single_environments_and_batches_are_measured() -> None:
    assert simple_benchmark.benchmark_single_env(num_steps=2) > 0
    assert simple_benchmark.benchmark_batch_env(batch_size=3, num_steps=2) > 0
    assert simple_benchmark.benchmark_with_config({"backend": "xla", "donate": True}, 3, 2) > 0


def test_device_that_does_not_exist_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    limits = {"batch_sizes": [1], "batch_steps": 1, "single_env_steps": 1}
    config = limits | {"datasets": ["mini_arc"], "hardware": ["abacus"]}
    assert simple_benchmark.run_paper_benchmarks(config) == {}
    assert "mini_arc on abacus is not measured" in capsys.readouterr().out


def test_results_are_written_as_figure_table_and_json(tmp_path: Path) -> None:
    rates = {1: 800.0, 64: 32_000.0}
    result = {"num_tasks": 5, "single_env_steps_per_second": 750.0, "batch_steps_per_second": rates}
    figure = simple_benchmark.generate_paper_figures({"tiny_CPU": result}, tmp_path)
    table = simple_benchmark.generate_performance_tables({"tiny_CPU": result}, tmp_path)
    assert "tiny_CPU" in figure.read_text() and "| tiny_CPU | 64 | 32,000 |" in table.read_text()
    assert json.loads((tmp_path / "results.json").read_text())["tiny_CPU"]["num_tasks"] == 5
