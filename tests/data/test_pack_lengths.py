"""Bin packing of lengths: every mode is compared with straightforward implementations of its rule."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from phalanx.data import PackingMode, pack_lengths
from phalanx.data.packing import MAX_CAPACITY
from phalanx.native import native_module
from tests.reference import bin_packing

MODES = list(PackingMode)


def pack_and_compare(lengths: np.ndarray, capacity: int, mode: PackingMode) -> np.ndarray:
    """Return the bins, which must equal those of the reference implementation."""
    bins = pack_lengths(lengths, capacity, mode)
    assert bins.tolist() == bin_packing.pack(np.asarray(lengths, np.int32), capacity, mode).tolist()
    return bins


def naive_pack(lengths: list[int], capacity: int, mode: PackingMode) -> list[int]:
    """Pack by searching all bins for every sample."""
    order = list(range(len(lengths)))
    if mode is PackingMode.BEST_FIT_DECREASING:
        order.sort(key=lambda sample: -lengths[sample])
    free_space: list[int] = []
    bins = [-1] * len(lengths)
    for sample in order:
        fitting = [bin_ for bin_, space in enumerate(free_space) if space >= lengths[sample]]
        if mode is PackingMode.GREEDY:
            fitting = [bin_ for bin_ in fitting if bin_ == len(free_space) - 1]
        elif mode is not PackingMode.FIRST_FIT:
            fitting.sort(key=lambda bin_: free_space[bin_])
        if not fitting:
            fitting = [len(free_space)]
            free_space.append(capacity)
        bins[sample] = fitting[0]
        free_space[fitting[0]] -= lengths[sample]
    return bins


def hard_lengths(samples: int) -> np.ndarray:
    return np.random.default_rng(0).integers(300, 1301, samples)


def lognormal(samples: int) -> np.ndarray:
    lengths = np.random.default_rng(0).lognormal(np.log(300) - 0.5, 1.0, samples)
    return np.clip(np.rint(lengths), 1, 2048).astype(np.int32)


@pytest.mark.parametrize(
    ("mode", "lengths", "bins"),
    [
        # The capacity is 10.
        ("next_fit", [4, 7, 3, 6], [0, 1, 1, 2]),
        ("first_fit", [4, 7, 3, 6], [0, 1, 0, 2]),
        ("best_fit", [4, 7, 3, 6], [0, 1, 1, 0]),
        ("best_fit_decreasing", [4, 7, 3, 6], [1, 0, 0, 1]),
        ("best_fit_decreasing", [2, 3, 6, 3, 4, 2], [1, 1, 0, 1, 0, 1]),
        # 6+3 leaves 1 and 5+2+2 leaves 1, so a 2 is left over; 6+2+2 and 5+3+2 leave nothing.
        ("best_fit_decreasing", [6, 5, 3, 2, 2, 2], [0, 1, 0, 1, 1, 2]),
        ("subset_sum", [6, 5, 3, 2, 2, 2], [0, 1, 1, 0, 0, 1]),
    ],
)
def test_each_mode_follows_its_rule(mode: str, lengths: list[int], bins: list[int]) -> None:
    assert pack_lengths(lengths, 10, mode).tolist() == bins


@pytest.mark.parametrize("mode", MODES)
def test_empty_lengths_have_no_bins(mode: PackingMode) -> None:
    assert pack_lengths([], 8, mode).tolist() == []
    assert pack_lengths(np.zeros(0, np.int64), 8, mode).dtype == np.int32


@pytest.mark.parametrize("mode", MODES)
def test_full_sample_has_its_own_bin(mode: PackingMode) -> None:
    assert sorted(pack_lengths([8, 8, 8], 8, mode).tolist()) == [0, 1, 2]


@settings(max_examples=150, deadline=None)
@given(
    capacity=st.integers(1, 40),
    seeds=st.lists(st.integers(0, 10_000), max_size=60),
    mode=st.sampled_from([mode for mode in MODES if mode is not PackingMode.SUBSET_SUM]),
)
def test_bins_equal_the_naive_implementation(capacity: int, seeds: list[int], mode: PackingMode) -> None:
    lengths = [1 + seed % capacity for seed in seeds]
    assert pack_and_compare(np.asarray(lengths, int), capacity, mode).tolist() == naive_pack(
        lengths, capacity, mode
    )


@settings(max_examples=150, deadline=None)
@given(
    capacity=st.integers(1, 700),
    samples=st.integers(1, 120),
    seed=st.integers(0, 2**32),
    share=st.tuples(st.floats(0, 0.5), st.floats(0.5, 1)),
    mode=st.sampled_from(MODES),
)
def test_bins_are_valid_and_equal_the_reference(
    capacity: int, samples: int, seed: int, share: tuple[float, float], mode: PackingMode
) -> None:
    shortest, longest = (max(1, round(part * capacity)) for part in share)
    lengths = np.random.default_rng(seed).integers(shortest, longest + 1, samples)
    bins = pack_and_compare(lengths, capacity, mode)
    loads = np.bincount(bins, weights=lengths)
    assert loads.max() <= capacity and loads.min() > 0
    if mode is PackingMode.SUBSET_SUM:
        decreasing = pack_lengths(lengths, capacity, PackingMode.BEST_FIT_DECREASING)
        assert len(loads) <= decreasing.max() + 1


@pytest.mark.parametrize("mode", [PackingMode.BEST_FIT_DECREASING, PackingMode.SUBSET_SUM])
@pytest.mark.parametrize(
    "lengths", [hard_lengths(400) // 8, hard_lengths(100_000) // 8, lognormal(100_000) // 8 + 1]
)
def test_large_inputs_equal_the_reference(mode: PackingMode, lengths: np.ndarray) -> None:
    assert pack_and_compare(lengths, 257, mode).max() < len(lengths)


def test_maximum_capacity_is_supported() -> None:
    assert pack_lengths([1, MAX_CAPACITY, 5], MAX_CAPACITY).tolist() == [1, 0, 1]


def test_equal_lengths_keep_their_order() -> None:
    assert pack_lengths([5] * 6, 10).tolist() == [0, 0, 1, 1, 2, 2]


def test_lognormal_lengths_are_packed_near_the_lower_bound() -> None:
    lengths = lognormal(1_000_000)
    lower_bound = -(-int(lengths.sum()) // 2048)
    assert lower_bound == 143_073
    assert pack_lengths(lengths, 2048).max() + 1 <= lower_bound * 1.0001
    assert pack_lengths(lengths, 2048, PackingMode.SUBSET_SUM).max() + 1 == lower_bound


def test_hard_lengths_are_packed_nearly_full_with_subset_sum() -> None:
    lengths = hard_lengths(1_000_000)
    decreasing = pack_lengths(lengths, 2048).max() + 1
    filled = pack_lengths(lengths, 2048, PackingMode.SUBSET_SUM).max() + 1
    assert decreasing == 395_019
    assert lengths.sum() / (filled * 2048) > 0.999


@pytest.mark.parametrize(
    ("lengths", "capacity", "message"),
    [
        ([3, -3, 2], 4, "sample 1: length must be a positive integer, got -3"),
        ([3, 0], 4, "sample 1: length must be a positive integer, got 0"),
        ([3, 1, 5], 4, "sample 2: length 5 exceeds the capacity 4"),
        ([3, 2**40], 4, "sample 1: length 1099511627776 is above 2147483647"),
        ([1.5], 4, "sample 0: length must be a positive integer, got 1.5"),
        ([[1]], 4, r"sample 0: length must be a positive integer, got \[1\]"),
        ([1], 0, "capacity must be between 1 and 16777216, got 0"),
        ([1], MAX_CAPACITY + 1, "capacity must be between 1 and 16777216, got 16777217"),
    ],
)
def test_invalid_lengths_and_capacities_are_rejected(lengths: list[int], capacity: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack_lengths(lengths, capacity)


def test_unknown_mode_is_rejected() -> None:
    with pytest.raises(ValueError, match="'worst_fit' is not a valid PackingMode"):
        pack_lengths([1], 4, "worst_fit")


def test_compiled_code_rejects_invalid_arrays() -> None:
    compiled = native_module()
    if compiled is None:
        pytest.skip("the compiled extension is not installed")
    bins = np.zeros(2, np.int32)
    for lengths in ([1, 5], [0, 1], [1, 2, 3]):
        with pytest.raises(ValueError):
            compiled.pack_lengths(np.asarray(lengths, np.int32), 4, "best_fit_decreasing", bins)
    assert bins.tolist() == [0, 0]
