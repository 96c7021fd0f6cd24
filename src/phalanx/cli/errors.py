"""Error messages and the exit code for invalid input."""

import contextlib
from collections.abc import Iterator


class UserError(Exception):
    """Raised for invalid input. The message is printed on one line, and the command exits with code 2."""


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Convert `ValueError` and `OSError` in the `with` block to `UserError`.

    Use this context manager only around code that processes the user's input or writes files. Anywhere else,
    a `ValueError` is a bug that needs a traceback.
    """
    try:
        yield
    except BrokenPipeError:
        raise  # Typer exits silently when the reader of the output is gone, as in `phalanx ... | head`.
    except (ValueError, OSError) as error:
        raise UserError(_format_error(error)) from error


def _format_error(error: ValueError | OSError) -> str:
    from pydantic import ValidationError

    from phalanx.config import format_validation_error

    if isinstance(error, ValidationError):
        return "; ".join(format_validation_error(error).splitlines())
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())
