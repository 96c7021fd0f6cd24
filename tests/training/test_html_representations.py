"""HTML and text representations of tasks, trajectories and runs."""

import xml.etree.ElementTree as ET
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.arc import TaskBuffer
from phalanx.arc.generators import generate_tasks
from phalanx.core import BatchTrajectory
from phalanx.logging.report import load_run
from phalanx.svg import line_chart
from phalanx.training import train
from tests.helpers.descent import Descent, DescentConfig

pytestmark = pytest.mark.slow


def texts(html: str) -> list[str]:
    """Parse a drawing and return its text elements."""
    svg = html[html.index("<svg") : html.index("</svg>") + 6]
    return ["".join(one.itertext()) for one in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_trajectory_shows_the_returns_of_its_environments() -> None:
    rewards = jnp.array([[1.0, -1.0], [2.0, 0.5]])
    dones = jnp.array([[False, False], [True, False]])
    html = BatchTrajectory(None, None, rewards, dones, None)._repr_html_()
    assert texts(html) == [
        "2 steps of 2 environments, mean return 1.25",
        "environment 0: return 3.00, ended at step 2",
        "environment 1: return -0.50, not ended",
    ]


def test_line_chart_omits_values_that_are_not_finite() -> None:
    line = line_chart([0.0, np.nan, 2.0], 100, 10).parts[-1]
    assert line.args["d"] == "M0,10 L100,0"


def test_run_shows_its_metrics_and_a_curve_with_a_band(tmp_path: Path) -> None:
    outcome = train(Descent(DescentConfig(num_updates=3, num_seeds=2)), tmp_path / "run")
    assert repr(outcome) == f"TrainResult({outcome.run_dir}, finished at update 3, 4 evaluations)"
    run = load_run(outcome.run_dir)
    assert repr(run) == f"RunData(run, descent, finished, 3 updates, {outcome.run_dir})"
    html = outcome._repr_html_()
    assert html == run._repr_html_()
    assert "run: finished" in texts(html)
    assert "update 1 to 3" in texts(html)
    last = run.metrics.last("loss")
    assert last is not None and 0.1 < last < 0.3
    assert f"Loss, last value {last:.3g}" in texts(html)
    assert 'fill-opacity="0.15"' in html


def test_task_buffer_shows_its_first_tasks() -> None:
    tasks = generate_tasks(num_tasks=5, seed=0)
    html = TaskBuffer.from_tasks(tasks)._repr_html_()
    assert html.count("<svg") == 3
    assert tasks[0].id in html
    assert "and 2 more tasks" in html
