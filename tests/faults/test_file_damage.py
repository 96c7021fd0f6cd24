"""Damage to any checksummed file is reported when it is read, and never read as data."""

import os
import random
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.cli.doctor import check_path
from phalanx.compat.chuk_lazarus.data.batching.planning import (
    BatchFingerprint,
    EpochPlan,
    compute_batch_fingerprint,
)
from phalanx.data import (
    BatchingConfig,
    BatchPlanBuilder,
    BatchReader,
    BatchWriter,
    LengthCache,
    ReplayBuffer,
    ReplayBufferConfig,
    Sample,
    SampleInfo,
    load_batch_plan,
    load_samples,
    save_batch_plan,
    save_samples,
)
from phalanx.kg import Atom, KnowledgeBase
from phalanx.kg.kge.embedding import KGE, load_kge, load_kge_metadata, save_kge
from phalanx.kg.kge.models import KGEModelConfig
from phalanx.kg.vocabulary import Vocabulary
from phalanx.training.checkpoints import Checkpointer
from tests.helpers.file_damage import DamageableFiles, Format, archive, read_archive

pytestmark = pytest.mark.slow

DAMAGES = int(os.environ.get("PHALANX_DAMAGES", "200"))
LENGTHS = {f"s{n}": 1 + n % 7 for n in range(40)}
PLAN = BatchPlanBuilder(LENGTHS, BatchingConfig.throughput(64)).build(2)
FACTS = (Atom("likes", "a", "b"), Atom("knows", "b", "c"))
NAMES = Vocabulary(KnowledgeBase(train=FACTS, valid=(), test=(), rules=()))
STATE = {"weights": jnp.arange(600, dtype=jnp.float32), "count": jnp.int32(3)}


def cache(path: Path) -> None:
    with LengthCache.create(path, "bytes") as opened:
        for name, length in LENGTHS.items():
            opened.add(name, length)


def read_plan(path: Path) -> Any:
    plan = load_batch_plan(path, verify=True)
    batches = [[spec.sample_ids for spec in epoch] for epoch in plan.epochs]
    return plan.full_hash, plan.table.as_dict(), batches


def batches(path: Path) -> None:
    samples = {name: {"input_ids": list(range(length))} for name, length in LENGTHS.items()}
    BatchWriter(PLAN, samples, path).write_all()


def read_batches(path: Path) -> Any:
    found = BatchReader(path)
    return found.fingerprint, [
        (batch.spec.sample_ids, batch.input_ids.tolist(), batch.loss_mask.tolist())
        for epoch in (0, 1)
        for batch in found.iter_epoch(epoch)
    ]


def samples() -> list[Sample]:
    infos = [SampleInfo(dataset_id="d", origin="environment", reward=n / 7) for n in range(20)]
    return [Sample(f"s{n}", range(1, 9), (0, 1) * 4, info=info) for n, info in enumerate(infos)]


def replay(path: Path) -> None:
    buffer = ReplayBuffer(ReplayBufferConfig(max_size=50))
    buffer.add_batch(samples())
    buffer.save(path)


def read_replay(path: Path) -> Any:
    buffer = ReplayBuffer.load(path)
    return [one.to_dict() for one in buffer.get_all()], buffer.total_added


def embedding(path: Path) -> None:
    config = KGEModelConfig(name="distmult", embedding_dim=4)
    save_kge(path, KGE.create(config, 2, 3, np.random.default_rng(0)), config, NAMES, {"mrr": 0.5})


def read_embedding(path: Path) -> Any:
    kge = load_kge(path, NAMES)
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(kge)], load_kge_metadata(path)


def checkpoint(path: Path) -> None:
    with Checkpointer(path) as checkpoints:
        checkpoints.save(3, STATE, {"update": 3})


def read_checkpoint(path: Path) -> Any:
    with Checkpointer(path, read_only=True) as checkpoints:
        checkpoints.verify(3)
        back = checkpoints.restore(3, STATE)
        return checkpoints.metadata(3), {name: np.asarray(leaf).tobytes() for name, leaf in back.items()}


FORMATS = {
    "plan": Format(lambda path: save_batch_plan(PLAN, path), read_plan),
    "batches": Format(batches, read_batches),
    "lengths.npz": Format(cache, lambda path: LengthCache.load(path).get_all()),
    "samples.npz": Format(
        lambda path: save_samples(path, samples()),
        lambda path: [one.to_dict() for one in load_samples(path)],
    ),
    "replay.npz": Format(replay, read_replay),
    "fingerprint.json": Format(
        lambda path: compute_batch_fingerprint(EpochPlan.from_epoch(PLAN.get_epoch(0))).save(path),
        BatchFingerprint.load,
    ),
    "kge": Format(embedding, read_embedding),
    "checkpoints": Format(checkpoint, read_checkpoint),
    "tasks.tar.gz": Format(archive("gz"), read_archive),
    "tasks.tar.xz": Format(archive("xz"), read_archive),
    "tasks.tar.bz2": Format(archive("bz2"), read_archive),
    "tasks.zip": Format(archive("zip"), read_archive),
}


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_reported_and_never_read_as_data(tmp_path: Path, name: str) -> None:
    path, (make, read, _) = tmp_path / name, FORMATS[name]
    make(path)
    whole, patient, chance = read(path), DamageableFiles(path), random.Random(name)
    named = 0
    for _ in range(DAMAGES):
        file = patient.damage(chance)
        if file is None:
            continue
        try:
            found = read(path)
        except (ValueError, OSError) as error:
            named += 1
            words = str(error)
        else:
            words = path.name
            # What no reader looks at, as the date in an archive's header, may change.
            assert found == whole, f"{file} was damaged, and other data was read"
        assert path.name in words, f"{words} does not say where"
        patient.repair(file)
    assert read(path) == whole
    assert named > 0.8 * DAMAGES


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - {"checkpoints", "fingerprint.json"}))
def test_doctor_distinguishes_intact_and_damaged_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    FORMATS[name].make(path)
    assert [wrong for *_, wrong in check_path(path)] == [""]
    patient = DamageableFiles(path)
    file = max(patient.contents, key=lambda one: len(patient.contents[one]))
    data = bytearray(patient.contents[file])
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    ((_, _, wrong),) = check_path(path)
    assert "corrupt" in wrong
