# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .files import (
    CorruptFileError as CorruptFileError,
    atomic_directory as atomic_directory,
    atomic_write as atomic_write,
)
