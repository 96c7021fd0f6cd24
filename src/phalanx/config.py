"""Configs: settings that pass through `jit`, from presets and from overrides of a command line.

Which settings there are is told by each domain's own config.
"""

import difflib
import functools
import os
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from phalanx.io.files import atomic_write
from phalanx.io.untrusted import read_text
from phalanx.models import FrozenModel, format_validation_error

_waiting_configs: list[type] = []
"""Classes that JAX has not been told of, because nothing had imported it."""


def register_waiting_configs() -> None:
    """Make every config class so far static under `jax.jit`; `phalanx.core.environment` does it at import."""
    import jax

    while _waiting_configs:
        jax.tree_util.register_static(_waiting_configs.pop())


class Config(FrozenModel):
    """A frozen model that is hashable and passes through `jax.jit` as a static value."""

    removed_settings: ClassVar[Mapping[str, str]] = {}
    """Settings that older files may still have, and what became of each."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        _waiting_configs.append(cls)
        if "jax" in sys.modules:
            register_waiting_configs()

    @functools.cached_property
    def _digest(self) -> int:
        return hash((type(self), *(getattr(self, name) for name in type(self).model_fields)))

    def __hash__(self) -> int:
        # Asked for at every jitted call with a config, so it is computed once.
        return self._digest

    def model_copy(self, **kwargs: Any) -> Any:
        """A copy, with some fields changed by `update={...}`; it does not inherit the remembered hash."""
        copied = super().model_copy(**kwargs)
        copied.__dict__.pop("_digest", None)
        return copied


AnyConfig = TypeVar("AnyConfig", bound=BaseModel)


PRESET_FOLDER = Path(__file__).parent / "presets"
"""Where named presets live: one folder for each group, one YAML file for each preset."""


class Setting(NamedTuple):
    """One setting, as a reference page shows it."""

    name: str
    """Dotted, as an override names it."""
    type: str
    default: Any
    """`...` where a value is required."""
    text: str
    """The field's docstring."""


def load_config(
    cls: type[AnyConfig],
    preset: str | os.PathLike[str] | None = None,
    overrides: Sequence[str] = (),
    base: AnyConfig | None = None,
    *,
    group: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> AnyConfig:
    """A config: the defaults (or `base`), a preset, settings, then `key.sub=value` overrides in their order.

    A preset is a name in the class's group (`ArcConfig` reads `presets/arc/<name>.yaml`) or the path of a
    YAML file. `settings` are Python values by name; a section given as a mapping changes only the keys it
    lists. Override values are YAML. An unknown key or an invalid value raises `ValueError` with the dotted
    name.
    """
    values = _nested_defaults(cls) if base is None else base.model_dump()
    if preset is not None:
        path = _preset_path(cls, preset, group)
        values = _merged(values, _checked(cls, _read_yaml(path), f"{path}: "))
    if settings:
        values = _merged(values, _checked(cls, settings, ""))
    for override in overrides:
        values = _merged(values, _checked(cls, _parse_override(override), f"override {override!r}: "))
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        raise ValueError(format_validation_error(error, cls)) from error


def list_presets(group: str) -> tuple[str, ...]:
    """The names of a group's presets, sorted."""
    folder = PRESET_FOLDER / group
    if not folder.is_dir():
        groups = sorted(path.name for path in PRESET_FOLDER.iterdir() if path.is_dir())
        raise ValueError(f"no presets for {group!r}; there are presets for {', '.join(groups)}")
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))


def to_yaml(config: BaseModel, *, changed_only: bool = False) -> str:
    """The config as YAML; with `changed_only` as a preset, which lists what differs from the defaults."""
    from omegaconf import OmegaConf

    values = config.model_dump(mode="json")
    if changed_only:
        values = _difference(values, type(config).model_construct().model_dump(mode="json"))
    return OmegaConf.to_yaml(OmegaConf.create(_escaped(values))) if values else "{}\n"


def save_config(
    config: BaseModel, path: str | os.PathLike[str], *, changed_only: bool = False, group: str | None = None
) -> None:
    """Write a config to a YAML file that `load_config` reads back; `group` adds Hydra's package header."""
    header = f"# @package {group}\n" if group else ""
    with atomic_write(path, "w") as file:
        file.write(header + to_yaml(config, changed_only=changed_only))


def list_settings(cls: type[BaseModel]) -> Iterator[Setting]:
    """Every setting of a config class, sections walked through, in order: for generated reference pages."""
    for path, section, name, default in _settings(cls):
        field = section.model_fields[name]
        yield Setting(path, _type_name(field.annotation), default, field.description or "")


def _settings(
    cls: type[BaseModel], prefix: str = "", values: BaseModel | None = None
) -> Iterator[tuple[str, type[BaseModel], str, Any]]:
    """(dotted name, the section's class, the field's name, its default) of every setting but sections."""
    for name, field in cls.model_fields.items():
        default = _default(field) if values is None else getattr(values, name)
        section = _section(field.annotation)
        if section is None:
            yield prefix + name, cls, name, default
        else:
            nested = default if isinstance(default, section) else None
            yield from _settings(section, f"{prefix}{name}.", nested)


def _default(field: FieldInfo) -> Any:
    """A field's default; `...` where there is none, as Pydantic writes it."""
    return ... if field.is_required() else field.get_default(call_default_factory=True)


def _section(annotation: Any) -> type[BaseModel] | None:
    """The model of a field that is a section (optional or not), or None for a plain setting."""
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
    if origin in (Union, types.UnionType):
        return " | ".join(_type_name(argument) for argument in arguments)
    if origin is not None:
        return f"{origin.__name__}[{', '.join(_type_name(argument) for argument in arguments)}]"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _nested_defaults(cls: type[BaseModel]) -> dict[str, Any]:
    """A section's default may differ from its class's; a preset that names one setting keeps the rest."""
    defaults = {name: _default(field) for name, field in cls.model_fields.items()}
    return {name: value.model_dump() for name, value in defaults.items() if isinstance(value, BaseModel)}


def _preset_path(cls: type[BaseModel], preset: str | os.PathLike[str], group: str | None) -> Path:
    path = Path(preset)
    if not isinstance(preset, str) or path.suffix in (".yaml", ".yml") or path.name != preset:
        if not path.is_file():
            raise ValueError(f"there is no config file {path}")
        return path
    package, *rooms = cls.__module__.split(".")
    if group is None and (package != "phalanx" or not rooms):
        raise ValueError(
            f"{cls.__name__} is not one of Phalanx's own configs, so it has no preset {preset!r}; "
            f"pass the path of a YAML file, or a group"
        )
    group = group or rooms[0]
    names = list_presets(group)
    if preset not in names:
        close = difflib.get_close_matches(preset, names, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"
        raise ValueError(f"unknown preset {preset!r} for {group}; {hint}")
    return PRESET_FOLDER / group / f"{preset}.yaml"


def _read_yaml(path: Path) -> Any:
    from omegaconf import OmegaConf

    # The file may be a stranger's: what it refers to, the environment's secrets among it, is not looked up.
    text = read_text(path)
    try:
        values = OmegaConf.create(text)
        if not OmegaConf.is_dict(values):
            return OmegaConf.to_container(values)
        if (place := _reference(OmegaConf.to_container(values))) is not None:
            raise ValueError(
                f"{path}: {place} refers to something else by ${{...}}, which settings in a file may not; "
                "write the value itself, or \\${ for the letters"
            )
        return OmegaConf.to_container(values, resolve=True)
    except _yaml_errors() as error:
        raise ValueError(f"{path} is not a readable YAML config: {error}") from error


def _reference(value: Any, place: str = "") -> str | None:
    """The name of the first setting that is, or has within it, a reference of OmegaConf's."""
    if isinstance(value, str):
        return place if re.search(r"(?<!\\)(?:\\\\)*\$\{", value) else None
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = (_reference(item, f"{place}.{name}" if place else str(name)) for name, item in items)
    return next((name for name in found if name is not None), None)


def _yaml_errors() -> tuple[type[Exception], ...]:
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError  # type: ignore[import-untyped, unused-ignore]

    return YAMLError, OmegaConfBaseException, UnicodeDecodeError


def _parse_override(override: str) -> Any:
    from omegaconf import OmegaConf

    name, equals, _ = override.partition("=")
    if not equals or not name.strip() or name != name.strip():
        raise ValueError(f"an override reads key.sub=value (no spaces around the key), got {override!r}")
    try:
        return OmegaConf.to_container(OmegaConf.from_dotlist([override]), resolve=True)
    except _yaml_errors() as error:
        raise ValueError(f"cannot read override {override!r}: {error}") from error


def _checked(cls: type[BaseModel], values: Any, source: str) -> dict[str, Any]:
    """The values, once every key in them is known; values themselves are for Pydantic to judge."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{source}expected settings as `key: value`, got {values!r}")
    _check_keys(cls, cls, values, "", source)
    return dict(values)


def _check_keys(
    root: type[BaseModel], cls: type[BaseModel], values: Mapping[Any, Any], prefix: str, source: str
) -> None:
    for key, value in values.items():
        field = cls.model_fields.get(key)
        removed = cls.removed_settings if issubclass(cls, Config) else {}
        if key in removed:
            raise ValueError(f"{source}{prefix}{key} {removed[key]}")
        if field is None:
            raise ValueError(f"{source}unknown key '{prefix}{key}'; {_nearest(root, cls, prefix, str(key))}")
        section = _section(field.annotation)
        if section is not None and isinstance(value, Mapping):
            _check_keys(root, section, value, f"{prefix}{key}.", source)
        elif section is None and isinstance(value, Mapping) and get_origin(field.annotation) is not dict:
            inner = next(iter(value), "")
            raise ValueError(
                f"{source}unknown key '{prefix}{key}.{inner}'; '{prefix}{key}' is a setting, not a section"
            )


def _nearest(root: type[BaseModel], cls: type[BaseModel], prefix: str, key: str) -> str:
    """The valid name that was probably meant: a sibling, else a setting of that name in another section."""
    close = difflib.get_close_matches(key, cls.model_fields, 1)
    if close:
        return f"did you mean '{prefix}{close[0]}'?"
    names = [path for path, *_ in _settings(root)]
    last = {path.rpartition(".")[2]: path for path in reversed(names)}
    close = difflib.get_close_matches(key, last, 1)
    if close:
        return f"did you mean '{last[close[0]]}'?"
    close = difflib.get_close_matches(prefix + key, names, 1)
    return f"did you mean '{close[0]}'?" if close else f"valid here: {', '.join(cls.model_fields)}"


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Sections merge, settings replace."""
    result = dict(old)
    for key, value in new.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = _merged(result[key], value) if both else value
    return result


def _difference(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    result = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and isinstance(defaults.get(key), Mapping):
            if nested := _difference(value, defaults[key]):
                result[key] = nested
        elif key not in defaults or value != defaults[key]:
            result[key] = value
    return result


def _escaped(value: Any) -> Any:
    """OmegaConf would read `${` in a string as a reference."""
    if isinstance(value, str):
        return value.replace("${", "\\${")
    if isinstance(value, Mapping):
        return {key: _escaped(item) for key, item in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, list) else value
