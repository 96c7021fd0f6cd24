"""Config classes, and functions that load configs from presets, YAML files and `key=value` overrides."""

import difflib
import functools
import json
import os
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from phalanx.io.atomic import atomic_write
from phalanx.io.checksum import read_verified_json, write_json
from phalanx.io.yaml_files import dump_yaml, parse_yaml, read_yaml

PRESET_FOLDER = Path(__file__).parent / "presets"
"""Folder of the named presets, with one subfolder per preset group and one YAML file per preset."""

AnyModel = TypeVar("AnyModel", bound=BaseModel)

_unregistered_configs: list[type] = []
"""Config classes that were defined before JAX was imported and are not yet registered with JAX."""


def register_configs_with_jax() -> None:
    """Register the config classes in `_unregistered_configs` as static pytrees, for use with `jax.jit`."""
    import jax

    while _unregistered_configs:
        jax.tree_util.register_static(_unregistered_configs.pop())


class FrozenModel(BaseModel):
    """Base class for immutable Pydantic models that reject unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Config(FrozenModel):
    """Base class for configs, which are immutable, hashable and static under `jax.jit`.

    A section of a config is a field that is itself a config. The docstring of a field is the description that
    `--list-settings` and the settings reference show.
    """

    # Not in `FrozenModel`, because Pydantic takes milliseconds per class to read the docstrings.
    model_config = ConfigDict(use_attribute_docstrings=True)

    preset_group: ClassVar[str | None] = None
    """Folder in `presets/` with the named presets of this class, such as `"arc"` or `"ppo"`. None means that
    the class has no named presets."""
    aliases: ClassVar[Mapping[str, str]] = {}
    """Maps short names that `load_config` accepts to the dotted names of settings, such as `lr` to
    `optimizer.learning_rate`. Entries of base classes apply as well."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        _unregistered_configs.append(cls)
        if "jax" in sys.modules:
            register_configs_with_jax()

    @classmethod
    def section_types(cls, values: Mapping[str, Any]) -> dict[str, "Section"]:
        """Return the sections whose settings depend on other values, such as the name of an environment.

        Args:
            values: Nested values of a config, which are not validated yet.

        Returns:
            For each of these sections, its class or its fields by name.
        """
        return {}

    @functools.cached_property
    def _digest(self) -> int:
        return hash((type(self), *self))

    def __hash__(self) -> int:
        # Every call of a jitted function with a config hashes it, so the hash is cached.
        return self._digest

    def model_copy(self, **kwargs: Any) -> Any:
        """Return a copy with the fields in `update={...}` replaced."""
        copied = super().model_copy(**kwargs)
        copied.__dict__.pop("_digest", None)
        return copied


Section = type[BaseModel] | Mapping[str, FieldInfo]
"""Class of a section of a config, or the fields of a section that has no class."""


class Setting(NamedTuple):
    """Name, type, default value and description of one setting."""

    name: str
    """Dotted name, as used in an override."""
    type: str
    """Type of the value, as text."""
    default: Any
    """Default value, or `...` if the setting is required."""
    text: str
    """Description of the setting, from the docstring of its field. Empty if there is none."""


def load_config(
    cls: type[AnyModel],
    config: AnyModel | str | os.PathLike[str] | None = None,
    overrides: Sequence[str] = (),
    *,
    settings: Mapping[str, Any] | None = None,
) -> AnyModel:
    """Create a config from a base, `settings` and overrides, in ascending order of precedence.

    Args:
        cls: Class of the config.
        config: Base: an instance of `cls`, the name of a preset in the `preset_group` of the class, or the
            path of a YAML file. If None, the defaults of the class are used.
        overrides: Strings of the form `key.sub=value`, where the value is YAML.
        settings: Python values by name. If the value of a section is a mapping, only the keys in the mapping
            change.

    Raises:
        TypeError: If `config` is an instance of another class.
        ValueError: If a key is unknown or a value is invalid. The message contains the key's dotted name.
    """
    sources: list[tuple[str, Mapping[str, Any]]] = []
    if isinstance(config, str | os.PathLike):
        path = _preset_path(cls, config)
        sources.append((f"{path}: ", _load_config_file(path)))
    elif config is not None and not isinstance(config, cls):
        given = type(config).__name__
        raise TypeError(f"config must be of type {cls.__name__}, the name of a preset or a path, got {given}")
    sources.append(("", settings or {}))
    sources += [(f"override {override!r}: ", _parse_override(override)) for override in overrides]
    sources = [(source, _expand_aliases(cls, values)) for source, values in sources]
    base = config.model_dump() if isinstance(config, cls) else {}
    merged = functools.reduce(_merge, (values for _, values in sources), base)
    sections = _section_types(cls, merged)
    for source, values in sources:
        _check_keys(cls, values, sections, source)
    try:
        return cls.model_validate(_merge(_section_defaults(cls, sections), merged))
    except ValidationError as error:
        raise ValueError(format_validation_error(error, cls, sections)) from error


def load_preset(cls: type[BaseModel], preset: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the values in a preset without validating them.

    Args:
        cls: Class of the config.
        preset: Name of a preset in the `preset_group` of the class, or path of a YAML file.
    """
    return _load_config_file(_preset_path(cls, preset))


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Parse overrides of the form `key.sub=value` into nested dictionaries.

    If a key occurs several times, its last value is used.
    """
    values: dict[str, Any] = {}
    for override in overrides:
        values = _merge(values, _parse_override(override))
    return values


def suggest_key(
    cls: type[BaseModel],
    key: str,
    section: Section | None = None,
    prefix: str = "",
    sections: Mapping[str, Section] = types.MappingProxyType({}),
) -> str:
    """Return a hint about an unknown setting, such as `did you mean 'optimizer.learning_rate'?`.

    The hint names a similar key in the same section or, if there is none, a similar setting in any section.

    Args:
        cls: Class of the config.
        key: The unknown key, relative to `section`. If the unknown key is the name of a section, `key` also
            contains the name of a setting in it, as in "optimzer.learning_rate".
        section: Section that contains the key. None if the key is not in a section.
        prefix: Dotted name of the section with a final dot. Empty if the key is not in a section.
        sections: Result of `cls.section_types`.
    """
    fields = _fields(section or cls)
    names = [setting.name for setting in list_settings(cls, sections=sections)]
    last = key.rpartition(".")[2]
    candidates = (
        (last, {name: prefix + name for name in fields}),
        (last, {name.rpartition(".")[2]: name for name in reversed(names)}),
        (key.partition(".")[0], {name: prefix + name for name in fields}),
    )
    for given, choices in candidates:
        if close := difflib.get_close_matches(given, choices, 1):
            return f"did you mean '{choices[close[0]]}'?"
    return f"valid here: {', '.join(fields)}"


def list_presets(group: str) -> tuple[str, ...]:
    """Return the sorted names of the presets in a group. Raise `ValueError` if there is no such group."""
    folder = PRESET_FOLDER / group
    if not folder.is_dir():
        groups = sorted(path.name for path in PRESET_FOLDER.iterdir() if path.is_dir())
        raise ValueError(f"no presets for {group!r}; there are presets for {', '.join(groups)}")
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))


def to_yaml(config: BaseModel) -> str:
    """Format a config as YAML."""
    return dump_yaml(config.model_dump(mode="json"))


def save_config(config: BaseModel, path: str | os.PathLike[str]) -> None:
    """Write a config to a YAML file that `load_config` can read."""
    with atomic_write(path, "w") as file:
        file.write(to_yaml(config))


def list_settings(
    section: Section,
    prefix: str = "",
    values: BaseModel | None = None,
    sections: Mapping[str, Section] = types.MappingProxyType({}),
) -> Iterator[Setting]:
    """Iterate over all settings of a config in the order of its fields, including nested sections.

    Args:
        section: Class of the config.
        prefix: Text before the names of all settings, such as the name of a section with a final dot.
        values: Instance of the class whose values are the defaults. If None, the defaults of the class are
            used.
        sections: Result of `section_types` of the class.
    """
    for name, field in _fields(section).items():
        default = _default(field) if values is None else getattr(values, name)
        nested = sections.get(name, _section_class(field.annotation))
        if nested is None:
            yield Setting(prefix + name, _type_name(field.annotation), default, field.description or "")
        else:
            instance = default if isinstance(nested, type) and isinstance(default, nested) else None
            yield from list_settings(nested, f"{prefix}{name}.", instance)


def check_type(value: object, cls: type, name: str) -> None:
    """Raise `TypeError` if an argument is not an instance of `cls`.

    Args:
        value: Value of the argument.
        cls: Required class.
        name: Name of the argument, for the error message.
    """
    if not isinstance(value, cls):
        hint = f"; use {cls.__name__}(**{name})" if isinstance(value, Mapping) else ""
        raise TypeError(f"{name} must be a {cls.__name__}, got {value!r:.60} ({type(value).__name__}){hint}")


def save_model(model: BaseModel, path: str | os.PathLike[str]) -> None:
    """Write a Pydantic model to a JSON file with a checksum. The file is written atomically."""
    with atomic_write(path, "w", checksum=True) as file:
        write_json(file, model.model_dump(mode="json"), indent=2)


def load_model(
    cls: type[AnyModel], path: str | os.PathLike[str], what: str, hint: str = "write it again"
) -> AnyModel:
    """Read a Pydantic model from a file that `save_model` wrote.

    Args:
        cls: Class of the model.
        path: Path of the file.
        what: Expected content, such as `"a batch plan"`, for the error message "PATH is not a batch plan".
        hint: Advice in the error message if the file is corrupt.

    Raises:
        ValueError: If the file is corrupt or does not contain a valid model.
    """
    try:
        return cls.model_validate_json(json.dumps(read_verified_json(path, hint)))
    except ValidationError as error:
        raise ValueError(f"{path} is not {what}: {format_validation_error(error, cls)}") from error


def format_validation_error(
    error: ValidationError,
    cls: type[BaseModel] | None = None,
    sections: Mapping[str, Section] = types.MappingProxyType({}),
) -> str:
    """Format a Pydantic error with one line per problem.

    A line reads, for example, `dataset.max_grid_height must be between 1 and 30, got 40`.

    Args:
        error: The error.
        cls: Class of the model. If it is given, messages about a field with a lower and an upper bound
            contain both bounds.
        sections: Result of `cls.section_types`.
    """
    return "\n".join(_format_problem(detail, cls, sections) for detail in error.errors())


_TYPE_DESCRIPTIONS = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "string": "a string",
    "tuple": "a list",
    "list": "a list",
    "set": "a list",
    "dict": "settings as `key: value`",
    "model": "settings as `key: value`",
}


def _format_problem(detail: Any, cls: type[BaseModel] | None, sections: Mapping[str, Section]) -> str:
    name, field = _dotted_name(detail["loc"]), detail["loc"][-1] if detail["loc"] else ""
    kind, context, given = detail["type"], detail.get("ctx", {}), detail["input"]
    if kind == "json_invalid":
        return str(detail["msg"])
    if kind == "missing":
        return f"{name} is required"
    if kind == "value_error":
        # The message of a validator starts with the field's name, without the section's.
        text = str(context["error"])
        if text.startswith(str(field)):
            return f"{name}{text.removeprefix(str(field))}"
        return f"{name}: {text}" if name else text
    if kind in ("literal_error", "enum"):
        # Pydantic formats the choices as "'a', 'b' or 'c'".
        near = difflib.get_close_matches(str(given), re.findall("'([^']*)'", context["expected"]), 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"{name} must be {context['expected']}, got {given!r}{hint}"
    bounds = _range(detail["loc"], cls, sections) or _violated_bound(context)
    if bounds and kind.startswith(("greater_than", "less_than")):
        return f"{name} must be {bounds}, got {given!r}"
    if (
        kind.rpartition("_")[2] in ("parsing", "type", "float")
        and kind.partition("_")[0] in _TYPE_DESCRIPTIONS
    ):
        return f"{name} must be {_TYPE_DESCRIPTIONS[kind.partition('_')[0]]}, got {given!r}"
    return f"{name}: {detail['msg']}, got {given!r}"


def _dotted_name(location: tuple[int | str, ...]) -> str:
    """Join the parts of a location: `("action", "operations", 0)` becomes `action.operations[0]`."""
    name = ""
    for part in location:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name


def _range(location: tuple[int | str, ...], section: Section | None, sections: Mapping[str, Section]) -> str:
    """Describe the range of a field that has a lower and an upper bound.

    Return an empty string for other fields.
    """
    metadata: list[Any] = []
    for part in location:
        fields = {} if section is None else _fields(section)
        if part not in fields:
            return ""  # inside a list or a union
        field = fields[str(part)]
        metadata, section = field.metadata, sections.get(str(part), _section_class(field.annotation))
        sections = {}
    low = next((m.ge for m in metadata if isinstance(m, Ge)), None)
    high = next((m.le for m in metadata if isinstance(m, Le)), None)
    return "" if low is None or high is None else f"between {low} and {high}"


def _violated_bound(context: dict[str, Any]) -> str:
    phrases = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    return next((f"{phrases[key]} {value}" for key, value in context.items() if key in phrases), "")


def _default(field: FieldInfo) -> Any:
    return ... if field.is_required() else field.get_default(call_default_factory=True)


def _section_class(annotation: Any) -> type[BaseModel] | None:
    """Return the section class in the type annotation of a field, or None if the field is not a section."""
    choices = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    models = [c for c in choices if isinstance(c, type) and issubclass(c, BaseModel)]
    return models[0] if len(models) == 1 else None


def _type_name(annotation: Any) -> str:
    if annotation is None or annotation is type(None):
        return "None"
    if annotation is Ellipsis:
        return "..."
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(repr(argument) for argument in arguments)
    if origin is Annotated:
        return _type_name(arguments[0])
    if origin in (Union, types.UnionType):
        return " | ".join(_type_name(argument) for argument in arguments)
    if origin is not None:
        return f"{origin.__name__}[{', '.join(_type_name(argument) for argument in arguments)}]"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _fields(section: Section) -> Mapping[str, FieldInfo]:
    return section if isinstance(section, Mapping) else section.model_fields


def _section_types(cls: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Section]:
    return cls.section_types(values) if issubclass(cls, Config) else {}


def _section_defaults(cls: type[BaseModel], sections: Mapping[str, Section]) -> dict[str, Any]:
    """Return the default values of all sections except those in `sections`.

    They are needed because the default value of a section may differ from the defaults of the section's
    class. If a preset sets one key of the section, the other keys must keep the values of the section's
    default.
    """
    defaults = {name: _default(field) for name, field in cls.model_fields.items() if name not in sections}
    return {name: value.model_dump() for name, value in defaults.items() if isinstance(value, BaseModel)}


def _preset_path(cls: type[BaseModel], preset: str | os.PathLike[str]) -> Path:
    path = Path(preset)
    if not isinstance(preset, str) or path.suffix in (".yaml", ".yml") or path.name != preset:
        if not path.is_file():
            raise ValueError(f"there is no config file {path}")
        return path
    group = cls.preset_group if issubclass(cls, Config) else None
    if group is None:
        raise ValueError(
            f"{cls.__name__} has no named presets, so {preset!r} was not found; "
            "pass the path of a YAML file, or set preset_group"
        )
    names = list_presets(group)
    if preset not in names:
        close = difflib.get_close_matches(preset, names, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"
        raise ValueError(f"unknown preset {preset!r} for {group}; {hint}")
    return PRESET_FOLDER / group / f"{preset}.yaml"


def _load_config_file(path: Path) -> dict[str, Any]:
    values = read_yaml(path)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected settings as `key: value`, got {values!r}")
    return values


def _parse_override(override: str) -> dict[str, Any]:
    name, equals, text = override.partition("=")
    if not equals or not name.strip() or name != name.strip():
        raise ValueError(
            f"an override has the form key.sub=value, without spaces around the key; got {override!r}"
        )
    try:
        value = parse_yaml(text)
    except ValueError as error:
        raise ValueError(f"cannot read override {override!r}: {error}") from error
    for part in reversed(name.split(".")):
        value = {part: value}
    nested: dict[str, Any] = value
    return nested


def _expand_aliases(cls: type[BaseModel], values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace aliases with the settings that they stand for."""
    for alias, name in _inherited(cls, "aliases").items():
        if alias in values:
            nested: Any = values[alias]
            for part in reversed(name.split(".")):
                nested = {part: nested}
            values = _merge({key: value for key, value in values.items() if key != alias}, nested)
    return values


def _check_keys(
    cls: type[BaseModel], values: Mapping[Any, Any], sections: Mapping[str, Section], source: str
) -> None:
    """Raise `ValueError` if a key is unknown. The values themselves are validated later, by Pydantic.

    Args:
        cls: Class of the config.
        values: Nested values by name.
        sections: Result of `cls.section_types`.
        source: Prefix of error messages, such as the path of the file.
    """

    def check(section: Section, values: Mapping[Any, Any], prefix: str) -> None:
        for key, value in values.items():
            field = _fields(section).get(key)
            if field is None:
                path = next(_leaf_paths({key: value}))
                hint = suggest_key(cls, path, section, prefix, sections)
                raise ValueError(f"{source}unknown key '{prefix}{path}'; {hint}")
            nested = _section_class(field.annotation) if prefix else sections.get(key)
            nested = nested or _section_class(field.annotation)
            if nested is not None and isinstance(value, Mapping):
                check(nested, value, f"{prefix}{key}.")
            elif nested is None and isinstance(value, Mapping) and get_origin(field.annotation) is not dict:
                name = f"{prefix}{key}"
                inner = next(iter(value), "")
                raise ValueError(
                    f"{source}unknown key '{name}.{inner}'; '{name}' is a setting, not a section"
                )

    check(cls, values, "")


def _inherited(cls: type[BaseModel], attribute: str) -> dict[str, str]:
    """Merge a class attribute, such as `aliases`, of a class and its base classes."""
    values: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        values.update(vars(base).get(attribute, {}))
    return values


def _leaf_paths(values: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaf_paths(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _merge(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested mappings. Values in `new` take precedence over values in `old`."""
    result = dict(old)
    for key, value in new.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = _merge(result[key], value) if both else value
    return result
