"""The file with the episodes of a trained policy: damaged and untrusted files, and the page that shows it."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.io.atomic import atomic_write
from phalanx.io.checksum import write_json
from phalanx.logging.report import load_run, write_report
from phalanx.logging.report.policy_episodes import FILE_NAME
from tests.helpers.browser import needs_chromium, no_complaints, opened_tab
from tests.helpers.run_folders import write_facts, write_lines

MARKUP = '</script><img src=x onerror="document.title=1"><b id="harm">'


def episode(number: int, group: str | None, solved: bool | None, **changes: Any) -> dict[str, Any]:
    """Return an episode of two steps that fills a cell and submits."""
    before, after = ["00", "05"], ["03", "05"]
    grids = {"Input": before, "Working grid": before, "Expected output": after}
    fill = {
        "actions": ["Fill 3, row 1, column 2", "Submit", "Fill 5, rows 1 to 2, column 1"],
        "probabilities": [0.75, 0.2, 0.0001],
        "chosen": 0,
        "normals": [],
        "value": 0.625,
    }
    submit = fill | {"probabilities": [0.1, 0.9, 0.0], "chosen": 1, "value": None}
    frames = [grids, grids | {"Working grid": after}, grids | {"Working grid": after}]
    return {
        "number": number,
        "task": f"task-{number}",
        "group": group,
        "solved": solved,
        "total_reward": 0.95,
        "num_steps": 2,
        "frames": frames,
        "decisions": [fill, submit],
        **changes,
    }


def record() -> dict[str, Any]:
    """Return the contents of a valid file."""
    episodes = [episode(3, "fills", True), episode(9, "moves", False), episode(12, "moves", True)]
    return {"format": 1, "update": 7, "num_evaluated": 20, "episodes": episodes}


def write_run(folder: Path, record: dict[str, Any], *, num_episodes: int = 20) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_facts(folder, name="policy")
    evaluation = {"split": "evaluation", "mode": "greedy", "num_episodes": num_episodes, "success_rate": 0.85}
    write_lines(folder / "evaluations.jsonl", [{"step": 0, **evaluation}, {"step": 7, **evaluation}])
    with atomic_write(folder / FILE_NAME, "w", checksum=True) as file:
        write_json(file, record)
    return folder


def test_totals_are_those_of_the_evaluation(tmp_path: Path) -> None:
    found = load_run(write_run(tmp_path / "run", record())).policy_episodes
    assert found is not None and len(found["episodes"]) == 3
    assert found["evaluation"] == {"split": "evaluation", "num_episodes": 20, "num_solved": 17}
    other = load_run(write_run(tmp_path / "other", record(), num_episodes=21)).policy_episodes
    assert other is not None and other["evaluation"] is None, "an evaluation of other episodes"


INVALID: dict[str, Callable[[dict[str, Any]], Any]] = {
    "format": lambda r: r.update(format=2),
    "episodes": lambda r: r.update(episodes=[copy.deepcopy(r["episodes"][0])] * 101),
    "number": lambda r: r["episodes"][0].update(number=True),
    "task": lambda r: r["episodes"][0].update(task="x" * 1000),
    "solved": lambda r: r["episodes"][0].update(solved="yes"),
    "total_reward": lambda r: r["episodes"][0].update(total_reward=float("nan")),
    "num_steps": lambda r: r["episodes"][0].update(num_steps=-1),
    "one decision between two frames": lambda r: r["episodes"][0]["frames"].pop(),
    "frames[0]": lambda r: r["episodes"][0]["frames"][0].update(Input=["00", "0"]),
    "frames[1]": lambda r: r["episodes"][0]["frames"][1].update(Input=["0x"]),
    "probabilities": lambda r: r["episodes"][0]["decisions"][0].update(probabilities=[2.0, 0.0, 0.0]),
    "must refer to the actions": lambda r: r["episodes"][0]["decisions"][0].update(chosen=3),
    "actions": lambda r: r["episodes"][0]["decisions"][0].update(actions=["a"] * 50),
    "value": lambda r: r["episodes"][0]["decisions"][0].update(value=[]),
    "decisions": lambda r: r["episodes"][0].update(decisions=None),
}


@pytest.mark.parametrize("message", INVALID)
def test_invalid_file_gives_a_note(tmp_path: Path, message: str) -> None:
    contents = record()
    INVALID[message](contents)
    run = load_run(write_run(tmp_path, contents))
    assert run.policy_episodes is None
    (note,) = [note for note in run.notes if FILE_NAME in note]
    assert "was skipped" in note and message in note
    write_report([tmp_path])


def test_damaged_file_and_link_give_a_note(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", record()) / FILE_NAME
    intact = path.read_bytes()
    outside = tmp_path / "outside.json"
    outside.write_bytes(intact)
    for content in (intact.replace(b"0.75", b"0.25"), intact[:-100], b"[" * 100_000, b"\xff\0", b"{}", b""):
        path.write_bytes(content)
        run = load_run(path.parent)
        assert run.policy_episodes is None
        assert [note for note in run.notes if f"{FILE_NAME} was skipped" in note]
    path.unlink()
    path.symlink_to(outside)
    assert [note for note in load_run(path.parent).notes if "symbolic link" in note]
    path.unlink()
    assert load_run(path.parent).policy_episodes is None
    assert not [note for note in load_run(path.parent).notes if FILE_NAME in note]


@pytest.fixture(scope="module")
def tab() -> Iterator[Any]:
    with opened_tab() as tab:
        yield tab


@pytest.fixture
def open_page(tab: Any) -> Iterator[Callable[..., Any]]:
    """Return a function that opens a page; console errors fail the test."""

    def navigate(path: Path, width: int = 1280) -> Any:
        tab.set_viewport_size({"width": width, "height": 900})
        tab.goto(path.as_uri())
        tab.wait_for_selector("footer code")
        return tab

    with no_complaints(tab):
        yield navigate


@pytest.mark.slow
@needs_chromium
def test_page_steps_through_an_episode(open_page: Any, tmp_path: Path) -> None:
    page = open_page(write_report([write_run(tmp_path, record())]))
    assert page.locator("#policy .about").inner_text() == (
        "In the last evaluation (evaluation, update 7), the greedy policy solved 17 of 20 episodes. "
        "3 of them are shown, 2 solved and 1 failed. They are selected evenly over the groups, regardless of "
        "the result."
    )
    viewer = page.locator(".policy")
    assert viewer.locator(".segments button").all_inner_texts() == ["All 3", "Solved 2", "Failed 1"]
    viewer.get_by_text("step 0 of 2").wait_for()
    assert viewer.locator(".likely .name").all_inner_texts() == [
        "Fill 3 row 1, column 2",
        "Submit",
        "Fill 5 rows 1 to 2, column 1",
    ]
    assert viewer.locator(".likely .chance").all_inner_texts() == ["75.0%", "20.0%", "< 0.1%"]
    assert viewer.locator(".likely .chosen .name").inner_text() == "Fill 3 row 1, column 2"
    widths = viewer.locator(".likely .after").evaluate_all("bars => bars.map((bar) => bar.style.width)")
    assert widths == ["75%", "20%", "0.01%"]
    assert viewer.locator(".value").inner_text().endswith(": 0.625")
    target = viewer.locator(".target").last
    assert [target.get_attribute(name) for name in ("x", "y", "width", "height")] == ["20", "0", "20", "20"]
    grids = [box.get_attribute("aria-label") for box in viewer.locator(".boards .cells").all()]
    assert grids == ["Input: 00, 05", "Working grid: 00, 05", "Expected output: 03, 05"]

    viewer.get_by_role("button", name="Next frame").click()
    viewer.get_by_text("step 1 of 2").wait_for()
    assert viewer.locator(".boards .cells").nth(1).get_attribute("aria-label") == "Working grid: 03, 05"
    assert viewer.locator(".fresh").count() == 1 and viewer.locator(".target").count() == 0
    assert viewer.locator(".done li").all_inner_texts() == ["Fill 3 row 1, column 2"]
    assert viewer.locator(".value").inner_text() == ""
    page.keyboard.press("ArrowRight")
    viewer.get_by_text("ended after 2 steps").wait_for()
    assert viewer.locator(".likely").inner_text() == "The episode has ended."
    viewer.get_by_role("button", name="First frame").click()
    viewer.get_by_role("button", name="Play").click()
    viewer.get_by_text("ended after 2 steps").wait_for()

    viewer.get_by_label("Group").select_option("moves")
    assert viewer.locator(".reel .task").all_inner_texts() == ["task-9", "task-12"]
    viewer.get_by_role("button", name="Failed 1").click()
    assert viewer.locator(".reel .task").all_inner_texts() == ["task-9"]
    assert viewer.locator(".caption .pill").inner_text() == "failed"


@pytest.mark.slow
@needs_chromium
def test_page_shows_images_means_and_untrusted_names_as_text(open_page: Any, tmp_path: Path) -> None:
    normal = {"name": "speed[0]", "mean": 0.5, "deviation": 0.125}
    decision = {"actions": [MARKUP], "probabilities": [None], "chosen": 0, "normals": [normal], "value": 1.0}
    image = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><script>document.title=1</script></svg>'
    )
    contents = record() | {"num_evaluated": None}
    contents["episodes"] = [
        episode(0, MARKUP, None, task=MARKUP, frames=[image, image], decisions=[decision], num_steps=300),
        episode(1, None, None, task="", frames=[], decisions=[]),
    ]
    page = open_page(write_report([write_run(tmp_path, contents)]), width=360)
    viewer = page.locator(".policy")
    viewer.locator(".boards img").wait_for()
    assert viewer.locator(".caption strong").inner_text() == MARKUP
    assert page.locator("#harm").count() == 0 and page.title() != "1"
    assert viewer.locator(".likely li").all_inner_texts()[1].split() == ["speed[0]", "0.5", "±", "0.125"]
    assert viewer.locator(".segments").count() == 0, "no result is known"
    assert page.locator("#policy .about").inner_text() == ("Episodes of the greedy policy after update 7.")
    viewer.get_by_role("button", name="Next frame").click()
    viewer.get_by_text("ended after 300 steps, 1 of them shown").wait_for()
    viewer.get_by_text("Episode 2").click()
    viewer.get_by_text("images of this episode are too large").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.slow
@needs_chromium
def test_comparison_shows_the_episodes_of_one_run_at_a_time(open_page: Any, tmp_path: Path) -> None:
    first = write_run(tmp_path / "first", record())
    second = write_run(tmp_path / "second", record() | {"episodes": [episode(5, None, True, task="other")]})
    write_facts(second, name="second")
    page = open_page(write_report([first, second]))
    assert page.locator(".policy .reel li").count() == 3
    page.locator("#policy > .segments").get_by_role("button", name="second").click()
    assert page.locator(".policy .reel .task").all_inner_texts() == ["other"]
    for run in (first, second):
        (run / FILE_NAME).unlink()
    assert open_page(write_report([first, second])).locator("#policy").count() == 0


def test_page_omits_episodes_that_exceed_its_size_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from phalanx.logging.report import page

    run = write_run(tmp_path, record())
    monkeypatch.setattr(page, "MAX_IMAGE_BYTES", 200)
    (policy,) = page.page_data([load_run(run)])["policies"]
    assert 0 < len(policy["episodes"]) < 3
    assert json.dumps(policy)
