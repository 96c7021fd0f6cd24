"""Integrations with other libraries, one module per library."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def report_missing_library(module: str, extra: str, *libraries: str) -> Iterator[None]:
    """Run a block of imports. If a library is not installed, name the command that installs it in the error.

    Args:
        module: Name of the module that needs the libraries.
        extra: Extra of the package that installs them, as in `pip install "phalanx[extra]"`.
        libraries: Names of the libraries. Errors about other missing modules are not changed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in libraries:
            raise
        message = f'{module} needs {error.name}: pip install "phalanx[{extra}]"'
        raise ModuleNotFoundError(message, name=error.name) from error
