"""Base class for objects that are compared and hashed by a digest of their content."""

import dataclasses
import functools
import hashlib
from typing import Any

import numpy as np


class Fingerprinted:
    """Base class for objects that are equal if they have the same type and fingerprint.

    Instances can be static arguments of `jit`: equal instances share one compiled program. Subclasses are
    frozen dataclasses with `eq=False`. Arrays in their fields become read-only, because the fingerprint is
    cached.
    """

    def __post_init__(self) -> None:
        for array in self._arrays():
            array.setflags(write=False)

    def _arrays(self) -> list[np.ndarray]:
        fields: Any = dataclasses.fields(self)  # type: ignore[arg-type]
        values = (getattr(self, field.name) for field in fields)
        return [value for value in values if isinstance(value, np.ndarray)]

    @functools.cached_property
    def fingerprint(self) -> str:
        """Digest of the object's content. By default, it covers only the fields that are NumPy arrays."""
        return hashlib.sha256(b"".join(array.tobytes() for array in self._arrays())).hexdigest()

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Fingerprinted)
            and type(self) is type(other)
            and self.fingerprint == other.fingerprint
        )

    def __hash__(self) -> int:
        return hash(self.fingerprint)
