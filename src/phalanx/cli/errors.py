"""How the command line tells a user's mistake from a fault of the program.

A mistake is one line on stderr and exit code 2; a fault keeps its traceback.
"""

import contextlib
from collections.abc import Iterator


class UserError(Exception):
    """Something the user can put right; its text is the line that is shown."""


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Turns the refusals of settings, files and data inside the block into a `UserError`.

    Put it around what reads the user's input, and not around the work itself: a ValueError in there is
    a fault that must show where it came from.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        raise UserError(_one_line(error)) from error


def _one_line(error: ValueError | OSError) -> str:
    # Pydantic's ValidationError prints a paragraph for each field; `errors()` has the parts.
    details = getattr(error, "errors", None)
    if callable(details):
        return "; ".join(
            f"{'.'.join(str(part) for part in detail['loc'])}: {detail['msg'].removeprefix('Value error, ')}"
            for detail in details()
        )
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())
