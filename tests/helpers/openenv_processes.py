"""OpenEnv servers in a thread, and OpenEnv's own client in its own virtual environment.

`openenv` 0.10 and verifiers 0.4 cannot be installed together: `openenv` needs fastmcp below 4 and therefore
mcp below 2, but verifiers needs mcp 2.0.0. Its gradio also needs pillow below 13, which conflicts with this
project's pins.
"""

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.integrations.openenv import OpenEnvServer, ServerLimits
from phalanx.text.names import TextFactory

CLIENT_PYTHON = Path(sys.prefix) / "openenv" / "bin" / "python"
"""Folder in which the Makefile's target `openenv` installs OpenEnv."""


@contextlib.contextmanager
def running(factory: TextFactory, name: str = "test", **limits: Any) -> Iterator[OpenEnvServer]:
    """Run a server. All sessions must be closed soon after their clients."""
    server = OpenEnvServer(factory, name=name, port=0, limits=ServerLimits(**limits))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
        wait_until(lambda: server.open_sessions == 0)
    finally:
        server.stop()
        thread.join(20)
    assert not thread.is_alive()


def wait_until(condition: Any, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition was not met in time"
        time.sleep(0.02)


def play_by_openenv(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run episodes with OpenEnv's own client; skip the test if it is not installed."""
    if not CLIENT_PYTHON.exists():
        pytest.skip(f"OpenEnv's client is not in {CLIENT_PYTHON.parents[1]}; `make openenv` installs it")
    script = Path(__file__).with_name("openenv_client.py")
    done = subprocess.run(
        # -P excludes the folder of the script from the module path, because it has modules for OpenEnv too.
        [CLIENT_PYTHON, "-P", script],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
