"""Submissions of policies with known answers."""

import json
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np
import pytest

from phalanx.arc import (
    ArcEnvironment,
    ArcTask,
    GridPair,
    Submission,
    TaskSubmission,
    submit,
    submit_random,
    submitted_grids,
)
from phalanx.arc.evaluation import ArcEvaluationConfig, copy_solves
from phalanx.arc.generators import generate_tasks
from phalanx.arc.spec import SPEC, ArcTasks
from phalanx.arc.submission import submission_env
from phalanx.logging.report import write_report
from tests.helpers.policies import box_config, cell_task, knows

pytestmark = pytest.mark.slow

SIDE = 5
FAMILIES = ("gravity", "fill_enclosed")
TASKS = generate_tasks(FAMILIES, 6, seed=3, max_height=SIDE, max_width=SIDE, num_demos=1, num_tests=1)


def hide_outputs(task: ArcTask) -> ArcTask:
    return ArcTask(task.id, task.demos, tuple(GridPair(pair.input, None) for pair in task.tests), task.family)


def submit_known(tasks: list[ArcTask], unknown_families: tuple[str, ...] = (), **settings: Any) -> Submission:
    environment = ArcEnvironment.create(box_config(SIDE, "evaluation"), tasks)
    return submit(environment, knows(TASKS, (SIDE, SIDE), unknown_families, submits=True), **settings)


def test_submission_has_two_attempts_per_output() -> None:
    submission = submit_known(TASKS)
    assert [answer.solved for answer in submission.answers] == [True] * 6
    expected = {
        task.id: [{name: task.tests[0].output.tolist() for name in ("attempt_1", "attempt_2")}]
        for task in TASKS
    }
    assert submission.submission() == expected
    assert submission.describe()[:2] == [
        "6 of 6 tasks fit the canvas",
        "solved: 6 of 6 tasks (100%), 6 of 6 outputs",
    ]
    assert submission.operations["Submit"] == 6


def test_tasks_with_secret_outputs_are_not_scored() -> None:
    submission = submit_known([hide_outputs(task) for task in TASKS[:3]] + TASKS[3:])
    assert [answer.solved for answer in submission.answers] == [None] * 3 + [True] * 3
    assert submission.submission()[TASKS[0].id][0]["attempt_1"] == TASKS[0].tests[0].output.tolist()
    assert submission.describe()[-1] == "3 tasks with secret outputs"
    assert "Not solved: 0 of 3 tasks that fit, 3 with secret outputs" in submission.draw_failures().as_svg()


def test_unsubmitted_and_too_large_tasks_are_not_solved() -> None:
    large = ArcTask("large", (), (GridPair(np.ones((9, 9), np.int8), np.ones((9, 9), np.int8)),))
    submission = submit_known(TASKS, unknown_families=("gravity",), too_large=[large])
    solved = {answer.task.id: answer.solved for answer in submission.answers}
    assert solved == {**{task.id: task.family != "gravity" for task in TASKS}, "large": False}
    assert submission.submission()["large"] == [{"attempt_1": [[0]], "attempt_2": [[0]]}]
    rows = {row["task"]: row for row in submission.task_records()}
    assert not rows["large"]["fits_canvas"] and rows[TASKS[0].id]["fits_canvas"]
    assert submission.describe()[0] == "6 of 7 tasks fit the canvas"


def test_task_is_solved_if_each_output_has_a_correct_attempt() -> None:
    correct, wrong = [[4]], [[9]]
    task = cell_task("two", [1], tests=(4, 4))
    answers = Submission((TaskSubmission(task, ((correct, wrong), (wrong, correct)), (2, 2)),), {})
    assert answers.answers[0].solved
    assert answers.submission()["two"][0] == {"attempt_1": correct, "attempt_2": wrong}
    partial = Submission((TaskSubmission(task, ((correct, wrong),), (2,)),), {})
    assert not partial.answers[0].solved
    assert partial.task_records()[0]["num_correct"] == 1


def test_each_output_has_an_episode_if_pair_cannot_change() -> None:
    size = {"max_height": SIDE, "max_width": SIDE}
    tasks = generate_tasks(FAMILIES, 4, seed=4, num_demos=1, num_tests=2, **size)
    config = box_config(SIDE, "evaluation")
    for operations, solved in ((tuple(range(35)), 4), (None, 0)):
        action = config.action.model_copy(update={"allowed_operations": operations})
        environment = ArcEnvironment.create(config.model_copy(update={"action": action}), tasks)
        submission = submit(environment, knows(tasks, (SIDE, SIDE), submits=True))
        # This policy never switches to the other output, even if it could.
        assert sum(bool(answer.solved) for answer in submission.answers) == solved
        assert submission.operations["Submit"] == (8 if solved else 4)


def test_random_submission_does_not_depend_on_answers() -> None:
    open_tasks, secret_tasks = (
        ArcEnvironment.create(box_config(SIDE, "evaluation"), tasks)
        for tasks in (TASKS, [hide_outputs(task) for task in TASKS])
    )
    assert submit_random(open_tasks).submission() == submit_random(secret_tasks).submission()


def test_baselines_solve_only_trivial_tasks() -> None:
    environment = ArcEnvironment.create(box_config(SIDE, "evaluation"), TASKS)
    assert not any(answer.solved for answer in submit_random(environment).answers)
    same = GridPair(np.ones((2, 2), np.int8), np.ones((2, 2), np.int8))
    assert copy_solves(ArcTask("same", (), (same,)))
    assert not copy_solves(TASKS[0])


def test_saved_files_and_report_show_failures(tmp_path: Path) -> None:
    submission = submit_known(TASKS, unknown_families=("gravity",))
    (tmp_path / "run.json").write_text("{}")
    folder = tmp_path / "submissions" / "made"
    submission.save(folder, "made <here>")
    assert json.loads((folder / "submission.json").read_text()) == submission.submission()
    assert len((folder / "tasks.jsonl").read_text().splitlines()) == 6
    assert "submitted" in (folder / "failures.svg").read_text()
    page = write_report([tmp_path]).read_text()
    assert "Submission: made &lt;here&gt;" in page
    assert page.count("data:image/svg+xml;base64,") >= 2
    assert "solved: 3 of 6 tasks (50.0%)" in page


def write_task(folder: Path, side: int, **changes: Any) -> None:
    folder.mkdir(exist_ok=True)
    pair = {"input": [[1] * side] * side, "output": [[2] * side] * side}
    (folder / f"t{side}.json").write_text(json.dumps({"train": [pair], "test": [pair]} | changes))


def test_tasks_larger_than_canvas_are_reported(tmp_path: Path) -> None:
    for split, side in (("training", 2), ("evaluation", 3), ("evaluation", 9)):
        write_task(tmp_path / split, side)
    config = box_config(SIDE)
    environment, too_large = submission_env(config, f"{tmp_path}/evaluation")
    assert [task.id for task in environment.task_buffer] == ["t3"]
    assert [task.id for task in too_large] == ["t9"]
    assert environment.config.episode.mode == "evaluation"
    with pytest.raises(ValueError, match="none of the 1 tasks"):
        submission_env(config, str(tmp_path / "evaluation" / "t9.json"))


def test_held_out_evaluation_reports_skipped_tasks(tmp_path: Path) -> None:
    for split, side in (("training", 2), ("evaluation", 3), ("evaluation", 9)):
        write_task(tmp_path / split, side)
    config = box_config(SIDE)
    settings = ArcEvaluationConfig(num_sampled_attempts=0)
    policy = knows(TASKS, (SIDE, SIDE), submits=True)
    dataset = config.dataset.model_copy(update={"source": str(tmp_path)})
    environment = ArcEnvironment.create(config.model_copy(update={"dataset": dataset}))
    with pytest.raises(ValueError, match="evaluation: 1 of 2 tasks do not fit a canvas of 5x5"):
        SPEC.evaluation.run(ArcTasks(environment, 0), policy, settings, False)
    dataset = dataset.model_copy(update={"skip_oversized_tasks": True})
    environment = ArcEnvironment.create(config.model_copy(update={"dataset": dataset}))
    (result,) = SPEC.evaluation.run(ArcTasks(environment, 0), policy, settings, False)
    counts = ("training: 1 of 1", "evaluation: 1 of 2")
    notes = [f"{tmp_path}, {count} tasks fit a canvas of 5x5" for count in counts]
    assert result.describe()[-2:] == list(result.as_record()["notes"]) == notes


def test_tasks_without_test_pairs_are_rejected(tmp_path: Path) -> None:
    write_task(tmp_path / "evaluation", 3)
    write_task(tmp_path / "evaluation", 9, test=[])
    with pytest.raises(ValueError, match="task 't9' has no test pair to answer"):
        submission_env(box_config(SIDE), f"{tmp_path}/evaluation")


def test_submitted_grids_are_read_from_final_state() -> None:
    environment = ArcEnvironment.create(box_config(SIDE, "evaluation"), TASKS)
    state = environment.state_from_grid(TASKS[2].tests[0].output, task=2)
    assert submitted_grids(state) == []
    from phalanx.arc import BboxAction, arc_step

    step = eqx.filter_jit(lambda state, action: arc_step(state, action, environment.config))
    state, *_, info = step(environment.attach_names(state), BboxAction(34, 0, 0, 0, 0))
    ((grid,),) = submitted_grids(state)
    np.testing.assert_array_equal(grid, TASKS[2].tests[0].output)
    assert bool(info.solved)
