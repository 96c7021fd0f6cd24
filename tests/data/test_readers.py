"""Datasets as samples: JSON lines, Parquet, saved datasets; and tokenizing them."""

import json
from pathlib import Path
from typing import Any

import pytest

from phalanx.data import ByteTokenizer, SourceSample, iterate_lengths, iterate_samples, tokenize_samples

ROWS = [{"id": "a", "text": "Hi"}, {"id": "b", "text": "you"}]


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pa.Table.from_pylist(rows), path)
    return path


def texts(path: Path, **options: str) -> list[tuple[str, str | None]]:
    return [(sample.sample_id, sample.text) for sample in iterate_samples(path, **options)]


def test_json_lines_are_samples_in_their_order(tmp_path: Path) -> None:
    assert texts(jsonl(tmp_path / "t.jsonl", ROWS)) == [("a", "Hi"), ("b", "you")]


def test_parquet_rows_are_samples_in_their_order(tmp_path: Path) -> None:
    assert texts(parquet(tmp_path / "t.parquet", ROWS)) == [("a", "Hi"), ("b", "you")]


def test_a_saved_dataset_is_read_and_a_split_chosen(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    data = datasets.Dataset.from_list(ROWS)
    data.save_to_disk(tmp_path / "one")
    assert texts(tmp_path / "one") == [("a", "Hi"), ("b", "you")]
    datasets.DatasetDict(train=data, test=data.select([1])).save_to_disk(tmp_path / "two")
    assert texts(tmp_path / "two", split="test") == [("b", "you")]
    with pytest.raises(ValueError, match="has the splits train, test; choose one"):
        texts(tmp_path / "two")
    with pytest.raises(ValueError, match="has no splits"):
        texts(tmp_path / "one", split="train")


def test_the_files_of_a_folder_are_read_one_after_another(tmp_path: Path) -> None:
    jsonl(tmp_path / "2.jsonl", [{"id": "b", "text": "2"}])
    jsonl(tmp_path / "1.jsonl", [{"id": "a", "text": "1"}])
    (tmp_path / "notes.txt").write_text("not data")
    assert texts(tmp_path) == [("a", "1"), ("b", "2")]


def test_integer_ids_become_text_and_sample_id_is_an_id_too(tmp_path: Path) -> None:
    rows = [{"id": 0, "text": "x"}, {"sample_id": "s", "text": "y"}]
    assert texts(jsonl(tmp_path / "t.jsonl", rows)) == [("0", "x"), ("s", "y")]


def test_rows_without_ids_are_known_by_their_number(tmp_path: Path) -> None:
    assert texts(jsonl(tmp_path / "t.jsonl", [{"text": "x"}, {"text": "y"}])) == [("0", "x"), ("1", "y")]


def test_another_column_can_hold_the_text(tmp_path: Path) -> None:
    rows = [{"id": "a", "content": "x", "text": 5}]
    assert texts(jsonl(tmp_path / "t.jsonl", rows), text_field="content") == [("a", "x")]


def test_rows_may_hold_tokens_in_place_of_text(tmp_path: Path) -> None:
    rows = [{"id": "a", "input_ids": [5, 6], "loss_mask": [0, 1]}, {"id": "b", "input_ids": [7]}]
    for path in (jsonl(tmp_path / "t.jsonl", rows), parquet(tmp_path / "t.parquet", rows)):
        found = list(tokenize_samples(iterate_samples(path), ByteTokenizer()))
        assert [(s.sample_id, s.input_ids, s.loss_mask) for s in found] == [
            ("a", [5, 6], [0, 1]),
            ("b", [7], [1]),
        ]


@pytest.mark.parametrize(
    ("rows", "line", "message"),
    [
        ([ROWS[0], {"id": "b"}], 2, "a sample needs a text in 'text' or input_ids; it has id"),
        ([{"id": "b", "text": None}], 1, "'text' is None"),
        ([ROWS[0], ROWS[1], ROWS[0]], 3, r"sample id 'a' is at .*t\.jsonl:1 already"),
        ([ROWS[0], {"text": "x"}], 2, "this row has no id, but the rows before it have one"),
        ([{"text": "x"}, ROWS[0]], 2, "this row has an id, but the rows before it have none"),
        ([{"id": 1.5, "text": "x"}], 1, "sample id must be"),
        ([{"id": "a", "input_ids": [1, 2], "loss_mask": [1]}], 1, "2 input_ids but 1 entries"),
        ([{"id": "a", "input_ids": [1, 2], "loss_mask": [1, 3]}], 1, "entry 1 of loss_mask must be 0 or 1"),
        ([{"id": "a", "input_ids": [1, "2"]}], 1, "input_ids must be a list of integers"),
        ([ROWS[0], [1]], 2, "expected a JSON object"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(
    tmp_path: Path, rows: list[Any], line: int, message: str
) -> None:
    with pytest.raises(ValueError, match=rf"t\.jsonl:{line}: .*{message}"):
        texts(jsonl(tmp_path / "t.jsonl", rows))


def test_a_cut_off_last_line_is_said_to_be_one(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "t.jsonl", ROWS)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"t\.jsonl:2: not a JSON object \(the last line is cut off\)"):
        texts(path)


def test_a_bad_parquet_row_is_named_by_file_and_row(tmp_path: Path) -> None:
    path = parquet(tmp_path / "t.parquet", [ROWS[0], {"id": "b", "text": None}])
    with pytest.raises(ValueError, match=r"t\.parquet: row 1: a sample needs a text"):
        texts(path)


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    path = parquet(tmp_path / "t.parquet", ROWS)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ValueError, match=r"t\.parquet: not a whole Parquet file"):
        texts(path)


def test_without_its_library_a_format_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(b"")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.ipc", None)
    with pytest.raises(ImportError, match=r"pip install 'phalanx\[data\]'"):
        texts(path)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "dataset_info.json").write_text("{}")
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'phalanx\[data\]'"):
        texts(tmp_path / "saved")


def test_a_dataset_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no dataset"):
        texts(tmp_path / "t.jsonl")
    with pytest.raises(ValueError, match=r"holds no \.parquet or \.jsonl file"):
        texts(tmp_path)


def test_lengths_are_counted_without_keeping_tokens(tmp_path: Path) -> None:
    rows = [{"id": "a", "text": "Hi"}, {"id": "b", "input_ids": [1, 2, 3]}, {"id": "c", "text": "ü"}]
    path = jsonl(tmp_path / "t.jsonl", rows)
    assert list(iterate_lengths(iterate_samples(path), ByteTokenizer())) == [(["a", "b", "c"], [2, 3, 2])]


def test_a_sample_without_tokens_is_an_error_or_is_reported(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "t.jsonl", [{"id": "a", "text": ""}, {"id": "b", "text": "x"}])
    with pytest.raises(ValueError, match=r"t\.jsonl:1: sample 'a' has no tokens"):
        list(iterate_lengths(iterate_samples(path), ByteTokenizer()))
    left_out: list[SourceSample] = []
    found = list(iterate_lengths(iterate_samples(path), ByteTokenizer(), left_out.append))
    assert found == [(["b"], [1])]
    assert [sample.sample_id for sample in left_out] == ["a"]
    tokenized = tokenize_samples(iterate_samples(path), ByteTokenizer(), left_out.append)
    assert [(sample.sample_id, sample.length) for sample in tokenized] == [("b", 1)]
