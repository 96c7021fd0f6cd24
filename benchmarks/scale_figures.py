"""The figures of docs/scale.md: how plans, lengths, stepping and training behave in several processes.

One JSON line for each figure with `--json`, else a short line. Processes of one figure start together and are
held to cores of their own; what each does is in `scale_workers`. It needs Linux and at least two cores.
"""

import argparse
import hashlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from measuring.conditions import conditions

WORKER = Path(__file__).parent / "scale_workers.py"
PATIENCE = 600
RANKS = (1, 2, 4, 8)
FIGURES = ("plans", "lengths", "stepping", "training")


def side_by_side(settings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What processes with these settings measured, all at the same time."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    children = [
        subprocess.Popen(
            [sys.executable, str(WORKER), json.dumps(one)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for one in settings
    ]
    try:
        for child in children:
            assert child.stdout is not None
            if child.stdout.readline() != '"ready"\n':
                raise RuntimeError("a process ended before it was ready; its complaint is above")
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        told = [child.communicate(timeout=PATIENCE)[0] for child in children]
    finally:
        for child in children:
            child.kill()
            child.communicate()
    return [json.loads(text) for text in told]


def cores(count: int, first: int = 0) -> list[int]:
    """Some of the cores that this process may use, from the first again where there are too few."""
    mine = sorted(os.sched_getaffinity(0))
    return sorted({mine[(first + number) % len(mine)] for number in range(count)})


def plans(quick: bool) -> Iterator[dict[str, Any]]:
    """Ranks that each make the whole plan and take their share; then one rank with many lengths."""
    samples = 20_000 if quick else 1_000_000
    for ranks in (2,) if quick else RANKS:
        settings = [
            {"work": "plan", "samples": samples, "rank": rank, "ranks": ranks, "cores": cores(1, rank)}
            for rank in range(ranks)
        ]
        found = side_by_side(settings)
        tokens = [one["tokens"] for one in found]
        yield {
            "figure": "sharded plan",
            "lengths": samples,
            "ranks": ranks,
            "fingerprints": len({one["fingerprint"] for one in found}),
            "batches_of_each": sorted({one["batches"] for one in found}),
            "samples_in_all": sum(one["samples"] for one in found),
            "tokens_largest_over_mean": round(max(tokens) * ranks / sum(tokens), 6),
            "flops_by_rank": round(found[0]["flop_balance"]["by_rank"], 6),
            "flops_by_step": round(found[0]["flop_balance"]["by_step"], 6),
        }
    for samples in (20_000,) if quick else (1_000_000, 10_000_000):
        [one] = side_by_side([{"work": "plan", "samples": samples, "rank": 0, "ranks": 8, "cores": cores(1)}])
        names = ("plan_seconds", "fingerprint_seconds", "shard_seconds")
        memory = ("peak_megabytes", "megabytes_for_the_plan")
        yield {
            "figure": "one rank of eight",
            "lengths": samples,
            **{name: round(one[name], 4) for name in names},
            **{name: round(one[name]) for name in memory},
        }


def write_corpus(folder: Path, texts: int) -> tuple[Path, Path]:
    """Short texts of invented words, in one file; and a BPE of 4,096 tokens trained on a tenth of them."""
    import tokenizers

    rng = random.Random(0)
    syllables = [
        first + vowel + last for first in "bdfgklmnprst" for vowel in "aeiou" for last in ("", "n", "r")
    ]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(20_000)]
    chosen = [" ".join(rng.choices(words, k=rng.randint(10, 80))) for _ in range(texts)]
    corpus = folder / "corpus.jsonl"
    with corpus.open("w") as file:
        file.writelines(json.dumps({"id": f"s{row}", "text": text}) + "\n" for row, text in enumerate(chosen))
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=4096, show_progress=False)
    model.train_from_iterator(chosen[: max(100, texts // 10)], trainer)
    model.save(str(folder / "tokenizer.json"))
    return corpus, folder / "tokenizer.json"


def halves(corpus: Path, folder: Path) -> list[Path]:
    """The corpus in two files, for two processes."""
    lines = corpus.read_text().splitlines(keepends=True)
    files = [folder / "first.jsonl", folder / "second.jsonl"]
    for file, part in zip(files, (lines[: len(lines) // 2], lines[len(lines) // 2 :]), strict=True):
        file.write_text("".join(part))
    return files


def lengths(quick: bool) -> Iterator[dict[str, Any]]:
    """Length building by one process, by two with half the corpus each, and on Ray."""
    with tempfile.TemporaryDirectory() as name:
        for tokenizer, texts in (("BPE", 40_000), ("bytes", 200_000)):
            folder = Path(name) / tokenizer
            folder.mkdir()
            corpus, bpe = write_corpus(folder, 500 if quick else texts)
            yield from _length_ways(folder, corpus, tokenizer, "bytes" if tokenizer == "bytes" else str(bpe))


def _length_ways(folder: Path, corpus: Path, called: str, tokenizer: str) -> Iterator[dict[str, Any]]:
    ways = {
        "one process, one core": [(corpus, cores(1), False, 1)],
        "one process, two cores": [(corpus, cores(2), True, 1)],
        "two processes": [(part, cores(1, row), False, 1) for row, part in enumerate(halves(corpus, folder))],
        "two workers": [(corpus, cores(2), False, 2)],
        "Ray, two workers": [(corpus, cores(2), False, 2)],
    }
    caches: dict[str, bytes] = {}
    for way, processes in ways.items():
        settings: list[dict[str, Any]] = [
            {
                "work": "lengths",
                "tokenizer": tokenizer,
                "dataset": str(part),
                "output": str(folder / f"{way}-{row}.lengths"),
                "cores": used,
                "threads": threads,
                "workers": workers,
                "on_ray": way.startswith("Ray"),
            }
            for row, (part, used, threads, workers) in enumerate(processes)
        ]
        found = side_by_side(settings)
        caches[way] = b"".join(Path(one["output"]).read_bytes() for one in settings)
        seconds = max(one["seconds"] for one in found)
        tokens = sum(one["tokens"] for one in found)
        yield {
            "figure": "length building",
            "tokenizer": called,
            "way": way,
            "samples": sum(one["samples"] for one in found),
            "tokens": tokens,
            "corpus_bytes": corpus.stat().st_size,
            "seconds": round(seconds, 3),
            "seconds_to_first_batch": round(max(one["seconds_to_first_batch"] for one in found), 3),
            "tokens_per_second": round(tokens / seconds),
            "same_bytes": caches[way] == next(iter(caches.values())),
        }


def stepping(quick: bool) -> Iterator[dict[str, Any]]:
    """ARC steps on the native engine by one process on one core or two, and by two with half each."""
    for batch in (16,) if quick else (1_024, 4_096, 16_384):
        ways = {
            "one process, one core": [(batch, cores(1))],
            "one process, two cores": [(batch, cores(2))],
            "one process, a device for each of two cores": [(batch, cores(2))],
            "two processes": [(batch // 2, cores(1, row)) for row in (0, 1)],
        }
        for way, processes in ways.items():
            settings = [
                {
                    "work": "step",
                    "batch": share,
                    "cores": used,
                    "devices": 2 if "device" in way else 1,
                    "repeats": 1 if quick else 5,
                    "steps": 4 if quick else None,
                }
                for share, used in processes
            ]
            found = side_by_side(settings)
            rate = sum(statistics.median(one["rates"]) for one in found)
            yield {
                "figure": "stepping",
                "grid": "30x30",
                "environments": batch,
                "way": way,
                "env_steps_per_second": round(rate),
            }


def training(quick: bool) -> Iterator[dict[str, Any]]:
    """The default ARC training by one process on one core or two, and by two processes on one machine."""
    overrides = [
        "num_updates=5",
        "logging.log_frequency=1",
        "evaluation.every=0",
        "evaluation.num_tasks=4",
    ]
    overrides += ["evaluation.num_samples=0", "logging.sample_frequency=1000", "env.dataset.num_tasks=200"]
    if quick:
        overrides += ["num_updates=2", "num_envs=8", "num_steps=2", "num_minibatches=2"]
        overrides += [
            "network.kind=conv",
            "network.hidden_dim=8",
            "network.num_layers=1",
            "num_env_shards=2",
        ]
    ways = {"one process, one core": [cores(1)], "one process, two cores": [cores(2)]}
    ways["two processes"] = [cores(1, 0), cores(1, 1)]
    if quick:
        ways = {"one process, two cores": [cores(2)], "two processes": [cores(1, 0), cores(1, 1)]}
    reference: dict[int, dict[str, float]] = {}
    weights = ""
    with tempfile.TemporaryDirectory() as name:
        for way, processes in ways.items():
            folder = Path(name) / way.replace(" ", "_").replace(",", "")
            begun = time.perf_counter()
            _train(folder, overrides, processes)
            whole = time.perf_counter() - begun
            lines = [json.loads(line) for line in (folder / "batch_metrics.jsonl").read_text().splitlines()]
            metrics = {line["step"]: line["metrics"] for line in lines}
            reference, weights = reference or metrics, weights or weights_digest(folder)
            last = max(metrics)
            # The first update compiles.
            rates = [told["env_steps_per_second"] for update, told in metrics.items() if update > 1]
            yield {
                "figure": "training",
                "way": way,
                "updates": len(metrics),
                "env_steps_per_second": round(statistics.median(rates)),
                "seconds_with_starting_and_compiling": round(whole, 1),
                "difference_at_last_update": largest_difference(reference[last], metrics[last]),
                "same_weights": weights_digest(folder) == weights,
            }


def _train(folder: Path, overrides: Sequence[str], processes: Sequence[Sequence[int]]) -> None:
    """One training by these processes, each on its cores."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "phalanx",
        "train",
        "ppo",
        "--env",
        "arc",
        *overrides,
        "--out",
        str(folder),
    ]
    joined = ["--coordinator", f"127.0.0.1:{port}", "--num-processes", str(len(processes)), "--process-id"]
    children = [
        subprocess.Popen(
            [*command, *([*joined, str(number)] if len(processes) > 1 else [])],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
            # JAX makes as many threads as it finds cores when it starts.
            preexec_fn=lambda used=used: os.sched_setaffinity(0, used),
        )
        for number, used in enumerate(processes)
    ]
    try:
        said = [child.communicate(timeout=PATIENCE)[0] for child in children]
    finally:
        for child in children:
            child.kill()
    if any(child.returncode for child in children):
        raise RuntimeError("a training failed:\n" + "\n".join(said))


def weights_digest(run: Path) -> str:
    """Of the weights in a run's newest checkpoint."""
    from phalanx.training.checkpoints import open_checkpoint

    with open_checkpoint(run) as (checkpoints, step, metadata):
        names = sorted(metadata["params"])
        arrays = checkpoints.arrays(step, names)
    return hashlib.sha256(b"".join(arrays[name].tobytes() for name in names)).hexdigest()


def largest_difference(one: dict[str, float], other: dict[str, float]) -> tuple[float, str]:
    """Between metrics of an update, and in which; relative, or for values below 0.01 relative to that.

    >>> largest_difference({"loss": 2.0}, {"loss": 2.5})
    (0.25, 'loss')
    """
    # These the clock decides.
    names = one.keys() - {"env_steps_per_second", "seconds"}
    return max((abs(one[name] - other[name]) / max(abs(one[name]), 0.01), name) for name in names)


def main() -> int:
    """Measure what was asked for, and print each figure as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default=",".join(FIGURES), help="which figures, with commas")
    parser.add_argument("--quick", action="store_true", help="tiny: a smoke test, not a figure")
    parser.add_argument("--json", action="store_true", help="one JSON line for each figure")
    options = parser.parse_args()
    known = {"plans": plans, "lengths": lengths, "stepping": stepping, "training": training}
    unknown = [name for name in options.only.split(",") if name not in known]
    if unknown:
        parser.error(f"no figure {unknown[0]!r}; there are {', '.join(FIGURES)}")
    for name in options.only.split(","):
        for figure in known[name](options.quick):
            if options.json:
                print(json.dumps({"benchmark": "scale"} | figure | conditions()), flush=True)
            else:
                print(", ".join(f"{key} {value}" for key, value in figure.items()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
