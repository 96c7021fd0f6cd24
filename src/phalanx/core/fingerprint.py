"""Equality and hashing by content digest."""

import abc
import functools


class Fingerprinted(abc.ABC):
    """Compares and hashes by type and fingerprint, so that subclasses can be static under `jit`."""

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Digest of the content."""

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Fingerprinted)
            and type(self) is type(other)
            and self.fingerprint == other.fingerprint
        )

    @functools.cached_property
    def _hash(self) -> int:
        return hash(self.fingerprint)

    def __hash__(self) -> int:
        return self._hash
