"""Lengths counted by several processes are those counted by one: the same entries, bytes and complaints."""

import asyncio
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.data import (
    ByteTokenizer,
    LengthCache,
    LengthWorkerError,
    TokenizeConfig,
    TokenizeStats,
    iterate_lengths,
    iterate_lengths_in_processes,
    iterate_samples,
    load_chat_template,
    tokenize_rows,
)
from phalanx.data.corpus import FilePart
from phalanx.data.processes import PartFault, in_processes
from tests.helpers.processes import DyingTokenizer, FaultyTokenizer, pid_of

pytestmark = pytest.mark.slow

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
datasets = pytest.importorskip("datasets")

Pairs = list[tuple[str, int]]


def write_lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Lines, Parquet, text and a saved dataset, under names that are relative to where one is."""
    monkeypatch.chdir(tmp_path)
    lines = write_lines(Path("a.jsonl"), *({"id": f"a{n}", "text": "é" * (n + 1)} for n in range(9)), "\n")
    table = pa.table({"id": [f"b{n}" for n in range(7)], "text": ["y" * (n + 1) for n in range(7)]})
    pq.write_table(table, "b.parquet", row_group_size=2)
    Path("c.txt").write_bytes("one\r\n\ntwo\nthrée".encode())
    saved = {"id": ["d0", "d1", "d2"], "input_ids": [[1], [1, 2], [1, 2, 3]]}
    datasets.Dataset.from_dict(saved).save_to_disk("d")
    return [lines, Path("b.parquet"), Path("c.txt"), Path("d")]


def joined(batches: Iterator[tuple[list[str], list[int]]]) -> Pairs:
    return [pair for ids, lengths in batches for pair in zip(ids, lengths, strict=True)]


def counted(paths: Any, workers: int = 2, part_bytes: int = 60, **more: Any) -> Pairs:
    return joined(
        iterate_lengths_in_processes(paths, ByteTokenizer(), workers=workers, part_bytes=part_bytes, **more)
    )


def plain(paths: Any) -> Pairs:
    return joined(iterate_lengths(iterate_samples(paths), ByteTokenizer()))


def cache_bytes(path: Path, batches: Iterator[tuple[list[str], list[int]]]) -> bytes:
    async def add() -> None:
        async with LengthCache.create(path, "t") as cache:
            for ids, lengths in batches:
                await cache.add_many(ids, lengths)

    asyncio.run(add())
    return path.read_bytes()


def test_several_files_are_counted_in_their_order_and_make_the_same_cache(files: list[Path]) -> None:
    told: list[tuple[int, int]] = []
    many = list(
        iterate_lengths_in_processes(
            files,
            ByteTokenizer(),
            workers=2,
            part_bytes=60,
            on_bytes=lambda done, total: told.append((done, total)),
        )
    )
    found = joined(iter(many))
    assert found[:2] == [("a0", 2), ("a1", 4)] and found[-3:] == [("d0", 1), ("d1", 2), ("d2", 3)]
    assert found[16:19] == [("16", 3), ("17", 3), ("18", 6)]  # lines of a text are known by their number
    assert found == plain(files) == counted(files, 1)
    assert told == sorted(told) and told[0][0] == 0 and told[-1][0] == told[-1][1] > 200
    for name in ("x.jsonl", "x.npz"):
        one = cache_bytes(Path(f"one-{name}"), iterate_lengths(iterate_samples(files), ByteTokenizer()))
        assert cache_bytes(Path(f"many-{name}"), iter(many)) == one


GOOD = [{"id": f"s{n}", "text": "some text"} for n in range(8)]


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([*GOOD, "\n", '{"id": "z", "te\n'], "e.jsonl:10: not a JSON object"),
        ([*GOOD, "\n", {"id": "s1", "text": "x"}], "e.jsonl:10: sample id 's1' is at e.jsonl:2 already"),
        ([*GOOD, {"id": "a3", "text": "x"}], "e.jsonl:9: sample id 'a3' is at a.jsonl:4 already"),
        ([*GOOD, {"text": "x"}], "e.jsonl:9: this row has no id, but the rows before it have one"),
        ([*GOOD, {"id": "z", "text": ""}], "e.jsonl:9: sample 'z' has no tokens; leave it out"),
        ([{"id": "17", "text": "x"}], "e.jsonl:1: sample id '17' is the number of a row without an id"),
    ],
)
def test_a_bad_row_is_named_as_by_one_process(files: list[Path], rows: list[Any], complaint: str) -> None:
    paths = [*files, write_lines(Path("e.jsonl"), *rows)]
    with pytest.raises(ValueError) as one:
        plain(paths)
    # Whoever counts, ids are looked at here: two workers only where one of them meets the fault.
    with pytest.raises(ValueError) as many:
        counted(paths, 2 if "JSON" in complaint else 1, 400)
    assert str(many.value) == str(one.value) and str(one.value).startswith(complaint)


def test_a_worker_that_dies_or_fails_is_told(tmp_path: Path) -> None:
    rows = [{"id": "a", "text": "one"}, {"id": "b", "text": "two"}, {"id": "c", "text": "deadly"}]
    dataset = write_lines(tmp_path / "a.jsonl", *rows)
    batches = iterate_lengths_in_processes(dataset, DyingTokenizer(), workers=2, part_bytes=30)
    assert next(batches) == (["a", "b"], [3, 3])
    with pytest.raises(
        LengthWorkerError, match=r"killed by SIGKILL while it read .*a.jsonl; what was counted"
    ):
        list(batches)
    with pytest.raises(TypeError, match="texts must be singing"):
        joined(iterate_lengths_in_processes(dataset, FaultyTokenizer(), workers=2, part_bytes=30))
    local = ByteTokenizer()
    local.hook = lambda: None  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"cannot be sent to other processes .*; use one worker"):
        joined(iterate_lengths_in_processes(dataset, local, workers=2, part_bytes=30))


def test_results_keep_their_order_and_workers_end_with_the_generator() -> None:
    parts = [FilePart("a.jsonl", n, n + 1) for n in range(20)]
    found = in_processes(pid_of, parts, 2)
    pids = {next(found) for _ in range(5)}
    assert os.getpid() not in pids and all(Path(f"/proc/{pid}").exists() for pid in pids)
    rest = list(found)
    assert rest[2] == PartFault("RuntimeError: seven") and len(rest) == 15
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    again = in_processes(functools.partial(pid_of), parts, 2)
    alive = next(again)
    again.close()
    assert not Path(f"/proc/{alive}").exists()


@pytest.fixture(scope="module")
def megabytes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A corpus that takes a while, and its cache as one process writes it."""
    folder = tmp_path_factory.mktemp("corpus")
    lines = "".join(json.dumps({"text": "word " * (n % 50 + 1)}) + "\n" for n in range(20_000))
    (folder / "a.jsonl").write_text(lines * 4)
    lengths = iterate_lengths(iterate_samples(folder / "a.jsonl"), ByteTokenizer())
    written = cache_bytes(folder / "one.jsonl", lengths)
    return folder / "a.jsonl", written.replace(b'"t"', f'"{ByteTokenizer().tokenizer_hash}"'.encode())


def child_pids(pid: int) -> set[int]:
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(text.rpartition(") ")[2].split()[1]) == pid:
            found.add(int(stat.parent.name))
    return found


@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_build_keeps_whole_lines_ends_its_workers_and_goes_on(
    tmp_path: Path, way: int, megabytes: tuple[Path, bytes]
) -> None:
    (dataset, expected), cache = megabytes, tmp_path / "lengths.jsonl"
    command = [sys.executable, "-m", "phalanx", "data", "lengths", "build", str(dataset), "-o", str(cache)]
    command += ["--workers", "2"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        deadline = time.monotonic() + 120
        while not (cache.exists() and cache.stat().st_size) and run.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        children = child_pids(run.pid)
        if way == signal.SIGINT:
            os.killpg(run.pid, way)  # as a terminal does: to all of them
        else:
            run.kill()
        said = run.communicate(timeout=120)[1]
    assert run.returncode == (130 if way == signal.SIGINT else -signal.SIGKILL)
    assert "Traceback" not in said
    deadline = time.monotonic() + 120
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline, "a worker outlived the command"
        time.sleep(0.02)
    assert len(children) >= 2
    again = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    assert cache.read_bytes() == expected


CHAT = [
    {
        "messages": [
            {"role": "user", "content": "?" * (n + 1)},
            {"role": "assistant", "content": "!" * (n + 1)},
        ]
    }
    for n in range(40)
]


@pytest.fixture
def smaller_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.data.processes._SMALLEST_PART", 500)


def test_several_workers_tokenize_fine_tuning_files_as_one_does(tmp_path: Path, smaller_parts: None) -> None:
    first = write_lines(tmp_path / "a.jsonl", *CHAT)
    second = write_lines(tmp_path / "b.jsonl", *({"id": f"b{n}", **row} for n, row in enumerate(CHAT[:9])))
    config = TokenizeConfig(max_length=90, truncation="skip")
    chat = load_chat_template("bytes", "chatml")
    results = []
    for workers in (1, 2):
        counts, rows = TokenizeStats(), []
        found = tokenize_rows(
            [first, second],
            ByteTokenizer(),
            config,
            chat=chat,
            counts=counts,
            on_rows=rows.append,
            workers=workers,
        )
        results.append((list(found), counts, sum(rows)))
    assert results[0] == results[1]
    assert results[0][2] == 49 and len(results[0][1].skipped) > 5
    with pytest.raises(ValueError, match="rows in memory and streams are for workers=1"):
        next(tokenize_rows(CHAT, ByteTokenizer(), config, chat=chat, workers=2))


@pytest.mark.parametrize("bad", [{"id": "b2", **CHAT[0]}, {"id": "z", "messages": "hello"}])
def test_a_bad_row_of_fine_tuning_data_is_named_as_by_one(
    tmp_path: Path, smaller_parts: None, bad: dict[str, Any]
) -> None:
    rows = [{"id": f"b{n}", **row} for n, row in enumerate(CHAT)]
    dataset = write_lines(tmp_path / "b.jsonl", *rows, bad)
    said = []
    for workers in (1, 2):
        with pytest.raises(ValueError) as told:
            list(
                tokenize_rows(
                    dataset,
                    ByteTokenizer(),
                    TokenizeConfig(template="chat"),
                    chat=load_chat_template("bytes", "chatml"),
                    workers=workers,
                )
            )
        said.append(str(told.value))
    assert said[0] == said[1] and said[0].startswith(f"{dataset}:41: ")
