"""A run folder under random sequences of kills, stops and damage, compared with a model of its state."""

import contextlib
import fcntl
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from phalanx.io.atomic import _machine_id
from phalanx.logging import read_records
from phalanx.logging.report.metric_tables import metrics_table
from phalanx.training import CheckpointConfig, Progress, load_metadata, train
from phalanx.training.run_dir import run_status
from tests.faults.simulator import World
from tests.helpers.descent import Descent, DescentConfig
from tests.helpers.policies import initial_policy, restore_policy

pytestmark = pytest.mark.slow

UPDATES = 5
CONFIG = DescentConfig(num_updates=UPDATES, checkpoint=CheckpointConfig(every=2, minutes=None, keep=9))
ALGORITHM = Descent(CONFIG)


class RunFolderMachine(RuleBasedStateMachine):
    """Model that knows which checkpoints are intact. A kill ends all effects of the process, like SIGKILL."""

    @initialize()
    def start_model(self) -> None:
        logging.getLogger("phalanx.training").setLevel(logging.ERROR)  # skipped checkpoints are expected
        self.home = Path(tempfile.mkdtemp(prefix="phalanx-run-")).resolve()
        self.run, self.world = self.home / "run", World(0, self.home, kills_only=True)
        self.start = float(initial_policy(ALGORITHM))
        self.is_started = False
        self.intact: set[int] = set()
        self.leftovers: list[Path] = []

    def teardown(self) -> None:
        logging.getLogger("phalanx.training").setLevel(logging.NOTSET)
        shutil.rmtree(self.home)

    def _train(self, show: Callable[[Progress], None] = lambda progress: None, **options: Any) -> Any:
        with self.world.process():
            self.is_started, before = True, max(self.intact, default=0)
            result = train(ALGORITHM, self.run, show=show, **options)
            assert result.first is None or result.first.update == before + 1
            self.intact |= {step for step in range(before + 1, result.update + 1) if step % 2 == 0}
            self.intact.add(result.update)
            assert not [path for path in self.leftovers if path.exists()]
            return result
        # The system releases the lock of a process that ends; this process continues.
        for descriptor in Path("/proc/self/fd").iterdir():
            if descriptor.is_symlink() and descriptor.readlink() == self.run / "run.lock":
                os.close(int(descriptor.name))
        return None

    @rule()
    def train_to_the_end(self) -> None:
        result = self._train(auto_resume=True)
        assert (result.update, result.interrupted) == (UPDATES, False)
        assert float(result.state.params) == self.start / 2**UPDATES
        assert not (self.run / "run.lock").exists()
        # For updates that were logged twice, the last record counts.
        table = metrics_table(read_records(self.run / "batch_metrics.jsonl"))
        assert table.axes["update"].tolist() == list(range(1, UPDATES + 1))
        assert table.columns["loss"].tolist() == [self.start / 2**step for step in range(1, UPDATES + 1)]
        assert load_metadata(self.run)["status"] == "finished"

    @rule(at=st.integers(1, UPDATES))
    def kill(self, at: int) -> None:
        before = max(self.intact, default=0)

        def show(progress: Progress) -> None:
            if progress.update >= at:
                saved = range(before + 1, min(progress.update + 1, UPDATES))
                self.intact |= {step for step in saved if step % 2 == 0}
                self.world.kill()

        self._train(show, auto_resume=True)

    @rule(at=st.integers(1, UPDATES), number=st.sampled_from([signal.SIGINT, signal.SIGTERM]))
    def stop_with_signal(self, at: int, number: signal.Signals) -> None:
        def show(progress: Progress) -> None:
            if progress.update == max(at, before + 1):
                os.kill(os.getpid(), number)

        before = max(self.intact, default=0)
        result = self._train(show, auto_resume=True)
        if before < UPDATES:
            assert (result.update, result.signal) == (max(at, before + 1), number)

    @precondition(lambda self: self.is_started)
    @rule()
    def start_again(self) -> None:
        with pytest.raises(ValueError, match="is not overwritten: add --resume"):
            train(ALGORITHM, self.run)

    @precondition(lambda self: self.is_started and not self.intact)
    @rule()
    def resume_without_checkpoint(self) -> None:
        with pytest.raises(ValueError, match="no checkpoint to resume from"):
            train(ALGORITHM, self.run, resume=True)

    @precondition(lambda self: self.is_started)
    @rule()
    def train_while_another_process_has_the_lock(self) -> None:
        with (self.run / "run.lock").open("a+") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(ValueError, match="is in use by"):
                train(ALGORITHM, self.run, auto_resume=True)

    @precondition(lambda self: len(self.intact) > 1)
    @rule(position=st.floats(0, 1, exclude_max=True), newest=st.booleans(), which=st.integers(0, 99))
    def damage_checkpoint(self, position: float, newest: bool, which: int) -> None:
        step = max(self.intact) if newest else sorted(self.intact)[which % len(self.intact)]
        folder = self.run / "checkpoints" / str(step)
        unchecked = ("_CHECKPOINT_METADATA", "commit_success.txt")  # not covered by the checksums
        files = sorted(
            f for f in folder.rglob("*") if f.is_file() and f.stat().st_size and f.name not in unchecked
        )
        file = files[which % len(files)]
        data = bytearray(file.read_bytes())
        data[int(position * len(data))] ^= 1
        file.write_bytes(data)
        self.intact.remove(step)

    @precondition(lambda self: self.is_started)
    @rule()
    def leave_temporary_file(self) -> None:
        leftover = self.run / f".run.json.999999999-{_machine_id()}{len(self.leftovers):04x}.tmp"
        leftover.touch()
        self.leftovers.append(leftover)

    @precondition(lambda self: self.is_started and (self.run / "batch_metrics.jsonl").exists())
    @rule()
    def cut_last_line(self) -> None:
        with (self.run / "batch_metrics.jsonl").open("ab") as file:
            file.write(b'{"timestamp": 17, "st')

    @invariant()
    def only_the_newest_intact_checkpoint_is_restored(self) -> None:
        if not self.is_started:
            return
        folder = self.run / "checkpoints"
        assert (run_status(self.run) == "no_checkpoint") == (
            not folder.is_dir() or not any(path.name.isdecimal() for path in folder.iterdir())
        )
        if self.intact:
            newest = max(self.intact)
            assert float(restore_policy(ALGORITHM, self.run)) == self.start / 2**newest
        elif folder.is_dir():
            with contextlib.suppress(ValueError):
                pytest.fail(
                    f"{restore_policy(ALGORITHM, self.run)} was restored without an intact checkpoint"
                )


def test_run_folder_survives_kills_stops_damage_and_leftovers_in_any_order() -> None:
    run_state_machine_as_test(
        RunFolderMachine, settings=settings(max_examples=6, stateful_step_count=8, deadline=None)
    )
