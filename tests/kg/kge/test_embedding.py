"""Saved embeddings, their evaluation and their calibration."""

import itertools
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from phalanx.kg import parse_atom
from phalanx.kg.evaluation import RankCounts, count_ranks, expected_sampled_mrr, mean_reciprocal_rank
from phalanx.kg.kge import KGEModelConfig
from phalanx.kg.kge.embedding import (
    KGE,
    calibrate,
    load_kge,
    load_kge_config,
    load_kge_metadata,
    save_kge,
)
from phalanx.kg.triple_index import TripleIndex
from tests.helpers.file_damage import write_json
from tests.helpers.small_kge import (
    ANN,
    BOB,
    CAT,
    DAN,
    LIKES,
    PARENT,
    TRAIN,
    VALID,
    four_people,
    four_people_base,
)

CONFIG = KGEModelConfig(name="distmult", embedding_dim=4)
TRIPLES = np.array([(LIKES, ANN, CAT), (PARENT, BOB, DAN)], np.int32)


@pytest.fixture(scope="module")
def kge() -> KGE:
    return KGE.create(CONFIG, 2, 4, np.random.default_rng(0))


@pytest.fixture
def saved(kge: KGE, tmp_path: Path) -> Path:
    return save_kge(tmp_path / "model", kge, CONFIG, four_people(), {"mrr": 0.5})


def bits(kge: KGE) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(kge)]


def test_saved_embedding_is_bit_identical(kge: KGE, saved: Path) -> None:
    assert bits(load_kge(saved, four_people())) == bits(kge)
    assert load_kge_config(saved) == CONFIG
    assert load_kge_metadata(saved) == {"mrr": 0.5}


def test_rows_are_permuted_for_another_order_of_names(kge: KGE, tmp_path: Path) -> None:
    save_kge(tmp_path / "model", kge, CONFIG, four_people(("w", "x", "y", "z")))
    # The ids 0, 1, 2, 3 become 3, 2, 1, 0.
    permuted = load_kge(tmp_path / "model", _ReversedNames())
    mirrored = TRIPLES.copy()
    mirrored[:, 1:] = 3 - mirrored[:, 1:]
    mirrored[:, 0] = 1 - mirrored[:, 0]
    np.testing.assert_array_equal(permuted.score(mirrored), kge.score(TRIPLES))


class _ReversedNames(type(four_people())):  # type: ignore[misc]
    """A vocabulary with reversed ids."""

    def __init__(self) -> None:
        self.entities = ("z", "y", "x", "w")
        self.predicates = ("parent", "likes")


def test_other_knowledge_base_raises_error_with_differing_names(saved: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"another knowledge base: 1 constant only in this knowledge base \('eve', ...\) "
        r"and 1 constant only in the embedding \('dan', ...\)",
    ):
        load_kge(saved, four_people(("ann", "bob", "cat", "eve")))


def test_saving_again_replaces_the_array_file(kge: KGE, saved: Path) -> None:
    other = calibrate(kge, TRAIN, TRAIN)
    save_kge(saved, other, CONFIG, four_people())
    assert bits(load_kge(saved, four_people())) == bits(other) != bits(kge)
    assert len(list(saved.iterdir())) == 2


def test_failed_write_keeps_the_old_embedding(kge: KGE, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_disk_full(*_, **__) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(json, "dump", raise_disk_full)
    with pytest.raises(OSError, match="No space left"):
        save_kge(saved, calibrate(kge, TRAIN, TRAIN), CONFIG, four_people())
    assert bits(load_kge(saved, four_people())) == bits(kge)


def test_folder_with_other_files_is_not_overwritten(kge: KGE, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("chapter one")
    with pytest.raises(ValueError, match="is not overwritten"):
        save_kge(tmp_path, kge, CONFIG, four_people())
    with pytest.raises(ValueError, match=r"is not an embedding: it has no config\.json"):
        load_kge(tmp_path, four_people())


def test_corrupt_folder_raises_error(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    arrays = saved / config["arrays"]
    arrays.write_bytes(arrays.read_bytes()[:100])
    with pytest.raises(ValueError, match=rf"{arrays.name} is corrupt"):
        load_kge(saved, four_people())
    arrays.unlink()
    with pytest.raises(ValueError, match=rf"{arrays.name} does not exist"):
        load_kge(saved, four_people())
    write_json(saved / "config.json", {**config, "format": 99})
    with pytest.raises(ValueError, match="has format 99"):
        load_kge(saved, four_people())
    write_json(saved / "config.json", {"format": 3})
    with pytest.raises(ValueError, match="does not describe an embedding: it lacks arrays, config, metadata"):
        load_kge_config(saved)


def test_saving_with_mismatched_sizes_raises_error(kge: KGE, tmp_path: Path) -> None:
    base = four_people_base()
    bigger = base.replace(extra_known=(parse_atom("likes(eve,dan)"),)).vocabulary
    with pytest.raises(ValueError, match="2 predicates and 4 constants, but the vocabulary has 2 and 5"):
        save_kge(tmp_path / "model", kge, CONFIG, bigger)


class FixedScores:
    """Fixed scores of (PARENT, ANN, ?) and of (PARENT, ?, BOB)."""

    num_entities = 4

    def score(self, triples: np.ndarray) -> np.ndarray:
        raise AssertionError("count_ranks must score complete rows, not single triples")

    def score_tails(self, relations: np.ndarray, heads: np.ndarray) -> np.ndarray:
        return np.array([[9.0, 1.0, 8.0, 0.0]] * len(heads), np.float32)

    def score_heads(self, relations: np.ndarray, tails: np.ndarray) -> np.ndarray:
        return np.array([[2.0, 0.0, 2.0, 1.0]] * len(tails), np.float32)


def test_filtered_ranks_count_half_of_the_ties() -> None:
    query = np.array([(PARENT, ANN, BOB)], np.int32)
    # Tails: Ann and Cat score higher, but Cat is filtered: rank 2. Heads: Cat ties with Ann: rank 1.5.
    counts = count_ranks(FixedScores(), query, TripleIndex(TRAIN, 4))
    mrr = mean_reciprocal_rank(counts, "realistic")
    assert mrr == pytest.approx((1 / 2 + 1 / 1.5) / 2)
    assert counts.num_candidates.tolist() == [2, 3]
    # Fewer than 100 candidates are all sampled.
    assert expected_sampled_mrr(counts, 100) == pytest.approx(mrr)


@pytest.mark.parametrize(("better", "candidates", "sampled"), [(0, 5, 2), (2, 5, 3), (5, 5, 3), (3, 4, 9)])
def test_expected_sampled_mrr_equals_the_mean_over_all_samples(
    better: int, candidates: int, sampled: int
) -> None:
    samples = list(itertools.combinations(range(candidates), min(sampled, candidates)))
    mean = np.mean([1 / (1 + sum(candidate < better for candidate in sample)) for sample in samples])
    counts = RankCounts(higher=np.array([better]), tied=np.array([0]), num_candidates=np.array([candidates]))
    assert expected_sampled_mrr(counts, sampled) == pytest.approx(mean)


def test_calibration_preserves_the_order_of_scores(kge: KGE) -> None:
    known = np.concatenate([TRAIN, VALID])
    fitted = calibrate(kge, TRAIN, known)
    assert fitted.slope > 0
    all_triples = np.array(list(itertools.product((0, 1), range(4), range(4))), np.int32)
    probabilities, scores = fitted.probability(all_triples), kge.score(all_triples)
    assert np.all(np.diff(np.asarray(probabilities)[np.argsort(scores)]) > -1e-6)
    np.testing.assert_array_equal(fitted.score(all_triples), scores)
