"""PPO on a small environment: updates compared with a reference, minibatches, rollouts and learning."""

import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from pydantic import ValidationError

from phalanx.config import format_validation_error
from phalanx.logging import LoggingConfig
from phalanx.nn.distributions import MaskedCategorical
from phalanx.training import Progress, UpdateResult, train
from phalanx.training.optimizer import OptimizerConfig
from phalanx.training.ppo import PPO, PPOConfig, PPOState, bootstrap_values, shuffle_indices
from phalanx.training.rollout import Rollout, collect_rollout, init_rollout
from tests.helpers.short_walk import RIGHT, ShortWalk, Sight, WalkNetwork
from tests.helpers.small_training import metrics_of
from tests.reference.ppo import reference_advantages, reference_loss

pytestmark = pytest.mark.slow

ENVS, STEPS = 8, 12
# The learning rate is so large and the limits are so tight that every kind of clipping has an effect in the
# second gradient step. The minibatch of 96 steps is computed in three microbatches.
CONFIG = PPOConfig(
    num_envs=ENVS,
    num_steps=STEPS,
    num_updates=10,
    update_epochs=2,
    num_minibatches=1,
    microbatch_size=32,
    gamma=0.9,
    gae_lambda=0.8,
    clip_eps=0.1,
    vf_clip_eps=0.05,
    vf_coef=0.7,
    ent_coef=0.2,
    ent_coef_end=0.1,
    optimizer=OptimizerConfig(
        learning_rate=0.1, end_learning_rate=0.02, lr_schedule="linear", max_grad_norm=0.1, eps=1e-5
    ),
)
# Compile without optimization, because compilation takes most of the time.
fast_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
ENV_IDS = jax.device_put(np.arange(ENVS, dtype=np.int32))


make_network = fast_jit(WalkNetwork)


def network(seed: int = 0) -> WalkNetwork:
    return make_network(jax.random.key(seed))


def ppo(**settings: Any) -> PPO:
    config = PPOConfig(**(CONFIG.model_dump() | settings))
    return PPO(config, ShortWalk(), WalkNetwork)


def trees_equal(one: Any, other: Any) -> bool:
    def bits(leaf: Any) -> np.ndarray:
        return np.asarray(
            jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        )

    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(bits(a), bits(b)) for a, b in pairs)


def assert_trees_close(one: Any, other: Any, **tolerance: float) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


@pytest.fixture(scope="module")
def update() -> Callable[[PPOState], tuple[PPOState, UpdateResult]]:
    return ppo().update


@pytest.fixture(scope="module")
def initial_state() -> Callable[[int], PPOState]:
    def state(seed: int) -> PPOState:
        return ppo().init(jax.random.key(seed), eqx.filter(network(), eqx.is_array))

    return state


# -- updates compared with the reference -----------------------------------------------------------


def test_update_matches_the_reference_implementation(update: Callable, initial_state: Callable) -> None:
    state = eqx.tree_at(lambda state: state.step, initial_state(0), jnp.int32(5))  # halfway
    rate, entropy_weight = 0.06, 0.15
    rollout_key = jax.random.split(state.key, 3)[1]
    rollouts, rollout, episodes = fast_jit(collect_rollout, static_argnums=(0, 4))(
        ShortWalk(), network(), state.rollout, rollout_key, STEPS
    )
    next_values = np.asarray(fast_jit(bootstrap_values)(network(), rollout, rollouts.observations))
    rollout = jax.tree.map(np.asarray, rollout)
    advantages = reference_advantages(rollout, next_values, CONFIG)
    assert rollout.terminated.any() and (rollout.done & ~rollout.terminated).any()

    net, first, second, steps = network(), None, None, []
    gradient = fast_jit(jax.grad(reference_loss, has_aux=True), static_argnums=(3, 4))
    for number in (1, 2):
        grads, metrics = gradient(net, rollout, advantages, entropy_weight, CONFIG)
        grad_norm = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(grads)))
        steps.append(metrics | {"gradient_norm": grad_norm})
        scale = min(1, 0.1 / grad_norm)
        grads = jax.tree.map(lambda leaf, by=scale: np.asarray(leaf, np.float64) * by, grads)
        zeros = jax.tree.map(np.zeros_like, grads)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first or zeros, grads)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second or zeros, grads)
        net = jax.tree.map(
            lambda w, m, v, n=number: jnp.asarray(
                w - rate * (m / (1 - 0.9**n)) / (np.sqrt(v / (1 - 0.999**n)) + 1e-5), jnp.float32
            ),
            net,
            first,
            second,
        )
    # Check that every kind of clipping has an effect in this case.
    assert steps[1]["clip_fraction"] > 0.1
    assert steps[1].pop("value_clipped") > 0.1
    assert min(step["gradient_norm"] for step in steps) > 0.1
    steps[0].pop("value_clipped")

    after, result = update(state)
    assert_trees_close(after.params, net, rtol=2e-3, atol=2e-4)
    assert_trees_close((after.opt_state[1].mu, after.opt_state[1].nu), (first, second), rtol=2e-3, atol=1e-6)
    for name in steps[0]:
        expected = (steps[0][name] + steps[1][name]) / 2
        assert float(result.metrics[name]) == pytest.approx(float(expected), rel=2e-3, abs=2e-5), name
    assert float(result.metrics["learning_rate"]) == pytest.approx(rate)
    assert float(result.metrics["ent_coef"]) == pytest.approx(entropy_weight)
    assert float(result.metrics["gradient_steps"]) == 2
    targets = advantages + rollout.values
    explained = 1 - np.mean((targets - rollout.values) ** 2) / targets.var()
    assert float(result.metrics["explained_variance"]) == pytest.approx(explained, rel=1e-3)
    assert trees_equal(result.episodes, episodes)
    assert trees_equal(after.rollout, rollouts)
    assert int(after.step) == 6


# -- reproducibility, compilation and early stopping -----------------------------------------------


def test_update_is_determined_by_the_key(update: Callable, initial_state: Callable) -> None:
    one, again, other = update(initial_state(0)), update(initial_state(0)), update(initial_state(1))
    assert trees_equal(
        (one[0], one[1].metrics, one[1].episodes), (again[0], again[1].metrics, again[1].episodes)
    )
    assert not trees_equal(one[0].params, other[0].params)


def test_update_donates_its_state_but_not_the_initial_parameters(update: Callable) -> None:
    params = eqx.filter(network(), eqx.is_array)
    state = ppo().init(jax.random.key(0), params)
    update(state)  # a donation that cannot be used raises a warning, and warnings are errors
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((state.params, state.opt_state)))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(params))


def test_equal_algorithms_share_their_compiled_programs(caplog: pytest.LogCaptureFixture) -> None:
    one, other, reseeded = ppo(), ppo(), ppo(seed=7)
    assert one == other == reseeded
    assert hash(one) == hash(other) == hash(reseeded)
    assert one != ppo(gamma=0.5)
    state, _ = one.update(one.init(jax.random.key(0)))
    with jax.log_compiles():
        for algorithm in (one, other, reseeded):
            state, _ = algorithm.update(state)
    assert not [message for message in caplog.messages if "Finished XLA compilation" in message]


def test_run_compiles_its_update_once_even_if_it_is_interrupted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def stop(progress: Progress) -> None:
        if progress.update == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    settings = {"num_envs": 4, "num_updates": 4, "evaluation": {"num_episodes": 0}}
    with jax.log_compiles():
        assert train(ppo(**settings), tmp_path / "run", show=stop).interrupted
        assert train(ppo(**settings), tmp_path / "run", resume=True).update == 4
    compiled = [
        message for message in caplog.messages if "Finished XLA compilation of jit(_update)" in message
    ]
    assert len(compiled) == 1


def test_update_stops_at_the_target_kl(update: Callable, initial_state: Callable) -> None:
    # The first step changes the policy, the second exceeds target_kl, and the last three are skipped.
    stopped, result = ppo(update_epochs=5, target_kl=1e-6).update(initial_state(0))
    assert float(result.metrics["gradient_steps"]) == 2
    two_epochs, expected = update(initial_state(0))
    assert_trees_close(stopped.params, two_epochs.params, rtol=1e-5, atol=1e-6)
    assert int(stopped.opt_state[1].count) == 2
    for name in ("policy_loss", "approx_kl", "gradient_norm"):
        assert float(result.metrics[name]) == pytest.approx(float(expected.metrics[name]), rel=1e-4), name


# -- minibatches -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 7, 96, 70_000])
def test_shuffled_indices_are_a_random_permutation(count: int) -> None:
    one, again, other = (np.asarray(shuffle_indices(jax.random.key(seed), count)) for seed in (0, 0, 1))
    assert (np.sort(one) == np.arange(count)).all()
    assert (one == again).all()
    assert count == 1 or not (one == other).all()


def test_every_index_is_equally_likely_in_every_position() -> None:
    keys = jax.random.split(jax.random.key(0), 6000)
    orders = np.asarray(jax.vmap(lambda key: shuffle_indices(key, 6))(keys))
    counts = [np.bincount(orders[:, position], minlength=6) for position in range(6)]
    assert np.min(counts) > 850 and np.max(counts) < 1150


def test_epochs_use_every_step_once() -> None:
    trainer = ppo(update_epochs=3, num_minibatches=4)
    minibatches = np.asarray(trainer.minibatches(jax.random.key(0), ENVS * STEPS))
    assert minibatches.shape == (3 * 4, ENVS * STEPS // 4)
    epochs = minibatches.reshape(3, ENVS * STEPS)
    assert (np.sort(epochs) == np.arange(ENVS * STEPS)).all()
    assert not (epochs[0] == epochs[1]).all()


# -- rollouts --------------------------------------------------------------------------------------


def position_network(sight: Sight) -> tuple[MaskedCategorical, jax.Array]:
    """A network with the value 10 * position + clock and a policy that prefers to walk left."""
    return MaskedCategorical(jnp.array([0.5, 0.0]), sight.action_mask), (
        10.0 * sight.position + sight.clock
    ).astype(jnp.float32)


@pytest.mark.parametrize("envs", [16, 300], ids=["all at once", "truncated episodes in chunks"])
def test_next_value_is_bootstrapped_on_truncation_and_zero_on_termination(envs: int) -> None:
    limit = 5
    walk = ShortWalk(limit)

    @fast_jit
    def roll_out(key: jax.Array) -> tuple:
        rollouts = init_rollout(walk, key, jnp.arange(envs, dtype=jnp.int32))
        end, rollout, episodes = collect_rollout(walk, position_network, rollouts, key, 8)
        return rollout, bootstrap_values(position_network, rollout, end.observations), episodes

    rollout, next_values, episodes = jax.tree.map(np.asarray, roll_out(jax.random.key(0)))
    truncated = rollout.done & ~rollout.terminated
    assert truncated.sum() > 5 and rollout.terminated.any()
    before = rollout.observations.position
    after = np.maximum(before + np.where(rollout.actions == RIGHT, 1, -1), 0)
    assert (next_values[truncated] == 10 * after[truncated] + limit).all()
    assert (next_values[rollout.terminated] == 0).all()
    running = ~rollout.done
    assert (next_values[running] == 10 * after[running] + rollout.observations.clock[running] + 1).all()
    # Values after the end are those of the new episode, whose first observations have the value 0 or 10.
    assert (rollout.values[1:][rollout.done[:-1]] <= 10).all()
    assert (episodes["episode_lengths"][truncated] == limit).all()
    np.testing.assert_allclose(episodes["episode_returns"][truncated], -0.05 * limit, rtol=1e-5)
    assert (episodes["success_mask"] == rollout.terminated).all()


def test_masked_actions_are_never_taken_and_log_probs_are_those_of_the_policy() -> None:
    walk = ShortWalk()

    @fast_jit
    def roll_out(key: jax.Array) -> Rollout:
        rollouts = init_rollout(walk, key, ENV_IDS)
        return collect_rollout(walk, position_network, rollouts, key, 8, microbatch_size=3)[1]

    rollout = jax.device_get(roll_out(jax.random.key(1)))
    assert (rollout.actions[rollout.observations.position == 0] == RIGHT).all()
    right = 1 / (1 + np.exp(0.5))
    forced = np.asarray(rollout.observations.position) == 0
    expected = np.log(np.where(forced, 1.0, np.where(np.asarray(rollout.actions) == RIGHT, right, 1 - right)))
    np.testing.assert_allclose(rollout.log_probs, expected, atol=1e-6)


def test_episodes_depend_on_the_environment_id_and_not_on_the_batch() -> None:
    walk = ShortWalk()

    @fast_jit
    def roll_out(env_ids: jax.Array) -> Rollout:
        rollouts = init_rollout(walk, jax.random.key(0), env_ids)
        return collect_rollout(walk, position_network, rollouts, jax.random.key(1), 8)[1]

    complete, part = (jax.device_get(roll_out(np.asarray(ENV_IDS)[own])) for own in (slice(4), slice(2, 4)))
    assert trees_equal(jax.tree.map(lambda leaf: leaf[:, 2:], complete), part)
    assert not trees_equal(complete.actions[:, 0], complete.actions[:, 1])


def test_ppo_learns_to_walk_to_the_end() -> None:
    config = PPOConfig(
        num_envs=32,
        num_steps=16,
        num_updates=30,
        num_minibatches=4,
        microbatch_size=None,
        optimizer=CONFIG.optimizer.model_copy(
            update={"learning_rate": 0.03, "end_learning_rate": 0.01, "max_grad_norm": 0.5}
        ),
    )
    algorithm = PPO(config, ShortWalk(), WalkNetwork)
    state, success = algorithm.init(jax.random.key(0)), []
    for _ in range(config.num_updates):
        state, result = algorithm.update(state)
        done = np.asarray(result.episodes["episode_mask"])
        success.append(np.asarray(result.episodes["success_mask"])[done].mean())
    assert success[0] < 0.5
    assert np.mean(success[-5:]) > 0.9


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1.0, 1.0, 1.0, 1.0]),
        ("linear", [1.0, 0.6, 0.28, 0.2]),
        # 0.2 + 0.8 * (1 + cos(0.9 pi)) / 2
        ("cosine", [1.0, 0.6, 0.2195774, 0.2]),
    ],
)
def test_schedules_start_at_the_first_update_and_end_after_the_last(
    schedule: str, expected: list[float]
) -> None:
    config = PPOConfig(
        num_updates=10,
        optimizer=OptimizerConfig(learning_rate=1.0, end_learning_rate=0.2, lr_schedule=schedule),
        ent_coef=2.0,
        ent_coef_end=0.4,
        ent_schedule=schedule,
    )
    algorithm = PPO(config, ShortWalk(), WalkNetwork)
    schedules = fast_jit(jax.vmap(lambda at: (algorithm.learning_rate(at), algorithm.ent_coef(at))))
    rates, ent_coefs = map(np.asarray, schedules(np.array([0, 5, 9, 10], np.int32)))
    assert rates == pytest.approx(expected)
    assert ent_coefs == pytest.approx([2 * rate for rate in expected])


def test_total_timesteps_set_the_number_of_updates() -> None:
    assert PPOConfig(num_envs=8, num_steps=4, num_minibatches=1, total_timesteps=100).num_updates == 3
    assert PPOConfig(num_envs=8, num_steps=4, num_minibatches=1, total_timesteps=1).num_updates == 1
    assert PPOConfig(total_timesteps=100).total_timesteps is None, "a run can be extended"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"num_envs": 2, "num_steps": 5, "num_minibatches": 4},
            "num_minibatches must divide the 10 samples of an update, got 4; change num_minibatches, "
            "num_steps or num_envs",
        ),
        ({"gamma": 1.5}, "gamma must be between 0 and 1, got 1.5"),
        ({"clip_eps": 0}, "clip_eps must be more than 0.0, got 0"),
        ({"num_envs": 0}, "num_envs must be"),
        (
            {"optimizer": {"lr_schedule": "liner"}},
            "optimizer.lr_schedule must be 'constant', 'linear' or 'cosine'",
        ),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        PPOConfig(**settings)
    assert message in format_validation_error(caught.value, PPOConfig)


def test_means_of_episodes_are_reported_once_every_environment_can_have_finished_one(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"num_envs": 64, "num_steps": 2, "num_updates": 5, "microbatch_size": None}
    settings |= {"logging": LoggingConfig(log_frequency=1), "evaluation": {"num_episodes": 0}}
    # A third of the episodes end in the first update, all of them at the goal.
    environment = ShortWalk(max_episode_steps=8, num_cells=3)
    seen: list[Progress] = []
    config = PPOConfig(**(CONFIG.model_dump() | settings))
    train(PPO(config, environment, WalkNetwork), tmp_path / "run", show=seen.append)
    assert ["reward_mean" in progress.metrics for progress in seen] == [False, False, False, True, True]
    logged = metrics_of(tmp_path / "run")
    for update in (1, 2, 3):
        assert logged[update]["num_episodes"] == 0
        assert not {"reward_mean", "success_rate", "episode_length_mean"} & logged[update].keys()
    for update in (4, 5):
        assert logged[update]["num_episodes"] == seen[update - 1].num_episodes > 0
        assert logged[update]["reward_mean"] == pytest.approx(seen[update - 1].metrics["reward_mean"])


def test_means_of_episodes_are_reported_when_every_environment_has_finished_one() -> None:
    """The limit of an environment may be much longer than its episodes."""
    long = ShortWalk(max_episode_steps=1000)
    ended, lengths = np.zeros((12, 2), bool), np.tile(np.arange(1, 13), (2, 1)).T
    ended[4, 0], lengths[5:, 0] = True, np.arange(1, 8)

    def reported(step: int) -> Any:
        """Return the mask of update `step`, whose environments are distributed over the mesh."""
        algorithm = PPO(CONFIG, long, WalkNetwork)
        episodes = {"episode_mask": jnp.asarray(ended), "episode_lengths": jnp.asarray(lengths)}
        return jax.shard_map(
            lambda: algorithm.unbiased_episodes(long, episodes, jnp.int32(step)),
            mesh=algorithm.mesh,
            in_specs=(),
            out_specs=PartitionSpec(),
            check_vma=False,
        )()

    assert not reported(0).any()
    np.testing.assert_array_equal(reported(83), ended)
    ended[11, 1] = True
    np.testing.assert_array_equal(reported(0), ended)
