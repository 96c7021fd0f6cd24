"""ARC action distributions, compared with an enumeration of all actions on a tiny canvas."""

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
KINDS = [(selection_format, kind) for selection_format in ("point", "bbox") for kind in ("cells", "axes")] + [
    ("point", "shared")
]
SHARED_GROUPS = (0, 1, 0)
"""Fill and Submit share their selection logits."""
# These programs are small, so compiler optimizations would take most of the time.
fast_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
JUST_BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))

all_kinds = pytest.mark.parametrize(("selection_format", "kind"), KINDS)


def create_policy(logits: ArcLogits, observation: ArcObservation | jax.Array) -> ArcDistribution:
    return ArcDistribution.from_logits(logits, IDS, observation)


def enumerate_actions(selection_format: str) -> np.ndarray:
    """Return all actions on the canvas as integer rows, also for an operation unknown to the policy."""
    num_cells = 1 if selection_format == "point" else 2
    return np.array(
        [
            (operation, *itertools.chain(*cells))
            for operation in (*IDS, UNKNOWN)
            for cells in itertools.product(CELLS, repeat=num_cells)
        ],
        np.int32,
    )


def action(row: jax.Array) -> PointAction | BboxAction:
    return (PointAction if row.shape[0] == 3 else BboxAction)(*row)


def action_row(action: PointAction | BboxAction) -> np.ndarray:
    return np.stack(jax.tree.leaves(action), axis=-1)


def random_logits(selection_format: str, kind: str, seed: int, scale: float = 2.0) -> ArcLogits:
    generator = np.random.default_rng(seed)

    def random_array(*shape: int) -> jax.Array:
        return jax.device_put((scale * generator.normal(size=shape)).astype(np.float32))

    groups = SHARED_GROUPS if kind == "shared" else None
    rows = len(set(groups or IDS))
    if kind == "cells":
        create_selection: Callable = lambda: CellLogits(random_array(rows, ROWS, COLUMNS))  # noqa: E731
    else:
        create_selection = lambda: AxisLogits(random_array(rows, ROWS), random_array(rows, COLUMNS))  # noqa: E731
    return ArcLogits(
        random_array(len(IDS)),
        tuple(create_selection() for _ in range(1 if selection_format == "point" else 2)),
        groups,
    )


def observe(height: int, width: int, legal: tuple[bool, ...] = (True, True, True)) -> ArcObservation:
    """Return an observation of a grid of the given size in the corner of the canvas."""
    grid = np.full((ROWS, COLUMNS), -1, np.int8)
    grid[:height, :width] = 4
    mask = np.ones(NUM_OPERATIONS, bool)
    mask[list(IDS)] = legal
    return ArcObservation(jax.device_put(grid), legal_operations=jax.device_put(mask))


def reference_probabilities(
    logits: ArcLogits, observation: ArcObservation, selection_format: str
) -> np.ndarray:
    """Compute the probability of each action of `enumerate_actions` in double precision."""
    grid, legal = np.asarray(observation.working_grid), np.asarray(observation.legal_operations)
    selections = [
        [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(selection)]
        for selection in logits.selections
    ]
    weights = {
        id: np.exp(float(l)) * legal[id] for id, l in zip(IDS, np.asarray(logits.operations), strict=True)
    }

    def cell_probability(index: int, corner: int, cell: tuple[int, int]) -> float:
        def weight(row: int, column: int) -> float:
            if grid[row, column] < 0 and IDS[index] != RESIZE:
                return 0.0
            layer, group = selections[corner], index if logits.groups is None else logits.groups[index]
            if len(layer) == 1:
                return float(np.exp(layer[0][group, row, column]))
            return float(np.exp(layer[0][group, row] + layer[1][group, column]))

        return weight(*cell) / sum(weight(*other) for other in CELLS)

    cell_probability = functools.lru_cache(None)(cell_probability)
    result = []
    for operation, *corners in enumerate_actions(selection_format).tolist():
        if operation == UNKNOWN:
            result.append(0.0)
            continue
        probability = weights[operation] / sum(weights.values())
        for corner, cell in enumerate(zip(corners[::2], corners[1::2], strict=True)):
            probability *= cell_probability(IDS.index(operation), corner, cell)
        result.append(probability)
    return np.array(result)


@functools.lru_cache(None)
def evaluate_policy(
    selection_format: str,
) -> Callable[[ArcLogits, ArcObservation], tuple[np.ndarray, np.ndarray, PointAction]]:
    """Return a compiled function for the log-probabilities of all actions, the entropy and the mode."""

    def evaluate(logits: ArcLogits, observation: ArcObservation) -> tuple:
        policy = create_policy(logits, observation)
        rows = jnp.asarray(enumerate_actions(selection_format))
        return jax.vmap(lambda row: policy.log_prob(action(row)))(rows), policy.entropy(), policy.mode()

    compiled = fast_jit(evaluate)
    return lambda logits, observation: jax.device_get(compiled(logits, observation))


@functools.lru_cache(None)
def sampler() -> Callable:
    return fast_jit(
        lambda logits, observation, keys: jax.vmap(create_policy(logits, observation).sample)(keys)
    )


@all_kinds
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    height=st.integers(1, ROWS),
    width=st.integers(1, COLUMNS),
    legal=st.tuples(st.booleans(), st.booleans(), st.booleans()).filter(any),
)
def test_probabilities_and_entropy_match_enumeration(
    selection_format: str, kind: str, seed: int, height: int, width: int, legal: tuple[bool, ...]
) -> None:
    logits, observation = random_logits(selection_format, kind, seed), observe(height, width, legal)
    expected = reference_probabilities(logits, observation, selection_format)
    logs, entropy, mode = evaluate_policy(selection_format)(logits, observation)
    got = np.exp(np.asarray(logs, np.float64))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-8)
    assert got.sum() == pytest.approx(1, abs=1e-5)
    assert (np.isneginf(logs) == (expected == 0)).all()
    possible = expected[expected > 0]
    assert float(entropy) == pytest.approx(-np.sum(possible * np.log(possible)), rel=1e-4, abs=1e-5)

    # The mode is the most likely operation with its most likely selection.
    rows = enumerate_actions(selection_format)
    totals = {id: expected[rows[:, 0] == id].sum() for id in IDS}
    best = max(totals, key=lambda id: totals[id])
    within = np.where(rows[:, 0] == best, expected, -1.0)
    assert action_row(mode).tolist() == rows[np.argmax(within)].tolist()


@all_kinds
def test_only_resize_can_select_cells_outside_the_grid(selection_format: str, kind: str) -> None:
    logs, _, _ = evaluate_policy(selection_format)(random_logits(selection_format, kind, 0), observe(1, 1))
    rows = enumerate_actions(selection_format)
    outside = rows[:, 1:].any(axis=1)
    fills = rows[:, 0] == FILL
    assert np.isneginf(logs[fills & outside]).all()
    assert np.isfinite(logs[fills & ~outside]).all()
    assert np.isfinite(logs[rows[:, 0] == RESIZE]).all()


@all_kinds
def test_illegal_operation_has_zero_probability(selection_format: str, kind: str) -> None:
    logits = random_logits(selection_format, kind, 0)
    logits = dataclasses.replace(logits, operations=jax.device_put(np.array([90, 0, 0], np.float32)))
    logs, _, mode = evaluate_policy(selection_format)(logits, observe(2, 2, legal=(False, True, True)))
    assert np.isneginf(logs[enumerate_actions(selection_format)[:, 0] == FILL]).all()
    assert int(mode.operation) != FILL


@all_kinds
def test_sample_frequencies_match_probabilities(selection_format: str, kind: str) -> None:
    logits, observation = (
        random_logits(selection_format, kind, 3, scale=0.7),
        observe(2, 2, legal=(True, True, False)),
    )
    count = 20_000
    sampled = action_row(sampler()(logits, observation, jax.random.split(jax.random.key(1), count)))
    rows, expected = (
        enumerate_actions(selection_format),
        count * reference_probabilities(logits, observation, selection_format),
    )
    counts = np.array([(sampled == row).all(axis=1).sum() for row in rows])
    assert counts.sum() == count
    assert (counts[expected == 0] == 0).all()
    # Merge rare actions, because the chi-square test needs about ten expected samples per bin.
    frequent = expected >= 10
    counts = np.append(counts[frequent], counts[~frequent].sum())
    expected = np.append(expected[frequent], expected[~frequent].sum())
    counts, expected = counts[expected > 0], expected[expected > 0]
    chi_square, degrees_of_freedom = np.sum((counts - expected) ** 2 / expected), len(expected) - 1
    assert chi_square < degrees_of_freedom + 4 * np.sqrt(2 * degrees_of_freedom)


@all_kinds
@pytest.mark.parametrize("uniform", [0.0, JUST_BELOW_ONE])
def test_extreme_random_numbers_give_legal_actions(
    selection_format: str, kind: str, uniform: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax.random, "uniform", lambda key, shape: jnp.full(shape, uniform, jnp.float32))
    # The first and the last operation are illegal, and the grid does not cover the last cells.
    ids = (0, int(FILL), int(SUBMIT))
    observation = observe(2, 1)
    legal = np.arange(NUM_OPERATIONS) == FILL
    observation = ArcObservation(observation.working_grid, legal_operations=jax.device_put(legal))

    @fast_jit
    def draw(logits: ArcLogits, observation: ArcObservation, key: jax.Array) -> tuple:
        policy = ArcDistribution.from_logits(logits, ids, observation)
        sampled = policy.sample(key)
        return sampled, policy.log_prob(sampled)

    sampled, log_prob = draw(random_logits(selection_format, kind, 0), observation, jax.random.key(0))
    corner = [0, 0] if uniform == 0 else [1, 0]
    assert action_row(sampled).tolist() == [int(FILL), *corner * (1 if selection_format == "point" else 2)]
    assert np.isfinite(log_prob)


def test_mode_chooses_operation_before_selection() -> None:
    # Fill has probability 0.55, spread over four cells; Resize has 0.45 on one cell.
    cells = np.zeros((3, ROWS, COLUMNS), np.float32)
    cells[0, 1, 1] = 0.1
    cells[1, 2, 0] = 50.0
    chances = np.log(np.array([0.55, 0.45, 1e-9], np.float32))
    logits = ArcLogits(jax.device_put(chances), (CellLogits(jax.device_put(cells)),))
    logs, _, mode = evaluate_policy("point")(logits, observe(2, 2))
    assert action_row(mode).tolist() == [FILL, 1, 1]
    rows = enumerate_actions("point").tolist()
    assert logs[rows.index([RESIZE, 2, 0])] > logs[rows.index([FILL, 1, 1])]


@all_kinds
def test_gradients_are_finite_and_zero_for_illegal_choices(selection_format: str, kind: str) -> None:
    def objective(logits: ArcLogits) -> jax.Array:
        policy = create_policy(logits, observe(1, 2, legal=(True, True, False)))
        corner = jnp.array([FILL] + [0] * (2 if selection_format == "point" else 4))
        return policy.log_prob(action(corner)) + policy.entropy()

    gradient = jax.device_get(fast_jit(jax.grad(objective))(random_logits(selection_format, kind, 5)))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert float(gradient.operations[2]) == 0
    assert (np.asarray(gradient.operations[:2]) != 0).all()
    for selection in gradient.selections:
        rows = selection.cells[0, 1:] if isinstance(selection, CellLogits) else selection.rows[0, 1:]
        assert (np.asarray(rows) == 0).all()


@all_kinds
def test_log_prob_gradient_matches_finite_differences(selection_format: str, kind: str) -> None:
    logits, observation = (
        random_logits(selection_format, kind, 6, scale=0.5),
        observe(2, 2, legal=(True, True, False)),
    )
    chosen = 1 if selection_format == "point" else 7
    leaves, tree = jax.tree.flatten(logits)
    target_action = enumerate_actions(selection_format)[chosen]
    policy_gradient = jax.grad(
        lambda logits: create_policy(logits, observation).log_prob(action(jnp.asarray(target_action)))
    )
    got = jax.tree.leaves(jax.device_get(fast_jit(policy_gradient)(logits)))
    for number, leaf in enumerate(leaves):
        index = tuple(np.random.default_rng(number).integers(leaf.shape))
        log_probs = []
        for step in (1e-3, -1e-3):
            shifted = [np.array(other, np.float64) for other in leaves]
            shifted[number][index] += step
            log_probs.append(
                np.log(
                    reference_probabilities(jax.tree.unflatten(tree, shifted), observation, selection_format)[
                        chosen
                    ]
                )
            )
        assert float(got[number][index]) == pytest.approx((log_probs[0] - log_probs[1]) / 2e-3, abs=1e-4)


def test_grid_observation_allows_all_operations() -> None:
    logits = random_logits("point", "cells", 0)
    without_mask, with_mask = fast_jit(
        lambda logits, observation: (
            create_policy(logits, observation.working_grid),
            create_policy(logits, observation),
        )
    )(logits, observe(2, 2))
    assert isinstance(without_mask, ArcDistribution)
    np.testing.assert_array_equal(without_mask.operations, with_mask.operations)


def test_joint_logits_normalize_over_operation_and_cell() -> None:
    cells = random_logits("point", "cells", 9).selections[0]
    observation = observe(2, 1)
    inside = np.asarray(observation.working_grid) >= 0
    joint = fast_jit(lambda cells, inside: joint_operation_logits(cells, IDS, inside))(cells, inside)
    logs, _, _ = evaluate_policy("point")(ArcLogits(joint, (cells,)), observation)
    reachable = np.stack([inside, np.ones_like(inside), inside])
    weights = np.where(reachable, np.exp(cells.cells), 0.0).reshape(-1)
    np.testing.assert_allclose(np.exp(logs[: len(weights)]), weights / weights.sum(), rtol=1e-5)


def test_operations_of_a_category_share_a_group_except_resize() -> None:
    ids = (int(Operation.FILL_1), int(Operation.CLEAR), int(Operation.FILL_2), int(RESIZE), int(SUBMIT))
    assert category_groups(ids) == (0, 1, 0, 2, 3)


@all_kinds
def test_top_k_equals_the_best_of_all_actions(selection_format: str, kind: str) -> None:
    logits, observation = random_logits(selection_format, kind, 3), observe(2, 2)
    rows, probabilities = enumerate_actions(selection_format), []
    for row, probability in zip(
        rows.tolist(), reference_probabilities(logits, observation, selection_format), strict=True
    ):
        probabilities.append((probability, tuple(row)))
    # All submissions count as one action, with the probability of the operation.
    submissions = [entry for entry in probabilities if entry[1][0] == SUBMIT]
    others = [entry for entry in probabilities if entry[1][0] not in (SUBMIT, UNKNOWN)]
    merged = (sum(probability for probability, _ in submissions), max(submissions)[1])
    expected = sorted([*others, merged], reverse=True)[:7]

    actions, log_probs = fast_jit(lambda logits, observation: create_policy(logits, observation).top_k(7))(
        logits, observation
    )
    assert list(map(tuple, action_row(actions).tolist())) == [row for _, row in expected]
    np.testing.assert_allclose(np.exp(log_probs), [probability for probability, _ in expected], rtol=1e-4)
