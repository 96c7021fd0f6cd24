"""Pydantic models that are never changed, as JSON files, and what is wrong with them in words.

Settings that come from presets and command lines, and that JAX sees, are in `config`.
"""

import difflib
import json
import os
from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from annotated_types import Ge, Le
from pydantic import BaseModel, ConfigDict, ValidationError

from phalanx.io.files import atomic_write, read_verified_json, write_json

_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "tuple": "a list",
    "list": "a list",
    "set": "a list",
    "dict": "settings as `key: value`",
    "model": "settings as `key: value`",
}

AnyModel = TypeVar("AnyModel", bound=BaseModel)


class FrozenModel(BaseModel):
    """A Pydantic model that cannot be changed, refuses unknown fields and is described by docstrings.

    It needs no JAX. Settings that compiled functions see are a `Config`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def check_type(value: object, cls: type, name: str) -> None:
    """Raise `TypeError` in words where an argument is not of its class."""
    if not isinstance(value, cls):
        how = f"; use {cls.__name__}(**{name})" if isinstance(value, Mapping) else ""
        raise TypeError(f"{name} must be a {cls.__name__}, got {value!r:.60} ({type(value).__name__}){how}")


def save_model(model: BaseModel, path: str | os.PathLike[str]) -> None:
    """Write a model as a sealed JSON file that `load_model` reads back, whole or not at all."""
    with atomic_write(path, "w", sealed=True) as file:
        write_json(file, model.model_dump(mode="json"), indent=2)


def load_model(
    cls: type[AnyModel], path: str | os.PathLike[str], what: str, remedy: str = "write it again"
) -> AnyModel:
    """Read a model that `save_model` wrote; what is wrong is told in words: `PATH is not WHAT: ...`."""
    try:
        return cls.model_validate_json(json.dumps(read_verified_json(path, remedy)))
    except ValidationError as error:
        raise ValueError(f"{path} is not {what}: {format_validation_error(error, cls)}") from error


def format_validation_error(error: ValidationError, cls: type[BaseModel]) -> str:
    """Every complaint on its own line: `dataset.max_grid_height must be between 1 and 30, got 40`."""
    return "\n".join(_sentence(detail, cls) for detail in error.errors())


def _sentence(detail: Any, cls: type[BaseModel]) -> str:
    name, field = _dotted(detail["loc"]), detail["loc"][-1] if detail["loc"] else ""
    kind, context, given = detail["type"], detail.get("ctx", {}), detail["input"]
    if kind == "json_invalid":
        return str(detail["msg"])
    if kind == "missing":
        return f"{name} is required"
    if kind == "value_error":
        # A validator's own sentence; it knows its field's name but not its section's.
        text = str(context["error"])
        return f"{name}{text.removeprefix(str(field))}" if text.startswith(str(field)) else f"{name}: {text}"
    if kind == "literal_error":
        return f"{name} must be {context['expected']}, got {given!r}{_meant(given, detail, cls)}"
    bounds = _bounds(detail["loc"], cls) or _broken_bound(kind, context)
    if bounds and kind.startswith(("greater_than", "less_than")):
        return f"{name} must be {bounds}, got {given!r}"
    if kind.rpartition("_")[2] in ("parsing", "type", "float") and kind.partition("_")[0] in _KINDS:
        return f"{name} must be {_KINDS[kind.partition('_')[0]]}, got {given!r}"
    return f"{name}: {detail['msg']}, got {given!r}"


def _dotted(location: tuple[int | str, ...]) -> str:
    """`("action", "allowed_operations", 0)` reads `action.allowed_operations[0]`."""
    name = ""
    for part in location:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name


def _bounds(location: tuple[int | str, ...], cls: type[BaseModel]) -> str:
    """Both ends of a closed range, where a field has both."""
    field = _field(location, cls)
    low = next((m.ge for m in field.metadata if isinstance(m, Ge)), None) if field else None
    high = next((m.le for m in field.metadata if isinstance(m, Le)), None) if field else None
    return "" if low is None or high is None else f"between {low} and {high}"


def _broken_bound(kind: str, context: dict[str, Any]) -> str:
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    return next((f"{words[key]} {value}" for key, value in context.items() if key in words), "")


def _meant(given: Any, detail: Any, cls: type[BaseModel]) -> str:
    field = _field(detail["loc"], cls)
    choices = [c for c in get_args(field.annotation) if isinstance(c, str)] if field else []
    close = difflib.get_close_matches(str(given), choices, 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _field(location: tuple[int | str, ...], cls: type[BaseModel]) -> Any:
    """The field at a location, or None where it lies inside a list or a union."""
    field = None
    for part in location:
        if not (isinstance(cls, type) and issubclass(cls, BaseModel)) or part not in cls.model_fields:
            return None
        field = cls.model_fields[str(part)]
        cls = field.annotation  # type: ignore[assignment]
    return field
