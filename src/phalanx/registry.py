"""Registry that finds and creates environments by name.

A name is an id such as `arc-v2`, an id without its version such as `arc`, or the import path of a class,
`package.module:Name` or `path/file.py:Name`. Listing the registered ids does not import the environments.
"""

import dataclasses
import difflib
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

if TYPE_CHECKING:
    from pydantic import BaseModel

    from phalanx.core.environment import Environment

    AnyConfig = TypeVar("AnyConfig", bound=BaseModel)

EntryPoint = Callable[..., Any] | str
"""Class or function that creates environments, or the import path `package.module:name` of one."""

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


@dataclasses.dataclass(frozen=True)
class EnvSpec:
    """Registry entry of an environment: its id, what creates it, and how it is described and displayed."""

    id: str
    """Name and version, such as `arc-v2`."""
    entry_point: EntryPoint
    description: str = ""
    settings: tuple[str, ...] = ()
    """Names of the settings whose values can be appended to the name of a text environment, separated by
    colons. For example, `sudoku:easy:single` sets `difficulty` to `easy` and `turns` to `single`."""
    report_panel: tuple[str, str] | None = None
    """Panel of the report page: the name of a file in the run folder, and the function that reads it, as
    `module:function`. The function must not import JAX. None if the environment adds no panel."""
    interface: Literal["jax", "text"] = "jax"
    """Kind of environment: `jax` environments are created with `make`, and `text` environments with
    `make_text_env`."""
    vector_entry_point: str = ""
    """Import path of the vector version of a text environment, a class that steps a batch of episodes
    together. The constructor of the class takes a list of names such as `sudoku:easy`. Empty if there is no
    vector version."""

    @property
    def name(self) -> str:
        """Id without the version."""
        return self.id.rpartition("-v")[0]

    @property
    def version(self) -> int:
        """Version number at the end of the id."""
        return int(self.id.rpartition("-v")[2])

    def load(self) -> Callable[..., Any]:
        """Import and return the class or function that creates the environment."""
        entry_point = self.entry_point
        return import_object(entry_point) if isinstance(entry_point, str) else entry_point

    def make(self, config: Any = None, overrides: Sequence[str] = (), **settings: Any) -> "Environment":
        """Create the environment. The arguments are those of `phalanx.make`."""
        environment: Environment = _create(self.id, self.load(), config, overrides, settings)
        self.check_version(type(environment).__name__, environment.version)
        return environment

    def check_version(self, class_name: str, version: int) -> None:
        """Raise `ValueError` if the version of the environment's class is not the one in the id."""
        if version != self.version:
            raise ValueError(
                f"{self.id!r} is registered for version {self.version}, but {class_name}.version is "
                f"{version}; register it as '{self.name}-v{version}', or set the class attribute "
                f"version = {self.version}"
            )


_registered: dict[str, EnvSpec] = {}
_groups: dict[str, tuple[str, EnvSpec]] = {}


def register(
    id: str,
    entry_point: EntryPoint,
    description: str = "",
    *,
    settings: Sequence[str] = (),
    report_panel: tuple[str, str] | None = None,
    interface: Literal["jax", "text"] = "jax",
    vector_entry_point: str = "",
) -> None:
    """Register an environment under an id that ends in its version, such as `maze-v1`.

    An id can be registered again for the same class or function, so that a notebook cell can be run twice.
    Registering it for a different class or function raises `ValueError`.

    Args:
        id: Name and version.
        entry_point: An `Environment` class, a function that returns an environment, or the import path
            `package.module:name` of such a class or function, which is then imported on first use.
        description: One-line description, shown by `phalanx info --environments`. The command lists the
            built-in environments and those that installed packages register as entry points.
        settings: Names of the settings whose values can be appended to the name of a text environment, as in
            `sudoku:easy:single`.
        report_panel: Name of a file in the run folder, and the function that reads this file for the report
            page, as `module:function`. None if the environment adds no panel to the report page.
        interface: `jax` or `text`.
        vector_entry_point: Import path of the vector version of a text environment. Empty if there is no
            vector version.

    >>> register("doctest-maze-v1", "mazes.environment:Maze", "find the exit")
    >>> [spec.description for spec in registered_environments() if spec.name == "doctest-maze"]
    ['find the exit']
    """
    if not _ID.fullmatch(id):
        raise ValueError(f"an environment's id ends in its version, such as 'maze-v1', got {id!r}")
    if isinstance(entry_point, str) and not re.fullmatch(r"[\w.]+:[\w.]+", entry_point):
        raise ValueError(f"an entry point has the form 'package.module:name', got {entry_point!r}")
    if id in _registered and _address(_registered[id].entry_point) != _address(entry_point):
        existing = _address(_registered[id].entry_point)
        raise ValueError(f"{id!r} is already registered as {existing}; choose another name")
    spec = EnvSpec(id, entry_point, description, tuple(settings), report_panel, interface, vector_entry_point)
    version = getattr(entry_point, "version", None)
    if inspect.isclass(entry_point) and isinstance(version, int):
        spec.check_version(entry_point.__name__, version)
    _registered[id] = spec


def register_group(
    name: str, members: str, entry_point: str, settings: Sequence[str], vector_entry_point: str
) -> None:
    """Register a group of text environments with a common entry point, which is imported on first use.

    Args:
        name: Name of the group. It can be used as the name of a text environment and then stands for all
            members.
        members: Import path (`package.module:name`) of a mapping from the names of the members to objects
            with a `version` and a `description`. A member `sudoku` with version 1 has the id `sudoku-v1`.
        entry_point: Import path of a function that creates an environment from the name of a member and
            settings.
        settings: Names of the settings whose values can be appended to the name of a member, as in
            `sudoku:easy:single`.
        vector_entry_point: Import path of the vector version of these environments, which steps a batch of
            episodes together.
    """
    spec = EnvSpec(
        f"{name}-v1",
        entry_point,
        settings=tuple(settings),
        interface="text",
        vector_entry_point=vector_entry_point,
    )
    _groups[name] = members, spec


def group_members(name: str) -> tuple[str, ...]:
    """Return the names of the members of a group of text environments.

    The result is empty if there is no such group.
    """
    return tuple(import_object(_groups[name][0])) if name in _groups else ()


def find_text_environment(name: str) -> EnvSpec | None:
    """Find a text environment by its id, with or without the version. Return None if it does not exist."""
    for members, spec in _groups.values():
        for member, kind in import_object(members).items():
            if name in (member, f"{member}-v{kind.version}"):
                return dataclasses.replace(
                    spec,
                    id=f"{member}-v{kind.version}",
                    entry_point=functools.partial(spec.load(), member),
                    description=kind.description,
                )
    found = (spec for spec in registered_environments("text") if name in (spec.id, spec.name))
    return next(found, None)


def find_environment(name: str) -> EnvSpec:
    """Find a registered environment by its id. If the id has no version, the highest version is returned.

    Raises:
        ValueError: If there is no such environment. The message suggests a similar name.
    """
    if name not in _registered:
        _discover()
    if name in _registered:
        return _registered[name]
    parsed = _ID.fullmatch(name)
    unversioned = parsed["name"] if parsed else name
    if versions := [spec for spec in _registered.values() if spec.name == unversioned]:
        newest = max(versions, key=lambda spec: spec.version)
        if parsed is None:
            return newest
        raise ValueError(
            f"this release has version {newest.version} of {newest.name!r}, not {parsed['version']}; use "
            f"{newest.id!r}. Other versions have other episodes"
        )
    if (text := find_text_environment(name)) is not None:
        return text
    # Names are compared without versions, because two names that end in `-v1` would look similar.
    ids = {spec.name: id for id, spec in _registered.items()}
    near = difflib.get_close_matches(unversioned, ids, 1, cutoff=0.6)
    hint = f"did you mean {ids[near[0]]!r}?" if near else f"choose from {', '.join(sorted(_registered))}."
    raise ValueError(f"unknown environment {name!r}; {hint} Is the package that registers it installed?")


def environment_class(name: str) -> tuple[str, "type[Environment]"]:
    """Return the full name and the class of a JAX environment.

    Args:
        name: Id with or without the version, or the import path of a class: `package.module:Name` or
            `path/file.py:Name`.

    Returns:
        The full name and the class. The full name is the id with its version, or the import path, in which
        the path of a file is absolute.

    Raises:
        ValueError: If the name is unknown or does not refer to a JAX environment.
    """
    found: Any
    if ":" in name:
        full_name, found = absolute_address(name), import_object(name)
    else:
        spec = find_environment(name)
        if spec.interface == "text":
            raise ValueError(f"{name!r} is a text environment; use make_text_env, or train with sft or grpo")
        full_name, found = spec.id, spec.load()
    if not inspect.isclass(found) or not hasattr(found, "from_config"):
        raise ValueError(f"{name!r} is not a subclass of phalanx.core.Environment")
    return full_name, cast("type[Environment]", found)


@functools.cache
def settings_class(environment: type[Any], base: type[Any]) -> type[Any]:
    """Return a config class with the fields of `base` and the settings of an environment.

    If the environment has no `config_type`, its settings are the arguments of its constructor.
    """
    from pydantic import create_model

    name, config_type = environment.__name__, environment.config_type
    if config_type is not None:
        return create_model(
            f"{name}Section", __base__=(config_type, base), __module__=__name__, __doc__=config_type.__doc__
        )
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(environment).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        # Annotations may be strings or types that Pydantic does not know; the constructor checks values.
        known = parameter.annotation in (int, float, bool, str)
        fields[parameter.name] = (parameter.annotation if known else Any, default)
    doc = f"Arguments of `{name}`."
    return create_model(f"{name}Section", __base__=base, __module__=__name__, __doc__=doc, **fields)


def registered_environments(interface: str = "jax") -> tuple[EnvSpec, ...]:
    """Return all registered environments that have the given interface (`jax` or `text`), sorted by id.

    Environments of other installed packages are included. Members of groups that were registered with
    `register_group`, such as the puzzle kinds in `puzzles`, are not included.
    """
    _discover()
    return tuple(_registered[id] for id in sorted(_registered) if _registered[id].interface == interface)


def make(name: str, /, config: Any = None, overrides: Sequence[str] = (), **settings: Any) -> "Environment":
    """Create an environment.

    Args:
        name: Id such as `arc-v2` or `arc`, or the import path of an `Environment` class:
            `package.module:Name` or `path/file.py:Name`.
        config: Instance of the environment's `config_type`, name of a preset, or path of a YAML file. If
            None, the defaults are used.
        overrides: Settings as on the command line, such as `["episode.max_episode_steps=20"]`.
        settings: Settings by keyword, such as `dataset={"families": ("recolor",)}`, and keyword arguments of
            the environment's `from_config`, such as `tasks` for ARC. If the environment has no `config_type`,
            they are passed to its constructor.

    Raises:
        TypeError: If a keyword argument is unknown.
        ValueError: If a setting is unknown or invalid.
    """
    if ":" in name:
        created: Environment = _create(name, import_object(name), config, overrides, settings)
        return created
    spec = find_environment(name)
    if spec.interface == "text":
        raise ValueError(f"{name!r} is a text environment; use make_text_env")
    return spec.make(config, overrides, **settings)


def _create(
    name: str, entry_point: Any, config: Any, overrides: Sequence[str], settings: Mapping[str, Any]
) -> Any:
    config_type = getattr(entry_point, "config_type", None)
    if config_type is None:
        from phalanx.config import parse_overrides

        if config is not None and "config" not in inspect.signature(entry_point).parameters:
            raise TypeError(f"{name!r} has no config; pass its settings as keyword arguments")
        given = {"config": config} if config is not None else {}
        arguments = {**given, **settings, **parse_overrides(overrides)}
        check_arguments(name, entry_point, arguments)
        return entry_point(**arguments)
    parameters = inspect.signature(entry_point.from_config).parameters.values()
    accepted = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    objects = {key: value for key, value in settings.items() if key in accepted}
    values = {key: value for key, value in settings.items() if key not in accepted}
    for key in values:
        if key not in config_type.model_fields:
            from phalanx.config import suggest_key

            near = difflib.get_close_matches(key, accepted, 1)
            hint = f"did you mean {near[0]!r}?" if near else suggest_key(config_type, key)
            raise TypeError(f"{name!r} got an unexpected keyword argument {key!r}; {hint}")
    return entry_point.from_config(config_from(config_type, config, overrides, values), **objects)


def check_arguments(name: str, entry_point: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raise `TypeError` with a suggestion if an argument is not a parameter of `entry_point`."""
    parameters = inspect.signature(entry_point).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for key in arguments:
        if key not in parameters:
            near = difflib.get_close_matches(key, parameters, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(parameters) or 'none'}"
            raise TypeError(f"{name!r} got an unexpected keyword argument {key!r}; {hint}")


def config_from(
    cls: "type[AnyConfig]",
    config: Any = None,
    overrides: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> "AnyConfig":
    """Create a config from a config object, a preset or a file, and apply changes.

    Args:
        cls: Class of the config.
        config: Instance of `cls`, name of a preset, or path of a YAML file. If None, the defaults are used.
        overrides: Strings of the form `key.sub=value`.
        settings: Python values by name. Overrides take precedence over them.

    Raises:
        TypeError: If `config` is an instance of another class.
        ValueError: If a key is unknown or a value is invalid.
    """
    from phalanx.config import load_config

    if config is None or isinstance(config, str | os.PathLike):
        return load_config(cls, config, overrides, settings=settings)
    if not isinstance(config, cls):
        given = type(config).__name__
        raise TypeError(f"config must be of type {cls.__name__}, the name of a preset or a path, got {given}")
    return load_config(cls, None, overrides, config, settings=settings)


def import_object(address: str) -> Any:
    """Import and return the object at a path such as `package.module:name` or `path/file.py:name`.

    If the module is given as a file, the file's folder is added to `sys.path`.

    Raises:
        ValueError: If the module or the name does not exist.
    """
    module_name, _, name = address.rpartition(":")
    if not module_name or not name:
        raise ValueError(f"expected package.module:Name or path/file.py:Name, got {address!r}")
    is_file = module_name.endswith(".py")
    try:
        found: Any = import_file(module_name) if is_file else importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A missing dependency of the module is not a mistake in the address.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        file = f"{module_name}.py"
        hint = f"; did you mean {f'{file}:{name}'!r}?" if Path(file).is_file() else ""
        raise ValueError(f"cannot import {address!r}: {error}{hint}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"cannot import {address!r}: {module_name} has no {name}")
        found = getattr(found, part)
    return found


def import_file(path: str | os.PathLike[str]) -> ModuleType:
    """Import a Python file as a module, once per process. Its folder is added to `sys.path`."""
    file = Path(path).resolve()
    if file.suffix != ".py" or not file.is_file():
        raise ValueError(f"there is no Python file {path}")
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    name = file.stem
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(file):
        return loaded
    if loaded is not None or _is_installed(name, file):
        # The name belongs to another module.
        name = f"phalanx_file_{re.sub(r'[^0-9A-Za-z]+', '_', str(file))}"
        if name in sys.modules:
            return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Before the code runs, because dataclasses and pickles look up their own module.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _is_installed(name: str, file: Path) -> bool:
    found = importlib.util.find_spec(name)
    return found is not None and found.origin != str(file)


def absolute_address(address: str) -> str:
    """Make the file path in `path/file.py:Name` absolute. Return addresses of any other form unchanged."""
    module_name, _, name = address.rpartition(":")
    return f"{Path(module_name).resolve()}:{name}" if module_name.endswith(".py") else address


def _address(entry_point: EntryPoint) -> str:
    """Return the import path of a class or function. An import path is returned unchanged.

    Entry points are compared by import path and not as objects, because running a notebook cell again
    creates a new object for the same class or function.
    """
    if isinstance(entry_point, str):
        return entry_point
    return f"{entry_point.__module__}:{getattr(entry_point, '__qualname__', repr(entry_point))}"


@functools.cache
def _discover() -> None:
    """Register the environments of other installed packages, unless their ids are already registered."""
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if entry.name not in _registered:
            register(entry.name, entry.value, f"from {entry.value.partition('.')[0]}")
