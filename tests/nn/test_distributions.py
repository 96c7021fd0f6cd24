"""Masked categorical distributions, which never give an illegal choice, normal and factored distributions."""

import functools
import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings, strategies as st

from phalanx.nn.distributions import (
    DiagonalGaussian,
    Distribution,
    Factored,
    MaskedCategorical,
    entropy as entropy_of,
    masked_log_softmax,
    sample_by_uniform,
)

CHOICES = 5
ALL = np.arange(CHOICES, dtype=np.int32)
# Most of the time is compilation, and these programs are small.
quickly = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
JUST_BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))

log_probs = quickly(lambda logits, mask: jax.vmap(MaskedCategorical(logits, mask).log_prob)(ALL))
entropy = quickly(lambda logits, mask: MaskedCategorical(logits, mask).entropy())
mode = quickly(lambda logits, mask: MaskedCategorical(logits, mask).mode())
samples = quickly(lambda logits, mask, keys: jax.vmap(MaskedCategorical(logits, mask).sample)(keys))
draw = quickly(sample_by_uniform)
draw_all = quickly(jax.vmap(sample_by_uniform, (0, None)))


def by_hand(logits: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Probabilities in double precision, from the definition."""
    weights = np.where(mask, np.exp(logits.astype(np.float64) - logits[mask].max()), 0.0)
    return weights / weights.sum()


logits_and_masks = st.tuples(
    st.lists(st.floats(-20, 20, width=32), min_size=CHOICES, max_size=CHOICES),
    st.lists(st.booleans(), min_size=CHOICES, max_size=CHOICES).filter(any),
).map(lambda case: (np.array(case[0], np.float32), np.array(case[1])))


@settings(deadline=None)
@given(logits_and_masks)
def test_probabilities_and_entropy_are_those_of_the_definition(case: tuple[np.ndarray, np.ndarray]) -> None:
    expected = by_hand(*case)
    got = np.exp(np.asarray(log_probs(*case), np.float64))
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-9)
    assert got.sum() == pytest.approx(1, abs=1e-5)
    surprise = -np.sum(expected[expected > 0] * np.log(expected[expected > 0]))
    assert float(entropy(*case)) == pytest.approx(surprise, abs=1e-4)


@settings(deadline=None)
@given(logits_and_masks)
def test_mode_is_the_most_probable_legal_choice(case: tuple[np.ndarray, np.ndarray]) -> None:
    logits, mask = case
    chosen = int(mode(logits, mask))
    assert mask[chosen]
    # Logits that differ by less than a log-probability can show are a tie.
    assert logits[chosen] == pytest.approx(logits[mask].max(), abs=1e-4)


def test_equal_logits_share_probability_among_legal_choices() -> None:
    logits, mask = np.array([0.0, 50, 0, 0, 0], np.float32), np.array([True, False, True, False, False])
    np.testing.assert_allclose(
        log_probs(logits, mask), [np.log(0.5), -np.inf, np.log(0.5), -np.inf, -np.inf], rtol=1e-6
    )
    assert float(entropy(logits, mask)) == pytest.approx(np.log(2))


def test_without_a_mask_every_choice_is_legal() -> None:
    logits = np.array([0.5, -1.0, 2.0, 0.0, 3.0], np.float32)

    @quickly
    def both(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
        choice = MaskedCategorical(logits)
        return choice.log_probs(), choice.mode()

    logs, likeliest = both(logits)
    np.testing.assert_allclose(np.exp(logs), by_hand(logits, np.ones(5, bool)), rtol=1e-5)
    assert int(likeliest) == 4


def test_sampled_frequencies_are_the_probabilities() -> None:
    logits, mask = np.array([0.0, 1.0, 9.0, -1.0, 0.5], np.float32), np.array([True, True, False, True, True])
    count = 20_000
    drawn = samples(logits, mask, jax.random.split(jax.random.key(7), count))
    seen, expected = np.bincount(drawn, minlength=CHOICES), count * by_hand(logits, mask)
    assert seen[2] == 0
    chi_square = np.sum((seen - expected)[mask] ** 2 / expected[mask])
    assert chi_square < 16.27  # what three degrees of freedom pass once in a thousand


@pytest.mark.parametrize(
    ("uniform", "chosen"),
    [(0.0, 1), (0.24, 1), (0.26, 3), (0.5, 3), (0.99, 3), (JUST_BELOW_ONE, 3)],
)
def test_sampling_skips_choices_with_probability_zero(uniform: float, chosen: int) -> None:
    with np.errstate(divide="ignore"):
        logs = np.log(np.array([0.0, 0.25, 0.0, 0.75, 0.0], np.float32))
    assert int(draw(np.float32(uniform), logs)) == chosen


def test_rounding_never_selects_a_choice_with_probability_zero() -> None:
    generator = np.random.default_rng(0)
    weights = generator.random((4096, 25)) ** 4 * (generator.random((4096, 25)) < 0.5)

    @quickly
    def begin(weights: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        logs = jax.nn.log_softmax(jnp.where(weights > 0, jnp.log(weights), -jnp.inf)).astype(jnp.float32)
        probs = jnp.exp(logs)
        return logs, probs, jax.vmap(lambda row: jax.lax.associative_scan(jnp.add, row))(probs)

    logs, probs, sums = jax.device_get(begin(weights))
    policies, places = np.nonzero((np.diff(sums) > 0) & (probs[:, 1:] == 0))
    assert len(policies) > 100
    # Exactly the sum before the impossible choice, which is passed where the impossible one's is not.
    uniforms = sums[policies, places] / sums[policies, -1]
    drawn = quickly(jax.vmap(sample_by_uniform))(uniforms, logs[policies])
    assert (probs[policies, drawn] > 0).all()


@settings(max_examples=50, deadline=None)
@given(logits_and_masks, st.floats(0, float(JUST_BELOW_ONE), width=32))
def test_sample_is_legal_for_any_uniform_number(case: tuple[np.ndarray, np.ndarray], uniform: float) -> None:
    uniforms = np.array([0.0, uniform, JUST_BELOW_ONE], np.float32)
    assert case[1][np.asarray(draw_all(uniforms, log_probs(*case)))].all()


def test_a_single_legal_choice_is_certain() -> None:
    logits, mask = np.zeros(CHOICES, np.float32), np.array([False, False, False, True, False])
    keys = jax.random.split(jax.random.key(0), 16)
    assert samples(logits, mask, keys).tolist() == [3] * 16
    assert float(np.asarray(log_probs(logits, mask))[3]) == 0
    assert float(entropy(logits, mask)) == 0


def test_gradients_are_finite_under_a_mask_and_zero_for_masked_logits() -> None:
    logits, mask = np.array([0.0, 3, -2, 1, 4], np.float32), np.array([True, False, True, True, False])

    def both(logits: jax.Array) -> jax.Array:
        choice = MaskedCategorical(logits, jnp.asarray(mask))
        return choice.log_prob(jnp.int32(2)) + choice.entropy()

    gradient = np.asarray(quickly(jax.grad(both))(logits))
    assert np.isfinite(gradient).all()
    assert gradient[[1, 4]].tolist() == [0, 0]
    assert (gradient[[0, 2, 3]] != 0).all()


@pytest.mark.parametrize("measured", ["log_prob", "entropy"])
def test_the_gradient_is_that_of_finite_differences(measured: str) -> None:
    logits, mask = np.array([0.3, 3.0, -0.7, 1.1, 0.2]), np.array([True, False, True, True, True])

    def exact(logits: np.ndarray) -> float:
        probs = by_hand(logits, mask)
        if measured == "log_prob":
            return float(np.log(probs[2]))
        return float(-np.sum(probs[mask] * np.log(probs[mask])))

    def computed(logits: jax.Array) -> jax.Array:
        choice = MaskedCategorical(logits, jnp.asarray(mask))
        return choice.log_prob(jnp.int32(2)) if measured == "log_prob" else choice.entropy()

    step = 1e-5 * np.eye(CHOICES)
    differences = [(exact(logits + e) - exact(logits - e)) / 2e-5 for e in step]
    found = quickly(jax.grad(computed))(logits.astype(np.float32))
    np.testing.assert_allclose(found, differences, atol=1e-5)


def test_mask_is_broadcast_over_leading_axes() -> None:
    @quickly
    def both(logits: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        logs = masked_log_softmax(logits, mask)
        return logs, entropy_of(logs)

    logs, surprise = both(np.zeros((3, 2, 4), np.float32), np.array([[[True, True, False, False]]]))
    np.testing.assert_allclose(np.exp(logs), np.broadcast_to([0.5, 0.5, 0, 0], (3, 2, 4)))
    np.testing.assert_allclose(surprise, np.full((3, 2), np.log(2)), rtol=1e-6)


MEAN = np.array([[0.5, -1.0], [2.0, 0.0]], np.float32)
LOG_STD = np.array([[0.0, -0.5], [0.7, 0.2]], np.float32)
GAUSSIAN = DiagonalGaussian(jnp.asarray(MEAN), jnp.asarray(LOG_STD))
NORMAL = scipy.stats.norm(MEAN, np.exp(LOG_STD))


def test_gaussian_has_the_density_and_entropy_of_independent_normals() -> None:
    action = np.array([[0.0, 1.0], [-1.0, 3.0]], np.float32)
    density, surprise = quickly(lambda one, action: (one.log_prob(action), one.entropy()))(GAUSSIAN, action)
    assert float(density) == pytest.approx(NORMAL.logpdf(action).sum(), rel=1e-5)
    assert float(surprise) == pytest.approx(NORMAL.entropy().sum(), rel=1e-5)
    np.testing.assert_array_equal(GAUSSIAN.mode(), MEAN)
    assert isinstance(GAUSSIAN, Distribution)


def test_gaussian_samples_have_its_mean_and_deviation() -> None:
    count = 20_000
    drawn = quickly(lambda one, keys: jax.vmap(one.sample)(keys))(
        GAUSSIAN, jax.random.split(jax.random.key(3), count)
    )
    errors = (np.mean(drawn, axis=0) - MEAN) / (np.exp(LOG_STD) / np.sqrt(count))
    assert np.abs(errors).max() < 4
    np.testing.assert_allclose(np.std(drawn, axis=0), np.exp(LOG_STD), rtol=0.03)
    standardized = ((np.asarray(drawn) - MEAN) / np.exp(LOG_STD)).reshape(count, -1)
    assert np.abs(np.corrcoef(standardized, rowvar=False) - np.eye(4)).max() < 0.04


@pytest.mark.parametrize("constructor", [dict, types.SimpleNamespace], ids=["dictionary", "class"])
def test_factored_distribution_is_the_product_of_its_parts(constructor: type) -> None:
    button = MaskedCategorical(jnp.array([0.0, 1.0, 2.0]), jnp.array([True, True, False]))
    both = Factored({"button": button, "force": GAUSSIAN}, constructor)
    sampled = both.sample(jax.random.key(2))
    fields = sampled if isinstance(sampled, dict) else vars(sampled)
    assert isinstance(sampled, constructor) and list(fields) == ["button", "force"]
    expected = button.log_prob(fields["button"]) + GAUSSIAN.log_prob(fields["force"])
    assert float(both.log_prob(sampled)) == pytest.approx(float(expected), rel=1e-6)
    assert float(both.entropy()) == pytest.approx(float(button.entropy() + GAUSSIAN.entropy()), rel=1e-6)
    mode = both.mode() if constructor is dict else vars(both.mode())
    assert int(mode["button"]) == 1
    np.testing.assert_array_equal(mode["force"], MEAN)


def test_parts_of_a_factored_distribution_are_independent() -> None:
    two = MaskedCategorical(jnp.zeros(2))
    both = Factored({"left": two, "right": two}, dict)
    drawn = quickly(jax.vmap(both.sample))(jax.random.split(jax.random.key(1), 4000))
    counts = np.bincount(np.asarray(2 * drawn["left"] + drawn["right"]), minlength=4)
    assert np.sum((counts - 1000) ** 2 / 1000) < 16.27  # three degrees of freedom, once in a thousand


@pytest.mark.parametrize("k", [1, 3, 9])
def test_top_k_returns_the_most_probable_choices_in_order(k: int) -> None:
    logits = np.array([0.3, 2.0, -1.0, 1.0, 5.0], np.float32)
    distribution = MaskedCategorical(jnp.asarray(logits), jnp.array([True, True, True, True, False]))
    choices, log_probs = distribution.top_k(k)
    assert choices.tolist() == [1, 3, 0, 2, 4][:k]
    np.testing.assert_allclose(log_probs, [distribution.log_prob(choice) for choice in choices], rtol=1e-6)
    assert choices[0] == distribution.mode()


@pytest.mark.parametrize("k", [1, 4, 100])
def test_top_k_of_independent_fields_equals_the_best_of_all_combinations(k: int) -> None:
    rng = np.random.default_rng(0)
    sizes = {"a": 4, "b": 2, "c": 5}
    parts = {name: MaskedCategorical(jnp.asarray(rng.normal(size=n))) for name, n in sizes.items()}
    distribution = Factored(parts, dict)
    every = list(itertools.product(*map(range, sizes.values())))
    scores = {
        fields: float(distribution.log_prob(dict(zip(sizes, map(jnp.int32, fields), strict=True))))
        for fields in every
    }
    expected = sorted(every, key=lambda fields: -scores[fields])[:k]
    actions, log_probs = distribution.top_k(k)
    assert list(zip(*(actions[name].tolist() for name in sizes), strict=True)) == expected
    np.testing.assert_allclose(log_probs, [scores[fields] for fields in expected], rtol=1e-5)
