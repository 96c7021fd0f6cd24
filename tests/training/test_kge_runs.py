"""Training runs of embeddings: files, interruption and resumption."""

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from phalanx.config import list_presets
from phalanx.kg.kge.embedding import load_kge, load_kge_metadata
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.logging import read_records
from phalanx.training import run_dir as runs
from phalanx.training.algorithm import Progress, TrainResult
from phalanx.training.kge import KGEConfig, KGETrainer
from phalanx.training.run import train

pytestmark = pytest.mark.slow

SMALL = (
    "model.embedding_dim=16",
    "optimizer.learning_rate=0.1",
    "num_epochs=6",
    "batch_size=512",
    "num_negatives_per_batch=16",
    "evaluation.every=2",
    "evaluation.max_queries=50",
    "checkpoint.every=4",
)


def small_config(*overrides: str) -> KGEConfig:
    return KGEConfig.load(None, (*SMALL, *overrides))


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


@pytest.fixture(scope="module")
def base() -> KnowledgeBase:
    return KnowledgeBase.generate()


@pytest.fixture(scope="module")
def complete_run(
    base: KnowledgeBase, tmp_path_factory: pytest.TempPathFactory
) -> tuple[KGETrainer, TrainResult]:
    """Train for six epochs without interruption."""
    trainer = KGETrainer(small_config(), base)
    return trainer, train(trainer, tmp_path_factory.mktemp("kge") / "complete")


def test_run_has_metadata_metrics_and_the_best_embedding(
    complete_run: tuple[KGETrainer, TrainResult], base: KnowledgeBase
) -> None:
    trainer, result = complete_run
    run = result.run_dir
    metadata = runs.load_metadata(run)
    assert (metadata["algorithm"], metadata["status"], metadata["updates"]) == ("kge", "finished", 6)
    records = list(read_records(run / "batch_metrics.jsonl"))
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert set(records[0]["metrics"]) == {"loss", "triples", "triples_per_second", "seconds"}
    evaluations = list(read_records(run / "evaluations.jsonl"))
    assert [record["step"] for record in evaluations] == [0, 2, 4, 6]
    best = max(evaluations, key=lambda record: record["mrr_100"])
    exported = load_kge_metadata(run / "kge")
    validation = {name: exported[name] for name in ("mrr", "mrr_100")}
    assert (best["step"], best["mrr"], best["mrr_100"]) == (exported["epoch"], *validation.values())
    kge = load_kge(run, base.vocabulary)
    assert trainer.validate(kge) == validation
    assert float(kge.slope) != 1.0


def test_summary_has_a_line_for_each_seed(base: KnowledgeBase, tmp_path: Path) -> None:
    trainer = KGETrainer(small_config("num_seeds=2", "num_epochs=2"), base)
    lines = trainer.summarize(train(trainer, tmp_path / "run"))
    assert [line.rpartition(" ")[2] for line in lines] == [
        str(tmp_path / "run" / seed / "kge") for seed in ("seed_0", "seed_1")
    ]


def interrupt_at(epoch: int):
    def show(progress: Progress) -> None:
        if progress.update == epoch:
            os.kill(os.getpid(), signal.SIGINT)

    return show


@pytest.mark.parametrize("epoch", [1, 3], ids=["before the first evaluation", "after the first evaluation"])
def test_resumed_run_is_bit_identical(
    complete_run: tuple[KGETrainer, TrainResult], base: KnowledgeBase, tmp_path: Path, epoch: int
) -> None:
    run, trainer = tmp_path / "run", KGETrainer(small_config(), base)
    first = train(KGETrainer(small_config(), base), run, show=interrupt_at(epoch))
    assert first.interrupted
    assert first.update == epoch
    assert runs.load_metadata(run)["status"] == "interrupted"
    load_kge(run, base.vocabulary)
    second = train(trainer, run, resume=True)
    assert not second.interrupted
    assert bits(second.state) == bits(complete_run[1].state)
    folders = (run, complete_run[1].run_dir)
    assert load_kge_metadata(run / "kge") == load_kge_metadata(folders[1] / "kge")
    exported, expected = (load_kge(folder, base.vocabulary) for folder in folders)
    assert bits(exported) == bits(expected)


def test_resume_requires_the_same_data(
    complete_run: tuple[KGETrainer, TrainResult], base: KnowledgeBase
) -> None:
    changed = dataclasses.replace(base, train=base.train[1:])
    with pytest.raises(ValueError, match="the data has changed since checkpoint"):
        train(KGETrainer(small_config(), changed), complete_run[1].run_dir, resume=True)


def test_queries_that_leak_into_the_training_file_are_not_trained_on(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("p(a,b).\np(b,c).\np(c,a).\n")
    (tmp_path / "valid.txt").write_text("p(b,c).\n")
    (tmp_path / "test.txt").write_text("p(c,a).\n")
    trainer = KGETrainer(KGEConfig(dataset=str(tmp_path)))
    vocabulary = trainer.knowledge_base.vocabulary
    assert [vocabulary.decode_atom(row) for row in trainer.train.triples] == [("p", "a", "b")]
    assert len(trainer.knowledge_base.known_triples) == 3


def test_validation_queries_are_held_out_if_there_are_none(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = np.unique(random.integers(0, 40, (300, 2)), axis=0)
    (tmp_path / "train.txt").write_text("".join(f"p(c{a},c{b}).\n" for a, b in rows))
    config = small_config(f"dataset={tmp_path}", "num_epochs=60", "evaluation.every=10")
    with pytest.warns(UserWarning, match="training triples are held out"):
        trainer = KGETrainer(config)
    valid = trainer.knowledge_base.triples("valid")
    assert not {*map(tuple, valid.tolist())} & {*map(tuple, trainer.train.triples.tolist())}
    train(trainer, tmp_path / "run")
    assert load_kge_metadata(tmp_path / "run" / "kge")["mrr"] < 0.4, "random triples cannot be predicted"


@pytest.mark.parametrize("name", list_presets("kge"))
def test_every_preset_differs_from_the_defaults(name: str) -> None:
    config = KGEConfig.load(name)
    assert config != KGEConfig()
    assert config.dataset == "generated", "presets do not set the folder of the dataset"
