"""A real puzzle server from PyPI, started on a free port of this machine.

Benchmarks use this module, too, so it imports pytest only when a test is skipped.
"""

import contextlib
import dataclasses
import functools
import os
import pathlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator

HANDLERS = {
    "puzzle-arcade-server": "puzzle_arcade_server.server:ArcadeHandler",
    "chuk-puzzles-gym": "chuk_puzzles_gym.server:ArcadeHandler",
}
"""The supported server packages, with the handler that their launcher serves."""

MISSING = "no puzzle server is installed; run pip install puzzle-arcade-server==0.8"

_LAUNCH = "import sys; from chuk_protocol_server.server_launcher import main; sys.exit(main())"
_RUNNING = re.compile(r"Telnet server running on \S+:(\d+)")
_START_TIMEOUT = 30.0


@functools.cache
def server_python(package: str) -> str | None:
    """Return this interpreter or one in PHALANX_ARCADE_PYTHON, if it has the package; else None."""
    for python in (sys.executable, *os.environ.get("PHALANX_ARCADE_PYTHON", "").split(os.pathsep)):
        module = HANDLERS[package].partition(".")[0]
        probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
        if python and subprocess.run([python, "-c", probe], check=False).returncode == 0:
            return python
    return None


def installed_server() -> str | None:
    """Return the name of the first package that is installed."""
    return next((package for package in HANDLERS if server_python(package)), None)


@dataclasses.dataclass
class RealServer:
    """A server process. After `kill`, `start` uses the same port again."""

    package: str
    port: int = 0
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        python = server_python(self.package)
        if python is None:
            raise RuntimeError(MISSING)
        command = [python, "-c", _LAUNCH, HANDLERS[self.package], "--host", "127.0.0.1"]
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        watchdog = threading.Timer(_START_TIMEOUT, self.process.kill)
        watchdog.start()
        log = []
        assert self.process.stderr is not None
        for line in self.process.stderr:
            log.append(line)
            if found := _RUNNING.search(line):
                self.port = int(found[1])
                break
        else:
            self.kill()
            raise RuntimeError(f"{self.package} did not start:\n{''.join(log[-20:])}")
        watchdog.cancel()
        # The server logs each puzzle and would block if the pipe were full.
        threading.Thread(target=_discard, args=(self.process.stderr,), daemon=True).start()

    def cpu_seconds(self) -> float:
        """Return the CPU time of the server so far, or 0 if the system is not Linux."""
        stat = pathlib.Path(f"/proc/{self.process.pid if self.process else 0}/stat")
        if not stat.exists():
            return 0.0
        user, system = stat.read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """Kill the process without a clean shutdown."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def _discard(stream: Iterator[str]) -> None:
    with stream:  # type: ignore[attr-defined]
        for _ in stream:
            pass


@contextlib.contextmanager
def running_server(package: str | None = None, port: int = 0) -> Iterator[RealServer]:
    """Run a server of the given package, or of any package if None. Skip the test if it is not installed."""
    chosen = package or installed_server()
    if chosen is None or server_python(chosen) is None:
        import pytest

        pytest.skip(f"{MISSING} (wanted: {package or 'any'})")
    server = RealServer(chosen, port)
    server.start()
    try:
        yield server
    finally:
        server.kill()
