"""Lines are complete after crashes and on full disks, and rotated files read as one."""

import gzip
from pathlib import Path

import pytest

from phalanx.io.append_only import AppendOnlyFile, iter_lines, read_records
from tests.helpers.file_damage import limited_file_size


def test_reopened_file_drops_an_incomplete_last_line(tmp_path: Path) -> None:
    path = tmp_path / "batch_metrics.jsonl"
    path.write_bytes(b'{"step": 10}\n{"step": 2')
    assert list(read_records(path)) == [{"step": 10}], "a reader skips the incomplete line"
    AppendOnlyFile(path).write_line('{"step": 30}')
    assert path.read_bytes() == b'{"step": 10}\n{"step": 30}\n'


def test_long_incomplete_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"kept\n" + b"x" * 200_000)
    AppendOnlyFile(path).close()
    assert path.read_bytes() == b"kept\n"
    path.write_bytes(b"x" * 200_000)
    AppendOnlyFile(path).close()
    assert path.read_bytes() == b""


@pytest.mark.parametrize("compress", [False, True])
def test_rotated_files_are_read_as_one(compress: bool, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = AppendOnlyFile(path, rotate_bytes=8, compress=compress)
    for line in ("aaa", "bbb", "ccc", "ddd", "eee"):
        file.write_line(line)
    end = ".gz" if compress else ""
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        f"metrics.0001.jsonl{end}",
        f"metrics.0002.jsonl{end}",
        "metrics.jsonl",
    ]
    assert path.read_text(encoding="utf-8") == "eee\n"
    assert list(iter_lines(path)) == ["aaa", "bbb", "ccc", "ddd", "eee"]


def test_line_longer_than_the_limit_gets_its_own_file(tmp_path: Path) -> None:
    file = AppendOnlyFile(tmp_path / "a.log", rotate_bytes=4)
    for line in ("long line", "b", "c"):
        file.write_line(line)
    assert list(iter_lines(tmp_path / "a.log")) == ["long line", "b", "c"]
    assert (tmp_path / "a.log").read_text(encoding="utf-8") == "b\nc\n"
    with pytest.raises(ValueError, match="rotate_bytes must be positive, got 0"):
        AppendOnlyFile(tmp_path / "b.log", rotate_bytes=0)


def test_interrupted_compression_is_finished(tmp_path: Path) -> None:
    lines = [str(number) for number in range(1, 10)]
    for number in lines:
        (tmp_path / f"a.000{number}.jsonl").write_text(f"{number}\n", encoding="utf-8")
        (tmp_path / f"a.000{number}.jsonl.gz").write_bytes(gzip.compress(f"{number}\n".encode()))
    assert list(iter_lines(tmp_path / "a.jsonl")) == lines, "each line once, without a current file"
    AppendOnlyFile(tmp_path / "a.jsonl", compress=True).write_line("10")
    assert [path.name for path in tmp_path.glob("*.jsonl")] == ["a.jsonl"]
    assert list(iter_lines(tmp_path / "a.jsonl")) == [*lines, "10"]


def test_line_is_written_even_if_compression_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> None:
        raise OSError(f"no room to compress {path.name}")

    file = AppendOnlyFile(tmp_path / "a.jsonl", rotate_bytes=4, compress=True)
    file.write_line("aaa")
    monkeypatch.setattr("phalanx.io.append_only._compress", full)
    with pytest.raises(OSError, match=r"no room to compress a\.0001\.jsonl"):
        file.write_line("bbb")
    monkeypatch.undo()
    file.write_line("ccc")
    assert list(iter_lines(tmp_path / "a.jsonl")) == ["aaa", "bbb", "ccc"]


def test_invalid_record_is_reported_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"step": 1}\nnonsense\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"a\.jsonl: record 2 is not valid JSON"):
        list(read_records(path))


def test_partially_written_line_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    file = AppendOnlyFile(path)
    with limited_file_size(10):
        file.write_line("12345")
        with pytest.raises(OSError, match="only 4 of 8 bytes fit on the disk"):
            file.write_line("abcdefg")
        assert path.read_bytes() == b"12345\n"
    file.write_line("abcdefg")
    assert path.read_bytes() == b"12345\nabcdefg\n"


def test_closed_file_rejects_lines(tmp_path: Path) -> None:
    file = AppendOnlyFile(tmp_path / "a")
    file.close()
    file.close()
    with pytest.raises(ValueError, match="is closed"):
        file.write_line("late")
    assert (tmp_path / "a").stat().st_size == 0


@pytest.mark.parametrize("name", ["a.jsonl", "a.0001.jsonl"])
def test_symbolic_links_are_not_followed(name: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("secret", encoding="utf-8")
    (tmp_path / name).symlink_to(target)
    with pytest.raises(OSError, match="symbolic links are not followed"):
        AppendOnlyFile(tmp_path / "a.jsonl", compress=True)
    with pytest.raises(ValueError, match="is a symbolic link, which is not followed"):
        list(iter_lines(tmp_path / "a.jsonl"))
    assert target.read_text(encoding="utf-8") == "secret", "an incomplete last line would be cut off"


def test_last_line_of_a_rotated_file_is_complete_without_a_line_break(tmp_path: Path) -> None:
    (tmp_path / "metrics.0001.jsonl").write_text('{"x": 1}')
    (tmp_path / "metrics.jsonl").write_text('{"x": 2}\n{"x":')
    assert list(iter_lines(tmp_path / "metrics.jsonl")) == ['{"x": 1}', '{"x": 2}']
