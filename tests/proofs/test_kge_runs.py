"""The training of an embedding as a run: its folder, its end at any time, and going on with it."""

import os
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from phalanx.agents.kge_training import (
    KGEData,
    KGEOutcome,
    KGEProgress,
    KGETrainingConfig,
    load_kge_training,
    train_kge,
)
from phalanx.core.config import list_presets
from phalanx.logs import FileHandler, read_records
from phalanx.logs.report import read_run
from phalanx.proofs.kge.files import load_kge, read_kge_facts
from phalanx.runs import folder as runs

SMALL = (
    "kge.dim=8",
    "kge.epochs=6",
    "kge.batch_size=512",
    "kge.negatives=16",
    "evaluation.every=2",
    "evaluation.max_queries=50",
    "checkpoint.every=4",
)


def small_config(*overrides: str) -> KGETrainingConfig:
    return load_kge_training(None, (*SMALL, *overrides))


def files(folder: Path, config: Any) -> dict[str, Any]:
    return {"files": FileHandler(folder, config)}


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


@pytest.fixture(scope="module")
def data() -> KGEData:
    return KGEData.read("generated")


@pytest.fixture(scope="module")
def whole(data: KGEData, tmp_path_factory: pytest.TempPathFactory) -> KGEOutcome:
    """Six epochs without a pause."""
    folder = tmp_path_factory.mktemp("kge") / "whole"
    return train_kge(small_config(), folder, handlers=files, data=data)


def test_a_run_has_its_facts_its_metrics_and_the_best_embedding(whole: KGEOutcome, data: KGEData) -> None:
    facts = runs.read_facts(whole.run)
    assert (facts["kind"], facts["status"], facts["updates"]) == ("kge", "finished", 6)
    assert facts["mrr_100"] == whole.validation.mrr_100
    lines = list(read_records(whole.run / "batch_metrics.jsonl"))
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert set(lines[0]["metrics"]) == {"loss", "triples_per_second", "seconds"}
    assert ["mrr" in line["metrics"] for line in lines] == [False, True] * 3
    evaluations = list(read_records(whole.run / "evaluations.jsonl"))
    assert [line["step"] for line in evaluations] == [2, 4, 6]
    best = max(evaluations, key=lambda line: line["mrr_100"])
    assert (best["step"], best["mrr_100"]) == (whole.best_epoch, whole.validation.mrr_100)
    assert bits(load_kge(whole.run / "kge", data.index_manager)) == bits(whole.best)
    assert read_kge_facts(whole.run / "kge")["epoch"] == whole.best_epoch
    assert read_run(whole.run).metrics.last("mrr") is not None


def interrupt_at(epoch: int):
    def show(progress: KGEProgress) -> None:
        if progress.epoch == epoch:
            os.kill(os.getpid(), signal.SIGINT)

    return show


def test_a_run_that_was_interrupted_and_resumed_ends_with_the_same_bits(
    whole: KGEOutcome, data: KGEData, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    first = train_kge(small_config(), run, handlers=files, show=interrupt_at(3), data=data)
    assert first.interrupted and first.epoch == 3
    assert runs.read_facts(run)["status"] == "interrupted"
    load_kge(run / "kge", data.index_manager)
    second = train_kge(small_config(), run, resume=True, handlers=files, data=data)
    assert not second.interrupted
    assert bits(second.learner) == bits(whole.learner)
    assert bits(second.best) == bits(whole.best)
    assert (second.best_epoch, second.validation) == (whole.best_epoch, whole.validation)


def test_a_run_goes_on_only_with_its_own_config_and_data(
    whole: KGEOutcome, data: KGEData, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"another config: dim: 8 \(now dim: 16\)"):
        train_kge(small_config("kge.dim=16"), whole.run, resume=True, handlers=files, data=data)
    changed = data._replace(train=data.train[1:])
    with pytest.raises(ValueError, match="generated has changed since checkpoint 6"):
        train_kge(small_config(), whole.run, resume=True, handlers=files, data=changed)
    run = runs.create_run(tmp_path / "run", small_config(), {"kind": "kge"})
    with pytest.raises(ValueError, match="no checkpoint to resume from"):
        train_kge(small_config(), run, resume=True, handlers=files, data=data)


def test_a_folder_that_holds_something_is_never_written_to(tmp_path: Path, data: KGEData) -> None:
    (tmp_path / "thesis.tex").write_text("chapter one")
    with pytest.raises(ValueError, match=r"--resume .* or give another --out"):
        train_kge(small_config(), tmp_path, handlers=files, data=data)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_queries_that_leak_into_the_training_file_are_not_learned(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("p(a,b).\np(b,c).\np(c,a).\n")
    (tmp_path / "valid.txt").write_text("p(b,c).\n")
    (tmp_path / "test.txt").write_text("p(c,a).\n")
    data = KGEData.read(str(tmp_path))
    assert [data.index_manager.decode_atom(row) for row in data.train] == [("p", "a", "b")]
    assert len(data.known) == 3


def test_an_embedding_of_random_triples_does_not_validate_on_what_it_learned(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = np.unique(random.integers(0, 40, (300, 2)), axis=0)
    (tmp_path / "train.txt").write_text("".join(f"p(c{a},c{b}).\n" for a, b in rows))
    with pytest.warns(UserWarning, match="training triples are held out"):
        data = KGEData.read(str(tmp_path))
    assert not {*map(tuple, data.valid.tolist())} & {*map(tuple, data.train.tolist())}
    outcome = train_kge(small_config("kge.epochs=60"), tmp_path / "run", handlers=files, data=data)
    assert outcome.validation.mrr < 0.4


@pytest.mark.parametrize("name", list_presets("train/kge"))
def test_every_preset_is_a_config_that_differs_from_the_defaults(name: str) -> None:
    config = load_kge_training(name)
    assert config != KGETrainingConfig()
    assert config.dataset == "generated", "which folder it is, only the user knows"
