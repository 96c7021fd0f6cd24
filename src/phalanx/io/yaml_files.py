"""Functions that parse and format YAML, with limits for untrusted files.

Numbers are those of YAML 1.2: `1e-3` is a number, and `1:30` is text. There are no timestamps, merge keys or
duplicate keys. JSON values that `dump_yaml` formats are read back unchanged.
"""

import collections
import functools
import os
import re
from typing import Any

from phalanx.io.untrusted import read_limited

MAX_DEPTH = 32
"""Maximum nesting depth of a YAML file."""

_TAG = "tag:yaml.org,2002:"
_NUMBERS = {
    "int": r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+|0o[0-7]+",
    "float": r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
}


# PyYAML is imported on first use, because importing it takes 20 ms.
@functools.cache
def _loader_and_dumper() -> tuple[Any, Any]:
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            mapping: dict[Any, Any] = super().construct_mapping(node, deep)
            if len(mapping) < len(node.value):
                keys = collections.Counter(self.construct_object(key) for key, _ in node.value)
                [(key, _)] = keys.most_common(1)
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} occurs twice", node.start_mark
                )
            return mapping

    class Dumper(yaml.SafeDumper):
        def analyze_scalar(self, scalar: str) -> Any:
            found = super().analyze_scalar(scalar)
            # PyYAML reads these line breaks as spaces unless they are escaped in double quotes.
            if not {"\x85", "\u2028", "\u2029"}.isdisjoint(scalar):
                found.allow_flow_plain = found.allow_block_plain = False
                found.allow_single_quoted = found.allow_block = False
            return found

    replaced = {_TAG + name for name in (*_NUMBERS, "timestamp", "value", "merge")}
    for cls in (Loader, Dumper):
        cls.yaml_implicit_resolvers = {
            first: [(tag, pattern) for tag, pattern in resolvers if tag not in replaced]
            for first, resolvers in cls.yaml_implicit_resolvers.items()
        }
        for name, pattern in _NUMBERS.items():
            cls.add_implicit_resolver(_TAG + name, re.compile(f"^(?:{pattern})$"), list("-+0123456789."))
    return Loader, Dumper


def parse_yaml(text: str) -> Any:
    """Parse YAML. If it is invalid, raise `ValueError`."""
    import yaml

    try:
        return yaml.load(text, Loader=_loader_and_dumper()[0])
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())[:200]) from error


def dump_yaml(value: Any) -> str:
    """Format JSON values as YAML. Keys keep their order."""
    import yaml

    text: str = yaml.dump(value, Dumper=_loader_and_dumper()[1], sort_keys=False, allow_unicode=True)
    return text


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """Parse a YAML file.

    Raises `ValueError` if the file is invalid, has more than `MAX_BYTES` bytes or `MAX_DEPTH` levels of
    nesting, or if it has anchors or tags. Without anchors, a small file cannot expand to a large value.
    """
    text = _read_text(path)
    try:
        return parse_yaml(text)
    except ValueError as error:
        raise ValueError(f"{path} could not be read: {error}") from error


def _read_text(path: str | os.PathLike[str]) -> str:
    import yaml

    depth = 0
    try:
        text = read_limited(path).decode()
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            kind = type(token).__name__
            if kind in ("AliasToken", "AnchorToken", "TagToken"):
                raise ValueError("it uses anchors or tags, which are not allowed in settings")
            depth += kind.endswith(("SequenceStartToken", "MappingStartToken"))
            depth -= kind.endswith(("SequenceEndToken", "MappingEndToken", "BlockEndToken"))
            if depth > MAX_DEPTH:
                raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path} could not be read: {' '.join(str(error).split())[:200]}") from error
    return text
