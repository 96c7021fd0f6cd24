"""Fuzz tests of the compiled extension: invalid calls raise an error and never crash the process.

`.ci/sanitize` runs this folder with AddressSanitizer, which aborts at the first access outside of an array.
The environment variable `PHALANX_FUZZ` sets the number of examples per test.
"""

import ast
import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from phalanx.core.backends import register_ffi_targets
from phalanx.native import is_native_available, native_unavailable_reason

if not is_native_available():
    pytest.skip(f"native backend: {native_unavailable_reason()}", allow_module_level=True)

import phalanx._native as native

pytestmark = pytest.mark.slow

fuzz = settings(
    max_examples=int(os.environ.get("PHALANX_FUZZ", "50")),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
ERRORS = (ValueError, TypeError, RuntimeError, IndexError, MemoryError, OverflowError)
EXTREMES = st.sampled_from([0, 1, -1, 2, 3, 7, 29, 30, 31, 64, 255, 2**31 - 1, -(2**31), 2**40, -(2**63)])
SMALL = st.integers(-3, 12)
NUMBERS = SMALL | EXTREMES
FLOATS = st.sampled_from([0.0, 1.0, -2.5, 1e30, -1e30, float("inf"), float("-inf"), float("nan")])


def arrays(dtype: Any, *lengths: int | None, values: Any = NUMBERS) -> st.SearchStrategy[np.ndarray]:
    """Draw arrays of a dtype. An axis whose length is None has any length, and strides may have gaps."""
    info = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else None

    def build(drawn: tuple[tuple[int, ...], list[Any], bool]) -> np.ndarray:
        shape, numbers, has_gaps = drawn
        if info is not None:
            numbers = [min(max(int(n), info.min), info.max) for n in numbers]
        array = np.resize(np.array(numbers or [0], dtype), shape)
        return np.repeat(array, 2, axis=0)[::2] if has_gaps and shape else array

    shapes = st.tuples(*(st.integers(0, 6) if length is None else st.just(length) for length in lengths))
    gaps = st.sampled_from([False] * 4 + [True])
    return st.tuples(shapes, st.lists(values, max_size=24), gaps).map(build)


def attempt(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Return the result of a call, or None if it raises an error with a message."""
    try:
        return function(*arguments, **keywords)
    except ERRORS as error:
        message = str(error)
    assert message
    return None


OTHER = st.sampled_from([None, "text", 1.5, [], np.zeros(3, np.float16), np.zeros((2, 2), np.int32), b"", {}])


def sometimes_other(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw an argument of another type once in a while."""
    return st.integers(0, 14).flatmap(lambda number: OTHER if number == 0 else strategy)


# Python functions


@fuzz
@given(st.data())
def test_data_functions_accept_any_arguments(data: st.DataObject) -> None:
    lengths = data.draw(sometimes_other(arrays(np.int32, None, values=SMALL)))
    bins = data.draw(sometimes_other(arrays(np.int32, None)))
    modes = ["next_fit", "first_fit", "best_fit", "best_fit_decreasing", "subset_sum", "other"]
    capacity = data.draw(SMALL | st.sampled_from([100, -(2**31), 2**31 - 1, 2**40]))
    attempt(native.pack_lengths, lengths, capacity, data.draw(st.sampled_from(modes)), bins)
    keys = data.draw(sometimes_other(arrays(np.uint64, None)))
    values = data.draw(st.none() | sometimes_other(arrays(np.int16, None)))
    attempt(native.sort_random_keys, keys, data.draw(NUMBERS), data.draw(arrays(np.int32, None)), values)
    runs = [data.draw(sometimes_other(arrays(np.int64, None, values=SMALL))) for _ in range(2)]
    attempt(native.gather_runs, lengths, *runs, bins)
    strings = data.draw(st.lists(sometimes_other(st.text(max_size=3)), max_size=4))
    attempt(native.concat_strings, strings, bins)
    rows, width = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 8))
    out = [data.draw(sometimes_other(st.just(np.zeros((rows, width), t)))) for t in ("i4", "i1", "i4", "i4")]
    attempt(
        native.fill_packs,
        data.draw(arrays(np.int32, None)),
        data.draw(st.none() | arrays(np.int8, None)),
        data.draw(arrays(np.int64, None)),
        data.draw(arrays(np.int32, None)),
        data.draw(arrays(np.int64, rows + 1) | arrays(np.int64, None)),
        data.draw(st.none() | NUMBERS),
        data.draw(NUMBERS),
        *out,
    )


@fuzz
@given(st.data())
def test_puzzle_functions_accept_any_arguments(data: st.DataObject) -> None:
    kinds = ["sudoku", "futoshiki", "binary", "nonogram", "hitori", "bridges", "sokoban", "knights", "x"]
    kind = data.draw(st.sampled_from(kinds))
    size = data.draw(st.integers(2, 4))
    num_parameters = {"sudoku": 4, "futoshiki": 3, "sokoban": 7}.get(kind, 2)
    rest = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=6))
    parameters = [size, *np.resize(rest, num_parameters - 1).tolist()]
    if data.draw(st.booleans()):
        index = data.draw(st.integers(0, len(parameters) - 1))
        parameters[index] = data.draw(st.integers(-3, 5) | EXTREMES)
    if kind != "sokoban" or (len(parameters) > 6 and parameters[6] < 100):
        seeds = data.draw(st.lists(st.integers(-1, 2**64), max_size=1))
        attempt(native.generate_puzzles, kind, seeds, parameters)
    sizes = {"sokoban": 65, "knights": 5 * size, "nonogram": 2 * size * ((size + 1) // 2)}
    count = data.draw(st.just(sizes.get(kind, size * size)) | st.integers(0, 90))
    puzzle = bytes(np.resize(data.draw(st.lists(st.integers(0, 255) | st.integers(0, 4), min_size=1)), count))
    if kind == "sokoban" and count == 65:
        inner = np.zeros((8, 8), bool)
        inner[1:-1, 1:-1] = True
        board = np.where(inner, np.frombuffer(puzzle[:64], np.uint8).reshape(8, 8), 1)
        puzzle = bytes(board.astype(np.uint8)) + puzzle[64:]
    attempt(native.solve_puzzle, kind, puzzle, parameters, data.draw(st.sampled_from([0, 1, 3, -1])))


@fuzz
@given(st.data())
def test_the_planner_accepts_any_arguments(data: st.DataObject) -> None:
    colors = st.integers(0, 9) | st.integers(-128, 127)
    start, target = (data.draw(sometimes_other(arrays(np.int8, None, None, values=colors))) for _ in range(2))
    rows, columns = (data.draw(st.integers(1, 6) | NUMBERS) for _ in range(2))
    selection_format = data.draw(st.sampled_from(["point", "bbox", "mask", "", "line"]))
    allowed = data.draw(st.just(2**42 - 1) | st.integers(0, 2**64 - 1) | EXTREMES)
    attempt(native.plan_grid_edit, start, target, rows, columns, selection_format, allowed)


@fuzz
@given(st.data())
def test_rule_mining_and_prediction_accept_any_arguments(data: st.DataObject) -> None:
    few = st.integers(0, 4)
    entities, relations = data.draw(few | st.sampled_from([-1, 2**31 - 1])), data.draw(few)
    triples = data.draw(sometimes_other(arrays(np.int32, None, 3, values=few | NUMBERS)))
    graph = attempt(native.TripleGraph, triples, entities, relations)
    if graph is None:
        triples = np.array([[0, 0, 1], [1, 1, 2], [0, 2, 3], [1, 3, 0]], np.int32)
        graph, entities, relations = native.TripleGraph(triples, 4, 2), 4, 2
    threads = data.draw(st.integers(1, 2) | st.sampled_from([0, -1, 2**31 - 1]))
    limits = [data.draw(st.integers(1, 5) | NUMBERS) for _ in range(4)]
    miner = attempt(native.PathRuleMiner, data.draw(sometimes_other(st.just(graph))), *limits, 7, threads)
    methods = st.sampled_from(["find_bodies", "select_rules", "count_predictions", "rules"])
    for name in data.draw(st.lists(methods, max_size=6)) if miner is not None else ():
        arguments = [data.draw(NUMBERS) for _ in range(2 if name == "select_rules" else 1)]
        attempt(getattr(miner, name), *arguments)
    begin_and_end = [data.draw(few | NUMBERS) for _ in range(2)]
    rest = (1, 0.0, 5.0, data.draw(NUMBERS), True, True, threads)
    attempt(native.mine_constant_rules, graph, *begin_and_end, *rest)
    rules = data.draw(sometimes_other(arrays(np.int32, None, 8, values=st.integers(-2, 3) | NUMBERS)))
    count = len(rules) if isinstance(rules, np.ndarray) else 1
    ranks = data.draw(st.just(np.zeros(count, np.int32)) | arrays(np.int32, None))
    predictor = attempt(native.RulePredictor, graph, rules, ranks, data.draw(NUMBERS), threads)
    if predictor is None:
        rules = np.array([[0, 2, -1, -1, -1, -1, -1, -1], [1, 2, 0, -1, -1, -1, -1, -1]], np.int32)
        if relations < 2:
            rules = rules[:0]
        count = len(rules)
        predictor = native.RulePredictor(graph, rules, np.zeros(count, np.int32), 10, 1)
    queries = data.draw(sometimes_other(arrays(np.int32, None, 2, values=few | NUMBERS)))
    num_queries = len(queries) if isinstance(queries, np.ndarray) else 1
    weights = data.draw(st.just(np.zeros(2 * count)) | arrays(np.float64, None))
    aggregation = data.draw(st.sampled_from(["maxplus", "sum", "mean"]))
    known = data.draw(st.just(graph) | st.just(native.TripleGraph(np.zeros((0, 3), np.int32), 9, 1)))
    targets = data.draw(arrays(np.int32, None))
    begins = data.draw(
        st.just(np.linspace(0, len(targets), num_queries + 1).astype(np.int64)) | arrays(np.int64, None)
    )
    out = [data.draw(st.just(np.zeros(len(targets), np.int64)) | arrays(np.int64, None)) for _ in range(2)]
    attempt(predictor.count_ranks, known, queries, begins, targets, aggregation, weights, *out)
    right = np.zeros((num_queries, max(entities, 0)) if entities < 10**6 else (0, 0), np.float32)
    attempt(
        predictor.score,
        queries,
        aggregation,
        weights,
        data.draw(st.just(right) | arrays(np.float32, None, None)),
    )
    limits = [data.draw(NUMBERS) for _ in range(2)]
    attempt(predictor.fit_weights, weights, data.draw(arrays(np.int32, None)), *limits, 1, 0.1, 0.1, 3)
    attempt(predictor.predict, data.draw(few | NUMBERS), data.draw(few | NUMBERS))


@fuzz
@given(
    st.lists(st.tuples(*[st.sampled_from([0, 1, 3, 4, 9, 10, -1, 2**31 - 1, -(2**31)])] * 3), max_size=4),
    st.integers(0, 9),
    st.booleans(),
    st.sampled_from([-1, 0, 1]),
    st.sampled_from([0.3, 1e30, np.nan]),
)
def test_path_networks_accept_any_rows_and_parameters(
    rows: list, num_layers: int, query_dependent: bool, num_extra: int, scale: float
) -> None:
    random = np.random.default_rng(0)
    triples = np.stack([random.integers(0, 2, 14), *random.integers(0, 9, (2, 14))], 1).astype(np.int32)
    layer = 4 * 32 * (5 if query_dependent else 1) + 2 * 32 * 32 + 3 * 32
    size = max(num_layers, 1) * layer + 2 * 4 * 32 + 4 + num_extra
    parameters = (random.normal(0, 1, size) * scale).astype(np.float32)
    triple_rows = np.array(rows, np.int32).reshape(-1, 3)
    graph = native.TripleGraph(triples, 10, 2)
    with suppress(ValueError):
        network = native.PathNetwork(graph, num_layers, query_dependent, 2)
        queries = np.ascontiguousarray(triple_rows[:, :2])
        network.score(parameters, queries, np.empty((len(rows), 10), np.float32))
        network.loss_and_gradient(parameters, triple_rows, np.empty_like(parameters))


FACTS = np.array([[1, 1, 2], [1, 2, 3], [2, 1, 3]], np.int32)
HEADS = np.array([[1, -1, -2], [2, -1, -2]], np.int32)
BODIES = np.array([[[2, -1, -3], [1, -3, -2]], [[1, -1, -2], [0, 0, 0]]], np.int32)


@fuzz
@given(st.data())
def test_proof_programs_accept_any_arrays(data: st.DataObject) -> None:
    terms = st.integers(-8, 4) | NUMBERS
    facts = data.draw(st.just(FACTS) | sometimes_other(arrays(np.int32, None, 3, values=terms)))
    heads = data.draw(st.just(HEADS) | arrays(np.int32, None, 3, values=terms))
    bodies = data.draw(st.just(BODIES) | arrays(np.int32, None, None, 3, values=terms))
    sizes = [data.draw(st.just(size) | NUMBERS) for size in (2, 3)]
    program = attempt(native.ProofProgram, data.draw(st.integers(100, 10**6)), facts, heads, bodies, *sizes)
    if program is not None:
        call = proofs_expand(max_successors=data.draw(st.integers(1, 4)), program=program.key)
        call.run(call.draw_operands(data))


def test_the_number_of_devices_can_be_any_integer() -> None:
    for number in (0, -1, 2**62, -(2**63)):
        native.set_num_devices(number)
    native.set_num_devices(1)
    for number in (None, "many", 2**70):
        attempt(native.set_num_devices, number)


# Custom calls

Buffer = tuple[tuple[int, ...], str]
"""Shape and dtype."""


@dataclasses.dataclass(frozen=True)
class CustomCall:
    """The buffers and attributes of a valid custom call."""

    name: str
    operands: dict[str, Buffer]
    results: dict[str, Buffer]
    attributes: dict[str, Any]
    invalid_attributes: tuple[dict[str, Any], ...] = ()

    def run(self, operands: list[np.ndarray], **attributes: Any) -> list[np.ndarray]:
        register_ffi_targets()
        shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in self.results.values()]
        results = jax.ffi.ffi_call(self.name, shapes)(*operands, **{**self.attributes, **attributes})
        return [np.asarray(array) for array in results]

    def zeros(self) -> list[np.ndarray]:
        return [np.zeros(shape, dtype) for shape, dtype in self.operands.values()]

    def draw_operands(self, data: st.DataObject) -> list[np.ndarray]:
        """Draw operands of the right shapes with any content."""
        operands = []
        for shape, dtype in self.operands.values():
            if dtype == "f4":
                values: Any = FLOATS
            elif dtype == "?":
                values = st.booleans()
            else:
                info = np.iinfo(dtype)
                values = st.integers(max(info.min, -1), 9) | st.sampled_from([int(info.min), int(info.max)])
            numbers = data.draw(st.lists(values, min_size=1, max_size=12))
            operands.append(np.resize(np.array(numbers, dtype), shape))
        return operands

    def with_shape(self, name: str, shape: tuple[int, ...], of_result: bool) -> "CustomCall":
        buffers = dict(self.results if of_result else self.operands)
        buffers[name] = (shape, buffers[name][1])
        return dataclasses.replace(self, **{"results" if of_result else "operands": buffers})


def arc_state(batch: int) -> dict[str, Buffer]:
    return {
        "boards": ((batch, 10, 7), "u4"),
        "registers": ((batch, 8), "i4"),
        "similarity": ((batch,), "f4"),
    }


ARC_TASKS: dict[str, Buffer] = {
    "pairs": ((9, 2, 4, 7), "u4"),
    "sizes": ((9, 4), "i4"),
    "task_table": ((3, 3), "i4"),
}
INVALID_COLUMNS = (-1, 0, 5, 7, 31, 2**62, -(2**63))


def arc_step(batch: int = 5) -> CustomCall:
    vectors = ("operation", "r1", "c1", "r2", "c2")
    rules = np.array([6, 10, 2**42 - 1, 0, 0], np.int64)
    invalid = [rules[:4], np.append(rules, 0), np.zeros(0, np.int64)]
    invalid += [np.array([columns, *rules[1:]], np.int64) for columns in INVALID_COLUMNS]
    return CustomCall(
        "phalanx_arc_step",
        ARC_TASKS
        | dict.fromkeys(vectors, ((batch,), "i4"))
        | {"mask": ((batch, 7, 6), "?")}
        | arc_state(batch),
        arc_state(batch)
        | {"observation": ((batch, 7, 6), "i1")}
        | {"improvement": ((batch,), "f4")}
        | dict.fromkeys(("operation_type", "step_count"), ((batch,), "i4"))
        | dict.fromkeys(("done", "terminated", "truncated", "solved"), ((batch,), "?")),
        {"rules": rules},
        tuple({"rules": array} for array in invalid),
    )


def arc_reset(batch: int = 5) -> CustomCall:
    state = arc_state(batch) | {"observation": ((batch, 7, 6), "i1")}
    return CustomCall(
        "phalanx_arc_reset",
        ARC_TASKS | {"should_reset": ((batch,), "?"), "random_bits": ((batch, 3), "u4")} | state,
        state,
        {"columns": np.int64(6), "evaluation": np.bool_(False), "initial": np.int64(2)},
        (
            *({"columns": np.int64(columns)} for columns in INVALID_COLUMNS),
            *({"initial": np.int64(initial)} for initial in (-1, 4, 2**40)),
        ),
    )


def color_equivariant(name: str, batch: int = 9, width: int = 8) -> CustomCall:
    weights: dict[str, Buffer] = {
        "stem": ((2, 4, width), "f4"),
        "stem_bias": ((width,), "f4"),
        "colors": ((10, width), "f4"),
        "convolution": ((2, 9, width, width), "f4"),
        "across": ((2, 2 * width, width), "f4"),
        "across_bias": ((2, width), "f4"),
        "context": ((2, 2 * width, width), "f4"),
        "context_bias": ((2, width), "f4"),
    }
    blocks = -(-batch // 8)
    features: dict[str, Buffer] = {"features": ((batch, 10, 3, 4, width), "f4")}
    residuals: dict[str, Buffer] = {
        "saved_features": ((blocks, 3, 10 * 12 * width * 8), "f4"),
        "active": ((blocks, 2, 10 * 12 * width), "u1"),
    }
    inputs = {"grids": ((batch, 2, 3, 4), "i1")} | weights
    operands, results = {
        "forward": (inputs, features),
        "forward_with_residuals": (inputs, features | residuals),
        "backward": (inputs | residuals | {"features_gradient": features["features"]}, weights),
    }[name]
    return CustomCall(f"phalanx_arc_color_equivariant_{name}", operands, results, {})


def attention(name: str, rows: int = 2, tokens: int = 5, heads: int = 2, half: int = 2) -> CustomCall:
    inputs: dict[str, Buffer] = {
        "qkv": ((rows, tokens, 3, heads, 2 * half), "f4"),
        "cosine": ((rows, tokens, half), "f4"),
        "sine": ((rows, tokens, half), "f4"),
        "segments": ((rows, tokens), "i4"),
    }
    outputs: dict[str, Buffer] = {
        "output": ((rows, tokens, heads, 2 * half), "f4"),
        "logsumexp": ((rows, heads, tokens), "f4"),
    }
    operands, results = {
        "forward": (inputs, outputs),
        "backward": (
            inputs | outputs | {"output_gradient": outputs["output"]},
            {"qkv_gradient": inputs["qkv"]},
        ),
    }[name]
    return CustomCall(f"phalanx_lm_attention_{name}", operands, results, {})


def generate(
    vocab: int = 5,
    layers: int = 2,
    heads: int = 2,
    half: int = 2,
    d_ff: int = 6,
    rows: int = 2,
    width: int = 3,
    new: int = 4,
) -> CustomCall:
    d_model, cache = 2 * half * heads, -(-(width + new) // 16) * 16
    floats = {
        "embedding": (vocab, d_model),
        "head": (vocab, d_model),
        "norm": (d_model,),
        "first_norm": (layers, d_model),
        "second_norm": (layers, d_model),
        "qkv": (layers, d_model, 3 * d_model),
        "qkv_bias": (layers, 3 * d_model),
        "out": (layers, d_model, d_model),
        "out_bias": (layers, d_model),
        "gate": (layers, d_model, 2 * d_ff),
        "gate_bias": (layers, 2 * d_ff),
        "down": (layers, d_ff, d_model),
        "down_bias": (layers, d_model),
        "cosine": (cache, half),
        "sine": (cache, half),
    }
    return CustomCall(
        "phalanx_lm_generate",
        {name: (shape, "f4") for name, shape in floats.items()}
        | {
            "prompts": ((rows, width), "i4"),
            "starts": ((rows,), "i4"),
            "uniforms": ((rows, new), "f4"),
            "temperature": ((), "f4"),
            "top_p": ((), "f4"),
            "stop_token": ((), "i4"),
            "choices": ((rows, 2, new), "i4"),
        },
        {
            "tokens": ((rows, new), "i4"),
            "logps": ((rows, new), "f4"),
            "lengths": ((rows,), "i4"),
            "ended": ((rows,), "?"),
        },
        {"num_heads": np.int64(heads), "top_k": np.int64(0), "epsilon": np.float32(1e-6)},
        (
            *({"num_heads": np.int64(number)} for number in (0, -2, 3)),
            {"top_k": np.int64(-1)},
        ),
    )


def proofs_expand(max_successors: int = 4, program: int = 77) -> CustomCall:
    state: dict[str, Buffer] = {
        "goals": ((2, 3, 3), "i4"),
        "successors": ((2, max_successors, 3, 3), "i4"),
        "count": ((2,), "i4"),
        "visited": ((2, 2, 3, 3), "i4"),
        "visited_count": ((2,), "i4"),
        "overflow": ((2,), "?"),
        "too_long": ((2,), "i4"),
        "unary_steps": ((2,), "i4"),
    }
    flags = {name: np.bool_(False) for name in ("end_proof_action", "prune_visited", "clear_visited")}
    return CustomCall(
        "phalanx_proofs_expand",
        {"active": ((2,), "?"), "query": ((2, 3), "i4"), "excluded": ((2,), "?")} | state,
        state,
        {"program": np.int64(program), "max_skipped_states": np.int64(0), **flags},
        (
            {"program": np.int64(78)},
            {"max_skipped_states": np.int64(-1)},
            {"max_skipped_states": np.int64(2**62)},
        ),
    )


CALLS = {
    call.name: call
    for call in (
        arc_step(),
        arc_reset(),
        color_equivariant("forward"),
        color_equivariant("forward_with_residuals"),
        color_equivariant("backward"),
        attention("forward"),
        attention("backward"),
        generate(),
        proofs_expand(),
    )
}


@pytest.fixture(scope="module", autouse=True)
def program() -> Any:
    """The program that the valid call of `phalanx_proofs_expand` refers to."""
    return native.ProofProgram(77, FACTS, HEADS, BODIES, 2, 3)


def test_every_custom_call_is_tested() -> None:
    assert set(native.ffi_targets()) == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_a_valid_custom_call_succeeds(name: str) -> None:
    CALLS[name].run(CALLS[name].zeros())


def other_shapes(shape: tuple[int, ...]) -> set[tuple[int, ...]]:
    """Return shapes with more or fewer axes, and with one axis of another size."""
    others = {(), shape[:-1], (*shape, 1)}
    for axis, size in enumerate(shape):
        for other_size in (0, size + 1):
            others.add((*shape[:axis], other_size, *shape[axis + 1 :]))
    return others - {shape}


def is_also_valid(call: CustomCall, name: str, of_result: bool, shape: tuple[int, ...]) -> bool:
    """Return whether a buffer may have another shape than in the valid call."""
    right = (call.results if of_result else call.operands)[name][0]
    if of_result and len(call.results) == 1 and 0 in shape:
        return True  # XLA skips a call whose only result is empty
    if name == "mask" or (name == "observation" and of_result and call.name == "phalanx_arc_step"):
        return shape == (right[0], 0, 0)
    if name == "task_table":
        return len(shape) == 2 and shape[0] >= 1 and shape[1] == 3
    if name == "pairs":
        return len(shape) == 4 and shape[:3] == right[:3] and shape[3] >= 1
    if name == "prompts":
        return len(shape) == 2 and shape[0] == right[0] and 1 <= shape[1] <= 16 - 4
    if name == "choices":
        return len(shape) == 3 and shape[0] == right[0] and shape[2] == right[2]
    if "color_equivariant" in call.name and (of_result or name not in ("grids", "convolution")):
        return bool(np.prod(shape) == np.prod(right))  # only the number of elements matters
    return False


def compile_variants(call: CustomCall, variants: list[CustomCall]) -> Callable[[int], list[np.ndarray]]:
    """Compile variants of a call as the branches of one program, which is faster than a program for each.

    Returns:
        A function that runs the variant with the given index, with zeros as operands.
    """
    register_ffi_targets()
    buffers = list(dict.fromkeys(item for variant in variants for item in variant.operands.items()))
    zeros = [np.zeros(shape, dtype) for _, (shape, dtype) in buffers]

    def branch(variant: CustomCall) -> Callable[[list[jax.Array]], list[jax.Array]]:
        def run(operands: list[jax.Array]) -> list[jax.Array]:
            shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in variant.results.values()]
            arguments = [operands[buffers.index(item)] for item in variant.operands.items()]
            results = jax.ffi.ffi_call(variant.name, shapes)(*arguments, **variant.attributes)
            # All branches must return the same shapes. XLA skips a call if none of its results is used.
            valid = zip(results, call.results.values(), strict=True)
            return [result for result, (shape, _) in valid if result.shape == shape] or [jnp.sum(results[0])]

        return run

    branches = [branch(variant) for variant in variants]
    switch = jax.jit(lambda index, operands: jax.lax.switch(index, branches, operands))
    return lambda index: [np.asarray(array) for array in switch(np.int32(index), zeros)]


@pytest.mark.parametrize(
    ("name", "buffer", "of_result"),
    [
        pytest.param(call.name, buffer, of_result, id=f"{call.name}-{buffer}-{side}")
        for call in CALLS.values()
        for side, of_result, buffers in (("operand", False, call.operands), ("result", True, call.results))
        for buffer in buffers
    ],
)
def test_a_custom_call_with_a_wrong_shape_raises_an_error(name: str, buffer: str, of_result: bool) -> None:
    call = CALLS[name]
    shapes = sorted(other_shapes((call.results if of_result else call.operands)[buffer][0]))
    run = compile_variants(call, [call.with_shape(buffer, shape, of_result) for shape in shapes])
    for number, shape in enumerate(shapes):
        if is_also_valid(call, buffer, of_result, shape):
            run(number)
            continue
        # The program may run in another thread, and then JAX raises ValueError.
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=name):
            run(number)


@pytest.mark.parametrize(
    ("name", "attributes"),
    [(call.name, attributes) for call in CALLS.values() for attributes in call.invalid_attributes],
)
def test_a_custom_call_with_a_wrong_attribute_raises_an_error(name: str, attributes: dict[str, Any]) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match=name):
        CALLS[name].run(CALLS[name].zeros(), **attributes)


def replace_some(data: st.DataObject, array: np.ndarray) -> np.ndarray:
    """Replace a few elements by any numbers."""
    info = np.iinfo(array.dtype)
    array = array.copy()
    extremes = st.sampled_from([1, 5, 7, 29, 30, 32, 33, 63, 64, 1000, -1, -2, -31]) | EXTREMES
    for index in data.draw(st.lists(st.integers(0, array.size - 1), max_size=8)):
        array.reshape(-1)[index] = min(max(data.draw(extremes), int(info.min)), int(info.max))
    return array


@fuzz
@given(st.data())
def test_arc_kernels_accept_any_content(data: st.DataObject) -> None:
    step, reset = arc_step(), arc_reset()
    tables = {
        "sizes": np.tile(np.array([7, 6, 5, 4], np.int32), (9, 1)),
        "task_table": np.array([[0, 2, 1], [3, 2, 1], [6, 2, 1]], np.int32),
        "registers": np.tile(np.array([1, 0, 7, 6, 0, 0, 0, -1], np.int32), (5, 1)),
    }
    damaged = {name: replace_some(data, array) for name, array in tables.items()}
    operations = np.array(data.draw(st.lists(st.integers(-1, 42), min_size=5, max_size=5)), np.int32)
    for call in (step, reset):
        operands = dict(zip(call.operands, call.draw_operands(data), strict=True)) | damaged
        if call is step:
            operands["operation"] = operations
            if data.draw(st.booleans()):
                operands["mask"] = np.zeros((5, 0, 0), bool)
        call.run(list(operands.values()))


@pytest.mark.parametrize("name", ["forward", "forward_with_residuals", "backward"])
@fuzz
@given(st.data())
def test_color_equivariant_kernels_accept_any_content(name: str, data: st.DataObject) -> None:
    call = color_equivariant(
        name, data.draw(st.sampled_from([1, 8, 33])), data.draw(st.sampled_from([8, 12]))
    )
    call.run(call.draw_operands(data))


@pytest.mark.parametrize("name", ["forward", "backward"])
@fuzz
@given(st.data())
def test_attention_kernels_accept_any_content(name: str, data: st.DataObject) -> None:
    rows, heads = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))
    tokens = data.draw(st.integers(0, 8) | st.sampled_from([48, 97, 145]))
    call = attention(name, rows, tokens, heads, data.draw(st.integers(0, 9)))
    attempt(call.run, call.draw_operands(data))


@fuzz
@given(st.data())
def test_the_generation_kernel_accepts_any_content(data: st.DataObject) -> None:
    vocab, rows = data.draw(st.integers(1, 20)), data.draw(st.integers(0, 70) | st.integers(0, 3))
    new = data.draw(st.integers(0, 5))
    call = generate(
        vocab=vocab,
        layers=1,
        heads=data.draw(st.integers(1, 3)),
        half=data.draw(st.integers(1, 5)),
        d_ff=data.draw(st.integers(1, 20)),
        rows=rows,
        width=data.draw(st.integers(1, 40)),
        new=new,
    )
    operands = dict(zip(call.operands, call.draw_operands(data), strict=True))
    if data.draw(st.integers(0, 3)):  # mostly valid prompts
        operands["prompts"] = operands["prompts"] % vocab
        operands["starts"] = operands["starts"] * 0
    top_k = np.int64(data.draw(st.integers(0, 25) | st.just(2**62)))
    results = attempt(call.run, list(operands.values()), top_k=top_k)
    if results is not None:
        tokens, _, lengths, _ = results
        assert ((tokens >= 0) & (tokens < vocab)).all() and (lengths <= new).all()


@fuzz
@given(st.data())
def test_the_proof_kernel_accepts_any_content(data: st.DataObject) -> None:
    call = proofs_expand()
    flags = {
        name: np.bool_(data.draw(st.booleans()))
        for name in ("end_proof_action", "prune_visited", "clear_visited")
    }
    call.run(call.draw_operands(data), max_skipped_states=np.int64(data.draw(st.integers(0, 9))), **flags)


# The module itself


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new process that uses the same extension."""
    library = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("phalanx._native", {native.__file__!r})
native = importlib.util.module_from_spec(spec)
spec.loader.exec_module(native)
"""
    return subprocess.run(
        [sys.executable, "-c", library + code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_the_instruction_set_can_be_chosen() -> None:
    done = run_python("print(native.instruction_set())", PHALANX_ISA="baseline")
    assert done.stdout == "baseline\n", done.stderr
    done = run_python("", PHALANX_ISA="sse9")
    assert "PHALANX_ISA must be `baseline` or `avx2`, got `sse9`" in done.stderr
    assert done.returncode == 1


@pytest.mark.skipif(
    "PHALANX_NATIVE_LIBRARY" in os.environ, reason="a limit on memory is not possible with AddressSanitizer"
)
def test_loops_use_fewer_threads_if_threads_cannot_be_started() -> None:
    done = run_python("""
import resource
import numpy as np

random = np.random.default_rng(0)
triples = np.stack([random.integers(0, 3, 400), *random.integers(0, 40, (2, 400))], 1).astype(np.int32)
graph = native.TripleGraph(triples, 40, 3)
mine = lambda threads: native.mine_constant_rules(graph, 0, 40, 1, 0.0, 5.0, 10**6, True, True, threads)
rules, counts = mine(1)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (6 << 20), -1))  # not enough for the stack of a thread
try:
    import threading

    threading.Thread(target=print).start()
except RuntimeError as error:
    print(error)
more_rules, more_counts = mine(8)
print(len(rules) > 0, np.array_equal(rules, more_rules), np.array_equal(counts, more_counts))
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["can't start new thread", "True True True"], done.stdout


def test_the_type_stub_lists_the_contents_of_the_module() -> None:
    """To update it: python -m nanobind.stubgen -m phalanx._native -o src/phalanx/_native.pyi"""
    stub = Path(__file__).parents[2] / "src" / "phalanx" / "_native.pyi"
    listed = {
        node.name: {child.name for child in node.body if isinstance(child, ast.FunctionDef)}
        for node in ast.parse(stub.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    assert set(listed) == {name for name in dir(native) if not name.startswith("_")}
    for name, methods in listed.items():
        if isinstance(getattr(native, name), type):
            public = {method for method in dir(getattr(native, name)) if not method.startswith("_")}
            assert methods - {"__init__"} == public
