"""Many sessions of `phalanx serve` at once, on loopback: step latency at the clients, and what a step costs.

A server process and this one, which has all the clients. Each session plays episodes by the solver's answers,
from reset to solved, and thinks between them; with `--think 0` it does not, and the server is saturated. One
JSON line for each measurement; exit code 1 if an episode went otherwise than without the server.
"""

import argparse
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
from measuring.conditions import conditions
from measuring.options import positive
from websockets.asyncio.client import connect

from phalanx.puzzles import PuzzleEnvironment

SEEDS = 64
"""Episodes that are played; the answers to them are made before."""


@contextlib.contextmanager
def server(kind: str, difficulty: str, sessions: int) -> Iterator[tuple[str, psutil.Process]]:
    """A server's address and process."""
    command = [sys.executable, "-m", "phalanx", "serve", kind, f"difficulty={difficulty}", "--port", "0"]
    command += ["--max-sessions", str(sessions)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[3].rstrip(","), psutil.Process(process.pid)
        finally:
            process.terminate()


def solutions(kind: str, difficulty: str) -> list[list[str]]:
    """The solver's answers to each seed."""
    environment = PuzzleEnvironment(kind, difficulty)
    found = []
    for seed in range(SEEDS):
        environment.reset(seed)
        found.append(environment.expert_actions() or [])
    return found


async def play(
    url: str, number: int, answers: list[list[str]], think: float, gate: asyncio.Barrier, end: list[float]
) -> tuple[list[float], int, int]:
    """One session: the latencies of its steps, its episodes, and how many of them were solved."""
    draw, latencies, episodes, solved = random.Random(number), [], 0, 0
    address = url.replace("http", "ws") + "/ws"
    async with connect(address, compression=None, ping_interval=None, open_timeout=60, proxy=None) as client:

        async def asked(kind: str, data: dict[str, Any]) -> dict[str, Any]:
            await client.send(json.dumps({"type": kind, "data": data}))
            return json.loads(await client.recv())["data"]

        await asked("reset", {"seed": 0})
        await gate.wait()  # everybody is there
        await asyncio.sleep(draw.random() * think)
        while time.perf_counter() < end[0]:
            seed = draw.randrange(SEEDS)
            await asked("reset", {"seed": seed})
            for answer in answers[seed]:
                await asyncio.sleep(2 * draw.random() * think)
                if time.perf_counter() >= end[0]:
                    return latencies, episodes, solved
                started = time.perf_counter()
                told = await asked("step", {"answer": answer})
                latencies.append(time.perf_counter() - started)
            episodes, solved = episodes + 1, solved + (told["done"] and told["observation"]["solved"])
    return latencies, episodes, solved


async def load(url: str, process: psutil.Process, arguments: Any, think: float) -> dict[str, Any]:
    """All sessions side by side for some seconds."""
    answers, end = solutions(arguments.kind, arguments.difficulty), [0.0]
    spent: list[float] = []

    def begin() -> None:
        end[0] = time.perf_counter() + arguments.seconds
        spent.append(sum(process.cpu_times()[:2]))

    gate = asyncio.Barrier(arguments.sessions + 1)
    players = [
        asyncio.create_task(play(url, number, answers, think, gate, end))
        for number in range(arguments.sessions)
    ]
    end[0] = float("inf")
    await gate.wait()
    begin()
    own = time.process_time()
    found = await asyncio.gather(*players)
    cpu = sum(process.cpu_times()[:2]) - spent[0]
    latencies = 1000 * np.concatenate([each[0] for each in found])
    p50, p99 = np.percentile(latencies, [50, 99])
    return {
        "benchmark": "serve_load",
        "kind": arguments.kind,
        "difficulty": arguments.difficulty,
        "sessions": arguments.sessions,
        "think_seconds": think,
        "seconds": arguments.seconds,
        "steps": len(latencies),
        "env_steps_per_second": round(len(latencies) / arguments.seconds),
        "latency_ms_p50": round(float(p50), 2),
        "latency_ms_p99": round(float(p99), 2),
        "latency_ms_worst": round(float(latencies.max()), 2),
        "server_cpu_us_per_step": round(1e6 * cpu / len(latencies)),
        "client_cpu_us_per_step": round(1e6 * (time.process_time() - own) / len(latencies)),
        "server_memory_mb": round(process.memory_info().rss / 2**20),
        "episodes": sum(each[1] for each in found),
        "solved": sum(each[2] for each in found),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", default="sudoku")
    parser.add_argument("--difficulty", default="easy")
    parser.add_argument("--sessions", type=positive, default=1_000, help="at most 10,000")
    parser.add_argument("--seconds", type=positive, default=10, help="for each measurement; at most 120")
    parser.add_argument(
        "--think", type=float, nargs="+", default=[2.0, 0.0], help="mean seconds before an answer"
    )
    arguments = parser.parse_args()
    if arguments.sessions > 10_000 or arguments.seconds > 120:
        parser.error("at most 10,000 sessions and 120 seconds")
    known, right = conditions("uvicorn", "websockets"), True
    for think in arguments.think:
        with server(arguments.kind, arguments.difficulty, arguments.sessions) as (url, process):
            record = asyncio.run(load(url, process, arguments, think))
        right &= record["solved"] == record["episodes"]
        print(json.dumps({**record, **known}), flush=True)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
