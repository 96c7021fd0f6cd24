"""Files and folders appear only when complete, and symbolic links do not redirect writes."""

import stat
from pathlib import Path

import pytest

from phalanx.io.atomic import atomic_directory, atomic_write


def fail_writing(path: Path, error: type[BaseException]) -> None:
    with atomic_write(path) as file:
        file.write(b"new")
        raise error


def fail_building(path: Path) -> None:
    with atomic_directory(path) as folder:
        (folder / "a.json").write_text("{}")
        raise RuntimeError


def build_while_another_process_creates_the_target(path: Path) -> None:
    with atomic_directory(path) as folder:
        (folder / "a").touch()
        path.mkdir()
        (path / "other").touch()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_file_appears_only_when_complete(tmp_path):
    with atomic_write(tmp_path / "plan.bin") as file:
        file.write(b"half")
        assert not (tmp_path / "plan.bin").exists()
        file.write(b" and half")
    assert (tmp_path / "plan.bin").read_bytes() == b"half and half"
    assert names(tmp_path) == ["plan.bin"]


def test_text_is_utf8_with_unix_line_ends(tmp_path):
    with atomic_write(tmp_path / "report.txt", "w") as file:
        file.write("größer\nals\n")
    assert (tmp_path / "report.txt").read_bytes() == "größer\nals\n".encode()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_error_keeps_the_old_file_and_removes_the_temporary_file(tmp_path, error):
    (tmp_path / "plan.bin").write_bytes(b"old")
    with pytest.raises(error):
        fail_writing(tmp_path / "plan.bin", error)
    assert (tmp_path / "plan.bin").read_bytes() == b"old"
    assert names(tmp_path) == ["plan.bin"]


def test_failed_rename_removes_the_temporary_file(tmp_path, monkeypatch):
    def refuse(self, target):
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="no space left"), atomic_write(tmp_path / "plan.bin") as file:
        file.write(b"new")
    assert names(tmp_path) == []


def test_written_file_has_default_permissions(tmp_path):
    (tmp_path / "ordinary").touch()
    with atomic_write(tmp_path / "written"):
        pass
    mode = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ordinary", "written")]
    assert mode[0] == mode[1]


def test_symbolic_link_is_replaced_instead_of_its_target(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    with atomic_write(tmp_path / "link", "w") as file:
        file.write("new")
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "link").read_text() == "new"
    assert (tmp_path / "target").read_text() == "old"


def test_link_to_a_folder_is_replaced_instead_of_its_target(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    with atomic_directory(tmp_path / "link") as folder:
        (folder / "a").write_text("new")
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "link" / "a").read_text() == "new"
    assert names(tmp_path / "target") == []
    assert names(tmp_path) == ["link", "target"]


def test_append_mode_is_rejected(tmp_path):
    with (
        pytest.raises(ValueError, match="mode must be 'w' or 'wb', got 'a'"),
        atomic_write(tmp_path / "log", "a"),
    ):
        pass


def test_missing_folder_and_folder_as_target_are_rejected(tmp_path):
    with (
        pytest.raises(FileNotFoundError, match="nowhere does not exist"),
        atomic_write(tmp_path / "nowhere/a"),
    ):
        pass
    with pytest.raises(IsADirectoryError, match="is a folder"), atomic_write(tmp_path):
        pass


def test_folder_appears_only_when_complete(tmp_path):
    with atomic_directory(tmp_path / "tasks") as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "a.json").write_text("{}")
        assert not (tmp_path / "tasks").exists()
    assert (tmp_path / "tasks" / "deep" / "a.json").read_text() == "{}"
    assert names(tmp_path) == ["tasks"]


def test_error_leaves_no_folder(tmp_path):
    with pytest.raises(RuntimeError):
        fail_building(tmp_path / "tasks")
    assert names(tmp_path) == []


def test_occupied_target_is_rejected_and_kept(tmp_path):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "mine").write_text("user data")
    with (
        pytest.raises(FileExistsError, match="already exists and is not empty"),
        atomic_directory(tmp_path / "tasks"),
    ):
        pytest.fail("the body must not run")
    assert (tmp_path / "tasks" / "mine").read_text() == "user data"
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match="is a file"), atomic_directory(tmp_path / "file"):
        pytest.fail("the body must not run")


def test_target_that_becomes_occupied_is_rejected_at_the_end(tmp_path):
    with pytest.raises(FileExistsError, match="not empty"):
        build_while_another_process_creates_the_target(tmp_path / "tasks")
    assert names(tmp_path) == ["tasks"]
    assert names(tmp_path / "tasks") == ["other"]


def test_empty_target_folder_is_replaced(tmp_path):
    (tmp_path / "tasks").mkdir()
    with atomic_directory(tmp_path / "tasks") as folder:
        (folder / "a").touch()
    assert names(tmp_path / "tasks") == ["a"]
