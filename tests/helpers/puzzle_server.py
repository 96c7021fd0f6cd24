"""The real puzzle server, for tests that are skipped if it is not installed."""

import contextlib
from collections.abc import Iterator

import pytest
from arcade_server import MISSING, RealServer, installed_server, server_python


@contextlib.contextmanager
def running_server(package: str | None = None, port: int = 0) -> Iterator[RealServer]:
    """Run a server of a package (any if None); skip the test if there is none."""
    chosen = package or installed_server()
    if chosen is None or server_python(chosen) is None:
        pytest.skip(f"{MISSING} (wanted: {package or 'any'})")
    server = RealServer(chosen, port)
    server.start()
    try:
        yield server
    finally:
        server.kill()
