"""Evaluation of policies with known scores on every pair of a few ARC tasks."""

import json
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.arc import ArcEnvironment, ArcTask, DatasetConfig, EpisodeConfig, GridPair
from phalanx.arc.evaluation import (
    ArcEvalCommandConfig,
    ArcEvaluationConfig,
    ArcEvaluator,
    ArcResult,
    canvas_note,
)
from phalanx.arc.generators import generate_tasks
from phalanx.arc.operations import Operation
from phalanx.arc.spec import SPEC, ArcTasks
from phalanx.core.expert import Expert
from phalanx.logging.records import format_json
from tests.helpers.policies import (
    CELL,
    EVERY_COLOR,
    Paints,
    box_config,
    cell_task,
    knows,
    only,
)

pytestmark = pytest.mark.slow

FAMILIES = ("gravity", "fill_enclosed", "swap_colors")
SIDE = 5
TASKS = generate_tasks(FAMILIES, 6, seed=3, max_height=SIDE, max_width=SIDE, num_demos=2, num_tests=1)


def evaluate_known(mode: str, unknown_families: tuple[str, ...] = ()) -> ArcResult:
    environment = ArcEnvironment.create(box_config(SIDE, mode), TASKS)
    policy = knows(TASKS, (SIDE, SIDE), unknown_families, submits=mode == "evaluation")
    return ArcEvaluator(environment).evaluate(policy)


def evaluate_network(tasks: list[Any], network: Paints, config: Any = CELL, **settings: Any) -> ArcResult:
    return ArcEvaluator(ArcEnvironment.create(config, tasks)).evaluate(network, **settings)


@pytest.mark.parametrize(("mode", "pairs"), [("training", slice(0, 2)), ("evaluation", slice(2, 3))])
def test_perfect_policy_solves_all_pairs_in_solution_length(mode: str, pairs: slice) -> None:
    result = evaluate_known(mode)
    submit = mode == "evaluation"
    lengths = {task.id: [len(solution) + submit for solution in task.solutions[pairs]] for task in TASKS}
    all_lengths = [length for task_lengths in lengths.values() for length in task_lengths]
    assert result.num_episodes == len(all_lengths)
    assert (result.success_rate, result.success_rate_se, result.similarity) == (1.0, 0.0, 1.0)
    assert result.steps_to_solve == pytest.approx(sum(all_lengths) / len(all_lengths))
    assert {id: score["steps_to_solve"] for id, score in result.tasks.items()} == {
        id: pytest.approx(sum(task_lengths) / len(task_lengths)) for id, task_lengths in lengths.items()
    }


def test_idle_policy_solves_nothing() -> None:
    result = evaluate_known("training", unknown_families=FAMILIES)
    assert (result.success_rate, result.steps_to_solve) == (0.0, None)
    assert 0 < result.similarity < 1
    assert all(score["success_rate"] == 0 for score in result.tasks.values())


def test_group_and_task_scores_add_up_to_total() -> None:
    result = evaluate_known("training", unknown_families=("gravity",))
    assert {name: score["success_rate"] for name, score in result.groups.items()} == {
        "gravity": 0.0,
        "fill_enclosed": 1.0,
        "swap_colors": 1.0,
    }
    assert list(result.tasks) == [task.id for task in TASKS]
    for scores in (result.groups, result.tasks):
        assert sum(score["num_episodes"] for score in scores.values()) == result.num_episodes == 12
        for name in ("success_rate", "similarity"):
            total = sum(score["num_episodes"] * score[name] for score in scores.values())
            assert total / result.num_episodes == pytest.approx(getattr(result, name))
        solved = [score for score in scores.values() if score["steps_to_solve"] is not None]
        steps = sum(s["num_episodes"] * s["success_rate"] * s["steps_to_solve"] for s in solved)
        assert steps / (result.num_episodes * result.success_rate) == pytest.approx(result.steps_to_solve)


def test_every_start_pair_counts_once() -> None:
    tasks = [cell_task("a", [2, 2, 3], tests=(4,)), cell_task("b", [], tests=(2, 5))]
    result = evaluate_network(tasks, only(2))
    assert {id: (score["num_episodes"], score["success_rate"]) for id, score in result.tasks.items()} == {
        "a": (3, 2 / 3),
        "b": (2, 1 / 2),
    }
    assert (result.num_episodes, result.success_rate, result.steps_to_solve) == (5, 3 / 5, 1.0)
    assert list(result.groups) == ["no family"]


def test_unsubmitted_tasks_are_not_solved_in_evaluation() -> None:
    tasks = [cell_task("a", [2, 2, 3], tests=(4,)), cell_task("b", [], tests=(2, 5))]
    evaluation = CELL.model_copy(update={"episode": EpisodeConfig(max_episode_steps=1, mode="evaluation")})
    result = evaluate_network(tasks, only(4), evaluation)
    assert (result.num_episodes, result.success_rate, result.similarity) == (2, 0.0, 0.0)


def test_standard_error_is_computed_over_task_means() -> None:
    # The task means are 1, 0, 1, 0: the standard deviation is sqrt(1/3), the standard error half of it.
    tasks = [cell_task(id, [color, color]) for id, color in zip("abcd", (2, 3, 2, 3), strict=True)]
    assert evaluate_network(tasks, only(2)).success_rate_se == pytest.approx(math.sqrt(1 / 3) / 2)
    assert evaluate_network(tasks[:1], only(2)).success_rate_se is None


MANY_TASKS = [
    cell_task(f"task {number}", [number % 9 + 1, number % 7 + 1], family="xyz"[number % 3])
    for number in range(12)
]


def test_samples_are_counted_and_depend_on_seed() -> None:
    result = evaluate_network(MANY_TASKS, EVERY_COLOR, mode="sampled", num_samples=50, pass_at_k=(1, 50))
    assert result.num_episodes == 12 * 2 * 50
    # One color in ten is correct: 120 of 1,200, with a standard deviation of 10.4.
    assert 0.06 < result.success_rate < 0.14
    assert result.pass_at_k[1] == pytest.approx(result.success_rate)
    assert result.pass_at_k[50] > 0.9
    again = evaluate_network(MANY_TASKS, EVERY_COLOR, mode="sampled", num_samples=50, pass_at_k=(1, 50))
    assert again == result
    assert (
        evaluate_network(MANY_TASKS, EVERY_COLOR, mode="sampled", num_samples=50, pass_at_k=(1, 50), seed=1)
        != result
    )


def test_pass_at_k_counts_successes_per_pair() -> None:
    result = evaluate_network(
        [cell_task("a", [2]), cell_task("b", [3])], only(2), mode="sampled", num_samples=4, pass_at_k=(1, 4)
    )
    assert result.pass_at_k == {1: 0.5, 4: 0.5}


def test_larger_num_samples_includes_smaller_one() -> None:
    one = evaluate_network(MANY_TASKS, EVERY_COLOR, mode="sampled", num_samples=1)
    solved = {id for id, score in one.tasks.items() if score["success_rate"] > 0}
    three = evaluate_network(MANY_TASKS, EVERY_COLOR, mode="sampled", num_samples=3)
    assert solved
    assert all(three.tasks[id]["success_rate"] > 0 for id in solved)


@pytest.mark.parametrize("batch_size", [7, 71])
def test_result_does_not_depend_on_batch_size(batch_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"mode": "sampled", "num_samples": 3, "pass_at_k": (2,)}
    expected = evaluate_network(MANY_TASKS, EVERY_COLOR, **settings)
    monkeypatch.setattr("phalanx.arc.evaluation._BATCH_SIZE", batch_size)
    assert evaluate_network(MANY_TASKS, EVERY_COLOR, **settings) == expected


@pytest.mark.parametrize(
    "tasks", [MANY_TASKS[::-1], MANY_TASKS[5:] + MANY_TASKS[:5]], ids=["reversed", "rotated"]
)
def test_result_does_not_depend_on_task_order(tasks: list[Any]) -> None:
    settings = {"mode": "sampled", "num_samples": 3, "pass_at_k": (2,)}
    result, expected = (
        evaluate_network(tasks, EVERY_COLOR, **settings),
        evaluate_network(MANY_TASKS, EVERY_COLOR, **settings),
    )
    assert result.tasks == expected.tasks
    assert result.groups == expected.groups
    assert (result.success_rate, result.similarity) == (expected.success_rate, expected.similarity)


def test_greedy_evaluation_does_not_depend_on_seed() -> None:
    prefers_two = Paints(jnp.zeros(10).at[2].set(0.1))
    tasks = [cell_task("a", [2]), cell_task("b", [3])]
    assert evaluate_network(tasks, prefers_two, seed=0) == evaluate_network(tasks, prefers_two, seed=1)
    assert evaluate_network(tasks, prefers_two).tasks["a"]["success_rate"] == 1.0
    assert evaluate_network(tasks, prefers_two).tasks["b"]["success_rate"] == 0.0


def test_solving_another_pair_does_not_count() -> None:
    config = box_config(1, max_steps=3)
    task = cell_task("a", [2, 3])
    steps = ((Operation.NEXT_DEMO_PAIR, 0), (Operation.FILL_3, 0))
    actions = jnp.array([[[operation, 0, 0, 0, 0] for operation, _ in steps]], jnp.int32)
    network = type(knows(TASKS, (SIDE, SIDE)))(jnp.zeros((1, 1, 1), jnp.int8), actions)
    result = ArcEvaluator(ArcEnvironment.create(config, task)).evaluate(network)
    # The policy switches from the first pair to the second and solves only that one.
    assert result.success_rate == 0.0


def test_as_record_is_json_serializable() -> None:
    result = evaluate_network(MANY_TASKS[:3], only(2), mode="sampled", num_samples=2, pass_at_k=(1, 2))
    record = json.loads(format_json(result.as_record()))
    assert set(record.pop("groups")) == {"x", "y", "z"}
    assert record == {
        "split": "training",
        "mode": "sampled",
        "num_episodes": 12,
        "num_samples": 2,
        "success_rate": pytest.approx(1 / 3),
        "success_rate_se": pytest.approx(1 / 3),
        "similarity": pytest.approx(1 / 3),
        "steps_to_solve": 1.0,
        "pass_at_k": {"1": pytest.approx(1 / 3), "2": pytest.approx(1 / 3)},
        "baselines": {"copy_input": 0.0, "do_nothing": 0.0},
    }
    greedy = evaluate_network(MANY_TASKS[:3], only(1))
    assert "pass_at_k" not in greedy.as_record()
    assert greedy.task_records()[0] == {
        "task": "task 0",
        "num_episodes": 2,
        "success_rate": 1.0,
        "similarity": 1.0,
        "steps_to_solve": 1.0,
    }


def test_description_has_total_and_one_line_per_family() -> None:
    assert evaluate_network(MANY_TASKS[:3], only(2)).describe() == [
        "greedy: 33.3 ± 33.3% of 6 episodes solved, similarity 0.333, 1.0 steps to solve",
        "  x    0.0% of 2, similarity 0.000",
        "  y  100.0% of 2, similarity 1.000, 1.0 steps to solve",
        "  z    0.0% of 2, similarity 0.000",
        "Baselines: submitting the input solves 0.0%, submitting nothing 0%",
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_samples": 0}, "num_samples must be at least 1, got 0"),
        ({"num_samples": 2}, "greedy attempts are identical: use mode='sampled' or num_samples=1, got 2"),
        (
            {"mode": "sampled", "num_samples": 2, "pass_at_k": (4,)},
            "pass@4 needs k between 1 and num_samples",
        ),
    ],
)
def test_invalid_settings_are_reported(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate_network(MANY_TASKS, EVERY_COLOR, **settings)


def small_environment() -> ArcEnvironment:
    size = {"max_grid_height": SIDE, "max_grid_width": SIDE}
    data = DatasetConfig(**size, families=FAMILIES, num_generated_tasks=3)
    return ArcEnvironment.create(box_config(SIDE).model_copy(update={"dataset": data}))


def test_held_out_evaluation_uses_tasks_of_evaluation_split() -> None:
    tasks = ArcTasks(small_environment(), seed=0)
    settings = ArcEvaluationConfig(num_generated_tasks=4, num_sampled_attempts=2)
    held_out = tasks.held_out(settings)
    assert held_out is tasks.held_out(settings.model_copy(update={"num_sampled_attempts": 3}))
    assert held_out.answers is not None
    assert not set(held_out.task_buffer.tasks) & set(tasks.environment.task_buffer.tasks)
    network = knows(TASKS, (SIDE, SIDE), submits=True)
    (during_training,) = SPEC.evaluation.run(tasks, network, settings, False)
    assert (during_training.split, during_training.mode, during_training.num_episodes) == (
        "evaluation",
        "greedy",
        4,
    )
    greedy, sampled = SPEC.evaluation.run(tasks, network, settings, True)
    assert greedy == during_training
    # pass@8 needs more samples than there are.
    assert (sampled.mode, sampled.num_episodes, set(sampled.pass_at_k)) == ("sampled", 8, {1})


def test_training_split_evaluates_on_training_tasks() -> None:
    tasks = ArcTasks(small_environment(), seed=0)
    held_out = tasks.held_out(ArcEvaluationConfig(split="training", num_generated_tasks=50))
    assert held_out.task_buffer.tasks == tasks.environment.task_buffer.tasks


def test_eval_config_with_dataset_gives_submission() -> None:
    network = knows(TASKS, (SIDE, SIDE), submits=True)
    settings = ArcEvalCommandConfig(dataset="generated/evaluation", num_attempts=3)
    assert SPEC.eval_command is not None
    (submission,) = SPEC.eval_command.run(ArcTasks(small_environment(), 0), network, settings, True)
    record = submission.as_record()
    assert (record["split"], record["attempts"], record["num_tasks"]) == ("generated/evaluation", 3, 200)
    assert set(record["baselines"]) == {"copy_input", "random"}


def test_expert_requires_training_mode_and_require_submit() -> None:
    episode = EpisodeConfig(require_submit=True)
    config = box_config(SIDE).model_copy(update={"episode": episode})
    assert SPEC.expert is not None
    assert isinstance(SPEC.expert(ArcEnvironment.create(config, TASKS)), Expert)
    for changed, message in (
        ({"mode": "evaluation"}, "set env.episode.mode=training"),
        ({"require_submit": False}, "set env.episode.require_submit=true"),
    ):
        other = config.model_copy(update={"episode": episode.model_copy(update=changed)})
        with pytest.raises(ValueError, match=message):
            SPEC.expert(ArcEnvironment.create(other, TASKS))


def test_canvas_note_counts_tasks_that_fit() -> None:
    tasks = [ArcTask(f"{n}", (GridPair(np.zeros((n, 2), int), np.zeros((1, 1), int)),), ()) for n in (1, 4)]
    assert canvas_note(tasks, (3, 3)) == "1 of 2 tasks fit a canvas of 3x3"
