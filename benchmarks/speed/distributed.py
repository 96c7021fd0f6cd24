"""Scaling to several cores of one machine: environment steps, tokenization and training.

Each process may only use its own cores. `1-core` uses one process on one core, `2-cores` one process on two
cores, and `2-processes` two processes on one core each, which share the work. At least two cores are
required.
"""

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.peers import REPOSITORY, Worker
from benchmarks.suite import Suite
from benchmarks.timing import Measurement

suite = Suite("distributed", unit="steps/s", packages=("jax", "jaxlib"))

_TIMEOUT_SECONDS = 600
_SMOKE_TRAINING = (
    "num_envs=8",
    "num_steps=2",
    "num_minibatches=2",
    "num_env_shards=2",
    "network.kind=conv",
    "network.hidden_dim=4",
    "network.num_layers=1",
    "env.dataset.max_grid_height=5",
    "env.dataset.max_grid_width=5",
    "env.dataset.families=[fill_enclosed]",
)


def _ways() -> dict[str, list[list[int]]]:
    """Return the cores of each process, by name of the way."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise RuntimeError("the suite `distributed` requires at least two cores")
    return {"1-core": [cores[:1]], "2-cores": [cores], "2-processes": [[core] for core in cores]}


def _measure(settings: Sequence[dict[str, Any]], repeats: int) -> list[float]:
    """Measure several processes at the same time, and return the sum of their rates in each repeat."""
    command = [sys.executable, "-m", "benchmarks.workers.distributed_work"]
    workers = [Worker([*command, json.dumps(each)], use_source=True) for each in settings]
    try:
        for worker in workers:
            worker.wait_until_ready()
        with ThreadPoolExecutor(len(workers)) as executor:
            rounds = [list(executor.map(lambda worker: worker.measure(), workers)) for _ in range(repeats)]
    finally:
        for worker in workers:
            worker.__exit__()
    return [sum(repeat.work / repeat.seconds for repeat in each) for each in rounds]


@suite.experiment("arc-steps")
def arc_steps(smoke: bool) -> Iterator[Measurement]:
    """Step 4,096 ARC environments on 30x30 grids, or half of them per process."""
    num_envs, num_steps, seconds, repeats = (8, 2, 0.01, 1) if smoke else (4096, 32, 1.0, 5)
    for way, processes in _ways().items():
        settings = {
            "work": "arc_steps",
            "num_envs": num_envs // len(processes),
            "num_steps": num_steps,
            "seconds": seconds,
        }
        rates = _measure([{**settings, "cores": cores} for cores in processes], repeats)
        settings = {"num_envs": num_envs, "num_processes": len(processes)}
        yield Measurement(f"arc-steps-{way}", "phalanx", "steps/s", rates, settings=settings)
        if smoke:
            return


def _write_texts(path: Path, count: int) -> None:
    """Write texts of random words."""
    rng = random.Random(0)
    syllables = [first + vowel for first in "bdfgklmnprst" for vowel in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(20_000)]
    with path.open("w") as file:
        for row in range(count):
            text = " ".join(rng.choices(words, k=rng.randint(10, 80)))
            file.write(json.dumps({"id": f"s{row}", "text": text}) + "\n")


def _train_tokenizer(path: Path, corpus: Path) -> None:
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=4096, show_progress=False)
    lines = corpus.read_text().splitlines()
    texts = [json.loads(line)["text"] for line in lines[: max(100, len(lines) // 10)]]
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))


@suite.experiment("token-lengths")
def token_lengths(smoke: bool) -> Iterator[Measurement]:
    """Count the tokens of texts with a byte-pair encoding, on one core and with two worker processes."""
    count, seconds, repeats = (50, 0.01, 1) if smoke else (40_000, 1.0, 3)
    with tempfile.TemporaryDirectory() as folder:
        corpus, tokenizer = Path(folder, "corpus.jsonl"), Path(folder, "tokenizer.json")
        _write_texts(corpus, count)
        _train_tokenizer(tokenizer, corpus)
        common = {
            "work": "token_lengths",
            "path": str(corpus),
            "tokenizer": str(tokenizer),
            "num_bytes": corpus.stat().st_size,
            "seconds": seconds,
        }
        ways = _ways()
        for way, cores, num_workers in (
            ("1-core", ways["1-core"][0], 1),
            ("2-workers", ways["2-cores"][0], 2),
        ):
            values = _measure([{**common, "cores": cores, "num_workers": num_workers}], repeats)
            settings = {"num_texts": count, "num_workers": num_workers, "tokenizer": "BPE, 4,096 tokens"}
            yield Measurement(f"token-lengths-{way}", "phalanx", "MB/s", values, settings=settings)
            if smoke:
                return


@suite.experiment("training")
def training(smoke: bool) -> Iterator[Measurement]:
    """Train with the default ARC settings in one process and in two processes."""
    overrides = [
        f"num_updates={2 if smoke else 6}",
        "logging.log_frequency=1",
        "logging.sample_frequency=0",
        "evaluation.every=0",
        "evaluation.num_tasks=4",
        "evaluation.num_samples=0",
        f"env.dataset.num_tasks={8 if smoke else 200}",
        *(_SMOKE_TRAINING if smoke else ()),
    ]
    ways = _ways()
    with tempfile.TemporaryDirectory() as folder:
        for way in ["1-core"] if smoke else list(ways):
            run = Path(folder, way)
            _train(run, overrides, ways[way])
            lines = (run / "batch_metrics.jsonl").read_text().splitlines()
            # The first update includes compilation.
            rates = [json.loads(line)["metrics"]["env_steps_per_second"] for line in lines][1:]
            settings = {"num_processes": len(ways[way]), "num_updates": len(rates)}
            yield Measurement(f"training-{way}", "phalanx", "steps/s", rates, settings=settings)


def _train(folder: Path, overrides: Sequence[str], processes: Sequence[Sequence[int]]) -> None:
    """Run `phalanx train ppo` with one process for each entry, which lists the cores of the process."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "phalanx", "train", "ppo", "--env", "arc", *overrides]
    command += ["--out", str(folder)]
    group = ["--coordinator", f"127.0.0.1:{port}", "--num-processes", str(len(processes)), "--process-id"]
    children = [
        subprocess.Popen(
            ["taskset", "-c", ",".join(map(str, cores)), *command]
            + ([*group, str(number)] if len(processes) > 1 else []),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=REPOSITORY,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        for number, cores in enumerate(processes)
    ]
    try:
        outputs = [child.communicate(timeout=_TIMEOUT_SECONDS)[0] for child in children]
    finally:
        for child in children:
            child.kill()
    if any(child.returncode for child in children):
        raise RuntimeError("training failed:\n" + "\n".join(outputs))
