"""Griffe extensions for the API reference.

Griffe adds the constructors of dataclasses. `FieldConstructors` adds those of Pydantic models, Equinox
modules, named tuples and environments. `DoctestBlocks` turns doctests into code blocks.
"""

import re
from collections.abc import Iterator
from typing import Any

import griffe

BASES = {"BaseModel", "Environment", "Module", "NamedTuple"}
"""Names of base classes that create a constructor."""
_FIELD_FUNCTIONS = ("Field", "array_field", "field", "host_field")

_DOCTEST = re.compile(r"(?:^>>> .*\n?)(?:^.*\S.*(?:\n|\Z))*", re.MULTILINE)


class DoctestBlocks(griffe.Extension):
    """Shows doctests in docstrings as code blocks."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Visit an object after it has been loaded."""
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            obj.docstring.value = _DOCTEST.sub(
                lambda match: f"```pycon\n{match.group().rstrip()}\n```\n", obj.docstring.value
            )


class FieldConstructors(griffe.Extension):
    """Adds `__init__` to classes that derive from one of `BASES` and do not define it."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Visit all classes of a package after it has been loaded."""
        classes = list(_classes(pkg))
        for cls in classes:
            _label_class_variables(cls)
        constructors = [(cls, function) for cls in classes if (function := _constructor(cls)) is not None]
        for cls, function in constructors:
            cls.set_member("__init__", function)


def _classes(parent: Any) -> Iterator[Any]:
    for member in parent.members.values():
        if not member.is_alias and (member.is_class or member.is_module):
            if member.is_class:
                yield member
            yield from _classes(member)


def _label_class_variables(cls: Any) -> None:
    """Mark attributes with the annotation `ClassVar`, which Griffe recognizes only if it has a parameter."""
    for member in cls.members.values():
        if isinstance(member, griffe.Attribute) and str(member.annotation) == "ClassVar":
            member.labels.discard("instance-attribute")


def _constructor(cls: Any) -> griffe.Function | None:
    classes = [cls, *cls.mro()]
    bases = {str(base).partition("[")[0].rpartition(".")[2] for each in classes for base in each.bases}
    if not bases & BASES or any("__init__" in each.members for each in classes):
        return None
    fields: dict[str, Any] = {}
    for each in reversed(classes):
        if each.name != "Environment":  # its attributes are not arguments
            fields.update({name: field for name, field in each.members.items() if _is_field(field)})
    is_model = "BaseModel" in bases
    kind = griffe.ParameterKind.keyword_only if is_model else griffe.ParameterKind.positional_or_keyword
    parameters = [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]
    parameters += [
        griffe.Parameter(name, annotation=field.annotation, kind=kind, default=_default(field))
        for name, field in fields.items()
    ]
    return griffe.Function("__init__", parameters=griffe.Parameters(*parameters))


def _default(field: Any) -> Any:
    """Return the default of a field, also if it is an argument of `Field` or `field`."""
    value = field.value
    if not isinstance(value, griffe.ExprCall):
        return value
    if str(value.function).rpartition(".")[2] not in _FIELD_FUNCTIONS:
        return value
    for argument in value.arguments:
        if isinstance(argument, griffe.ExprKeyword) and argument.name == "default":
            return argument.value
        if isinstance(argument, griffe.ExprKeyword) and argument.name == "default_factory":
            return f"{argument.value}()"
    positional = [argument for argument in value.arguments if not isinstance(argument, griffe.ExprKeyword)]
    return positional[0] if positional and str(positional[0]) != "..." else None


def _is_field(member: Any) -> bool:
    is_class_variable = "class-attribute" in member.labels and "instance-attribute" not in member.labels
    return (
        isinstance(member, griffe.Attribute)
        and member.annotation is not None
        and not member.name.startswith("_")
        and not is_class_variable
        and "property" not in member.labels
        and member.name != "model_config"
    )
