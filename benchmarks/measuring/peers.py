"""Other libraries and other checkouts: an interpreter that has each, and a process that measures in it.

What is measured is decided in the `compare_*.py`; what a runner does is in `runners/`.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
from typing import Any, NamedTuple

BENCHMARKS = pathlib.Path(__file__).resolve().parents[1]
RUNNERS = BENCHMARKS / "runners"


class RunnerError(RuntimeError):
    """A runner, or the making of its virtual environment, failed; the text ends with its last messages."""


@dataclasses.dataclass(frozen=True)
class Peer:
    """What to compare with: what to install, and which runner drives it."""

    name: str
    runner: str
    requirements: tuple[str, ...] = ()
    """What pip installs; empty for the interpreter that runs the comparison."""
    without_dependencies: tuple[str, ...] = ()
    """What pip installs besides, without what it asks for."""
    checkout: pathlib.Path | None = None
    """A checkout of Phalanx whose sources are imported, by its own `.venv` where it has one."""

    def python(self, venvs: pathlib.Path) -> pathlib.Path:
        """The interpreter that has it, installed first if it is not there yet."""
        if self.checkout is not None and (own := self.checkout / ".venv" / "bin" / "python").exists():
            return own
        if not self.requirements:
            return pathlib.Path(sys.executable)
        home = venvs / self.name
        python = home / "bin" / "python"
        marker = home / "installed.json"
        wanted = json.dumps(self.requirements + self.without_dependencies)
        if marker.exists() and marker.read_text() == wanted:
            return python
        print(f"installing {', '.join(self.requirements)} in {home}", file=sys.stderr)
        venvs.mkdir(parents=True, exist_ok=True)
        _checked([sys.executable, "-m", "venv", "--clear", str(home)])
        _checked([str(python), "-m", "pip", "install", "--quiet", *self.requirements])
        if self.without_dependencies:
            bare = ("--no-deps", *self.without_dependencies)
            _checked([str(python), "-m", "pip", "install", "--quiet", *bare])
        # Last, and renamed into place: an interrupted installation starts again from nothing.
        unfinished = marker.with_suffix(".tmp")
        unfinished.write_text(wanted)
        unfinished.replace(marker)
        return python

    def environment(self) -> dict[str, str]:
        """The variables of its process, which finds the files of the folder `benchmarks` by their names."""
        paths = [BENCHMARKS]
        if self.checkout is not None:
            paths = [self.checkout / "src", self.checkout / "benchmarks"]
        known = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
        joined = os.pathsep.join([*map(str, paths), *known])
        return {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": joined}


def _checked(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RunnerError(f"{' '.join(command)} failed:\n{_tail(result.stderr)}")


def _tail(text: str, lines: int = 8) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])


class Repeat(NamedTuple):
    """What a runner got done: steps, samples or tokens a second."""

    rate: float
    """Of the clock."""
    cpu_rate: float
    """Of the processors' time, which other processes on the machine disturb less."""


class Runner:
    """A runner's process: prepared once, then measured as often as asked. It sleeps between measurements."""

    def __init__(self, peer: Peer, venvs: pathlib.Path, arguments: dict[str, Any], timeout: float) -> None:
        self._timeout = timeout
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        options: list[str] = []
        for name, value in arguments.items():
            options += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        self._process = subprocess.Popen(
            [str(peer.python(venvs)), str(RUNNERS / peer.runner), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=peer.environment(),
        )
        self.conditions: dict[str, Any] = {}

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def wait_until_ready(self) -> None:
        """Wait for compiling and warming up; `conditions` then tells what it took."""
        self.conditions = self._read("ready")

    def measure(self) -> "Repeat":
        """One repeat."""
        assert self._process.stdin is not None
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        answer = self._read("repeat")
        return Repeat(answer["steps"] / answer["seconds"], answer["steps"] / answer["cpu_seconds"])

    def _read(self, event: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        alarm = threading.Timer(self._timeout, self._process.kill)
        alarm.start()
        try:
            line = self._process.stdout.readline()
        finally:
            alarm.cancel()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            raise RunnerError(
                f"runner ended with code {self._process.returncode} (-9: no answer in {self._timeout:g} s) "
                f"while waiting for {event!r}:\n{_tail(self._errors.read())}"
            )
        answer = json.loads(line)
        if answer.pop("event") != event:
            raise RunnerError(f"expected {event!r} from the runner, got {line!r}")
        return answer
