"""Networks for ARC: any canvas, nothing from outside the grid, and the planes network's law of colours."""

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
from phalanx.arc.networks import ArcNetwork, ArcNetworkConfig, create_network
from phalanx.arc.networks.stem_and_heads import GridEmbedding, patches
from phalanx.arc.observation import ArcObservation
from phalanx.arc.operations import Operation
from tests.helpers.random_weights import random_weights

pytestmark = pytest.mark.slow

RESIZE = Operation.RESIZE
# Fills and flood fills of all colours, a move, a resize and a submission.
OPERATIONS = (*range(20), int(Operation.MOVE_UP), int(RESIZE), int(Operation.SUBMIT))
DEMONSTRATIONS = 2

# Most of the time is compilation, and these programs run once.
quickly = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
run = quickly(lambda network, observation: network.logits(observation))


def arc_config(
    demonstrations: int = 0, form: str = "point", operations: tuple[int, ...] = OPERATIONS, **see: Any
) -> ArcConfig:
    return ArcConfig(
        action=ActionConfig(selection_format=form, allowed_operations=operations),
        observation=ObservationConfig(input_grid=True, num_demonstrations=demonstrations, **see),
    )


@functools.lru_cache(None)
def network(
    kind: str,
    *,
    demonstrations: int = 0,
    form: str = "point",
    operations: tuple[int, ...] = OPERATIONS,
    **settings: Any,
) -> ArcNetwork:
    """A small network, whose parameters are drawn anew."""
    config = ArcNetworkConfig(kind=kind, hidden_dim=8, num_layers=1, num_heads=2, **settings)
    arc = arc_config(demonstrations, form, operations)
    made = random_weights(create_network, config, arc)
    # The colours' own vectors are zero at the outset, and most tests are about that.
    return (
        eqx.tree_at(lambda n: n.colors, made, jax.device_put(np.zeros((10, 8), np.float32)))
        if kind == "color_equivariant"
        else made
    )


def grid(height: int, width: int, canvas: tuple[int, int], seed: int = 0) -> np.ndarray:
    cells = np.full(canvas, -1, np.int8)
    cells[:height, :width] = np.random.default_rng(seed).integers(0, 10, (height, width))
    return cells


def observed(height: int, width: int, canvas: tuple[int, int], demonstrations: int = 0) -> ArcObservation:
    pairs = [
        [grid(height, width, canvas, 7 + 2 * n + side) for side in (0, 1)] for n in range(demonstrations)
    ]
    return ArcObservation(
        jax.device_put(grid(height, width, canvas, 1)),
        jax.device_put(grid(height, width, canvas, 2)),
        demonstrations=jax.device_put(np.array(pairs)) if demonstrations else None,
    )


def showing(observation: ArcObservation, demonstrations: np.ndarray) -> ArcObservation:
    return eqx.tree_at(lambda o: o.demonstrations, observation, jax.device_put(demonstrations))


def both(network: ArcNetwork, observation: ArcObservation) -> tuple[ArcLogits, np.ndarray]:
    return jax.tree.map(np.asarray, run(network, observation))


KINDS: dict[str, dict[str, Any]] = {
    "color_equivariant, boxes": {"kind": "color_equivariant", "form": "bbox"},
    "conv, demonstrations": {"kind": "conv", "demonstrations": DEMONSTRATIONS},
    "conv, patches, demonstrations": {"kind": "conv", "patch_size": 2, "demonstrations": DEMONSTRATIONS},
    "transformer": {"kind": "transformer"},
    "transformer, patches, axes, boxes": {
        "kind": "transformer",
        "patch_size": 2,
        "selection_head": "axes",
        "form": "bbox",
    },
}


@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize(("size", "canvas"), [((3, 3), (3, 3)), ((7, 12), (7, 12)), ((2, 3), (5, 5))])
def test_same_parameters_work_on_any_canvas(
    settings: dict[str, Any], size: tuple[int, int], canvas: tuple[int, int]
) -> None:
    made = network(**settings)
    observation = observed(*size, canvas, settings.get("demonstrations", 0))
    logits, value = both(made, observation)
    assert value.shape == ()
    assert logits.operations.shape == (len(OPERATIONS),)
    assert len(logits.selections) == (2 if settings.get("form") == "bbox" else 1)
    for place in logits.selections:
        if isinstance(place, CellLogits):
            assert settings.get("places") is None
            assert place.cells.shape == (len(OPERATIONS), *canvas)
        else:
            assert isinstance(place, AxisLogits)
            assert place.rows.shape == (len(OPERATIONS), canvas[0])
            assert place.columns.shape == (len(OPERATIONS), canvas[1])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((logits, value)))


@pytest.mark.parametrize("kind", ["color_equivariant", "conv", "transformer"])
def test_initial_policy_is_nearly_uniform_over_operations(kind: str) -> None:
    config, observation = ArcNetworkConfig(kind=kind, hidden_dim=8, num_layers=1), observed(3, 3, (3, 3))

    @quickly
    def chances(key: jax.Array) -> jax.Array:
        policy, _ = create_network(config, arc_config(), key)(observation)
        return jnp.exp(policy.operations)

    np.testing.assert_allclose(chances(jax.random.key(0)), np.full(23, 1 / 23), rtol=0.3)


@pytest.mark.parametrize("kind", ["conv", "transformer"])
def test_policy_and_value_depend_on_demonstrations(kind: str) -> None:
    made = network(kind, demonstrations=DEMONSTRATIONS)
    shown = observed(3, 3, (3, 3), DEMONSTRATIONS)
    others = showing(shown, (np.asarray(shown.demonstrations) + 1) % 10)
    (logits, value), (other_logits, other_value) = both(made, shown), both(made, others)
    assert abs(value - other_value) > 1e-3
    assert np.abs(logits.operations - other_logits.operations).max() > 1e-3
    assert np.abs(logits.selections[0].cells - other_logits.selections[0].cells).max() > 1e-3


def test_missing_demonstrations_are_ignored() -> None:
    made = network("conv", demonstrations=DEMONSTRATIONS)
    shown = observed(3, 3, (3, 3), DEMONSTRATIONS)
    first = np.asarray(shown.demonstrations)[:1]
    twice = showing(shown, np.concatenate([first, first]))
    once = showing(shown, np.concatenate([first, np.full_like(first, -1)]))
    np.testing.assert_allclose(both(made, once)[1], both(made, twice)[1], rtol=1e-5)
    none = showing(shown, np.full_like(shown.demonstrations, -1))
    assert np.isfinite(both(made, none)[1])
    assert abs(both(made, none)[1] - both(made, once)[1]) > 1e-4


def test_missing_demonstrations_raise_error() -> None:
    with pytest.raises(ValueError, match="expects demonstrations, but the observation has none"):
        network("conv", demonstrations=DEMONSTRATIONS)(observed(3, 3, (3, 3)))


def permuted(observation: ArcObservation, permutation: np.ndarray) -> ArcObservation:
    table = np.append(permutation, -1).astype(np.int8)
    return jax.tree.map(lambda cells: jax.device_put(table[np.asarray(cells)]), observation)


@pytest.mark.parametrize("form", ["point", "bbox"])
@pytest.mark.parametrize("size", [(3, 3), (2, 3)])
def test_color_equivariant_network_is_equivariant(form: str, size: tuple[int, int]) -> None:
    made = network("color_equivariant", form=form)
    observation = observed(*size, (3, 3))
    permutation = np.array([0, 4, 3, 9, 7, 1, 8, 2, 5, 6])
    # Where the logits of operation i are found after the permutation: fills, flood fills, the rest.
    moved = np.concatenate([permutation, 10 + permutation, [20, 21, 22]])
    (before, value), (after, other_value) = (
        both(made, observation),
        both(made, permuted(observation, permutation)),
    )
    np.testing.assert_allclose(after.operations[moved], before.operations, rtol=1e-4, atol=1e-4)
    for place, other in zip(before.selections, after.selections, strict=True):
        np.testing.assert_allclose(other.cells[moved], place.cells, rtol=1e-4, atol=1e-4)
    assert value == pytest.approx(other_value, rel=1e-4, abs=1e-4)
    # And it does tell the colours of this grid apart.
    assert np.abs(after.operations - before.operations).max() > 1e-2
    assert np.abs(after.selections[0].cells - before.selections[0].cells).max() > 1e-2


def test_color_embeddings_break_equivariance() -> None:
    made = network("color_equivariant")
    observation = observed(3, 3, (3, 3))
    colors = np.array(made.colors)
    colors[5] = 1.0
    special = eqx.tree_at(lambda n: n.colors, made, jax.device_put(colors))
    before, after = (
        both(made, observation)[0].selections[0].cells,
        both(special, observation)[0].selections[0].cells,
    )
    assert np.abs(after[5] - before[5]).max() > 1e-2


@pytest.mark.parametrize("allowed", [(2, 5, 13), (20, 33, 34), (4, 17, 34)])
def test_color_equivariant_network_supports_any_operations(allowed: tuple[int, ...]) -> None:
    made = network("color_equivariant", operations=allowed)
    logits, _ = both(made, observed(2, 2, (2, 2)))
    assert logits.operations.shape == (3,)
    assert logits.selections[0].cells.shape == (3, 2, 2)


def test_fill_logits_come_from_features_of_their_color() -> None:
    some = network("color_equivariant", operations=(2, 5, 13))
    every = network("color_equivariant")
    some = eqx.tree_at(lambda n: (n.stem, n.blocks, n.paint), some, (every.stem, every.blocks, every.paint))
    observation = observed(3, 3, (3, 3))
    expected = both(every, observation)[0].selections[0].cells[np.array([2, 5, 13])]
    np.testing.assert_allclose(both(some, observation)[0].selections[0].cells, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("patch", "places"), [(1, "cells"), (2, "axes"), (2, "category_axes")])
def test_transformer_output_does_not_depend_on_canvas(patch: int, places: str) -> None:
    made = network("transformer", patch_size=patch, selection_head=places)
    (small, value), (large, other_value) = (
        both(made, observed(3, 4, (3, 4))),
        both(made, observed(3, 4, (7, 6))),
    )
    assert other_value == pytest.approx(value, rel=1e-4, abs=1e-4)
    # A resize may name the new cells, so that it may become likelier.
    kept = [i for i, operation in enumerate(OPERATIONS) if operation != RESIZE]
    np.testing.assert_allclose(large.operations[kept], small.operations[kept], rtol=1e-4, atol=1e-4)
    for place, other in zip(small.selections, large.selections, strict=True):
        if places == "cells":
            np.testing.assert_allclose(other.cells[:, :3, :4], place.cells, rtol=1e-4, atol=1e-4)
        else:
            np.testing.assert_allclose(other.rows[:, :3], place.rows, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(other.columns[:, :4], place.columns, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["color_equivariant", "conv", "transformer"])
def test_gradients_are_finite_and_reach_every_parameter(kind: str) -> None:
    made = network(kind, form="bbox")
    observation = observed(2, 2, (3, 3))

    def loss(network: ArcNetwork) -> jax.Array:
        policy, value = network(observation)
        return policy.log_prob(policy.mode()) + policy.entropy() + value

    for leaf in jax.tree.leaves(quickly(jax.grad(loss))(made)):
        assert np.isfinite(leaf).all()
        assert np.asarray(leaf).any()


def test_bit_encoding_distinguishes_all_colors() -> None:
    config = ArcNetworkConfig(color_encoding="bits", hidden_dim=16)

    @quickly
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
    in_twos, in_ones = quickly(lambda cells: (patches(cells, 2, -1), patches(cells, 1, -1)))(cells)
    assert in_twos.tolist() == [
        [[1, 2, 4, 5], [3, -1, 6, -1]],
        [[7, 8, -1, -1], [9, -1, -1, -1]],
    ]
    assert np.asarray(in_ones)[..., 0].tolist() == cells.tolist()


def test_patch_logits_are_assigned_to_their_cells() -> None:
    # Each patch's own 2x2 logits are 0, 1, 2, 3 row by row, whatever it sees.
    made = network("conv", patch_size=2)
    layer = made.heads.selections[0][0]
    values = (
        np.zeros(layer.weight.shape, np.float32),
        np.tile(np.arange(4, dtype=np.float32), len(OPERATIONS)),
    )
    known = eqx.tree_at(
        lambda n: (n.heads.selections[0][0].weight, n.heads.selections[0][0].bias),
        made,
        jax.device_put(values),
    )
    cells = both(known, observed(3, 3, (3, 3)))[0].selections[0].cells
    assert cells[4].tolist() == [[0, 1, 0], [2, 3, 2], [0, 1, 0]]


def create(arc: ArcConfig, **settings: Any) -> Callable[[], ArcNetwork]:
    return functools.partial(create_network, ArcNetworkConfig(**settings), arc, jax.random.key(0))


@pytest.mark.parametrize(
    ("create", "words"),
    [
        (create(arc_config(form="mask")), "set action.selection_format to point or bbox, got 'mask'"),
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
def test_invalid_network_config_is_reported(create: Callable[[], ArcNetwork], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        create()
