"""The run loop: evaluations, checkpoints, signals, seeds and rejected run folders."""

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from phalanx.io.atomic import _machine_id
from phalanx.logging import read_records
from phalanx.training import (
    CheckpointConfig,
    DataExhausted,
    EvaluationConfig,
    Progress,
    SaveError,
    TrainState,
    UpdateResult,
    load_metadata,
    train,
)
from phalanx.training.run_dir import run_status
from tests.helpers.descent import Descent, DescentConfig
from tests.helpers.file_damage import limited_file_size, write_json
from tests.helpers.large_descent import LargeDescent
from tests.helpers.policies import initial_policy, restore_policy

pytestmark = pytest.mark.slow


def config(**settings: object) -> DescentConfig:
    return DescentConfig(**settings)


def send(number: signal.Signals, at: int) -> Callable[[Progress], None]:
    def show(progress: Progress) -> None:
        if progress.update == at:
            os.kill(os.getpid(), number)

    return show


def saved(run: Path) -> list[int]:
    return sorted(int(path.name) for path in (run / "checkpoints").iterdir())


def test_run_is_evaluated_at_the_start_at_intervals_and_at_the_end(tmp_path: Path) -> None:
    outcome = train(Descent(config(evaluation=EvaluationConfig(every=2))), tmp_path / "run")
    lines = [
        (line["step"], line["steps"], line["last"])
        for line in read_records(outcome.run_dir / "evaluations.jsonl")
    ]
    assert lines == [(0, 0, False), (2, 6, False), (4, 12, False), (6, 18, True)]
    assert [line["step"] for line in outcome.evaluations] == [0, 2, 4, 6]


def test_resumed_run_returns_the_evaluations_before_it_was_stopped(tmp_path: Path) -> None:
    algorithm = Descent(config(evaluation=EvaluationConfig(every=2)))
    complete = train(algorithm, tmp_path / "complete")
    train(algorithm, tmp_path / "run", show=send(signal.SIGTERM, at=3))
    resumed = train(algorithm, tmp_path / "run", resume=True)
    assert [line["step"] for line in resumed.evaluations] == [0, 2, 4, 6]
    assert [line["distance"] for line in resumed.evaluations] == [
        line["distance"] for line in complete.evaluations
    ]


def test_run_with_damaged_evaluations_can_be_resumed(tmp_path: Path) -> None:
    algorithm = Descent(config(evaluation=EvaluationConfig(every=2)))
    run = train(algorithm, tmp_path / "run", show=send(signal.SIGTERM, at=3)).run_dir
    (run / "evaluations.jsonl").write_text("{damaged\n")
    assert [line["step"] for line in train(algorithm, run, resume=True).evaluations] == [4, 6]


def test_progress_has_counts_speed_and_headline_metrics(tmp_path: Path) -> None:
    seen: list[Progress] = []
    outcome = train(Descent(config()), tmp_path / "run", show=seen.append)
    assert [progress.counts["steps"] for progress in seen] == [3, 6, 9, 12, 15, 18]
    start = float(initial_policy(Descent(config())))
    assert seen[0].metrics == {"reward_mean": pytest.approx(start / 2)}
    assert seen[0].num_episodes == 1
    assert seen[0].per_second > 0
    assert (outcome.first, outcome.last) == (seen[0], seen[-1])
    metrics = [line["metrics"] for line in read_records(outcome.run_dir / "batch_metrics.jsonl")]
    assert metrics[1].keys() >= {"reward_mean", "loss", "steps", "steps_per_second", "seconds"}
    assert metrics[1]["num_episodes"] == 1
    assert metrics[1]["reward_mean"] == metrics[1]["loss"] == pytest.approx(start / 4)


def test_progress_has_no_episode_metrics_until_an_episode_has_ended(tmp_path: Path) -> None:
    class EndsInThirdUpdate(Descent):
        def update(self, state):
            has_ended = state.step + 1 == 3
            state, result = super().update(state)
            return state, result._replace(episodes={**result.episodes, "episode_mask": has_ended[None]})

    seen: list[Progress] = []
    train(EndsInThirdUpdate(config(num_updates=4)), tmp_path / "run", show=seen.append)
    start = float(initial_policy(Descent(config())))
    assert [progress.metrics for progress in seen[:2]] == [{}, {}]
    assert [progress.metrics["reward_mean"] for progress in seen[2:]] == [pytest.approx(start / 8)] * 2
    assert [progress.num_episodes for progress in seen] == [0, 0, 1, 1]


def test_checkpoints_are_saved_by_updates_and_by_time(tmp_path: Path) -> None:
    by_count = CheckpointConfig(every=4, minutes=None, keep=9)
    assert saved(train(Descent(config(checkpoint=by_count)), tmp_path / "count").run_dir) == [4, 6]
    at_once = CheckpointConfig(every=100, minutes=1e-9, keep=9)
    assert saved(train(Descent(config(checkpoint=at_once)), tmp_path / "time").run_dir) == [1, 2, 3, 4, 5, 6]
    in_an_hour = CheckpointConfig(every=100, minutes=60, keep=9)
    assert saved(train(Descent(config(checkpoint=in_an_hour)), tmp_path / "later").run_dir) == [6]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_the_run_and_the_resumed_run_is_bit_identical(
    tmp_path: Path, number: signal.Signals
) -> None:
    uninterrupted = train(Descent(config()), tmp_path / "uninterrupted")
    before = signal.getsignal(number)
    first = train(Descent(config()), tmp_path / "run", show=send(number, at=2))
    assert (first.signal, first.update, first.interrupted) == (number, 2, True)
    assert signal.getsignal(number) is before
    assert load_metadata(first.run_dir)["status"] == "interrupted"
    second = train(Descent(config()), tmp_path / "run", resume=True)
    assert (second.signal, second.update, second.interrupted) == (None, 6, False)
    np.testing.assert_array_equal(second.state.params, uninterrupted.state.params)
    assert second.counts == uninterrupted.counts == {"steps": 18}
    assert restore_policy(Descent(config()), second.run_dir) == uninterrupted.state.params


def test_second_signal_stops_immediately(tmp_path: Path) -> None:
    def show(progress: Progress) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(Descent(config()), tmp_path / "run", show=show)
    assert not (tmp_path / "run" / "run.lock").exists()


def test_error_is_raised_and_recorded_in_run_json(tmp_path: Path) -> None:
    def show(progress: Progress) -> None:
        assert load_metadata(tmp_path / "run")["status"] == "running"
        raise ZeroDivisionError("in the middle")

    with pytest.raises(ZeroDivisionError, match="in the middle"):
        train(Descent(config()), tmp_path / "run", show=show)
    assert load_metadata(tmp_path / "run")["status"] == "failed"


class Exhausted(Descent):
    """An algorithm whose data ends after the second update."""

    def update(self, state: TrainState) -> tuple[TrainState, UpdateResult]:
        if state.step == 2:
            raise DataExhausted
        return super().update(state)


def test_run_is_finished_when_its_data_ends(tmp_path: Path) -> None:
    outcome = train(Exhausted(config()), tmp_path / "run")
    assert (outcome.update, outcome.interrupted) == (2, False)
    assert outcome.evaluations[-1]["last"]
    assert saved(outcome.run_dir) == [2]
    assert load_metadata(outcome.run_dir)["status"] == "finished"


def test_stop_iteration_in_an_update_fails_the_run(tmp_path: Path) -> None:
    class EmptyIterator(Descent):
        def update(self, state: TrainState) -> tuple[TrainState, UpdateResult]:
            return next(iter(()))

    with pytest.raises(StopIteration):
        train(EmptyIterator(config()), tmp_path / "run")
    assert load_metadata(tmp_path / "run")["status"] == "failed"


def test_training_is_not_started_in_several_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="descent trains in one process"):
        train(Descent(config()), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_each_seed_equals_a_run_with_that_seed(tmp_path: Path) -> None:
    result = train(Descent(config(seed=5, num_seeds=3)), tmp_path / "run")
    assert result.counts == {"steps": 3 * 18}
    assert [(line["seed"], line["steps"]) for line in result.evaluations] == [
        (seed, steps) for seed in range(3) for steps in (0, 18)
    ]
    metadata = load_metadata(result.run_dir)
    assert (metadata["steps"], metadata["num_seeds"], metadata["status"]) == (54, 3, "finished")
    for number, seed in enumerate(result.seeds):
        single = train(Descent(config(seed=5 + number)), tmp_path / f"alone_{number}")
        assert seed.run_dir == tmp_path / "run" / f"seed_{number}"
        np.testing.assert_array_equal(seed.state.params, single.state.params)
        assert restore_policy(Descent(config(seed=5 + number)), seed.run_dir) == single.state.params
        assert losses(seed.run_dir) == losses(single.run_dir)
        assert load_metadata(seed.run_dir)["steps"] == 18
        assert (seed.run_dir / "config.yaml").read_text() == (single.run_dir / "config.yaml").read_text()
    assert len({float(seed.state.params) for seed in result.seeds}) == 3


class TwoCounts(Descent):
    """Counts episodes in addition to steps, and has a number in its metadata that is not a count."""

    def update(self, state: TrainState) -> tuple[TrainState, UpdateResult]:
        state, result = super().update(state)
        return state, result._replace(counts={**result.counts, "episodes": 2})

    def metadata(self, state: TrainState) -> dict[str, int]:
        return {"num_steps": 7}


def test_only_counts_are_summed_over_seeds(tmp_path: Path) -> None:
    metadata = load_metadata(train(TwoCounts(config(num_seeds=2)), tmp_path / "run").run_dir)
    assert [metadata[name] for name in ("steps", "episodes", "num_steps", "updates")] == [36, 24, 7, 6]


def test_all_copies_and_the_original_are_closed(tmp_path: Path) -> None:
    closed = []

    class Closing(Descent):
        def close(self) -> None:
            closed.append((self.config.seed, self.config.num_seeds))

    train(Closing(config(seed=5, num_seeds=2)), tmp_path / "run")
    assert sorted(closed) == [(5, 1), (5, 2), (6, 1)]


def losses(run: Path) -> list[float]:
    return [line["metrics"]["loss"] for line in read_records(run / "batch_metrics.jsonl")]


def test_several_seeds_are_trained_one_after_the_other_and_their_updates_are_counted(tmp_path: Path) -> None:
    seen: list[Progress] = []
    train(Descent(config(num_seeds=2, num_updates=3)), tmp_path / "run", show=seen.append)
    assert [(progress.update, progress.num_updates) for progress in seen] == [(n, 6) for n in range(1, 7)]


@pytest.mark.parametrize("at", [2, 6, 8], ids=["first seed", "end of the first seed", "second seed"])
def test_several_seeds_are_interrupted_resumed_and_extended(tmp_path: Path, at: int) -> None:
    at_once = train(Descent(config(num_seeds=2, num_updates=8)), tmp_path / "at_once")
    stopped = train(Descent(config(num_seeds=2)), tmp_path / "run", show=send(signal.SIGTERM, at=at))
    assert (stopped.update, stopped.interrupted) == (max(0, at - 6), True)
    assert stopped.signal == signal.SIGTERM
    assert [(tmp_path / "run" / f"seed_{n}").is_dir() for n in range(2)] == [True, at > 6]
    metadata = load_metadata(tmp_path / "run")
    assert (metadata["status"], metadata["steps"], metadata["num_seeds"]) == ("interrupted", 3 * at, 2)
    assert run_status(tmp_path / "run") == "resumable"
    seen: list[Progress] = []
    resumed = train(Descent(config(num_seeds=2)), tmp_path / "run", resume=True, show=seen.append)
    assert (resumed.update, resumed.counts) == (6, {"steps": 36})
    assert [progress.update for progress in seen] == list(range(at + 1, 13))
    metadata = load_metadata(tmp_path / "run")
    assert (metadata["status"], metadata["steps"]) == ("finished", 36)
    extended = train(Descent(config(num_seeds=2, num_updates=8)), tmp_path / "run", resume=True, extend=True)
    for ours, theirs in zip(extended.seeds, at_once.seeds, strict=True):
        np.testing.assert_array_equal(ours.state.params, theirs.state.params)
        assert losses(ours.run_dir) == losses(theirs.run_dir)


def test_run_of_another_algorithm_is_rejected(tmp_path: Path) -> None:
    train(Descent(config()), tmp_path / "run")

    class Ascent(Descent):
        name = "ascent"

    with pytest.raises(ValueError, match="is a run of 'descent' and cannot be resumed with 'ascent'"):
        train(Ascent(config()), tmp_path / "run", resume=True)


def test_run_folder_of_an_earlier_version_is_rejected(tmp_path: Path) -> None:
    run = train(Descent(config()), tmp_path / "run").run_dir
    metadata = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**metadata, "format": 1, "kind": "descent"}))
    for use in (restore_policy, lambda algorithm, run: train(algorithm, run, resume=True)):
        with pytest.raises(ValueError, match=r"was written by another version of Phalanx \(format 1"):
            use(Descent(config()), run)


def test_run_json_identifies_the_training(tmp_path: Path) -> None:
    metadata = load_metadata(train(Descent(config()), tmp_path / "run").run_dir)
    about = {name: metadata[name] for name in ("format", "algorithm", "env", "status", "updates", "steps")}
    assert about == {
        "format": 3,
        "algorithm": "descent",
        "env": None,
        "status": "finished",
        "updates": 6,
        "steps": 18,
    }
    assert metadata["jax"] == jax.__version__ and metadata["command"]
    assert re.fullmatch("[0-9a-f]{40}", metadata["commit"])


@pytest.mark.parametrize("name", ["checkpoints", "episodes", "evaluations.jsonl", "run.lock", "wandb"])
def test_run_with_symbolic_links_is_not_resumed(tmp_path: Path, name: str) -> None:
    run = train(Descent(config()), tmp_path / "run").run_dir
    outside = tmp_path / "outside"
    if (run / name).exists():
        (run / name).rename(outside)
    else:
        outside.mkdir()
    before = {path: path.stat().st_mtime_ns for path in (outside, *outside.rglob("*"))}
    (run / name).symlink_to(outside)
    longer = Descent(config(num_updates=8, checkpoint=CheckpointConfig(every=1)))
    with pytest.raises(ValueError, match=f"{name} is a symbolic link, and a run with links is not resumed"):
        train(longer, run, resume=True, extend=True)
    assert {path: path.stat().st_mtime_ns for path in (outside, *outside.rglob("*"))} == before


def test_run_whose_seed_is_a_symbolic_link_is_not_resumed(tmp_path: Path) -> None:
    run = train(Descent(config(num_seeds=2)), tmp_path / "run").run_dir
    (run / "seed_1").rename(tmp_path / "outside")
    (run / "seed_1").symlink_to(tmp_path / "outside")
    with pytest.raises(ValueError, match="seed_1 is a symbolic link"):
        train(Descent(config(num_seeds=2)), run, auto_resume=True)


def test_links_that_wandb_creates_do_not_prevent_a_resume(tmp_path: Path) -> None:
    run = train(Descent(config()), tmp_path / "run").run_dir
    (run / "wandb" / "run-1").mkdir(parents=True)
    (run / "wandb" / "latest-run").symlink_to("run-1")
    assert train(Descent(config()), run, resume=True).update == 6


def test_checkpoint_of_another_version_is_rejected(tmp_path: Path) -> None:
    outcome = train(Descent(config()), tmp_path / "run")
    metadata_file = outcome.run_dir / "checkpoints" / "6" / "metadata" / "metadata"
    metadata = json.loads(metadata_file.read_text())
    del metadata["counts"], metadata["data"]
    metadata_file.write_text(json.dumps(metadata))
    digests = {"metadata/metadata": hashlib.sha256(metadata_file.read_bytes()).hexdigest()}
    write_json(metadata_file.parents[1] / "checksums.json", {"files": digests})
    with pytest.raises(ValueError, match="saved by another version of Phalanx: it lacks counts, data"):
        train(Descent(config()), outcome.run_dir, resume=True)


def test_run_in_use_by_another_process_is_rejected(tmp_path: Path) -> None:
    errors: list[str] = []

    def show(progress: Progress) -> None:
        with pytest.raises(ValueError, match=f"is in use by process {os.getpid()} on ") as error:
            train(Descent(config()), tmp_path / "run", resume=True)
        errors.append(str(error.value))

    train(Descent(config()), tmp_path / "run", show=show)
    assert len(errors) == 6


def test_lock_of_a_killed_process_does_not_block(tmp_path: Path) -> None:
    run = tmp_path / "run"
    program = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1])\n"
        "from tests.helpers.descent import Descent, DescentConfig\n"
        "from phalanx.training import CheckpointConfig, train\n"
        "config = DescentConfig(checkpoint=CheckpointConfig(every=1, minutes=None))\n"
        "stop = lambda progress: progress.update == 3 and os.kill(os.getpid(), signal.SIGKILL)\n"
        "train(Descent(config), sys.argv[2], show=stop)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, Path(__file__).parents[2], run], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert re.fullmatch(r"process \d+ on .+", (run / "run.lock").read_text())
    again = config(checkpoint=CheckpointConfig(every=1, minutes=None))
    outcome = train(Descent(again), run, resume=True)
    assert not outcome.interrupted
    assert not (run / "run.lock").exists()


def flip_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 16
    file.write_bytes(data)


def test_corrupt_newest_checkpoint_is_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_config = config(checkpoint=CheckpointConfig(every=2, minutes=None, keep=9))
    run = tmp_path / "run"
    train(Descent(run_config), run, show=send(signal.SIGINT, at=5))
    assert saved(run) == [2, 4, 5]
    flip_bit(next((run / "checkpoints/5/state").rglob("d/*")))
    with caplog.at_level("WARNING", "phalanx.training"):
        assert (
            float(restore_policy(Descent(run_config), run))
            == float(initial_policy(Descent(run_config))) / 2**4
        )
        outcome = train(Descent(run_config), run, resume=True)
    assert "skipping checkpoint 5 of" in caplog.text
    assert (outcome.update, outcome.first.update) == (6, 5)
    assert (
        float(restore_policy(Descent(run_config), run)) == float(initial_policy(Descent(run_config))) / 2**6
    )
    with pytest.raises(ValueError, match="is corrupt: its SHA-256 does not match"):
        restore_policy(Descent(run_config), run, 5)


def test_corrupt_checkpoint_is_replaced_when_its_step_is_saved_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_config = config(checkpoint=CheckpointConfig(every=2, minutes=None, keep=9))
    train(Descent(run_config), run)
    flip_bit(run / "checkpoints/6/metadata/metadata")
    flip_bit(run / "checkpoints/4/checksums.json")
    assert train(Descent(run_config), run, resume=True).first.update == 3
    for step in (2, 4, 6):
        assert float(restore_policy(Descent(run_config), run, step)) > 0


def train_on_a_full_disk(algorithm: Descent, run: Path, first: int, last: int) -> None:
    """Train, and limit the size of files to 100 kB from update `first` to `last`."""
    with contextlib.ExitStack() as limit:

        def show(progress: Progress) -> None:
            if progress.update == first:
                limit.enter_context(limited_file_size(100_000))
            if progress.update == last:
                limit.close()

        train(algorithm, run, show=show)


def test_checkpoint_that_does_not_fit_on_the_disk_is_removed_and_training_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = CheckpointConfig(every=2, minutes=None, keep=9)
    train_on_a_full_disk(LargeDescent(config(checkpoint=checkpoint)), tmp_path / "run", first=1, last=3)
    assert "a checkpoint could not be saved: OSError: [Errno 27] File too large" in caplog.text
    assert saved(tmp_path / "run") == [4, 6]
    assert load_metadata(tmp_path / "run")["status"] == "finished"


def test_run_whose_last_checkpoint_does_not_fit_on_the_disk_is_not_finished(tmp_path: Path) -> None:
    run, checkpoint = tmp_path / "run", CheckpointConfig(every=2, minutes=None)
    with pytest.raises(SaveError, match=r"run could not be saved: .*File too large.*--auto-resume"):
        train_on_a_full_disk(LargeDescent(config(checkpoint=checkpoint)), run, first=3, last=9)
    assert load_metadata(run)["status"] == "failed"
    assert (run_status(run), saved(run)) == ("resumable", [2])
    outcome = train(LargeDescent(config(checkpoint=checkpoint)), run, auto_resume=True)
    assert (outcome.first.update, outcome.update, saved(run)[-1]) == (3, 6, 6)
    assert load_metadata(run)["status"] == "finished"
    uninterrupted = train(LargeDescent(config()), tmp_path / "uninterrupted")
    np.testing.assert_array_equal(outcome.state.params, uninterrupted.state.params)


def test_seeds_that_fit_on_the_disk_are_saved_before_the_run_fails(tmp_path: Path) -> None:
    run = tmp_path / "run"
    large = config(seed=1, num_seeds=2)  # The parameters of even seeds are too large for the disk.
    with pytest.raises(SaveError, match="seed_1 could not be saved"):
        train_on_a_full_disk(LargeDescent(large), run, first=1, last=99)
    assert saved(run / "seed_0") == [6]
    assert load_metadata(run / "seed_0")["status"] == "finished"
    assert load_metadata(run / "seed_1")["status"] == load_metadata(run)["status"] == "failed"
    assert train(LargeDescent(large), run, auto_resume=True).update == 6
    assert [saved(run / f"seed_{number}") for number in range(2)] == [[6], [6]]
    assert load_metadata(run)["status"] == "finished"


def test_run_whose_export_fails_is_not_finished(tmp_path: Path) -> None:
    is_full = True

    class Exporting(Descent):
        def export(self, state: TrainState, folder: Path) -> None:
            if is_full:
                raise OSError(28, "No space left on device")

    with pytest.raises(SaveError, match=r"run could not be saved: .* No space left"):
        train(Exporting(config()), tmp_path / "run")
    assert load_metadata(tmp_path / "run")["status"] == "failed"
    is_full = False
    assert train(Exporting(config()), tmp_path / "run", auto_resume=True).update == 6
    assert load_metadata(tmp_path / "run")["status"] == "finished"


@pytest.mark.parametrize("error", [ValueError, RuntimeError])
def test_error_of_other_code_while_saving_fails_the_run(tmp_path: Path, error: type[Exception]) -> None:
    class Broken(Descent):
        def state_dict(self) -> dict[str, object]:
            raise error("not a disk error")

    with pytest.raises(error, match="not a disk error"):
        train(Broken(config()), tmp_path / "run")
    assert load_metadata(tmp_path / "run")["status"] == "failed"


def test_corrupt_best_checkpoint_is_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    best = CheckpointConfig(every=2, minutes=None, best_metric="distance", best_mode="min")
    run_config = config(checkpoint=best, evaluation=EvaluationConfig(every=2))
    run = tmp_path / "run"
    train(Descent(run_config), run, show=send(signal.SIGINT, at=3))
    flip_bit(run / "checkpoints/2/metadata/metadata")
    with caplog.at_level("WARNING", "phalanx.training"):
        assert train(Descent(run_config), run, resume=True).update == 6
    assert "ignoring checkpoint 2: " in caplog.text
    assert (
        float(restore_policy(Descent(run_config), run, "best"))
        == float(initial_policy(Descent(run_config))) / 2**6
    )


def test_run_without_an_intact_checkpoint_is_not_resumed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(Descent(config()), run)
    flip_bit(run / "checkpoints/6/metadata/metadata")
    with pytest.raises(ValueError, match=r"no checkpoint to resume from: .*metadata is corrupt"):
        train(Descent(config()), run, resume=True)


def test_invalid_run_json_is_rejected(tmp_path: Path) -> None:
    run = train(Descent(config()), tmp_path / "run").run_dir
    for text in ("[]", "{", "[" * 100_000, "1" * 5000, "\x00"):
        (run / "run.json").write_text(text)
        with pytest.raises(ValueError, match=r"run\.json"):
            train(Descent(config()), run, resume=True)


def test_temporary_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    run = train(Descent(config()), tmp_path / "run").run_dir
    leftover = run / f".run.json.999999999-{_machine_id()}0123.tmp"
    other = run / ".run.json.999999999-ffff0123.tmp"  # from another machine
    own = run / f".run.json.{os.getpid()}-{_machine_id()}0123.tmp"
    for path in (leftover, other, own):
        path.touch()
    train(Descent(config()), run, resume=True)
    assert [path.exists() for path in (leftover, other, own)] == [False, True, True]
