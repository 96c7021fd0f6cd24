"""The `data` commands that users of chuk-lazarus know, with their options, from a dataset to batch files."""

import json
from pathlib import Path

import pytest
import tokenizers

from phalanx.compat.chuk_lazarus.data.batching import BatchReader, load_batch_plan
from tests.helpers.cli import phalanx as phalanx

NUM_TEXTS = 90
EDGES = "64,128"


def options(**values: object) -> list[object]:
    """Return options such as `--token-budget 4096`."""
    return [part for name, value in values.items() for part in (f"--{name.replace('_', '-')}", value)]


@pytest.fixture
def run(phalanx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that runs a `data` command in a folder with a dataset, a tokenizer and a cache."""
    monkeypatch.chdir(tmp_path)
    words = ["red", "green", "blue", "yellow"]
    with Path("texts.jsonl").open("w", encoding="utf-8") as file:
        for number in range(NUM_TEXTS):
            text = " ".join(words[(number + n) % 4] for n in range(1 + 2 * number))
            file.write(json.dumps({"id": f"text-{number}", "text": text}) + "\n")
    vocabulary = {word: index for index, word in enumerate(["[UNK]", "<pad>", *words])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    Path("colors").mkdir()
    tokenizer.save("colors/tokenizer.json")

    def run(*arguments: object) -> str:
        result = phalanx("data", *arguments)
        assert result.code == 0, result.err
        return result.out

    run("lengths", "build", *options(dataset="texts.jsonl", tokenizer="colors", output="cache.jsonl"))
    return run


@pytest.fixture
def plan(run) -> str:
    limits = options(epochs=2, token_budget=512, bucket_edges=EDGES)
    run("batchplan", "build", *options(lengths="cache.jsonl"), *limits, *options(output="planned/"))
    return "planned/"


def test_lengths_are_built_and_summarized(run) -> None:
    rows = [json.loads(line) for line in Path("cache.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["length"] for row in rows] == [1 + 2 * number for number in range(NUM_TEXTS)]
    found = run("lengths", "stats", *options(cache="cache.jsonl"))
    assert "90" in found and str(1 + 2 * (NUM_TEXTS - 1)) in found


def test_plan_is_built_shown_and_verified(run, plan: str) -> None:
    loaded = load_batch_plan(plan)
    assert loaded.num_epochs == 2
    assert (loaded.meta.token_budget, loaded.meta.bucket_edges) == (512, (64, 128))
    assert loaded.fingerprint in run("batchplan", "info", *options(plan=plan))
    assert "rank 1 of 3" in run("batchplan", "info", *options(plan=plan, rank=1, world_size=3))
    assert run("batchplan", "verify", *options(plan=plan, lengths="cache.jsonl"))


def test_plan_is_sharded_for_each_rank(run, plan: str) -> None:
    run("batchplan", "shard", *options(plan=plan, world_size=3, output="ranks/"))
    shards = [load_batch_plan(f"ranks/rank_{rank}") for rank in range(3)]
    assert len(list(Path("ranks").iterdir())) == 3
    names = [name for shard in shards for batch in shard.iter_epoch(0) for name in batch.samples]
    assert sorted(names) == sorted(f"text-{number}" for number in range(NUM_TEXTS))


def test_lengths_are_analyzed(run) -> None:
    assert "Recommendations" in run("batching", "analyze", *options(cache="cache.jsonl", bucket_edges=EDGES))
    histogram = run("batching", "histogram", *options(cache="cache.jsonl", bins=6, width=30))
    assert sum("|" in line for line in histogram.splitlines()) == 6
    suggestion = run("batching", "suggest", *options(cache="cache.jsonl", num_buckets=3, goal="waste"))
    assert len(suggestion.splitlines()[0].split(",")) == 2


def test_batch_files_are_generated_from_a_plan(run, plan: str) -> None:
    run(
        "batch",
        "generate",
        *options(plan=plan, dataset="texts.jsonl", tokenizer="colors", output="files/"),
    )
    reader, expected = BatchReader("files/"), load_batch_plan(plan)
    assert reader.fingerprint == expected.fingerprint
    assert reader.verify() == expected.total_microbatches
    longest = max(reader.iter_epoch(1), key=lambda batch: max(batch.lengths))
    row = longest.lengths.index(max(longest.lengths))
    # The last text starts with the second color.
    assert longest["input_ids"][row, :5].tolist() == [3, 4, 5, 2, 3]
