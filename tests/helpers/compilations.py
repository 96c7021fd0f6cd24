"""The names of the programs that XLA compiles in a block."""

import contextlib
import re
from collections.abc import Iterator

import jax
import pytest


@contextlib.contextmanager
def compiled_programs(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Yield a list to which the names of the compiled functions are added at the end of the block."""
    names: list[str] = []
    caplog.clear()
    with jax.log_compiles():
        yield names
    found = (re.match(r"Finished XLA compilation of jit\((.*)\) in", message) for message in caplog.messages)
    names += [match[1] for match in found if match]
