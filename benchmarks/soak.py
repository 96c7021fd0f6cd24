"""Everything at once for as long as you like, on loopback: do memory and descriptors stay as they were?

A training (`phalanx train ppo`), a server with sessions (`phalanx serve`), a collection (`phalanx puzzles
collect`) from a real puzzle server, and stepping that logs every batch. Every few seconds the memory and the
open descriptors of each process are read. One JSON line for each process and one for the whole; exit code 1
if one ended, complained, miscounted, or grew. Growth is judged from five minutes on.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from arcade_server import RealServer, installed_server
from measuring.conditions import conditions

JOBS = ("stepping", "training", "serving", "collecting")
_PHALANX = (sys.executable, "-m", "phalanx")
_SMALL_TRAINING = (
    "env.dataset.max_grid_height=5",
    "env.dataset.max_grid_width=5",
    "env.dataset.families=[fill_enclosed]",
    "env.dataset.num_tasks=32",
    "network.kind=conv",
    "network.hidden_dim=8",
    "network.num_layers=1",
    "num_envs=32",
    "num_steps=8",
    "num_updates=100000000",
    "num_minibatches=2",
    "num_env_shards=2",
    "evaluation.every=200",
    "evaluation.num_tasks=4",
    "evaluation.num_samples=0",
    "checkpoint.every=100",
    "checkpoint.keep=2",
    "logging.log_frequency=1",
)
_GAMES = "lights,binary,mastermind,knapsack"
_SESSIONS, _THINK = 8, 0.02
_REST = 3.0
"""Stepping rests so many times as long as it worked, so that it does not starve the others."""
_PATIENCE = 600.0
_JUDGED_MINUTES = 5.0
_GROWTH = 0.02
_ROOM = 4 << 20


@dataclasses.dataclass
class Watched:
    """A process of ours, and what it held at each look."""

    name: str
    process: subprocess.Popen[str]
    errors: Path
    end: tuple[int, int]
    """The signal that ends it, and the exit code that it then gives."""
    memory: list[int] = dataclasses.field(default_factory=list)
    descriptors: list[int] = dataclasses.field(default_factory=list)
    cpu_seconds: float = 0.0

    def check(self) -> None:
        """One that has ended is an error."""
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.name} ended with {self.process.returncode}: {self.complaints()}")

    def look(self) -> None:
        """Read what it holds, with its children."""
        self.check()
        first = psutil.Process(self.process.pid)
        alive = [first, *first.children(recursive=True)]
        self.memory.append(sum(one.memory_info().rss for one in alive))
        self.descriptors.append(sum(one.num_fds() for one in alive))
        self.cpu_seconds = sum(sum(one.cpu_times()[:2]) for one in alive)

    def stop(self) -> int:
        """End it as a user would."""
        self.process.send_signal(self.end[0])
        return self.process.wait(_PATIENCE)

    def complaints(self) -> str:
        """What it said on stderr."""
        return self.errors.read_text()[-2000:]

    def record(self) -> dict[str, Any]:
        """How much it held at the start (a fifth into it, when everything is compiled), middle and end."""
        told = {
            "memory_mb": [round(part / 2**20, 1) for part in thirds(self.memory)],
            "descriptors": [int(part) for part in thirds(self.descriptors)],
        }
        return {"process": self.name, **told, "cpu_seconds": round(self.cpu_seconds, 1)}


def thirds(values: list[int]) -> list[float]:
    """The medians of a tenth of the looks at the start, the middle and the end.

    The start is a fifth into them: before that, programs are loaded and compiled.

    >>> thirds(list(range(100)))
    [24.5, 49.5, 94.5]
    """
    count = len(values)
    tenth = max(count // 10, 1)
    places = (count // 5, (count - tenth) // 2, count - tenth)
    return [statistics.median(values[place : place + tenth]) for place in places]


def grown(record: dict[str, Any]) -> list[str]:
    """What a process has more of at its end than at its start, in words."""
    before, _, after = record["memory_mb"]
    found = []
    if after - before > max(_GROWTH * before, _ROOM / 2**20):
        found.append(f"{record['process']} grew from {before} to {after} MB")
    first, _, last = record["descriptors"]
    if last > first:
        found.append(f"{record['process']} went from {first} to {last} descriptors")
    return found


class Soak:
    """The jobs of one soak, from their start to their end."""

    def __init__(self, folder: Path, jobs: list[str], seconds: float, every: float) -> None:
        self._folder, self._jobs = folder, jobs
        self._seconds, self._every = seconds, every
        self._watched: list[Watched] = []
        self.counts: dict[str, int] = {}
        self.errors: list[str] = []

    async def run(self, stack: contextlib.ExitStack) -> list[dict[str, Any]]:
        """Start everything, watch it, end it; a record for each process."""
        sessions: list[asyncio.Task[None]] = []
        if "collecting" in self._jobs:
            self._collect(stack)
        if "training" in self._jobs:
            run = str(self._folder / "run")
            self._start(
                "training",
                [*_PHALANX, "train", "ppo", "--env", "arc", *_SMALL_TRAINING, "--out", run],
                143,
                stack,
            )
        if "stepping" in self._jobs:
            command = [sys.executable, __file__, "--step-into", str(self._folder / "steps")]
            self._start("stepping", command, -signal.SIGTERM, stack)
        if "serving" in self._jobs:
            sessions = await self._serve(stack)
        await self._until_begun()
        begun = time.monotonic()
        while time.monotonic() - begun < self._seconds:
            await asyncio.sleep(self._every)
            for one in self._watched:
                one.look()
            for session in sessions:
                if session.done():
                    session.result()
        for session in sessions:
            session.cancel()
        await asyncio.gather(*sessions, return_exceptions=True)
        for one in self._watched:
            if (code := one.stop()) != one.end[1]:
                self.errors.append(f"{one.name} ended with {code}, not {one.end[1]}")
            if said := one.complaints():
                self.errors.append(f"{one.name} complained: {said}")
        self._count()
        return [one.record() for one in self._watched]

    async def _until_begun(self) -> None:
        """The clock runs once every job has written its first line."""
        marks = {
            "collecting": self._samples,
            "training": self._folder / "run" / "batch_metrics.jsonl",
            "stepping": self._folder / "steps" / "batch_metrics.jsonl",
        }
        deadline = time.monotonic() + _PATIENCE
        while late := [name for name, mark in marks.items() if name in self._jobs and not mark.exists()]:
            for one in self._watched:
                one.check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{', '.join(late)} did not begin within {_PATIENCE:.0f} s")
            await asyncio.sleep(0.2)

    def _start(
        self, name: str, command: list[str], code: int, stack: contextlib.ExitStack, *, piped: bool = False
    ) -> Watched:
        errors = self._folder / f"{name}.errors"
        out = subprocess.PIPE if piped else subprocess.DEVNULL
        with errors.open("w") as file:
            process = subprocess.Popen(
                command, stdout=out, stderr=file, text=True, env=os.environ | {"COLUMNS": "200"}
            )
        stack.callback(_end, process)
        number = signal.SIGINT if code == 128 + signal.SIGINT else signal.SIGTERM
        one = Watched(name, process, errors, (number, code))
        self._watched.append(one)
        return one

    def _collect(self, stack: contextlib.ExitStack) -> None:
        package = installed_server()
        if package is None:
            raise RuntimeError("collecting needs a puzzle server: pip install puzzle-arcade-server==0.8")
        server = RealServer(package)
        server.start()
        stack.callback(server.kill)
        command = [*_PHALANX, "puzzles", "collect", "--games", _GAMES, "--episodes", "10000000"]
        command += ["--port", str(server.port), "--host", "127.0.0.1", "--connections", "2", "--json"]
        one = self._start("collecting", [*command, "--out", str(self._samples)], 130, stack)
        # What the command says when it is stopped is no complaint.
        one.complaints = lambda: "".join(  # type: ignore[method-assign]
            line for line in one.errors.read_text().splitlines(True) if not line.startswith("interrupted: ")
        )

    async def _serve(self, stack: contextlib.ExitStack) -> list[asyncio.Task[None]]:
        from serve_load import solutions

        command = [*_PHALANX, "serve", "lights_out", "--port", "0", "--max-sessions", "64"]
        one = self._start("serving", command, -signal.SIGTERM, stack, piped=True)
        assert one.process.stdout is not None
        line = await asyncio.to_thread(one.process.stdout.readline)
        url = line.split()[3].rstrip(",")
        answers = solutions("lights_out", "easy")
        self.counts["served episodes"] = self.counts["reconnects of sessions"] = 0
        return [asyncio.create_task(self._session(url, number, answers)) for number in range(_SESSIONS)]

    async def _session(self, url: str, number: int, answers: list[list[str]]) -> None:
        """Episodes by the solver, each of which must be solved; a new connection after every hundred."""
        from websockets.asyncio.client import connect

        address = url.replace("http", "ws") + "/ws"
        while True:
            async with connect(address, compression=None, proxy=None, ping_interval=None) as client:
                for episode in range(100):
                    seed = (number + episode) % len(answers)
                    told = await _asked(client, "reset", {"seed": seed})
                    for answer in answers[seed]:
                        await asyncio.sleep(_THINK)
                        told = await _asked(client, "step", {"answer": answer})
                    if not told["done"] or not told["observation"]["solved"]:
                        raise RuntimeError(f"episode {seed} was not solved by its solution: {told}")
                    self.counts["served episodes"] += 1
            self.counts["reconnects of sessions"] += 1

    @property
    def _samples(self) -> Path:
        return self._folder / "samples.jsonl"

    def _count(self) -> None:
        """What was done, by what is on the disk; every file must be whole."""
        if "collecting" in self._jobs:
            from phalanx.puzzles.server_client import CollectConfig
            from phalanx.puzzles.server_client.collect import read_existing

            config = CollectConfig(games=tuple(_GAMES.split(",")))
            size = self._samples.stat().st_size
            self.counts["collected episodes"] = read_existing(self._samples, config, resume=True).count
            if self._samples.stat().st_size != size:
                self.errors.append("the collection left an episode that is not whole")
        if "training" in self._jobs:
            from phalanx.logging import read_records

            run = self._folder / "run"
            steps = [record["step"] for record in read_records(run / "batch_metrics.jsonl")]
            if steps != list(range(1, len(steps) + 1)):
                self.errors.append("the training's lines are not one for each update")
            self.counts["updates"] = len(steps)
            whole = subprocess.run(
                [*_PHALANX, "doctor", str(run)], capture_output=True, text=True, check=False
            )
            if whole.returncode:
                self.errors.append(f"the run is not whole: {whole.stdout}{whole.stderr}")
        if "stepping" in self._jobs:
            from phalanx.logging import read_records

            lines = list(read_records(self._folder / "steps" / "batch_metrics.jsonl"))
            self.counts["logged batches"] = len(lines)
            self.counts["steps"] = int(lines[-1]["metrics"]["steps"]) if lines else 0
        if idle := [name for name, count in self.counts.items() if not count and "reconnects" not in name]:
            self.errors.append(f"nothing was done of {', '.join(idle)}")


async def _asked(client: Any, kind: str, data: dict[str, Any]) -> dict[str, Any]:
    await client.send(json.dumps({"type": kind, "data": data}))
    found: dict[str, Any] = json.loads(await client.recv())["data"]
    return found


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def step_into(folder: Path) -> None:
    """Step and log until the process is ended."""
    from arc import Rollout, Workload
    from phalanx.logging import ExperimentLogger, FileHandler, LoggingConfig

    rollout = Rollout.prepare(Workload(batch=256, grid=(10, 10), steps=64))
    config = LoggingConfig(log_frequency=1, sample_frequency=0)
    folder.mkdir()
    steps = number = 0
    with ExperimentLogger(config, {"files": FileHandler(folder, config)}) as logger:
        while True:
            began = time.monotonic()
            rollout.run()
            steps, number = steps + rollout.steps_per_run, number + 1
            logger.log_batch_step({"update_step": number, "steps": steps, "reward": rollout.checksum})
            if logger.failures:
                raise RuntimeError(f"a handler failed: {logger.failures}")
            time.sleep(_REST * (time.monotonic() - began))


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="how long; at most 240")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two looks")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS), help="what runs side by side")
    parser.add_argument("--step-into", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.step_into is not None:
        step_into(options.step_into)
    if not 0 < options.minutes <= 240:
        parser.error("minutes are more than 0 and at most 240")
    # A shell starts what it puts into the background with SIGINT ignored, which children would inherit: none
    # of them could be stopped by it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    judged = options.minutes >= _JUDGED_MINUTES
    begun, own = time.monotonic(), time.process_time()
    with tempfile.TemporaryDirectory(prefix="phalanx-soak-") as folder, contextlib.ExitStack() as stack:
        soak = Soak(Path(folder), options.jobs, 60 * options.minutes, options.every)
        records = asyncio.run(soak.run(stack))
    for record in records:
        soak.errors += grown(record) if judged else []
        print(json.dumps({"benchmark": "soak", **record}), flush=True)
    summary = {
        "benchmark": "soak",
        "minutes": options.minutes,
        "seconds": round(time.monotonic() - begun, 1),
        "client_cpu_seconds": round(time.process_time() - own, 1),
        "growth_judged": judged,
        **{name.replace(" ", "_"): count for name, count in soak.counts.items()},
        "errors": soak.errors,
    }
    print(json.dumps({**summary, **conditions("jax", "websockets", "uvicorn")}))
    return 1 if soak.errors else 0


if __name__ == "__main__":
    sys.exit(main())
