"""ARC's policies: every action of a tiny canvas is enumerated and compared with the definition."""

import dataclasses
import functools
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from phalanx.arc.action_distribution import (
    ArcDistribution,
    ArcLogits,
    AxisLogits,
    CellLogits,
    category_groups,
    joint_operation_logits,
)
from phalanx.arc.actions import BboxAction, PointAction
from phalanx.arc.observation import ArcObservation
from phalanx.arc.operations import NUM_OPERATIONS, Operation

pytestmark = pytest.mark.slow

FILL, RESIZE, SUBMIT = Operation.FILL_3, Operation.RESIZE, Operation.SUBMIT
IDS = (int(FILL), int(RESIZE), int(SUBMIT))
UNKNOWN = int(Operation.COPY)
ROWS, COLUMNS = 3, 2
CELLS = list(itertools.product(range(ROWS), range(COLUMNS)))
KINDS = [(form, kind) for form in ("point", "bbox") for kind in ("cells", "axes")] + [("point", "shared")]
SHARED = (0, 1, 0)
"""The fill and the submission read the same places."""
# Most of the time is compilation, and these programs are small.
quickly = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
JUST_BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))

every_kind = pytest.mark.parametrize(("form", "kind"), KINDS)


def policy_of(logits: ArcLogits, observation: ArcObservation | jax.Array) -> ArcDistribution:
    return ArcDistribution.from_logits(logits, IDS, observation)


def actions_of(form: str) -> np.ndarray:
    """All actions of the canvas as rows of numbers, and those of an operation unknown to the policy."""
    places = 1 if form == "point" else 2
    return np.array(
        [
            (operation, *itertools.chain(*cells))
            for operation in (*IDS, UNKNOWN)
            for cells in itertools.product(CELLS, repeat=places)
        ],
        np.int32,
    )


def action(row: jax.Array) -> PointAction | BboxAction:
    return (PointAction if row.shape[0] == 3 else BboxAction)(*row)


def numbers(action: PointAction | BboxAction) -> np.ndarray:
    return np.stack(jax.tree.leaves(action), axis=-1)


def random_logits(form: str, kind: str, seed: int, scale: float = 2.0) -> ArcLogits:
    generator = np.random.default_rng(seed)

    def some(*shape: int) -> jax.Array:
        return jax.device_put((scale * generator.normal(size=shape)).astype(np.float32))

    groups = SHARED if kind == "shared" else None
    rows = len(set(groups or IDS))
    if kind == "cells":
        place: Callable = lambda: CellLogits(some(rows, ROWS, COLUMNS))  # noqa: E731
    else:
        place = lambda: AxisLogits(some(rows, ROWS), some(rows, COLUMNS))  # noqa: E731
    return ArcLogits(some(len(IDS)), tuple(place() for _ in range(1 if form == "point" else 2)), groups)


def seen(height: int, width: int, legal: tuple[bool, ...] = (True, True, True)) -> ArcObservation:
    """A grid of the given size in the canvas's corner."""
    grid = np.full((ROWS, COLUMNS), -1, np.int8)
    grid[:height, :width] = 4
    mask = np.ones(NUM_OPERATIONS, bool)
    mask[list(IDS)] = legal
    return ArcObservation(jax.device_put(grid), legal_operations=jax.device_put(mask))


def by_hand(logits: ArcLogits, observation: ArcObservation, form: str) -> np.ndarray:
    """The probability of each of `actions_of(form)`, in double precision, from the definition."""
    grid, legal = np.asarray(observation.working_grid), np.asarray(observation.legal_operations)
    places = [
        [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(place)] for place in logits.selections
    ]
    weights = {
        id: np.exp(float(l)) * legal[id] for id, l in zip(IDS, np.asarray(logits.operations), strict=True)
    }

    def place(index: int, number: int, cell: tuple[int, int]) -> float:
        def weight(row: int, column: int) -> float:
            if grid[row, column] < 0 and IDS[index] != RESIZE:
                return 0.0
            layer, at = places[number], index if logits.groups is None else logits.groups[index]
            if len(layer) == 1:
                return float(np.exp(layer[0][at, row, column]))
            return float(np.exp(layer[0][at, row] + layer[1][at, column]))

        return weight(*cell) / sum(weight(*other) for other in CELLS)

    place = functools.lru_cache(None)(place)
    result = []
    for operation, *corners in actions_of(form).tolist():
        if operation == UNKNOWN:
            result.append(0.0)
            continue
        chance = weights[operation] / sum(weights.values())
        for number, cell in enumerate(zip(corners[::2], corners[1::2], strict=True)):
            chance *= place(IDS.index(operation), number, cell)
        result.append(chance)
    return np.array(result)


@functools.lru_cache(None)
def enumerated(
    form: str,
) -> Callable[[ArcLogits, ArcObservation], tuple[np.ndarray, np.ndarray, PointAction]]:
    """Log-probabilities of all actions, the entropy and the mode, compiled, and given on the host."""

    def all_of(logits: ArcLogits, observation: ArcObservation) -> tuple:
        policy = policy_of(logits, observation)
        rows = jnp.asarray(actions_of(form))
        return jax.vmap(lambda row: policy.log_prob(action(row)))(rows), policy.entropy(), policy.mode()

    compiled = quickly(all_of)
    return lambda logits, observation: jax.device_get(compiled(logits, observation))


@functools.lru_cache(None)
def sampler() -> Callable:
    return quickly(lambda logits, observation, keys: jax.vmap(policy_of(logits, observation).sample)(keys))


@every_kind
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    height=st.integers(1, ROWS),
    width=st.integers(1, COLUMNS),
    legal=st.tuples(st.booleans(), st.booleans(), st.booleans()).filter(any),
)
def test_probabilities_and_entropy_match_enumeration(
    form: str, kind: str, seed: int, height: int, width: int, legal: tuple[bool, ...]
) -> None:
    logits, observation = random_logits(form, kind, seed), seen(height, width, legal)
    expected = by_hand(logits, observation, form)
    logs, entropy, mode = enumerated(form)(logits, observation)
    got = np.exp(np.asarray(logs, np.float64))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-8)
    assert got.sum() == pytest.approx(1, abs=1e-5)
    assert (np.isneginf(logs) == (expected == 0)).all()
    possible = expected[expected > 0]
    assert float(entropy) == pytest.approx(-np.sum(possible * np.log(possible)), rel=1e-4, abs=1e-5)

    # The likeliest operation, and given it the likeliest place.
    rows = actions_of(form)
    totals = {id: expected[rows[:, 0] == id].sum() for id in IDS}
    best = max(totals, key=lambda id: totals[id])
    within = np.where(rows[:, 0] == best, expected, -1.0)
    assert numbers(mode).tolist() == rows[np.argmax(within)].tolist()


@every_kind
def test_only_resize_can_select_cells_outside_the_grid(form: str, kind: str) -> None:
    logs, _, _ = enumerated(form)(random_logits(form, kind, 0), seen(1, 1))
    rows = actions_of(form)
    outside = rows[:, 1:].any(axis=1)
    fills = rows[:, 0] == FILL
    assert np.isneginf(logs[fills & outside]).all()
    assert np.isfinite(logs[fills & ~outside]).all()
    assert np.isfinite(logs[rows[:, 0] == RESIZE]).all()


@every_kind
def test_illegal_operation_has_zero_probability(form: str, kind: str) -> None:
    logits = random_logits(form, kind, 0)
    logits = dataclasses.replace(logits, operations=jax.device_put(np.array([90, 0, 0], np.float32)))
    logs, _, mode = enumerated(form)(logits, seen(2, 2, legal=(False, True, True)))
    assert np.isneginf(logs[actions_of(form)[:, 0] == FILL]).all()
    assert int(mode.operation) != FILL


@every_kind
def test_sample_frequencies_match_probabilities(form: str, kind: str) -> None:
    logits, observation = random_logits(form, kind, 3, scale=0.7), seen(2, 2, legal=(True, True, False))
    count = 20_000
    drawn = numbers(sampler()(logits, observation, jax.random.split(jax.random.key(1), count)))
    rows, expected = actions_of(form), count * by_hand(logits, observation, form)
    seen_times = np.array([(drawn == row).all(axis=1).sum() for row in rows])
    assert seen_times.sum() == count
    assert (seen_times[expected == 0] == 0).all()
    # Rare actions are put together, for the test wants some ten of each.
    often = expected >= 10
    seen_times = np.append(seen_times[often], seen_times[~often].sum())
    expected = np.append(expected[often], expected[~often].sum())
    seen_times, expected = seen_times[expected > 0], expected[expected > 0]
    chi_square, freedom = np.sum((seen_times - expected) ** 2 / expected), len(expected) - 1
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom)


@every_kind
@pytest.mark.parametrize("uniform", [0.0, JUST_BELOW_ONE])
def test_extreme_random_numbers_give_legal_actions(
    form: str, kind: str, uniform: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax.random, "uniform", lambda key, shape: jnp.full(shape, uniform, jnp.float32))
    # The first and the last operation are illegal, and the grid does not reach the canvas's last cells.
    ids = (0, int(FILL), int(SUBMIT))
    observation = seen(2, 1)
    legal = np.arange(NUM_OPERATIONS) == FILL
    observation = ArcObservation(observation.working_grid, legal_operations=jax.device_put(legal))

    @quickly
    def draw(logits: ArcLogits, observation: ArcObservation, key: jax.Array) -> tuple:
        policy = ArcDistribution.from_logits(logits, ids, observation)
        drawn = policy.sample(key)
        return drawn, policy.log_prob(drawn)

    drawn, log_prob = draw(random_logits(form, kind, 0), observation, jax.random.key(0))
    corner = [0, 0] if uniform == 0 else [1, 0]
    assert numbers(drawn).tolist() == [int(FILL), *corner * (1 if form == "point" else 2)]
    assert np.isfinite(log_prob)


def test_mode_chooses_operation_before_selection() -> None:
    # Filling has 0.55 spread over four cells, resizing 0.45 on one.
    cells = np.zeros((3, ROWS, COLUMNS), np.float32)
    cells[0, 1, 1] = 0.1
    cells[1, 2, 0] = 50.0
    chances = np.log(np.array([0.55, 0.45, 1e-9], np.float32))
    logits = ArcLogits(jax.device_put(chances), (CellLogits(jax.device_put(cells)),))
    logs, _, mode = enumerated("point")(logits, seen(2, 2))
    assert numbers(mode).tolist() == [FILL, 1, 1]
    rows = actions_of("point").tolist()
    assert logs[rows.index([RESIZE, 2, 0])] > logs[rows.index([FILL, 1, 1])]


@every_kind
def test_gradients_are_finite_and_zero_for_illegal_choices(form: str, kind: str) -> None:
    def both(logits: ArcLogits) -> jax.Array:
        policy = policy_of(logits, seen(1, 2, legal=(True, True, False)))
        corner = jnp.array([FILL] + [0] * (2 if form == "point" else 4))
        return policy.log_prob(action(corner)) + policy.entropy()

    gradient = jax.device_get(quickly(jax.grad(both))(random_logits(form, kind, 5)))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert float(gradient.operations[2]) == 0
    assert (np.asarray(gradient.operations[:2]) != 0).all()
    for place in gradient.selections:
        rows = place.cells[0, 1:] if isinstance(place, CellLogits) else place.rows[0, 1:]
        assert (np.asarray(rows) == 0).all()


@every_kind
def test_log_prob_gradient_matches_finite_differences(form: str, kind: str) -> None:
    logits, observation = random_logits(form, kind, 6, scale=0.5), seen(2, 2, legal=(True, True, False))
    chosen = 1 if form == "point" else 7
    leaves, tree = jax.tree.flatten(logits)
    wanted = actions_of(form)[chosen]
    policy_gradient = jax.grad(
        lambda logits: policy_of(logits, observation).log_prob(action(jnp.asarray(wanted)))
    )
    got = jax.tree.leaves(jax.device_get(quickly(policy_gradient)(logits)))
    for number, leaf in enumerate(leaves):
        place = tuple(np.random.default_rng(number).integers(leaf.shape))
        ends = []
        for step in (1e-3, -1e-3):
            moved = [np.array(other, np.float64) for other in leaves]
            moved[number][place] += step
            ends.append(np.log(by_hand(jax.tree.unflatten(tree, moved), observation, form)[chosen]))
        assert float(got[number][place]) == pytest.approx((ends[0] - ends[1]) / 2e-3, abs=1e-4)


def test_grid_observation_allows_all_operations() -> None:
    logits = random_logits("point", "cells", 0)
    plain, told = quickly(lambda one, seen: (policy_of(one, seen.working_grid), policy_of(one, seen)))(
        logits, seen(2, 2)
    )
    assert isinstance(plain, ArcDistribution)
    np.testing.assert_array_equal(plain.operations, told.operations)


def test_joint_logits_normalize_over_operation_and_cell() -> None:
    cells = random_logits("point", "cells", 9).selections[0]
    observation = seen(2, 1)
    inside = np.asarray(observation.working_grid) >= 0
    joint = quickly(lambda cells, inside: joint_operation_logits(cells, IDS, inside))(cells, inside)
    logs, _, _ = enumerated("point")(ArcLogits(joint, (cells,)), observation)
    reachable = np.stack([inside, np.ones_like(inside), inside])
    weights = np.where(reachable, np.exp(cells.cells), 0.0).reshape(-1)
    np.testing.assert_allclose(np.exp(logs[: len(weights)]), weights / weights.sum(), rtol=1e-5)


def test_operations_of_a_category_share_a_group_except_resize() -> None:
    ids = (int(Operation.FILL_1), int(Operation.CLEAR), int(Operation.FILL_2), int(RESIZE), int(SUBMIT))
    assert category_groups(ids) == (0, 1, 0, 2, 3)
