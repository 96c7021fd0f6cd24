"""Counting lengths and tokenizing files with worker processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phalanx.data import ByteTokenizer, LengthCache, TokenizeConfig, iter_lengths, tokenize_rows
from phalanx.io.worker_pool import WorkerPoolError, ordered_map, ray_cluster


def write_jsonl(path: Path, count: int, **columns: object) -> Path:
    rows = [{"id": f"s{n}", "text": "x" * (1 + n % 50), **columns} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def count(path: Path, **options: object) -> dict[str, int]:
    with contextlib.closing(iter_lengths(path, ByteTokenizer(), **options)) as parts:
        return {name: length for ids, lengths in parts for name, length in zip(ids, lengths, strict=True)}


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read files in parts of 300 bytes."""
    monkeypatch.setattr("phalanx.data.tokenization._choose_part_bytes", lambda paths, workers: 300)


def test_lengths_do_not_depend_on_workers(tmp_path: Path):
    path = write_jsonl(tmp_path / "a.jsonl", 300)
    # With an end-of-text token.
    assert count(path, workers=1) == count(path, workers=2) == {f"s{n}": 2 + n % 50 for n in range(300)}


@pytest.mark.parametrize("workers", [1, 2])
def test_lengths_do_not_depend_on_parts(tmp_path: Path, workers: int, small_parts: None):
    path = write_jsonl(tmp_path / "a.jsonl", 300)
    assert count(path, workers=workers) == {f"s{n}": 2 + n % 50 for n in range(300)}


def test_lengths_equal_the_number_of_tokens(tmp_path: Path):
    path = write_jsonl(tmp_path / "a.jsonl", 100)
    config = TokenizeConfig(add_eos=True)
    samples = {s.sample_id: s.length for s in tokenize_rows(path, ByteTokenizer(), config, workers=2)}
    with contextlib.closing(iter_lengths(path, ByteTokenizer(), config, workers=1)) as parts:
        lengths = {n: x for ids, xs in parts for n, x in zip(ids, xs, strict=True)}
    assert lengths == samples


@pytest.mark.parametrize("workers", [1, 2])
def test_invalid_row_is_reported_with_its_line(tmp_path: Path, workers: int, small_parts: None):
    path = write_jsonl(tmp_path / "a.jsonl", 120)
    lines = path.read_text().splitlines()
    lines[90] = '{"id": "s90"}'
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=r"a\.jsonl:91: the row needs a text in 'text'"):
        count(path, workers=workers)


@pytest.mark.parametrize("workers", [1, 2])
def test_duplicate_id_is_reported_with_both_lines(tmp_path: Path, workers: int, small_parts: None):
    path = write_jsonl(tmp_path / "a.jsonl", 120)
    lines = path.read_text().splitlines()
    lines[100] = '{"id": "s3", "text": "x"}'
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=r"a\.jsonl:101: sample id 's3' is already used at .*a\.jsonl:4"):
        count(path, workers=workers)


def _die(item: int) -> int:
    if item == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def test_killed_worker_raises_error():
    with pytest.raises(WorkerPoolError, match="a worker process died"):
        list(ordered_map(_die, range(8), workers=2))


def test_results_are_in_order():
    assert list(ordered_map(abs, range(-50, 0), workers=2)) == list(range(50, 0, -1))


PROGRAM = """
import os, sys, time
from phalanx.io.worker_pool import ordered_map

def work(item):
    print(os.getpid(), flush=True)
    time.sleep(60)

if __name__ == "__main__":
    list(ordered_map(work, range(2), workers=2))
"""


def test_workers_exit_when_their_parent_is_killed(tmp_path: Path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    workers = [int(parent.stdout.readline()) for _ in range(2)]
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20
    while any(_is_running(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(_is_running(pid) for pid in workers)
    parent.stdout.close()


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_cache_of_several_files_does_not_depend_on_workers(tmp_path: Path, small_parts: None):
    first, second = write_jsonl(tmp_path / "b.jsonl", 80), tmp_path / "a.txt"
    second.write_text("".join(f"line {n}\n" for n in range(70)))
    caches = []
    for workers in (1, 2):
        path = tmp_path / f"lengths{workers}.jsonl"
        with (
            LengthCache.create(path, "bytes") as cache,
            contextlib.closing(iter_lengths([first, second], ByteTokenizer(), workers=workers)) as parts,
        ):
            for ids, lengths in parts:
                cache.add_many(ids, lengths)
        caches.append(path.read_bytes())
    assert caches[0] == caches[1]
    assert list(LengthCache.load(tmp_path / "lengths1.jsonl").ids)[78:82] == ["s78", "s79", "80", "81"]


def test_workers_exit_when_the_generator_is_closed():
    results = ordered_map(_pid, range(40), workers=2)
    pids = {next(results) for _ in range(10)}
    results.close()
    deadline = time.monotonic() + 20
    while any(_is_running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert pids and not any(_is_running(pid) for pid in pids)


def _pid(item: int) -> int:
    return os.getpid()


def _fail(item: int) -> int:
    raise KeyError(f"item {item}")


@pytest.mark.parametrize("workers", [1, 2])
def test_error_in_a_worker_is_raised(workers: int):
    with pytest.raises(KeyError, match="item 0"):
        list(ordered_map(_fail, range(4), workers=workers))


def test_empty_file_has_no_lengths(tmp_path: Path):
    (tmp_path / "a.jsonl").touch()
    assert count(tmp_path / "a.jsonl", workers=1) == {}


@pytest.mark.parametrize("workers", [1, 2])
def test_tokenization_does_not_depend_on_workers(tmp_path: Path, workers: int):
    path = write_jsonl(tmp_path / "a.jsonl", 90)
    config = TokenizeConfig(add_eos=True)
    expected = list(tokenize_rows(path, ByteTokenizer(), config, workers=1))
    assert list(tokenize_rows(path, ByteTokenizer(), config, workers=workers)) == expected


def test_unreachable_cluster_is_reported_quickly():
    pytest.importorskip("ray")
    begin = time.monotonic()
    with (
        pytest.raises(WorkerPoolError, match=r"cannot reach the Ray cluster at 127\.0\.0\.1:1:"),
        ray_cluster("127.0.0.1:1"),
    ):
        pass
    assert time.monotonic() - begin < 15


def test_missing_ray_is_reported_with_the_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install .*phalanx\[ray\]"):
        count(write_jsonl(tmp_path / "a.jsonl", 3), use_ray=True)
