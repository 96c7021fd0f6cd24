"""What large immutable things are equal by: a digest of their content, computed once.

The digests themselves are made where the things are: task buffers, programs, query sets.
"""

import abc
import functools


class ByFingerprint(abc.ABC):
    """Equal, and of the same hash, where type and fingerprint are: so it may be static under `jit`."""

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """A digest of the content."""

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, ByFingerprint)
            and type(self) is type(other)
            and self.fingerprint == other.fingerprint
        )

    @functools.cached_property
    def _hash(self) -> int:
        return hash(self.fingerprint)

    def __hash__(self) -> int:
        return self._hash
