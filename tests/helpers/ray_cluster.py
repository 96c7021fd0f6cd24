"""A Ray cluster on one machine, for commands that connect to a running cluster."""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

VARIABLES = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
"""Environment variables with a token of this cluster."""


@contextlib.contextmanager
def running(log: Path, num_cpus: int) -> Iterator[str]:
    """Run a cluster and yield its address. Other clusters on this machine are not affected."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Paths of sockets are limited in length, and pytest's folders have long paths.
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    command = [Path(sys.executable).parent / "ray", "start", "--head", "--block", f"--port={port}"]
    options = ["--node-ip-address=127.0.0.1", f"--num-cpus={num_cpus}", "--object-store-memory=100000000"]
    options += ["--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={folder}"]
    # The output goes to a file, because Ray's other processes keep a pipe open for half a minute.
    with log.open("wb") as file:
        head = subprocess.Popen([*command, *options], env=VARIABLES, stdout=file, stderr=file)
        try:
            deadline = time.monotonic() + 180
            while b"Ray runtime started" not in log.read_bytes():
                assert head.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield f"127.0.0.1:{port}"
        finally:
            # `ray stop` waits half a minute for running workers, so all processes are killed.
            processes = [head, *psutil.Process(head.pid).children(recursive=True)]
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            head.wait(timeout=120)
            shutil.rmtree(folder, ignore_errors=True)
