"""Saving, restoring and retention of checkpoints, including kills while saving and unusual paths."""

import math
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.io.checksum import CorruptFileError
from phalanx.training import (
    CheckpointConfig,
    Checkpointer,
    EvaluationConfig,
    RunConfig,
    train,
)
from phalanx.training.checkpoints import config_digest
from tests.helpers.descent import Descent, DescentConfig
from tests.helpers.policies import restore_policy

pytestmark = pytest.mark.slow

SAVE_FOREVER = """
import itertools, sys
import jax.numpy as jnp
from phalanx.training import CheckpointConfig, Checkpointer
with Checkpointer(sys.argv[1], CheckpointConfig(keep=2)) as checkpoints:
    first = max(checkpoints.steps(), default=0) + 1
    for step in itertools.count(first):
        state = {f"leaf{i}": jnp.full((200, 100), float(step)) for i in range(12)}
        print("saving", step, flush=True)
        checkpoints.save(step, state, {"update": step})
"""


class State(eqx.Module):
    weights: jax.Array
    key: jax.Array
    counts: tuple[jax.Array, ...]
    empty: jax.Array


def state(seed: int) -> State:
    weights = jax.random.normal(jax.random.key(seed), (3, 4))
    return State(weights, jax.random.key(seed), (jnp.int32(seed), jnp.arange(5)), jnp.zeros((0, 3)))


def test_restored_state_is_bit_identical(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(7, state(1), {"update": 7, "seconds": 1.5})
    with Checkpointer(tmp_path) as checkpoints:
        assert checkpoints.steps() == [7]
        assert checkpoints.metadata(7) == {"update": 7, "seconds": 1.5}
        restored = checkpoints.restore(7, state(2))
    np.testing.assert_array_equal(restored.weights, state(1).weights)
    np.testing.assert_array_equal(jax.random.key_data(restored.key), jax.random.key_data(state(1).key))
    assert int(restored.counts[0]) == 1
    assert restored.counts[1].dtype == jnp.int32
    assert restored.empty.shape == (0, 3)


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, CheckpointConfig(keep=2)) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, state(step), {})
        assert checkpoints.steps()[-1] == 3
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["2", "3"]


def test_best_and_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    retention = CheckpointConfig(keep=1, best_metric="loss", best_mode="min")
    with Checkpointer(tmp_path, retention) as checkpoints:
        for step, loss in ((1, 0.5), (2, 0.25), (3, math.nan), (4, 0.25)):
            assert checkpoints.is_better({"loss": loss}) == (step < 3)
            checkpoints.save(step, state(step), {"metrics": {"loss": loss}})
        checkpoints.save(5, state(5), {"metrics": None})
        assert (checkpoints.steps(), checkpoints.best()) == ([2, 5], 2)
    with Checkpointer(tmp_path, retention) as checkpoints:
        assert not checkpoints.is_better({"loss": 0.3})
        checkpoints.save(6, state(6), {"metrics": {"loss": 0.1}})
        assert (checkpoints.steps(), checkpoints.best()) == ([6], 6)


def test_evaluation_adds_its_metrics_to_the_checkpoint_of_the_same_step(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, CheckpointConfig(best_metric="accuracy")) as checkpoints:
        checkpoints.save(1, state(1), {"metrics": None})
        assert checkpoints.best() is None
        checkpoints.save(1, state(1), {"metrics": {"accuracy": 0.5}})
        assert (checkpoints.best(), checkpoints.metadata(1)) == (1, {"metrics": {"accuracy": 0.5}})


@pytest.mark.parametrize("name", ["a[1]", "a\\b*?", "gs:"])
def test_runs_in_folders_with_special_characters_can_be_read_resumed_and_copied(
    tmp_path: Path, name: str
) -> None:
    config = DescentConfig(checkpoint=CheckpointConfig(every=2, minutes=None, best_metric="distance"))
    run = tmp_path / name / "run"
    longer = DescentConfig(num_updates=8, checkpoint=config.checkpoint)
    expected = train(Descent(longer), tmp_path / "expected").state.params
    assert restore_policy(Descent(config), train(Descent(config), run).run_dir, 6) == expected * 4
    assert train(Descent(longer), run, resume=True, extend=True).state.params == expected
    shutil.copytree(run, tmp_path / name / "copy[2]")
    for copy in (run, tmp_path / name / "copy[2]"):
        assert restore_policy(Descent(longer), copy, 8) == expected
        assert restore_policy(Descent(longer), copy, "best") > expected
        assert train(Descent(longer), tmp_path / name / f"from_{copy.name}", init_from=str(copy)).update == 8


def test_state_dict_is_saved_with_its_checkpoint_and_removed_with_it(tmp_path: Path) -> None:
    saved: dict[str, Any] = {
        "position": {"epoch": 2, "ids": ["a", "b"]},
        "goals": np.arange(6, dtype=np.int8).reshape(2, 3),
        "rates": np.array([0.1, np.nan], np.float64),
        "empty": np.zeros((0, 4), np.int32),
        "none": None,
    }
    with Checkpointer(tmp_path, CheckpointConfig(keep=1)) as checkpoints:
        checkpoints.save(1, state(1), {}, {"goals": np.zeros(1)})
        checkpoints.save(2, state(2), {}, saved)
        checkpoints.save(3, state(3), {}, {**saved, "position": None})
        restored = checkpoints.load_state_dict(3)
    assert restored.pop("position") is None
    assert restored.keys() == saved.keys() - {"position"}
    for name, value in restored.items():
        np.testing.assert_array_equal(value, saved[name])
        assert value is None or value.dtype == saved[name].dtype
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["3"]
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]
    next((tmp_path / "checkpoints/3/state_dict_arrays").rglob("d/*")).write_bytes(b"damaged")
    with (
        Checkpointer(tmp_path) as checkpoints,
        pytest.raises(CorruptFileError, match="SHA-256 does not match"),
    ):
        checkpoints.load_state_dict(3)


def test_state_with_other_arrays_is_rejected(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(1, {"a": jnp.zeros(3)}, {})
        with pytest.raises(ValueError, match="checkpoint 1 does not fit this training"):
            checkpoints.restore(1, {"a": jnp.zeros(3), "b": jnp.zeros(4)})


def test_kill_while_saving_leaves_an_intact_checkpoint(tmp_path: Path) -> None:
    rng = random.Random(0)
    for _ in range(2):
        child = subprocess.Popen(
            [sys.executable, "-c", SAVE_FOREVER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        for _ in range(rng.randrange(2, 5)):
            assert child.stdout.readline().startswith("saving")
        time.sleep(rng.uniform(0, 0.05))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        with Checkpointer(tmp_path, CheckpointConfig(keep=2)) as checkpoints:
            step = checkpoints.steps()[-1]
            restored = checkpoints.restore(step, {f"leaf{i}": jnp.zeros((200, 100)) for i in range(12)})
            assert checkpoints.metadata(step) == {"update": step}
        for leaf in restored.values():
            np.testing.assert_array_equal(leaf, np.full((200, 100), float(step), np.float32))


def test_config_digest_ignores_settings_that_do_not_change_the_result() -> None:
    digest = config_digest(RunConfig())
    assert config_digest(RunConfig(evaluation=EvaluationConfig(every=7))) != digest
    assert config_digest(RunConfig(checkpoint=CheckpointConfig(every=7))) == digest
