"""Embeddings on the disk, how good they are, and what their scores mean."""

import itertools
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from phalanx.kg.evaluation import (
    count_ranks,
    expected_reciprocal_rank,
    expected_sampled_mrr,
    mean_reciprocal_rank,
)
from phalanx.kg.kge import KGEModelConfig
from phalanx.kg.kge.embedding import (
    KGE,
    calibrate,
    load_kge,
    read_kge_config,
    read_kge_metadata,
    save_kge,
)
from phalanx.kg.triple_index import TripleIndex
from tests.helpers.file_damage import write_json
from tests.helpers.small_kge import ANN, BOB, CAT, DAN, LIKES, PARENT, TRAIN, VALID, four_people

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


def test_an_embedding_is_read_back_to_the_last_bit(kge: KGE, saved: Path) -> None:
    assert bits(load_kge(saved, four_people())) == bits(kge)
    assert read_kge_config(saved) == CONFIG
    assert read_kge_metadata(saved) == {"mrr": 0.5}


def test_another_order_of_the_same_names_is_numbered_anew(kge: KGE, tmp_path: Path) -> None:
    save_kge(tmp_path / "model", kge, CONFIG, four_people(("w", "x", "y", "z")))
    # Ann's row belongs to `z` now, and so on: what was 0, 1, 2, 3 is 3, 2, 1, 0.
    turned = load_kge(tmp_path / "model", _ReversedNames())
    mirrored = TRIPLES.copy()
    mirrored[:, 1:] = 3 - mirrored[:, 1:]
    mirrored[:, 0] = 1 - mirrored[:, 0]
    np.testing.assert_array_equal(turned.score(mirrored), kge.score(TRIPLES))


class _ReversedNames(type(four_people())):  # type: ignore[misc]
    """A vocabulary with reversed ids."""

    def __init__(self) -> None:
        self.entities = ("z", "y", "x", "w")
        self.predicates = ("parent", "likes")


def test_another_knowledge_base_is_refused_by_the_names_that_differ(saved: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"another knowledge base: 1 constant only in this knowledge base \('eve', ...\) "
        r"and 1 constant only in the embedding \('dan', ...\)",
    ):
        load_kge(saved, four_people(("ann", "bob", "cat", "eve")))


def test_saving_again_replaces_the_embedding_and_leaves_one_file_of_arrays(kge: KGE, saved: Path) -> None:
    other = calibrate(kge, TRAIN, TRAIN)
    save_kge(saved, other, CONFIG, four_people())
    assert bits(load_kge(saved, four_people())) == bits(other) != bits(kge)
    assert len(list(saved.iterdir())) == 2


def test_a_failed_write_leaves_the_old_embedding(
    kge: KGE, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_, **__) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(json, "dump", no_room)
    with pytest.raises(OSError, match="No space left"):
        save_kge(saved, calibrate(kge, TRAIN, TRAIN), CONFIG, four_people())
    assert bits(load_kge(saved, four_people())) == bits(kge)


def test_a_folder_with_something_else_is_left_alone(kge: KGE, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("chapter one")
    with pytest.raises(ValueError, match="is not overwritten"):
        save_kge(tmp_path, kge, CONFIG, four_people())
    with pytest.raises(ValueError, match=r"is not an embedding: it has no config\.json"):
        load_kge(tmp_path, four_people())


def test_damaged_folders_are_named(saved: Path) -> None:
    about = json.loads((saved / "config.json").read_text())
    arrays = saved / about["arrays"]
    arrays.write_bytes(arrays.read_bytes()[:100])
    with pytest.raises(ValueError, match=rf"{arrays.name} is corrupt"):
        load_kge(saved, four_people())
    arrays.unlink()
    with pytest.raises(ValueError, match=rf"{arrays.name} does not exist"):
        load_kge(saved, four_people())
    write_json(saved / "config.json", {**about, "format": 99})
    with pytest.raises(ValueError, match="has format 99"):
        load_kge(saved, four_people())
    write_json(saved / "config.json", {"format": 3})
    with pytest.raises(ValueError, match="does not describe an embedding: it lacks arrays, config, metadata"):
        read_kge_config(saved)


def test_an_embedding_of_other_sizes_is_not_saved(kge: KGE, tmp_path: Path) -> None:
    bigger = four_people()
    bigger.entities = (*bigger.entities, "eve")
    with pytest.raises(ValueError, match="2 predicates and 4 constants, but the vocabulary has 2 and 5"):
        save_kge(tmp_path / "model", kge, CONFIG, bigger)


class Table:
    """Scores that a test writes down: those of (PARENT, ANN, ?) and of (PARENT, ?, BOB)."""

    num_entities = 4

    def score(self, triples: np.ndarray) -> np.ndarray:
        raise AssertionError("whole rows are asked for, not single triples")

    def score_tails(self, relations: np.ndarray, heads: np.ndarray) -> np.ndarray:
        return np.array([[9.0, 1.0, 8.0, 0.0]] * len(heads), np.float32)

    def score_heads(self, relations: np.ndarray, tails: np.ndarray) -> np.ndarray:
        return np.array([[2.0, 0.0, 2.0, 1.0]] * len(tails), np.float32)


def test_ranks_leave_known_answers_out_and_count_half_of_the_ties() -> None:
    query = np.array([(PARENT, ANN, BOB)], np.int32)
    # Tails: Ann and Cat score higher, but Cat is known: rank 2. Heads: Cat ties with Ann: rank 1.5.
    counts = count_ranks(Table(), query, TripleIndex(TRAIN, 4))
    mrr = mean_reciprocal_rank(counts, "realistic")
    assert mrr == pytest.approx((1 / 2 + 1 / 1.5) / 2)
    assert counts.num_candidates.tolist() == [2, 3]
    # Fewer than 100 candidates are all sampled.
    assert expected_sampled_mrr(counts, 100) == pytest.approx(mrr)


@pytest.mark.parametrize(("better", "candidates", "drawn"), [(0, 5, 2), (2, 5, 3), (5, 5, 3), (3, 4, 9)])
def test_the_expected_reciprocal_rank_is_the_mean_over_all_draws(
    better: int, candidates: int, drawn: int
) -> None:
    draws = list(itertools.combinations(range(candidates), min(drawn, candidates)))
    mean = np.mean([1 / (1 + sum(candidate < better for candidate in draw)) for draw in draws])
    found = expected_reciprocal_rank(np.array([float(better)]), np.array([candidates]), drawn)
    np.testing.assert_allclose(found, [mean])


def test_calibration_keeps_the_order_and_tells_true_from_made_up(kge: KGE) -> None:
    known = np.concatenate([TRAIN, VALID])
    fitted = calibrate(kge, TRAIN, known)
    assert fitted.slope > 0
    everything = np.array(list(itertools.product((0, 1), range(4), range(4))), np.int32)
    likely, scores = fitted.probability(everything), kge.score(everything)
    assert np.all(np.diff(np.asarray(likely)[np.argsort(scores)]) > -1e-6)
    np.testing.assert_array_equal(fitted.score(everything), scores)
