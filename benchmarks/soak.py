"""Run several parts of Phalanx together for a long time, and check that their memory does not grow.

The jobs are training (`phalanx train ppo`), serving with client sessions (`phalanx serve`), collecting from
a real puzzle server (`phalanx puzzles collect`), and stepping environments while logging every batch. The
memory and the open file descriptors of each process are sampled every few seconds. Prints one JSON line per
process and a summary. The exit code is 1 if a process ended, printed errors, lost data or grew. Growth is
only checked in runs of at least five minutes.
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
from tests.helpers.puzzle_server import MISSING, RealServer, installed_server

from benchmarks.machine import machine
from benchmarks.peers import REPOSITORY

JOBS = ("stepping", "training", "serving", "collecting")
_PHALANX = (sys.executable, "-m", "phalanx")
_SMALL_TRAINING = (
    "env.dataset.max_grid_height=5",
    "env.dataset.max_grid_width=5",
    "env.dataset.families=[fill_enclosed]",
    "env.dataset.num_generated_tasks=32",
    "network.kind=conv",
    "network.hidden_dim=8",
    "network.num_layers=1",
    "num_envs=32",
    "num_steps=8",
    "num_updates=100000000",
    "num_minibatches=2",
    "evaluation.every=200",
    "evaluation.num_generated_tasks=4",
    "evaluation.num_sampled_attempts=0",
    "checkpoint.every=100",
    "checkpoint.keep=2",
    "logging.log_frequency=1",
)
_GAMES = "lights,binary,mastermind,knapsack"
_SESSIONS, _THINK = 8, 0.02
_REST = 3.0
"""Ratio of sleeping to working in the stepping job, so that the other jobs get CPU time."""
_TIMEOUT_SECONDS = 600.0
_MIN_MINUTES_FOR_GROWTH = 5.0
_MAX_GROWTH = 0.02
_MIN_GROWTH_BYTES = 4 << 20


@dataclasses.dataclass
class Watched:
    """A process, and its memory and file descriptors at each sample."""

    name: str
    process: subprocess.Popen[str]
    errors: Path
    end: tuple[int, int]
    """Signal that stops the process, and the expected exit code."""
    memory: list[int] = dataclasses.field(default_factory=list)
    descriptors: list[int] = dataclasses.field(default_factory=list)
    cpu_seconds: float = 0.0

    def check(self) -> None:
        """Raise an error if the process has ended."""
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.name} ended with {self.process.returncode}: {self.error_output()}")

    def sample(self) -> None:
        """Sample the memory and descriptors of the process and its children."""
        self.check()
        first = psutil.Process(self.process.pid)
        alive = [first, *first.children(recursive=True)]
        self.memory.append(sum(one.memory_info().rss for one in alive))
        self.descriptors.append(sum(one.num_fds() for one in alive))
        self.cpu_seconds = sum(sum(one.cpu_times()[:2]) for one in alive)

    def stop(self) -> int:
        """Stop the process with its signal and return its exit code."""
        self.process.send_signal(self.end[0])
        return self.process.wait(_TIMEOUT_SECONDS)

    def error_output(self) -> str:
        """Return the end of its standard error output."""
        return self.errors.read_text()[-2000:]

    def record(self) -> dict[str, Any]:
        """Return memory and descriptors at the start, in the middle and at the end."""
        reply = {
            "memory_mb": [round(part / 2**20, 1) for part in phases(self.memory)],
            "descriptors": [int(part) for part in phases(self.descriptors)],
        }
        return {"process": self.name, **reply, "cpu_seconds": round(self.cpu_seconds, 1)}


def phases(values: list[int]) -> list[float]:
    """Return the medians of a tenth of the samples at the start, in the middle and at the end.

    The start begins after a fifth of the samples, because programs are loaded and compiled before.

    >>> phases(list(range(100)))
    [24.5, 49.5, 94.5]
    """
    count = len(values)
    tenth = max(count // 10, 1)
    places = (count // 5, (count - tenth) // 2, count - tenth)
    return [statistics.median(values[place : place + tenth]) for place in places]


def find_growth(record: dict[str, Any]) -> list[str]:
    """Return messages about memory or descriptors that a process has more of at the end than at the start."""
    before, _, after = record["memory_mb"]
    found = []
    if after - before > max(_MAX_GROWTH * before, _MIN_GROWTH_BYTES / 2**20):
        found.append(f"{record['process']} grew from {before} to {after} MB")
    first, _, last = record["descriptors"]
    if last > first:
        found.append(f"{record['process']} went from {first} to {last} descriptors")
    return found


class Soak:
    """Starts the jobs, samples their processes and stops them."""

    def __init__(self, folder: Path, jobs: list[str], seconds: float, every: float) -> None:
        self._folder, self._jobs = folder, jobs
        self._seconds, self._every = seconds, every
        self._watched: list[Watched] = []
        self.counts: dict[str, int] = {}
        self.errors: list[str] = []

    async def run(self, stack: contextlib.ExitStack) -> list[dict[str, Any]]:
        """Run all jobs and return a record for each process."""
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
            command = [sys.executable, "-m", "benchmarks.soak", "--step-into", str(self._folder / "steps")]
            self._start("stepping", command, -signal.SIGTERM, stack)
        if "serving" in self._jobs:
            sessions = await self._serve(stack)
        await self._wait_until_started()
        start = time.monotonic()
        while time.monotonic() - start < self._seconds:
            await asyncio.sleep(self._every)
            for one in self._watched:
                one.sample()
            for session in sessions:
                if session.done():
                    session.result()
        for session in sessions:
            session.cancel()
        await asyncio.gather(*sessions, return_exceptions=True)
        for one in self._watched:
            if (code := one.stop()) != one.end[1]:
                self.errors.append(f"{one.name} ended with {code}, not {one.end[1]}")
            if said := one.error_output():
                self.errors.append(f"{one.name} printed errors: {said}")
        self._count()
        return [one.record() for one in self._watched]

    async def _wait_until_started(self) -> None:
        """Wait until every job has written its first line."""
        marks = {
            "collecting": self._samples,
            "training": self._folder / "run" / "batch_metrics.jsonl",
            "stepping": self._folder / "steps" / "batch_metrics.jsonl",
        }
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while late := [name for name, mark in marks.items() if name in self._jobs and not mark.exists()]:
            for one in self._watched:
                one.check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{', '.join(late)} did not start within {_TIMEOUT_SECONDS:.0f} s")
            await asyncio.sleep(0.2)

    def _start(
        self, name: str, command: list[str], code: int, stack: contextlib.ExitStack, *, piped: bool = False
    ) -> Watched:
        errors = self._folder / f"{name}.errors"
        out = subprocess.PIPE if piped else subprocess.DEVNULL
        with errors.open("w") as file:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=file,
                text=True,
                env=os.environ | {"COLUMNS": "200"},
                cwd=REPOSITORY,
            )
        stack.callback(_end, process)
        number = signal.SIGINT if code == 128 + signal.SIGINT else signal.SIGTERM
        one = Watched(name, process, errors, (number, code))
        self._watched.append(one)
        return one

    def _collect(self, stack: contextlib.ExitStack) -> None:
        package = installed_server()
        if package is None:
            raise RuntimeError(MISSING)
        server = RealServer(package)
        server.start()
        stack.callback(server.kill)
        command = [*_PHALANX, "puzzles", "collect", "--games", _GAMES, "--episodes", "10000000"]
        command += ["--port", str(server.port), "--host", "127.0.0.1", "--connections", "2", "--json"]
        one = self._start("collecting", [*command, "--out", str(self._samples)], 130, stack)
        # The command reports that it was interrupted, which is expected.
        one.error_output = lambda: "".join(  # type: ignore[method-assign]
            line for line in one.errors.read_text().splitlines(True) if not line.startswith("interrupted: ")
        )

    async def _serve(self, stack: contextlib.ExitStack) -> list[asyncio.Task[None]]:
        from benchmarks.speed.serving import expert_answers

        command = [*_PHALANX, "serve", "lights_out", "--port", "0", "--max-sessions", "64"]
        one = self._start("serving", command, -signal.SIGTERM, stack, piped=True)
        assert one.process.stdout is not None
        line = await asyncio.to_thread(one.process.stdout.readline)
        url = line.split()[3].rstrip(",")
        answers = expert_answers("lights_out")
        self.counts["served episodes"] = self.counts["reconnects of sessions"] = 0
        return [asyncio.create_task(self._session(url, number, answers)) for number in range(_SESSIONS)]

    async def _session(self, url: str, number: int, answers: list[list[str]]) -> None:
        """Solve puzzles with the expert's answers, with a new connection after every 100 episodes."""
        from websockets.asyncio.client import connect

        address = url.replace("http", "ws") + "/ws"
        while True:
            async with connect(address, compression=None, proxy=None, ping_interval=None) as client:
                for episode in range(100):
                    seed = (number + episode) % len(answers)
                    reply = await _request(client, "reset", {"seed": seed})
                    for answer in answers[seed]:
                        await asyncio.sleep(_THINK)
                        reply = await _request(client, "step", {"answer": answer})
                    if not reply["done"] or not reply["observation"]["solved"]:
                        raise RuntimeError(f"episode {seed} was not solved by its solution: {reply}")
                    self.counts["served episodes"] += 1
            self.counts["reconnects of sessions"] += 1

    @property
    def _samples(self) -> Path:
        return self._folder / "samples.jsonl"

    def _count(self) -> None:
        """Count the results on disk and check that all files are complete."""
        if "collecting" in self._jobs:
            from phalanx.puzzles.server_client import CollectConfig
            from phalanx.puzzles.server_client.collect import load_existing_episodes

            config = CollectConfig(games=tuple(_GAMES.split(",")))
            size = self._samples.stat().st_size
            self.counts["collected episodes"] = load_existing_episodes(
                self._samples, config, resume=True
            ).count
            if self._samples.stat().st_size != size:
                self.errors.append("the last collected episode is incomplete")
        if "training" in self._jobs:
            from phalanx.logging import read_records

            run = self._folder / "run"
            steps = [record["step"] for record in read_records(run / "batch_metrics.jsonl")]
            if steps != list(range(1, len(steps) + 1)):
                self.errors.append("batch_metrics.jsonl does not have one record per update")
            self.counts["updates"] = len(steps)
            doctor = subprocess.run(
                [*_PHALANX, "doctor", str(run)], capture_output=True, text=True, check=False
            )
            if doctor.returncode:
                self.errors.append(f"the run folder is corrupt: {doctor.stdout}{doctor.stderr}")
        if "stepping" in self._jobs:
            from phalanx.logging import read_records

            lines = list(read_records(self._folder / "steps" / "batch_metrics.jsonl"))
            self.counts["logged batches"] = len(lines)
            self.counts["steps"] = int(lines[-1]["metrics"]["steps"]) if lines else 0
        if idle := [name for name, count in self.counts.items() if not count and "reconnects" not in name]:
            self.errors.append(f"no {', '.join(idle)}")


async def _request(client: Any, kind: str, data: dict[str, Any]) -> dict[str, Any]:
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
    """Step environments and log until the process is stopped."""
    from benchmarks.speed.arc_env import RandomRolloutRunner
    from phalanx.logging import ExperimentLogger, FileHandler, LoggingConfig

    rollout = RandomRolloutRunner(num_envs=256, size=10, num_steps=64)
    config = LoggingConfig(log_frequency=1, sample_frequency=0)
    folder.mkdir()
    steps = number = 0
    with ExperimentLogger(config, {"files": FileHandler(folder, config)}) as logger:
        while True:
            began = time.monotonic()
            rollout.run()
            steps, number = steps + 256 * 64, number + 1
            logger.log_batch_step({"update_step": number, "steps": steps, "reward": rollout.checksum})
            if logger.failures:
                raise RuntimeError(f"a handler failed: {logger.failures}")
            time.sleep(_REST * (time.monotonic() - began))


def main(arguments: list[str] | None = None) -> int:
    """Run the jobs and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=20.0, help="duration in minutes, at most 240 [default: 20]"
    )
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two samples [default: 2]")
    parser.add_argument(
        "--jobs", nargs="+", choices=JOBS, default=list(JOBS), help="jobs to run [default: all]"
    )
    parser.add_argument("--step-into", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.step_into is not None:
        step_into(options.step_into)
    if not 0 < options.minutes <= 240:
        parser.error("--minutes must be above 0 and at most 240")
    # A shell starts background jobs with SIGINT ignored. Child processes would inherit this, and could then
    # not be stopped with it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    checks_growth = options.minutes >= _MIN_MINUTES_FOR_GROWTH
    start, own = time.monotonic(), time.process_time()
    with tempfile.TemporaryDirectory(prefix="phalanx-soak-") as folder, contextlib.ExitStack() as stack:
        soak = Soak(Path(folder), options.jobs, 60 * options.minutes, options.every)
        records = asyncio.run(soak.run(stack))
    for record in records:
        soak.errors += find_growth(record) if checks_growth else []
        print(json.dumps({"benchmark": "soak", **record}), flush=True)
    summary = {
        "benchmark": "soak",
        "minutes": options.minutes,
        "seconds": round(time.monotonic() - start, 1),
        "client_cpu_seconds": round(time.process_time() - own, 1),
        "growth_checked": checks_growth,
        **{name.replace(" ", "_"): count for name, count in soak.counts.items()},
        "errors": soak.errors,
    }
    print(json.dumps({**summary, "machine": machine()}))
    return 1 if soak.errors else 0


if __name__ == "__main__":
    sys.exit(main())
