"""The figures of several processes: what the quick ones show is true at any size."""

import json
from pathlib import Path

import pytest
from scale_figures import cores, halves, largest_difference, plans, side_by_side, write_corpus

from phalanx.data import load_tokenizer


def test_ranks_plan_alike_and_share_every_sample() -> None:
    shared, alone = plans(quick=True)
    assert (shared["ranks"], shared["fingerprints"]) == (2, 1)
    assert (len(shared["batches_of_each"]), shared["samples_in_all"]) == (1, 20_000)
    assert 1 <= shared["flops_by_rank"] <= shared["flops_by_step"] < 1.01
    assert (alone["figure"], alone["lengths"]) == ("one rank of eight", 20_000)


def test_two_processes_build_the_cache_of_one(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    corpus, bpe = write_corpus(tmp_path, 100)
    assert 300 < load_tokenizer(bpe).vocab_size <= 4096
    files = [corpus, *halves(corpus, tmp_path)]
    settings = [
        {
            "work": "lengths",
            "tokenizer": "bytes",
            "dataset": str(file),
            "output": f"{file}.lengths",
            "cores": cores(1),
            "threads": False,
            "workers": 1,
            "on_ray": False,
        }
        for file in files
    ]
    whole, first, second = side_by_side(settings)
    assert whole["samples"] == 100
    assert whole["tokens"] == first["tokens"] + second["tokens"]
    written = [Path(one["output"]).read_bytes() for one in settings]
    assert written[0] == written[1] + written[2]
    assert json.loads(written[2].splitlines()[0])["sample_id"] == "s50"


def test_a_difference_is_relative_and_the_clock_does_not_count() -> None:
    one = {"loss": 2.0, "entropy": 4.0, "env_steps_per_second": 1.0}
    other = {"loss": 2.1, "entropy": 3.0, "env_steps_per_second": 9.0}
    assert largest_difference(one, other) == (0.25, "entropy")


def test_a_process_that_fails_before_it_is_ready_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="ended before it was ready"):
        side_by_side([{"work": "plan", "samples": -1, "rank": 0, "ranks": 1, "cores": cores(1)}])
    assert "ValueError" in capfd.readouterr().err
