"""YAML is read and written like YAML 1.2: numbers, text and keys."""

import json
import math

import pytest
from hypothesis import example, given, strategies as st

from phalanx.config import PRESET_FOLDER
from phalanx.io.yaml_files import dump_yaml, parse_yaml, read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 100000.0),
        ("-.5", -0.5),
        ("1_000", 1000),
        (".inf", math.inf),
        ("2026-01-31", "2026-01-31"),
        ("2026-01-31 10:20:30", "2026-01-31 10:20:30"),
        ("1:30", "1:30"),
        ("0x1F", 31),
        ("0o17", 15),
        ("017", "017"),
        ("=", "="),
        ("<<", "<<"),
        ("1e", "1e"),
        ("1.2.3", "1.2.3"),
        ("", None),
        ("null", None),
        ("yes", True),
        ("${lr}", "${lr}"),
        ("a ${oc.env:HOME} b", "a ${oc.env:HOME} b"),
    ],
)
def test_a_scalar_has_one_value(text: str, value: object) -> None:
    assert parse_yaml(text) == value
    assert type(parse_yaml(text)) is type(value)


@pytest.mark.parametrize("text", ["a: 1\na: 2\n", "b: {a: 1, 'a': 1}", "1: a\n1: b"])
def test_a_key_that_occurs_twice_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"the key ('a'|1) occurs twice"):
        parse_yaml(text)


@pytest.mark.parametrize("text", ["? [1, 2]\n: a", "{{a: 1}: 2}"])
def test_a_key_that_is_not_a_scalar_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="unhashable key"):
        parse_yaml(text)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8")),
    st.from_regex(r"[-+]?[0-9_.:]{0,6}([eE][-+]?[0-9]*)?", fullmatch=True),
    st.sampled_from(["yes", "Off", "null", "~", "", "<<", "=", "0x1F", "017", "0o17", "0b1", "12:30:45"]),
)


@given(
    st.recursive(
        SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
    )
)
@example("1e-3")
@example("2026-01-31")
@example(" ${x} \\ a: b #")
@example("1e5")
@example(1e16)
@example({"x": "\x85\u2028\ufeff"})
@example({"\x85": "a\u2028b"})
def test_json_values_survive_writing_and_reading(value: object) -> None:
    again = parse_yaml(dump_yaml(value))
    assert json.dumps(again) == json.dumps(value)


@pytest.mark.parametrize(
    "path", sorted(PRESET_FOLDER.rglob("*.yaml")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_presets_survive_writing_and_reading(path) -> None:
    values = read_yaml(path)
    assert isinstance(values, dict)
    assert parse_yaml(dump_yaml(values)) == values
