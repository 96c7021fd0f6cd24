"""Simulator of faults: kills, power failures, full disks, I/O errors, lost connections, clock jumps.

    python -m tests.faults.simulator --seed 7          replay one world and print what happened
    python -m tests.faults.simulator --seeds 10000     run many worlds and stop at the first failure

The file functions of `os` are replaced: a world counts the calls, lets one fail or ends the process there.
After a power failure, it restores a state that a disk may have kept.
"""

import argparse
import contextlib
import errno
import io
import os
import random
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_FAULTS = (errno.ENOSPC, errno.EIO)
MOST_PROCESSES = 60
"""Number of processes that may be killed or fail before a program must succeed."""
_CALLS = ("open", "fdopen", "write", "fsync", "replace", "rename", "unlink", "mkdir")
_REAL = {name: getattr(os, name) for name in _CALLS}


class Killed(SystemExit):
    """Raised where the process ends; later calls do not reach the disk."""


class _Raw(io.FileIO):
    """A file whose writes may be incomplete."""

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
    """A disk and a seed that determines which call fails, and how."""

    def __init__(self, seed: int, folder: Path, *, kills_only: bool = False) -> None:
        """Create a world; with `kills_only`, only `kill` ends a process and nothing else fails."""
        self.chance = random.Random(seed)
        self.folder = folder
        self._patches = [
            *((os, name, self._wrapped(name)) for name in _REAL),
            (time, "time", self._wall_clock),
            (secrets, "token_hex", lambda size: self.chance.randbytes(size).hex()),
        ]
        self.told: list[str] = []
        self.dead = self.dead_before = False
        self.wall_offset = 0.0
        """Seconds by which the wall clock was changed."""
        self.power_was_cut = False
        """True if the last process ended with a power failure."""
        self._calls, self._kill_at = 0, 10**9
        self._fault_rate = self.chance.choice([0.0, 0.0, 0.05, 0.2])
        self._power_cuts = self.chance.random() < 0.5
        self._kills_only = kills_only
        if kills_only:
            self._fault_rate, self._power_cuts = 0.0, False
        self._synced: dict[int, bytes] = {}
        self._renames: list[tuple[Path, Path, bytes | None]] = []

    @contextlib.contextmanager
    def process(self, within: int = 60) -> Iterator[None]:
        """Run a process that may be killed at one of its calls."""
        self.dead = self.dead_before = False
        self._calls, self._kill_at = 0, self.chance.choice([10**9, self.chance.randrange(1, within)])
        if self._kills_only:
            self._kill_at = 10**9
        before = [(module, name, getattr(module, name)) for module, name, _ in self._patches]
        _set(self._patches)
        try:
            yield
        except Killed:
            self.told.append("killed")
        finally:
            _set(before)
        self.power_was_cut = self.dead and self._power_cuts
        if self.power_was_cut:
            self._cut_power()
        self._renames = []
        self.settle()  # by the time of the next process, the system has written back what there is
        # Temporary names tell the process, and this one lives on when the one of the world has ended.
        own = f".{os.getpid()}-"
        for entry in reversed(list(_entries(self.folder))):  # what is in a folder before the folder
            if own in entry.name[1:] and entry.name.startswith(".") and entry.name.endswith(".tmp"):
                path = Path(entry.path)
                path.rename(path.with_name(path.name.replace(own, ".999999999-")))

    def settle(self) -> None:
        """Mark the current state of the disk as durable."""
        for entry in _entries(self.folder):
            if entry.is_file():
                with open(entry.path, "rb") as file:  # noqa: PTH123
                    self._synced[entry.inode()] = file.read()

    def call(self, name: str, about: str, *, can_fail: bool = True) -> None:
        """Count a call, and let it fail or end the process."""
        self.dead_before = self.dead
        if self.dead:
            raise Killed
        self._calls += 1
        if self._calls >= self._kill_at:
            self.dead = True
            self.told.append(f"kill at call {self._calls}: {name} {about}")
            raise Killed
        if can_fail and name != "unlink" and self.chance.random() < self._fault_rate:
            fault = self.chance.choice(_FAULTS)
            self.told.append(f"{errno.errorcode[fault]} at call {self._calls}: {name} {about}")
            raise OSError(fault, os.strerror(fault), about)

    def kill(self) -> None:
        """End the process."""
        self.dead = True
        raise Killed

    def _wrapped(self, name: str) -> Callable[..., Any]:
        real, place = _REAL[name], str(self.folder)

        def call(*arguments: Any, **named: Any) -> Any:
            first = arguments[0]
            path = str(first) if not isinstance(first, int) else os.readlink(f"/proc/self/fd/{first}")  # noqa: PTH115
            if path != place and not path.startswith(f"{place}/"):
                return real(*arguments, **named)
            about = self._name(path)
            if name == "write":
                return self._written(first, bytes(arguments[1]), about)
            self.call(name, about)
            if name == "fdopen":
                return self._opened(*arguments, **named)
            if name in ("replace", "rename"):
                self._note_rename(Path(first), Path(arguments[1]))
            fresh = name == "open" and not os.path.exists(path)  # noqa: PTH110
            result = real(*arguments, **named)
            if name == "fsync":
                self._note_sync(first)
            if fresh:
                self._synced.pop(os.fstat(result).st_ino, None)  # of a file that is gone
            return result

        return call

    def _written(self, descriptor: int, data: bytes, about: str) -> int:
        """Write, or write only a part because the process ends or the disk is full."""
        try:
            self.call("write", about)
        except (OSError, Killed) as error:
            if self.dead_before:
                raise
            part = data[: self.chance.randrange(len(data))]
            if not part:
                raise
            _REAL["write"](descriptor, part)
            if isinstance(error, Killed):
                raise
            return len(part)
        return int(_REAL["write"](descriptor, data))

    def _wall_clock(self) -> float:
        return 1.7e9 + 0.001 * self._calls + self.wall_offset

    def _opened(self, descriptor: int, mode: str, **text: Any) -> Any:
        raw = _Raw(descriptor, mode.replace("b", ""))
        raw.world = self
        binary = io.BufferedRandom(raw)
        if "b" in mode:
            return binary
        wrapped = io.TextIOWrapper(binary, **text)
        wrapped.mode = mode  # type: ignore[misc]
        return wrapped

    def _name(self, path: str | Path) -> str:
        """Remove the process id, which differs between replays."""
        return re.sub(r"\.\d+-([0-9a-f]{8}\.tmp)", r".\1", str(path)[len(str(self.folder)) + 1 :] or ".")

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
        """Undo changes that were not synced: the last renames and the ends of files."""
        undone = self.chance.randrange(len(self._renames) + 1)
        for source, target, before in reversed(self._renames[len(self._renames) - undone :]):
            if target.is_file():
                self.told.append(f"lost the renaming to {target.name}")
                target.rename(source)
                if before is not None:
                    target.write_bytes(before)
                    self._synced[target.stat().st_ino] = before
        self._renames = []
        for path in sorted(self.folder.rglob("*"), key=self._name):
            if path.is_file():
                now, kept = path.read_bytes(), self._synced.get(path.stat().st_ino, b"")
                if now != kept and now.startswith(kept):
                    end = self.chance.randrange(len(kept), len(now) + 1)
                    zeros = self.chance.choice([0, len(now) - end])
                    path.write_bytes(now[:end] + bytes(zeros))
                    self.told.append(f"tore {self._name(path)}")


def _set(values: list[tuple[Any, str, Any]]) -> None:
    for module, name, value in values:
        setattr(module, name, value)


def _entries(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    """List everything below a folder, contents first."""
    for entry in os.scandir(folder):
        yield entry
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(entry.path)


def play(seed: int, *, aloud: bool = False) -> str:
    """Run one world and return the name of its scenario; raise if an invariant is violated."""
    from tests.faults.scenarios import SCENARIOS

    folder = Path(tempfile.mkdtemp(prefix="phalanx-world-")).resolve()
    world = World(seed, folder)
    name = world.chance.choice(sorted(SCENARIOS))
    try:
        SCENARIOS[name](world)
    except (Exception, Killed) as error:
        error.add_note(f"seed {seed}, scenario {name}: " + "; ".join(world.told[-12:]))
        raise
    finally:
        if aloud:
            told = [line.replace(f"{folder}/", "") for line in world.told]
            print(f"seed {seed}: {name}", *told, sep="\n  ")
        shutil.rmtree(folder)
    return name


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="replay this world, aloud")
    parser.add_argument("--seeds", type=int, default=300, help="play so many worlds")
    parser.add_argument("--first", type=int, default=0, help="the first of them, to play them in parts")
    options = parser.parse_args()
    if options.seed is not None:
        play(options.seed, aloud=True)
        return
    counts: dict[str, int] = {}
    worlds = range(options.first, options.first + options.seeds)
    for seed in worlds:
        name = play(seed)
        counts[name] = counts.get(name, 0) + 1
    spent = f"{time.process_time():.0f} CPU seconds"
    print(f"worlds {worlds[0]:,} to {worlds[-1]:,} in {spent}, every promise kept:", counts)


if __name__ == "__main__":
    from tests.faults import simulator  # the module that other modules import, not __main__

    simulator.main()
