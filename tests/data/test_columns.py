"""Columns with one entry per token stay with their tokens, from mappings and files to batches.

In every test, the `advantages` of a token are half its id, and its `scores` are its id and the negative id.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx.data import (
    BatchingConfig,
    BatchPlanBuilder,
    BatchReader,
    ByteTokenizer,
    IterableSource,
    PackingConfig,
    Sample,
    StreamingPlan,
    StreamingPlanConfig,
    TokenBatch,
    TokenizeConfig,
    collate,
    pack_dataset,
    pack_tokens,
    tokenize_dataset,
    tokenize_rows,
)


def row(first: int, length: int) -> dict[str, Any]:
    ids = list(range(first, first + length))
    return {
        "input_ids": ids,
        "loss_mask": [0, *(1,) * (length - 1)],
        "advantages": [token / 2 for token in ids],
        "scores": [[token, -token] for token in ids],
        "answer": f"sample {first}",
        "reward": 0.5,
        "tags": ["a", "b"],
        "attention_mask": [1] * length,
    }


ROWS = {f"s{n}": row(10 * n + 1, 2 + n % 4) for n in range(8)}
LENGTHS = {name: len(sample["input_ids"]) for name, sample in ROWS.items()}
PACKING = PackingConfig(max_length=8)


def assert_columns_fit(batch: TokenBatch) -> None:
    assert sorted(batch.columns) == ["advantages", "scores"]
    np.testing.assert_array_equal(batch["advantages"], batch.input_ids / 2)
    np.testing.assert_array_equal(batch["scores"], batch.input_ids[..., None] * np.array([1, -1]))


@pytest.mark.parametrize("packing", [PACKING, None], ids=["packed", "padded"])
def test_columns_of_mappings_are_collated(packing: PackingConfig | None) -> None:
    plan = BatchPlanBuilder(LENGTHS, BatchingConfig.throughput(16), packing=packing).build()
    samples = {**ROWS, "s0": Sample.from_dict(stored(ROWS["s0"])), "s1": stored(ROWS["s1"])}
    for spec in plan.iter_epoch(0):
        assert_columns_fit(collate(spec, samples, num_rows=8))


def stored(given: dict[str, Any]) -> dict[str, Any]:
    """Return a sample in the form that `Sample.to_dict` has."""
    columns = {name: given[name] for name in ("advantages", "scores")}
    return Sample("stored", given["input_ids"], given["loss_mask"], columns).to_dict()


def test_columns_of_a_stream_of_mappings_are_collated() -> None:
    source = IterableSource(lambda start: list(ROWS.values())[start:])
    config = StreamingPlanConfig(packing=PACKING, packs_per_batch=2, packs_per_buffer=2)
    batches = [collate(spec) for spec in StreamingPlan({"rows": source}, config).batches()]
    assert sum(batch.real_tokens for batch in batches) == sum(LENGTHS.values())
    for batch in batches:
        assert_columns_fit(batch)


def write_rows(path: Path) -> Path:
    path.write_text("".join(json.dumps({"id": name, **sample}) + "\n" for name, sample in ROWS.items()))
    return path


@pytest.mark.parametrize("workers", [1, 2])
def test_columns_of_jsonl_rows_are_read(tmp_path: Path, workers: int) -> None:
    path = write_rows(tmp_path / "rows.jsonl")
    dataset = tokenize_dataset(path, ByteTokenizer(), workers=workers)
    assert sorted(dataset.columns) == ["advantages", "scores"]
    np.testing.assert_array_equal(dataset.columns["advantages"], dataset.tokens / 2)
    assert dataset["s3"].columns["scores"].tolist() == ROWS["s3"]["scores"]


def test_columns_of_parquet_rows_are_read(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.Table.from_pylist(list(ROWS.values())), tmp_path / "rows.parquet")
    dataset = tokenize_dataset(tmp_path / "rows.parquet", ByteTokenizer())
    np.testing.assert_array_equal(dataset.columns["advantages"], dataset.tokens / 2)


@pytest.mark.parametrize(("truncation", "kept"), [("left", slice(-3, None)), ("right", slice(3))])
def test_columns_are_truncated_with_their_tokens(truncation: str, kept: slice) -> None:
    config = TokenizeConfig(max_length=3, truncation=truncation)
    samples = list(tokenize_rows([ROWS["s3"], ROWS["s0"]], ByteTokenizer(), config))
    assert samples[0].columns["advantages"].tolist() == ROWS["s3"]["advantages"][kept]
    assert samples[1].columns["advantages"].tolist() == ROWS["s0"]["advantages"]


def test_columns_are_stored_in_a_packed_folder(tmp_path: Path) -> None:
    config = TokenizeConfig(max_length=8)
    pack_dataset(write_rows(tmp_path / "rows.jsonl"), tmp_path / "packed", config, packs_per_batch=2)
    for batch in BatchReader(tmp_path / "packed").iter_epoch(0):
        assert_columns_fit(batch)


def test_columns_of_concatenated_tokens_are_packed() -> None:
    tokens = np.arange(1, 9)
    columns = {"advantages": tokens / 2, "scores": tokens[:, None] * np.array([1, -1])}
    config = PackingConfig(max_length=3, overlong="split")
    assert_columns_fit(pack_tokens(tokens, [0, 5, 8], config, columns=columns))
    with pytest.raises(ValueError, match="advantages must have 8 entries, one per token, got 5"):
        pack_tokens(tokens, [0, 5, 8], config, columns={"advantages": tokens[:5]})


@pytest.mark.parametrize("align", [1, 4])
def test_columns_are_concatenated_with_variable_length_segments(align: int) -> None:
    plan = BatchPlanBuilder(LENGTHS, BatchingConfig.throughput(16), packing=PACKING).build()
    for spec in plan.iter_epoch(0):
        flat = collate(spec, ROWS, num_rows=4).varlen(align=align)
        np.testing.assert_array_equal(flat["advantages"], flat["input_ids"] / 2)
        np.testing.assert_array_equal(flat["scores"], flat["input_ids"][:, None] * np.array([1, -1]))


def test_labels_of_mappings_determine_the_loss_mask() -> None:
    plan = BatchPlanBuilder({"a": 3}, BatchingConfig.throughput(16)).build()
    batch = collate(plan.get_epoch(0)[0], {"a": {"input_ids": [5, 6, 7], "labels": [-100, -100, 7]}})
    assert batch.loss_mask.tolist() == [[0, 0, 1]] and batch.keys()[4:] == []


def test_list_of_numbers_without_one_entry_per_token_is_rejected(tmp_path: Path) -> None:
    wrong = {"input_ids": [5, 6, 7], "advantages": [0.5, 1.0]}
    plan = BatchPlanBuilder({"a": 3}, BatchingConfig.throughput(16)).build()
    with pytest.raises(ValueError, match="sample 'a': 3 input_ids but 2 entries in advantages; a list of"):
        collate(plan.get_epoch(0)[0], {"a": wrong})
    (tmp_path / "rows.jsonl").write_text(json.dumps(wrong) + "\n")
    with pytest.raises(ValueError, match=r"rows\.jsonl:1: 3 input_ids but 2 entries in advantages; a list"):
        tokenize_dataset(tmp_path / "rows.jsonl", ByteTokenizer())
