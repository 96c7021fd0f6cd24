"""Errors for missing libraries that belong to an extra, such as `phalanx[jax]`."""

import contextlib
import importlib.util
from collections.abc import Iterator

JAX_PACKAGES = ("jax", "equinox", "optax", "orbax")
"""Import names of the libraries in the `jax` extra."""


class MissingExtraError(ModuleNotFoundError):
    """Raised if a library is not installed. The one-line message contains the install command."""

    def __init__(self, user: str, library: str, extra: str, name: str | None = None) -> None:
        """Create the error.

        Args:
            user: Name of the module or feature that needs the library.
            library: Name of the library for the message.
            extra: Name of the extra that installs the library.
            name: Import name of the library, if it differs from `library`.
        """
        super().__init__(f"{user} needs {library}: pip install 'phalanx[{extra}]'", name=name or library)


@contextlib.contextmanager
def require_extra(user: str, extra: str, *packages: str) -> Iterator[None]:
    """Raise `MissingExtraError` if an import in the `with` block fails because a library is not installed.

    Args:
        user: Name of the module or feature that needs the libraries. The error message starts with this name.
        extra: Name of the extra that installs the libraries.
        packages: Import names of the libraries. Errors about other modules are raised unchanged.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if isinstance(error, MissingExtraError) or package not in packages:
            raise
        raise MissingExtraError(user, package, extra) from error


def require_jax(module: str) -> None:
    """Raise `MissingExtraError` if a library in the `jax` extra is not installed. No library is imported.

    Args:
        module: Name of the module that needs JAX, for the error message.
    """
    for package in JAX_PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(module, "JAX", "jax", name=package)
