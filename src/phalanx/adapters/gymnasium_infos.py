"""Infos as Gymnasium's vector environments give them: arrays by name, and whose values they are at `_name`.

What environments tell is theirs to say.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool

_FLAGS = ("terminated", "truncated", "episode_done")
"""Fields of an environment's info that `step` returns by themselves."""


def fields_of(info: Any) -> dict[str, np.ndarray]:
    names = (field.name for field in dataclasses.fields(info) if field.name not in _FLAGS)
    values = ((name, getattr(info, name)) for name in names)
    return {name: np.array(value) for name, value in values if isinstance(value, jax.Array)}


def told_of(fields: Mapping[str, np.ndarray | None], where: Bool[np.ndarray, " batch"]) -> dict[str, Any]:
    """The infos of some environments in Gymnasium's form: zeros elsewhere, and whose they are at `_name`."""
    if not where.any():
        return {}
    infos: dict[str, Any] = {}
    others = None if where.all() else ~where
    for name, array in fields.items():
        if array is not None:
            infos[name], infos[f"_{name}"] = array.copy(), where.copy()
            if others is not None:
                infos[name][others] = 0
    return infos


def info_of_one(infos: Mapping[str, Any]) -> dict[str, Any]:
    one = {name: values[0] for name, values in infos.items() if not name.startswith("_")}
    return {name: value if value.ndim else value.item() for name, value in one.items()}
