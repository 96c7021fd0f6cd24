from typing import Any

import numpy as np
from numpy.typing import NDArray

def targets() -> dict[str, Any]: ...
def isa() -> str: ...
def pack_lengths(lengths: NDArray[np.int32], capacity: int, mode: str, bins: NDArray[np.int32]) -> int: ...
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
