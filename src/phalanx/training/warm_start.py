"""Loads initial parameters from a checkpoint of another run."""

from typing import Any

from jaxtyping import PyTree

from phalanx.training.checkpoints import CheckpointRef, open_checkpoint, transfer_arrays
from phalanx.training.run_dir import load_metadata


def load_params(ref: CheckpointRef, like: PyTree) -> tuple[PyTree, dict[str, Any]]:
    """Load the parameters of a checkpoint.

    Args:
        ref: Checkpoint to load. If the run has several seeds, it must be the checkpoint of one seed.
        like: Parameters with the expected structure, shapes and types, on the devices to use.

    Returns:
        The parameters, and a description of their origin for `run.json`.

    Raises:
        ValueError: If the run has several seeds, or the names, shapes or types of the arrays differ from
            `like`.
    """
    if seeds := ref.seeds:
        raise ValueError(f"{ref.run} has {len(seeds)} seeds; choose one of them, such as {seeds[0]}")
    algorithm = load_metadata(ref.run).get("algorithm")
    with open_checkpoint(ref.run, ref.which) as (checkpoints, step, metadata):
        arrays = checkpoints.load_arrays(step, metadata["params"])
    found = {name.removeprefix("params").removeprefix("-"): array for name, array in arrays.items()}
    origin = {"run": str(ref.run.absolute()), "step": step, "algorithm": algorithm}
    return transfer_arrays(found, like, f"the network of {ref.run}"), origin
