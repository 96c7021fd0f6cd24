"""Files and folders appear whole or not at all."""

import hashlib
import json
import stat
from pathlib import Path

import numpy as np
import pytest

from phalanx.io.files import (
    CorruptFileError,
    atomic_directory,
    atomic_write,
    open_verified,
    read_verified,
    read_verified_json,
    write_json,
)


def fail_writing(path: Path, error: type[BaseException]) -> None:
    with atomic_write(path) as file:
        file.write(b"new")
        raise error


def fail_building(path: Path) -> None:
    with atomic_directory(path) as folder:
        (folder / "a.json").write_text("{}")
        raise RuntimeError


def build_beside_a_rival(path: Path) -> None:
    with atomic_directory(path) as folder:
        (folder / "a").touch()
        path.mkdir()
        (path / "rival").touch()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_under_its_name_only_when_it_is_whole(tmp_path):
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
def test_an_error_leaves_the_old_file_whole_and_nothing_behind(tmp_path, error):
    (tmp_path / "plan.bin").write_bytes(b"old")
    with pytest.raises(error):
        fail_writing(tmp_path / "plan.bin", error)
    assert (tmp_path / "plan.bin").read_bytes() == b"old"
    assert names(tmp_path) == ["plan.bin"]


def test_a_rename_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def refuse(self, target):
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="no space left"), atomic_write(tmp_path / "plan.bin") as file:
        file.write(b"new")
    assert names(tmp_path) == []


def test_a_written_file_has_ordinary_permissions(tmp_path):
    (tmp_path / "ordinary").touch()
    with atomic_write(tmp_path / "written"):
        pass
    mode = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ordinary", "written")]
    assert mode[0] == mode[1]


def test_writing_through_a_link_replaces_what_it_points_at(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    with atomic_write(tmp_path / "link", "w") as file:
        file.write("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_appending_is_refused(tmp_path):
    with pytest.raises(ValueError, match="mode must be 'w' or 'wb', got 'a'"):
        atomic_write.__wrapped__(tmp_path / "log", "a")


def test_a_missing_folder_and_a_folder_as_target_are_named(tmp_path):
    with (
        pytest.raises(FileNotFoundError, match="nowhere does not exist"),
        atomic_write(tmp_path / "nowhere/a"),
    ):
        pass
    with pytest.raises(IsADirectoryError, match="is a folder"), atomic_write(tmp_path):
        pass


def test_a_folder_appears_only_when_it_is_whole(tmp_path):
    with atomic_directory(tmp_path / "tasks") as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "a.json").write_text("{}")
        assert not (tmp_path / "tasks").exists()
    assert (tmp_path / "tasks" / "deep" / "a.json").read_text() == "{}"
    assert names(tmp_path) == ["tasks"]


def test_an_error_leaves_no_folder(tmp_path):
    with pytest.raises(RuntimeError):
        fail_building(tmp_path / "tasks")
    assert names(tmp_path) == []


def test_an_occupied_target_is_refused_and_kept(tmp_path):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "mine").write_text("precious")
    with (
        pytest.raises(FileExistsError, match="already exists and is not empty"),
        atomic_directory(tmp_path / "tasks"),
    ):
        pytest.fail("the body must not run")
    assert (tmp_path / "tasks" / "mine").read_text() == "precious"
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match="is a file"), atomic_directory(tmp_path / "file"):
        pytest.fail("the body must not run")


def test_a_target_that_fills_up_meanwhile_is_refused_at_the_end(tmp_path):
    with pytest.raises(FileExistsError, match="not empty"):
        build_beside_a_rival(tmp_path / "tasks")
    assert names(tmp_path) == ["tasks"]
    assert names(tmp_path / "tasks") == ["rival"]


def test_an_empty_target_is_taken(tmp_path):
    (tmp_path / "tasks").mkdir()
    with atomic_directory(tmp_path / "tasks") as folder:
        (folder / "a").touch()
    assert names(tmp_path / "tasks") == ["a"]


def test_a_folder_that_is_replaced_changes_places_at_once(tmp_path):
    for text in ("old", "new"):
        with atomic_directory(tmp_path / "tasks", replace=True) as folder:
            (folder / "a").write_text(text)
    assert (tmp_path / "tasks" / "a").read_text() == "new"
    assert names(tmp_path) == ["tasks"]


def test_where_the_system_cannot_exchange_folders_they_are_renamed(tmp_path, monkeypatch):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "a").write_text("old")
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: object())
    with atomic_directory(tmp_path / "tasks", replace=True) as folder:
        (folder / "a").write_text("new")
    assert (tmp_path / "tasks" / "a").read_text() == "new"
    assert names(tmp_path) == ["tasks"]


def test_a_seal_is_the_digest_of_the_file_with_zeros_for_its_digits(tmp_path):
    with atomic_write(tmp_path / "a", sealed=True) as file:
        file.write(b"content")
    data = read_verified(tmp_path / "a")
    mark = b"contentphalanx-sha256:"
    assert data == mark + hashlib.sha256(mark + b"0" * 64).hexdigest().encode()


def test_a_sealed_json_file_is_json_for_everybody(tmp_path):
    record = {"a": [1, 2], "text": "phalanx-sha256:" + "0" * 64}
    with atomic_write(tmp_path / "a.json", "w", sealed=True) as file:
        write_json(file, record)
    assert read_verified_json(tmp_path / "a.json") == record
    assert json.loads((tmp_path / "a.json").read_text()).keys() == {"a", "text", "seal"}


def test_sealed_arrays_are_arrays_for_everybody(tmp_path):
    for values in (np.arange(5), np.frombuffer(b"phalanx-sha256:" + b"0" * 64, np.uint8)):
        with atomic_write(tmp_path / "a.npz", sealed=True) as file:
            np.savez(file, values=values)
        with open_verified(tmp_path / "a.npz"), np.load(tmp_path / "a.npz") as archive:
            np.testing.assert_array_equal(archive["values"], values)


def test_a_file_without_a_seal_and_one_that_was_changed_are_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"plain")
    with pytest.raises(CorruptFileError, match=r"a is damaged, or of an older version .* no seal; bake it"):
        read_verified(tmp_path / "a", "bake it again")
    with atomic_write(tmp_path / "b", sealed=True) as file:
        file.write(b"content" * 100_000)
    data = (tmp_path / "b").read_bytes()
    for place in (0, 300_000, len(data) - 100, len(data) - 70, len(data) - 1):
        (tmp_path / "b").write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(CorruptFileError, match="b is damaged"):
            read_verified(tmp_path / "b")
