"""ARC networks: any canvas, no influence of cells outside the grid, and color equivariance."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.arc.action_distribution import ArcLogits, AxisLogits, CellLogits
from phalanx.arc.config import ActionConfig, ArcConfig, ObservationConfig
from phalanx.arc.networks import AbstractArcNetwork, ArcNetworkConfig, create_network
from phalanx.arc.networks.stem_and_heads import GridEmbedding, patches
from phalanx.arc.observation import ArcObservation
from phalanx.arc.operations import Operation
from tests.helpers.random_weights import random_weights

pytestmark = pytest.mark.slow

RESIZE = Operation.RESIZE
# Fills and flood fills of all colors, Move up, Resize and Submit.
OPERATIONS = (*range(20), int(Operation.MOVE_UP), int(RESIZE), int(Operation.SUBMIT))
DEMONSTRATIONS = 2

# These programs run once, so compiler optimizations would take most of the time.
fast_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
run = fast_jit(lambda network, observation: network.logits(observation))


def arc_config(
    demonstrations: int = 0,
    selection_format: str = "point",
    operations: tuple[int, ...] = OPERATIONS,
    **observation_settings: Any,
) -> ArcConfig:
    return ArcConfig(
        action=ActionConfig(selection_format=selection_format, allowed_operations=operations),
        observation=ObservationConfig(
            input_grid=True, num_demonstrations=demonstrations, **observation_settings
        ),
    )


@functools.lru_cache(None)
def small_network(
    kind: str,
    *,
    demonstrations: int = 0,
    selection_format: str = "point",
    operations: tuple[int, ...] = OPERATIONS,
    **settings: Any,
) -> AbstractArcNetwork:
    """Create a small network with random parameters."""
    config = ArcNetworkConfig(kind=kind, hidden_dim=8, num_layers=1, num_heads=2, **settings)
    arc = arc_config(demonstrations, selection_format, operations)
    model = random_weights(create_network, config, arc)
    # Color embeddings are initially zero, on which most tests rely.
    return (
        eqx.tree_at(lambda n: n.colors, model, jax.device_put(np.zeros((10, 8), np.float32)))
        if kind == "color_equivariant"
        else model
    )


def grid(height: int, width: int, canvas: tuple[int, int], seed: int = 0) -> np.ndarray:
    cells = np.full(canvas, -1, np.int8)
    cells[:height, :width] = np.random.default_rng(seed).integers(0, 10, (height, width))
    return cells


def create_observation(
    height: int, width: int, canvas: tuple[int, int], demonstrations: int = 0
) -> ArcObservation:
    pairs = [
        [grid(height, width, canvas, 7 + 2 * n + side) for side in (0, 1)] for n in range(demonstrations)
    ]
    return ArcObservation(
        jax.device_put(grid(height, width, canvas, 1)),
        jax.device_put(grid(height, width, canvas, 2)),
        demonstrations=jax.device_put(np.array(pairs)) if demonstrations else None,
    )


def with_demonstrations(observation: ArcObservation, demonstrations: np.ndarray) -> ArcObservation:
    return eqx.tree_at(lambda o: o.demonstrations, observation, jax.device_put(demonstrations))


def compute_outputs(model: AbstractArcNetwork, observation: ArcObservation) -> tuple[ArcLogits, np.ndarray]:
    return jax.tree.map(np.asarray, run(model, observation))


KINDS: dict[str, dict[str, Any]] = {
    "color_equivariant, boxes": {"kind": "color_equivariant", "selection_format": "bbox"},
    "conv, demonstrations": {"kind": "conv", "demonstrations": DEMONSTRATIONS},
    "conv, patches, demonstrations": {"kind": "conv", "patch_size": 2, "demonstrations": DEMONSTRATIONS},
    "transformer": {"kind": "transformer"},
    "transformer, patches, axes, boxes": {
        "kind": "transformer",
        "patch_size": 2,
        "selection_head": "axes",
        "selection_format": "bbox",
    },
}


@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize(("size", "canvas"), [((3, 3), (3, 3)), ((7, 12), (7, 12)), ((2, 3), (5, 5))])
def test_same_parameters_work_on_any_canvas(
    settings: dict[str, Any], size: tuple[int, int], canvas: tuple[int, int]
) -> None:
    model = small_network(**settings)
    observation = create_observation(*size, canvas, settings.get("demonstrations", 0))
    logits, value = compute_outputs(model, observation)
    assert value.shape == ()
    assert logits.operations.shape == (len(OPERATIONS),)
    assert len(logits.selections) == (2 if settings.get("selection_format") == "bbox" else 1)
    for selection in logits.selections:
        if isinstance(selection, CellLogits):
            assert settings.get("selection_head") is None
            assert selection.cells.shape == (len(OPERATIONS), *canvas)
        else:
            assert isinstance(selection, AxisLogits)
            assert selection.rows.shape == (len(OPERATIONS), canvas[0])
            assert selection.columns.shape == (len(OPERATIONS), canvas[1])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((logits, value)))


@pytest.mark.parametrize("kind", ["color_equivariant", "conv", "transformer"])
def test_initial_policy_is_nearly_uniform_over_operations(kind: str) -> None:
    config, observation = (
        ArcNetworkConfig(kind=kind, hidden_dim=8, num_layers=1),
        create_observation(3, 3, (3, 3)),
    )

    @fast_jit
    def operation_probs(key: jax.Array) -> jax.Array:
        policy, _ = create_network(config, arc_config(), key)(observation)
        return jnp.exp(policy.operations)

    np.testing.assert_allclose(operation_probs(jax.random.key(0)), np.full(23, 1 / 23), rtol=0.3)


@pytest.mark.parametrize("kind", ["conv", "transformer"])
def test_policy_and_value_depend_on_demonstrations(kind: str) -> None:
    model = small_network(kind, demonstrations=DEMONSTRATIONS)
    observation = create_observation(3, 3, (3, 3), DEMONSTRATIONS)
    others = with_demonstrations(observation, (np.asarray(observation.demonstrations) + 1) % 10)
    (logits, value), (other_logits, other_value) = (
        compute_outputs(model, observation),
        compute_outputs(model, others),
    )
    assert abs(value - other_value) > 1e-3
    assert np.abs(logits.operations - other_logits.operations).max() > 1e-3
    assert np.abs(logits.selections[0].cells - other_logits.selections[0].cells).max() > 1e-3


def test_missing_demonstrations_are_ignored() -> None:
    model = small_network("conv", demonstrations=DEMONSTRATIONS)
    observation = create_observation(3, 3, (3, 3), DEMONSTRATIONS)
    first = np.asarray(observation.demonstrations)[:1]
    twice = with_demonstrations(observation, np.concatenate([first, first]))
    once = with_demonstrations(observation, np.concatenate([first, np.full_like(first, -1)]))
    np.testing.assert_allclose(compute_outputs(model, once)[1], compute_outputs(model, twice)[1], rtol=1e-5)
    none = with_demonstrations(observation, np.full_like(observation.demonstrations, -1))
    assert np.isfinite(compute_outputs(model, none)[1])
    assert abs(compute_outputs(model, none)[1] - compute_outputs(model, once)[1]) > 1e-4


def test_missing_demonstrations_raise_error() -> None:
    with pytest.raises(ValueError, match="expects demonstrations, but the observation has none"):
        small_network("conv", demonstrations=DEMONSTRATIONS)(create_observation(3, 3, (3, 3)))


def permute_colors(observation: ArcObservation, permutation: np.ndarray) -> ArcObservation:
    table = np.append(permutation, -1).astype(np.int8)
    return jax.tree.map(lambda cells: jax.device_put(table[np.asarray(cells)]), observation)


@pytest.mark.parametrize("selection_format", ["point", "bbox"])
@pytest.mark.parametrize("size", [(3, 3), (2, 3)])
def test_color_equivariant_network_is_equivariant(selection_format: str, size: tuple[int, int]) -> None:
    model = small_network("color_equivariant", selection_format=selection_format)
    observation = create_observation(*size, (3, 3))
    permutation = np.array([0, 4, 3, 9, 7, 1, 8, 2, 5, 6])
    # Index of operation i after the permutation: fills, flood fills, other operations.
    permuted_index = np.concatenate([permutation, 10 + permutation, [20, 21, 22]])
    (before, value), (after, other_value) = (
        compute_outputs(model, observation),
        compute_outputs(model, permute_colors(observation, permutation)),
    )
    np.testing.assert_allclose(after.operations[permuted_index], before.operations, rtol=1e-4, atol=1e-4)
    for selection, other in zip(before.selections, after.selections, strict=True):
        np.testing.assert_allclose(other.cells[permuted_index], selection.cells, rtol=1e-4, atol=1e-4)
    assert value == pytest.approx(other_value, rel=1e-4, abs=1e-4)
    # The output does depend on the colors of this grid.
    assert np.abs(after.operations - before.operations).max() > 1e-2
    assert np.abs(after.selections[0].cells - before.selections[0].cells).max() > 1e-2


def test_color_embeddings_break_equivariance() -> None:
    model = small_network("color_equivariant")
    observation = create_observation(3, 3, (3, 3))
    colors = np.array(model.colors)
    colors[5] = 1.0
    modified = eqx.tree_at(lambda n: n.colors, model, jax.device_put(colors))
    before, after = (
        compute_outputs(model, observation)[0].selections[0].cells,
        compute_outputs(modified, observation)[0].selections[0].cells,
    )
    assert np.abs(after[5] - before[5]).max() > 1e-2


@pytest.mark.parametrize("allowed", [(2, 5, 13), (20, 33, 34), (4, 17, 34)])
def test_color_equivariant_network_supports_any_operations(allowed: tuple[int, ...]) -> None:
    model = small_network("color_equivariant", operations=allowed)
    logits, _ = compute_outputs(model, create_observation(2, 2, (2, 2)))
    assert logits.operations.shape == (3,)
    assert logits.selections[0].cells.shape == (3, 2, 2)


def test_fill_logits_come_from_features_of_their_color() -> None:
    subset = small_network("color_equivariant", operations=(2, 5, 13))
    full = small_network("color_equivariant")
    subset = eqx.tree_at(lambda n: (n.stem, n.blocks, n.paint), subset, (full.stem, full.blocks, full.paint))
    observation = create_observation(3, 3, (3, 3))
    expected = compute_outputs(full, observation)[0].selections[0].cells[np.array([2, 5, 13])]
    np.testing.assert_allclose(
        compute_outputs(subset, observation)[0].selections[0].cells, expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(("patch", "selection_head"), [(1, "cells"), (2, "axes"), (2, "category_axes")])
def test_transformer_output_does_not_depend_on_canvas(patch: int, selection_head: str) -> None:
    model = small_network("transformer", patch_size=patch, selection_head=selection_head)
    (small, value), (large, other_value) = (
        compute_outputs(model, create_observation(3, 4, (3, 4))),
        compute_outputs(model, create_observation(3, 4, (7, 6))),
    )
    assert other_value == pytest.approx(value, rel=1e-4, abs=1e-4)
    # Resize can select the new cells, so its logit may change.
    kept = [i for i, operation in enumerate(OPERATIONS) if operation != RESIZE]
    np.testing.assert_allclose(large.operations[kept], small.operations[kept], rtol=1e-4, atol=1e-4)
    for selection, other in zip(small.selections, large.selections, strict=True):
        if selection_head == "cells":
            np.testing.assert_allclose(other.cells[:, :3, :4], selection.cells, rtol=1e-4, atol=1e-4)
        else:
            np.testing.assert_allclose(other.rows[:, :3], selection.rows, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(other.columns[:, :4], selection.columns, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["color_equivariant", "conv", "transformer"])
def test_gradients_are_finite_and_reach_every_parameter(kind: str) -> None:
    model = small_network(kind, selection_format="bbox")
    observation = create_observation(2, 2, (3, 3))

    def loss(model: AbstractArcNetwork) -> jax.Array:
        policy, value = model(observation)
        return policy.log_prob(policy.mode()) + policy.entropy() + value

    for leaf in jax.tree.leaves(fast_jit(jax.grad(loss))(model)):
        assert np.isfinite(leaf).all()
        assert np.asarray(leaf).any()


def test_bit_encoding_distinguishes_all_colors() -> None:
    config = ArcNetworkConfig(color_encoding="bits", hidden_dim=16)

    @fast_jit
    def embed(key: jax.Array, cells: jax.Array) -> tuple[jax.Array, jax.Array]:
        embedding = GridEmbedding(1, config, key=key)
        return embedding.tables, embedding([cells])

    tables, found = map(np.asarray, embed(jax.random.key(0), np.arange(-1, 10, dtype=np.int8)[None]))
    vectors = found[0]
    assert tables.shape == (5, 16)
    assert not vectors[0].any()
    np.testing.assert_allclose(vectors[1 + 6], tables[np.array([0, 2, 3])].sum(axis=0), rtol=1e-6)
    distances = np.abs(vectors[:, None] - vectors[None]).sum(axis=-1) + np.eye(11)
    assert distances.min() > 1e-3


def test_patches_are_padded_squares() -> None:
    cells = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], np.int8)
    in_twos, in_ones = fast_jit(lambda cells: (patches(cells, 2, -1), patches(cells, 1, -1)))(cells)
    assert in_twos.tolist() == [
        [[1, 2, 4, 5], [3, -1, 6, -1]],
        [[7, 8, -1, -1], [9, -1, -1, -1]],
    ]
    assert np.asarray(in_ones)[..., 0].tolist() == cells.tolist()


def test_patch_logits_are_assigned_to_their_cells() -> None:
    # Set the 2x2 logits of every patch to 0, 1, 2, 3, independent of the input.
    model = small_network("conv", patch_size=2)
    layer = model.heads.selections[0][0]
    values = (
        np.zeros(layer.weight.shape, np.float32),
        np.tile(np.arange(4, dtype=np.float32), len(OPERATIONS)),
    )
    known = eqx.tree_at(
        lambda n: (n.heads.selections[0][0].weight, n.heads.selections[0][0].bias),
        model,
        jax.device_put(values),
    )
    cells = compute_outputs(known, create_observation(3, 3, (3, 3)))[0].selections[0].cells
    assert cells[4].tolist() == [[0, 1, 0], [2, 3, 2], [0, 1, 0]]


def create(arc: ArcConfig, **settings: Any) -> Callable[[], AbstractArcNetwork]:
    return functools.partial(create_network, ArcNetworkConfig(**settings), arc, jax.random.key(0))


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (
            create(arc_config(selection_format="mask")),
            "set action.selection_format to point or bbox, got 'mask'",
        ),
        (create(arc_config(working_grid=False)), "set observation.working_grid=true"),
        (
            create(arc_config(), kind="transformer", hidden_dim=10, num_heads=4),
            "network.hidden_dim must be a multiple of network.num_heads, got 10 and 4",
        ),
        (
            create(arc_config(), kind="color_equivariant", patch_size=2),
            "network.kind=color_equivariant needs patch_size=1",
        ),
        (create(arc_config(), kind="color_equivariant", selection_head="axes"), "selection_head=cells"),
        (
            create(arc_config(demonstrations=1), kind="color_equivariant"),
            "no demonstrations; choose kind=conv",
        ),
    ],
)
def test_invalid_network_config_is_reported(create: Callable[[], AbstractArcNetwork], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create()
