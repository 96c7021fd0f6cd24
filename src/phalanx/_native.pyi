from typing import Any

import numpy as np
from numpy.typing import NDArray

def targets() -> dict[str, Any]: ...
def isa() -> str: ...
def share_threads(devices: int) -> None: ...
def pack_lengths(lengths: NDArray[np.int32], capacity: int, mode: str, bins: NDArray[np.int32]) -> int: ...
def sort_random_keys(
    keys: NDArray[np.uint64],
    low: int,
    order: NDArray[np.int32],
    values: NDArray[np.int16] | None = None,
) -> None: ...
def take_runs(
    values: NDArray[np.int32],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    taken: NDArray[np.int32],
) -> None: ...
def join_texts(texts: list[str], lengths: NDArray[np.int32]) -> bytes | None: ...
def fill_packs(
    tokens: NDArray[np.int32],
    loss: NDArray[np.int8] | None,
    starts: NDArray[np.int64],
    lengths: NDArray[np.int32],
    offsets: NDArray[np.int64],
    separator: int | None,
    pad: int,
    input_ids: NDArray[np.int32],
    loss_mask: NDArray[np.int8],
    segment_ids: NDArray[np.int32],
    position_ids: NDArray[np.int32],
) -> None: ...
def puzzle_records(kind: str, seeds: list[int], parameters: list[int]) -> list[bytes]: ...
def puzzle_solutions(kind: str, puzzle: bytes, parameters: list[int], limit: int) -> list[bytes]: ...

class ProofProgram:
    key: int
    def __init__(
        self,
        key: int,
        facts: NDArray[np.int32],
        heads: NDArray[np.int32],
        bodies: NDArray[np.int32],
        predicates: int,
        constants: int,
    ) -> None: ...

# As `phalanx.kg.rules.plain` has them.
class MiningGraph:
    def __init__(self, triples: NDArray[np.int32], entities: int, relations: int) -> None: ...

class PathMiner:
    def __init__(
        self, graph: MiningGraph, length: int, fan: int, enough: int, limit: int, seed: int, threads: int
    ) -> None: ...
    def discover(self, triples: int) -> bool: ...
    def choose(self, least: int, most: int) -> int: ...
    def measure(self, entities: int) -> bool: ...
    def rules(self, least_support: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]: ...

def mine_constants(
    graph: MiningGraph,
    begin: int,
    end: int,
    least_support: int,
    least_confidence: float,
    pessimism: float,
    widest: int,
    dangling: bool,
    pca: bool,
    threads: int,
) -> tuple[NDArray[np.int32], NDArray[np.int64]]: ...

class RuleApplier:
    def __init__(
        self,
        graph: MiningGraph,
        rules: NDArray[np.int32],
        levels: NDArray[np.int32],
        limit: int,
        threads: int,
    ) -> None: ...
    def rank(self, *arguments: Any) -> None: ...
    def scores(self, *arguments: Any) -> None: ...
    def learn(self, *arguments: Any) -> None: ...
    def predict(
        self, entity: int, relation: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]: ...
