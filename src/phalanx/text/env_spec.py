"""Creates text environments from specs, such as `sudoku`, `sudoku:hard,sokoban:easy:multi` or `arc-v2`."""

import difflib
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

from phalanx.config import Config
from phalanx.registry import (
    EnvSpec,
    check_arguments,
    environment_class,
    find_text_environment,
    group_members,
    import_object,
    make,
    registered_environments,
    settings_class,
)
from phalanx.text.env import PromptFormat, TextEnvironment, TextVectorEnvironment
from phalanx.text.wrapper import JaxTextEnvironment, JaxTextVectorEnvironment

TextFactory = Callable[[], TextEnvironment]
"""Function that creates a text environment."""

_JAX_ID = re.compile(r"[A-Za-z0-9][\w.-]*-v\d+")


class TextEnvConfig(Config):
    """Settings that select a text environment for a training run or an evaluation.

    `env_config_class` creates subclasses that also have the settings of a JAX environment or a puzzle server.
    """

    removed_settings: ClassVar[Mapping[str, str]] = {
        "overrides": "was removed; set the environment's own settings, such as env.max_episode_steps=20"
    }
    environment_type: ClassVar[Any] = None
    """Environment class whose settings are also fields of this config class. It is set by `env_config_class`.
    None if there are no such fields."""

    id: str = ""
    """Spec of the environment, such as `sudoku`, `sudoku:hard,sokoban`, `puzzles` (all puzzle kinds), `arc`
    or `puzzle_server`."""
    difficulty: str = "easy"
    """Difficulty, such as `easy`, `medium` or `hard`, for the puzzle kinds in `id` that have no difficulty
    suffix."""
    turns: Literal["single", "multi"] = "single"
    """How puzzles are answered: with one answer that contains the complete solution (`single`), or with one
    move per answer (`multi`)."""

    def make(self, prompt_format: PromptFormat = "compact") -> TextVectorEnvironment:
        """Create the vector environment that these settings describe."""
        if self.environment_type is None:
            settings = {"difficulty": self.difficulty, "turns": self.turns, "prompt_format": prompt_format}
            return _make_vector_env(self.id, settings)
        config_type = self.environment_type.config_type
        if config_type is None:
            config: Any = {name: value for name, value in self if name not in TextEnvConfig.model_fields}
        else:
            config = config_type(**{name: getattr(self, name) for name in config_type.model_fields})
        environment = self.environment_type.from_config(config)
        if isinstance(environment, TextVectorEnvironment):
            return environment
        return JaxTextVectorEnvironment(environment, task=self.id, prompt_format=prompt_format)


@functools.cache
def env_config_class(spec: str) -> type[TextEnvConfig]:
    """Return the config class for a text environment.

    Args:
        spec: Spec of the environment, such as `sudoku:hard` or `arc-v2`.

    Returns:
        A subclass of `TextEnvConfig` that also has the environment's own settings, if the spec names a single
        environment with such settings (for example a JAX environment or `puzzle_server`). Otherwise,
        `TextEnvConfig` itself.
    """
    parts = parse_env_spec(spec) if spec else ()
    environment_type: Any = None
    if len(parts) == 1:
        [part] = parts
        if part.interface != "text":
            environment_type = part.load()
        elif part.registered and part.registered.vector_entry_point and not part.settings:
            environment_type = import_object(part.registered.vector_entry_point)
    # A `TextEnvironment` and the vector environment for puzzles have neither a space nor a config type.
    has_space = hasattr(environment_type, "observation_space")
    if not has_space and getattr(environment_type, "config_type", None) is None:
        return TextEnvConfig
    created: type[TextEnvConfig] = settings_class(environment_type, TextEnvConfig)
    created.environment_type = environment_type
    return created


class ParsedEnvSpec(NamedTuple):
    """One of the environments that a spec names."""

    name: str
    """Name of a text environment, id of a JAX environment, or import path of a class (`module:Class`)."""
    interface: Literal["jax", "text", "class"]
    """What `name` refers to: a JAX environment (`jax`), a text environment (`text`) or a class (`class`)."""
    settings: Mapping[str, str]
    """Settings that follow the name in the spec, such as the difficulty."""
    registered: EnvSpec | None = None
    """Registry entry for a text environment. None if `interface` is not `text`."""
    text: str = ""
    """Name and settings, separated by colons as in a spec. Empty if `interface` is not `text`."""

    def load(self) -> Any:
        """Import and return the class or function that creates the environment."""
        if self.interface == "jax":
            return environment_class(self.name)[1]
        return self.registered.load() if self.registered else import_object(self.name)

    def make(self, **settings: Any) -> TextEnvironment:
        """Create the text environment. Call this only if `interface` is not `jax`.

        Settings in the spec override those in `settings`.
        """
        factory = self.load()
        if not callable(factory):
            raise TypeError(f"{self.name} is not a class or function")
        settings |= self.settings
        check_arguments(self.name, factory, settings)
        environment: TextEnvironment = factory(**settings)
        return environment

    def check_conflicts(self, settings: Mapping[str, Any]) -> None:
        """Raise `ValueError` if the spec and `settings` give different values for an argument."""
        for name, value in self.settings.items():
            if settings.get(name, value) != value:
                raise ValueError(
                    f"the spec of {self.name} sets {name}={value!r}, but the argument is "
                    f"{name}={settings[name]!r}; remove one of them"
                )


def parse_env_spec(spec: str) -> tuple[ParsedEnvSpec, ...]:
    """Parse a spec: comma-separated environments, each with optional settings after colons.

    The settings after a name apply only to that environment: in `sudoku,countdown:easy:single`, only
    countdown is single-turn. If the name is that of a group, as in `puzzles:hard`, the settings apply to all
    members of the group.

    Raises:
        ValueError: If a name is unknown or appears twice with the same settings.

    >>> [(part.name, dict(part.settings)) for part in parse_env_spec("sudoku,sokoban:easy:multi")]
    [('sudoku', {}), ('sokoban', {'difficulty': 'easy', 'turns': 'multi'})]
    """
    parts: list[ParsedEnvSpec] = []
    for text in spec.split(","):
        name, colon, values = text.strip().partition(":")
        parts += [_parse_part(f"{member}{colon}{values}") for member in group_members(name) or (name,)]
    keys = [(part.name, tuple(part.settings.items())) for part in parts]
    if len(set(keys)) < len(keys):
        raise ValueError(f"{spec!r} names an environment twice")
    return tuple(parts)


def make_text_env(spec: str, **settings: Any) -> TextEnvironment:
    """Create a text environment.

    Args:
        spec: A puzzle kind (`sudoku`, `sudoku:hard:single`), the id of a JAX environment that can describe
            its states as text (`arc-v2`), a game on a puzzle server (`puzzle_server:lights`), or the import
            path of your own `TextEnvironment` (`module:Class` or `file.py:Class`).
        **settings: Arguments of the environment. For puzzles, these are the arguments of `PuzzleEnvironment`.
            For JAX environments, they are those of `phalanx.make`, and `text={...}` contains the arguments of
            `JaxTextEnvironment`.

    Raises:
        TypeError: If an argument is unknown.
        ValueError: If the spec is invalid, or if one of its settings contradicts an argument, as in
            `make_text_env("sudoku:easy", difficulty="hard")`.

    >>> make_text_env("sudoku", turns="single").reset(seed=0)[:27]
    'This is a sudoku of 4x4 cel'
    """
    return text_env_factory(spec, **settings)()


def text_env_factory(spec: str | TextFactory, **settings: Any) -> TextFactory:
    """Return a function that creates text environments.

    Errors in the spec or the settings are raised here, not when the function is called.

    Args:
        spec: Spec of one environment, as in `make_text_env`. A function that creates environments is returned
            unchanged.
        **settings: Arguments of the environment, as in `make_text_env`.
    """
    if not isinstance(spec, str):
        if settings:
            raise TypeError(f"a function takes no settings, got {', '.join(settings)}")
        return spec
    parts = parse_env_spec(spec)
    if len(parts) != 1:
        raise ValueError(f"{spec!r} names {len(parts)} environments; name one, or use make_text_vector_env")
    [part] = parts
    if part.interface == "jax":
        wrapper_settings = settings.pop("text", {})
        # All episodes share one environment, so that it is compiled once and its tasks are loaded once.
        environment = make(part.name, **settings)
        JaxTextEnvironment(environment, **wrapper_settings)
        return lambda: JaxTextEnvironment(environment, **wrapper_settings)
    part.check_conflicts(settings)
    # Creating an environment checks the settings.
    part.make(**settings).close()
    return lambda: part.make(**settings)


def make_text_vector_env(spec: str, **settings: Any) -> TextVectorEnvironment:
    """Create a vector environment, which runs a batch of text episodes.

    Args:
        spec: Spec as in `make_text_env`. It can also name several puzzle kinds or several games on a puzzle
            server, such as `sudoku,sokoban:easy:multi`. Settings after a name, such as `:easy:multi`, apply
            only to that kind or game. To set the turns of all puzzles, pass `turns="single"`.
        **settings: Arguments of the environment, as in `make_text_env`.
    """
    for part in parse_env_spec(spec):
        part.check_conflicts(settings)
    return _make_vector_env(spec, settings)


def _make_vector_env(spec: str, settings: dict[str, Any]) -> TextVectorEnvironment:
    """Create a vector environment. Values in the spec take precedence over `settings`."""
    parts = parse_env_spec(spec)
    first = parts[0]
    vectors = {part.registered.vector_entry_point if part.registered else "" for part in parts}
    if len(parts) > 1 and (len(vectors) > 1 or "" in vectors):
        raise ValueError(
            f"the environments of {spec!r} cannot be combined; name several kinds of puzzles, or several "
            "games of a puzzle server"
        )
    if first.interface == "jax":
        wrapper_settings = settings.pop("text", {})
        return JaxTextVectorEnvironment(make(first.name, **settings), task=first.name, **wrapper_settings)
    if first.registered is None or "" in vectors:
        return TextVectorEnvironment({first.name: text_env_factory(spec, **settings)})
    # The spec of a game starts with `puzzle_server`, which is not part of its name.
    is_game = first.registered.settings[:1] == ("game",)
    names = [part.text.partition(":")[2] if is_game else part.text for part in parts]
    vector_class = import_object(first.registered.vector_entry_point)
    check_arguments(spec, vector_class, settings)
    vector: TextVectorEnvironment = vector_class(names, **settings)
    return vector


def _parse_part(text: str) -> ParsedEnvSpec:
    name, *values = text.split(":")
    found = find_text_environment(name)
    if found is not None:
        if len(values) > len(found.settings):
            form = "".join(f"[:{field.upper()}]" for field in found.settings)
            raise ValueError(f"expected {name}{form}, got {text!r}")
        # An empty field keeps the default: `sudoku::multi`.
        pairs = zip(found.settings, values, strict=False)
        return ParsedEnvSpec(name, "text", {field: value for field, value in pairs if value}, found, text)
    registered = registered_environments()
    if not values and (_JAX_ID.fullmatch(name) or name in {spec.name for spec in registered}):
        return ParsedEnvSpec(name, "jax", {})
    if len(values) == 1:
        return ParsedEnvSpec(text, "class", {})
    names = [*group_members("puzzles"), "puzzle_server", *(spec.id for spec in registered)]
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(names)}, or name a module:Class"
    raise ValueError(f"unknown text environment {name!r}; {hint}")
