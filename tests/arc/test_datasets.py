"""Datasets are downloaded completely and validated, or not at all."""

import hashlib
import http.server
import io
import json
import stat
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.arc import datasets
from phalanx.arc.datasets import download_dataset, load_tasks
from phalanx.io import archive as archives

TASK = json.dumps({"train": [{"input": [[1]], "output": [[2]]}], "test": [{"input": [[3]]}]})
BAD_TASK = TASK.replace("2", "11")

PUBLISHED = {
    "ARC-AGI-master/README.md": "tasks",
    "ARC-AGI-master/data/training/a.json": TASK,
    "ARC-AGI-master/data/training/b.json": TASK,
    "ARC-AGI-master/data/evaluation/c.json": TASK,
}


def write_zip(path: Path, members: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return path


def write_tar(path: Path, members: dict[str, str], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


def write_folder(path: Path, members: dict[str, str]) -> Path:
    for name, text in members.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


@pytest.fixture
def data(tmp_path, monkeypatch) -> Path:
    """Return the path of the data directory, which does not exist yet."""
    folder = tmp_path / "cache/arc"
    monkeypatch.setenv("PHALANX_DATA", str(folder))
    return folder


@pytest.fixture
def scratch(tmp_path, monkeypatch) -> Iterator[Path]:
    """Return the folder for temporary files, which must be empty after the test."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def download_error(source: object, **options: str) -> str:
    """Return the error message of downloading `source`."""
    with pytest.raises((ValueError, OSError)) as caught:
        download_dataset(str(source), **options)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["zip", "tar.gz", "tar", "folder"])
def test_published_archives_and_folders_are_downloaded(tmp_path, data, scratch, kind):
    if kind == "zip":
        source = write_zip(tmp_path / "tasks.zip", PUBLISHED)
    elif kind == "folder":
        source = write_folder(tmp_path / "tasks", PUBLISHED)
    else:
        source = write_tar(tmp_path / f"tasks.{kind}", PUBLISHED, "w:gz" if kind == "tar.gz" else "w")
    assert download_dataset(str(source)) == (data / "tasks", {"training": 2, "evaluation": 1})
    assert [task.id for task in load_tasks("tasks", "all")] == ["a", "b", "c"]
    assert [path.name for path in data.iterdir()] == ["tasks"]


def test_single_file_is_a_dataset(tmp_path, data, scratch):
    source = write_folder(tmp_path, {"my-task.json": TASK}) / "my-task.json"
    assert download_dataset(str(source), "mine") == (data / "mine", {"training": 1})
    assert [task.id for task in load_tasks("mine")] == ["my-task"]


def test_file_urls_are_downloaded(tmp_path, data, scratch):
    source = write_zip(tmp_path / "my tasks.zip", PUBLISHED)
    calls = []
    folder, _ = download_dataset(
        source.as_uri(), "mine", progress=lambda done, total: calls.append((done, total))
    )
    assert folder == data / "mine"
    assert calls == [(source.stat().st_size, source.stat().st_size)]


def test_dataset_name_downloads_published_archive(tmp_path, data, scratch, monkeypatch):
    requested = []

    def fetch_source(source: str, *_: object) -> Path:
        requested.append(source)
        return write_zip(tmp_path / "master.zip", PUBLISHED)

    monkeypatch.setattr(datasets, "_fetch_source", fetch_source)
    assert download_dataset("arc-agi-1") == (data / "arc-agi-1", {"training": 2, "evaluation": 1})
    assert requested == ["https://github.com/fchollet/ARC-AGI/archive/HEAD.zip"]
    assert len(load_tasks("arc-agi-1")) == 2


def test_sha256_is_verified(tmp_path, data, scratch):
    source = write_zip(tmp_path / "tasks.zip", PUBLISHED)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    wrong = "0" * 64
    message = f"{source.as_uri()}: its SHA-256 is {digest}, expected {wrong}"
    assert download_error(source, sha256=wrong) == message
    assert download_error(source, sha256="abc") == "sha256 must be 64 hexadecimal digits, got 'abc'"
    assert "--sha256 needs a file" in download_error(write_folder(tmp_path / "f", PUBLISHED), sha256=digest)
    assert not data.parent.exists()
    download_dataset(str(source), sha256=digest.upper())


def test_invalid_task_rejects_entire_dataset(tmp_path, data, scratch):
    source = write_zip(
        tmp_path / "tasks.zip", PUBLISHED | {"ARC-AGI-master/data/evaluation/d.json": BAD_TASK}
    )
    assert download_error(source) == (
        f"{source}: ARC-AGI-master/data/evaluation/d.json: train[0].output: "
        "cell (0, 0) must be a color from 0 to 9, got 11"
    )
    assert not data.parent.exists()


def test_archive_without_tasks_is_rejected(tmp_path, data, scratch):
    source = write_zip(tmp_path / "tasks.zip", {"README.md": "nothing"})
    assert download_error(source) == f"{source}: no JSON files in it"
    assert not data.parent.exists()


@pytest.mark.parametrize(
    "name", ["../evil.json", "a/../../evil.json", "/evil.json", "C:/evil.json", "..\\evil.json"]
)
@pytest.mark.parametrize("pack", [write_zip, write_tar])
def test_members_outside_the_archive_are_rejected(tmp_path, data, scratch, name, pack):
    source = pack(tmp_path / "tasks.archive", PUBLISHED | {name: TASK})
    assert download_error(source, name="t") == f"{source}: {name!r} is outside the archive's folder"
    assert not list(tmp_path.rglob("*evil*"))
    assert not data.parent.exists()


def test_links_are_rejected(tmp_path, data, scratch):
    link = tarfile.TarInfo("link.json")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with tarfile.open(tmp_path / "tasks.tar", "w") as archive:
        archive.addfile(link)
    assert "'link.json' is a link or a device, not a file" in download_error(tmp_path / "tasks.tar")
    entry = zipfile.ZipInfo("link.json")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "tasks.zip", "w") as packed:
        packed.writestr(entry, "/etc/passwd")
    assert "'link.json' is a link or a device, not a file" in download_error(tmp_path / "tasks.zip")


def test_duplicate_member_is_rejected(tmp_path, data, scratch):
    with tarfile.open(tmp_path / "tasks.tar", "w") as archive:
        for _ in range(2):
            archive.addfile(tarfile.TarInfo("a.json"))
    assert "'a.json' occurs twice" in download_error(tmp_path / "tasks.tar")


def test_archive_above_size_limits_is_rejected(tmp_path, data, scratch, monkeypatch):
    monkeypatch.setattr(archives, "MAX_BYTES", 3 << 20)
    source = write_zip(tmp_path / "tasks.zip", {"a.json": "0" * (4 << 20)})
    assert download_error(source) == f"{source}: more than 3 MiB when extracted"
    monkeypatch.setattr(archives, "MAX_MEMBERS", 2)
    assert "more than 2 files" in download_error(write_zip(tmp_path / "many.zip", PUBLISHED))


@pytest.mark.parametrize("name", ["tasks.zip", "tasks.tar.gz"])
@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_truncated_archive_is_rejected(tmp_path, data, scratch, name, keep):
    members = {f"{i:03d}.json": TASK + " " * i for i in range(100)}
    source = (
        write_zip(tmp_path / name, members) if name.endswith("zip") else write_tar(tmp_path / name, members)
    )
    source.write_bytes(source.read_bytes()[: int(source.stat().st_size * keep)])
    assert "corrupt" in download_error(source)
    assert not data.parent.exists()


def test_flipped_bit_in_archive_is_detected(tmp_path, data, scratch):
    source = write_zip(tmp_path / "tasks.zip", {"a.json": TASK})
    content = bytearray(source.read_bytes())
    content[45] ^= 1
    source.write_bytes(content)
    assert "the archive is corrupt" in download_error(source)


def test_existing_dataset_is_not_overwritten(tmp_path, data, scratch):
    source = write_zip(tmp_path / "tasks.zip", PUBLISHED)
    write_folder(data / "tasks", {"mine.json": TASK})
    assert download_error(source) == f"{data / 'tasks'} already exists; remove it or choose another name"
    assert [task.id for task in load_tasks("tasks")] == ["mine"]


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("absent.zip", {}, "absent.zip: no such file or folder"),
        ("generated", {}, "'generated' is not a downloadable dataset"),
        ("ftp://host/a.zip", {}, "ftp://host/a.zip: the URL must start with https://, http:// or file://"),
        ("x/main.zip", {}, "'main' is the name of a branch: name the dataset with --name"),
        (
            "a.zip",
            {"name": "../up"},
            "'../up' cannot be the name of a dataset: use letters, digits, dots",
        ),
        (
            "a.zip",
            {"name": ".."},
            "'..' cannot be the name of a dataset: use letters, digits, dots",
        ),
        ("file:///absent/a.zip", {}, "file:///absent/a.zip: download failed: "),
    ],
)
def test_invalid_source_is_reported(data, scratch, source, options, message):
    assert download_error(source, **options).startswith(message)
    assert not data.parent.exists()


def test_folder_is_not_copied_into_itself(tmp_path, monkeypatch, scratch):
    monkeypatch.setenv("PHALANX_DATA", str(tmp_path / "tasks/data"))
    source = write_folder(tmp_path / "tasks", {"a.json": TASK})
    assert download_error(source) == f"{source} cannot be copied into itself, to {source / 'data/tasks'}"


class Handler(http.server.BaseHTTPRequestHandler):
    """Serve a zip file completely, truncated (/short.zip), or without a length (/stream.zip)."""

    content = b""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path not in ("/tasks.zip", "/short.zip", "/stream.zip"):
            self.send_error(404)
            return
        self.send_response(200)
        if path != "/stream.zip":
            self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content[:-10] if path == "/short.zip" else self.content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path) -> Iterator[str]:
    Handler.content = write_zip(tmp_path / "served.zip", PUBLISHED).read_bytes()
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as http_server:
        thread = threading.Thread(target=http_server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http_server.server_port}"
        http_server.shutdown()
        thread.join()


def test_http_urls_are_downloaded(data, scratch, server):
    counts = {"training": 2, "evaluation": 1}
    assert download_dataset(f"{server}/tasks.zip") == (data / "tasks", counts)
    assert download_dataset(f"{server}/stream.zip?raw=1") == (data / "stream", counts)


def test_failed_download_leaves_no_files(data, scratch, server):
    size = len(Handler.content)
    assert (
        download_error(f"{server}/short.zip")
        == f"{server}/short.zip: the connection broke after {size - 10} of {size} bytes"
    )
    assert download_error(f"{server}/none.zip") == f"{server}/none.zip: the server answered 404 Not Found"
    assert download_error("http://127.0.0.1:1/a.zip").startswith(
        "http://127.0.0.1:1/a.zip: download failed: "
    )
    assert not data.parent.exists()


def test_interrupted_download_leaves_no_files(tmp_path, data, scratch):
    def interrupt(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download_dataset(write_zip(tmp_path / "tasks.zip", PUBLISHED).as_uri(), progress=interrupt)
    assert not data.parent.exists()


def test_interrupted_validation_leaves_no_files(tmp_path, data, scratch, monkeypatch):
    def interrupt(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(datasets, "load_task_splits", interrupt)
    with pytest.raises(KeyboardInterrupt):
        download_dataset(str(write_zip(tmp_path / "tasks.zip", PUBLISHED)))
    assert not data.parent.exists()


def test_too_long_member_name_is_rejected(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "long.tar.gz", "w:gz", format=tarfile.GNU_FORMAT) as out:
        out.addfile(tarfile.TarInfo("a" * 2_000_000 + ".json"))
    message = r"long\.tar\.gz: the archive is corrupt: the name or attributes of a member .* 2,000,006"
    with pytest.raises(ValueError, match=message):
        download_dataset(str(tmp_path / "long.tar.gz"), "long", data_dir=tmp_path / "data")


def test_corrupt_header_does_not_end_tar_archive(tmp_path: Path) -> None:
    path, pair = tmp_path / "tasks.tar", {"input": [[0]], "output": [[1]]}
    with tarfile.open(path, "w") as out:
        for name in ("one", "two"):
            data = json.dumps({"train": [pair], "test": [pair]}).encode()
            member = tarfile.TarInfo(f"{name}.json")
            member.size = len(data)
            out.addfile(member, io.BytesIO(data))
    content = bytearray(path.read_bytes())
    content[1024 + 100] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"the archive is corrupt: data follows its last file"):
        download_dataset(str(path), "tasks", data_dir=tmp_path / "data")
