"""A run in files of whole lines: appended, rotated, compressed, and read back.

What a line looks like is in `phalanx.logging.records`.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phalanx.config import Config, to_yaml
from phalanx.io.atomic import atomic_write
from phalanx.io.jsonl import JsonlFile, read_records as read_records
from phalanx.logging.config import LoggedConfig, LoggingConfig, logged_config
from phalanx.logging.handlers.handler import Handler
from phalanx.logging.records import Data, Metrics, arrays_of, as_json, as_pairs, as_text, changed_cells

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
