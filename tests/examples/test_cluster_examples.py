"""The SLURM script under a scheduler's signals; the container file names what there is."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "examples" / "cluster"
DESCENT = ROOT / "tests" / "helpers" / "descent.py"


def test_the_slurm_script_saves_at_sigterm_puts_the_job_back_and_says_finished_in_the_end(
    tmp_path: Path,
) -> None:
    (programs := tmp_path / "bin").mkdir()
    # SLURM itself is not here: what the script tells it is written down.
    (programs / "scontrol").write_text(f"#!/bin/sh\necho $@ >> {tmp_path}/told\n")
    (programs / "scontrol").chmod(0o755)
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = os.environ | {"PATH": path, "RUN": str(tmp_path / "run"), "SLURM_JOB_ID": "7"}
    variables |= {"PHALANX_TRAIN": str(DESCENT)}
    command = ["bash", str(CLUSTER / "train.slurm"), "num_updates=1000000"]
    job = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)
    began = time.monotonic()
    while not (tmp_path / "run/batch_metrics.jsonl").exists() and time.monotonic() < began + 120:
        time.sleep(0.1)
    job.send_signal(signal.SIGTERM)
    said, _ = job.communicate(timeout=120)
    assert (job.returncode, "Interrupted after" in said) == (143, True)
    assert (tmp_path / "told").read_text() == "requeue 7\n"


def test_the_script_asks_slurm_for_the_signal_and_for_another_turn() -> None:
    asked = re.findall(r"^#SBATCH (.*)$", (CLUSTER / "train.slurm").read_text(), re.MULTILINE)
    assert {"--requeue", "--signal=B:TERM@120", "--open-mode=append"} <= set(asked)


def test_the_container_copies_and_installs_what_there_is() -> None:
    text = (CLUSTER / "Containerfile").read_text()
    assert (ROOT / "constraints/ci.txt").is_file() and "PIP_CONSTRAINT=constraints/ci.txt" in text
    assert 'ENTRYPOINT ["phalanx"]' in text
    assert 'cuda = ["phalanx[jax]", "jax[cuda12]' in (ROOT / "pyproject.toml").read_text()
