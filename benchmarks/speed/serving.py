"""Server of text environments (`phalanx serve`): steps per second and latency with many concurrent sessions.

A server process and this process, which runs all clients, share the machine. Each session solves Sudoku
puzzles with the expert's answers, one move per step. Without pauses, the clients saturate the server. With
a mean pause of two seconds before each step, the latency is measured under the load of many slow models.
"""

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.suite import Suite
from benchmarks.timing import Measurement
from phalanx.puzzles import PuzzleEnvironment

suite = Suite("serving", unit="steps/s", packages=("uvicorn", "websockets"))

NUM_PUZZLES = 64


@contextlib.contextmanager
def running_server(env: str, max_sessions: int) -> Iterator[tuple[str, psutil.Process]]:
    """Run `phalanx serve` and return its URL and process."""
    command = [sys.executable, "-m", "phalanx", "serve", env, "--port", "0"]
    command += ["--max-sessions", str(max_sessions)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[3].rstrip(","), psutil.Process(process.pid)
        finally:
            process.terminate()


def expert_answers(kind: str) -> list[list[str]]:
    """Return the expert's moves for the first puzzles of a kind."""
    environment = PuzzleEnvironment(kind)
    answers = []
    for seed in range(NUM_PUZZLES):
        environment.reset(seed)
        answers.append(environment.expert_actions() or [])
    return answers


async def request(client: ClientConnection, kind: str, data: dict[str, Any]) -> dict[str, Any]:
    """Send a message and return the data of the reply."""
    await client.send(json.dumps({"type": kind, "data": data}))
    reply: dict[str, Any] = json.loads(await client.recv())["data"]
    return reply


async def _session(
    url: str, number: int, answers: list[list[str]], pause: float, start: asyncio.Barrier, seconds: float
) -> list[float]:
    """Run episodes and return the latency of each step in seconds."""
    rng, latencies = random.Random(number), []
    address = url.replace("http", "ws") + "/ws"
    async with connect(address, compression=None, ping_interval=None, open_timeout=60, proxy=None) as client:
        await request(client, "reset", {"seed": 0})
        await start.wait()
        end = time.perf_counter() + seconds
        await asyncio.sleep(rng.random() * pause)
        while True:
            seed = rng.randrange(NUM_PUZZLES)
            await request(client, "reset", {"seed": seed})
            for answer in answers[seed]:
                await asyncio.sleep(2 * rng.random() * pause)
                if time.perf_counter() >= end:
                    return latencies
                began = time.perf_counter()
                reply = await request(client, "step", {"answer": answer})
                latencies.append(time.perf_counter() - began)
            if not reply["observation"]["solved"]:
                raise AssertionError(f"puzzle {seed} was not solved by the expert's answers")


async def _load(url: str, num_sessions: int, pause: float, seconds: float) -> np.ndarray:
    answers, start = expert_answers("sudoku"), asyncio.Barrier(num_sessions)
    sessions = [_session(url, number, answers, pause, start, seconds) for number in range(num_sessions)]
    return np.concatenate(await asyncio.gather(*sessions))


@suite.experiment("load")
def load(smoke: bool) -> Iterator[Measurement]:
    """Measure throughput without pauses, and latency with pauses."""
    num_sessions, seconds, repeats = (4, 0.3, 1) if smoke else (1_000, 10.0, 3)
    for name, pause in (("saturated", 0.0), ("pauses", 0.05 if smoke else 2.0)):
        rates, cpu_rates, medians, tails = [], [], [], []
        for _ in range(repeats):
            with running_server("sudoku", num_sessions) as (url, process):
                before = sum(process.cpu_times()[:2])
                latencies = asyncio.run(_load(url, num_sessions, pause, seconds))
                cpu_rates.append(len(latencies) / max(sum(process.cpu_times()[:2]) - before, 1e-3))
            rates.append(len(latencies) / seconds)
            medians.append(1e3 * float(np.percentile(latencies, 50)))
            tails.append(1e3 * float(np.percentile(latencies, 99)))
        settings = {"num_sessions": num_sessions, "mean_pause_seconds": pause, "seconds": seconds}
        yield Measurement(f"steps-{name}", "phalanx", "steps/s", rates, cpu_rates, settings)
        yield Measurement(f"latency-median-{name}", "phalanx", "ms", medians, settings=settings)
        yield Measurement(f"latency-99th-percentile-{name}", "phalanx", "ms", tails, settings=settings)
