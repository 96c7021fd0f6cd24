"""Registry of text environments."""

import dataclasses
import functools
import importlib.metadata
from collections.abc import Callable, Mapping
from typing import Any

from pydantic.fields import FieldInfo

from phalanx.config import Config
from phalanx.import_path import import_object
from phalanx.registry import check_id

ENTRY_POINTS = "phalanx.text_environments"
"""Entry-point group in which other packages register text environments. The value is the import path of a
`TextEnvSpec`."""


@dataclasses.dataclass(frozen=True)
class TextEnvSpec:
    """Registry entry of a text environment, or of a group of text environments such as the puzzle kinds."""

    id: str
    """Name and version, such as `maze-v1`, or the import path of an environment that is not registered."""
    entry_point: str | Callable[..., Any]
    """Class or function that creates the environment, or its import path. For the members of a group, it also
    takes the name of the member as its first argument."""
    description: str = ""
    settings: tuple[str, ...] = ()
    """Names of the settings whose values can be appended to the name, separated by colons. For example,
    `sudoku:easy:single` sets `difficulty` to `easy` and `turns` to `single`."""
    vector_entry_point: str = ""
    """Import path of the vector version, a class that steps a batch of episodes together. The first argument
    of its constructor is a list of tasks: the values that follow the name, such as `lights:easy`. For the
    members of a group, a task starts with the name of the member, as in `sudoku:easy`. Empty if there is no
    vector version."""
    config: str = ""
    """Import path of the class of the environment's settings in configs. The vector version must then have a
    class method `from_config`. Empty if the settings are keyword arguments."""
    members: str = ""
    """Import path of a mapping from the names of a group's members to objects with a `version` and a
    `description`. Empty if this is a single environment."""

    @property
    def name(self) -> str:
        """Id without the version."""
        return self.id.rpartition("-v")[0]

    def load(self) -> Callable[..., Any]:
        """Import and return the class or function that creates the environment."""
        entry_point = self.entry_point
        loaded: Callable[..., Any] = (
            import_object(entry_point) if isinstance(entry_point, str) else entry_point
        )
        return loaded

    def load_vector(self) -> Any:
        """Import and return the class of the vector version, or None if there is no vector version."""
        return import_object(self.vector_entry_point) if self.vector_entry_point else None

    @property
    def settings_fields(self) -> Mapping[str, FieldInfo]:
        """Type, default and description of each setting in `config` by name."""
        return self._config_class.model_fields

    def validate(self, values: Mapping[str, Any]) -> Config:
        """Return validated settings, an instance of the class in `config`."""
        return self._config_class.model_validate(dict(values))

    @property
    def _config_class(self) -> type[Config]:
        loaded: type[Config] = import_object(self.config)
        return loaded

    def load_members(self) -> Mapping[str, Any]:
        """Import and return the members of a group. The result is empty for a single environment."""
        members: Mapping[str, Any] = import_object(self.members) if self.members else {}
        return members


_registered: dict[str, TextEnvSpec] = {
    spec.id: spec
    for spec in (
        TextEnvSpec(
            "puzzle_server-v1",
            "phalanx.puzzles.server_client.env:PuzzleServerEnvironment.create",
            "games from a puzzle server",
            settings=("game", "difficulty"),
            vector_entry_point="phalanx.puzzles.server_client.env:PuzzleServerVectorEnvironment",
            config="phalanx.puzzles.server_client.env:PuzzleServerEnvConfig",
        ),
        TextEnvSpec(
            "puzzles-v1",
            "phalanx.puzzles.env:PuzzleEnvironment",
            "all kinds of generated puzzles",
            settings=("difficulty", "turns"),
            vector_entry_point="phalanx.puzzles.env:PuzzleVectorEnvironment",
            members="phalanx.puzzles.kinds:KINDS",
        ),
    )
}


def register_text(spec: TextEnvSpec) -> None:
    """Register a text environment under the id of its spec. The last registration of an id is used.

    >>> register_text(TextEnvSpec("doctest-sort-v1", "sorting:make_sorting", settings=("difficulty",)))
    >>> "doctest-sort" in [spec.name for spec in registered_text_environments()]
    True
    """
    check_id(spec.id)
    _registered[spec.id] = spec


def registered_text_environments() -> tuple[TextEnvSpec, ...]:
    """Return all registered text environments and groups, sorted by id."""
    _discover()
    return tuple(_registered[id] for id in sorted(_registered))


def group_members(name: str) -> tuple[str, ...]:
    """Return the names of the members of a group. The result is empty if there is no such group."""
    return tuple(
        member
        for spec in registered_text_environments()
        if spec.name == name
        for member in spec.load_members()
    )


def find_text(name: str) -> tuple[TextEnvSpec, str] | None:
    """Find a registered text environment by its name, with or without the version.

    Returns:
        The spec, and the name of the member if the spec is that of a group, otherwise "". None if there is no
        text environment with this name.
    """
    for spec in registered_text_environments():
        if not spec.members and name in (spec.id, spec.name):
            return spec, ""
        for member, kind in spec.load_members().items():
            if name in (member, f"{member}-v{kind.version}"):
                return spec, member
    return None


@functools.cache
def _discover() -> None:
    """Register the text environments of other installed packages, unless their ids are already registered."""
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        spec = import_object(entry.value)
        if not isinstance(spec, TextEnvSpec):
            raise TypeError(f"the entry point {entry.value} in {ENTRY_POINTS} must be a TextEnvSpec")
        if spec.id not in _registered:
            register_text(spec)
