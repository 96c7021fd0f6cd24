"""The report of a run with several seeds."""

import json
from pathlib import Path

import numpy as np
import pytest

from phalanx.logging import FileHandler, LoggingConfig
from phalanx.logging.report import build_page, load_run
from phalanx.logging.report.page import page_data


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three seeds that end at 20, 50 and 80 % solved."""
    for seed, end in enumerate((0.2, 0.5, 0.8)):
        folder = tmp_path / "run" / f"seed_{seed}"
        handler = FileHandler(folder, LoggingConfig())
        for step in (1, 2, 3):
            metrics = {"loss": 1.0 / step + seed, "reward_mean": seed, "reward_std": 1.0, "reward_min": -1.0}
            handler.log_aggregated_metrics({**metrics, "env_steps": 10 * step}, step)
        for step, rate in ((0, 0.0), (3, end)):
            groups = {"gravity": {"success_rate": rate, "num_episodes": 4}}
            scores = {"success_rate": rate, "similarity": rate, "groups": groups, "num_episodes": 4}
            handler.log_evaluation({"step": step, "split": "held-out", "mode": "greedy", **scores})
        handler.log_episode_summary({"episode_num": seed, "environment_id": 0, "success": True})
        handler.close()
        facts = {"name": f"seed_{seed}", "status": "finished", "env_steps": 30, "seconds": 2.0}
        (folder / "run.json").write_text(json.dumps(facts))
    facts = {"name": "run", "status": "finished", "env_steps": 90, "seconds": 2.0, "updates": 3}
    (tmp_path / "run" / "run.json").write_text(json.dumps(facts))
    return tmp_path / "run"


def test_curves_are_means_over_the_seeds_with_bands(run: Path) -> None:
    data = load_run(run)
    np.testing.assert_allclose(data.metrics.columns["loss"], [2.0, 1.5, 4 / 3])
    np.testing.assert_allclose(data.metrics.intervals["loss"][0], [1.0, 0.5, 1 / 3])
    np.testing.assert_allclose(data.metrics.intervals["loss"][1], [3.0, 2.5, 7 / 3])
    assert "reward_std" not in data.metrics.columns
    table = data.evaluations["held-out", "greedy"]
    assert table.columns["success_rate"].tolist() == [0.0, 0.5]
    assert [bound[-1] for bound in table.intervals["success_rate"]] == pytest.approx([0.2, 0.8])


def test_the_page_summarizes_all_seeds(run: Path) -> None:
    shown = page_data([load_run(run)])
    (page,) = shown["runs"]
    success = next(tile for tile in page["tiles"] if tile["label"] == "Success rate")
    assert success == {"label": "Success rate", "value": "0.0% → 50.0%", "detail": "3 seeds, 20.0% to 80.0%"}
    assert [(row["name"], row["before"], row["value"]) for row in page["groups"][0]["rows"]] == [
        ("All tasks", 0.0, 0.5),
        ("Gravity", 0.0, 0.5),
    ]
    assert page["notes"][0].startswith("3 seeds: values are interquartile means")
    assert next(tile for tile in page["tiles"] if "steps" in tile["label"].lower())["value"] == "30"
    chart = next(chart for chart in shown["charts"] if chart["key"] == "loss")
    assert chart["series"][0]["seeds"]
    assert chart["series"][0]["low"] == [1, 0.5, 0.333333]
    assert [episode["update"] for episode in shown["episodes"]] == [2, 1, 0]


def test_write_report_recreates_the_page_of_a_run_with_seeds(run: Path) -> None:
    before = build_page([load_run(run)])
    from phalanx.logging.report import write_report

    assert write_report([run]).read_text() == before
    assert write_report([run]) == run.resolve() / "report.html"


def test_updates_and_evaluations_missing_in_a_seed_are_omitted(run: Path) -> None:
    path = run / "seed_1" / "batch_metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    (run / "seed_2" / "evaluations.jsonl").unlink()
    data = load_run(run)
    assert data.metrics.axes["update"].tolist() == [1, 2]
    assert data.evaluations == {}
    assert "seed_2: No evaluations yet (evaluations.jsonl)." in data.notes
    build_page([data])
