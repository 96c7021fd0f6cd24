"""`phalanx train kge`, as a user runs it."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from phalanx.cli.errors import UserError
from phalanx.cli.train import app

pytestmark = pytest.mark.slow

SMALL = ["model.embedding_dim=8", "num_epochs=6", "num_negatives_per_batch=16", "evaluation.every=2"]


def train(*arguments: str | Path) -> str:
    """What the command prints."""
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["kge", *map(str, arguments)])
    if result.exception is not None:
        raise result.exception
    return result.stdout


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("train_kge") / "run"
    return out, train(*SMALL, "--out", out)


def test_last_lines_show_the_best_result_and_the_paths(run: tuple[Path, str]) -> None:
    out, output = run
    lines = output.strip().splitlines()
    facts = json.loads((out / "run.json").read_text())
    assert lines[-1] == f"Run {out}, report {out}/report.html, checkpoint {out}/checkpoints"
    best = json.loads((out / "kge" / "config.json").read_text())
    assert lines[-3].startswith(
        f"Validation MRR, filtered: {best['metadata']['mrr_100']:.4f} against 100 candidates"
    )
    assert lines[-3].endswith(f"embedding {out}/kge")
    assert "Finished after 6 updates, 6," in lines[-2]
    assert (out / "report.html").is_file() and (out / "kge" / "config.json").is_file()
    assert facts["algorithm"] == "kge"


def test_resuming_a_finished_run_changes_nothing(run: tuple[Path, str]) -> None:
    out, output = run
    before = (out / "kge" / "config.json").read_text()
    again = train("--out", out, "--resume")
    assert again.strip().splitlines()[-3] == output.strip().splitlines()[-3]
    assert json.loads(before)["arrays"] == json.loads((out / "kge" / "config.json").read_text())["arrays"]


def test_run_with_an_unknown_setting_is_rejected(run: tuple[Path, str], tmp_path: Path) -> None:
    out = shutil.copytree(run[0], tmp_path / "run")
    settings = (out / "config.yaml").read_text()
    (out / "config.yaml").write_text(settings.replace("num_negatives_per_batch:", "num_negatives:"))
    message = r"config\.yaml: unknown key 'num_negatives'; did you mean 'num_negatives_per_batch'\?$"
    with pytest.raises(UserError, match=message):
        train("--out", out, "--resume")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["num_negative=3"], "did you mean 'num_negatives_per_batch'?"),
        (["model.name=rotate", "model.embedding_dim=5"], "embedding_dim must be even for rotate"),
        (["dataset=/nowhere"], "/nowhere"),
        (["--config", "famly"], "did you mean 'family'?"),
        (["--resume"], "--resume requires --out"),
        (["--resume", "--out", "/nowhere"], "is not a run"),
        (["num_negatives_per_batch=100000"], "num_negatives_per_batch must be at most"),
    ],
)
def test_invalid_arguments_are_reported(arguments: list[str], message: str, tmp_path: Path) -> None:
    elsewhere = [] if "--resume" in arguments else ["--out", tmp_path / "run"]
    with pytest.raises(UserError, match=re.escape(message)):
        train(*arguments, *elsewhere)


def test_existing_run_is_not_changed(run: tuple[Path, str]) -> None:
    out, _ = run
    before = (out / "run.json").read_bytes()
    with pytest.raises(UserError, match="add --resume to continue the run in it, or choose another --out"):
        train(*SMALL, "--out", out)
    assert (out / "run.json").read_bytes() == before


def test_help_needs_no_jax() -> None:
    code = "import sys; import phalanx.cli.train; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, env=dict(os.environ)).returncode == 0


def test_unknown_tracker_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown tracker 'aim'; choose from wandb, tensorboard, mlflow"):
        train(*SMALL, "--out", tmp_path / "run", "--tracker", "aim")
    assert not (tmp_path / "run").exists()


def test_embedding_is_evaluated_alone_with_proofs_and_on_another_folder(
    run: tuple[Path, str], tmp_path: Path, phalanx: Callable[..., Any]
) -> None:
    few = ("max_queries=4", "--json")
    alone = json.loads(phalanx("eval", run[0], *few).out)
    assert (alone["mode"], alone["num_queries"]) == ("kge", 4)
    assert 0 < alone["mrr"] <= 1
    assert phalanx("kg", "generate", "--out", tmp_path / "same").code == 0
    again = json.loads(phalanx("eval", run[0], f"dataset={tmp_path / 'same'}", *few).out)
    assert again["mrr"] == alone["mrr"]
    both = json.loads(phalanx("eval", run[0], "mode=learned", *few).out)
    assert both["proved_rate"] is not None
    assert phalanx("eval", run[0], "mode=policy").code == 2
