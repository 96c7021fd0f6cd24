"""Compiled kernels of Phalanx."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray

def plan_grid_edit(
    start: Annotated[NDArray[numpy.int8], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    target: Annotated[NDArray[numpy.int8], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    rows: int,
    columns: int,
    selection_format: str,
    allowed_operations: int,
) -> tuple[bytes, bytes, int]:
    """
    Plan the steps from one grid to another. Return the operations (int32), the selected cells of each as `rows` bit masks of columns (uint32), and the number of cells that remain wrong.
    """

def pack_lengths(
    lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    capacity: int,
    mode: str,
    bins: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu")],
) -> int:
    """Write the bin of each sample to `bins` and return the number of bins."""

def sort_random_keys(
    keys: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu")],
    low_mask: int,
    order: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu")],
    values: Annotated[NDArray[numpy.int16], dict(shape=(None,), order="C", device="cpu")] | None = None,
) -> None:
    """
    Write the low bits of the keys to `order`, sorted by key. Reorder `values` in the same way. Overwrite the keys.
    """

def gather_runs(
    values: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    out: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu")],
) -> None:
    """Copy the runs `values[starts[i]:ends[i]]` to `out`, one after another."""

def concat_strings(
    strings: list[str], lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu")]
) -> bytes | None:
    """
    Concatenate ASCII strings and write the length of each to `lengths`. Return None if one is not ASCII.
    """

def fill_packs(
    tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    loss: Annotated[NDArray[numpy.int8], dict(shape=(None,), order="C", device="cpu", writable=False)] | None,
    starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    separator: int | None,
    pad: int,
    input_ids: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu")],
    loss_mask: Annotated[NDArray[numpy.int8], dict(shape=(None, None), order="C", device="cpu")],
    segment_ids: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu")],
    position_ids: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu")],
) -> None:
    """
    Fill packed rows with segments of tokens. Row i has the segments from offsets[i] to offsets[i + 1], with a separator between them if one is given.
    """

class TripleGraph:
    """A graph of triples (relation, head, tail), numbered from 0."""

    def __init__(
        self,
        triples: Annotated[
            NDArray[numpy.int32], dict(shape=(None, 3), order="C", device="cpu", writable=False)
        ],
        num_entities: int,
        num_relations: int,
    ) -> None: ...

class PathRuleMiner:
    """Mines path rules in rounds."""

    def __init__(
        self,
        graph: TripleGraph,
        max_length: int,
        max_edges_per_step: int,
        max_predictions: int,
        max_paths_per_entity: int,
        seed: int,
        num_threads: int,
    ) -> None: ...
    def find_bodies(self, num_triples: int) -> bool:
        """
        Collect the bodies that connect the head and tail of the next triples. Return False when none are left.
        """

    def select_rules(self, min_count: int, max_rules: int) -> int:
        """Select the most frequent rules and return their number."""

    def count_predictions(self, num_entities: int) -> bool:
        """
        Count the predictions of the rules for the next entities. Return False when nothing is left to count.
        """

    def rules(
        self, min_support: int
    ) -> tuple[
        Annotated[NDArray[numpy.int32], dict(shape=(None, 8))],
        Annotated[NDArray[numpy.int64], dict(shape=(None, 3))],
    ]:
        """Return the rules and their counts."""

def mine_constant_rules(
    graph: TripleGraph,
    begin: int,
    end: int,
    min_support: int,
    min_confidence: float,
    confidence_smoothing: float,
    max_constant_rule_degree: int,
    dangling_rules: bool,
    pca_confidence: bool,
    num_threads: int,
) -> tuple[
    Annotated[NDArray[numpy.int32], dict(shape=(None, 8))],
    Annotated[NDArray[numpy.int64], dict(shape=(None, 3))],
]:
    """
    Mine rules whose head constants are the entities from `begin` to `end`.
    """

class RulePredictor:
    """Answers queries (entity, directed relation) with rules."""

    def __init__(
        self,
        graph: TripleGraph,
        rules: Annotated[
            NDArray[numpy.int32], dict(shape=(None, 8), order="C", device="cpu", writable=False)
        ],
        confidence_ranks: Annotated[
            NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        max_paths_per_entity: int,
        num_threads: int,
    ) -> None: ...
    def count_ranks(
        self,
        known: TripleGraph,
        queries: Annotated[
            NDArray[numpy.int32], dict(shape=(None, 2), order="C", device="cpu", writable=False)
        ],
        begins: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        targets: Annotated[
            NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        aggregation: str,
        weights: Annotated[
            NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        num_higher: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
        num_tied: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
    ) -> None:
        """
        Count the entities that score higher than each target, and the others with the same score.
        """

    def score(
        self,
        queries: Annotated[
            NDArray[numpy.int32], dict(shape=(None, 2), order="C", device="cpu", writable=False)
        ],
        aggregation: str,
        weights: Annotated[
            NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        scores: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu")],
    ) -> None:
        """Write the scores of all entities for each query."""

    def fit_weights(
        self,
        weights: Annotated[NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu")],
        relations: Annotated[
            NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        max_examples: int,
        max_negatives: int,
        num_epochs: int,
        learning_rate: float,
        regularization: float,
        seed: int,
    ) -> None:
        """Fit the weights of rules for queries with these relations."""

    def predict(
        self, entity: int, relation: int
    ) -> tuple[
        Annotated[NDArray[numpy.int32], dict(shape=(None,))],
        Annotated[NDArray[numpy.int64], dict(shape=(None,))],
        Annotated[NDArray[numpy.int32], dict(shape=(None,))],
    ]:
        """
        Return the predicted answers, the first rule of each answer, and the rules.
        """

class PathNetwork:
    """A path network over a graph; the caller owns its parameters."""

    def __init__(
        self, graph: TripleGraph, num_layers: int, query_dependent_relations: bool, num_threads: int
    ) -> None: ...
    def loss_and_gradient(
        self,
        parameters: Annotated[
            NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        rows: Annotated[NDArray[numpy.int32], dict(shape=(None, 3), order="C", device="cpu", writable=False)],
        gradient: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu")],
    ) -> float:
        """
        Return the total loss of rows (entity, directed relation, answer) and write its gradient.
        """

    def score(
        self,
        parameters: Annotated[
            NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        queries: Annotated[
            NDArray[numpy.int32], dict(shape=(None, 2), order="C", device="cpu", writable=False)
        ],
        scores: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu")],
    ) -> None:
        """Write the scores of all entities for each query."""

class ProofProgram:
    """A program that custom calls can refer to by its key."""

    def __init__(
        self,
        key: int,
        facts: Annotated[
            NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu", writable=False)
        ],
        heads: Annotated[
            NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu", writable=False)
        ],
        bodies: Annotated[
            NDArray[numpy.int32], dict(shape=(None, None, None), order="C", device="cpu", writable=False)
        ],
        num_predicates: int,
        num_constants: int,
    ) -> None: ...
    @property
    def key(self) -> int: ...

def generate_puzzles(kind: str, seeds: Sequence[int], parameters: Sequence[int]) -> list[bytes]:
    """Generate one puzzle for each seed."""

def solve_puzzle(kind: str, puzzle: bytes, parameters: Sequence[int], max_solutions: int) -> list[bytes]:
    """
    Return the first solutions of a puzzle. For sokoban, `max_solutions` limits the boards to search.
    """

def ffi_targets() -> dict[str, object]:
    """Return the custom calls by name, for `jax.ffi.register_ffi_target`."""

def set_num_devices(num_devices: int) -> None:
    """
    Set how many devices of this process run custom calls at the same time.
    """

def instruction_set() -> str:
    """Return the instruction set of the kernels in use."""
