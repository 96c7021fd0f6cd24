"""A training's folder: what is in it, and that nothing in it is ever overwritten by another run.

What the files of the logger look like is in `phalanx.logging`; the checkpoints are in `checkpoints`.
"""

import datetime
import json
import operator
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from phalanx import __version__
from phalanx.config import Config, load_config, save_config, to_yaml
from phalanx.io.atomic import atomic_write
from phalanx.io.untrusted import read_json
from phalanx.logging.handlers.file import FileHandler
from phalanx.logging.handlers.handler import Handler
from phalanx.system_info import machine_info

FORMAT = 1
CONFIG = "config.yaml"
METADATA = "run.json"
EVALUATIONS = "evaluations.jsonl"
EPISODES = "episodes"
REPORT = "report.html"
CHECKPOINTS = "checkpoints"

RunStatus = Literal["new", "no_checkpoint", "resumable", "finished"]

AnyConfig = TypeVar("AnyConfig", bound=Config)
MakeHandlers = Callable[[Path, Any], Mapping[str, Handler]]
"""The handlers of a run's logger, from its folder and its config."""


def default_handlers(folder: Path, config: Any) -> dict[str, Handler]:
    """Lines in the run's folder, which is what a report needs."""
    return {"files": FileHandler(folder, config)}


def next_free_dir(folder: str | os.PathLike[str]) -> Path:
    """The folder itself if there is none yet, else the first of `folder-2`, `folder-3`, ... that is free."""
    path, number = Path(folder), 1
    while path.exists():
        number += 1
        path = Path(f"{os.fspath(folder)}-{number}")
    return path


def run_status(folder: str | os.PathLike[str]) -> RunStatus:
    """Return the status of the run in a folder.

    A run without an intact checkpoint can only be started again. A folder that contains something other than
    a run is reported as new too, and rejected when a run is started in it.
    """
    if not (Path(folder) / METADATA).is_file():
        return "new"
    metadata = read_metadata(folder)
    seeds = sorted(Path(folder).glob("seed_*"))
    if not any(map(_has_checkpoint, seeds or [Path(folder)])):
        return "no_checkpoint"
    return "finished" if metadata.get("status") == "finished" else "resumable"


def _has_checkpoint(run: Path) -> bool:
    # Orbax renames a checkpoint to its number when it is complete.
    folder = run / CHECKPOINTS
    return folder.is_dir() and any(path.name.isdecimal() for path in folder.iterdir())


def create_run(folder: str | os.PathLike[str], config: Config, facts: dict[str, Any]) -> Path:
    """A new run's folder with its config and facts; one that holds something already is refused."""
    path = Path(folder)
    if path.exists() and (not path.is_dir() or not _is_fresh(path)):
        raise ValueError(
            f"{path} exists already and nothing in it is overwritten: add --resume to go on with it, "
            "or give another --out"
        )
    path.mkdir(parents=True, exist_ok=True)
    # The facts last: with them the folder is a run, and without them it can be started again.
    save_config(config, path / CONFIG)
    write_metadata(path, {"started": _now(), **facts})
    return path


def _is_fresh(path: Path) -> bool:
    """Whether nothing is there but what a start leaves behind that was killed in the middle."""
    names = [found.name for found in path.iterdir()]
    left = [name for name in names if name == CONFIG or re.fullmatch(r"\.[\w.]+\.\d+-[0-9a-f]{8}\.tmp", name)]
    return len(left) == len(names)


def extend_config(begun: AnyConfig, length: str, now: AnyConfig) -> AnyConfig:
    """A run's config with as many updates as another has, which must be no fewer."""
    of: Callable[[Any], int] = operator.attrgetter(length)
    before, wanted = of(begun), of(now)
    if wanted < before:
        raise ValueError(f"{length} was {before}: a run can be extended, and not cut to {wanted}")
    return load_config(type(begun), None, [f"{length}={wanted}"], base=begun)


def extend_run(run: Path, config: Config, since: Mapping[str, Any]) -> None:
    """Renew a run's config, once its facts tell which one its newest checkpoint was saved with."""
    earlier = [one for one in read_metadata(run).get("extended", []) if one["config"] != since["config"]]
    # In this order: killed in between, the run is still what it was.
    write_metadata(run, {"extended": [*earlier, dict(since)]})
    save_config(config, run / CONFIG)


def write_metadata(run: Path, facts: Mapping[str, Any]) -> None:
    """Write or renew `run.json`; facts that are not given stay as they were."""
    path = run / METADATA
    before = _read_object(path) if path.exists() else {}
    about = {"format": FORMAT, "phalanx": __version__, "name": run.name, "machine": machine_info()}
    with atomic_write(path, "w") as file:
        json.dump({**about, **before, **facts, "updated": _now()}, file, indent=2)
        file.write("\n")


def read_metadata(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """`run.json` of a run; a folder that is no run is refused in words."""
    path = Path(folder) / METADATA
    if not path.is_file():
        raise ValueError(f"{folder} is not the folder of a run: it has no {METADATA}")
    facts = _read_object(path)
    if facts.get("format") != FORMAT:
        raise ValueError(f"{path} has format {facts.get('format')}, this version of Phalanx reads {FORMAT}")
    return facts


def _read_object(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise ValueError(f"{path} does not tell a run's facts: it holds no JSON object")
    return value


def read_config(folder: str | os.PathLike[str], cls: type[AnyConfig]) -> AnyConfig:
    """The config that a run was started with."""
    read_metadata(folder)
    return load_config(cls, Path(folder) / CONFIG)


def check_same_kind(run: Path, kind: str) -> None:
    """A run goes on as what it is."""
    found = read_metadata(run).get("kind")
    if found != kind:
        raise ValueError(f"{run} is a run of kind {found!r} and cannot go on as {kind!r}")


def check_same_origin(run: Path, origin: Path) -> None:
    """A run that began with another's weights goes on as such."""
    found = read_metadata(run).get("init_from", {}).get("run")
    if found != str(origin.absolute()):
        began = f"with the weights of {found}" if found else "with weights of its own"
        raise ValueError(f"{run} began {began}, not with those of {origin}")


def check_same_config(run: Path, before: Config, now: Config) -> None:
    """A run goes on only as it began; the error names the first settings that differ."""
    old, new = to_yaml(before).splitlines(), to_yaml(now).splitlines()
    if old != new:
        differing = [f"{a.strip()} (now {b.strip()})" for a, b in zip(old, new, strict=False) if a != b][:3]
        raise ValueError(
            f"{run} was started with another config: {'; '.join(differing) or 'more or fewer settings'}. "
            "Resume it without overrides, or start a new run with another --out"
        )


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
