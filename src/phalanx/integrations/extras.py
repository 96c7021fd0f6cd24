"""Error messages about optional libraries that are not installed."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def require_extra(module: str, extra: str, *packages: str) -> Iterator[None]:
    """Add the install command to the error if an import in the block fails because a library is missing.

    Args:
        module: Name of the Phalanx module that needs the libraries.
        extra: Name of the extra that installs the libraries, as in `pip install "phalanx[serve]"`.
        packages: Import names of the libraries. Errors about other modules are raised unchanged.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in packages:
            raise
        message = f'{module} needs {error.name}: pip install "phalanx[{extra}]"'
        raise ModuleNotFoundError(message, name=error.name) from error
