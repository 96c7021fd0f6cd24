"""Handler that writes metrics, evaluations, episodes, steps, tasks and the config to files."""

import os
import pickle
import pickletools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phalanx.config import Config, save_config, to_yaml
from phalanx.io.append_only import AppendOnlyFile
from phalanx.logging.config import HasLogging, LoggingConfig, logging_section
from phalanx.logging.handlers.handler import Handler
from phalanx.logging.records import (
    Metrics,
    Record,
    changed_cells,
    format_json,
    format_pairs,
    format_text,
    state_arrays,
    to_json_value,
)

_FORMATS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "json": (".jsonl", format_json),
    "structured": (".pairs", format_pairs),
    "text": (".log", format_text),
    "pickle": (".pkl", to_json_value),
}
_STATES = ("initial_state", "final_state", "before_state", "after_state", "step_states")


class FileHandler(Handler):
    """Writes metrics, evaluations, episodes, steps, tasks and the config to files in a folder.

    Episodes, steps and tasks are written in the format given by `log_format`, for example to
    `episodes.jsonl`. A file is created when its first record is written. Records are appended to files that
    already exist.

    Args:
        output_dir: Folder for the files. It is created if necessary.
        config: Logging settings, or a config with a `logging` section. A `Config` is also written to
            `config.yaml`. None means the default settings.
        rotate_bytes: Rotate a file before it grows beyond this size in bytes. None means that files are not
            rotated. Files of pickled records are never rotated.
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        config: LoggingConfig | HasLogging | None = None,
        *,
        rotate_bytes: int | None = None,
    ) -> None:
        self.output_dir = Path(output_dir)
        self.settings = logging_section(config)
        self._rotate_bytes = rotate_bytes
        self._files: dict[str, AppendOnlyFile | _PickleFile] = {}
        self.output_dir.mkdir(parents=True, exist_ok=True)
        self.log_config(config, {})

    def log_config(self, config: Any, metadata: Record) -> None:
        """Write a config to `config.yaml`. The metadata is not written.

        If `config.yaml` already exists with different settings, for example because a run was extended, the
        config is written to `config.2.yaml`, `config.3.yaml` and so on.
        """
        if not isinstance(config, Config):
            return
        path, number = self.output_dir / "config.yaml", 1
        while path.exists():
            if path.read_text(encoding="utf-8") == to_yaml(config):
                return
            number += 1
            path = self.output_dir / f"config.{number}.yaml"
        save_config(config, path)

    def log_task_start(self, task_data: Record) -> None:
        """Write a record of the start of an episode to the `tasks` file, without the states."""
        self._write("tasks", {"event": "task", **_without(task_data, _STATES)})

    def log_step(self, step_data: Record) -> None:
        """Write a record to the `steps` file if `LoggingConfig.step_fields` is not empty.

        If it is empty, only key moments (steps that solve or end an episode) are written, and only if
        `LoggingConfig.log_key_moments` is set.
        """
        fields = self.settings.step_fields
        is_key_moment = bool(step_data.get("done")) or bool(step_data.get("success"))
        if not fields and not (self.settings.log_key_moments and is_key_moment):
            return
        omitted = [name for name in ("action", "reward") if name not in fields]
        record = _without(step_data, [*_STATES, "info", *omitted])
        if "action" in record:
            record["action"] = state_arrays(record["action"])
        if "grid_changes" in fields:
            changes = changed_cells(step_data.get("before_state"), step_data.get("after_state"))
            record |= {} if changes is None else {"grid_changes": changes}
        self._write("steps", {"event": "step", **record})

    def log_episode_summary(self, summary_data: Record) -> None:
        """Write a record to the `episodes` file. States are included if `include_full_states` is True."""
        record: dict[str, Any] = {"event": "episode", **_without(summary_data, _STATES)}
        if self.settings.include_full_states:
            for name in ("initial_state", "final_state"):
                if summary_data.get(name) is not None:
                    record[name] = state_arrays(summary_data[name])
        self._write("episodes", record)

    def log_aggregated_metrics(self, metrics: Metrics, step: int) -> None:
        """Write the metrics of an update to `batch_metrics.jsonl`."""
        self._append("batch_metrics.jsonl", format_json, {"step": step, "metrics": dict(metrics)})

    def log_evaluation(self, record: Record) -> None:
        """Write a record to `evaluations.jsonl`."""
        self._append("evaluations.jsonl", format_json, record)

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _write(self, name: str, record: Record) -> None:
        suffix, format_record = _FORMATS[self.settings.log_format]
        self._append(name + suffix, format_record, record)

    def _append(self, name: str, format_record: Callable[[Record], Any], record: Record) -> None:
        """Append a record with a timestamp to a file. Open the file if it is not open."""
        path = self.output_dir / name
        if name not in self._files:
            self._files[name] = (
                _PickleFile(path)
                if path.suffix == ".pkl"
                else AppendOnlyFile(path, rotate_bytes=self._rotate_bytes, compress=self.settings.compression)
            )
        self._files[name].write_line(format_record({"timestamp": time.time(), **record}))


class _PickleFile:
    """A file to which pickled objects are appended. To read it, call `pickle.load` once per object.

    If a process was killed while writing, opening the file removes the incomplete last object. Symbolic links
    are not followed.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+b")
        end = 0
        try:
            while self._file.peek(1):
                # Parse the opcodes without executing them.
                for _ in pickletools.genops(self._file):
                    pass
                end = self._file.tell()
        except ValueError:
            self._file.truncate(end)
        self._file.seek(end)

    def write_line(self, value: Any) -> None:
        """Append an object and flush the file."""
        self._file.write(pickle.dumps(value))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _without(record: Record, names: Any) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in names}
