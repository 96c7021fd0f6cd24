"""Rows of files, folders and datasets, and the ids of their samples."""

import json
import sys
from pathlib import Path

import pytest

from phalanx.data import ByteTokenizer, TokenizeConfig, iter_rows, tokenize_rows

WITHOUT_EOS = TokenizeConfig(add_eos=False)


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def ids(*paths: Path) -> list[str]:
    return [sample.sample_id for sample in tokenize_rows(list(paths), ByteTokenizer(), WITHOUT_EOS)]


def test_rows_have_a_location(tmp_path: Path):
    path = write(tmp_path / "a.jsonl", {"id": "a", "text": "x"})
    path.write_text("\n" + path.read_text())
    assert list(iter_rows(path)) == [(f"{path}:2", {"id": "a", "text": "x"})]
    assert list(iter_rows([{"text": "x"}])) == [("row 0", {"text": "x"})]
    text = tmp_path / "b.txt"
    text.write_text("one\n\ntwo\r\n")
    assert list(iter_rows(text)) == [(f"{text}:1", {"text": "one"}), (f"{text}:3", {"text": "two"})]


def test_ids_default_to_row_numbers(tmp_path: Path):
    named = write(tmp_path / "a.jsonl", {"id": "x", "text": "a"}, {"sample_id": 0, "text": "b"})
    unnamed = write(tmp_path / "b.jsonl", {"text": "a"}, {"text": "b"})
    assert ids(named) == ["x", "0"]
    assert ids(unnamed) == ["0", "1"]
    assert ids(tmp_path) == ["x", "0", "2", "3"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"id": "a", "text": "x"}, {"text": "x"}], r":2: this row has no id, but earlier rows have one"),
        ([{"id": "a", "text": "x"}, {"id": "a", "text": "y"}], r":2: sample id 'a' is already used at .*:1"),
        ([{"id": "", "text": "x"}], "sample id must be a non-empty string or an integer"),
        ([{"id": "a", "text": 3}], r":1: the row needs a text in 'text'; 'text' is 3"),
        ([{"id": "a", "input_ids": [1, "x"]}], "input_ids must be a list of integers"),
        ([{"id": "a", "input_ids": [1], "loss_mask": [1, 1]}], "1 input_ids but 2 entries in loss_mask"),
        ([{"id": "a", "input_ids": []}], "the sample has no tokens"),
        ([[1]], "expected a JSON object"),
    ],
)
def test_invalid_rows_are_rejected(tmp_path: Path, rows: list[object], message: str):
    with pytest.raises(ValueError, match=message):
        ids(write(tmp_path / "a.jsonl", *rows))


def test_parquet_and_saved_datasets_are_read(tmp_path: Path):
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"id": ["a", "b"], "text": ["x", "yz"], "other": [1, 2]})
    dataset.to_parquet(tmp_path / "a.parquet")
    assert ids(tmp_path / "a.parquet") == ["a", "b"]
    dataset.save_to_disk(tmp_path / "saved")
    assert ids(tmp_path / "saved") == ["a", "b"]
    datasets.DatasetDict(train=dataset).save_to_disk(tmp_path / "splits")
    assert next(iter_rows(tmp_path / "splits", "train"))[0].endswith("splits[train]: row 0")
    with pytest.raises(ValueError, match="has the splits train"):
        list(iter_rows(tmp_path / "splits"))
    with pytest.raises(ValueError, match="has no splits"):
        list(iter_rows(tmp_path / "a.parquet", "train"))


def test_missing_files_are_reported(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="there is no dataset"):
        list(iter_rows(tmp_path / "nothing"))
    with pytest.raises(ValueError, match=r"has no \.parquet, \.jsonl or \.txt file"):
        list(iter_rows(tmp_path))


def test_text_column_can_be_selected(tmp_path: Path):
    path = write(tmp_path / "a.jsonl", {"id": "a", "body": "xy", "text": "ignored"})
    (sample,) = tokenize_rows(path, ByteTokenizer(), WITHOUT_EOS.model_copy(update={"text_field": "body"}))
    assert ByteTokenizer().decode(sample.input_ids) == "xy"


def test_rows_can_have_tokens_instead_of_text(tmp_path: Path):
    path = write(tmp_path / "a.jsonl", {"id": "a", "input_ids": [5, 6, 7], "labels": [-100, 6, 7]})
    (sample,) = tokenize_rows(path, ByteTokenizer(), WITHOUT_EOS)
    assert (sample.input_ids.tolist(), sample.loss_mask.tolist()) == ([5, 6, 7], [0, 1, 1])


def test_truncated_last_line_is_reported(tmp_path: Path):
    path = write(tmp_path / "a.jsonl", {"id": "a", "text": "x"})
    path.write_text(path.read_text() + '{"id": "b", "te')
    with pytest.raises(ValueError, match=r"a\.jsonl:2: .*line"):
        ids(path)


def test_invalid_parquet_file_and_row_are_reported(tmp_path: Path):
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"id": ["a", "b"], "text": ["x", None]})
    dataset.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet: row 1: the row needs a text in 'text'"):
        ids(tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"b\.parquet"):
        ids(tmp_path / "b.parquet")


def test_missing_library_is_reported_with_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "a.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r"pip install .*phalanx\["):
        ids(tmp_path / "a.parquet")
