"""Registry that finds and creates environments by name.

A name is an id such as `arc-v2`, an id without its version such as `arc`, or the path of an `EnvSpec` or an
`Environment` class: `package.module:NAME` or `path/file.py:NAME`. Listing the registered ids does not import
the environments.
"""

import difflib
import functools
import importlib.metadata
import inspect
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from phalanx.import_path import absolute_address, import_object

if TYPE_CHECKING:
    from phalanx.core.environment import Environment
    from phalanx.core.spec import EnvSpec

ENTRY_POINTS = "phalanx.environments"
"""Entry-point group in which other packages register environments, such as
`maze-v1 = "mazes.environment:Maze"`."""

ALGORITHMS = {
    "ppo": "phalanx.training.ppo:PPO",
    "bc": "phalanx.training.bc:BC",
    "sft": "phalanx.training.sft:SFT",
    "grpo": "phalanx.training.grpo:GRPO",
    "kge": "phalanx.training.kge:KGETrainer",
    "heuristic": "phalanx.training.search_heuristic:SearchHeuristicTrainer",
}
"""Maps the names of the built-in training algorithms to the import paths of their classes."""

_ID = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*?)-v(?P<version>[1-9]\d*)")


class RegisteredEnvironment(NamedTuple):
    """Registry entry of an environment."""

    id: str
    """Name and version, such as `arc-v2`."""
    spec: Any
    """The `EnvSpec`, the `Environment` class, or the import path of either, `package.module:NAME`."""
    description: str = ""

    @property
    def name(self) -> str:
        """Id without the version."""
        return self.id.rpartition("-v")[0]

    @property
    def version(self) -> int:
        """Version number at the end of the id."""
        return int(self.id.rpartition("-v")[2])


_registered: dict[str, RegisteredEnvironment] = {}


def register(id: str, spec: Any, description: str = "") -> None:
    """Register an environment under an id that ends in its version, such as `maze-v1`.

    Increase the version when the same keys and actions no longer give the same episodes. An id can be
    registered again for the same class or path, so that a notebook cell can be run twice. Registering it for
    something else raises `ValueError`.

    Args:
        id: Name and version.
        spec: An `Environment` class, an `EnvSpec`, or the import path `package.module:NAME` of either, which
            is imported on first use.
        description: One-line description, shown by `phalanx info --environments`.

    >>> register("doctest-maze-v1", "mazes.environment:Maze", "find the exit")
    >>> [found.description for found in registered_environments() if found.name == "doctest-maze"]
    ['find the exit']
    """
    check_id(id)
    if id in _registered and _address(_registered[id].spec) != _address(spec):
        raise ValueError(
            f"{id!r} is already registered for {_address(_registered[id].spec)}; choose another name or "
            "version"
        )
    _registered[id] = RegisteredEnvironment(id, spec, description)


def check_id(id: str) -> None:
    """Raise `ValueError` if an id does not consist of a name and a version."""
    if not _ID.fullmatch(id):
        raise ValueError(f"an id consists of a name and a version, such as maze-v1, got {id!r}")


def registered_environments() -> tuple[RegisteredEnvironment, ...]:
    """Return all registered environments, sorted by id, including those of other installed packages."""
    _discover()
    return tuple(_registered[id] for id in sorted(_registered))


def find(name: str) -> "tuple[str, EnvSpec]":
    """Find an environment by name.

    Args:
        name: Id with or without the version, `package.module:NAME` or `path/file.py:NAME`.

    Returns:
        The full name and the spec. The full name is the id with its version, or the import path, in which the
        path of a file is absolute.

    Raises:
        ValueError: If the name is unknown. The message suggests a similar name.
    """
    if ":" in name:
        return absolute_address(name), _as_spec(import_object(name), name)
    found = _find_id(name)
    spec = import_object(found.spec) if isinstance(found.spec, str) else found.spec
    return found.id, _as_spec(spec, name)


def make(name: str, /, config: Any = None, overrides: Sequence[str] = (), **settings: Any) -> "Environment":
    """Create an environment.

    Args:
        name: Id such as `arc-v2` or `arc`, or the path of an `EnvSpec` or an `Environment` class:
            `package.module:NAME` or `path/file.py:NAME`.
        config: Config of the environment, name of a preset, or path of a YAML file. If None, the defaults are
            used.
        overrides: Settings as on the command line, such as `["episode.max_episode_steps=20"]`.
        settings: Settings by keyword, such as `dataset={"families": ("recolor",)}`, and objects that the
            environment accepts, such as `tasks` for ARC.

    Raises:
        TypeError: If a keyword argument is unknown.
        ValueError: If a setting is unknown or invalid.
    """
    # Pydantic takes 0.1 s to import.
    from pydantic import ValidationError

    from phalanx.config import format_validation_error, load_config, parse_overrides

    _, spec = find(name)
    parameters = inspect.signature(spec.make).parameters.values() if spec.config else ()
    accepted = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    objects = {key: value for key, value in settings.items() if key in accepted}
    values = {key: value for key, value in settings.items() if key not in accepted}
    if spec.config is None:
        values |= parse_overrides(overrides)
    known = [*spec.settings_fields, *accepted]
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known) or 'none'}"
            raise TypeError(f"{name!r} got an unexpected keyword argument {key!r}; {hint}")
    if spec.config is not None:
        return spec.create(load_config(spec.config, config, overrides, settings=values), **objects)
    if config is not None:
        raise TypeError(f"{name!r} has no config; pass its settings as keyword arguments")
    try:
        validated = spec.validate(values)
    except ValidationError as error:
        raise ValueError(format_validation_error(error)) from error
    return spec.create(validated)


def _find_id(name: str) -> RegisteredEnvironment:
    if name not in _registered:
        _discover()
    if name in _registered:
        return _registered[name]
    parsed = _ID.fullmatch(name)
    unversioned = parsed["name"] if parsed else name
    if versions := [found for found in _registered.values() if found.name == unversioned]:
        newest = max(versions, key=lambda found: found.version)
        if parsed is None:
            return newest
        raise ValueError(
            f"this release has version {newest.version} of {newest.name!r}, not {parsed['version']}; use "
            f"{newest.id!r}. Other versions have other episodes"
        )
    if import_object("phalanx.text.registry:find_text")(name) is not None:
        raise ValueError(f"{name!r} is a text environment; use make_text_env, or train with sft or grpo")
    # Names are compared without versions, because two names that end in `-v1` would look similar.
    ids = {found.name: id for id, found in _registered.items()}
    near = difflib.get_close_matches(unversioned, ids, 1, cutoff=0.6)
    hint = f"did you mean {ids[near[0]]!r}?" if near else f"choose from {', '.join(sorted(_registered))}."
    raise ValueError(f"unknown environment {name!r}; {hint} Is the package that registers it installed?")


def _as_spec(found: Any, name: str) -> "EnvSpec":
    from phalanx.core.environment import Environment
    from phalanx.core.spec import EnvSpec, spec_of_class

    if isinstance(found, EnvSpec):
        return found
    if inspect.isclass(found) and issubclass(found, Environment):
        return spec_of_class(found)
    raise ValueError(f"{name!r} is neither an EnvSpec nor a subclass of phalanx.core.Environment")


def _address(spec: Any) -> str:
    """Return the import path of a class. An import path is returned unchanged.

    Classes are compared by import path and not as objects, because running a notebook cell again creates a
    new object for the same class.
    """
    if isinstance(spec, str):
        return spec
    return f"{spec.__module__}:{getattr(spec, '__qualname__', repr(spec))}"


@functools.cache
def _discover() -> None:
    """Register the environments of other installed packages, unless their ids are already registered."""
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if entry.name not in _registered:
            register(entry.name, entry.value, f"from {entry.value.partition('.')[0]}")
