"""Error messages and the exit code for invalid input."""

import contextlib
import sys
from collections.abc import Iterator

import typer

from phalanx.extras import MissingExtraError
from phalanx.formatting import escape_untrusted


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


@contextlib.contextmanager
def exit_on_user_error() -> Iterator[None]:
    """If the `with` block raises `UserError` or `MissingExtraError`, print one line and exit with code 2."""
    try:
        yield
    except (UserError, MissingExtraError) as error:
        typer.echo(f"phalanx: {escape_untrusted(error)}", err=True)
        sys.exit(2)


def _format_error(error: ValueError | OSError) -> str:
    from pydantic import ValidationError

    from phalanx.config import format_validation_error

    if isinstance(error, ValidationError):
        return "; ".join(format_validation_error(error).splitlines())
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())
