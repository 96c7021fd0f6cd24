"""`phalanx data export`: batch files from a plan and a dataset."""

import json
from pathlib import Path

import pytest

from phalanx.data import BatchReader, load_batch_plan


@pytest.fixture(autouse=True)
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phalanx) -> None:
    """Twelve texts of 2 to 13 tokens, planned for two epochs."""
    monkeypatch.chdir(tmp_path)
    write_dataset([f"{'abcdefghijkl'[:size]}" for size in range(1, 13)])
    phalanx("data", "lengths", "build", "--dataset", "train.jsonl", "--output", "lengths.jsonl")
    options = ["--token-budget", 24, "--bucket-edges", "4,8", "--max-sample-length", 16, "--epochs", 2]
    phalanx("data", "plan", "build", "--lengths", "lengths.jsonl", *options, "--output", "plan")


def write_dataset(texts: list[str]) -> None:
    rows = [{"id": f"t{row}", "text": text} for row, text in enumerate(texts)]
    Path("train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def generate(phalanx, *more: object):
    return phalanx(
        "data",
        "export",
        "--plan",
        "plan",
        "--dataset",
        "train.jsonl",
        "--output",
        "batches",
        *more,
    )


def test_all_batches_of_all_epochs_are_written(phalanx):
    result = generate(phalanx)
    plan = load_batch_plan("plan")
    count = plan.num_batches
    assert (result.code, result.err) == (0, "")
    assert result.out == f"batches: {count} batches of plan {plan.fingerprint}\n"
    reader = BatchReader("batches")
    assert reader.verify() == count
    tokens = {}
    for batch in reader.iter_epoch(1):
        for row, name in enumerate(batch.spec.sample_ids):
            tokens[name] = batch["input_ids"][row][: batch.layout.lengths[row]].tolist()
    # Bytes are moved up by two: 0 is padding, and 1 ends a text.
    assert tokens["t2"] == [ord("a") + 2, ord("b") + 2, ord("c") + 2, 1]
    assert len(tokens) == 12


def test_json_lists_the_written_files_and_a_second_run_changes_nothing(phalanx):
    first = generate(phalanx, "--json")
    files = {path: path.stat().st_mtime_ns for path in Path("batches").rglob("*.npz")}
    second = generate(phalanx, "--json")
    assert json.loads(first.out) == json.loads(second.out)
    assert json.loads(first.out)["batches"] == len(files)
    assert {path: path.stat().st_mtime_ns for path in Path("batches").rglob("*.npz")} == files


def test_missing_batch_file_is_written_again(phalanx):
    generate(phalanx)
    lost = next(Path("batches/epoch_1").glob("*.npz"))
    lost.unlink()
    with pytest.raises(FileNotFoundError, match=lost.name):
        BatchReader("batches").verify()
    assert generate(phalanx).code == 0
    assert BatchReader("batches").verify() > 0


def test_plan_of_another_tokenizer_is_rejected(phalanx):
    result = generate(phalanx, "--tokenizer", "characters")
    assert (result.code, result.out) == (2, "")
    expected = load_batch_plan("plan").meta.tokenizer_hash
    assert f"was built with tokenizer {expected}, but 'characters' is" in result.err
    assert not Path("batches").exists()


def test_changed_dataset_is_rejected(phalanx):
    write_dataset([f"{'abcdefghijkl'[:size]}" for size in range(2, 14)])
    result = generate(phalanx)
    assert result.code == 2
    assert "were planned: the dataset, the tokenizer or a setting such as add_eos differs" in result.err


def test_sample_missing_from_the_dataset_is_reported(phalanx):
    write_dataset(["a", "ab"])
    result = generate(phalanx)
    assert result.code == 2
    assert "but the dataset does not" in result.err


def test_exported_texts_have_the_counted_lengths(phalanx):
    more = ["--no-add-eos"]
    phalanx("data", "lengths", "build", "--dataset", "train.jsonl", "--output", "without.jsonl", *more)
    options = ["--token-budget", 24, "--bucket-edges", "4,8", "--max-sample-length", 16, "--overwrite"]
    phalanx("data", "plan", "build", "--lengths", "without.jsonl", *options, "--output", "plan")
    result = generate(phalanx)
    assert (
        result.code == 2 and "with tokenizer 'bytes', but with another chat template, add_bos, " in result.err
    )
    assert generate(phalanx, *more).code == 0
    for batch in BatchReader("batches").iter_epoch(0):
        for row, length in enumerate(batch.layout.lengths.tolist()):
            assert batch["input_ids"][row, length - 1] > 1 and batch["loss_mask"][row, length - 1] == 1
