"""Servers and OpenEnv's own client for tests: a server in a thread, and the client in a venv of its own.

`openenv` 0.10 cannot be installed beside verifiers 0.4 (it needs fastmcp below 4, so mcp below 2, and
verifiers mcp 2.0.0), nor with this project's pins (its gradio needs pillow below 13).
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
from phalanx.text.env_spec import TextFactory

CLIENT_PYTHON = Path(sys.prefix) / "openenv" / "bin" / "python"
"""Where the Makefile's `openenv` target installs OpenEnv."""


@contextlib.contextmanager
def running(factory: TextFactory, name: str = "test", **limits: Any) -> Iterator[OpenEnvServer]:
    """A server while the block runs; every session must be gone soon after its client is."""
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
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.02)


def play_by_openenv(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Episodes played by OpenEnv's own client, one after another; skips where it is not installed."""
    if not CLIENT_PYTHON.exists():
        pytest.skip(f"OpenEnv's client is not in {CLIENT_PYTHON.parents[1]}; `make openenv` installs it")
    script = Path(__file__).with_name("openenv_client.py")
    done = subprocess.run(
        # -P: the script's folder has a module named openenv too.
        [CLIENT_PYTHON, "-P", script],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
