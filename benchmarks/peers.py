"""Other libraries, each installed in its own virtual environment and measured in a worker process."""

import dataclasses
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import Any

from benchmarks.timing import Repeat

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
TIMEOUT_SECONDS = 900.0


class WorkerError(RuntimeError):
    """A worker process or the installation of its library failed. The message ends with its last output."""


@dataclasses.dataclass(frozen=True)
class Peer:
    """A library to compare with.

    Attributes:
        name: Name of the library. Its virtual environment is a folder with this name.
        requirements: What pip installs.
        requirements_without_dependencies: What pip installs afterward with `--no-deps`.
        environment_variables: Environment variables of worker processes.
    """

    name: str
    requirements: tuple[str, ...]
    requirements_without_dependencies: tuple[str, ...] = ()
    environment_variables: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def python(self) -> pathlib.Path:
        """Return the interpreter of the virtual environment, which is created first if necessary."""
        folder = venv_folder() / self.name
        python = folder / "bin" / "python"
        marker = folder / "installed.json"
        wanted = json.dumps([self.requirements, self.requirements_without_dependencies])
        if marker.exists() and marker.read_text() == wanted:
            return python
        print(f"Installing {', '.join(self.requirements)} in {folder}", file=sys.stderr)
        folder.parent.mkdir(parents=True, exist_ok=True)
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        _run([str(python), "-m", "pip", "install", "--quiet", *self.requirements])
        if self.requirements_without_dependencies:
            bare = ("--no-deps", *self.requirements_without_dependencies)
            _run([str(python), "-m", "pip", "install", "--quiet", *bare])
        # Written last and renamed, so that an interrupted installation starts again.
        unfinished = marker.with_suffix(".tmp")
        unfinished.write_text(wanted)
        unfinished.replace(marker)
        return python


def venv_folder() -> pathlib.Path:
    """Return the folder with the virtual environments of other libraries."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
    return cache / "phalanx" / "peers"


class Worker:
    """A worker process: prepared once, and then measured as often as requested.

    Args:
        command: Command line of the process.
        checkout: Folder whose package `benchmarks` the process imports.
        use_source: Import Phalanx from `checkout/src`.
        environment_variables: Additional environment variables.
    """

    def __init__(
        self,
        command: list[str],
        checkout: pathlib.Path = REPOSITORY,
        use_source: bool = False,
        environment_variables: Mapping[str, str] | None = None,
    ) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        paths = [str(checkout), *([str(checkout / "src")] if use_source else [])]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=checkout,
            env={
                **os.environ,
                "JAX_PLATFORMS": "cpu",
                "PYTHONPATH": os.pathsep.join(paths),
                **(environment_variables or {}),
            },
        )
        self.info: dict[str, Any] = {}

    @classmethod
    def start(cls, peer: Peer, module: str, settings: dict[str, Any]) -> "Worker":
        """Start the worker `benchmarks/workers/MODULE.py` in the virtual environment of a library."""
        command = [str(peer.python()), "-m", f"benchmarks.workers.{module}", json.dumps(settings)]
        return cls(command, environment_variables=peer.environment_variables)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def wait_until_ready(self) -> None:
        """Wait until the workload is compiled and warmed up."""
        self.info = self._receive("ready")["info"]

    def measure(self) -> Repeat:
        """Measure one repeat."""
        assert self._process.stdin is not None
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        message = self._receive("repeat")
        return Repeat(message["work"], message["seconds"], message["cpu_seconds"])

    def _receive(self, event: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        timer = threading.Timer(TIMEOUT_SECONDS, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            raise WorkerError(
                f"worker ended with code {self._process.returncode} (-9: no answer within "
                f"{TIMEOUT_SECONDS:g} s) instead of sending {event!r}:\n{_last_lines(self._errors.read())}"
            )
        message = json.loads(line)
        if message.pop("event") != event:
            raise WorkerError(f"expected {event!r} from the worker, got {line!r}")
        return message


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise WorkerError(f"{' '.join(command)} failed:\n{_last_lines(result.stderr)}")


def _last_lines(text: str, count: int = 8) -> str:
    return "\n".join(text.strip().splitlines()[-count:])


def _installed(*names: str) -> tuple[str, ...]:
    """Return requirements of the versions that are installed here."""
    return tuple(f"{name}=={importlib.metadata.version(name)}" for name in names)


JAXARC = Peer("jaxarc", ("jaxarc==1.0.3", "stoa-env==0.1.2", *_installed("jax")))
JAXARC_TWO_DEVICES = dataclasses.replace(
    JAXARC, environment_variables={"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
)
# Phalanx's PPO needs packages that JaxARC does not install.
JAXARC_PPO = Peer("jaxarc-ppo", (*JAXARC.requirements, *_installed("pydantic", "orbax-checkpoint")))
# ARCLE requires a version of Gymnasium before 1.0.
ARCLE = Peer("arcle", ("arcle==0.2.6", "gymnasium<1.0", "numpy<2"))
# Without the other dependencies of chuk-lazarus: MLX and model servers are not needed for batching.
CHUK_LAZARUS = Peer(
    "chuk-lazarus",
    (*_installed("numpy", "pydantic", "pydantic_core", "typing_extensions"), "aiofiles==25.1.0"),
    ("chuk-lazarus==0.4.1",),
)
TRL = Peer("trl", ("torch==2.13.0", "trl==1.16.0", "tensorboard==2.21.0"))
GRAIN = Peer("grain", ("torch==2.13.0", "grain==0.2.18"))
PYKEEN = Peer("pykeen", ("torch==2.13.0", "pykeen==1.11.1"))
REASONING_GYM = Peer("reasoning-gym", ("reasoning-gym==0.1.25",))
