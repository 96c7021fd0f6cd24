"""Calls into `phalanx._native` with anything at all: an answer or an error in words, and the process lives.

The ARC kernels have a file of their own. `.ci/sanitize` runs both with AddressSanitizer, where the least read
or write out of bounds ends the process.
"""

import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from phalanx.core.backends import register_ffi_targets
from phalanx.native import is_native_available, native_unavailable_reason

if not is_native_available():
    pytest.skip(f"native engine: {native_unavailable_reason()}", allow_module_level=True)
register_ffi_targets()

import phalanx._native as kernels  # noqa: E402

EXAMPLES = int(os.environ.get("PHALANX_FUZZ", "50"))
RUNS = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
REFUSALS = (ValueError, TypeError, RuntimeError, IndexError, MemoryError, OverflowError)
EXTREMES = st.sampled_from([0, 1, -1, 2, 3, 7, 29, 30, 31, 64, 255, 2**31 - 1, -(2**31), 2**40, -(2**63)])
SMALL = st.integers(-3, 12)
NUMBERS = SMALL | EXTREMES


def arrays(dtype: Any, *lengths: int | None, values: Any = NUMBERS) -> st.SearchStrategy[np.ndarray]:
    """Arrays of a dtype; a length that is None is any, and strides may have gaps."""
    info = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else None

    def made(drawn: tuple[tuple[int, ...], list[Any], bool]) -> np.ndarray:
        shape, numbers, gaps = drawn
        if info is not None:
            numbers = [min(max(int(n), info.min), info.max) for n in numbers]
        count = int(np.prod(shape))
        flat = np.resize(np.array(numbers or [0], dtype), count) if count else np.zeros(0, dtype)
        whole = flat.reshape(shape)
        return np.repeat(whole, 2, axis=0)[::2] if gaps and shape else whole

    sides = st.tuples(*(st.integers(0, 6) if one is None else st.just(one) for one in lengths))
    return st.tuples(sides, st.lists(values, max_size=24), st.sampled_from([False] * 4 + [True])).map(made)


def attempt(call: Callable[..., Any], *arguments: Any) -> Any:
    """What a call gives; None if it was refused."""
    try:
        return call(*arguments)
    except REFUSALS as error:
        words = str(error)
    assert words
    return None


OTHER = st.sampled_from([None, "text", 1.5, [], np.zeros(3, np.float16), np.zeros((2, 2), np.int32), b"", {}])


def sometimes_other(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The right kind of argument most of the time."""
    return st.integers(0, 14).flatmap(lambda number: OTHER if number == 0 else strategy)


@RUNS
@given(st.data())
def test_packing_survives_anything(data: st.DataObject) -> None:
    lengths = data.draw(sometimes_other(arrays(np.int32, None, values=SMALL)))
    bins = data.draw(sometimes_other(arrays(np.int32, None)))
    modes = ["greedy", "first_fit", "best_fit", "best_fit_decreasing", "hybrid", "other"]
    capacity = data.draw(SMALL | st.sampled_from([100, -(2**31), 2**31 - 1, 2**40]))
    attempt(kernels.pack_lengths, lengths, capacity, data.draw(st.sampled_from(modes)), bins)
    keys = data.draw(sometimes_other(arrays(np.uint64, None)))
    carried = data.draw(st.none() | sometimes_other(arrays(np.int16, None)))
    attempt(kernels.sort_random_keys, keys, data.draw(NUMBERS), data.draw(arrays(np.int32, None)), carried)
    runs = [data.draw(sometimes_other(arrays(np.int64, None, values=SMALL))) for _ in range(2)]
    attempt(kernels.take_runs, lengths, *runs, bins)
    attempt(kernels.join_texts, data.draw(st.lists(sometimes_other(st.text(max_size=3)), max_size=4)), bins)
    rows, width = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 8))
    out = [data.draw(sometimes_other(st.just(np.zeros((rows, width), t)))) for t in ("i4", "i1", "i4", "i4")]
    attempt(
        kernels.fill_packs,
        data.draw(arrays(np.int32, None)),
        data.draw(st.none() | arrays(np.int8, None)),
        data.draw(arrays(np.int64, None)),
        data.draw(arrays(np.int32, None)),
        data.draw(arrays(np.int64, rows + 1) | arrays(np.int64, None)),
        data.draw(st.none() | NUMBERS),
        data.draw(NUMBERS),
        *out,
    )


@RUNS
@given(st.data())
def test_puzzles_survive_anything(data: st.DataObject) -> None:
    kinds = ["sudoku", "futoshiki", "binary", "nonogram", "hitori", "bridges", "sokoban", "knights", "x"]
    kind = data.draw(st.sampled_from(kinds))
    size = data.draw(st.integers(2, 4))
    lengths = {"sudoku": 4, "futoshiki": 3, "sokoban": 7}
    rest = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=6))
    parameters = [size, *np.resize(rest, lengths.get(kind, 2) - 1).tolist()]
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(parameters) - 1))
        parameters[place] = data.draw(st.integers(-3, 5) | EXTREMES)
    if kind != "sokoban" or (len(parameters) > 6 and parameters[6] < 100):
        attempt(
            kernels.puzzle_records, kind, data.draw(st.lists(st.integers(-1, 2**64), max_size=1)), parameters
        )
    sizes = {"sokoban": 65, "knights": 5 * size, "nonogram": 2 * size * ((size + 1) // 2)}
    count = data.draw(st.just(sizes.get(kind, size * size)) | st.integers(0, 90))
    puzzle = bytes(np.resize(data.draw(st.lists(st.integers(0, 255) | st.integers(0, 4), min_size=1)), count))
    if kind == "sokoban" and count == 65:
        border = np.zeros((8, 8), bool)
        border[1:-1, 1:-1] = True
        board = np.where(border, np.frombuffer(puzzle[:64], np.uint8).reshape(8, 8), 1)
        puzzle = bytes(board.astype(np.uint8)) + puzzle[64:]
    attempt(kernels.puzzle_solutions, kind, puzzle, parameters, data.draw(st.sampled_from([0, 1, 3, -1])))


@RUNS
@given(st.data())
def test_plans_between_grids_survive_anything(data: st.DataObject) -> None:
    colors = st.integers(0, 9) | st.integers(-128, 127)
    start, target = (data.draw(sometimes_other(arrays(np.int8, None, None, values=colors))) for _ in range(2))
    rows, columns = (data.draw(st.integers(1, 6) | NUMBERS) for _ in range(2))
    words = data.draw(st.sampled_from(["point", "bbox", "mask", "", "line"]))
    allowed = data.draw(st.just(2**42 - 1) | st.integers(0, 2**64 - 1) | EXTREMES)
    attempt(kernels.plan, start, target, rows, columns, words, allowed)


@RUNS
@given(st.data())
def test_mining_survives_anything(data: st.DataObject) -> None:
    few = st.integers(0, 4)
    entities, relations = data.draw(few | st.sampled_from([-1, 2**31 - 1])), data.draw(few)
    triples = data.draw(sometimes_other(arrays(np.int32, None, 3, values=few | NUMBERS)))
    graph = attempt(kernels.MiningGraph, triples, entities, relations)
    if graph is None:
        triples = np.array([[0, 0, 1], [1, 1, 2], [0, 2, 3], [1, 3, 0]], np.int32)
        graph, entities, relations = kernels.MiningGraph(triples, 4, 2), 4, 2
    threads = data.draw(st.integers(1, 2) | st.sampled_from([0, -1, 2**31 - 1]))
    limits = [data.draw(st.integers(1, 5) | NUMBERS) for _ in range(4)]
    miner = attempt(kernels.PathMiner, data.draw(sometimes_other(st.just(graph))), *limits, 7, threads)
    steps = st.sampled_from(["discover", "choose", "measure", "rules"])
    for name in data.draw(st.lists(steps, max_size=6)) if miner is not None else ():
        given_ = [data.draw(NUMBERS) for _ in range(2 if name == "choose" else 1)]
        attempt(getattr(miner, name), *given_)
    spans = [data.draw(few | NUMBERS) for _ in range(2)]
    attempt(kernels.mine_constants, graph, *spans, 1, 0.0, 5.0, data.draw(NUMBERS), True, True, threads)
    rules = data.draw(sometimes_other(arrays(np.int32, None, 8, values=st.integers(-2, 3) | NUMBERS)))
    count = len(rules) if isinstance(rules, np.ndarray) else 1
    levels = data.draw(st.just(np.zeros(count, np.int32)) | arrays(np.int32, None))
    applier = attempt(kernels.RuleApplier, graph, rules, levels, data.draw(NUMBERS), threads)
    if applier is None:
        whole = np.array([[0, 2, -1, -1, -1, -1, -1, -1], [1, 2, 0, -1, -1, -1, -1, -1]], np.int32)
        if relations < 2:
            whole = whole[:0]
        count = len(whole)
        applier = kernels.RuleApplier(graph, whole, np.zeros(count, np.int32), 10, 1)
    asked = data.draw(sometimes_other(arrays(np.int32, None, 2, values=few | NUMBERS)))
    number = len(asked) if isinstance(asked, np.ndarray) else 1
    weights = data.draw(st.just(np.zeros(2 * count)) | arrays(np.float64, None))
    how = data.draw(st.sampled_from(["maximum", "sum", "mean"]))
    known = data.draw(st.just(graph) | st.just(kernels.MiningGraph(np.zeros((0, 3), np.int32), 9, 1)))
    targets = data.draw(arrays(np.int32, None))
    begins = data.draw(
        st.just(np.linspace(0, len(targets), number + 1).astype(np.int64)) | arrays(np.int64, None)
    )
    out = [data.draw(st.just(np.zeros(len(targets), np.int64)) | arrays(np.int64, None)) for _ in range(2)]
    attempt(applier.rank, known, asked, begins, targets, how, weights, *out)
    table = data.draw(
        st.just(np.zeros((number, max(entities, 0)), np.float32)) | arrays(np.float32, None, None)
    )
    attempt(applier.scores, asked, how, weights, table)
    most = [data.draw(NUMBERS) for _ in range(2)]
    attempt(applier.learn, weights, data.draw(arrays(np.int32, None)), *most, 1, 0.1, 0.1, 3)
    attempt(applier.predict, data.draw(few | NUMBERS), data.draw(few | NUMBERS))


FACTS = np.array([[1, 1, 2], [1, 2, 3], [2, 1, 3]], np.int32)
HEADS = np.array([[1, -1, -2], [2, -1, -2]], np.int32)
BODIES = np.array([[[2, -1, -3], [1, -3, -2]], [[1, -1, -2], [0, 0, 0]]], np.int32)


@RUNS
@given(st.data())
def test_programs_of_any_content_are_held_or_refused(data: st.DataObject) -> None:
    terms = st.integers(-8, 4) | NUMBERS
    facts = data.draw(st.just(FACTS) | sometimes_other(arrays(np.int32, None, 3, values=terms)))
    heads = data.draw(st.just(HEADS) | arrays(np.int32, None, 3, values=terms))
    bodies = data.draw(st.just(BODIES) | arrays(np.int32, None, None, 3, values=terms))
    sizes = [data.draw(st.just(size) | NUMBERS) for size in (2, 3)]
    program = attempt(kernels.ProofProgram, data.draw(st.integers(100, 10**6)), facts, heads, bodies, *sizes)
    if program is not None:
        expand(program.key, data, states=data.draw(st.integers(1, 4)))


def expand(key: int, data: st.DataObject, states: int = 3) -> Any:
    """A call of the kernel of right sizes, whatever the buffers hold."""
    batch, atoms, memory = 2, 3, 2
    values = st.integers(-1, 9) | st.sampled_from([-(2**31), 2**31 - 1])

    def filled(*shape: int) -> np.ndarray:
        numbers = data.draw(st.lists(values, min_size=1, max_size=12))
        return np.resize(np.array(numbers, np.int32), shape)

    flags = [np.array(data.draw(st.tuples(st.booleans(), st.booleans()))) for _ in range(3)]
    node = [
        filled(batch, atoms, 3),
        filled(batch, states, atoms, 3),
        filled(batch),
        filled(batch, memory, atoms, 3),
        filled(batch),
        flags[2],
        filled(batch),
        filled(batch),
    ]
    options = {
        name: np.bool_(data.draw(st.booleans())) for name in ("end_proof_action", "memory_pruning", "restart")
    }
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in node]
    call = jax.ffi.ffi_call("phalanx_proof_expand", shapes)
    limit = np.int64(data.draw(st.integers(0, 9)))
    out = call(
        flags[0], filled(batch, 3), flags[1], *node, program=np.int64(key), unary_limit=limit, **options
    )
    return jax.block_until_ready(out)


@pytest.fixture(scope="module")
def held() -> Any:
    register_ffi_targets()
    return kernels.ProofProgram(77, FACTS, HEADS, BODIES, 2, 3)


@RUNS
@given(st.data())
def test_the_proof_kernel_survives_any_content_of_its_buffers(held: Any, data: st.DataObject) -> None:
    expand(held.key, data)


SHAPES = {
    "where": (2,),
    "query": (2, 3),
    "excluded": (2,),
    "goals": (2, 3, 3),
    "successors": (2, 4, 3, 3),
    "count": (2,),
    "visited": (2, 2, 3, 3),
    "visited_count": (2,),
    "overflow": (2,),
    "too_long": (2,),
    "skipped": (2,),
}


SIDES = [("operand", name) for name in SHAPES] + [("result", name) for name in list(SHAPES)[3:]]


@pytest.mark.parametrize(("side", "name"), SIDES)
def test_the_proof_kernel_refuses_sizes_that_do_not_go_together(held: Any, name: str, side: str) -> None:
    names = list(SHAPES)
    for shape in ((), (1,), (3,), (2, 0), (2, 3, 2), (2, 0, 3), (2, 0, 3, 3)):
        if shape == SHAPES[name] or (name == "visited" and shape == (2, 0, 3, 3)):
            continue
        operands, results = dict(SHAPES), {one: SHAPES[one] for one in names[3:]}
        (operands if side == "operand" else results)[name] = shape
        if side == "operand" and name in results:
            results[name] = shape
        kinds = {one: bool if one in ("where", "excluded", "overflow") else np.int32 for one in names}
        shapes = [jax.ShapeDtypeStruct(results[one], kinds[one]) for one in results]
        call = jax.ffi.ffi_call("phalanx_proof_expand", shapes)
        arrays_ = [np.zeros(operands[one], kinds[one]) for one in names]
        options = {one: np.bool_(False) for one in ("end_proof_action", "memory_pruning", "restart")}
        with pytest.raises(jax.errors.JaxRuntimeError, match="phalanx_proof_expand"):
            jax.block_until_ready(call(*arrays_, program=np.int64(77), unary_limit=np.int64(0), **options))


@pytest.mark.parametrize(("program", "limit"), [(78, 0), (77, -1), (77, 2**62)])
def test_the_proof_kernel_refuses_unknown_programs_and_limits(held: Any, program: int, limit: int) -> None:
    kinds = {one: bool if one in ("where", "excluded", "overflow") else np.int32 for one in SHAPES}
    shapes = [jax.ShapeDtypeStruct(SHAPES[one], kinds[one]) for one in list(SHAPES)[3:]]
    call = jax.ffi.ffi_call("phalanx_proof_expand", shapes)
    given_ = [np.zeros(shape, kinds[one]) for one, shape in SHAPES.items()]
    options = {one: np.bool_(False) for one in ("end_proof_action", "memory_pruning", "restart")}
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"Program is gone|steps without a choice"):
        jax.block_until_ready(
            call(*given_, program=np.int64(program), unary_limit=np.int64(limit), **options)
        )


ATTENTION = {
    "qkv": (2, 5, 3, 2, 4),
    "cosine": (2, 5, 2),
    "sine": (2, 5, 2),
    "segments": (2, 5),
    "attended": (2, 5, 2, 4),
    "logs": (2, 2, 5),
    "cotangent": (2, 5, 2, 4),
    "gradient": (2, 5, 3, 2, 4),
}
ATTENTION_CALLS = {
    "forward": (["qkv", "cosine", "sine", "segments"], ["attended", "logs"]),
    "backward": (["qkv", "cosine", "sine", "segments", "attended", "logs", "cotangent"], ["gradient"]),
}


def call_attention(name: str, operands: list[np.ndarray], results: list[tuple[int, ...]]) -> Any:
    shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in results]
    return jax.block_until_ready(jax.ffi.ffi_call(f"phalanx_attention_{name}", shapes)(*operands))


@pytest.mark.parametrize(
    ("call", "name"),
    [(call, name) for call, (given_, made) in ATTENTION_CALLS.items() for name in (*given_, *made)],
)
def test_the_attention_kernel_refuses_sizes_that_do_not_go_together(call: str, name: str) -> None:
    register_ffi_targets()
    operands, results = ATTENTION_CALLS[call]
    right = ATTENTION[name]
    for shape in ((), (2,), right[:-1], (*right, 1), (*right[:-1], right[-1] + 1), (0, *right[1:])):
        if name == "gradient" and 0 in shape:
            continue  # XLA makes no call whose only result is empty
        shapes = {**ATTENTION, name: shape}
        given_ = [np.zeros(shapes[one], np.int32 if one == "segments" else np.float32) for one in operands]
        with pytest.raises(jax.errors.JaxRuntimeError, match=f"phalanx_attention_{call}"):
            call_attention(call, given_, [shapes[one] for one in results])


@RUNS
@given(st.data())
def test_the_attention_kernel_survives_any_content_of_its_buffers(data: st.DataObject) -> None:
    register_ffi_targets()
    rows, heads = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))
    tokens, half = data.draw(st.integers(0, 8) | st.sampled_from([48, 97, 145])), data.draw(st.integers(0, 9))
    whole, angles = (rows, tokens, 3, heads, 2 * half), (rows, tokens, half)
    numbers = st.sampled_from([0.0, 1.0, -2.5, 1e30, -1e30, float("inf"), float("-inf"), float("nan")])

    def filled(*shape: int) -> np.ndarray:
        drawn = data.draw(st.lists(numbers, min_size=1, max_size=9))
        return np.resize(np.array(drawn, np.float32), shape)

    segments = data.draw(st.lists(st.integers(0, 3) | st.integers(-(2**31), 2**31 - 1), min_size=1))
    given_ = [filled(*whole), filled(*angles), filled(*angles)]
    given_.append(np.resize(np.array(segments, np.int32), (rows, tokens)))
    attended, logs = (rows, tokens, heads, 2 * half), (rows, heads, tokens)
    attempt(call_attention, "forward", given_, [attended, logs])
    rest = [filled(*attended), filled(*logs), filled(*attended)]
    attempt(call_attention, "backward", [*given_, *rest], [whole])


def test_the_small_functions_take_anything() -> None:
    assert kernels.__file__.startswith(os.environ.get("PHALANX_SANITIZED", ""))
    for number in (0, -1, 2**62, -(2**63)):
        kernels.share_threads(number)
    kernels.share_threads(1)
    assert kernels.isa() and set(kernels.targets())
    for wrong in (None, "many", 2**70):
        attempt(kernels.share_threads, wrong)
