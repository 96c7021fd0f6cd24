"""Behavior cloning: expert labels, tasks of each update, and learning."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.arc import ArcEnvironment, ArcTask, GridPair, Operation
from phalanx.arc.expert import ArcExpert
from phalanx.arc.spec import SPEC
from phalanx.arc.state import ArcState
from phalanx.core.expert import ExpertLabels
from phalanx.core.spec import EnvSpec
from phalanx.training import BC, BCConfig, OptimizerConfig, bc, train
from tests.helpers.short_walk import RIGHT, ShortWalk, Sight, WalkNetwork

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
        SPEC.expert(ArcEnvironment.create(config.model_copy(update={"episode": without_submit}), TASK))


def tasks_of(training: BC, update: int) -> tuple[ArcTask, ...]:
    return training.tasks.training(update).task_buffer.tasks


def test_updates_use_different_tasks_and_no_held_out_tasks():
    training = make_bc()
    first, second = (set(tasks_of(training, update)) for update in (0, 1))
    assert len(first) == 16
    assert not first & second
    assert not first & set(training.tasks.held_out(training.config.evaluation).task_buffer.tasks)
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


WALK_WITH_EXPERT = EnvSpec(ShortWalk, expert=lambda environment: WalkExpert())
WALK = BCConfig(
    env={"id": f"{__name__}:WALK_WITH_EXPERT"},
    num_envs=16,
    num_steps=8,
    num_updates=20,
    minibatch_size=32,
    optimizer=OptimizerConfig(learning_rate=0.03, eps=1e-5),
)


def test_environment_with_an_expert_can_be_cloned():
    training = BC(WALK, network=WalkNetwork)
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
    training = BC(WALK, ShortWalk(step_reward=1.0), WalkNetwork)
    _, result = training.update(training.init(jax.random.key(0)))
    training.close()
    ended = result.episodes["episode_mask"]
    assert ended.any()
    returns, lengths = (result.episodes[f"episode_{name}"][ended] for name in ("returns", "lengths"))
    assert lengths.max() > 1
    np.testing.assert_array_equal(returns, lengths)


def test_environment_without_an_expert_is_rejected():
    with pytest.raises(ValueError, match="ShortWalk has no expert, which behavior cloning needs"):
        BC(BCConfig(), ShortWalk(), WalkNetwork)


# -- gradient steps --------------------------------------------------------------------------------


def labeled_steps(count: int) -> tuple[Sight, ExpertLabels]:
    """Return steps of which the expert labels all but every fourth."""
    rng = np.random.default_rng(0)
    position = rng.integers(0, 5, count).astype(np.int32)
    sights = Sight(
        position, np.zeros(count, np.int32), np.stack([position > 0, np.ones(count, bool)], axis=1)
    )
    labels = ExpertLabels(np.full((count, 1), RIGHT, np.int32), (np.arange(count) % 4 > 0)[:, None])
    return sights, labels


def learn(training: BC, minibatches: np.ndarray, num_minibatches: int) -> tuple[Any, ...]:
    state, steps = training.init(jax.random.key(0)), labeled_steps(40)
    count = np.int32(num_minibatches)
    return bc._learn(training, state.params, state.opt_state, steps, minibatches, count, state.step)


@pytest.mark.parametrize(("labeled", "minibatch_size"), [(96, 32), (97, 32), (5, 32), (128, 128), (70, 500)])
def test_every_labeled_step_is_used_once_per_epoch(labeled: int, minibatch_size: int):
    config = WALK.model_copy(update={"minibatch_size": minibatch_size, "update_epochs": 3})
    steps, rng = np.arange(1000, 1000 + labeled), np.random.default_rng(0)
    minibatches = BC(config, network=WalkNetwork)._minibatches(steps, rng)
    per_epoch = -(-labeled // minibatch_size)
    assert (minibatches[3 * per_epoch :] == -1).all()
    epochs = minibatches[: 3 * per_epoch].reshape(3, -1)
    for epoch in epochs:
        assert np.array_equal(np.sort(epoch[epoch >= 0]), steps)
    # All minibatches of an epoch but the last one are complete.
    sizes = (minibatches[: 3 * per_epoch] >= 0).sum(axis=1).reshape(3, -1)
    assert (sizes[:, :-1] == minibatch_size).all()
    assert labeled < 10 or not np.array_equal(epochs[0], epochs[1])


def test_loss_and_gradient_are_means_over_the_labeled_steps_of_a_minibatch():
    training = BC(WALK, network=WalkNetwork)
    network = training.policy(training.init(jax.random.key(0)))
    sights, labels = labeled_steps(40)
    rows = np.flatnonzero(labels.mask[:, 0])[:11]

    def reference(network: WalkNetwork) -> jax.Array:
        chosen = jax.tree.map(lambda leaf: jnp.asarray(leaf[rows]), sights)
        logits = jax.vmap(lambda sight: network(sight)[0].logits)(chosen)
        illegal = ~sights.action_mask[rows]
        return -jnp.mean(jax.nn.log_softmax(jnp.where(illegal, -jnp.inf, logits))[:, RIGHT])

    minibatches = np.full((2, 16), -1, np.int32)
    minibatches[0, :11] = rows
    minibatches[1, :3] = rows[:3]  # not used
    _, opt_state, metrics = learn(training, minibatches, 1)
    loss, gradient = jax.value_and_grad(reference)(network)
    norm = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(gradient)))
    assert float(metrics["loss"]) == pytest.approx(float(loss), rel=1e-5)
    assert float(metrics["gradient_norm"]) == pytest.approx(norm, rel=1e-4)
    assert 0 < norm < WALK.optimizer.max_grad_norm, "the gradient is not clipped"
    for own, expected in zip(jax.tree.leaves(opt_state[1].mu), jax.tree.leaves(gradient), strict=True):
        np.testing.assert_allclose(own, 0.1 * expected, rtol=1e-4, atol=1e-7)


def test_result_does_not_depend_on_padding():
    training = BC(WALK, network=WalkNetwork)
    rows = np.flatnonzero(labeled_steps(40)[1].mask[:, 0])[:24]
    exact, padded = rows.reshape(2, 12), np.full((5, 32), -1)
    padded[:2, :12] = exact
    one, other = (learn(training, order.astype(np.int32), 2) for order in (exact, padded))
    for own, expected in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-7)


def test_updates_with_other_numbers_of_labels_share_one_program(caplog: pytest.LogCaptureFixture):
    training = BC(WALK, network=WalkNetwork)
    state, result = training.update(training.init(jax.random.key(0)))
    counts = {int(result.counts["env_steps"])}
    with jax.log_compiles():
        for _ in range(3):
            state, result = training.update(state)
            counts.add(int(result.counts["env_steps"]))
    training.close()
    assert len(counts) > 1
    assert not [message for message in caplog.messages if "Finished XLA compilation" in message]
