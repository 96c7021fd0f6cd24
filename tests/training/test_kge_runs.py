"""The training of an embedding as a run: its folder, its end at any time, and going on with it."""

import os
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from phalanx.config import list_presets
from phalanx.kg.kge.embedding import load_kge, read_kge_metadata
from phalanx.logging import read_records
from phalanx.logging.report import read_run
from phalanx.training import run_dir as runs
from phalanx.training.algorithm import Progress, TrainResult
from phalanx.training.kge_training import KGEData, KGETraining, KGETrainingConfig, load_kge_training
from phalanx.training.run import train

pytestmark = pytest.mark.slow

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


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


@pytest.fixture(scope="module")
def data() -> KGEData:
    return KGEData.read("generated")


@pytest.fixture(scope="module")
def whole(data: KGEData, tmp_path_factory: pytest.TempPathFactory) -> tuple[KGETraining, TrainResult]:
    """Six epochs without a pause."""
    training = KGETraining(small_config(), data)
    return training, train(training, tmp_path_factory.mktemp("kge") / "whole")


def test_a_run_has_its_facts_its_metrics_and_the_best_embedding(
    whole: tuple[KGETraining, TrainResult], data: KGEData
) -> None:
    training, outcome = whole
    result, run = training.result, outcome.run_dir
    assert result is not None
    facts = runs.read_metadata(run)
    assert (facts["algorithm"], facts["status"], facts["updates"]) == ("kge", "finished", 6)
    assert (facts["best_epoch"], facts["mrr_100"]) == (result.epoch, result.mrr_100)
    lines = list(read_records(run / "batch_metrics.jsonl"))
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert set(lines[0]["metrics"]) == {"loss", "triples", "triples_per_second", "seconds"}
    assert ["mrr" in line["metrics"] for line in lines] == [False, True] * 3
    evaluations = list(read_records(run / "evaluations.jsonl"))
    assert [line["step"] for line in evaluations] == [2, 4, 6]
    best = max(evaluations, key=lambda line: line["mrr_100"])
    assert (best["step"], best["mrr_100"]) == (result.epoch, result.mrr_100)
    assert bits(load_kge(run / "kge", data.vocabulary)) == bits(result.kge)
    assert read_kge_metadata(run / "kge")["epoch"] == result.epoch
    assert read_run(run).metrics.last("mrr") is not None


def interrupt_at(epoch: int):
    def show(progress: Progress) -> None:
        if progress.update == epoch:
            os.kill(os.getpid(), signal.SIGINT)

    return show


@pytest.mark.parametrize("epoch", [1, 3], ids=["before any evaluation", "after the first"])
def test_a_run_that_was_interrupted_and_resumed_ends_with_the_same_bits(
    whole: tuple[KGETraining, TrainResult], data: KGEData, tmp_path: Path, epoch: int
) -> None:
    run, training = tmp_path / "run", KGETraining(small_config(), data)
    first = train(KGETraining(small_config(), data), run, show=interrupt_at(epoch))
    assert first.interrupted
    assert first.update == epoch
    assert runs.read_metadata(run)["status"] == "interrupted"
    load_kge(run / "kge", data.vocabulary)
    second = train(training, run, resume=True)
    assert not second.interrupted
    assert bits(second.state) == bits(whole[1].state)
    assert bits(training.result) == bits(whole[0].result)


def test_a_run_goes_on_only_with_its_own_data(whole: tuple[KGETraining, TrainResult], data: KGEData) -> None:
    changed = data._replace(train=data.train[1:])
    with pytest.raises(ValueError, match="the data has changed since checkpoint 6"):
        train(KGETraining(small_config(), changed), whole[1].run_dir, resume=True)


def test_queries_that_leak_into_the_training_file_are_not_learned(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("p(a,b).\np(b,c).\np(c,a).\n")
    (tmp_path / "valid.txt").write_text("p(b,c).\n")
    (tmp_path / "test.txt").write_text("p(c,a).\n")
    data = KGEData.read(str(tmp_path))
    assert [data.vocabulary.decode_atom(row) for row in data.train] == [("p", "a", "b")]
    assert len(data.known) == 3


def test_an_embedding_of_random_triples_does_not_validate_on_what_it_learned(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = np.unique(random.integers(0, 40, (300, 2)), axis=0)
    (tmp_path / "train.txt").write_text("".join(f"p(c{a},c{b}).\n" for a, b in rows))
    with pytest.warns(UserWarning, match="training triples are held out"):
        data = KGEData.read(str(tmp_path))
    assert not {*map(tuple, data.valid.tolist())} & {*map(tuple, data.train.tolist())}
    train(KGETraining(small_config("kge.epochs=60", "evaluation.every=10"), data), tmp_path / "run")
    assert runs.read_metadata(tmp_path / "run")["mrr"] < 0.4


@pytest.mark.parametrize("name", list_presets("train/kge"))
def test_every_preset_is_a_config_that_differs_from_the_defaults(name: str) -> None:
    config = load_kge_training(name)
    assert config != KGETrainingConfig()
    assert config.dataset == "generated", "which folder it is, only the user knows"
