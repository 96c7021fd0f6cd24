"""What keeps a run safe: Ctrl-C that saves first, disks that fail, checkpoints of another config.

Saving and reading checkpoints is in `checkpoints`; the loops that use these are the trainings.
"""

import contextlib
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from phalanx.runs import folder as runs
from phalanx.runs.checkpoints import Checkpoints, fingerprint

_LOG = logging.getLogger("phalanx.agents")
_UNIMPORTANT = ("checkpoint", "logging")
"""Sections of a config that do not change what is computed."""


class Stop:
    """Whether a stop was asked for."""

    asked = False


@contextlib.contextmanager
def stop_on_interrupt() -> Iterator[Stop]:
    """Ctrl-C asks for a stop after the running update; a second one interrupts in earnest."""
    wanted = Stop()

    def ask(number: int, frame: Any) -> None:
        wanted.asked = True
        signal.signal(signal.SIGINT, before)

    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, ask)
    except ValueError:  # not in the main thread, where signals do not arrive either
        yield wanted
        return
    try:
        yield wanted
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def reported(what: str) -> Iterator[None]:
    """A disk that is full, or gone, costs what was to be written on it but not the training."""
    try:
        yield
    # Orbax passes on what its storage library says of a disk as a ValueError or a RuntimeError.
    except (OSError, ValueError, RuntimeError) as error:
        _LOG.warning("%s: %s: %s; training goes on", what, type(error).__name__, error)


def config_digest(config: Any) -> str:
    """Of everything in a config that changes what is computed; a checkpoint carries it."""
    return fingerprint(config, _UNIMPORTANT)


def newest_checkpoint(checkpoints: Checkpoints, folder: Path, config: Any) -> tuple[int, dict[str, Any]]:
    """The step and the facts of a run's newest checkpoint; it must have been saved with this config."""
    step = checkpoints.latest()
    if step is None:
        raise ValueError(f"{folder} has no checkpoint to resume from; start a new run with another --out")
    facts = checkpoints.facts(step)
    if facts["config"] != config_digest(config):
        raise ValueError(
            f"checkpoint {step} of {folder} was saved with another config than {runs.CONFIG} there holds"
        )
    return step, facts
