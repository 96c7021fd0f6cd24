"""PPO on a game that is not ARC: every part against a plain computation, and that it learns."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError

from phalanx.config import format_validation_error
from phalanx.nn.distributions import MaskedCategorical
from phalanx.training import UpdateResult
from phalanx.training.optimizer import OptimizerConfig
from phalanx.training.ppo import PPO, PPOConfig, PPOState
from phalanx.training.rollout import Rollout, collect_rollout, init_rollout
from tests.helpers.short_walk import RIGHT, ShortWalk, Sight, WalkNetwork
from tests.reference.ppo import advantages_of, plain_loss

pytestmark = pytest.mark.slow

ENVS, STEPS = 8, 12
# Steps so large and limits so near that all of the clips matter in the second gradient step. The minibatch of
# 96 steps is computed in three chunks.
CONFIG = PPOConfig(
    num_envs=ENVS,
    num_steps=STEPS,
    num_updates=10,
    update_epochs=2,
    num_minibatches=1,
    microbatch_size=32,
    num_env_shards=4,
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
# Most of the time is compilation.
quickly = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
NUMBERS = jax.device_put(np.arange(ENVS, dtype=np.int32))


make_network = quickly(WalkNetwork)


def network(seed: int = 0) -> WalkNetwork:
    return make_network(jax.random.key(seed))


def ppo(**settings: Any) -> PPO:
    config = PPOConfig(**(CONFIG.model_dump() | settings))
    return PPO(config, ShortWalk(), WalkNetwork)


def equal(one: Any, other: Any) -> bool:
    def bits(leaf: Any) -> np.ndarray:
        return np.asarray(
            jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        )

    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(bits(a), bits(b)) for a, b in pairs)


def close(one: Any, other: Any, **tolerance: float) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


@pytest.fixture(scope="module")
def update() -> Callable[[PPOState], tuple[PPOState, UpdateResult]]:
    return ppo().update


@pytest.fixture(scope="module")
def start() -> Callable[[int], PPOState]:
    def state(seed: int) -> PPOState:
        return ppo().init(jax.random.key(seed), eqx.filter(network(), eqx.is_array))

    return state


# -- a whole update, by hand -----------------------------------------------------------------------


def test_an_update_is_that_of_a_plain_computation(update: Callable, start: Callable) -> None:
    learner = eqx.tree_at(lambda state: state.step, start(0), jnp.int32(5))  # half way
    rate, entropy_weight = 0.06, 0.15
    play_key = jax.random.split(learner.key, 3)[1]
    rollouts, rollout, episodes = quickly(collect_rollout, static_argnums=(0, 4))(
        ShortWalk(), network(), learner.rollout, play_key, STEPS
    )
    rollout = jax.tree.map(np.asarray, rollout)
    advantages = advantages_of(rollout, CONFIG)
    assert rollout.terminated.any() and (rollout.done & ~rollout.terminated).any()

    net, first, second, steps = network(), None, None, []
    gradient = quickly(jax.grad(plain_loss, has_aux=True), static_argnums=(3, 4))
    for number in (1, 2):
        slopes, parts = gradient(net, rollout, advantages, entropy_weight, CONFIG)
        length = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(slopes)))
        steps.append(parts | {"gradient_norm": length})
        shorter = min(1, 0.1 / length)
        slopes = jax.tree.map(lambda leaf, by=shorter: np.asarray(leaf, np.float64) * by, slopes)
        nothing = jax.tree.map(np.zeros_like, slopes)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first or nothing, slopes)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second or nothing, slopes)
        net = jax.tree.map(
            lambda w, m, v, n=number: jnp.asarray(
                w - rate * (m / (1 - 0.9**n)) / (np.sqrt(v / (1 - 0.999**n)) + 1e-5), jnp.float32
            ),
            net,
            first,
            second,
        )
    # The case is one in which everything matters.
    assert steps[1]["clip_fraction"] > 0.1
    assert steps[1].pop("value_clipped") > 0.1
    assert min(step["gradient_norm"] for step in steps) > 0.1
    steps[0].pop("value_clipped")

    after, report = update(learner)
    close(after.params, net, rtol=2e-3, atol=2e-4)
    close((after.opt_state[1].mu, after.opt_state[1].nu), (first, second), rtol=2e-3, atol=1e-6)
    for name in steps[0]:
        expected = (steps[0][name] + steps[1][name]) / 2
        assert float(report.metrics[name]) == pytest.approx(float(expected), rel=2e-3, abs=2e-5), name
    assert float(report.metrics["learning_rate"]) == pytest.approx(rate)
    assert float(report.metrics["ent_coef"]) == pytest.approx(entropy_weight)
    assert float(report.metrics["gradient_steps"]) == 2
    targets = advantages + rollout.values
    explained = 1 - np.mean((targets - rollout.values) ** 2) / targets.var()
    assert float(report.metrics["explained_variance"]) == pytest.approx(explained, rel=1e-3)
    assert equal(report.episodes, jax.tree.map(lambda leaf: np.swapaxes(leaf, 0, 1), episodes))
    assert equal(after.rollout, rollouts)
    assert int(after.step) == 6


# -- reproducible, in parallel, in place -----------------------------------------------------------


def test_the_same_key_gives_the_same_bits_and_another_key_others(update: Callable, start: Callable) -> None:
    one, again, other = update(start(0)), update(start(0)), update(start(1))
    assert equal((one[0], one[1].metrics, one[1].episodes), (again[0], again[1].metrics, again[1].episodes))
    assert not equal(one[0].params, other[0].params)


def test_an_update_consumes_its_state_but_not_the_given_parameters(update: Callable) -> None:
    mine = eqx.filter(network(), eqx.is_array)
    state = ppo().init(jax.random.key(0), mine)
    update(state)  # a donation that cannot be used would be a warning, which is an error here
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((state.params, state.opt_state)))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(mine))


def test_equal_algorithms_share_their_compiled_programs() -> None:
    one, other = ppo(), ppo()
    reseeded = one.with_seed(7)
    assert one == other == reseeded
    assert hash(one) == hash(other) == hash(reseeded)
    assert reseeded.seed == 7
    assert one != ppo(gamma=0.5)


def test_an_update_stops_at_the_target_and_leaves_the_parameters_alone(
    update: Callable, start: Callable
) -> None:
    # The first gradient step moves the policy, the second notices, and the last three are not taken.
    stopped, report = ppo(update_epochs=5, target_kl=1e-6).update(start(0))
    assert float(report.metrics["gradient_steps"]) == 2
    two_epochs, alone = update(start(0))
    close(stopped.params, two_epochs.params, rtol=1e-5, atol=1e-6)
    assert int(stopped.opt_state[1].count) == 2
    for name in ("policy_loss", "approx_kl", "gradient_norm"):
        assert float(report.metrics[name]) == pytest.approx(float(alone.metrics[name]), rel=1e-4), name


# -- minibatches -----------------------------------------------------------------------------------


def order_of(trainer: PPO, numbers: jax.Array, shape: tuple[int, int]) -> jax.Array:
    return quickly(trainer._minibatches, static_argnums=2)(jax.random.key(0), numbers, shape)


def test_every_step_is_used_once_an_epoch_and_each_group_as_often_in_each_minibatch() -> None:
    trainer = ppo(update_epochs=3, num_minibatches=4)
    steps_of_group = ENVS // 4 * STEPS
    order = np.asarray(order_of(trainer, NUMBERS, (4, steps_of_group)))
    assert order.shape == (3 * 4, 4, steps_of_group // 4)
    epochs = order.reshape(3, 4, 4, -1).swapaxes(1, 2).reshape(3, 4, steps_of_group)
    assert (np.sort(epochs) == np.arange(steps_of_group)).all()
    assert not (epochs[0] == epochs[1]).all() and not (epochs[0, 0] == epochs[0, 1]).all()


def test_a_groups_order_is_the_same_on_a_device_that_has_only_half_of_them() -> None:
    trainer, shape = ppo(num_minibatches=4), ENVS // 4 * STEPS
    whole = order_of(trainer, NUMBERS, (4, shape))
    half = order_of(trainer, np.asarray(NUMBERS)[4:], (2, shape))
    np.testing.assert_array_equal(np.asarray(whole)[:, 2:], half)


def test_a_shard_is_neighboring_environments_with_all_of_their_steps(start: Callable) -> None:
    state = start(0)
    key = jax.random.key(0)
    _, batch, _, _ = ppo().collect(state.params, state.rollout, key, key)
    _, rollout, _ = quickly(collect_rollout, static_argnums=(0, 4))(
        ShortWalk(), network(), state.rollout, key, STEPS
    )
    rows, rewards = np.asarray(batch.log_probs), np.asarray(rollout.log_probs)
    assert rows.shape == (4, 2 * STEPS)
    for shard in range(4):
        expected = [rewards[time, env] for env in (2 * shard, 2 * shard + 1) for time in range(STEPS)]
        np.testing.assert_allclose(rows[shard], expected, rtol=1e-4)


# -- playing ---------------------------------------------------------------------------------------


def ruler(sight: Sight) -> tuple[MaskedCategorical, jax.Array]:
    """A network whose value says where and when it is: 10 a cell and 1 a step; it often walks left."""
    return MaskedCategorical(jnp.array([0.5, 0.0]), sight.legal), (
        10.0 * sight.position + sight.clock
    ).astype(jnp.float32)


@pytest.mark.parametrize("envs", [16, 300], ids=["all at once", "truncated ones in chunks"])
def test_a_truncated_episode_is_worth_its_last_observation_and_a_terminated_one_nothing(envs: int) -> None:
    limit = 5
    walk = ShortWalk(limit)

    @quickly
    def play(key: jax.Array) -> tuple:
        rollouts = init_rollout(walk, key, jnp.arange(envs, dtype=jnp.int32))
        return collect_rollout(walk, ruler, rollouts, key, 8)[1:]

    rollout, episodes = jax.tree.map(np.asarray, play(jax.random.key(0)))
    truncated = rollout.done & ~rollout.terminated
    assert truncated.sum() > 5 and rollout.terminated.any()
    before = rollout.observations.position
    after = np.maximum(before + np.where(rollout.actions == RIGHT, 1, -1), 0)
    assert (rollout.next_values[truncated] == 10 * after[truncated] + limit).all()
    assert (rollout.next_values[rollout.terminated] == 0).all()
    running = ~rollout.done
    assert (
        rollout.next_values[running] == 10 * after[running] + rollout.observations.clock[running] + 1
    ).all()
    # And none of it is of the new episode, whose first observations are worth 0 or 10.
    assert (rollout.values[1:][rollout.done[:-1]] <= 10).all()
    assert (episodes["episode_lengths"][truncated] == limit).all()
    np.testing.assert_allclose(episodes["episode_returns"][truncated], -0.05 * limit, rtol=1e-5)
    assert (episodes["success_mask"] == rollout.terminated).all()


def test_no_masked_move_is_ever_played_and_the_log_probabilities_are_the_policys() -> None:
    walk = ShortWalk()

    @quickly
    def play(key: jax.Array) -> Rollout:
        rollouts = init_rollout(walk, key, NUMBERS)
        return collect_rollout(walk, ruler, rollouts, key, 8, microbatch_size=3)[1]

    rollout = jax.device_get(play(jax.random.key(1)))
    assert (rollout.actions[rollout.observations.position == 0] == RIGHT).all()
    right = 1 / (1 + np.exp(0.5))
    forced = np.asarray(rollout.observations.position) == 0
    expected = np.log(np.where(forced, 1.0, np.where(np.asarray(rollout.actions) == RIGHT, right, 1 - right)))
    np.testing.assert_allclose(rollout.log_probs, expected, atol=1e-6)


def test_an_environments_fate_depends_on_its_number_and_not_on_its_batch() -> None:
    walk = ShortWalk()

    @quickly
    def play(numbers: jax.Array) -> Rollout:
        rollouts = init_rollout(walk, jax.random.key(0), numbers)
        return collect_rollout(walk, ruler, rollouts, jax.random.key(1), 8)[1]

    whole, part = (jax.device_get(play(np.asarray(NUMBERS)[own])) for own in (slice(4), slice(2, 4)))
    assert equal(jax.tree.map(lambda leaf: leaf[:, 2:], whole), part)
    assert not equal(whole.actions[:, 0], whole.actions[:, 1])


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
        state, report = algorithm.update(state)
        done = np.asarray(report.episodes["episode_mask"])
        success.append(np.asarray(report.episodes["success_mask"])[done].mean())
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
def test_schedules_go_from_the_first_to_what_would_follow_the_last_update(
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
    both = quickly(jax.vmap(lambda at: (algorithm.learning_rate(at), algorithm.ent_coef(at))))
    rates, bonuses = map(np.asarray, both(np.array([0, 5, 9, 10], np.int32)))
    assert rates == pytest.approx(expected)
    assert bonuses == pytest.approx([2 * rate for rate in expected])


def test_groups_are_lowered_to_divide_the_environments() -> None:
    assert PPOConfig(num_envs=12, num_env_shards=8, num_steps=16, num_minibatches=4).num_shards == 6
    assert PPOConfig(num_envs=7, num_env_shards=5, num_steps=16, num_minibatches=4).num_shards == 1


def test_total_timesteps_set_the_number_of_updates() -> None:
    assert PPOConfig(num_envs=8, num_steps=4, num_minibatches=1, total_timesteps=100).num_updates == 3
    assert PPOConfig(num_envs=8, num_steps=4, num_minibatches=1, total_timesteps=1).num_updates == 1
    assert PPOConfig(total_timesteps=100).total_timesteps is None, "a run can be extended"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"num_envs": 8, "num_env_shards": 4, "num_steps": 5, "num_minibatches": 4},
            "num_minibatches must divide the 10 samples of each of the 4 shards of environments, got 4; "
            "change num_minibatches, num_steps or num_envs",
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
def test_invalid_settings_of_environments_are_rejected(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        PPOConfig(**settings)
    assert words in format_validation_error(caught.value, PPOConfig)
