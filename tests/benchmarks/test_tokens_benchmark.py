"""The token benchmark: its lengths, its facts, its targets; small, so the times mean nothing."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import tokens as benchmark
from shuffle_curve import draw_curve, measure_curve, mixing
from token_facts import bin_facts, check_packs, draw_lengths, plan_facts
from tokens import Benchmark, batching_config, build_plan

from phalanx.data import BatchingConfig, BatchingMode, PackingConfig, pack_tokens

FIGURES = {
    "plan predictable",
    "plan throughput",
    "suggest 4 buckets",
    "suggest 8 buckets",
    "assign best_fit_decreasing",
    "assign subset_sum",
    "pack tokens",
    "pack tokens in parts",
    "save plan",
    "load plan",
    "write lengths",
    "read lengths",
    "shard for eight ranks",
    "growth",
}


def test_the_lengths_are_those_of_the_published_figures():
    lengths = draw_lengths("lognormal", 1_000_000)
    assert (int(lengths.min()), int(lengths.max()), round(float(lengths.mean()))) == (2, 2048, 293)
    # The fewest bins of 2048.
    assert -(-int(lengths.sum(dtype=np.int64)) // 2048) == 143_073
    hard = draw_lengths("hard", 1_000_000)
    assert (int(hard.min()), int(hard.max())) == (300, 1300)
    assert -(-int(hard.sum(dtype=np.int64)) // 2048) == 390_810


def test_facts_of_a_plan_that_a_reader_can_count():
    config = BatchingConfig.predictable(token_budget=8, bucket_edges=(4,), max_sample_length=8)
    facts = plan_facts(build_plan({"a": 4, "b": 4, "c": 6}, config))
    # Two rows of 4 in one batch, one row of 8 in the other: 14 real of 16 padded tokens.
    assert (facts["batches"], facts["efficiency"]) == (2, 0.875)


def test_facts_of_bins_that_a_reader_can_count():
    facts = bin_facts(np.array([0, 0, 1], np.int32), np.array([3, 1, 4], np.int32), capacity=5)
    assert facts == {"bins": 2, "lower_bound": 2, "over_bound": 0.0, "fill": 0.8}


def test_a_bin_that_holds_too_much_is_found():
    with pytest.raises(AssertionError, match="a bin of 5 holds 7"):
        bin_facts(np.array([0, 0, 1], np.int32), np.array([3, 4, 4], np.int32), capacity=5)


def test_a_wrong_token_in_a_pack_is_found():
    tokens, offsets = np.arange(1, 9, dtype=np.int32), np.array([0, 3, 7, 8])
    batch = pack_tokens(tokens, offsets, PackingConfig(max_length=5))
    check_packs(batch, tokens, offsets)
    batch.input_ids[0, 0] += 1
    with pytest.raises(AssertionError, match="does not hold its sample's tokens"):
        check_packs(batch, tokens, offsets)


def test_verdicts_are_given_at_the_standard_size_only(monkeypatch: pytest.MonkeyPatch):
    small = Benchmark(200, repeats=1)
    assert "passed" not in next(small.suggestions())
    monkeypatch.setattr(benchmark, "STANDARD_SAMPLES", 200)
    record = next(small.suggestions())
    assert record["targets"] == {"efficiency": {"at_least": 0.636}}
    assert record["passed"] is (record["efficiency"] >= 0.636)


def test_a_benchmark_refuses_sizes_that_show_nothing():
    with pytest.raises(ValueError, match="at least 100 samples, got 3"):
        Benchmark(3)
    with pytest.raises(ValueError, match="repeats must be at least 1, got 0"):
        Benchmark(1000, repeats=0)


def test_mixing_is_one_among_strangers_and_zero_among_equals():
    config = BatchingConfig.throughput(token_budget=8, bucket_edges=(4,), max_sample_length=8)
    # Two to a batch; the budget lets 4 and 4 together, and 2 with three others of 2.
    equals = build_plan({f"{n}-{i}": n for n in (2, 4) for i in range(4)}, config)
    assert mixing(equals.get_epoch(0)) == 0
    alone = build_plan({"a": 2, "b": 2}, config)
    assert mixing(alone.get_epoch(0)) == 1


def test_larger_pools_pad_less_and_mix_less():
    first, last = measure_curve(20_000, pools=(1, 256))
    assert first["efficiency"] < last["efficiency"]
    assert first["mixing"] > last["mixing"]
    assert "pool_batches" in draw_curve([first, last]).as_svg()
    with pytest.raises(ValueError, match="at least two sizes"):
        draw_curve([first])


def test_the_settings_are_those_of_the_published_figures():
    config = batching_config(BatchingMode.THROUGHPUT)
    assert (config.token_budget, config.bucket_edges, config.max_sample_length) == (
        16_384,
        (128, 256, 512, 1024),
        2048,
    )


def test_json_prints_every_figure_with_its_conditions_on_a_line(program):
    result = program(benchmark, "--json", "--samples", 500, "--repeats", 1)
    assert (result.code, result.err) == (0, "")
    records = [json.loads(line) for line in result.out.splitlines()]
    assert {record["figure"] for record in records} == FIGURES
    for record in records:
        assert record["samples"] == 500
        assert 0 < record["seconds_median"] <= record["seconds_worst"]
        assert {"load_average", "nproc", "cpu", "numpy", "phalanx"} <= set(record)


def test_without_json_a_table_shows_the_figures(program):
    result = program(benchmark, "--samples", 500, "--repeats", 1)
    assert result.code == 0
    assert "plan throughput" in result.out
    assert "distribution hard, fill 0.9" in result.out
    assert result.out.splitlines()[-1].startswith("500 samples, ")


def test_the_curve_is_drawn_and_printed(program, tmp_path: Path):
    target = tmp_path / "curve.svg"
    result = program(benchmark, "--samples", 2000, "--curve", target)
    assert result.code == 0
    assert [row[0] for row in result.rows[:3]] == ["1", "2", "4"]
    assert ElementTree.parse(target).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_peers_are_measured_by_the_comparison(program, monkeypatch: pytest.MonkeyPatch):
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    assert program(benchmark, "--json", "--samples", 500, "--repeats", 1, "--peers").code == 1
    script = Path(benchmark.__file__).with_name("compare_tokens.py")
    assert asked == [[sys.executable, str(script), "--repeats", "1", "--json"]]
    assert script.is_file()


def test_peers_and_the_curve_are_not_measured_together(program, tmp_path: Path):
    result = program(benchmark, "--curve", tmp_path / "c.svg", "--peers")
    assert result.code == 2
    assert "give one of them" in result.err
