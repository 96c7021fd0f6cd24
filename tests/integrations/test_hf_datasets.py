"""Hugging Face datasets as inputs and outputs of plans, and the loss of packed samples."""

import importlib
import pickle
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

datasets = pytest.importorskip("datasets")
torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from phalanx.data import BatchingConfig, BatchPlan, BatchPlanBuilder, ByteTokenizer, PackingConfig  # noqa: E402
from phalanx.integrations.hf_datasets import HFDatasetSamples, to_dataset, to_iterable_dataset  # noqa: E402
from phalanx.integrations.torch_data import PackedRowPaddingCollator, PlanDataset, TorchBatch  # noqa: E402

TOKENS = [[7 * row + position + 1 for position in range(2 + row % 6)] for row in range(17)]
CONFIG = BatchingConfig.throughput(token_budget=20, bucket_edges=(4,), max_sample_length=10)


def token_dataset() -> Any:
    return datasets.Dataset.from_dict({"input_ids": TOKENS, "name": [f"n{row}" for row in range(17)]})


def build_plan(samples: HFDatasetSamples, packed: bool = True) -> BatchPlan:
    packing = PackingConfig(max_length=10) if packed else None
    return BatchPlanBuilder(samples.lengths(), CONFIG, packing=packing).build(2)


def test_lengths_are_read_from_memory_disk_and_selections(tmp_path: Path) -> None:
    data = token_dataset()
    expected = [len(row) for row in TOKENS]
    assert HFDatasetSamples(data).lengths().lengths.tolist() == expected
    data.save_to_disk(tmp_path / "saved")
    saved = HFDatasetSamples(datasets.load_from_disk(tmp_path / "saved"))
    assert saved.lengths().as_dict() == {str(row): n for row, n in enumerate(expected)}
    assert saved["3"]["input_ids"].tolist() == TOKENS[3]
    some = HFDatasetSamples(data.select([4, 0, 9]))
    assert some.lengths().as_dict() == {"0": expected[4], "1": expected[0], "2": expected[9]}
    assert some["2"]["input_ids"].tolist() == TOKENS[9] and list(some) == ["0", "1", "2"]
    assert "3" not in some and "02" not in some and len(some) == 3


def test_texts_are_tokenized_by_a_tokenizer_or_callable() -> None:
    data = datasets.Dataset.from_dict({"text": ["Hi", "Hello"]})
    own = HFDatasetSamples(data, "text", tokenizer=ByteTokenizer())
    assert own.lengths().lengths.tolist() == [2, 5] and own["0"]["input_ids"] == [74, 107]

    def letters(texts: list[str]) -> dict[str, list[list[int]]]:
        return {"input_ids": [[ord(letter) for letter in text] for text in texts]}

    theirs = HFDatasetSamples(data, "text", tokenizer=letters)
    assert theirs.lengths().lengths.tolist() == [2, 5] and theirs["0"]["input_ids"] == [72, 105]


def test_loss_column_determines_the_labels() -> None:
    data = datasets.Dataset.from_dict({"ids": [[5, 6, 7]], "counts": [[1, 0, 1]]})
    samples = HFDatasetSamples(data, "ids", loss_column="counts")
    (batch,) = PlanDataset(BatchPlanBuilder(samples.lengths(), CONFIG).build(), samples)
    assert batch["labels"].tolist() == [[-100, -100, 7]]


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_plan_is_converted_to_a_dataset_of_unpadded_rows(packed: bool) -> None:
    samples = HFDatasetSamples(token_dataset())
    plan = build_plan(samples, packed)
    rows = to_dataset(plan, samples, epoch=1)
    packs = [pack for batch in plan.get_epoch(1) for pack in batch.packs or [(s,) for s in batch.sample_ids]]
    assert rows.column_names == ["input_ids", "labels", "position_ids", "segment_ids"]
    for row, pack in zip(rows, packs, strict=True):
        parts = [TOKENS[int(name)] for name in pack]
        assert row["input_ids"] == [*chain(*parts)]
        assert row["labels"] == [*chain(*([-100, *part[1:]] for part in parts))]
        assert row["position_ids"] == [*chain(*(range(len(part)) for part in parts))]
        assert row["segment_ids"] == [*chain(*([n] * len(part) for n, part in enumerate(parts, 1)))]
    iterable = to_iterable_dataset(plan, samples, epoch=1)
    assert list(iterable) == list(rows)
    assert iterable.num_shards == len(plan.get_epoch(1)), "each batch must be a shard"


def test_loader_of_the_dataset_has_the_labels_of_the_plan() -> None:
    samples = HFDatasetSamples(token_dataset())
    plan = build_plan(samples)
    loader = DataLoader(to_dataset(plan, samples), batch_size=3, collate_fn=PackedRowPaddingCollator())
    direct = PlanDataset(plan, samples)
    seen = torch.cat([batch["labels"][batch["labels"] >= 0] for batch in loader])
    assert torch.equal(seen, torch.cat([batch["labels"][batch["labels"] >= 0] for batch in direct]))


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_columns_of_samples_are_kept_in_the_dataset_and_its_batches(packed: bool) -> None:
    # The halves are integers in some batches and floats in others.
    samples = {
        str(n): {"input_ids": t, "halves": [x / 2 if n % 2 else x for x in t], "pairs": [[x, -x] for x in t]}
        for n, t in enumerate(TOKENS)
    }
    plan = build_plan(HFDatasetSamples(token_dataset()), packed)
    rows = to_dataset(plan, samples)
    for row in rows:
        assert row["pairs"] == [[token, -token] for token in row["input_ids"]]
        assert all(
            half in (token, token / 2) for half, token in zip(row["halves"], row["input_ids"], strict=True)
        )
    assert list(to_iterable_dataset(plan, samples)) == list(rows)
    for batch in DataLoader(rows, batch_size=3, collate_fn=PackedRowPaddingCollator()):
        assert torch.equal(batch["pairs"], torch.stack([batch["input_ids"], -batch["input_ids"]], dim=-1))
        assert batch["halves"].shape == batch["input_ids"].shape


def test_rows_with_other_columns_are_rejected() -> None:
    first = {"input_ids": [1, 2], "labels": [1, 2], "position_ids": [0, 1]}
    with pytest.raises(ValueError, match=r"row 1 has columns \['advantages'\], but row 0 has \[\]"):
        PackedRowPaddingCollator()([first, {**first, "advantages": [0.5, 1.0]}])


def summed_losses(model: Any, batch: TorchBatch) -> dict[str, float]:
    """Return the loss of each sample of a batch, summed over its tokens."""
    with torch.no_grad():
        logits = model(**{name: tensor for name, tensor in batch.items() if name != "labels"}).logits
    labels = batch["labels"][:, 1:]
    costs = torch.nn.functional.cross_entropy(logits[:, :-1].mT, labels, ignore_index=-100, reduction="none")
    starts = (batch["position_ids"] == 0).int().cumsum(1)[:, 1:]
    segments: dict[int, int] = {}
    found = {}
    for name, row in zip(batch.sample_ids, batch.sample_rows, strict=True):
        segments[row] = segments.get(row, 0) + 1
        found[name] = float(costs[row][starts[row] == segments[row]].sum())
    return found


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["Llama", "GPTNeoX"])
@pytest.mark.parametrize("attention_format", ["positions", "mask"])
def test_packed_and_separate_samples_have_the_same_loss(
    family: str, attention: str, attention_format: Any
) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 128, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    config = getattr(transformers, f"{family}Config")(
        **sizes, num_attention_heads=2, max_position_embeddings=16, attn_implementation=attention
    )
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    samples = HFDatasetSamples(token_dataset())
    plan = build_plan(samples)
    losses: dict[str, float] = {}
    assert config.use_cache
    for batch in PlanDataset(plan, samples, attention=attention_format):
        losses |= summed_losses(model, batch)
    assert len(losses) == 17 and max(batch.num_samples for batch in plan.get_epoch(0)) > 1
    for row, ids in enumerate(TOKENS):
        separate = torch.tensor([ids])
        with torch.no_grad():
            mean = model(input_ids=separate, labels=separate).loss
        assert losses[str(row)] == pytest.approx(float(mean) * (len(ids) - 1), rel=1e-4)


def test_invalid_columns_are_reported() -> None:
    data = token_dataset()
    with pytest.raises(ValueError, match="the dataset has no column 'ids'; it has input_ids, name"):
        HFDatasetSamples(data, "ids")
    with pytest.raises(ValueError, match="column 'name' has string, but must have lists of integers"):
        HFDatasetSamples(data, "name")
    with pytest.raises(ValueError, match=r"column 'input_ids' has .*, but must have texts"):
        HFDatasetSamples(data, tokenizer=ByteTokenizer())
    empty = datasets.Dataset.from_dict({"input_ids": [[1], []]})
    with pytest.raises(ValueError, match="sample 1: length must be a positive integer, got 0"):
        HFDatasetSamples(empty).lengths()
    gap = datasets.Dataset.from_dict({"input_ids": [[1], None]})
    with pytest.raises(ValueError, match="row 1 has no value in column 'input_ids'"):
        HFDatasetSamples(gap).lengths()
    within = datasets.Dataset.from_dict({"input_ids": [[1, None]]})
    with pytest.raises(ValueError, match="column 'input_ids' has missing values"):
        HFDatasetSamples(within)["0"]
    with pytest.raises(KeyError, match="17"):
        HFDatasetSamples(data)["17"]


def test_plan_of_another_dataset_is_rejected() -> None:
    samples = HFDatasetSamples(token_dataset())
    plan = build_plan(samples)
    short = HFDatasetSamples(token_dataset().select(range(15)))
    for use in (to_dataset, to_iterable_dataset, PlanDataset):
        with pytest.raises(
            ValueError,
            match="the plan was built for another dataset: 2 of its 17 samples are not in this one ",
        ):
            use(plan, short)
    other = HFDatasetSamples(token_dataset().select(range(16, -1, -1)))
    with pytest.raises(ValueError, match=r"has \d tokens, but \d were planned"):
        to_dataset(plan, other)


def test_samples_can_be_pickled() -> None:
    samples = pickle.loads(pickle.dumps(HFDatasetSamples(token_dataset())))
    assert np.array_equal(samples["5"]["input_ids"], TOKENS[5])


@pytest.mark.parametrize("name", ["datasets", "pyarrow"])
def test_missing_library_is_reported_with_the_install_command(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for loaded in [module for module in sys.modules if module.partition(".")[0] == name]:
        monkeypatch.setitem(sys.modules, loaded, None)
    monkeypatch.delitem(sys.modules, "phalanx.integrations.hf_datasets")
    with pytest.raises(ModuleNotFoundError, match=rf"needs {name}.*: pip install 'phalanx\[data\]'"):
        importlib.import_module("phalanx.integrations.hf_datasets")
