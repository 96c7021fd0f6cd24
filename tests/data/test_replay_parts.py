"""What the replay buffer is made of: means, the tree of sums, rows in chunks, evictions."""

import math
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from phalanx.data.replay.row_store import RowPlaces, RowStore
from phalanx.data.replay.stats import known_mean
from phalanx.data.sum_tree import SumTree, place_by_priority, place_in_turn, place_randomly

FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


@settings(deadline=None)
@given(st.lists(FLOATS, min_size=1))
def test_a_mean_is_right_to_the_last_digits_and_does_not_overflow(numbers: list[float]) -> None:
    exact = float(sum(map(Fraction, numbers), Fraction(0)) / len(numbers))
    assert known_mean(floats(*numbers, math.nan)) == pytest.approx(exact, rel=1e-15, abs=1e-300)


def test_without_a_known_number_the_mean_is_0() -> None:
    assert known_mean(floats()) == known_mean(floats(math.nan)) == 0.0


def test_a_tree_finds_the_slot_whose_stretch_holds_a_point() -> None:
    tree = SumTree(5)
    tree.set(np.array([0, 1, 2, 4]), floats(1.0, 0.0, 2.0, 3.0))
    assert tree.total == 6.0
    points = floats(0.0, 0.999, 1.0, 2.999, 3.0, math.nextafter(6.0, 0.0))
    assert tree.find(points).tolist() == [0, 0, 2, 2, 4, 4]
    tree.grow(100)
    assert tree.find(points).tolist() == [0, 0, 2, 2, 4, 4]


@settings(deadline=None)
@given(
    st.integers(1, 70),
    st.lists(st.lists(st.tuples(st.integers(0, 69), st.sampled_from([0.0, 0.1, 1.0, 3.3])), max_size=9)),
)
def test_a_tree_agrees_with_adding_up(capacity: int, changes: list[list[tuple[int, float]]]) -> None:
    tree, plain = SumTree(capacity), np.zeros(capacity)
    for change in changes:
        slots = np.array([slot % capacity for slot, _ in change], np.int64)
        weights = floats(*(weight for _, weight in change))
        tree.set(slots, weights)
        plain[slots] = weights
    assert tree.total == pytest.approx(plain.sum())
    np.testing.assert_array_equal(tree.get(np.arange(capacity)), plain)
    if tree.total > 0:
        points = np.linspace(0.0, np.nextafter(tree.total, 0.0), 50)
        found = tree.find(points)
        assert (plain[found] > 0).all()
        expected = np.searchsorted(np.cumsum(plain), points, side="right")
        # At the edge of a stretch the two ways of adding up may round apart.
        assert (np.abs(np.cumsum(plain)[found] - points) < 3.3 + 1e-9).all()
        assert (found == np.minimum(expected, capacity - 1)).mean() > 0.9


def test_rows_fill_chunk_after_chunk_and_a_long_one_gets_its_own() -> None:
    store = RowStore(chunk_items=4)
    places = store.append(np.arange(12, dtype=np.uint16), np.array([3, 2, 6, 1], np.int32))
    assert places.chunks.tolist() == [0, 1, 2, 3]
    assert [
        store.row(*place).tolist() for place in zip(*(part.tolist() for part in places), strict=True)
    ] == [
        [0, 1, 2],
        [3, 4],
        [5, 6, 7, 8, 9, 10],
        [11],
    ]
    store.release(RowPlaces(*(part[:3] for part in places)))
    assert sorted(store.chunks()) == [3]
    assert store.live_items == 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.booleans(), st.integers(0, 10**9)), max_size=40))
def test_rows_read_as_they_were_written_whatever_went_before(steps: list[tuple[int, bool, int]]) -> None:
    store = RowStore(chunk_items=8)
    held: list[tuple[RowPlaces, list[int]]] = []
    for length, wide, choice in steps:
        values = np.arange(choice % 1000, choice % 1000 + length).astype(np.uint32 if wide else np.uint16)
        held.append((store.append(values, np.array([length], np.int32)), values.tolist()))
        if choice % 2:
            store.release(held.pop(choice % len(held))[0])
        assert store.live_items == sum(len(values) for _, values in held)
        for places, expected in held:
            assert store.gather(places).tolist() == expected
    if held:
        every = RowPlaces(*(np.concatenate(parts) for parts in zip(*(p for p, _ in held), strict=True)))
        assert store.gather(every).tolist() == [token for _, values in held for token in values]


def test_in_turn_the_oldest_goes() -> None:
    turn, placed = place_in_turn(3, 3, 5)
    assert (turn, placed.slots.tolist(), placed.rows.tolist()) == (1, [3, 4, 0], [0, 1, 2])


def test_the_lowest_priority_goes_and_of_equals_the_oldest() -> None:
    priorities, serials = floats(5.0, 1.0, 1.0, 9.0), np.array([0, 3, 1, 2])
    placed = place_by_priority(priorities, serials, floats(2.0), np.array([4]))
    assert (placed.slots.tolist(), placed.rows.tolist()) == ([2], [0])
    # The second new one makes the first go, which was the lowest by then.
    placed = place_by_priority(priorities, serials, floats(0.5, 7.0), np.array([4, 5]))
    assert (placed.slots.tolist(), placed.rows.tolist()) == ([2], [1])


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0]), min_size=1, max_size=12),
    st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0]), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_many_evictions_by_priority_equal_one_after_the_other(
    held: list[float], new: list[float], random: Random
) -> None:
    serials = list(range(len(held)))
    random.shuffle(serials)
    new = new[: len(held)]
    slots = [(priority, serial) for priority, serial in zip(held, serials, strict=True)]
    row_of: dict[int, int] = {}
    for row, priority in enumerate(new):
        slot = slots.index(min(slots))
        slots[slot] = (priority, len(held) + row)
        row_of[slot] = row
    placed = place_by_priority(
        floats(*held),
        np.array(serials, np.int64),
        floats(*new),
        np.arange(len(held), len(held) + len(new)),
    )
    assert dict(zip(placed.slots.tolist(), placed.rows.tolist(), strict=True)) == row_of


def test_random_evictions_do_not_depend_on_how_many_come_at_once() -> None:
    together = place_randomly(np.random.default_rng(1), 40, 7)
    rng, row_of = np.random.default_rng(1), {}
    for row in range(40):
        row_of[int(place_randomly(rng, 1, 7).slots[0])] = row
    assert dict(zip(together.slots.tolist(), together.rows.tolist(), strict=True)) == row_of
