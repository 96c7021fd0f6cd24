"""`phalanx data analyze` as text, JSON and SVG."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest


@pytest.fixture(autouse=True)
def lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten samples of 8 tokens, five of 16, one of 64."""
    monkeypatch.chdir(tmp_path)
    lengths = [8] * 10 + [16] * 5 + [64]
    rows = [{"sample_id": f"s{row}", "tokenizer_hash": "words", "length": n} for row, n in enumerate(lengths)]
    Path("lengths.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(phalanx, command: str, *more: object):
    return phalanx("data", "batching", command, "--cache", "lengths.jsonl", *more)


def is_svg(path: str) -> bool:
    return ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_analyze_compares_buckets_with_suggested_buckets_and_packing(phalanx):
    options = [
        "--bucket-edges",
        "16,32",
        "--max-sample-length",
        64,
        "--output",
        "report.json",
        "--svg",
        "a.svg",
    ]
    result = run(phalanx, "analyze", *options)
    assert (result.code, result.err) == (0, "")
    # 15 samples padded to 16 and one of 64: 224 real of 304 padded tokens.
    assert "73.7%" in result.out
    assert "No sample is in bucket 17-32" in result.out
    report = json.loads(Path("report.json").read_text())
    assert report["overall_efficiency"] == pytest.approx(224 / 304)
    # Packing: 224 tokens fill four rows of 64 but for 32 tokens.
    assert report["compared"]["packing"] == pytest.approx(224 / 256)
    assert json.loads(run(phalanx, "analyze", *options, "--json").out) == report
    assert is_svg("a.svg")


def test_histogram_has_the_requested_number_of_bars(phalanx):
    result = run(phalanx, "histogram", "--bins", 3, "--width", 10, "--svg", "h.svg")
    bars = [line for line in result.out.splitlines() if "|" in line]
    assert [bar.split("|")[1] for bar in bars] == ["##########", "          ", "#         "]
    found = json.loads(run(phalanx, "histogram", "--bins", 20, "--json").out)
    assert len(found["bins"]) == 20
    assert is_svg("h.svg")


def test_suggest_finds_edges_without_waste(phalanx):
    result = run(phalanx, "suggest", "--num-buckets", 3, "--goal", "waste", "--svg", "s.svg")
    assert result.out.splitlines() == [
        "edges              8,16",
        "max_sample_length  64",
        "goal               waste",
        "efficiency         100.00%",
        "reason             no other 3 buckets need fewer padded tokens",
    ]
    assert is_svg("s.svg")


@pytest.mark.parametrize("goal", ["waste", "balance", "memory"])
def test_suggest_supports_all_goals_and_json(phalanx, goal: str):
    found = json.loads(run(phalanx, "suggest", "--num-buckets", 2, "--goal", goal, "--json").out)
    assert found["optimization_goal"] == goal
    assert len(found["edges"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["analyze", "--bucket-edges", "32,16"], "must be strictly ascending"),
        (["analyze", "--bucket-edges", "1,2", "--max-sample-length", "4"], "all buckets are empty"),
        (["suggest", "--max-length", "4"], "every sample is longer than max_length 4"),
        (["suggest", "--goal", "speed"], "'speed' is not one of"),
        (["histogram", "--bins", "0"], "greater than or equal to 1"),
    ],
)
def test_invalid_input_exits_with_2(phalanx, arguments: list[str], message: str):
    result = run(phalanx, *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in " ".join(result.err.replace("│", "").split())


def test_output_fits_80_columns(phalanx):
    texts = [run(phalanx, *arguments).out for arguments in (["analyze"], ["histogram"], ["suggest"])]
    assert max(len(line) for text in texts for line in text.splitlines()) <= 80
