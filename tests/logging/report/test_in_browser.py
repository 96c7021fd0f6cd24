"""The report in headless Chromium, opened from disk without a network."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from phalanx.arc.rendering import draw_state
from phalanx.logging import ExperimentLogger, FileHandler, LoggingConfig, SVGHandler
from phalanx.logging.report import write_report
from phalanx.proofs.rendering import render_episodes
from tests.helpers.browser import needs_chromium, no_complaints, opened_tab
from tests.helpers.run_folders import make_run, metrics_at, write_episodes, write_facts, write_lines
from tests.helpers.sample_proofs import given_up_episode, index_manager, proved_episode

UPDATES = 200

pytestmark = [pytest.mark.slow, needs_chromium]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of one run."""
    return write_report([make_run(tmp_path_factory.mktemp("runs") / "demo")])


@pytest.fixture(scope="module")
def comparison(report: Path) -> Path:
    """The page of that run and another."""
    config = LoggingConfig(log_frequency=10, num_samples=5)
    other = make_run(report.parent.with_name("other"), speed=3.0, config=config)
    return write_report([report.parent, other])


@pytest.fixture(scope="module")
def tab() -> Iterator[Any]:
    """A page starts anew when it is opened again."""
    with opened_tab() as tab:
        yield tab


@pytest.fixture
def opened(tab: Any) -> Iterator[Any]:
    """Opens pages; at the end, none may have complained or asked for anything but itself."""

    def open_page(path: Path, *, dark: bool = False, width: int = 1280) -> Any:
        tab.emulate_media(color_scheme="dark" if dark else "light")
        tab.set_viewport_size({"width": width, "height": 900})
        tab.mouse.move(0, 0)
        tab.goto(path.as_uri())
        tab.wait_for_selector("footer code")
        return tab

    with no_complaints(tab):
        yield open_page


@pytest.fixture
def page(opened: Any, report: Path) -> Any:
    return opened(report)


def line_of(page: Any, key: str, place: int = 0) -> list[tuple[float, float]]:
    """The corners of a curve, in pixels."""
    drawn = page.locator(f'[data-chart="{key}"] path.curve').nth(place).get_attribute("d")
    return [(float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", drawn)]


def pictured(page: Any, frame: str) -> str:
    """The picture on the stage, once it is that of the frame and has been decoded."""
    page.locator(f'.stage img[alt$=", {frame}"]').wait_for()
    page.evaluate("document.querySelector('.stage img').decode()")
    return page.locator(".stage img").get_attribute("src")


def test_the_page_shows_the_run(page: Any) -> None:
    assert page.title() == "demo · Phalanx report"
    assert page.locator("h1").inner_text() == "demo"
    assert "4.2% → 96.8%" in page.locator(".tiles").inner_text()
    assert page.locator("nav a").all_inner_texts() == [
        "Evaluation",
        "Training",
        "Throughput",
        "Episodes",
        "Config",
    ]


def test_curves_are_drawn_point_by_point(page: Any) -> None:
    line = line_of(page, "success_rate")
    assert len(line) == 21
    assert [x for x, _ in line] == sorted(x for x, _ in line)
    assert line[-1][1] < line[0][1] - 80, "success rises: up is a smaller y"
    assert page.locator('[data-chart="reward"] path.deviation').count() == 1
    assert page.locator('[data-chart="evaluation:success_rate"] path.curve').count() == 2
    assert page.locator('[data-chart="env_steps_per_second"] path.curve').count() == 1


def test_the_tooltip_shows_logged_values(page: Any) -> None:
    chart = page.locator('[data-chart="entropy"] svg')
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    x = line_of(page, "entropy")[7][0]
    page.mouse.move(box["x"] + x + 2, box["y"] + 70)
    said = page.locator("#tooltip").inner_text()
    assert "Update 70" in said
    assert f"{metrics_at(70, UPDATES)['entropy']:.4g}" in said
    assert page.locator('[data-chart="approx_kl"] line.cross').count() == 1, "every chart has the crosshair"
    page.mouse.move(2, 2)
    assert page.locator("#tooltip").is_hidden()


def test_points_can_be_read_with_the_keyboard(page: Any) -> None:
    chart = page.locator('[data-chart="entropy"] svg')
    assert "Entropy by updates. Entropy: from" in chart.get_attribute("aria-label")
    chart.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert "Update 20" in page.locator("#tooltip").inner_text()
    page.keyboard.press("End")
    assert "Update 200" in page.locator("#tooltip").inner_text()


def test_the_axis_can_be_steps_or_time(page: Any) -> None:
    chart = page.locator('[data-chart="entropy"] svg')
    assert chart.locator("text").last.inner_html() == "200"
    page.get_by_role("button", name="Environment steps").click()
    assert chart.locator("text").last.inner_html() == "2 M"
    page.get_by_role("button", name="Time", exact=True).click()
    assert chart.locator("text").last.inner_html() == "30 s"


def test_smoothing_keeps_the_original_values_visible(page: Any) -> None:
    chart = page.locator('[data-chart="policy_loss"]')
    assert chart.locator("path.raw").count() == 1
    smooth = line_of(page, "policy_loss")
    raw = chart.locator("path.raw").get_attribute("d")
    page.locator("#smoothing").fill("0")
    assert chart.locator("path.raw").count() == 0
    assert chart.locator("path.curve").get_attribute("d") == raw
    assert line_of(page, "policy_loss") != smooth


def test_dragging_zooms_every_chart_and_can_be_undone(page: Any) -> None:
    before = line_of(page, "entropy")
    chart = page.locator('[data-chart="success_rate"] svg')
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + 120, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 220, box["y"] + 60, steps=3)
    page.mouse.up()
    assert line_of(page, "entropy")[-1][0] > before[-1][0] + 200
    page.get_by_role("button", name="Reset zoom").click()
    assert line_of(page, "entropy") == before


def test_task_groups_have_a_bar_for_each_mode(page: Any) -> None:
    names = page.locator("#task-groups .task-group .name").all_inner_texts()
    assert names == ["All tasks", "Fill enclosed", "Recolor", "Mirror rows"]
    row = page.locator('.task-group[data-group="Fill enclosed"]')
    assert row.locator(".bar span").all_inner_texts() == ["98.7%", "90.8%"]
    assert row.locator(".before").count() == 2
    assert page.locator(".track .pass").count() == 1
    assert "pass@8 99.9%" in page.locator("#task-groups").inner_text()
    track = row.locator(".track").first.bounding_box()["width"]
    assert row.locator(".after").first.bounding_box()["width"] == pytest.approx(0.987 * track, rel=0.01)


def test_an_episode_steps_when_its_controls_are_used(page: Any) -> None:
    where = page.locator(".transport output")
    first = pictured(page, "initial")
    assert where.inner_text() == "initial · 1 / 4" and first.startswith("data:image/svg+xml")
    assert "fill_enclosed-000200" in page.locator(".caption").inner_text()
    page.get_by_role("button", name="Next frame").click()
    assert pictured(page, "step 1") != first and where.inner_text() == "step 1 · 2 / 4"
    page.locator(".transport input").fill("3")
    assert pictured(page, "step 3, final") != first and where.inner_text() == "step 3, final · 4 / 4"
    for _ in range(4):
        page.get_by_role("button", name="Previous frame").click()
    assert pictured(page, "initial") == first and where.inner_text() == "initial · 1 / 4"


def test_a_proof_can_be_stepped_through(opened: Any, tmp_path: Path) -> None:
    index = index_manager()
    handlers = {"file": FileHandler(tmp_path), "svg": SVGHandler(tmp_path / "episodes")}
    with ExperimentLogger(LoggingConfig(), handlers) as logger:
        for episode in render_episodes([proved_episode(index), given_up_episode(index)], index):
            logger.log_episode_summary(episode)
    page = opened(write_report([tmp_path]))
    assert "wife(eve,_1)" not in unquote(pictured(page, "initial"))
    page.get_by_role("button", name="Next frame").click()
    assert "wife(eve,_1)" in unquote(pictured(page, "step 1"))
    page.get_by_role("button", name="Next frame").click()
    assert "nothing left to prove" in unquote(pictured(page, "step 2, final"))
    caption = page.locator(".caption").inner_text()
    assert caption.startswith("aunt(eve,cat)") and "similarity" not in caption
    page.locator(".reel li button").nth(1).click()
    assert "not aunt(cat,eve)" in page.locator(".caption").inner_text()
    size = page.evaluate(
        "(({naturalWidth: w, naturalHeight: h}) => [w, h])(document.querySelector('.stage img'))"
    )
    assert min(size) > 100


def test_arrow_keys_step_frames_and_select_episodes(page: Any) -> None:
    where = page.locator(".transport output")
    page.locator(".picture").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert where.inner_text() == "step 2 · 3 / 4"
    page.keyboard.press("ArrowLeft")
    assert where.inner_text() == "step 1 · 2 / 4"
    page.locator(".transport input").focus()
    page.keyboard.press("ArrowRight")
    assert where.inner_text() == "step 2 · 3 / 4"
    page.locator(".reel li button").first.focus()
    page.keyboard.press("ArrowDown")
    assert "recolor-000200" in page.locator(".caption").inner_text()


def test_an_episode_plays_to_its_end(page: Any) -> None:
    page.get_by_role("button", name="Play").click()
    assert page.get_by_role("button", name="Pause").is_visible()
    page.get_by_text("step 3, final · 4 / 4").wait_for()
    page.get_by_role("button", name="Play").wait_for()


def test_episodes_can_be_filtered_by_result(page: Any) -> None:
    assert page.locator(".reel li").count() == 9
    page.get_by_role("button", name="Solved 3", exact=True).click()
    assert page.locator(".reel li").count() == 3 and page.locator(".reel .mark.solved").count() == 3
    page.get_by_role("button", name="Unsolved 6").click()
    assert page.locator(".reel .mark.unsolved").count() == 6
    assert "unsolved" in page.locator(".caption").inner_text()


def test_the_config_can_be_searched(page: Any) -> None:
    page.locator("details.config summary").click()
    page.get_by_role("searchbox").fill("log_freq")
    assert page.locator(".config tbody tr:visible").all_inner_texts() == ["log_frequency\t10"]


def test_a_comparison_shows_all_runs_and_differing_settings(opened: Any, comparison: Path) -> None:
    page = opened(comparison)
    assert page.locator("h1").inner_text() == "demo and other compared"
    assert page.locator('[data-chart="success_rate"] path.curve').count() == 2
    assert line_of(page, "success_rate") != line_of(page, "success_rate", 1)
    assert page.locator('[data-chart="success_rate"] .legend li').all_inner_texts() == ["demo", "other"]
    assert page.locator(".config tbody tr:visible").all_inner_texts() == ["num_samples\t3\t5"]
    page.get_by_label("Only differing settings").uncheck()
    assert page.locator(".config tbody tr:visible").count() == 9
    assert page.locator(".config tr.differs").count() == 1
    row = page.locator('.task-group[data-group="All tasks"] .bar span')
    assert row.all_inner_texts() == ["96.8%", "92.6%"]
    page.get_by_role("button", name="sampled").click()
    assert row.all_inner_texts() == ["89.0%", "85.2%"]
    page.get_by_role("button", name="other").click()
    assert page.locator(".reel li").count() == 9


@pytest.mark.parametrize("dark", [False, True])
def test_dark_mode_follows_the_system(opened: Any, report: Path, dark: bool) -> None:
    page = opened(report, dark=dark)
    style = page.evaluate(
        "[document.body, document.querySelector('.card')].map(e => getComputedStyle(e).backgroundColor)"
    )
    brightness = [sum(map(int, re.findall(r"\d+", found)[:3])) / 3 for found in style]
    assert all((value < 60) == dark for value in brightness)


def test_a_narrow_screen_does_not_scroll_sideways(opened: Any, comparison: Path) -> None:
    page = opened(comparison, width=360)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_an_empty_run_has_a_page(opened: Any, tmp_path: Path) -> None:
    write_facts(tmp_path, name="bare", status="running")
    page = opened(write_report([tmp_path]))
    assert "No metrics yet (batch_metrics.jsonl)." in page.locator("#notes").inner_text()
    assert page.locator(".empty").count() == 5 and page.locator("figure").count() == 0


def test_gaps_interrupt_curves_and_isolated_points_are_dots(opened: Any, tmp_path: Path) -> None:
    values: list[Any] = [1.0, 2.0, "nan", 3.0, "nan", 2.0, 1.0]
    write_lines(
        tmp_path / "batch_metrics.jsonl", [{"step": i, "metrics": {"a": v}} for i, v in enumerate(values)]
    )
    page = opened(write_report([tmp_path]))
    drawn = page.locator('[data-chart="a"] path.curve').get_attribute("d")
    assert re.sub(r"[^ML]", "", drawn) == "MLMML"
    assert page.locator('[data-chart="a"] circle.dot').count() == 1


def test_text_from_a_run_is_not_interpreted_as_html(opened: Any, tmp_path: Path) -> None:
    nasty = '</script><img src=x onerror="document.title=1"><b id="harm">'
    config = LoggingConfig()
    handlers = {"file": FileHandler(tmp_path, config), "svg": SVGHandler(tmp_path / "episodes", draw_state)}
    with ExperimentLogger(config, handlers) as logger:
        write_episodes(logger, 0, [True])
        logger.log_batch_step({"update_step": 0, nasty: 1.0})
    record = json.loads((tmp_path / "episodes.jsonl").read_text())
    write_lines(tmp_path / "episodes.jsonl", [record | {"task_id": nasty}])
    write_facts(tmp_path, name=nasty)
    page = opened(write_report([tmp_path]))
    assert page.locator("#harm").count() == 0
    assert page.locator("h1").inner_text() == nasty
    assert nasty in page.locator(".caption").inner_text()
    assert page.title() == f"{nasty} · Phalanx report"
    assert 'onerror="document.title=1"' in page.locator("figure h3").inner_text()
