"""Console output, and images of sampled episodes."""

import io
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from rich.console import Console

from phalanx.arc import ArcConfig, DatasetConfig, TaskBuffer, batch_reset, generate_tasks
from phalanx.arc.rendering import draw_state
from phalanx.logging import ExperimentLogger, LoggingConfig, RichHandler, SVGHandler
from tests.helpers.recording_handler import RecordingHandler

METRICS = {
    "success_rate": 0.5,
    "reward_mean": 1.25,
    "similarity_mean": 0.75,
    "episode_length_mean": 12.0,
    "policy_loss": -0.125,
    "learning_rate": 0.0003,
}


def console(terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=60, force_terminal=terminal, color_system=None)


def shown(screen: Console) -> str:
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def rows_of(text: str) -> list[list[str]]:
    lines = [line.strip("│┃ ").replace("┃", "│") for line in text.splitlines() if line[:1] in "│┃"]
    return [[cell.strip() for cell in line.split("│")] for line in lines]


def test_the_table_groups_metrics_by_category() -> None:
    screen = console()
    RichHandler(console=screen).log_aggregated_metrics(METRICS, 10)
    assert "update 10" in shown(screen)
    assert rows_of(shown(screen)) == [
        ["metric", "value"],
        ["Rewards"],
        ["Reward Mean", "1.2500"],
        ["Similarity"],
        ["Similarity Mean", "0.7500"],
        ["Episodes"],
        ["Success Rate", "0.5000"],
        ["Episode Length Mean", "12.0000"],
        ["Training"],
        ["Policy Loss", "-0.1250"],
        ["Learning Rate", "3.00e-04"],
    ]


def test_categories_without_metrics_are_left_out() -> None:
    screen = console()
    RichHandler(console=screen).log_aggregated_metrics({"entropy": 1.5}, 0)
    assert rows_of(shown(screen)) == [["metric", "value"], ["Training"], ["Entropy", "1.5000"]]


def test_on_a_terminal_the_table_is_updated_in_place() -> None:
    screen = console(terminal=True)
    handler = RichHandler(console=screen)
    handler.log_aggregated_metrics(METRICS, 10)
    once = shown(screen)
    handler.log_aggregated_metrics(METRICS, 20)
    cursor_up = "\x1b[1A"
    assert cursor_up not in once and cursor_up in shown(screen), "the second table overwrites the first"
    handler.close()
    assert shown(screen).endswith("\x1b[?25h"), "the cursor is shown again"


@pytest.mark.parametrize(
    ("level", "words"),
    [("DEBUG", ["task", "step", "episode"]), ("INFO", ["task", "episode"]), ("WARNING", []), ("ERROR", [])],
)
def test_log_level_selects_the_output(level: Any, words: list[str]) -> None:
    screen = console()
    handler = RichHandler(LoggingConfig(log_level=level), console=screen)
    handler.log_task_start({"task_id": "a"})
    handler.log_step({"step_num": 1, "reward": 0.5})
    handler.log_episode_summary({"task_id": "[a]", "total_reward": 1.0, "success": True})
    assert [line.split()[0] for line in shown(screen).splitlines()] == words
    handler.log_aggregated_metrics(METRICS, 10)
    assert ("update 10" in shown(screen)) == (level in ("DEBUG", "INFO"))


def test_an_episode_is_one_line_with_its_result() -> None:
    screen = console()
    RichHandler(console=screen).log_episode_summary(
        {"task_id": "[a]", "total_reward": 1.0, "total_steps": 7, "success": True}
    )
    assert shown(screen) == "episode solved task id [a]  total reward 1.0000  total steps 7\n"


class Dot(NamedTuple):
    size: Any


def circle(state: Dot) -> str:
    return f'<svg><circle r="{int(state.size)}"/></svg>'


def pictures(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text(encoding="utf-8") for p in sorted(folder.rglob("*.*"))}


def test_first_and_last_states_of_an_episode_are_drawn(tmp_path: Path) -> None:
    SVGHandler(tmp_path, circle).log_episode_summary(
        {"episode_num": 50, "environment_id": 3, "initial_state": Dot(1), "final_state": Dot(2)}
    )
    assert pictures(tmp_path) == {
        "episode_000050_env_0003/final.svg": '<svg><circle r="2"/></svg>',
        "episode_000050_env_0003/initial.svg": '<svg><circle r="1"/></svg>',
    }


@pytest.mark.parametrize("steps", [Dot(jnp.array([5, 6, 7, 8])), [Dot(5), Dot(6)]])
def test_steps_are_drawn_when_given_up_to_the_end_of_the_episode(steps: Any, tmp_path: Path) -> None:
    SVGHandler(tmp_path, circle).log_episode_summary({"total_steps": 2, "step_states": steps})
    assert pictures(tmp_path) == {
        "episode_000000/step_0001.svg": '<svg><circle r="5"/></svg>',
        "episode_000000/step_0002.svg": '<svg><circle r="6"/></svg>',
    }


def test_single_steps_go_to_the_folder_of_their_episode(tmp_path: Path) -> None:
    handler = SVGHandler(tmp_path, circle)
    handler.log_task_start({"episode_num": 4})
    handler.log_step({"step_num": 1, "after_state": Dot(9)})
    handler.log_step({"step_num": 2})
    assert pictures(tmp_path) == {"episode_000004/step_0001.svg": '<svg><circle r="9"/></svg>'}


def test_episodes_without_states_write_no_images(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logger = ExperimentLogger(LoggingConfig(), {"svg": SVGHandler(tmp_path / "svg", circle)})
    logger.log_batch_step({"update_step": 0, "episode_returns": jnp.arange(4.0)})
    assert not (tmp_path / "svg").exists() and caplog.messages == [] and logger.failures == {}


class SelfDrawn:
    def _repr_html_(self) -> str:
        return "<div><svg><g/></svg></div>"


def test_states_with_repr_svg_need_no_draw_function(tmp_path: Path) -> None:
    SVGHandler(tmp_path).log_episode_summary({"final_state": SelfDrawn()})
    assert pictures(tmp_path) == {"episode_000000/final.svg": "<svg><g/></svg>"}


@pytest.mark.parametrize("link", ["episodes", "episodes/episode_000003_env_0001"])
def test_images_are_not_written_through_symbolic_links(link: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    path = tmp_path / "run" / link
    path.parent.mkdir(parents=True)
    path.symlink_to(target)
    handler = SVGHandler(tmp_path / "run" / "episodes", draw=lambda state: "<svg></svg>")
    with pytest.raises(OSError, match="symbolic links are not followed"):
        handler.log_episode_summary({"episode_num": 3, "environment_id": 1, "final_state": Dot(1)})
    assert list(target.iterdir()) == []


def test_states_that_cannot_be_drawn_raise_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        TypeError, match="Dot has no `_repr_svg_` or `_repr_html_`; pass `draw` to SVGHandler"
    ):
        SVGHandler(tmp_path).log_episode_summary({"final_state": Dot(1)})
    with pytest.raises(ValueError, match="must contain an <svg> element, got 'a dot'"):
        SVGHandler(tmp_path, lambda state: "a dot").log_episode_summary({"final_state": Dot(1)})


@pytest.mark.parametrize("draw", [None, draw_state])
def test_sampled_arc_states_are_drawn_as_they_were(draw: Any, tmp_path: Path) -> None:
    config = ArcConfig(dataset=DatasetConfig(max_grid_height=5, max_grid_width=5))
    tasks = TaskBuffer.from_tasks(generate_tasks(num_tasks=2, seed=0, max_height=5, max_width=5))
    states, _ = batch_reset(jax.random.split(jax.random.PRNGKey(0), 4), config, tasks)
    memory = RecordingHandler()
    handlers = {"svg": SVGHandler(tmp_path, draw), "memory": memory}
    logger = ExperimentLogger(LoggingConfig(num_samples=2), handlers)
    logger.log_batch_step({"update_step": 50, "episode_returns": jnp.arange(4.0), "final_states": states})
    assert logger.failures == {}
    for episode in memory.episodes:
        row = episode["environment_id"]
        assert (episode["final_state"].working_grid == states.working_grid[row]).all()
        assert (tmp_path / f"episode_000050_env_{row:04d}" / "final.svg").read_text().startswith("<svg")
