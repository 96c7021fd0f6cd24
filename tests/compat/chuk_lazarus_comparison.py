"""Comparison of the names and calls of chuk-lazarus with those of `phalanx.compat.chuk_lazarus`.

chuk-lazarus is imported from a folder: `pip install --no-deps --target FOLDER chuk-lazarus==0.4.1`.
"""

import inspect
import pathlib
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from typing import Any

import pydantic

from tests.compat.chuk_lazarus_cases import plain

DIFFERENCES = {
    "compute_length_histogram": "percentiles are nearest ranks",
    "BatchMetrics.summary": "returns numbers instead of strings",
    "compute_packing_metrics": "the metrics have other names",
    "pack_sequences": "the default is best-fit decreasing instead of first-fit; padding has segment 0",
    "pack_sequences first_fit": "padding has segment 0 instead of the last segment",
    "pack_sequences greedy": "keeps the order; best_fit_decreasing sorts",
    "BatchingConfig": "predictable() keeps incomplete batches unless drop_last is set",
    "default_collate too long": "raises an error instead of truncating",
    "unequal loss mask": "raises an error that names the sample",
    "suggest_bucket_edges": "finds the exact optimum",
    "plan shard": "all ranks have the same number of batches",
    "PuzzleGame values": "uses the names of the server",
    "StreamMetrics.to_dict": "also has tokens_per_second",
    "overlong sample packed": "raises an error unless `overlong` is set",
}
"""Intended differences, by name of the case."""


REFUSED = {"BucketSpec edges that descend"}
"""Cases that raise an error in both libraries."""
MEMBERS = {
    "BufferSnapshot.timestamp": "an attribute of the snapshot, not of its class",
    "PuzzleObservation.type": "given by the class",
    "PuzzleResult.type": "given by the class",
}
"""Members that exist in another form."""


def load_peer(folder: pathlib.Path) -> tuple[Any, Any]:
    """Return the modules of chuk-lazarus. Its parent packages import MLX and are replaced by empty ones."""
    sys.path.append(str(folder))
    root = folder / "chuk_lazarus"
    if not root.is_dir():
        raise FileNotFoundError(f"{folder} does not contain chuk_lazarus")
    for name, path in (("chuk_lazarus", root), ("chuk_lazarus.data", root / "data")):
        package = types.ModuleType(name)
        package.__path__ = [str(path)]
        sys.modules[name] = package
    from chuk_lazarus.data import batching
    from chuk_lazarus.data.batching import streaming

    return batching, streaming


def own_modules() -> tuple[Any, Any]:
    """Return the modules of the compatibility layer."""
    from phalanx.compat.chuk_lazarus.data import batching
    from phalanx.compat.chuk_lazarus.data.batching import streaming

    return batching, streaming


def outcome(case: Callable[..., Any], batching: Any, streaming: Any) -> dict[str, Any]:
    """Return the result of a case, or its error."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return {"value": plain(case(batching, streaming, pathlib.Path(folder)))}
        # Errors are compared, too, so all of them are caught.
        except Exception as error:
            return {"raises": type(error).__name__, "message": str(error)[:300]}


def public_members(cls: Any) -> list[str]:
    """Return the public members and fields of a class."""
    hidden = {"convert_to_tuple", "convert_seq_to_tuple", "convert_edges", "convert_microbatches"}
    known = set(dir(pydantic.BaseModel)) | hidden
    found = {name for name in dir(cls) if not name.startswith(("_", "validate_")) and name not in known}
    return sorted(found | set(getattr(cls, "model_fields", ())))


def has_member(cls: Any, name: str) -> bool:
    """Return whether a class has a member, or an error message that names its replacement."""
    if hasattr(cls, name) or name in getattr(cls, "model_fields", ()) or name in getattr(cls, "moved", ()):
        return True
    if f"{cls.__name__}.{name}" in MEMBERS or name in inspect.signature(cls).parameters:
        return True
    try:
        cls(**{name: None})
    except (ValueError, TypeError) as error:
        return f"has no {name}: " in str(error)
    return True


def names(peers: tuple[Any, Any], ours: tuple[Any, Any]) -> Iterator[dict[str, Any]]:
    """Yield for each public name whether it exists, is replaced or is missing, and its missing members."""
    for there, here in zip(peers, ours, strict=True):
        for name in there.__all__:
            theirs = getattr(there, name)
            if inspect.ismodule(theirs):
                continue
            record = {"name": f"{there.__name__.rpartition('.')[2]}.{name}"}
            try:
                mine = getattr(here, name)
            except AttributeError as error:
                yield record | {"here": "says" if f"no {name}: " in str(error) else "missing"}
                continue
            members = public_members(theirs) if inspect.isclass(theirs) else []
            absent = [member for member in members if not has_member(mine, member)]
            if inspect.isfunction(theirs):
                known = inspect.signature(mine).parameters
                absent = [p for p in inspect.signature(theirs).parameters if p not in known]
            yield record | {"here": "yes", "members": len(members), "absent": absent}
