"""A run in files of whole lines: appended, rotated, compressed, and read back.

What a line looks like is in `phalanx.logging.records`.
"""

import gzip
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from phalanx.config import Config, to_yaml
from phalanx.io.files import atomic_write
from phalanx.logging.config import LoggedConfig, LoggingConfig, logged_config
from phalanx.logging.handlers.handler import Handler
from phalanx.logging.records import Data, Metrics, arrays_of, as_json, as_pairs, as_text, changed_cells

_CHUNK = 1 << 16
_LONGEST_LINE = 1 << 26


class JsonlFile:
    """A file that grows by whole lines, each handed to the system in one piece.

    A line that was torn by a kill is dropped when the file is opened again, and one that a full disk cuts
    short is taken back at once. With `rotate_bytes` a file that would grow beyond it is set aside as
    `name.0001.jsonl` (`.gz` with `compress`) and a new one begun. One process writes a file.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, rotate_bytes: int | None = None, compress: bool = False
    ) -> None:
        if rotate_bytes is not None and rotate_bytes <= 0:
            raise ValueError(f"rotate_bytes must be positive, got {rotate_bytes}")
        self.path = Path(path)
        self._rotate_bytes = rotate_bytes
        self._compress = compress
        if compress:
            _finish_compression(self.path)
        self._closed = False
        self._descriptor: int | None = self._open()

    def write_line(self, line: str) -> None:
        """Append a line whole, or raise an OSError and leave the file as it was.

        A rotation's compression comes after the line, so an error that names it has lost nothing.
        """
        if self._closed:
            raise ValueError(f"{self.path} is closed")
        data, aside = line.encode() + b"\n", None
        size = 0 if self._rotate_bytes is None else self._size()
        if self._rotate_bytes is not None and size and size + len(data) > self._rotate_bytes:
            aside = self._set_aside()
        self._append(data)
        # Only now: where the disk has no room for the compressed file, the line is at least written.
        if aside is not None and self._compress:
            _compress(aside)

    def close(self) -> None:
        """Close the file; closing it twice is no mistake."""
        self._closed = True
        self._let_go()

    def _let_go(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def _append(self, data: bytes) -> None:
        if self._descriptor is None:
            self._descriptor = self._open()
        size = os.fstat(self._descriptor).st_size
        try:
            written = os.write(self._descriptor, data)
        except OSError as error:
            raise OSError(error.errno, f"cannot write to {self.path}: {error.strerror}") from error
        if written != len(data):
            os.ftruncate(self._descriptor, size)
            raise OSError(f"cannot write to {self.path}: only {written} of {len(data)} bytes fit on the disk")

    def _open(self) -> int:
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        whole, size = _end_of_last_line(descriptor), os.fstat(descriptor).st_size
        if whole < size:
            os.ftruncate(descriptor, whole)
        return descriptor

    def _set_aside(self) -> Path:
        """Rename the file; the next line begins a new one, even if there is no room for it just now."""
        self._let_go()
        aside = _piece(self.path, max(_pieces(self.path), default=0) + 1)
        self.path.rename(aside)
        return aside


def read_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """The whole lines of a file, with those that rotation set aside first; a torn last line is left out.

    Links are not followed, and a line that has no end is a ValueError: the file may be a stranger's.
    """
    live = Path(path)
    pieces = _pieces(live)
    # Between a rotation and the next line there is no live file.
    every = [piece for _, piece in sorted(pieces.items())]
    for piece in [*every, live] if live.exists() or not pieces else every:
        if piece.is_symlink():
            raise ValueError(f"{piece.name} is a link, which is not followed")
        if piece.exists() and not piece.is_file():  # reading a pipe would wait for ever
            raise ValueError(f"{piece.name} is no file")
        with gzip.open(piece) if piece.suffix == ".gz" else piece.open("rb") as file:
            while line := file.readline(_LONGEST_LINE):
                if not line.endswith(b"\n") and len(line) == _LONGEST_LINE:
                    raise ValueError(f"{piece.name} has a line of more than {_LONGEST_LINE:,} bytes")
                if piece != live or line.endswith(b"\n"):
                    yield line[:-1].decode()


def read_records(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The records of a file of JSON lines, rotated pieces included."""
    for number, line in enumerate(read_lines(path), 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: record {number} is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise ValueError(f"{path}: record {number} must be an object, got {line[:60]}")
        yield record


def _end_of_last_line(descriptor: int) -> int:
    """Where the last whole line ends, read from the back."""
    end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - _CHUNK)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _piece(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}.{number:04d}{path.suffix}")


def _pieces(path: Path) -> dict[int, Path]:
    """The files that rotation set aside, by number; of one that was being compressed, the plain one."""
    name = re.compile(rf"{re.escape(path.stem)}\.(\d+){re.escape(path.suffix)}(\.gz)?")
    found: dict[int, Path] = {}
    for other in path.parent.iterdir():
        match = name.fullmatch(other.name)
        if match and (not match[2] or int(match[1]) not in found):
            found[int(match[1])] = other
    return found


def _compress(plain: Path) -> None:
    with atomic_write(plain.with_name(f"{plain.name}.gz")) as file:
        # Without a time stamp, so that equal lines make equal files.
        file.write(gzip.compress(plain.read_bytes(), mtime=0))
    plain.unlink()


def _finish_compression(path: Path) -> None:
    """Compress what a run that was killed had set aside and not yet compressed."""
    for piece in _pieces(path).values():
        if piece.suffix != ".gz":
            _compress(piece)


_FORMATS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "json": (".jsonl", as_json),
    "structured": (".pairs", as_pairs),
    "text": (".log", as_text),
}
_STATES = ("initial_state", "final_state", "before_state", "after_state", "step_states")


class FileHandler(Handler):
    """Writes `batch_metrics`, `evaluations`, `episodes`, `steps` and `tasks.jsonl`, and `config.yaml`.

    Files appear with their first line. A run that goes on in the same folder appends; a config that differs
    from the one already there is written beside it as `config.2.yaml`. With `rotate_bytes`, files that would
    grow beyond it are set aside, compressed if the config's `compression` says so.
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        config: LoggingConfig | LoggedConfig | None = None,
        *,
        rotate_bytes: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.output_dir = Path(output_dir)
        self.config = logged_config(LoggingConfig() if config is None else config).logging
        self._rotate_bytes = rotate_bytes
        self._clock = clock
        self._files: dict[str, JsonlFile] = {}
        self.output_dir.mkdir(parents=True, exist_ok=True)
        self.log_config(config, {})

    def log_config(self, config: Any, facts: Data) -> None:
        """`config.yaml`, or `config.2.yaml` where another one is there; facts are the run's own to write."""
        if isinstance(config, Config):
            self._write_config(config)

    def log_task_start(self, task_data: Data) -> None:
        """A line in `tasks`."""
        self._write("tasks", {"event": "task", **_without(task_data, _STATES)})

    def log_step(self, step_data: Data) -> None:
        """A line in `steps`, if the config asks for something that a step has."""
        config = self.config
        asked = config.log_operations or config.log_grid_changes or config.log_rewards
        decisive = bool(step_data.get("done")) or bool(step_data.get("success"))
        if not asked and not (config.log_key_moments and decisive):
            return
        left_out = [*_STATES, "action", "info"] if not config.log_operations else [*_STATES, "info"]
        record = _without(step_data, left_out if config.log_rewards else [*left_out, "reward"])
        if config.log_operations and "action" in record:
            record["action"] = arrays_of(record["action"])
        if config.log_grid_changes:
            changes = changed_cells(step_data.get("before_state"), step_data.get("after_state"))
            record |= {} if changes is None else {"grid_changes": changes}
        self._write("steps", {"event": "step", **record})

    def log_episode_summary(self, summary_data: Data) -> None:
        """A line in `episodes`; the states themselves only with the config's `include_full_states`."""
        record: dict[str, Any] = {"event": "episode", **_without(summary_data, _STATES)}
        if self.config.include_full_states:
            for name in ("initial_state", "final_state"):
                if summary_data.get(name) is not None:
                    record[name] = arrays_of(summary_data[name])
        self._write("episodes", record)

    def log_aggregated_metrics(self, metrics: Metrics, step: int) -> None:
        """A line in `batch_metrics.jsonl`, which is JSON whatever the format of the others is."""
        record = {"timestamp": self._clock(), "step": step, "metrics": dict(metrics)}
        self._file("batch_metrics.jsonl").write_line(as_json(record))

    def log_evaluation(self, record: Data) -> None:
        """A line in `evaluations.jsonl`, which is always JSON too."""
        self._file("evaluations.jsonl").write_line(as_json({"timestamp": self._clock(), **record}))

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _write(self, name: str, record: dict[str, Any]) -> None:
        suffix, format_line = _FORMATS[self.config.log_format if self.config.structured_logging else "text"]
        self._file(name + suffix).write_line(format_line({"timestamp": self._clock(), **record}))

    def _file(self, name: str) -> JsonlFile:
        if name not in self._files:
            self._files[name] = JsonlFile(
                self.output_dir / name, rotate_bytes=self._rotate_bytes, compress=self.config.compression
            )
        return self._files[name]

    def _write_config(self, config: Config) -> None:
        text = to_yaml(config)
        path, number = self.output_dir / "config.yaml", 1
        while path.exists():
            if path.read_text(encoding="utf-8") == text:
                return
            number += 1
            path = self.output_dir / f"config.{number}.yaml"
        with atomic_write(path, "w") as file:
            file.write(text)


def _without(data: Data, names: Any) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in names}
