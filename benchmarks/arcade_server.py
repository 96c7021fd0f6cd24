"""Starts a real puzzle server from PyPI on a free port of this machine, and stops it.

Which server and which Python are found here; what is asked of it is up to the tests.
"""

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
"""The two public servers, and what their launcher is told to serve."""

MISSING = "no puzzle server is installed: pip install puzzle-arcade-server==0.8"

_LAUNCH = "import sys; from chuk_protocol_server.server_launcher import main; sys.exit(main())"
_RUNNING = re.compile(r"Telnet server running on \S+:(\d+)")
_PATIENCE = 30.0


@functools.cache
def server_python(package: str) -> str | None:
    """The Python that has this server: this one, or that of PHALANX_ARCADE_PYTHON; None if neither has."""
    for python in (sys.executable, *os.environ.get("PHALANX_ARCADE_PYTHON", "").split(os.pathsep)):
        module = HANDLERS[package].partition(".")[0]
        probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
        if python and subprocess.run([python, "-c", probe], check=False).returncode == 0:
            return python
    return None


def installed_server() -> str | None:
    """The first of the servers that is installed."""
    return next((package for package in HANDLERS if server_python(package)), None)


@dataclasses.dataclass
class RealServer:
    """A server process; `kill` and `start` may follow each other on the same port."""

    package: str
    port: int = 0
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it and wait until it listens."""
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
        watchdog = threading.Timer(_PATIENCE, self.process.kill)
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
        # It logs every puzzle, and would stop when the pipe is full.
        threading.Thread(target=_swallow, args=(self.process.stderr,), daemon=True).start()

    def cpu_seconds(self) -> float:
        """What it has used of a processor so far; Linux only, 0 elsewhere."""
        stat = pathlib.Path(f"/proc/{self.process.pid if self.process else 0}/stat")
        if not stat.exists():
            return 0.0
        user, system = stat.read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """End it without warning, as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def _swallow(stream: Iterator[str]) -> None:
    with stream:  # type: ignore[attr-defined]
        for _ in stream:
            pass
