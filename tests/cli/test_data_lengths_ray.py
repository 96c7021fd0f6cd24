"""`phalanx data lengths build --ray`: the same cache as without Ray, and error messages."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ray = pytest.importorskip("ray")


@pytest.fixture(autouse=True)
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty texts of 1 to 50 bytes, in one file and in a folder of five files."""
    monkeypatch.chdir(tmp_path)
    rows = [json.dumps({"id": f"s{size}", "text": "x" * size}) + "\n" for size in range(1, 51)]
    Path("train.jsonl").write_text("".join(rows))
    Path("train").mkdir()
    for number in range(5):
        Path(f"train/{number}.jsonl").write_text("".join(rows[10 * number : 10 * number + 10]))


def build(phalanx, output: str, *more: object):
    return phalanx("data", "lengths", "build", "--dataset", "train.jsonl", "--output", output, *more)


def test_ray_builds_the_same_cache_and_leaves_nothing_running(phalanx):
    assert build(phalanx, "without.jsonl").code == 0
    # Each file is a task of its own, so the order of the results is checked as well.
    folder = ("data", "lengths", "build", "--dataset", "train", "--output", "with.jsonl")
    result = phalanx(*folder, "--ray", "--workers", "2")
    assert result.code == 0
    # Ray takes its time to start: a slow machine says how far it is.
    assert all(line.startswith("tokenizing: ") for line in result.err.splitlines())
    assert result.out == "with.jsonl: 50 samples, 1,325 tokens (bytes)\n"
    assert Path("with.jsonl").read_bytes() == Path("without.jsonl").read_bytes()
    assert not ray.is_initialized()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--ray-address", "auto"), "--ray-address needs --ray"),
        (("--ray", "--split", "a"), "train.jsonl has no splits"),
    ],
)
def test_conflicting_options_are_rejected(phalanx, options, complaint):
    result = build(phalanx, "lengths.jsonl", *options)
    assert (result.code, result.out) == (2, "")
    assert complaint in result.err
    assert not Path("lengths.jsonl").exists()


def test_missing_dataset_is_rejected_before_ray_starts(phalanx):
    result = phalanx("data", "lengths", "build", "-d", "none.jsonl", "-o", "lengths.jsonl", "--ray")
    assert (result.code, result.err) == (2, "phalanx: there is no dataset none.jsonl\n")
