"""The same names and calls in chuk-lazarus's batching and streaming and in Phalanx, side by side.

Speed is compared in `compare_tokens.py` and `compare_replay.py`. chuk-lazarus is read, not installed here:
`pip install --no-deps --target FOLDER chuk-lazarus==0.4.1`, then `compare_lazarus.py FOLDER`.
"""

import argparse
import inspect
import json
import pathlib
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from typing import Any

import pydantic
from lazarus_cases import cases, plain

DIFFERENCES = {
    "compute_length_histogram": "a percentile is a length that so many are not above, by nearest rank",
    "BatchMetrics.summary": "numbers, not texts",
    "compute_packing_metrics": "the figures have other names; those there say which",
    "pack_sequences": "best fit decreasing, where the default there is first fit; padding is segment 0",
    "pack_sequences first_fit": "padding is segment 0, and not the last segment",
    "pack_sequences greedy": "keeps the order; what sorts first is best_fit_decreasing",
    "BatchingConfig": "predictable() drops no batch that is not full unless drop_last says so",
    "default_collate too long": "refused: nothing is cut off silently",
    "unequal loss mask": "refused, with the sample's name",
    "suggest_bucket_edges": "exact optima",
    "plan shard": "equal counts on every rank, or a distributed job would hang",
    "PuzzleGame values": "as the server says them",
    "StreamMetrics.to_dict": "tokens_per_second besides",
    "overlong sample packed": "an error unless `overlong` says otherwise",
}
"""Cases that differ on purpose, with the reason; `docs/moving.md` lists them."""


REFUSED = {"BucketSpec edges that descend"}
"""Cases that neither takes."""
MEMBERS = {
    "BufferSnapshot.timestamp": "an attribute of what snapshot() gives, not of its class",
    "PuzzleObservation.type": "the class says it",
    "PuzzleResult.type": "the class says it",
}
"""Members that are looked for in another place, with the reason."""


def load_peer(folder: pathlib.Path) -> tuple[Any, Any]:
    """Its batching and streaming; the packages above import MLX and are stood in for."""
    sys.path.append(str(folder))
    root = folder / "chuk_lazarus"
    if not root.is_dir():
        raise SystemExit(f"{folder} holds no chuk_lazarus")
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
    """What a case gives, or how it fails."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return {"gives": plain(case(batching, streaming, pathlib.Path(folder)))}
        # Whatever either of them raises is what is compared.
        except Exception as error:
            return {"raises": type(error).__name__, "says": str(error)[:300]}


def public_members(cls: Any) -> list[str]:
    """What a user may call on a class, and the fields that they may give it."""
    hidden = {"convert_to_tuple", "convert_seq_to_tuple", "convert_edges", "convert_microbatches"}
    known = set(dir(pydantic.BaseModel)) | hidden
    found = {name for name in dir(cls) if not name.startswith(("_", "validate_")) and name not in known}
    return sorted(found | set(getattr(cls, "model_fields", ())))


def told(cls: Any, name: str) -> bool:
    """Whether a class has a member, or a sentence for those who ask for it."""
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
    """Every public name: whether it is here, says what to use, or is missing; the same of its members."""
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
            absent = [member for member in members if not told(mine, member)]
            if inspect.isfunction(theirs):
                known = inspect.signature(mine).parameters
                absent = [p for p in inspect.signature(theirs).parameters if p not in known]
            yield record | {"here": "yes", "members": len(members), "absent": absent}


def main() -> None:
    """A JSON line for each name or case that differs, then the sums; exit code 1 if one should not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", type=pathlib.Path, help="the folder that chuk_lazarus was installed into")
    arguments = parser.parse_args()
    peers = load_peer(arguments.peer)

    ours = own_modules()
    found = list(names(peers, ours))
    bad = [record for record in found if record["here"] == "missing" or record.get("absent")]
    same = on_purpose = 0
    for name, case in cases():
        theirs, mine = outcome(case, *peers), outcome(case, *ours)
        refused = [name in REFUSED and "raises" in one for one in (theirs, mine)]
        if all(refused) or (theirs == mine and "gives" in mine and name not in DIFFERENCES):
            same += 1
            continue
        if theirs != mine and (reason := DIFFERENCES.get(name)):
            on_purpose += 1
            print(json.dumps({"case": name, "differs": reason}))
            continue
        bad.append({"case": name, "chuk-lazarus": theirs, "phalanx": mine})
    for record in bad:
        print(json.dumps(record))
    said = sum(record["here"] == "says" for record in found)
    total = {"names": len(found), "say_what_to_use": said, "cases": same + on_purpose, "the_same": same}
    print(json.dumps({**total, "on_purpose": on_purpose, "bad": len(bad)}))
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
