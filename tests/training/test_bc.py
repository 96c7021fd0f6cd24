"""Cloning: what the expert says, that policies hand in what they learned, files of episodes, going on."""

import base64
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from phalanx.arc import ArcEnvironment, ArcTask, GridPair, Operation
from phalanx.arc.episode_files import read_recorded_episodes
from phalanx.arc.expert import ArcExpert
from phalanx.arc.planner import action_from_arrays
from phalanx.cli.app import app
from phalanx.data import write_samples
from phalanx.lm import ArcTokenizer, EnvironmentStream
from phalanx.logging.report import read_run
from phalanx.training import CloningTraining, load_arc_policy, load_cloning, train

SMALL = (
    "arc.dataset.max_grid_height=3",
    "arc.dataset.max_grid_width=3",
    "arc.dataset.families=[fill_enclosed]",
    "arc.dataset.num_tasks=8",
    "arc.episode.max_episode_steps=3",
    "network.hidden_dim=8",
    "network.num_layers=1",
    "cloning.num_updates=4",
    "cloning.fresh_tasks=16",
    "cloning.num_envs=32",
    "cloning.num_steps=3",
    "cloning.minibatch=48",
    "evaluation.every=0",
    "evaluation.num_tasks=16",
    "evaluation.attempts=0",
    "logging.sample_frequency=1000",
)


def small(*overrides: str) -> CloningTraining:
    return CloningTraining(load_cloning(None, (*SMALL, *overrides)))


RING = np.array([[3, 3, 3], [3, 0, 3], [3, 3, 3]], np.int8)
TASK = ArcTask("ring", (GridPair(RING, np.full((3, 3), 3, np.int8)),), ())


def test_the_expert_follows_the_solution_repairs_what_went_wrong_and_hands_in_what_is_right():
    expert = ArcExpert(small().arc, (TASK,))
    wrong, right = np.full((3, 3), 3, np.int8), np.full((3, 3), 3, np.int8)
    wrong[0, 0] = wrong[2, 2] = 7
    grids = np.stack([RING, wrong, right])
    labels = expert.labels(np.zeros(3, int), np.zeros(3, int), grids, np.array([0, -1, -1]))
    first = expert.solution(0, 0)
    assert labels.operations[0, 0] == first.operations[0]
    assert first.operations[-1] == Operation.SUBMIT
    assert labels.operations[1].tolist() == [3, 3, -1, -1]
    assert sorted(labels.cells[1, :2].tolist()) == [[0, 0], [2, 2]]
    assert labels.operations[2].tolist() == [Operation.SUBMIT, -1, -1, -1]


def test_an_episode_that_leaves_its_solution_is_planned_from_where_it_stands():
    followed = ArcExpert(small().arc, (TASK,)).follow(
        np.array([0, 1, -1, 2]), np.array([True, False, True, True]), np.array([False, False, False, True])
    )
    assert followed.tolist() == [1, -1, -1, 0]


def test_cloning_needs_an_operation_to_hand_in_with():
    with pytest.raises(ValueError, match=r"add 34 to arc\.action\.allowed_operations"):
        load_cloning(None, ["arc.action.allowed_operations=[0,1,2]"])


def test_every_update_has_tasks_of_its_own_and_none_of_the_held_out_ones():
    training = small()
    rng = np.random.default_rng(0)
    first, second = (set(training._fresh(update, rng).tasks) for update in (0, 1))
    assert len(first) == 16
    assert not first & second
    assert not first & set(training._unseen.task_buffer.tasks)
    again = set(training._fresh(0, rng).tasks)
    assert again == first
    assert set(small()._fresh(1, rng).tasks) == second, (
        "the same where none was made beside the update before"
    )


def test_tasks_of_a_file_come_turned_and_recolored_where_that_is_asked_for(tmp_path: Path):
    pair = {"input": RING.tolist(), "output": np.full((3, 3), 3).tolist()}
    (tmp_path / "ring.json").write_text(json.dumps({"train": [pair], "test": [pair]}))
    training = small(f"arc.dataset.source={tmp_path / 'ring.json'}", "cloning.augment=true",
                     "arc.dataset.families=[]", "evaluation.split=training")  # fmt: skip
    rng = np.random.default_rng(0)
    colors = {int(training._fresh(update, rng)[0].demos[0].input[0, 0]) for update in range(12)}
    assert len(colors) > 3
    assert 0 not in colors
    with pytest.raises(ValueError, match=r"leave cloning\.augment out"):
        small("cloning.augment=true")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("runs") / "bc"
    training = small("cloning.num_updates=30", "cloning.learning_rate=0.01")
    return training, train(training, folder)


def test_a_policy_learns_to_paint_and_then_to_hand_in(trained):
    _, outcome = trained
    before, after = (outcome.evaluations[place]["success_rate"] for place in (0, -1))
    assert before < 0.3
    assert after > 0.9
    assert outcome.evaluations[-1]["steps_to_solve"] >= 1


def test_a_run_is_read_like_one_of_ppo(trained):
    training, outcome = trained
    config, network = load_arc_policy(outcome.run_dir)
    assert config == training.config
    for ours, theirs in zip(
        jax.tree.leaves(network), jax.tree.leaves(training.policy(outcome.state)), strict=True
    ):
        assert np.array_equal(ours, theirs)


def test_a_run_leaves_its_policy_for_the_report(trained):
    training, outcome = trained
    agent = read_run(outcome.run_dir).panels[0].data
    assert agent is not None
    assert len(agent["puzzles"]) == 16
    weights = np.frombuffer(base64.b64decode(agent["network"]["weights"]), "<f4")
    stem = np.asarray(training.policy(outcome.state).stem.weight).ravel()
    assert np.array_equal(weights[: len(stem)], stem)


def test_a_run_that_goes_on_comes_to_the_same_numbers(tmp_path: Path):
    whole = train(small(), tmp_path / "whole")

    def stop(progress):
        if progress.update == 2:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGINT)

    cut = train(small(), tmp_path / "cut", show=stop)
    assert cut.interrupted
    rest = train(small(), tmp_path / "cut", resume=True)
    for ours, theirs in zip(
        jax.tree.leaves(whole.state.params), jax.tree.leaves(rest.state.params), strict=True
    ):
        assert np.array_equal(ours, theirs)


def _scripted(states, count, key):
    """Fills the ring's middle; the environment ends the episode by itself."""
    cells = np.array([[1, 1]], np.int32)
    return action_from_arrays(np.array([3], np.int32), cells), count


def episode_file(path: Path, grids=("input", "working")) -> Path:
    config = small().arc
    play = config.episode.model_copy(update={"require_submit": False})
    environment = ArcEnvironment.create(config.model_copy(update={"episode": play}), TASK)
    stream = EnvironmentStream(
        environment, _scripted, agent_state=np.int32(0), tokenizer=ArcTokenizer("point", grids), episodes=1,
        batch_size=1, dataset_id="rings",
    )  # fmt: skip
    assert write_samples(path, stream) == 1
    return path


def test_episodes_from_a_file_get_the_hand_in_that_they_lack(tmp_path: Path):
    steps = read_recorded_episodes(episode_file(tmp_path / "rings.jsonl"), small().environment)
    assert np.asarray(steps.actions.operation)[:, 0].tolist() == [3, Operation.SUBMIT]
    assert np.array_equal(steps.observations.input_grid[1], RING)
    assert np.array_equal(steps.observations.working_grid[1], np.full((3, 3), 3))


def test_files_that_show_too_little_are_refused(tmp_path: Path):
    path = episode_file(tmp_path / "rings.jsonl", ("working",))
    with pytest.raises(ValueError, match="does not show the input"):
        read_recorded_episodes(path, small().environment)


def test_the_command_learns_from_a_file(tmp_path: Path):
    path = episode_file(tmp_path / "rings.jsonl")
    out = tmp_path / "run"
    result = CliRunner().invoke(
        app, ["train", "bc", "--episodes", str(path), "--out", str(out), *SMALL, "cloning.num_updates=1"]
    )
    assert result.exit_code == 0, result.output
    assert "Handed in right on held-out tasks" in result.output
    assert load_arc_policy(out)[0].cloning.episodes == path
