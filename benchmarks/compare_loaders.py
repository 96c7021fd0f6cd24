"""Loaders of token batches side by side: fill, speed, memory, what a resume after a kill repeats or loses.

Every library is installed from PyPI in a virtual environment of its own; every phase (prepare, an epoch, an
epoch that is killed in its middle, its resume) is a process. One JSON line a loader, then a table. What each
does is in `runners/loaders_runner.py`.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np
import token_facts
from measuring.conditions import conditions
from measuring.options import positive, words
from measuring.peers import Peer, RunnerError

RUNNER = "loaders_runner.py"
PATIENCE = 120.0
"""Seconds after which a phase is given up."""
_TORCH = "torch==2.13.0"
PEERS = {
    "phalanx": Peer("phalanx", RUNNER),
    "phalanx streaming": Peer("phalanx", RUNNER),
    "trl": Peer("trl", RUNNER, (_TORCH, "trl==1.16.0", "datasets")),
    "axolotl": Peer(
        "axolotl",
        RUNNER,
        (_TORCH, "numba>=0.63.1", "transformers==5.16.1", "accelerate==1.13.0", "datasets==4.8.4"),
        ("axolotl==0.19.0",),
    ),
    "grain": Peer("grain", RUNNER, (_TORCH, "grain==0.2.18")),
    "litdata": Peer(
        "litdata",
        RUNNER,
        (_TORCH, "lightning-utilities", "filelock", "numpy", "boto3", "requests", "tifffile", "obstore"),
        ("litdata==0.2.76",),
    ),
    "mosaicml-streaming": Peer(
        "streaming",
        RUNNER,
        (
            *(
                _TORCH,
                "transformers<5",
                "numpy<2.2",
                "matplotlib<4",
                "paramiko<4",
                "google-cloud-storage<3.3",
            ),
            *("Brotli", "boto3", "catalogue", "python-snappy", "tqdm", "xxhash", "zstd"),
        ),
        ("mosaicml-streaming==0.13.0",),
    ),
}


def run(name: str, phase: str, folder: pathlib.Path, venvs: pathlib.Path, *more: str) -> dict[str, Any]:
    """One phase of a loader in a process of its own."""
    peer = PEERS[name]
    runner = pathlib.Path(__file__).parent / "runners" / peer.runner
    command = [str(peer.python(venvs)), str(runner), "--loader", name, "--phase", phase]
    try:
        done = subprocess.run(
            [*command, "--folder", str(folder), *more],
            env=peer.environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RunnerError(f"{name}, {phase}: not done after {PATIENCE:g} seconds") from error
    if done.returncode:
        raise RunnerError(f"{name}, {phase}: {done.stderr[-1500:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def measure(name: str, samples: int, venvs: pathlib.Path) -> dict[str, Any]:
    """All phases of a loader, on files of its own."""
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        lengths = token_facts.draw_lengths("lognormal", samples)
        np.save(folder / "lengths.npy", lengths)
        np.save(folder / "tokens.npy", np.repeat(np.arange(1, samples + 1, dtype=np.int32), lengths))
        prepared = run(name, "prepare", folder, venvs)
        whole = run(name, "whole", folder, venvs)
        killed = run(name, "killed", folder, venvs, "--batches", str(whole["batches"] // 2))
        resumed = run(name, "resumed", folder, venvs)
        counts = {
            phase: np.load(folder / f"counts-{phase}.npy")[1:] for phase in ("whole", "killed", "resumed")
        }
    together = counts["killed"] + counts["resumed"]
    return {
        "benchmark": "compare_loaders",
        "loader": name,
        "samples": samples,
        "tokens": int(lengths.sum()),
        "batches": whole["batches"],
        "prepare_seconds": round(prepared["prepare_seconds"], 3),
        "fill": round(whole["tokens"] / whole["slots"], 4),
        "tokens_per_second": round(whole["tokens"] / whole["seconds"]),
        "tokens_per_cpu_second": round(whole["tokens"] / whole["cpu_seconds"]),
        "resume_seconds": round(resumed["first_seconds"], 4),
        "resume_cpu_seconds": round(resumed["first_cpu_seconds"], 4),
        "state_bytes": killed["state_bytes"],
        "memory_mb": round(max(phase["memory_mb"] for phase in (prepared, whole, resumed)), 1),
        "samples_cut_or_left_out_of_an_epoch": int((counts["whole"] < lengths).sum()),
        "samples_lost_by_the_resume": int((together < counts["whole"]).sum()),
        "samples_repeated_by_the_resume": int((together > counts["whole"]).sum()),
        **conditions(),
    }


COLUMNS = {
    "loader": "loader",
    "fill": "fill",
    "tokens_per_second": "tokens/s",
    "tokens_per_cpu_second": "tokens/CPU s",
    "prepare_seconds": "prepared in s",
    "resume_seconds": "resumed in s",
    "state_bytes": "state, bytes",
    "memory_mb": "memory, MB",
    "samples_cut_or_left_out_of_an_epoch": "not whole in an epoch",
    "samples_lost_by_the_resume": "lost by the resume",
    "samples_repeated_by_the_resume": "repeated",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=positive, default=20_000)
    parser.add_argument("--loaders", type=words, default=tuple(PEERS), help=f"some of {','.join(PEERS)}")
    parser.add_argument(
        "--venv-dir", type=pathlib.Path, default=pathlib.Path.home() / ".cache" / "phalanx" / "peers"
    )
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.loaders if name not in PEERS]:
        parser.error(f"unknown loader {unknown[0]!r}; there are {', '.join(PEERS)}")
    found = []
    for name in arguments.loaders:
        try:
            found.append(measure(name, arguments.samples, arguments.venv_dir))
        except RunnerError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            continue
        print(json.dumps(found[-1]), flush=True)
    print("| " + " | ".join(COLUMNS.values()) + " |\n| --- |" + " ---: |" * (len(COLUMNS) - 1))
    for record in found:
        cells = [record[name] for name in COLUMNS]
        print("| " + " | ".join(f"{c:,}" if isinstance(c, int | float) else c for c in cells) + " |")


if __name__ == "__main__":
    main()
