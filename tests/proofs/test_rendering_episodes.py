"""Proof episodes in a run folder and in its report, rendered with the names of the goals."""

import functools
import json
import re
from pathlib import Path

import pytest

from phalanx.logging import ExperimentLogger, FileHandler, LoggingConfig, SVGHandler
from phalanx.logging.report import build_page, load_run
from phalanx.logging.report.page import page_data
from phalanx.proofs.rendering import draw_state, render_episodes
from tests.helpers.sample_proofs import given_up_episode, index_manager, proof_state, proved_episode


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with two sampled proofs."""
    config = LoggingConfig(include_full_states=True)
    handlers = {"file": FileHandler(tmp_path, config), "svg": SVGHandler(tmp_path / "episodes")}
    index = index_manager()
    with ExperimentLogger(config, handlers) as logger:
        for episode in render_episodes([proved_episode(index), given_up_episode(index)], index):
            logger.log_episode_summary(episode)
        assert logger.failures == {}
    return tmp_path


def texts(path: Path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]+)</text>", path.read_text(encoding="utf-8"))


def test_every_state_of_a_proof_is_rendered(run: Path) -> None:
    folder = run / "episodes" / "episode_000050_env_0000"
    assert sorted(path.name for path in folder.iterdir()) == [
        "final.svg",
        "initial.svg",
        "step_0001.svg",
        "step_0002.svg",
    ]
    assert texts(folder / "initial.svg") == [
        "aunt(eve,cat)",
        "true · depth 2 · 2 choices",
        "step 0",
        "0",
        "aunt(eve,cat)",
    ]
    assert texts(folder / "final.svg")[2:] == [
        "proved", "0", "aunt(eve,cat)", "1", "wife(eve,_1)", "uncle(_1,cat)", "2", "✓ nothing left to prove",
    ]  # fmt: skip


def test_given_up_query_has_a_red_badge(run: Path) -> None:
    final = run / "episodes" / "episode_000050_env_0001" / "final.svg"
    assert texts(final) == ["aunt(cat,eve)", "false", "given up", "0", "aunt(cat,eve)", "1", "✕ False"]
    proved = run / "episodes" / "episode_000050_env_0000" / "final.svg"
    badge = r'class="badge">\s*<rect[^>]*fill="(#\w+)"'
    assert re.search(badge, final.read_text())[1] == "#B42318"  # type: ignore[index]
    assert re.search(badge, proved.read_text())[1] == "#12805C"  # type: ignore[index]


def test_all_images_of_an_episode_have_the_same_size(run: Path) -> None:
    folder = run / "episodes" / "episode_000050_env_0000"
    sizes = {re.search(r'viewBox="([^"]+)"', path.read_text())[1] for path in folder.iterdir()}  # type: ignore[index]
    assert len(sizes) == 1


def test_log_has_the_query_and_the_goals(run: Path) -> None:
    records = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    assert [record["task_id"] for record in records] == ["aunt(eve,cat)", "not aunt(cat,eve)"]
    index = index_manager()
    assert records[0]["initial_state"]["goals"] == [[index.predicate_indices["aunt"], 3, 1], [0] * 3, [0] * 3]


def test_report_has_all_frames_of_the_proofs(run: Path) -> None:
    data = load_run(run)
    first, second = page_data([data])["episodes"]
    assert [name for name, _ in first["frames"]] == ["initial", "step 1", "step 2, final"]
    assert (first["task"], second["task"]) == ("aunt(eve,cat)", "not aunt(cat,eve)")
    assert first["similarity"] is None
    assert "aunt(eve,cat)" in build_page([data])


def test_handler_draws_states_with_a_given_function(tmp_path: Path) -> None:
    index = index_manager()
    draw = functools.partial(draw_state, vocabulary=index)
    state = proof_state(index, "wife(eve,_1) uncle(_1,cat)", step=1, status=2, offered=("True", "End"))
    SVGHandler(tmp_path, draw).log_episode_summary({"final_state": state})
    assert texts(tmp_path / "episode_000000" / "final.svg")[2:] == [
        "out of steps", "1", "wife(eve,_1)", "uncle(_1,cat)",
    ]  # fmt: skip
