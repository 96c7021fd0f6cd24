"""A seeded world of faults for whatever is written to the disk: kills, power cuts, full disks, errors.

    python -m tests.simulate --seed 7          replays one world and tells what happened in it
    python -m tests.simulate --seeds 10000     plays many, and stops at the first that breaks a promise

The file calls of `os` are the seam: a world counts them, lets one fail or ends the process there, and after a
power cut gives back what a disk may have kept. What must hold then is in `scenarios`.
"""

import argparse
import contextlib
import errno
import io
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

_FAULTS = (errno.ENOSPC, errno.EIO)
_REAL = {
    name: getattr(os, name) for name in ("open", "fdopen", "fsync", "replace", "rename", "unlink", "mkdir")
}


class Killed(BaseException):
    """The process has ended here; nothing that follows reaches the disk."""


class _Raw(io.FileIO):
    """A file whose writes may be cut short."""

    world: "World"

    def write(self, data: Any, /) -> int:
        try:
            self.world.call("write", "")
        except (OSError, Killed):
            if not self.world.dead_before:
                super().write(bytes(data)[: self.world.chance.randrange(len(bytes(data)) + 1)])
            raise
        return super().write(data)


class World:
    """One disk and one seed: which call of a process fails, and how."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.told: list[str] = []
        self.dead = self.dead_before = False
        self._calls = self._kill_at = 0
        self._fault_rate = self.chance.choice([0.0, 0.0, 0.05, 0.2])
        self._power_cuts = self.chance.random() < 0.5
        self._synced: dict[int, bytes] = {}
        self._renames: list[tuple[Path, Path, bytes | None]] = []

    @contextlib.contextmanager
    def process(self) -> Iterator[None]:
        """A process that may be killed at any of its file calls; the disk is what is left afterwards."""
        self.dead = self.dead_before = False
        self._calls, self._kill_at = 0, self.chance.choice([10**9, self.chance.randrange(1, 60)])
        with mock.patch.multiple(os, **{name: self._wrapped(name) for name in _REAL}):
            try:
                yield
            except Killed:
                self.told.append("killed")
        if self.dead and self._power_cuts:
            self._cut_power()
        self._renames = []
        self.settle()  # by the time of the next process, the system has written back what there is
        # Temporary names tell the process, and this one lives on when the one of the world has ended.
        for path in sorted(self.folder.rglob(f".*.{os.getpid()}-*.tmp"), reverse=True):
            path.rename(path.with_name(path.name.replace(f".{os.getpid()}-", ".999999999-")))

    def settle(self) -> None:
        """Everything that is there is on the disk for good."""
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        self._synced |= {path.stat().st_ino: path.read_bytes() for path in files}

    def call(self, name: str, about: str) -> None:
        """Count a call, and let it fail or end the process."""
        self.dead_before = self.dead
        if self.dead:
            raise Killed
        self._calls += 1
        if self._calls >= self._kill_at:
            self.dead = True
            self.told.append(f"kill at call {self._calls}: {name} {about}")
            raise Killed
        if name != "unlink" and self.chance.random() < self._fault_rate:
            fault = self.chance.choice(_FAULTS)
            self.told.append(f"{errno.errorcode[fault]} at call {self._calls}: {name} {about}")
            raise OSError(fault, os.strerror(fault), about)

    def _wrapped(self, name: str) -> Callable[..., Any]:
        real = _REAL[name]

        def call(*arguments: Any, **named: Any) -> Any:
            first = arguments[0]
            if isinstance(first, str | os.PathLike) and not Path(first).is_relative_to(self.folder):
                return real(*arguments, **named)
            self.call(name, str(first))
            if name == "fdopen":
                return self._opened(*arguments, **named)
            if name in ("replace", "rename"):
                self._note_rename(Path(first), Path(arguments[1]))
            result = real(*arguments, **named)
            if name == "fsync":
                self._note_sync(first)
            return result

        return call

    def _opened(self, descriptor: int, mode: str, **text: Any) -> Any:
        raw = _Raw(descriptor, mode.replace("b", ""))
        raw.world = self
        binary = io.BufferedRandom(raw)
        if "b" in mode:
            return binary
        wrapped = io.TextIOWrapper(binary, **text)
        wrapped.mode = mode  # type: ignore[misc]
        return wrapped

    def _note_sync(self, descriptor: int) -> None:
        place = Path(f"/proc/self/fd/{descriptor}").readlink()
        if place.is_dir():
            self._renames = [one for one in self._renames if one[1].parent != place]
        else:
            self._synced[os.fstat(descriptor).st_ino] = place.read_bytes()

    def _note_rename(self, source: Path, target: Path) -> None:
        if source.is_file():
            self._renames.append((source, target, target.read_bytes() if target.is_file() else None))

    def _cut_power(self) -> None:
        """What was not synced may be undone: the last renames, and bytes of files behind their last sync."""
        undone = self.chance.randrange(len(self._renames) + 1)
        for source, target, before in reversed(self._renames[len(self._renames) - undone :]):
            if target.is_file():
                self.told.append(f"lost the renaming to {target.name}")
                target.rename(source)
                if before is not None:
                    target.write_bytes(before)
                    self._synced[target.stat().st_ino] = before
        self._renames = []
        for path in self.folder.rglob("*"):
            if path.is_file():
                now, kept = path.read_bytes(), self._synced.get(path.stat().st_ino, b"")
                if now != kept and now.startswith(kept):
                    end = self.chance.randrange(len(kept), len(now) + 1)
                    zeros = self.chance.choice([0, len(now) - end])
                    path.write_bytes(now[:end] + bytes(zeros))
                    self.told.append(f"tore {path.name}")


def play(seed: int, *, aloud: bool = False) -> str:
    """One world; raises where a promise does not hold. Returns which scenario it was."""
    from tests.scenarios import SCENARIOS

    folder = Path(tempfile.mkdtemp(prefix="phalanx-world-")).resolve()
    world = World(seed, folder)
    name = world.chance.choice(sorted(SCENARIOS))
    try:
        SCENARIOS[name](world)
    except Exception as error:
        error.add_note(f"seed {seed}, scenario {name}: " + "; ".join(world.told[-12:]))
        raise
    finally:
        if aloud:
            print(f"seed {seed}: {name}", *world.told, sep="\n  ")
        shutil.rmtree(folder)
    return name


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="replay this world, aloud")
    parser.add_argument("--seeds", type=int, default=300, help="play so many worlds")
    options = parser.parse_args()
    if options.seed is not None:
        play(options.seed, aloud=True)
        return
    counts: dict[str, int] = {}
    for seed in range(options.seeds):
        name = play(seed)
        counts[name] = counts.get(name, 0) + 1
    print(f"{options.seeds} worlds, every promise kept:", counts)


if __name__ == "__main__":
    main()
