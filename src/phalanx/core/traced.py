"""Environments with arrays of their own, which are arguments of compiled programs and not parts of them.

What every environment has is in `environment`; which arrays there are is each domain's own matter.
"""

import dataclasses
import functools
from typing import Any, ClassVar, TypeVar

import jax
import numpy as np

from phalanx.core.environment import Action, Environment, Observation, State

Made = TypeVar("Made", bound="TracedEnvironment")


class TracedEnvironment(Environment[State, Observation, Action]):
    """A frozen dataclass, `eq=False`, some of whose fields hold arrays: tasks, weights, numbers of a reward.

    As an argument of a compiled function it brings these arrays along, so that one compilation serves all
    environments whose arrays have the same shapes. In a closure or as a static argument, for which it is
    hashed by content, they are constants.
    """

    traced_fields: ClassVar[tuple[str, ...]]
    """Fields that are arrays or pytrees of them."""
    named_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that tell the names of what arrays hold; None inside a program that is given the environment."""

    @classmethod
    def _register(cls) -> None:
        jax.tree_util.register_pytree_node_class(cls)

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]:
        """Arrays as children, settings beside them; names stay behind, or new ones would compile anew."""
        settings = tuple((name, getattr(self, name)) for name in _settings(type(self)))
        return tuple(getattr(self, name) for name in self.traced_fields), settings

    @classmethod
    def tree_unflatten(
        cls: type[Made], settings: tuple[tuple[str, Any], ...], children: tuple[Any, ...]
    ) -> Made:
        """The environment again, without its names."""
        made = object.__new__(cls)
        arrays = zip(cls.traced_fields, children, strict=True)
        for name, value in (*settings, *arrays, *((name, None) for name in cls.named_fields)):
            object.__setattr__(made, name, value)
        return made

    @functools.cached_property
    def _identity(self) -> tuple[Any, ...]:
        leaves, structure = jax.tree.flatten(self)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            raise TypeError(
                f"a {type(self).__name__} with traced arrays has no hash: pass it to compiled functions as "
                "an argument, not as a static one"
            )
        return structure, *((np.shape(leaf), np.asarray(leaf).tobytes()) for leaf in leaves)

    @functools.cached_property
    def _hash(self) -> int:
        return hash(self._identity)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, TracedEnvironment)
            and hash(self) == hash(other)
            and self._identity == other._identity
            and all(getattr(self, name) == getattr(other, name) for name in self.named_fields)
        )


@functools.cache
def _settings(cls: type[Any]) -> tuple[str, ...]:
    """The fields that are neither arrays nor names; asked for at every call of a compiled function."""
    aside = {*cls.traced_fields, *cls.named_fields}
    return tuple(field.name for field in dataclasses.fields(cls) if field.name not in aside)
