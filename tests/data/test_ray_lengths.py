"""Lengths counted on Ray are those counted without it: the same entries, order, bytes and complaints."""

import asyncio
import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from phalanx.data import (
    ByteTokenizer,
    LengthCache,
    RayWorkerError,
    Tokenizer,
    iterate_lengths,
    iterate_lengths_on_ray,
    iterate_samples,
    load_tokenizer,
    ray_lengths,
)
from phalanx.data.corpus import lines_before, read_part, split_files
from phalanx.data.ray_lengths import corpus_files

pytestmark = pytest.mark.slow

ray = pytest.importorskip("ray")
pq = pytest.importorskip("pyarrow.parquet")
pa = pytest.importorskip("pyarrow")

SMALL = 40
"""Bytes in a part: a line or two."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two workers, which the tests share."""
    # The tokenizers below are known to no worker by name.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with ray_lengths.connected(ray, None, 2):
        yield


class DyingTokenizer(ByteTokenizer):
    """Takes its whole process down, as running out of memory does."""

    def count_many(self, texts: Any) -> list[int]:
        if "deadly" in texts:
            os._exit(1)
        return super().count_many(texts)


class FaultyTokenizer(ByteTokenizer):
    """Has a fault that nobody foresaw."""

    def count_many(self, texts: Any) -> list[int]:
        raise TypeError("texts must be singing")


def write_lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def named(*texts: str) -> list[dict[str, str]]:
    return [{"id": f"s{row}", "text": text} for row, text in enumerate(texts)]


def corpus(folder: Path) -> Path:
    """Two files: lines, one of them blank and one with tokens, and Parquet in row groups of two."""
    write_lines(folder / "a.jsonl", *named("x", "éé", "xxx"), "\n", {"id": 7, "input_ids": [5, 6]})
    ids, texts = [f"p{row}" for row in range(5)], ["y" * (row + 1) for row in range(5)]
    pq.write_table(pa.table({"id": ids, "text": texts}), folder / "b.parquet", row_group_size=2)
    return folder


def plain(dataset: Path, tokenizer: Tokenizer) -> list[tuple[str, int]]:
    batches = iterate_lengths(iterate_samples(dataset), tokenizer)
    return [pair for ids, lengths in batches for pair in zip(ids, lengths, strict=True)]


def on_ray(dataset: Path, tokenizer: Tokenizer, part_bytes: int | None = SMALL) -> list[tuple[str, int]]:
    batches = iterate_lengths_on_ray(dataset, tokenizer, part_bytes=part_bytes)
    return [pair for ids, lengths in batches for pair in zip(ids, lengths, strict=True)]


def fill(path: Path, batches: Iterator[tuple[list[str], list[int]]], tokenizer: Tokenizer) -> bytes:
    async def add() -> None:
        async with LengthCache.create(path, tokenizer.tokenizer_hash) as cache:
            for ids, lengths in batches:
                await cache.add_many(ids, lengths)

    asyncio.run(add())
    return path.read_bytes()


def test_lines_and_parquet_are_counted_in_their_order(cluster: None, tmp_path: Path) -> None:
    assert on_ray(corpus(tmp_path), ByteTokenizer()) == [
        ("s0", 1),
        ("s1", 4),
        ("s2", 3),
        ("7", 2),
        ("p0", 1),
        ("p1", 2),
        ("p2", 3),
        ("p3", 4),
        ("p4", 5),
    ]


@pytest.mark.parametrize("name", ["lengths.jsonl", "lengths.npz"])
def test_the_cache_is_the_same_to_the_byte(cluster: None, tmp_path: Path, name: str) -> None:
    (tmp_path / "data").mkdir()
    dataset, tokenizer = corpus(tmp_path / "data"), ByteTokenizer()
    without = fill(
        tmp_path / f"without-{name}", iterate_lengths(iterate_samples(dataset), tokenizer), tokenizer
    )
    batches = iterate_lengths_on_ray(dataset, tokenizer, part_bytes=SMALL)
    assert fill(tmp_path / f"with-{name}", batches, tokenizer) == without


def test_rows_without_ids_are_numbered_through_all_parts(cluster: None, tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", *({"text": "x" * (row + 1)} for row in range(6)))
    write_lines(tmp_path / "b.jsonl", {"text": "yyyyyyyyy"})
    assert on_ray(tmp_path, ByteTokenizer()) == [(str(row), row + 1) for row in range(6)] + [("6", 9)]


def test_a_tokenizer_file_travels_to_the_workers(cluster: None, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0, "y": 1, "?": 2}, unk_token="?"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").unlink()
    dataset = write_lines(tmp_path / "a.jsonl", *named("x y x", "y", "what is x"))
    assert on_ray(dataset, tokenizer) == [("s0", 3), ("s1", 1), ("s2", 3)]


GOOD = named("some text", "more text", "and more")


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([*GOOD, "\n", '{"id": "z", "te\n'], "a.jsonl:5: not a JSON object"),
        ([*GOOD, '{"id": "z", "te'], "a.jsonl:4: not a JSON object (the last line is cut off)"),
        ([*GOOD, "[1, 2]\n"], "a.jsonl:4: expected a JSON object, got"),
        ([*GOOD, {"id": "z", "words": "x"}], "a.jsonl:4: a sample needs a text in 'text' or input_ids"),
        (
            [*GOOD, "\n", {"id": "s1", "text": "x"}],
            "a.jsonl:5: sample id 's1' is at {folder}/a.jsonl:2 already",
        ),
        ([*GOOD, {"text": "x"}], "a.jsonl:4: this row has no id, but the rows before it have one"),
        ([*GOOD, {"id": "z", "text": ""}], "a.jsonl:4: sample 'z' has no tokens; leave it out"),
    ],
)
def test_a_bad_row_is_named_as_without_ray(
    cluster: None, tmp_path: Path, rows: list[Any], complaint: str
) -> None:
    dataset = write_lines(tmp_path / "a.jsonl", *rows)
    with pytest.raises(ValueError) as without:
        plain(dataset, ByteTokenizer())
    with pytest.raises(ValueError) as with_ray:
        on_ray(dataset, ByteTokenizer())
    assert str(with_ray.value) == str(without.value)
    assert str(with_ray.value).startswith(f"{tmp_path}/{complaint.format(folder=tmp_path)}")


def test_a_worker_that_dies_is_told_and_the_cache_keeps_what_it_had(cluster: None, tmp_path: Path) -> None:
    tokenizer = DyingTokenizer()
    dataset = write_lines(tmp_path / "a.jsonl", *named("one text", "two texts", "deadly", "three texts"))
    cache = tmp_path / "lengths.jsonl"
    before = fill(cache, iter([(["s0"], [8])]), tokenizer)
    with pytest.raises(RayWorkerError, match=r"a Ray worker failed .*died unexpectedly.*run it again"):
        fill(cache, iterate_lengths_on_ray(dataset, tokenizer, part_bytes=SMALL), tokenizer)
    assert cache.read_bytes().startswith(before)
    healed = ByteTokenizer()
    after = fill(cache, iterate_lengths_on_ray(dataset, healed, part_bytes=SMALL), healed)
    assert after == fill(tmp_path / "b.jsonl", iterate_lengths(iterate_samples(dataset), healed), healed)


def test_a_fault_of_a_tokenizer_is_told_in_its_own_words(cluster: None, tmp_path: Path) -> None:
    dataset = write_lines(tmp_path / "a.jsonl", *GOOD)
    with pytest.raises(RayWorkerError, match=r"a Ray worker failed \(TypeError: texts must be singing\)"):
        on_ray(dataset, FaultyTokenizer())


def test_an_empty_file_has_no_lengths(cluster: None, tmp_path: Path) -> None:
    assert on_ray(write_lines(tmp_path / "a.jsonl"), ByteTokenizer()) == []
    assert on_ray(write_lines(tmp_path / "b.jsonl", "\n", "\n"), ByteTokenizer(), None) == []


LINES = st.lists(st.one_of(st.just(None), st.text("xyé", max_size=30)), max_size=12)


@given(LINES, st.integers(1, 90), st.booleans())
def test_parts_of_any_size_hold_every_line_once(
    lines: list[str | None], part_bytes: int, ended: bool
) -> None:
    rows = ["\n" if text is None else json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in lines]
    data = "".join(rows)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "a.jsonl"
        file.write_bytes((data if ended else data.removesuffix("\n")).encode())
        parts = split_files([file], part_bytes)
        found = [sample for part in parts for sample in read_part(part, "text", lines_before(part) + 1)]
        assert [(sample.where, sample.text) for sample in found] == [
            (sample.where, sample.text) for sample in iterate_samples(file)
        ]


def test_row_groups_know_their_first_row(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": list("abcdefg")}), tmp_path / "b.parquet", row_group_size=3)
    parts = split_files([tmp_path / "b.parquet"], 1)
    assert [(part.begin, part.end, part.first_row) for part in parts] == [(0, 1, 0), (1, 2, 3), (2, 3, 6)]
    assert [sample.where for sample in read_part(parts[1], "text", 1)] == [
        f"{tmp_path}/b.parquet: row {row}" for row in (3, 4, 5)
    ]


def test_what_cannot_be_read_apart_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no dataset .*none"):
        corpus_files(tmp_path / "none")
    with pytest.raises(ValueError, match=r"no .parquet or .jsonl file"):
        corpus_files(tmp_path)
    (tmp_path / "dataset_info.json").touch()
    with pytest.raises(ValueError, match=r"saved by Hugging Face.*write it as Parquet"):
        corpus_files(tmp_path)
    (tmp_path / "b.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(ValueError, match=r"b.parquet: not a whole Parquet file"):
        split_files([tmp_path / "b.parquet"], 1)
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        next(iterate_lengths_on_ray(tmp_path, ByteTokenizer(), workers=0))


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    dataset = write_lines(tmp_path / "a.jsonl", *GOOD)
    with pytest.raises(ImportError, match=r"install Ray: pip install 'phalanx\[ray\]'"):
        next(iterate_lengths_on_ray(dataset, ByteTokenizer()))


class RecordingRay:
    """Ray's front door, with nobody behind it."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        self.reports = ""

    def is_initialized(self) -> bool:
        return False

    def init(self, **options: Any) -> None:
        self.options, self.reports = options, os.environ["RAY_USAGE_STATS_ENABLED"]
        if options["address"] != "local":
            raise ConnectionError("nobody answers\n  at that address")

    def shutdown(self) -> None:
        self.options = {}


def test_a_cluster_of_our_own_is_local_quiet_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    door = RecordingRay()
    with ray_lengths.connected(door, None, 3):
        assert (door.options["address"], door.options["num_cpus"]) == ("local", 3)
        assert (door.options["include_dashboard"], door.options["log_to_driver"]) == (False, False)
        assert door.reports == "0"
    assert door.options == {}
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "1"


def test_a_cluster_that_does_not_answer_is_named_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        refused = rf"cannot reach the Ray cluster at {address}: .*refused"
        with (
            pytest.raises(RayWorkerError, match=refused),
            ray_lengths.connected(RecordingRay(), address, None),
        ):
            pass


def test_a_cluster_that_refuses_says_why_and_how_a_token_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    reason = r"cannot reach the Ray cluster at auto: nobody answers at that address; if .* RAY_AUTH_TOKEN"
    with pytest.raises(RayWorkerError, match=reason), ray_lengths.connected(RecordingRay(), "auto", None):
        pass
    assert "RAY_USAGE_STATS_ENABLED" not in os.environ
