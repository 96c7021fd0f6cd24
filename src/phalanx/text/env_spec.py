"""Creates text environments from specs, such as `sudoku`, `sudoku:hard,sokoban:easy:multi` or `arc-v2`."""

import difflib
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, cast

from phalanx.config import Config
from phalanx.registry import (
    environment_class,
    find_text_environment,
    group_members,
    import_object,
    make,
    registered_environments,
    settings_class,
)
from phalanx.text.env import PromptFormat, TextEnvironment, TextVectorEnvironment
from phalanx.text.wrapper import TextVectorWrapper, TextWrapper

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
    """Class of the environment whose settings were added by `env_config_class`. None if there is none."""

    id: str = ""
    """Spec of the environment, such as `sudoku`, `sudoku:hard,sokoban`, `puzzles` (all kinds of puzzles),
    `arc` or `puzzle_server`."""
    difficulty: str = "easy"
    """Difficulty of the puzzles in `id` that do not specify one, such as `easy`, `medium` or `hard`."""
    turns: Literal["single", "multi"] = "single"
    """How puzzles are answered: with one answer that contains the complete solution (`single`), or with one
    move per answer (`multi`)."""

    def make(self, prompt_format: PromptFormat = "compact") -> TextVectorEnvironment:
        """Create the vector environment that these settings describe."""
        if self.environment_type is None:
            return make_text_vector_env(
                self.id, difficulty=self.difficulty, turns=self.turns, prompt_format=prompt_format
            )
        config_type = self.environment_type.config_type
        if config_type is None:
            settings: Any = {name: value for name, value in self if name not in TextEnvConfig.model_fields}
        else:
            settings = config_type(**{name: getattr(self, name) for name in config_type.model_fields})
        environment = self.environment_type.from_config(settings)
        if isinstance(environment, TextVectorEnvironment):
            return environment
        return TextVectorWrapper(environment, task=self.id, prompt_format=prompt_format)


@functools.cache
def env_config_class(spec: str) -> type[TextEnvConfig]:
    """Return the config class of a text environment.

    Args:
        spec: Spec of the environment. If it names a single JAX environment or `puzzle_server`, the class also
            has the settings of that environment. Otherwise, it is `TextEnvConfig`.
    """
    if not spec:
        return TextEnvConfig
    first, *others = parse_env_spec(spec)
    environment_type: Any = None
    if not others and first.interface == "jax":
        environment_type = environment_class(first.name)[1]
    elif not others and first.interface == "class":
        addressed = import_object(first.name)
        # A `TextEnvironment` has no spaces.
        environment_type = addressed if hasattr(addressed, "observation_space") else None
    elif not others and not first.settings and first.interface == "text":
        found = find_text_environment(first.name)
        vector = found.vector_entry_point if found else ""
        vector_type = import_object(vector) if vector else None
        environment_type = vector_type if getattr(vector_type, "config_type", None) is not None else None
    if environment_type is None:
        return TextEnvConfig
    created: type[TextEnvConfig] = settings_class(environment_type, TextEnvConfig)
    created.environment_type = environment_type
    return created


class EnvSpecPart(NamedTuple):
    """One of the environments that a spec names."""

    name: str
    """Name of a text environment, id of a JAX environment, or address of a class (`module:Class`)."""
    interface: Literal["jax", "text", "class"]
    """What `name` refers to: a JAX environment (`jax`), a text environment (`text`) or a class (`class`)."""
    settings: Mapping[str, str]
    """Settings that follow the name in the spec, such as the difficulty."""


def parse_env_spec(spec: str) -> tuple[EnvSpecPart, ...]:
    """Parse a spec: environments separated by commas, each followed by settings separated by colons.

    Raises:
        ValueError: If a name is unknown or appears twice with the same settings.

    >>> [(part.name, dict(part.settings)) for part in parse_env_spec("sudoku,sokoban:easy:multi")]
    [('sudoku', {}), ('sokoban', {'difficulty': 'easy', 'turns': 'multi'})]
    """
    parts: list[EnvSpecPart] = []
    for text in spec.split(","):
        name, *values = text.strip().split(":")
        for member in group_members(name) or (name,):
            parts.append(_parse_part(member, values, text.strip()))
    keys = [(part.name, tuple(part.settings.items())) for part in parts]
    if len(set(keys)) < len(keys):
        raise ValueError(f"{spec!r} names an environment twice")
    return tuple(parts)


def make_text_env(spec: str, **settings: Any) -> TextEnvironment:
    """Create a text environment.

    Args:
        spec: A puzzle kind (`sudoku`, `sudoku:hard:single`), the id of a JAX environment with text
            (`arc-v2`), a game of a puzzle server (`puzzle_server:lights`), or the address of your own
            `TextEnvironment` (`module:Class` or `file.py:Class`).
        settings: Arguments of the environment. For puzzles, these are the arguments of `PuzzleEnvironment`.
            For JAX environments, they are those of `phalanx.make`, and `text={...}` contains the arguments of
            `TextWrapper`.

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
        settings: Arguments of the environment, as in `make_text_env`.
    """
    if not isinstance(spec, str):
        if settings:
            raise TypeError(f"a function takes no settings, got {', '.join(settings)}")
        return spec
    parts = parse_env_spec(spec)
    if len(parts) != 1:
        raise ValueError(f"{spec!r} names {len(parts)} environments; use make_text_vector_env")
    [part] = parts
    if part.interface == "jax":
        wrapper_settings = settings.pop("text", {})
        # All episodes share one environment, so that it is compiled once and its tasks are loaded once.
        environment = make(part.name, **settings)
        TextWrapper(environment, **wrapper_settings)
        return lambda: TextWrapper(environment, **wrapper_settings)
    settings = settings | dict(part.settings)
    factory = _text_factory(part)
    # Check the settings.
    factory(**settings).close()
    return lambda: factory(**settings)


def make_text_vector_env(spec: str, **settings: Any) -> TextVectorEnvironment:
    """Create a vector environment, which runs a batch of text episodes.

    Args:
        spec: Spec as in `make_text_env`. It can also name several puzzle kinds or several games of a puzzle
            server, such as `sudoku,sokoban:easy:multi`.
        settings: Arguments of the environment, as in `make_text_env`.
    """
    parts = parse_env_spec(spec)
    first = parts[0]
    if first.interface == "jax":
        _check_single(spec, parts)
        wrapper_settings = settings.pop("text", {})
        return TextVectorWrapper(make(first.name, **settings), task=first.name, **wrapper_settings)
    if first.interface == "class":
        _check_single(spec, parts)
        return TextVectorEnvironment({first.name: text_env_factory(spec, **settings)})
    environments = [find_text_environment(part.name) for part in parts]
    [address, *others] = dict.fromkeys(each.vector_entry_point if each else "" for each in environments)
    if others:
        raise ValueError(f"the environments of {spec!r} cannot be combined")
    if not address:
        _check_single(spec, parts)
        return TextVectorEnvironment({first.name: text_env_factory(spec, **settings)})
    vector: TextVectorEnvironment = import_object(address)([_join(part) for part in parts], **settings)
    return vector


def _parse_part(name: str, values: Sequence[str], text: str) -> EnvSpecPart:
    found = find_text_environment(name)
    if found is not None:
        if len(values) > len(found.settings):
            form = "".join(f"[:{field.upper()}]" for field in found.settings)
            raise ValueError(f"expected {name}{form}, got {text!r}")
        # An empty field keeps the default: `sudoku::multi`.
        pairs = zip(found.settings, values, strict=False)
        return EnvSpecPart(name, "text", {field: value for field, value in pairs if value})
    if not values and (_JAX_ID.fullmatch(name) or name in _jax_names()):
        return EnvSpecPart(name, "jax", {})
    if len(values) == 1:
        return EnvSpecPart(text, "class", {})
    names = [*group_members("puzzles"), "puzzle_server", *(spec.id for spec in registered_environments())]
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(names)}, or name a module:Class"
    raise ValueError(f"unknown text environment {name!r}; {hint}")


def _jax_names() -> set[str]:
    return {spec.name for spec in registered_environments()}


def _text_factory(part: EnvSpecPart) -> Callable[..., TextEnvironment]:
    if part.interface == "class":
        factory = import_object(part.name)
        if not callable(factory):
            raise TypeError(f"{part.name} is not a class or function")
        return cast(Callable[..., TextEnvironment], factory)
    found = find_text_environment(part.name)
    assert found is not None
    return cast(Callable[..., TextEnvironment], found.load())


def _join(part: EnvSpecPart) -> str:
    """Format a part as a string, in the format that vector environments take."""
    found = find_text_environment(part.name)
    assert found is not None
    values = [part.settings.get(field, "") for field in found.settings]
    if found.settings[:1] == ("game",):
        return ":".join(values).rstrip(":")
    return ":".join([part.name, *values]).rstrip(":")


def _check_single(spec: str, parts: Sequence[EnvSpecPart]) -> None:
    if len(parts) > 1:
        raise ValueError(
            f"{spec!r} names several environments; only puzzles and server games can be combined"
        )
