"""Behavior cloning: expert labels, tasks of each update, and learning."""

import base64
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.arc import ArcEnvironment, ArcTask, GridPair, Operation
from phalanx.arc.expert import ArcExpert
from phalanx.arc.state import ArcState
from phalanx.core.expert import ExpertLabels
from phalanx.logging.report import load_run
from phalanx.training import BC, BCConfig, OptimizerConfig, train
from tests.helpers.short_walk import RIGHT, ShortWalk, WalkNetwork

pytestmark = pytest.mark.slow

SMALL = (
    "env.dataset.max_grid_height=3",
    "env.dataset.max_grid_width=3",
    "env.dataset.families=[fill_enclosed]",
    "env.dataset.num_generated_tasks=8",
    "env.episode.max_episode_steps=3",
    "network.hidden_dim=8",
    "network.num_layers=1",
    "num_updates=4",
    "env.dataset.tasks_per_update=16",
    "num_envs=32",
    "num_steps=3",
    "minibatch_size=48",
    "evaluation.every=0",
    "evaluation.num_generated_tasks=16",
    "evaluation.num_sampled_attempts=0",
    "logging.sample_frequency=1000",
)


def make_bc(*overrides: str) -> BC:
    return BC(BCConfig.load("arc", (*SMALL, *overrides)))


RING = np.array([[3, 3, 3], [3, 0, 3], [3, 3, 3]], np.int8)
TASK = ArcTask("ring", (GridPair(RING, np.full((3, 3), 3, np.int8)),), ())


def states_with(grids: list[np.ndarray]) -> ArcState:
    """Return a batch of states of the task `TASK` with the given working grids."""
    environment = ArcEnvironment.create(make_bc().environment.config, TASK)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(environment.state_from_grid, grids))


def test_expert_follows_the_solution_repairs_errors_and_submits_correct_grids():
    expert = ArcExpert(make_bc().environment.config, (TASK,))
    wrong, right = np.full((3, 3), 3, np.int8), np.full((3, 3), 3, np.int8)
    wrong[0, 0] = wrong[2, 2] = 7
    grids = [RING, wrong, right]
    labels = expert.label(states_with(grids), np.array([0, -1, -1]))
    first, operations = expert.solution(0, 0), labels.actions.operation
    assert operations[0, 0] == first.operations[0]
    assert first.operations[-1] == Operation.SUBMIT
    assert operations[1].tolist() == [3, 3, -1, -1]
    assert labels.mask[1].tolist() == [True, True, False, False]
    assert sorted(zip(labels.actions.row[1, :2], labels.actions.col[1, :2], strict=True)) == [(0, 0), (2, 2)]
    assert operations[2].tolist() == [Operation.SUBMIT, -1, -1, -1]


def test_episode_that_leaves_its_solution_is_replanned_from_the_current_grid():
    expert = ArcExpert(make_bc().environment.config, (TASK,))
    labels = expert.label(states_with([RING] * 4), np.zeros(4, int))
    actions = jax.tree.map(lambda field: np.array(field[:, 0]), labels.actions)
    actions.operation[1] = 7
    reset = np.array([False, False, False, True])
    assert expert.advance(np.array([0, 1, -1, 2]), labels, actions, reset).tolist() == [1, -1, -1, 0]
    assert expert.must_act(actions, labels).tolist() == [False] * 4
    actions.operation[2] = Operation.SUBMIT
    assert expert.must_act(actions, labels).tolist() == [False, False, True, False]


def test_expert_requires_the_submit_operation():
    config = make_bc().environment.config
    action = config.action.model_copy(update={"allowed_operations": (0, 1, 2)})
    with pytest.raises(ValueError, match=r"add 34 \(Submit\) to env\.action\.allowed_operations"):
        ArcExpert(config.model_copy(update={"action": action}), (TASK,))
    without_submit = config.episode.model_copy(update={"require_submit": False})
    with pytest.raises(ValueError, match=r"set env\.episode\.require_submit=true"):
        ArcEnvironment.create(config.model_copy(update={"episode": without_submit}), TASK).expert()


def tasks_of(training: BC, update: int) -> tuple[ArcTask, ...]:
    return training.prepare_tasks(update)[0].task_buffer.tasks


def test_updates_use_different_tasks_and_no_held_out_tasks():
    training = make_bc()
    first, second = (set(tasks_of(training, update)) for update in (0, 1))
    assert len(first) == 16
    assert not first & second
    assert not first & set(training.environment.held_out(training.config.evaluation).task_buffer.tasks)
    assert set(tasks_of(training, 0)) == first
    assert set(tasks_of(make_bc(), 1)) == second
    assert set(tasks_of(make_bc("seed=1"), 0)) != first


def test_tasks_from_a_file_are_augmented_if_requested(tmp_path: Path):
    pair = {"input": RING.tolist(), "output": np.full((3, 3), 3).tolist()}
    (tmp_path / "ring.json").write_text(json.dumps({"train": [pair], "test": [pair]}))
    training = make_bc(f"env.dataset.source={tmp_path / 'ring.json'}", "env.dataset.augment=true",
                     "env.dataset.families=[]", "evaluation.split=training")  # fmt: skip
    colors = {int(tasks_of(training, update)[0].demos[0].input[0, 0]) for update in range(12)}
    assert len(colors) > 3
    assert 0 not in colors
    with pytest.raises(ValueError, match="augment must be false for generated tasks"):
        make_bc("env.dataset.augment=true")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("runs") / "bc"
    training = make_bc("num_updates=30", "optimizer.learning_rate=0.01")
    return training, train(training, folder)


def test_policy_learns_to_solve_and_submit_tasks(trained):
    _, outcome = trained
    before, after = (outcome.evaluations[index]["success_rate"] for index in (0, -1))
    assert before < 0.3
    assert after > 0.9
    assert outcome.evaluations[-1]["steps_to_solve"] >= 1


def test_run_exports_its_policy_for_the_report(trained):
    training, outcome = trained
    agent = load_run(outcome.run_dir).panels[0].data
    assert agent is not None
    assert len(agent["puzzles"]) == 16
    weights = np.frombuffer(base64.b64decode(agent["network"]["weights"]), "<f4")
    stem = np.asarray(training.policy(outcome.state).stem.weight).ravel()
    assert np.array_equal(weights[: len(stem)], stem)


class WalkExpert:
    """An expert that always walks right and has no label in the first cell."""

    def init(self, states):
        return ()

    def label(self, states, memory):
        position = np.asarray(states.position)
        return ExpertLabels(np.full((len(position), 1), RIGHT, np.int32), (position > 0)[:, None])

    def must_act(self, actions, labels):
        return np.zeros(len(labels.mask), bool)

    def advance(self, memory, labels, actions, reset):
        return memory


class WalkWithExpert(ShortWalk):
    def expert(self):
        return WalkExpert()


WALK = BCConfig(
    num_envs=16,
    num_steps=8,
    num_updates=20,
    minibatch_size=32,
    optimizer=OptimizerConfig(learning_rate=0.03, eps=1e-5),
)


def test_environment_with_an_expert_can_be_cloned():
    training = BC(WALK, WalkWithExpert(), WalkNetwork)
    state, losses, counts = training.init(jax.random.key(0)), [], []
    for _ in range(20):
        state, result = training.update(state)
        losses.append(float(result.metrics["loss"]))
        counts.append(int(result.counts["env_steps"]))
    training.close()
    assert losses[-1] < 0.1 < losses[0]
    assert float(result.metrics["accuracy"]) == 1.0
    assert max(counts) < 16 * 8, "states without a label are not trained on"


def test_logged_return_is_the_sum_of_the_rewards_of_an_episode():
    # With the reward 1 for every step, the return of an episode is its length.
    training = BC(WALK, WalkWithExpert(step_reward=1.0), WalkNetwork)
    _, result = training.update(training.init(jax.random.key(0)))
    training.close()
    ended = result.episodes["episode_mask"]
    assert ended.any()
    returns, lengths = (result.episodes[f"episode_{name}"][ended] for name in ("returns", "lengths"))
    assert lengths.max() > 1
    np.testing.assert_array_equal(returns, lengths)


def test_environment_without_an_expert_is_rejected():
    with pytest.raises(ValueError, match="ShortWalk has no expert, which behavior cloning needs"):
        BC(WALK, ShortWalk(), WalkNetwork)
