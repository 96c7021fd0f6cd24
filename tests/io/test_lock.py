"""A folder is locked by one process at a time."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from phalanx.io.lock import lock_folder


def test_second_lock_is_rejected_until_the_first_ends(tmp_path: Path) -> None:
    with (
        lock_folder(tmp_path),
        pytest.raises(ValueError, match=f"is in use by process {os.getpid()} on "),
        lock_folder(tmp_path),
    ):
        pytest.fail("the body must not run")
    with lock_folder(tmp_path):
        assert (tmp_path / "run.lock").exists()
    assert not list(tmp_path.iterdir())


def test_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "target").write_text("user data", encoding="utf-8")
    (tmp_path / "run" / "run.lock").symlink_to(tmp_path / "target")
    with pytest.raises(ValueError, match=r"run\.lock is a symbolic link"), lock_folder(tmp_path / "run"):
        pytest.fail("the body must not run")
    assert (tmp_path / "target").read_text(encoding="utf-8") == "user data"


def test_file_of_another_process_is_kept_if_locks_are_not_supported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    with lock_folder(tmp_path):
        (tmp_path / "run.lock").write_text("process 1 on another host", encoding="utf-8")
    assert (tmp_path / "run.lock").read_text(encoding="utf-8") == "process 1 on another host"
    with lock_folder(tmp_path):
        assert (tmp_path / "run.lock").read_text(encoding="utf-8").startswith(f"process {os.getpid()} on ")


def test_lock_is_released_if_its_file_cannot_be_removed(tmp_path: Path) -> None:
    lock = tmp_path / "run.lock"

    def replace_the_file() -> None:
        with lock_folder(tmp_path):
            lock.rename(tmp_path / "held")
            lock.mkdir()

    with pytest.raises(OSError, match="Is a directory"):
        replace_the_file()
    lock.rmdir()
    (tmp_path / "held").rename(lock)
    with lock_folder(tmp_path):
        assert lock.read_text(encoding="utf-8").startswith(f"process {os.getpid()} on ")
