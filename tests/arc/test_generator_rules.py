"""Every pair of a generated task follows the rule of its family, which is implemented again here."""

from collections.abc import Callable

import numpy as np
import pytest

from phalanx.arc.generators import FAMILIES, generate_task, generate_tasks
from phalanx.arc.tasks import GridPair

GRAY, HEAD = 5, 2
NEIGHBORS = [(-1, 0), (1, 0), (0, -1), (0, 1)]
ALL_NEIGHBORS = [*NEIGHBORS, (-1, -1), (-1, 1), (1, -1), (1, 1)]

Rule = Callable[[np.ndarray, tuple[GridPair, ...]], np.ndarray]
RULES: dict[str, Rule] = {}


def rule(function: Rule) -> Rule:
    RULES[function.__name__] = function
    return function


def connected_components(mask: np.ndarray, steps: list[tuple[int, int]]) -> list[np.ndarray]:
    """Return the connected components of a mask, as masks."""
    remaining, components = mask.copy(), []
    while remaining.any():
        component, frontier = np.zeros_like(mask), [tuple(np.argwhere(remaining)[0])]
        component[frontier[0]] = True
        while frontier:
            r, c = frontier.pop()
            for cell in ((r + dr, c + dc) for dr, dc in steps):
                inside = min(cell) >= 0 and cell[0] < len(mask) and cell[1] < len(mask[0])
                if inside and mask[cell] and not component[cell]:
                    component[cell] = True
                    frontier.append(cell)
        remaining &= ~component
        components.append(component)
    return components


def bounding_box(mask: np.ndarray) -> tuple[slice, slice]:
    rows, cols = np.nonzero(mask)
    return slice(rows.min(), rows.max() + 1), slice(cols.min(), cols.max() + 1)


def touches_side(mask: np.ndarray) -> bool:
    return bool(mask[0].any() or mask[-1].any() or mask[:, 0].any() or mask[:, -1].any())


def first_fitting_rule(rules: list[Callable[[np.ndarray], np.ndarray]], demos: tuple[GridPair, ...]):
    """Return the first rule that all demonstrations follow."""
    fitting = [r for r in rules if all(np.array_equal(r(demo.input), demo.output) for demo in demos)]
    assert fitting, "no rule fits the demonstrations"
    return fitting[0]


@rule
def recolor(grid, demos):
    mapping = dict(zip(demos[0].input.ravel().tolist(), demos[0].output.ravel().tolist(), strict=True))
    return np.vectorize(lambda color: mapping.get(color, color))(grid)


@rule
def fill_enclosed(grid, demos):
    result = grid.copy()
    for hole in connected_components(grid == 0, NEIGHBORS):
        if not touches_side(hole):
            rows, cols = bounding_box(hole)
            (color,) = {*grid[rows, cols.start - 1].tolist(), *grid[rows, cols.stop].tolist()}
            result[hole] = color
    return result


@rule
def complete_symmetry(grid, demos):
    def completed(flip):
        def complete(cells):
            filled = np.where(cells == 0, flip(cells), cells)
            return filled if np.array_equal(filled, flip(filled)) else cells

        return complete

    return first_fitting_rule([completed(np.fliplr), completed(np.flipud)], demos)(grid)


@rule
def move_until_hit(grid, demos):
    body = (grid != 0) & (grid != GRAY)
    head, tail = np.argwhere(grid == HEAD)[0], np.argwhere(body & (grid != HEAD))[0]
    ahead = head - tail
    cells, distance = np.argwhere(body), 0
    while True:
        positions = cells + (distance + 1) * ahead
        if (
            (positions < 0).any()
            or (positions >= grid.shape).any()
            or (grid[tuple(positions.T)] == GRAY).any()
        ):
            break
        distance += 1
    result = np.where(body, 0, grid)
    result[tuple((cells + distance * ahead).T)] = grid[tuple(cells.T)]
    return result


def transform_objects(grid, transform):
    result = np.zeros_like(grid)
    for component in connected_components(grid != 0, ALL_NEIGHBORS):
        box = bounding_box(component)
        new = transform(grid[box])
        top, left = box[0].start, box[1].start
        result[top : top + new.shape[0], left : left + new.shape[1]] = new
    return result


@rule
def mirror(grid, demos):
    flips = [
        lambda cells: transform_objects(cells, np.fliplr),
        lambda cells: transform_objects(cells, np.flipud),
    ]
    return first_fitting_rule(flips, demos)(grid)


@rule
def rotate(grid, demos):
    turns = [lambda cells: transform_objects(cells, np.rot90)]
    turns += [lambda cells: transform_objects(cells, lambda box: np.rot90(box, -1))]
    return first_fitting_rule(turns, demos)(grid)


@rule
def crop_to_object(grid, demos):
    return grid[bounding_box(grid != 0)]


@rule
def extend_line(grid, demos):
    result = grid.copy()
    for color in set(grid.ravel().tolist()) - {0, GRAY}:
        first, second = np.argwhere(grid == color)
        for cell, step in ((second, second - first), (first, first - second)):
            position = cell + step
            while (position >= 0).all() and (position < grid.shape).all() and grid[tuple(position)] == 0:
                result[tuple(position)] = color
                position = position + step
    return result


@rule
def count_to_color(grid, demos):
    return np.array([[len(connected_components(grid != 0, ALL_NEIGHBORS))]])


def distances_to_object(grid):
    """Return the Chebyshev distance of every cell from the object."""
    rows, cols = bounding_box(grid != 0)
    r, c = np.indices(grid.shape)
    down = np.maximum(rows.start - r, r - rows.stop + 1)
    across = np.maximum(cols.start - c, c - cols.stop + 1)
    return np.maximum(np.maximum(down, across), 0)


@rule
def draw_border(grid, demos):
    pairs = zip(
        distances_to_object(demos[0].input).ravel().tolist(), demos[0].output.ravel().tolist(), strict=True
    )
    colors = {distance: color for distance, color in pairs if distance > 0}
    return np.where(
        grid != 0, grid, np.vectorize(lambda distance: colors.get(distance, 0))(distances_to_object(grid))
    )


@rule
def gravity(grid, demos):
    result = np.zeros_like(grid)
    for color in set(grid.ravel().tolist()) - {0}:
        rows, cols = bounding_box(grid == color)
        result[len(grid) - (rows.stop - rows.start) :, cols] = color
    return result


@rule
def swap_colors(grid, demos):
    first, second = sorted(set(grid.ravel().tolist()) - {0})
    return np.where(grid == first, second, np.where(grid == second, first, 0))


@rule
def fill_rooms(grid, demos):
    result = grid.copy()
    for room in connected_components(grid != GRAY, NEIGHBORS):
        seeds = set(grid[room].tolist()) - {0}
        assert len(seeds) <= 1
        result[room] = seeds.pop() if seeds else 0
    return result


@rule
def stamp(grid, demos):
    pattern = grid[bounding_box((grid != 0) & (grid != GRAY))]
    result = grid.copy()
    for r, c in np.argwhere(grid == GRAY):
        result[r : r + len(pattern), c : c + len(pattern[0])] = pattern
    return result


def test_every_family_has_a_reference_rule():
    assert {*RULES, "denoise"} == set(FAMILIES)


@pytest.mark.parametrize("family", RULES)
@pytest.mark.parametrize("size", [(3, 3), (3, 4), (6, 5), (10, 12), (30, 30)], ids=str)
def test_all_pairs_follow_the_rule_of_their_family(family, size):
    for seed in range(2):
        task = generate_task(family, seed, height=size[0], width=size[1])
        for pair in task.pairs:
            assert np.array_equal(RULES[family](pair.input, task.demos), pair.output), (task.id, pair)


@pytest.mark.parametrize("size", [(3, 3), (6, 5), (30, 30)], ids=str)
def test_denoise_removes_noise_from_bands(size):
    for seed in range(4):
        for pair in generate_task("denoise", seed, height=size[0], width=size[1]).pairs:
            noisy = pair.input != pair.output
            bands = set(pair.output.ravel().tolist())
            assert (pair.output == pair.output[:, :1]).all() or (pair.output == pair.output[:1]).all()
            (noise,) = set(pair.input[noisy].tolist())
            assert noise not in bands
            for color in bands:
                band = pair.output == color
                assert 1 <= noisy[band].sum() < band.sum() / 2


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"mirror", "rotate", "recolor", "draw_border"}))
def test_most_families_have_one_rule(family):
    outputs: dict[bytes, bytes] = {}
    for task in generate_tasks((family,), 25, max_height=3, max_width=3):
        for pair in task.pairs:
            after = pair.output.tobytes()
            assert outputs.setdefault(pair.input.tobytes(), after) == after


def test_some_families_vary_the_rule():
    for family in ("mirror", "rotate"):
        first_steps = {task.solutions[0][0].operation for task in generate_tasks((family,), 12)}
        assert len(first_steps) == 2
    for family in ("recolor", "draw_border"):
        colors = {task.solutions[0][0].operation for task in generate_tasks((family,), 12)}
        assert len(colors) > 3
