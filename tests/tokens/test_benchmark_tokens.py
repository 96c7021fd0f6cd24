"""The token benchmark: its lengths, its facts, its targets; small, so the times mean nothing."""

import numpy as np
import pytest

from phalanx.tokens import BatchingConfig, BatchingMode, PackingConfig, pack_tokens
from phalanx.tokens.benchmark import Benchmark, Target, batching_config, build_plan, draw_lengths
from phalanx.tokens.benchmark_facts import bin_facts, check_packs, peak_memory_mb, plan_facts
from phalanx.tokens.shuffle_curve import draw_curve, measure_curve, mixing


def test_the_lengths_are_those_of_the_published_figures():
    lengths = draw_lengths("lognormal", 1_000_000)
    assert (int(lengths.min()), int(lengths.max()), round(float(lengths.mean()))) == (2, 2048, 293)
    # The fewest bins of 2048.
    assert -(-int(lengths.sum(dtype=np.int64)) // 2048) == 143_073
    hard = draw_lengths("hard", 1_000_000)
    assert (int(hard.min()), int(hard.max())) == (300, 1300)
    assert -(-int(hard.sum(dtype=np.int64)) // 2048) == 390_810


def test_facts_of_a_plan_that_a_reader_can_count():
    config = BatchingConfig.predictable(token_budget=8, bucket_edges=(4,), overflow_max=8)
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


def test_memory_is_what_a_call_holds_at_its_peak():
    assert 8 <= peak_memory_mb(lambda: np.ones(2**20).sum()) < 9


def test_targets_are_bounds_on_fields():
    record = {"efficiency": 0.97, "seconds_median": 0.2}
    assert Target("efficiency", at_least=0.97).passed(record)
    assert not Target("efficiency", at_least=0.98).passed(record)
    assert Target("seconds_median", at_most=0.2).passed(record)
    assert not Target("seconds_median", at_most=0.1).passed(record)


def test_verdicts_are_given_at_the_standard_size_only(monkeypatch: pytest.MonkeyPatch):
    small = Benchmark(200, repeats=1)
    assert "passed" not in next(small.suggestions())
    monkeypatch.setattr("phalanx.tokens.benchmark.STANDARD_SAMPLES", 200)
    record = next(small.suggestions())
    assert record["targets"] == {"efficiency": {"at_least": 0.636}}
    assert record["passed"] is (record["efficiency"] >= 0.636)


def test_a_benchmark_refuses_sizes_that_show_nothing():
    with pytest.raises(ValueError, match="at least 100 samples, got 3"):
        Benchmark(3)
    with pytest.raises(ValueError, match="repeats must be at least 1, got 0"):
        Benchmark(1000, repeats=0)


def test_mixing_is_one_among_strangers_and_zero_among_equals():
    config = BatchingConfig.throughput(token_budget=8, bucket_edges=(4,), overflow_max=8)
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
    assert (config.token_budget, config.bucket_edges, config.overflow_max) == (
        16_384,
        (128, 256, 512, 1024),
        2048,
    )
