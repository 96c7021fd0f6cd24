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
from phalanx.logging.report.tables import metrics_table
from phalanx.training import CheckpointConfig, Progress, initial_policy, read_metadata, restore_policy, train
from phalanx.training.run_dir import run_status
from tests.faults.simulator import World
from tests.helpers.descent import Descent, DescentConfig

pytestmark = pytest.mark.slow

UPDATES = 5
CONFIG = DescentConfig(num_updates=UPDATES, checkpoint=CheckpointConfig(every=2, minutes=None, keep=9))
ALGORITHM = Descent(CONFIG)


class RunFolderMachine(RuleBasedStateMachine):
    """Knows which checkpoints are whole; a kill ends every effect of the process at once, as SIGKILL does."""

    @initialize()
    def begin(self) -> None:
        logging.getLogger("phalanx.training").setLevel(logging.ERROR)  # what is passed over is said aloud
        self.home = Path(tempfile.mkdtemp(prefix="phalanx-run-")).resolve()
        self.run, self.world = self.home / "run", World(0, self.home, kills_only=True)
        self.start = float(initial_policy(ALGORITHM))
        self.begun = False
        self.whole: set[int] = set()
        self.leftovers: list[Path] = []

    def teardown(self) -> None:
        logging.getLogger("phalanx.training").setLevel(logging.NOTSET)
        shutil.rmtree(self.home)

    def _train(self, show: Callable[[Progress], None] = lambda progress: None, **how: Any) -> Any:
        with self.world.process():
            self.begun, before = True, max(self.whole, default=0)
            outcome = train(ALGORITHM, self.run, show=show, **how)
            assert outcome.first is None or outcome.first.update == before + 1
            self.whole |= {step for step in range(before + 1, outcome.update + 1) if step % 2 == 0}
            self.whole.add(outcome.update)
            assert not [path for path in self.leftovers if path.exists()]
            return outcome
        # The system lets go of a dead process's lock; this process lives on.
        for descriptor in Path("/proc/self/fd").iterdir():
            if descriptor.is_symlink() and descriptor.readlink() == self.run / "run.lock":
                os.close(int(descriptor.name))
        return None

    @rule()
    def trains_to_the_end(self) -> None:
        outcome = self._train(auto_resume=True)
        assert (outcome.update, outcome.interrupted) == (UPDATES, False)
        assert float(outcome.state.params) == self.start / 2**UPDATES
        assert not (self.run / "run.lock").exists()
        # What an interrupted run wrote again counts as it was last written.
        table = metrics_table(read_records(self.run / "batch_metrics.jsonl"))
        assert table.axes["update"].tolist() == list(range(1, UPDATES + 1))
        assert table.columns["loss"].tolist() == [self.start / 2**step for step in range(1, UPDATES + 1)]
        assert read_metadata(self.run)["status"] == "finished"

    @rule(at=st.integers(1, UPDATES))
    def is_killed(self, at: int) -> None:
        before = max(self.whole, default=0)

        def show(progress: Progress) -> None:
            if progress.update >= at:
                saved = range(before + 1, min(progress.update + 1, UPDATES))
                self.whole |= {step for step in saved if step % 2 == 0}
                self.world.kill()

        self._train(show, auto_resume=True)

    @rule(at=st.integers(1, UPDATES), number=st.sampled_from([signal.SIGINT, signal.SIGTERM]))
    def is_asked_to_stop(self, at: int, number: signal.Signals) -> None:
        def show(progress: Progress) -> None:
            if progress.update == max(at, before + 1):
                os.kill(os.getpid(), number)

        before = max(self.whole, default=0)
        outcome = self._train(show, auto_resume=True)
        if before < UPDATES:
            assert (outcome.update, outcome.signal) == (max(at, before + 1), number)

    @precondition(lambda self: self.begun)
    @rule()
    def is_not_started_again(self) -> None:
        with pytest.raises(ValueError, match="is not overwritten: add --resume"):
            train(ALGORITHM, self.run)

    @precondition(lambda self: self.begun and not self.whole)
    @rule()
    def does_not_resume_from_nothing(self) -> None:
        with pytest.raises(ValueError, match="no checkpoint to resume from"):
            train(ALGORITHM, self.run, resume=True)

    @precondition(lambda self: self.begun)
    @rule()
    def is_left_alone_while_another_process_trains_it(self) -> None:
        with (self.run / "run.lock").open("a+") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(ValueError, match="is in use by"):
                train(ALGORITHM, self.run, auto_resume=True)

    @precondition(lambda self: len(self.whole) > 1)
    @rule(place=st.floats(0, 1, exclude_max=True), newest=st.booleans(), which=st.integers(0, 99))
    def is_damaged(self, place: float, newest: bool, which: int) -> None:
        step = max(self.whole) if newest else sorted(self.whole)[which % len(self.whole)]
        folder = self.run / "checkpoints" / str(step)
        after = ("_CHECKPOINT_METADATA", "commit_success.txt")  # which tell nothing of what was learned
        files = sorted(
            f for f in folder.rglob("*") if f.is_file() and f.stat().st_size and f.name not in after
        )
        file = files[which % len(files)]
        data = bytearray(file.read_bytes())
        data[int(place * len(data))] ^= 1
        file.write_bytes(data)
        self.whole.remove(step)

    @precondition(lambda self: self.begun)
    @rule()
    def is_littered(self) -> None:
        left = self.run / f".run.json.999999999-{_machine_id()}{len(self.leftovers):04x}.tmp"
        left.touch()
        self.leftovers.append(left)

    @precondition(lambda self: self.begun and (self.run / "batch_metrics.jsonl").exists())
    @rule()
    def loses_power_within_a_line(self) -> None:
        with (self.run / "batch_metrics.jsonl").open("ab") as file:
            file.write(b'{"timestamp": 17, "st')

    @invariant()
    def what_is_whole_comes_back_and_nothing_else(self) -> None:
        if not self.begun:
            return
        there = self.run / "checkpoints"
        assert (run_status(self.run) == "no_checkpoint") == (
            not there.is_dir() or not any(path.name.isdecimal() for path in there.iterdir())
        )
        if self.whole:
            newest = max(self.whole)
            assert float(restore_policy(ALGORITHM, self.run)) == self.start / 2**newest
        elif there.is_dir():
            with contextlib.suppress(ValueError):
                pytest.fail(f"{restore_policy(ALGORITHM, self.run)} was read from nothing whole")


def test_a_run_folder_survives_kills_stops_damage_and_leftovers_in_any_order() -> None:
    run_state_machine_as_test(
        RunFolderMachine, settings=settings(max_examples=6, stateful_step_count=8, deadline=None)
    )
