"""Data of the report: reading of run folders, downsampling, and safety with untrusted files."""

import base64
import doctest
import html.parser
import importlib
import json
import re
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from phalanx.formatting import escape_untrusted
from phalanx.logging import FileHandler, LoggingConfig
from phalanx.logging.report import load_run, write_report
from phalanx.logging.report.charts import MAX_POINTS
from phalanx.logging.report.metric_tables import downsample_rows
from phalanx.logging.report.run_card import render_run_card
from tests.helpers.run_folders import make_run, metrics_at, write_facts, write_lines

MODULES = ("report.charts", "report.page", "report.metric_tables", "records")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "demo")


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder that is a run by its run.json and nothing else."""
    folder = tmp_path / "bare"
    folder.mkdir()
    write_facts(folder)
    return folder


def data_of(page: Path) -> dict[str, Any]:
    text = page.read_text(encoding="utf-8")
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert match
    return json.loads(match[1])


def report_of(*runs: Path) -> dict[str, Any]:
    return data_of(write_report(runs))


def chart(data: dict[str, Any], key: str) -> dict[str, Any]:
    return next(chart for chart in data["charts"] if chart["key"] == key)


def points(data: dict[str, Any], key: str, axis: str = "update", place: int = 0) -> list[tuple[Any, Any]]:
    series = chart(data, key)["series"][place]
    xs = data["axes"][series["axes"]][axis]
    return list(zip([xs[at] for at in series.get("at", range(len(xs)))], series["value"], strict=True))


def write_metrics(folder: Path, *rows: dict[str, Any], **settings: Any) -> None:
    handler = FileHandler(folder, LoggingConfig(), **settings)
    for step, metrics in enumerate(rows):
        handler.log_aggregated_metrics(metrics, step)
    handler.close()


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name: str) -> None:
    tested = doctest.testmod(importlib.import_module(f"phalanx.logging.{name}"))
    assert tested.failed == 0 and tested.attempted > 0


def test_the_page_is_self_contained(run: Path) -> None:
    page = write_report([run])
    assert page == run / "report.html"
    text = page.read_text(encoding="utf-8")
    for outside in ('src="http', 'href="http', "@import", "url(http", "fetch(", '<link rel="stylesheet'):
        assert outside not in text
    assert "{{" not in text
    assert not list(run.glob(".*tmp")), "nothing is left of the temporary file"


def test_equal_runs_give_identical_pages(run: Path, tmp_path: Path) -> None:
    first, second = (write_report([run], tmp_path / name).read_bytes() for name in ("a.html", "b.html"))
    assert first == second


def test_the_header_shows_key_figures(run: Path) -> None:
    (found,) = report_of(run)["runs"]
    assert (found["label"], found["status"], found["notes"]) == ("demo", "finished", [])
    assert {tile["label"]: tile["value"] for tile in found["tiles"]} == {
        "Success rate": "4.2% → 96.8%",
        "Environment steps": "3.28 M",
        "Updates": "200",
        "Training time": "34.0 s",
        "Steps per second": "96.4 k",
        "Parameters": "48.2 k",
    }
    assert found["subtitle"] == [
        "started 2025-10-09 10:00",
        "updated 2025-10-09 10:02",
        "Example CPU",
        "2 cores",
        "Phalanx 0.1.0",
    ]


def test_a_curve_has_the_logged_values_on_three_axes(run: Path) -> None:
    data = report_of(run)
    expected = [pytest.approx(metrics_at(update, 200)["entropy"], rel=1e-5) for update in range(0, 201, 10)]
    assert points(data, "entropy") == list(zip(range(0, 201, 10), expected, strict=True))
    assert [x for x, _ in points(data, "entropy", "steps")][:3] == [16_384, 180_224, 344_064]
    assert [x for x, _ in points(data, "entropy", "seconds")][:2] == [0.17, 1.87]
    assert not {"env_steps", "seconds"} & {chart["key"] for chart in data["charts"]}


def test_mean_std_min_and_max_share_a_chart(run: Path) -> None:
    data = report_of(run)
    (series,) = chart(data, "reward")["series"]
    assert {"value", "std", "low", "high"} <= series.keys()
    assert series["high"] == [1.2] * 21
    assert chart(data, "reward")["title"] == "Episode return, mean"
    assert not [chart["key"] for chart in data["charts"] if chart["key"].startswith("reward_")]


def test_metrics_are_assigned_to_groups(bare: Path) -> None:
    names = (
        "mrr",
        "value_loss",
        "tokens_per_second",
        "hits@10",
        "reward",
        "reward_mean",
        "reward_max",
        "a_max",
    )
    write_metrics(bare, dict.fromkeys(names, 0.5))
    groups = {found["key"]: found["group"] for found in report_of(bare)["charts"]}
    assert groups == {
        "reward": "Episodes",
        "reward_mean": "Episodes",
        "value_loss": "Optimization",
        "tokens_per_second": "Throughput",
        "mrr": "Other",
        "hits@10": "Other",
        "a_max": "Other",
    }


def test_only_fractions_are_shown_in_percent(bare: Path) -> None:
    write_metrics(bare, {"success_rate": 0.5, "learning_rate": 0.5, "clip_fraction": 0.1, "dropout_rate": 3})
    units = {found["key"]: (found["unit"], found["full_range"]) for found in report_of(bare)["charts"]}
    assert units == {
        "success_rate": ("fraction", True),
        "learning_rate": ("", False),
        "clip_fraction": ("fraction", False),
        "dropout_rate": ("", False),
    }


def test_nonfinite_values_are_gaps_and_missing_values_are_not(bare: Path) -> None:
    write_metrics(bare, {"a": 1.0, "b": 1.0}, {"a": float("nan")}, {"a": float("inf"), "b": 3.0}, {"a": 4.0})
    data = report_of(bare)
    assert points(data, "a") == [(0, 1), (1, None), (2, None), (3, 4)]
    assert points(data, "b") == [(0, 1), (2, 3)]


def test_metrics_that_are_not_numbers_are_skipped(bare: Path) -> None:
    records = [{"step": 0, "metrics": {"a": 1, "note": "x", "list": [1], "none": None, "huge": 10**400}}]
    write_lines(bare / "batch_metrics.jsonl", records)
    data = report_of(bare)
    assert [found["key"] for found in data["charts"]] == ["a", "huge"]
    assert points(data, "huge") == [(0, None)]


def test_timestamps_replace_missing_seconds(bare: Path) -> None:
    records = [{"timestamp": 100.0 + 2 * i, "step": i, "metrics": {"a": i}} for i in range(3)]
    write_lines(bare / "batch_metrics.jsonl", records)
    data = report_of(bare)
    assert points(data, "a", "seconds") == [(0, 0), (2, 1), (4, 2)]
    assert "steps" not in data["axes"][0]


def test_a_decreasing_axis_is_shown_as_a_metric(bare: Path) -> None:
    write_metrics(bare, {"seconds": 2.0}, {"seconds": 1.0})
    assert points(report_of(bare), "seconds") == [(0, 2), (1, 1)]


def test_updates_repeated_by_a_resumed_run_count_once(bare: Path) -> None:
    written = [(0, 1.0), (10, 2.0), (20, 3.0), (10, 5.0), (30, 6.0)]
    write_lines(bare / "batch_metrics.jsonl", [{"step": s, "metrics": {"a": a}} for s, a in written])
    assert points(report_of(bare), "a") == [(0, 1), (10, 5), (30, 6)]


def test_rotated_compressed_and_incomplete_files_are_read(bare: Path) -> None:
    write_metrics(bare, *({"a": float(i)} for i in range(50)), rotate_bytes=500)
    assert list(bare.glob("batch_metrics.*.jsonl.gz"))
    with (bare / "batch_metrics.jsonl").open("a") as file:
        file.write('{"step": 50, "metr')
    assert points(report_of(bare), "a") == [(i, i) for i in range(50)]


def test_invalid_lines_are_skipped_and_counted(bare: Path) -> None:
    lines = ['{"step": 0, "metrics": {"a": 1}}', "\0\0\0", '{"step": "x", "metrics": {}}', "[1]"]
    lines += ['{"step": 1, "metrics": {"a": 2}}']
    (bare / "batch_metrics.jsonl").write_text("\n".join(lines) + "\n")
    data = report_of(bare)
    assert points(data, "a") == [(0, 1), (1, 2)]
    assert data["runs"][0]["notes"][-1] == "batch_metrics.jsonl: skipped 3 invalid lines."


def test_invalid_files_are_noted(bare: Path) -> None:
    (bare / "evaluations.jsonl").write_bytes(b'{"step": 0}\n\xff\xfe\n')
    (bare / "config.yaml").write_text("a: [1\nb: }")
    (bare / "run.json").write_text("{")
    notes = " ".join(load_run(bare).notes)
    assert "evaluations.jsonl could only be read in part" in notes
    assert "config.yaml could not be read" in notes
    assert "run.json was skipped: it is not a JSON object." in notes


def test_missing_files_are_noted(bare: Path) -> None:
    assert report_of(bare)["runs"][0]["notes"] == [
        "No config.yaml.",
        "No metrics yet (batch_metrics.jsonl).",
        "No evaluations yet (evaluations.jsonl).",
        "No sampled episodes yet (episodes.jsonl, episodes/).",
    ]


def test_other_folders_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not a run folder: it contains none of run.json, batch_metrics"):
        write_report([tmp_path])
    with pytest.raises(ValueError, match="nowhere does not exist; pass a run folder"):
        write_report([tmp_path / "nowhere"])
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file is a file; pass a run folder"):
        write_report([tmp_path / "file"])
    with pytest.raises(ValueError, match="at least one run folder"):
        write_report([])


def test_evaluations_are_curves_by_mode_and_bars_by_group(run: Path) -> None:
    data = report_of(run)
    assert [series["label"] for series in chart(data, "evaluation:success_rate")["series"]] == [
        "greedy",
        "sampled",
    ]
    assert [x for x, _ in points(data, "evaluation:success_rate")] == list(range(0, 201, 20))
    # Seconds come from the metrics: update 20 was over after 21 times 0.17 seconds.
    assert [x for x, _ in points(data, "evaluation:success_rate", "seconds")][1] == 3.57
    assert points(data, "evaluation:steps_to_solve")[0] == (0, None), "nothing was solved yet"
    greedy, sampled = data["runs"][0]["groups"]
    assert (greedy["mode"], greedy["update"]) == ("greedy", 200)
    assert [row["name"] for row in greedy["rows"]] == [
        "All tasks",
        "Fill enclosed",
        "Recolor",
        "Mirror rows",
    ]
    row = greedy["rows"][2]
    assert (row["before"], row["value"]) == (pytest.approx(0.0401, abs=1e-3), pytest.approx(0.9193, abs=1e-3))
    assert list(sampled["rows"][0]["pass_at_k"]) == ["1", "8"] and greedy["rows"][0]["pass_at_k"] == {}


@pytest.mark.parametrize(
    ("record", "title"),
    [
        ({"split": "valid", "mode": "kge", "mrr": 0.25, "mrr_100": 0.5}, "MRR 100 (valid, kge)"),
        ({"split": "validation", "mode": "next token", "loss": 2.0, "mean_token_accuracy": 0.5},
         "Mean token accuracy (validation, next token)"),
        ({"split": "train", "mode": "greedy", "episode_return": 3.5}, "Episode return (train, greedy)"),
        ({"split": "valid", "mode": "heuristic", "proofs_per_expansion": 0.1},
         "Proofs per expansion (valid, heuristic)"),
    ],
    ids=["kge", "sft", "environment without success", "heuristic"],
)  # fmt: skip
def test_evaluation_metrics_of_each_algorithm_are_shown(
    record: dict[str, Any], title: str, bare: Path
) -> None:
    write_metrics(bare, {"policy_loss": 3.0})
    write_lines(bare / "evaluations.jsonl", [{**record, "step": step} for step in (0, 5)])
    data = report_of(bare)
    for name, value in record.items():
        if name not in ("split", "mode"):
            assert points(data, f"evaluation:{name}") == [(0, value), (5, value)]
    assert f"{title}, last value" in render_run_card(load_run(bare))


def test_episodes_have_frames_in_order(run: Path) -> None:
    episodes = report_of(run)["episodes"]
    assert [(e["update"], e["environment"]) for e in episodes[:4]] == [(200, 0), (200, 1), (200, 2), (100, 0)]
    first = episodes[0]
    assert (first["task"], first["solved"], first["reward"]) == ("fill_enclosed-000200", True, 0.95)
    assert [name for name, _ in first["frames"]] == ["initial", "step 1", "step 2", "step 3, final"]
    pictures = json.loads(zlib.decompress(base64.b64decode(first["images"])))
    folder = run / "episodes" / "episode_000200_env_0000"
    names = ("initial", "step_0001", "step_0002", "step_0003")
    shown = [pictures[place] for _, place in first["frames"]]
    assert shown == [(folder / f"{name}.svg").read_text() for name in names]


def test_equal_images_are_stored_once(bare: Path) -> None:
    folder = bare / "episodes" / "episode_000007_env_0001"
    folder.mkdir(parents=True)
    for name, text in {
        "initial": "A",
        "step_0001": "B",
        "step_0010": "C",
        "step_0002": "A",
        "final": "C",
    }.items():
        (folder / f"{name}.svg").write_text(f"<svg>{text}</svg>")
    (episode,) = report_of(bare)["episodes"]
    assert episode["frames"] == [["initial", 0], ["step 1", 1], ["step 2", 0], ["step 10, final", 2]]
    assert (episode["task"], episode["solved"], episode["steps"]) == (None, None, None)


def test_episodes_without_images_are_listed(bare: Path) -> None:
    record = {"episode_num": 3, "environment_id": 1, "task_id": "t", "success": False, "total_reward": "nan"}
    write_lines(bare / "episodes.jsonl", [record])
    (episode,) = report_of(bare)["episodes"]
    assert (episode["frames"], episode["solved"], episode["reward"]) == ([], False, None)


def test_only_the_newest_episodes_are_embedded(bare: Path) -> None:
    write_lines(bare / "episodes.jsonl", [{"episode_num": i, "environment_id": 0} for i in range(75)])
    data = report_of(bare)
    assert [episode["update"] for episode in data["episodes"]] == list(range(74, 14, -1))
    assert data["runs"][0]["num_omitted"] == 15
    compared = report_of(bare, bare)
    assert len(compared["episodes"]) == 60 and compared["runs"][1]["num_omitted"] == 45


def test_the_size_of_images_in_the_page_is_limited(bare: Path) -> None:
    noise = np.random.default_rng(0)
    for number in range(20):
        folder = bare / "episodes" / f"episode_{number:06d}_env_0000"
        folder.mkdir(parents=True)
        (folder / "final.svg").write_text("<svg>" + noise.bytes(200_000).hex() + "</svg>")
    page = write_report([bare])
    assert page.stat().st_size < 5_000_000
    assert 0 < data_of(page)["runs"][0]["num_omitted"] < 20


class Elements(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)


@pytest.fixture(params=["</script><b>x</b>", "<!--<script>", "{{data}}", "\u2028'\"&lt;\ud800"])
def nasty(request: pytest.FixtureRequest) -> str:
    return request.param


def test_text_in_files_cannot_become_markup(nasty: str, bare: Path) -> None:
    harmless = write_report([bare], bare / "harmless.html")
    write_facts(bare, name=nasty, status=nasty, phalanx=nasty, machine={"cpu": nasty})
    family = {nasty: {"success_rate": 0.5}}
    evaluation = {"step": 0, "split": nasty, "mode": nasty, "success_rate": 0.5, "groups": family}
    write_lines(bare / "evaluations.jsonl", [evaluation])
    write_lines(bare / "episodes.jsonl", [{"episode_num": 0, "environment_id": 0, "task_id": nasty}])
    write_lines(bare / "batch_metrics.jsonl", [{"step": 0, "metrics": {nasty: 1}}])
    (bare / "config.yaml").write_text(json.dumps({"key": nasty.replace("\ud800", "")}))
    page = write_report([bare])
    found, expected = Elements(), Elements()
    found.feed(page.read_text(encoding="utf-8"))
    expected.feed(harmless.read_text(encoding="utf-8"))
    assert found.tags == expected.tags
    data = data_of(page)
    shown = escape_untrusted(nasty, lines=True)
    assert data["episodes"][0]["task"] == shown and data["runs"][0]["label"] == shown
    assert data["runs"][0]["status"] == "unknown"


def test_untrusted_configs_cannot_read_environment_variables(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    (bare / "config.yaml").write_text("key: ${oc.env:SECRET_TOKEN}\nseed: 3\nother: ${seed}\n")
    page = write_report([bare])
    assert "hunter2" not in page.read_text()
    assert data_of(page)["runs"][0]["config"] == {
        "key": "${oc.env:SECRET_TOKEN}",
        "seed": "3",
        "other": "${seed}",
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 200_000, "nested more than 32 levels deep"),
        ("- " * 200_000, "nested more than 32 levels deep"),
        ("a: &a [1]\nb: [*a, *a]\n", "uses anchors or tags"),
        ("a: !!python/object/apply:os.system [id]\n", "uses anchors or tags"),
        ("a: " + "x" * 2_000_000, "has more than 1,048,576 bytes"),
    ],
    ids=["brackets", "dashes", "anchors", "tags", "large"],
)
def test_malicious_configs_are_skipped_with_a_note(text: str, why: str, bare: Path) -> None:
    (bare / "config.yaml").write_text(text)
    (found,) = report_of(bare)["runs"]
    assert found["config"] == {}
    assert any("config.yaml could not be read" in note and why in note for note in found["notes"])


def test_links_in_a_run_are_not_followed(bare: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"name": "hunter2", "step": 0, "metrics": {"hunter2": 1}}\n')
    (bare / "run.json").unlink()
    for name in ("run.json", "config.yaml", "batch_metrics.jsonl", "evaluations.jsonl"):
        (bare / name).symlink_to(secret)
    episode = bare / "episodes" / "episode_000001_env_0000"
    episode.mkdir(parents=True)
    (episode / "final.svg").symlink_to(secret)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "final.svg").write_text("<svg>hunter2</svg>")
    (bare / "episodes" / "episode_000002_env_0000").symlink_to(elsewhere)
    data = report_of(bare)
    assert "hunter2" not in json.dumps(data)
    assert [episode["frames"] for episode in data["episodes"]] == [[]]
    notes = " ".join(data["runs"][0]["notes"])
    for named in ("run.json was skipped", "config.yaml was skipped", "skipped 2 symbolic links"):
        assert named in notes
    assert "batch_metrics.jsonl could only be read in part: batch_metrics.jsonl is a symbolic link" in notes


def test_a_link_to_a_folder_inside_a_run_is_rejected(bare: Path, tmp_path: Path) -> None:
    elsewhere = make_run(tmp_path / "elsewhere", updates=10)
    (bare / "seed_0").symlink_to(elsewhere)
    (bare / "episodes").symlink_to(elsewhere / "episodes")
    (bare / "submissions").symlink_to(elsewhere)
    with pytest.raises(ValueError, match="seed_0 is a symbolic link inside a run folder"):
        write_report([bare / "seed_0"])
    assert not (elsewhere / "report.html").exists()
    run = load_run(bare)
    assert run.episodes == run.submissions == [] and len(run.metrics) == 0
    assert "episodes/: skipped 1 symbolic link." in run.notes


def test_a_link_to_a_run_is_followed(run: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(run)
    assert write_report([tmp_path / "latest"]) == run / "report.html"


def test_deeply_nested_and_very_long_lines_are_skipped(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.io.append_only._MAX_LINE_BYTES", 1 << 16)
    (bare / "run.json").write_text("[" * 500_000)
    (bare / "batch_metrics.jsonl").write_text('{"step": 1, "metrics": {"a": 1}}\n' + "{" * 100_000)
    (bare / "evaluations.jsonl").write_text('{"step": 1, "mode": ' + "[" * 50_000 + "\n")
    data = report_of(bare)
    assert points(data, "a") == [(1, 1)]
    notes = " ".join(data["runs"][0]["notes"])
    assert (
        "run.json was skipped: it is not a JSON object" in notes
        and "has a line of more than 65,536 bytes" in notes
    )
    assert "evaluations.jsonl: skipped 1 invalid line" in notes


def test_exact_counts_are_shown_only_if_they_differ(bare: Path) -> None:
    write_facts(bare, num_parameters=9_123, env_steps=48_200)
    tiles = {tile["label"]: tile for tile in report_of(bare)["runs"][0]["tiles"]}
    assert (tiles["Parameters"]["value"], tiles["Parameters"]["detail"]) == ("9,123", "")
    steps = tiles["Environment steps"]
    assert (steps["value"], steps["detail"]) == ("48.2 k", "48,200")


def test_compared_runs_have_distinct_names(run: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", speed=3.0, config=LoggingConfig())
    page = write_report([run, other])
    assert page == run / "compare-other.html"
    data = data_of(page)
    assert [found["label"] for found in data["runs"]] == ["demo", "other"]
    assert [series["run"] for series in chart(data, "entropy")["series"]] == [0, 1]
    series = chart(data, "evaluation:success_rate")["series"]
    assert [(s["run"], s["color"], s["dash"], s["label"]) for s in series] == [
        (0, 0, 0, "greedy"),
        (0, 0, 1, "sampled"),
        (1, 1, 0, "greedy"),
        (1, 1, 1, "sampled"),
    ]
    write_facts(other, name="demo")
    assert [found["label"] for found in report_of(run, other)["runs"]] == ["demo", "other"]
    assert [found["label"] for found in report_of(run, run)["runs"]] == ["demo (1)", "demo (2)"]


def test_the_newest_config_of_a_continued_run_is_shown(bare: Path) -> None:
    for frequency in (5, 7):
        FileHandler(bare, LoggingConfig(log_frequency=frequency)).close()
    found = load_run(bare)
    assert found.config["log_frequency"] == "7"
    assert "The run was continued with other settings; showing config.2.yaml." in found.notes


def test_long_runs_are_downsampled_in_two_seconds(bare: Path) -> None:
    rows = [metrics_at(i, 96) for i in range(97)]
    texts = [json.dumps(row) for row in rows]
    lines = [f'{{"step": {i}, "metrics": {texts[i % 97]}}}' for i in range(10_000)]
    (bare / "batch_metrics.jsonl").write_text("\n".join(lines) + "\n")
    # Of this process alone: how busy the machine is otherwise says nothing about the report.
    began = time.process_time()
    page = write_report([bare])
    assert time.process_time() - began < 2
    assert page.stat().st_size < 3_000_000
    data = data_of(page)
    for found in data["charts"]:
        assert 500 < len(found["series"][0]["value"]) <= MAX_POINTS
    values = [row["entropy"] for row in rows]
    kept = [value for _, value in points(data, "entropy")]
    assert (min(kept), max(kept)) == (
        pytest.approx(min(values), rel=1e-5),
        pytest.approx(max(values), rel=1e-5),
    )


@given(st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), min_size=1, max_size=300), st.integers(5, 60))
def test_downsampling_keeps_ends_extremes_and_gaps(values: list[float], limit: int) -> None:
    column = np.array(values)
    rows = downsample_rows([column], limit)
    assert len(rows) <= limit and (np.diff(rows) > 0).all()
    assert rows[0] == 0 and rows[-1] == len(values) - 1
    kept = column[rows]
    assert np.isnan(kept).any() == np.isnan(column).any()
    if np.isfinite(column).any():
        assert np.nanmin(kept) == np.nanmin(column) and np.nanmax(kept) == np.nanmax(column)
