"""Creates text environments by name, such as `sudoku`, `sudoku:hard,sokoban:easy:multi` or `arc-v2`."""

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from pydantic import SerializeAsAny, model_serializer, model_validator
from pydantic.fields import FieldInfo

from phalanx import registry
from phalanx.config import Config, Section
from phalanx.import_path import import_object
from phalanx.text.env import PromptFormat, TextEnvironment, TextVectorEnvironment
from phalanx.text.registry import TextEnvSpec, find_text, group_members, registered_text_environments

TextFactory = Callable[[], TextEnvironment]
"""Function that creates a text environment."""


@runtime_checkable
class _Settings(Protocol):
    """Settings of an environment's own: an `EnvSpec`, or a `TextEnvSpec` with a config class."""

    @property
    def settings_fields(self) -> Mapping[str, FieldInfo]: ...

    def validate(self, values: Mapping[str, Any]) -> Config: ...


class TextEnvConfig(Config):
    """Settings that select a text environment for a training run or an evaluation.

    If the name is that of a single environment with settings of its own, such as a JAX environment or
    `puzzle_server`, these are direct entries of the section in YAML and on the command line.
    """

    id: str = ""
    """Name of the environment, such as `sudoku`, `sudoku:hard,sokoban`, `puzzles` (all puzzle kinds), `arc`
    or `puzzle_server`."""
    difficulty: str = "easy"
    """Difficulty, such as `easy`, `medium` or `hard`, for the puzzle kinds in `id` that have no difficulty
    suffix."""
    turns: Literal["single", "multi"] = "single"
    """How puzzles are answered: with one answer that contains the complete solution (`single`), or with one
    move per answer (`multi`)."""
    settings: SerializeAsAny[Config] = Config()
    """The environment's own settings. Empty if it has none."""

    @classmethod
    def fields_for(cls, name: str) -> Section:
        """Return the fields of the section for an environment name, including the environment's own."""
        common = {field: info for field, info in cls.model_fields.items() if field != "settings"}
        own = _own_settings(name)
        return common if own is None else {**common, **own.settings_fields}

    @model_validator(mode="before")
    @classmethod
    def _validate_settings(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or isinstance(values.get("settings"), Config):
            return values
        own = _own_settings(str(values.get("id", "")))
        if own is None:
            return values
        # A setting of the environment that is also called `difficulty` or `turns` is the environment's.
        common = {"id", "difficulty", "turns"} - set(own.settings_fields)
        settings = own.validate({name: value for name, value in values.items() if name not in common})
        return {**{name: values[name] for name in common if name in values}, "settings": settings}

    @model_serializer(mode="plain")
    def _flatten(self, info: Any) -> dict[str, Any]:
        common = {"id": self.id, "difficulty": self.difficulty, "turns": self.turns}
        return {**common, **self.settings.model_dump(mode=info.mode)}

    def make(self, prompt_format: PromptFormat = "compact") -> TextVectorEnvironment:
        """Create the vector environment that these settings describe."""
        parts = parse_env_name(self.id)
        if _own_settings(self.id) is None:
            return _make_vector_env(self.id, self._arguments(parts[0], prompt_format))
        [part] = parts
        if part.spec is None:
            environment = registry.find(part.name)[1].create(self.settings)
            return _wrap_jax_vector(part.name, environment, {"prompt_format": prompt_format})
        vector: TextVectorEnvironment = part.spec.load_vector().from_config(self.settings)
        return vector

    def _arguments(self, part: "ParsedName", prompt_format: PromptFormat) -> dict[str, Any]:
        """Return the arguments for an environment without settings of its own."""
        arguments = {"difficulty": self.difficulty, "turns": self.turns, "prompt_format": prompt_format}
        if part.spec is None:
            return arguments
        if part.spec.config:
            fields = ", ".join(part.spec.settings_fields)
            raise ValueError(f"use id={part.spec.name} instead of id={self.id}, with the settings {fields}")
        accepted = inspect.signature(part.spec.load_vector() or part.load()).parameters.values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted):
            return arguments
        names = {parameter.name for parameter in accepted}
        for name in ("difficulty", "turns"):
            if name not in names and arguments[name] != type(self).model_fields[name].default:
                raise ValueError(f"{part.name} has no setting {name!r}")
        return {name: value for name, value in arguments.items() if name in names}


def _own_settings(name: str) -> _Settings | None:
    """Return the settings that an environment adds to the section. None if it adds none."""
    parts = parse_env_name(name) if name else ()
    if len(parts) != 1:
        return None
    [part] = parts
    if part.spec is None:
        return registry.find(part.name)[1]
    return part.spec if part.spec.config and not part.values else None


class ParsedName(NamedTuple):
    """One of the environments in a name."""

    name: str
    """Name without settings, or an import path such as `module:Class`."""
    spec: TextEnvSpec | None = None
    """Spec of the text environment or of its group. None for a JAX environment."""
    member: str = ""
    """Name of the member if `spec` is that of a group, such as the kind of puzzle."""
    values: tuple[str, ...] = ()
    """Values that follow the name, separated by colons. An empty value stands for the default."""

    @property
    def settings(self) -> dict[str, str]:
        """Settings that follow the name, such as the difficulty."""
        names = self.spec.settings if self.spec else ()
        return {name: value for name, value in zip(names, self.values, strict=False) if value}

    def load(self) -> Any:
        """Import and return the class or function that creates the environment."""
        return registry.find(self.name)[1].make if self.spec is None else self.spec.load()

    def make(self, **settings: Any) -> TextEnvironment:
        """Create the text environment. Call this only if it is not a JAX environment.

        Settings that follow the name override those in `settings`.
        """
        create = functools.partial(self.load(), *([self.member] if self.member else []))
        settings |= self.settings
        check_arguments(self.name, create, settings)
        environment: TextEnvironment = create(**settings)
        return environment

    def check_conflicts(self, settings: Mapping[str, Any]) -> None:
        """Raise `ValueError` if the name and `settings` give different values for an argument."""
        for name, value in self.settings.items():
            if settings.get(name, value) != value:
                raise ValueError(
                    f"the name of {self.name} sets {name}={value!r}, but the argument is "
                    f"{name}={settings[name]!r}; remove one of them"
                )


def parse_env_name(name: str) -> tuple[ParsedName, ...]:
    """Parse an environment name: comma-separated environments, each with optional settings after colons.

    The settings after a name apply only to that environment: in `sudoku,countdown:easy:single`, only
    countdown is single-turn. If the name is that of a group, as in `puzzles:hard`, the settings apply to all
    members of the group.

    Raises:
        ValueError: If a name is unknown or appears twice with the same settings.

    >>> [(part.name, part.settings) for part in parse_env_name("sudoku,sokoban:easy:multi")]
    [('sudoku', {}), ('sokoban', {'difficulty': 'easy', 'turns': 'multi'})]
    """
    parts: list[ParsedName] = []
    for text in name.split(","):
        first, colon, values = text.strip().partition(":")
        parts += [_parse_part(f"{member}{colon}{values}") for member in group_members(first) or (first,)]
    keys = [(part.member or part.name, tuple(part.settings.items())) for part in parts]
    if len(set(keys)) < len(keys):
        raise ValueError(f"{name!r} names an environment twice")
    return tuple(parts)


def make_text_env(name: str, **settings: Any) -> TextEnvironment:
    """Create a text environment.

    Args:
        name: A puzzle kind (`sudoku`, `sudoku:hard:single`), the name of a JAX environment that can describe
            its states as text (`arc-v2`), a game on a puzzle server (`puzzle_server:lights`), or the import
            path (`module:NAME` or `file.py:NAME`) of your own `TextEnvironment`, of a function that creates
            one, or of a JAX environment whose `EnvSpec` has a `text`.
        **settings: Arguments of the environment. For puzzles, these are the arguments of `PuzzleEnvironment`.
            For JAX environments, they are those of `phalanx.make`, and `text={...}` contains the arguments of
            `JaxTextEnvironment`.

    Raises:
        TypeError: If an argument is unknown.
        ValueError: If the name is invalid, or if one of its settings contradicts an argument, as in
            `make_text_env("sudoku:easy", difficulty="hard")`.

    >>> make_text_env("sudoku", turns="single").reset(seed=0)[:27]
    'This is a sudoku of 4x4 cel'
    """
    return text_env_factory(name, **settings)()


def text_env_factory(name: str | TextFactory, **settings: Any) -> TextFactory:
    """Return a function that creates text environments.

    Errors in the name or the settings are raised here, not when the function is called.

    Args:
        name: Name of one environment, as in `make_text_env`. A function that creates environments is returned
            unchanged.
        **settings: Arguments of the environment, as in `make_text_env`.
    """
    if not isinstance(name, str):
        if settings:
            raise TypeError(f"a function takes no settings, got {', '.join(settings)}")
        return name
    parts = parse_env_name(name)
    if len(parts) != 1:
        raise ValueError(f"{name!r} names {len(parts)} environments; name one, or use make_text_vector_env")
    [part] = parts
    if part.spec is None:
        wrapper_settings = settings.pop("text", {})
        # All episodes share one environment, so that it is compiled once and its tasks are loaded once.
        environment = registry.make(part.name, **settings)
        wrap = import_object("phalanx.core.text_environment:wrap_environment")
        create: TextFactory = functools.partial(wrap, part.name, environment, **wrapper_settings)
    else:
        part.check_conflicts(settings)
        create = functools.partial(part.make, **settings)
    # Creating an environment checks the settings.
    create().close()
    return create


def make_text_vector_env(name: str, **settings: Any) -> TextVectorEnvironment:
    """Create a vector environment, which runs a batch of text episodes.

    Args:
        name: Name as in `make_text_env`. It can also name several puzzle kinds or several games on a puzzle
            server, such as `sudoku,sokoban:easy:multi`. Settings after a name, such as `:easy:multi`, apply
            only to that kind or game. To set the turns of all puzzles, pass `turns="single"`.
        **settings: Arguments of the environment, as in `make_text_env`.
    """
    for part in parse_env_name(name):
        part.check_conflicts(settings)
    return _make_vector_env(name, settings)


def _make_vector_env(name: str, settings: dict[str, Any]) -> TextVectorEnvironment:
    """Create a vector environment. Values in the name take precedence over `settings`."""
    parts = parse_env_name(name)
    first = parts[0]
    vectors = {part.spec.vector_entry_point if part.spec else "" for part in parts}
    if len(parts) > 1 and (len(vectors) > 1 or "" in vectors):
        raise ValueError(
            f"the environments of {name!r} cannot be combined; name several kinds of puzzles, or several "
            "games of a puzzle server"
        )
    if first.spec is None:
        wrapper_settings = settings.pop("text", {})
        return _wrap_jax_vector(first.name, registry.make(first.name, **settings), wrapper_settings)
    if not first.spec.vector_entry_point:
        return TextVectorEnvironment({first.name: text_env_factory(name, **settings)})
    tasks = [":".join([*([part.member] if part.member else []), *part.values]) for part in parts]
    vector_class = first.spec.load_vector()
    check_arguments(name, vector_class, settings)
    vector: TextVectorEnvironment = vector_class(tasks, **settings)
    return vector


def _wrap_jax_vector(name: str, environment: Any, settings: Mapping[str, Any]) -> TextVectorEnvironment:
    # Imported by path, because JAX may not be installed.
    wrap = import_object("phalanx.core.text_environment:wrap_vector_environment")
    vector: TextVectorEnvironment = wrap(name, environment, **settings)
    return vector


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


def _parse_part(text: str) -> ParsedName:
    name, *values = text.split(":")
    if found := find_text(name):
        spec, member = found
        if len(values) > len(spec.settings):
            form = "".join(f"[:{field.upper()}]" for field in spec.settings)
            raise ValueError(f"expected {name}{form}, got {text!r}")
        return ParsedName(name, spec, member, tuple(values))
    if len(values) == 1:
        return _parse_import_path(text)
    registered = registry.registered_environments()
    if not values and re.sub(r"-v\d+$", "", name) in {environment.name for environment in registered}:
        return ParsedName(name)
    names = [*_text_names(), *(environment.id for environment in registered)]
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(names)}, or name a module:Class"
    raise ValueError(f"unknown text environment {name!r}; {hint}")


def _parse_import_path(path: str) -> ParsedName:
    found = import_object(path)
    if callable(found) and (not inspect.isclass(found) or issubclass(found, TextEnvironment)):
        return ParsedName(path, TextEnvSpec(path, found))
    try:
        registry.find(path)
    except ValueError as error:
        raise ValueError(
            f"{path!r} is neither a text environment nor a JAX environment: expected a subclass of "
            "TextEnvironment, a function that creates one, an EnvSpec, or a subclass of Environment"
        ) from error
    return ParsedName(path)


def _text_names() -> list[str]:
    return [
        name
        for spec in registered_text_environments()
        for name in (spec.load_members() if spec.members else [spec.name])
    ]
