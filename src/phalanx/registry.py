"""The registry: environments by id, made with `make` and added with `register`.

What an id stands for lives in the domains and is imported when it is made; listing the ids imports nothing.
"""

import dataclasses
import difflib
import functools
import importlib
import importlib.metadata
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from phalanx.config import AnyConfig, load_config

if TYPE_CHECKING:
    from phalanx.core.environment import Environment

Factory = Callable[..., "Environment"]

ENTRY_POINTS = "phalanx.environments"
"""The group under which other packages name environments: `maze-v1 = "mazes.environment:Maze"`."""

_ID = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*?)-v(?P<version>[1-9]\d*)")


@dataclasses.dataclass(frozen=True)
class EnvSpec:
    """An id, what makes its environment, and one line about it."""

    id: str
    factory: Factory | str
    about: str = ""
    interface: Literal["jax", "text"] = "jax"
    """`jax` environments are created with `make`, `text` environments with `make_text_env`."""
    fields: tuple[str, ...] = ()
    """Settings that a text spec can give after the name, separated by colons, as in `sudoku:easy:single`."""
    vector_factory: str = ""
    """`package.module:name` of the vector version of a text environment, which takes a list of specs."""
    report_panel: tuple[str, str] | None = None
    """Name of a file in the run folder and `package.module:name` of the JAX-free function that reads it."""

    @property
    def name(self) -> str:
        """The id without its version."""
        return self.id.rpartition("-v")[0]

    @property
    def version(self) -> int:
        """The version that the id promises."""
        return int(self.id.rpartition("-v")[2])

    def load(self) -> Factory:
        """What makes the environment; imported now if it was registered as `module:name`."""
        if not isinstance(self.factory, str):
            return self.factory
        module, _, name = self.factory.partition(":")
        factory: Any = importlib.import_module(module)
        for part in name.split("."):
            factory = getattr(factory, part)
        return cast(Factory, factory)


_registered: dict[str, EnvSpec] = {}
_groups: dict[str, tuple[str, EnvSpec]] = {}


def register(
    id: str,
    factory: Factory | str,
    about: str = "",
    *,
    interface: Literal["jax", "text"] = "jax",
    fields: Sequence[str] = (),
    vector_factory: str = "",
    report_panel: tuple[str, str] | None = None,
) -> None:
    """Make an environment known by an id that ends in its version, such as `maze-v1`.

    `factory` is called with the settings that `make` is given: an environment's class, a function, or
    `package.module:name` of one, which is imported only when it is needed. A factory that is defined again
    takes the place of its former self; another one under the same id is an error.

    >>> register("doctest-maze-v1", "mazes.environment:Maze", "find the way out")
    >>> [found.about for found in registered_environments() if found.name == "doctest-maze"]
    ['find the way out']
    """
    if not _ID.fullmatch(id):
        raise ValueError(f"an environment's id ends in its version, such as 'maze-v1', got {id!r}")
    if isinstance(factory, str) and not re.fullmatch(r"[\w.]+:[\w.]+", factory):
        raise ValueError(f"a factory is named as 'package.module:name', got {factory!r}")
    if id in _registered and _origin(_registered[id].factory) != _origin(factory):
        taken = _origin(_registered[id].factory)
        raise ValueError(f"{id!r} is registered already, as {taken}; choose another name")
    _registered[id] = EnvSpec(id, factory, about, interface, tuple(fields), vector_factory, report_panel)


def register_group(name: str, members: str, factory: str, fields: Sequence[str], vector_factory: str) -> None:
    """Register text environments that share a factory, without importing them now.

    Args:
        name: Stands for all members in a text spec.
        members: `package.module:name` of a mapping from names to objects with a `version` and a
            `description`. `sudoku` is registered as `sudoku-v1`.
        factory: `package.module:name` of a function that takes the name of a member and settings.
        fields: Settings that a text spec can give after the name.
        vector_factory: `package.module:name` of the vector version.
    """
    _groups[name] = members, EnvSpec(f"{name}-v1", factory, "", "text", tuple(fields), vector_factory)


def group_members(name: str) -> tuple[str, ...]:
    """Return the names of a group's members; empty if there is no such group."""
    return tuple(import_object(_groups[name][0])) if name in _groups else ()


def find_text_environment(name: str) -> EnvSpec | None:
    """Find a text environment by its id or by its name without the version."""
    for members, spec in _groups.values():
        for member, kind in import_object(members).items():
            if name in (member, f"{member}-v{kind.version}"):
                factory = functools.partial(spec.load(), member)
                return dataclasses.replace(
                    spec, id=f"{member}-v{kind.version}", factory=factory, about=kind.description
                )
    _discover()
    for spec in _registered.values():
        if spec.interface == "text" and name in (spec.id, spec.name):
            return spec
    return None


def import_object(address: str) -> Any:
    """Import `package.module:name` or `path/file.py:name`. The folder of a file is added to `sys.path`."""
    module, _, name = address.rpartition(":")
    if module.endswith(".py"):
        path = Path(module).resolve()
        if not path.is_file():
            raise ValueError(f"there is no file {module}")
        if str(path.parent) not in sys.path:
            sys.path.insert(0, str(path.parent))
        module = path.stem
    try:
        return getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ValueError(f"cannot import {address!r}: {error}") from error


def registered_environments(interface: str = "jax") -> tuple[EnvSpec, ...]:
    """Every environment that `make` knows, those of other installed packages included, sorted by id."""
    _discover()
    return tuple(_registered[id] for id in sorted(_registered) if _registered[id].interface == interface)


def make(id: str, /, **settings: Any) -> "Environment":
    """The environment of an id such as `arc-v2`, with some settings.

    The settings of Phalanx's own environments are a `config` (a config, or a preset's name or file), any of
    its sections and settings by keyword, such as `dataset={"families": ("recolor",)}`, `overrides` as on the
    command line (`["episode.max_episode_steps=20"]`), and what the environment is about: `task` or
    `tasks` for ARC, a `knowledge_base` for proofs.
    """
    found = _find(id)
    if found.interface == "text":
        raise ValueError(f"{id!r} is a text environment; use make_text_env")
    environment = found.load()(**settings)
    if environment.version != found.version:
        raise ValueError(
            f"{id!r} is registered for version {found.version}, but {type(environment).__name__}.version is "
            f"{environment.version}; register it as '{found.name}-v{environment.version}'"
        )
    return environment


def config_from(
    cls: type[AnyConfig],
    config: Any = None,
    overrides: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> AnyConfig:
    """The config that a factory was given: one of `cls`, a preset's name or file, or None; then changed."""
    if config is None or isinstance(config, str | os.PathLike):
        return load_config(cls, config, overrides, settings=settings)
    if not isinstance(config, cls):
        given = type(config).__name__
        raise TypeError(f"config must be of {cls.__name__}, a preset's name or a file's, got {given}")
    return load_config(cls, None, overrides, config, settings=settings)


def _origin(factory: Factory | str) -> str:
    """Where a factory is defined: a cell that is run again defines the same class once more."""
    if isinstance(factory, str):
        return factory
    return f"{factory.__module__}:{getattr(factory, '__qualname__', repr(factory))}"


def _find(id: str) -> EnvSpec:
    if id not in _registered:
        _discover()
    if id in _registered:
        return _registered[id]
    asked = _ID.fullmatch(id)
    present = [other for other in sorted(_registered) if asked and _registered[other].name == asked["name"]]
    if asked and present:
        version = _registered[present[-1]].version
        raise ValueError(
            f"{asked['name']!r} is at version {version} here, not {asked['version']}: make {present[-1]!r}. "
            "Other versions play other episodes, and come with other releases"
        )
    near = difflib.get_close_matches(id, _registered, 1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(_registered))}"
    raise ValueError(f"there is no environment {id!r}; {hint}")


@functools.cache
def _discover() -> None:
    """Register what other installed packages name; what this process has registered itself comes first."""
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if entry.name not in _registered:
            register(entry.name, entry.value, f"from {entry.value.partition('.')[0]}")


# By name: the ground imports no domain.
register(
    "arc-v2",
    "phalanx.arc.env:ArcEnvironment.from_config",
    "ARC grid puzzles: edit a working grid until it equals the pair's output",
    report_panel=("browser_policy.json", "phalanx.arc.browser.report_panel:read_browser_policy"),
)
register(
    "proofs-v1",
    "phalanx.proofs.env:ProofEnvironment.from_config",
    "proof search over a knowledge graph: reduce a query to nothing, one goal at a time",
)
register(
    "puzzle_server-v1",
    "phalanx.puzzles.server.env:PuzzleServerEnvironment.create",
    "games of a puzzle server",
    interface="text",
    fields=("game", "difficulty"),
    vector_factory="phalanx.puzzles.server.env:PuzzleServerVectorEnvironment",
)
register_group(
    "puzzles",
    "phalanx.puzzles.kinds:KINDS",
    "phalanx.puzzles.env:PuzzleEnvironment",
    ("difficulty", "turns"),
    "phalanx.puzzles.env:PuzzleVectorEnvironment",
)
