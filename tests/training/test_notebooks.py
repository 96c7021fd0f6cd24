"""What notebooks show of tasks, trajectories and runs, and that it is short in a terminal."""

import xml.etree.ElementTree as ET
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.arc import TaskBuffer
from phalanx.arc.generators import generate_tasks
from phalanx.core import Trajectory
from phalanx.logging.report import read_run
from phalanx.svg import line_chart
from phalanx.training import train
from tests.helpers.descent import Descent, DescentConfig

pytestmark = pytest.mark.slow


def texts(html: str) -> list[str]:
    """The words of a drawing, which must be well-formed to be read."""
    svg = html[html.index("<svg") : html.index("</svg>") + 6]
    return ["".join(one.itertext()) for one in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_a_trajectory_draws_the_returns_of_its_environments() -> None:
    rewards = jnp.array([[1.0, -1.0], [2.0, 0.5]])
    dones = jnp.array([[False, False], [True, False]])
    shown = Trajectory(None, None, rewards, dones, None)._repr_html_()
    assert texts(shown) == [
        "2 steps of 2 environments, mean return 1.25",
        "environment 0: return 3.00, ended at step 2",
        "environment 1: return -0.50, not ended",
    ]


def test_a_curve_leaves_out_what_is_not_finite() -> None:
    line = line_chart([0.0, np.nan, 2.0], 100, 10).parts[-1]
    assert line.args["d"] == "M0,10 L100,0"


def test_a_run_draws_its_figures_and_a_curve_with_its_band(tmp_path: Path) -> None:
    outcome = train(Descent(DescentConfig(num_updates=3, num_seeds=2)), tmp_path / "run")
    assert repr(outcome) == f"TrainResult({outcome.run_dir}, finished at update 3, 4 evaluations)"
    run = read_run(outcome.run_dir)
    assert repr(run) == f"RunData(run, descent, finished, 3 updates, {outcome.run_dir})"
    shown = outcome._repr_html_()
    assert shown == run._repr_html_()
    assert "run: finished" in texts(shown)
    assert "update 1 to 3" in texts(shown)
    last = run.metrics.last("loss")
    assert last is not None and 0.1 < last < 0.3
    assert f"Loss, last value {last:.3g}" in texts(shown)
    assert 'fill-opacity="0.15"' in shown


def test_a_buffer_draws_its_first_tasks() -> None:
    tasks = generate_tasks(num_tasks=5, seed=0)
    shown = TaskBuffer.from_tasks(tasks)._repr_html_()
    assert shown.count("<svg") == 3
    assert tasks[0].id in shown
    assert "and 2 more tasks" in shown
