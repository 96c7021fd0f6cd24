"""`phalanx kg download`: conversion, digests and error messages."""

import dataclasses
import functools
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.kg import datasets as sources
from phalanx.kg.datasets import DATASETS, HOST, dataset_folder, folder_digest

SHARED = Path(__file__).parents[2].parent / "shared/data"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without logging."""

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A mirror on loopback, and the folder it serves."""
    (folder := tmp_path / "served").mkdir()
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()
        thread.join()


@pytest.fixture
def kinship(served: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Serve three files with the relation first, Windows line ends and no final line end."""
    host, folder = served
    place = folder / DATASETS["kinship"].path
    place.mkdir(parents=True)
    (place / "train.txt").write_bytes(b"aunt\tann\tbob\r\nuncle\tcid\tbob\r\n")
    (place / "valid.txt").write_bytes(b"aunt\tann\tdot")
    (place / "test.txt").write_bytes(b"uncle\tcid\tdot\n")
    (wanted := tmp_path / "wanted").mkdir()
    (wanted / "train.txt").write_text("ann\taunt\tbob\ncid\tuncle\tbob\n")
    (wanted / "valid.txt").write_text("ann\taunt\tdot\n")
    (wanted / "test.txt").write_text("cid\tuncle\tdot\n")
    known = dataclasses.replace(DATASETS["kinship"], digest=folder_digest(wanted))
    monkeypatch.setitem(sources.DATASETS, "kinship", known)
    return host


def test_downloaded_knowledge_base_is_converted(
    kinship: str, tmp_path: Path, phalanx: Callable[..., Any]
) -> None:
    done = phalanx("kg", "download", "kinship", "--to", tmp_path / "data", "--host", kinship)
    folder = tmp_path / "data/kg-standard/kinship"
    assert (done.code, done.err) == (0, "")
    assert done.out == f"{folder}: 2 facts, 0 rules, 1 valid and 1 test queries\n"
    assert (folder / "train.txt").read_text() == "ann\taunt\tbob\ncid\tuncle\tbob\n"
    again = phalanx("kg", "download", "kinship", "--to", tmp_path / "data", "--host", kinship)
    assert (again.code, "already exists; remove it" in again.err) == (2, True)


def test_other_version_is_rejected_without_the_flag(
    kinship: str, served: tuple[str, Path], tmp_path: Path, phalanx: Callable[..., Any]
) -> None:
    (served[1] / DATASETS["kinship"].path / "test.txt").write_text("uncle\tcid\tann\n")
    command = ("kg", "download", "kinship", "--to", tmp_path, "--host", kinship)
    refused = phalanx(*command)
    assert refused.code == 2
    assert "is not the expected version" in refused.err
    assert not (tmp_path / "kg-standard/kinship").exists()
    assert phalanx(*command, "--no-verify").code == 0
    assert (tmp_path / "kg-standard/kinship/test.txt").read_text() == "cid\tuncle\tann\n"


def test_failed_download_leaves_no_files(
    served: tuple[str, Path], tmp_path: Path, phalanx: Callable[..., Any]
) -> None:
    missing = phalanx("kg", "download", "umls", "--to", tmp_path, "--host", served[0])
    assert (missing.code, "train.txt: the server answered 404" in missing.err) == (2, True)
    assert not list((tmp_path / "kg-standard").iterdir())
    unknown = phalanx("kg", "download", "atlantis", "--to", tmp_path)
    assert (unknown.code, "unknown dataset 'atlantis'" in unknown.err) == (2, True)


def test_datasets_are_listed_with_their_folders(phalanx: Callable[..., Any]) -> None:
    lines = phalanx("kg", "download").out.splitlines()
    assert len(lines) == 1 + len(DATASETS)
    assert any(line.split()[:2] == ["deepprooflog/family", "data/kg/family"] for line in lines)
    assert HOST.startswith("https://")


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the published files themselves")
@pytest.mark.parametrize("name", [name for name in DATASETS if name != "fb15k-237"])
def test_digests_match_the_published_files(name: str) -> None:
    assert folder_digest(dataset_folder(name, SHARED)) == DATASETS[name].digest
