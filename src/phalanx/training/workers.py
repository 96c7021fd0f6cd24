"""Where the trials of a sweep run: processes of this machine, or tasks of a Ray cluster.

Which trials there are is in `sweep` and `suggestions`; what is shown of them is the command's part.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Worker(Protocol):
    """A training that was started; a `subprocess.Popen` is one."""

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""

    def wait(self) -> int:
        """Its exit code, when it has ended."""

    def terminate(self) -> None:
        """Let it save and stop."""


@runtime_checkable
class Workers(Protocol):
    """What starts trainings."""

    places: int
    """Trainings at the same time, unless it is said."""

    def start(self, arguments: Sequence[str], log: Path) -> Worker:
        """A `phalanx` command whose output goes to the end of a file."""


class LocalWorkers:
    """Processes of this machine."""

    places = 1

    def start(self, arguments: Sequence[str], log: Path) -> Worker:
        """A process of its own."""
        return _started(arguments, log, Path.cwd())


class RayWorkers:
    """Tasks of a Ray cluster whose machines share the sweep's folder, and have Phalanx installed."""

    def __init__(self, ray: Any) -> None:
        self._ray, self._train = ray, ray.remote(num_cpus=1, max_retries=0)(_train)
        self.places = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def start(self, arguments: Sequence[str], log: Path) -> Worker:
        """A task that takes one processor of the cluster."""
        return _RayWorker(self._ray, self._train.remote(list(arguments), str(log.resolve()), str(Path.cwd())))


@contextlib.contextmanager
def ray_workers(address: str) -> Iterator[RayWorkers]:
    """Connected to a cluster, as `ray start --head` makes one; `auto` finds that of this machine."""
    from phalanx.io.worker_pool import WorkerError, ray_cluster, require_ray

    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "://" not in address:
        # Ray itself tries for minutes.
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError as error:
            raise ValueError(f"cannot reach the Ray cluster at {address}: {error}") from error
    try:
        ray = require_ray("run trials on Ray")
        with ray_cluster(address):
            yield RayWorkers(ray)
    except (ImportError, WorkerError) as error:
        raise ValueError(str(error)) from error


class _RayWorker:
    """One task."""

    def __init__(self, ray: Any, reference: Any) -> None:
        self._ray, self._reference = ray, reference

    def poll(self) -> int | None:
        ready, _ = self._ray.wait([self._reference], timeout=0)
        return self.wait() if ready else None

    def wait(self) -> int:
        try:
            return int(self._ray.get(self._reference))
        except self._ray.exceptions.TaskCancelledError:
            return 128 + signal.SIGTERM
        except self._ray.exceptions.RayError as error:
            print(f"a task of Ray failed: {' '.join(str(error).split())[:300]}", file=sys.stderr)
            return 1

    def terminate(self) -> None:
        self._ray.cancel(self._reference)


def _train(arguments: list[str], log: str, folder: str) -> int:
    """What a task does: the training as a process, which is let save when the task is canceled."""
    process = _started(arguments, Path(log), Path(folder))
    try:
        # Not `wait`: Ray cancels a task by an exception between two lines of Python.
        while process.poll() is None:
            time.sleep(0.1)
    except KeyboardInterrupt:
        process.terminate()
    return process.wait()


def _started(arguments: Sequence[str], log: Path, folder: Path) -> "subprocess.Popen[bytes]":
    with log.open("ab") as file:
        # A session of its own: Ctrl-C in the terminal reaches it through the sweep, and once.
        return subprocess.Popen(
            [sys.executable, "-m", "phalanx", *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            cwd=folder,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
