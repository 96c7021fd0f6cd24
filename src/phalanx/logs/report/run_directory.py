"""Reading a run directory, whatever of it is there.

What the page makes of it is in `curves`, `episodes` and `summary`.
"""

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phalanx.logs.report.episodes import Episode, find_episodes
from phalanx.logs.report.records import has_metrics, has_step, read_object, read_whole_records
from phalanx.logs.report.tables import Table, evaluation_tables, metrics_table

PARTS = ("run.json", "batch_metrics.jsonl", "evaluations.jsonl", "episodes.jsonl", "config.yaml")
"""The files that make a folder a run; one of them is enough."""

_CONFIG = re.compile(r"config(?:\.(\d+))?\.yaml")


@dataclasses.dataclass(frozen=True)
class RunData:
    """What a run directory holds."""

    path: Path
    """The directory, absolute."""
    facts: dict[str, Any]
    """`run.json`."""
    config: dict[str, str]
    """The config by dotted keys, values as text."""
    metrics: Table
    """`batch_metrics.jsonl`."""
    evaluations: dict[tuple[str, str], Table]
    """`evaluations.jsonl` by split and mode."""
    evaluation_records: list[dict[str, Any]]
    """The same by the line, for what is no curve."""
    episodes: list[Episode]
    """Sampled episodes, the newest first."""
    notes: list[str]
    """What is missing or could not be read, in words."""

    @property
    def name(self) -> str:
        """The run's name, or its folder's."""
        return str(self.facts.get("name") or self.path.name)


def read_run(path: str | os.PathLike[str]) -> RunData:
    """Read a run directory. What is missing or damaged is named in its `notes`.

    Raises a ValueError for a folder that holds nothing of a run.
    """
    folder = Path(path)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ValueError(f"{folder} {what}; give a run directory, as `phalanx train` writes it")
    folder = folder.resolve()
    if not any(_is_there(folder, name) for name in PARTS):
        raise ValueError(f"{folder} is no run directory: it holds none of {', '.join(PARTS)}")
    notes: list[str] = []
    facts = read_object(folder / "run.json", notes)
    config = _read_config(folder, notes)
    metrics = metrics_table(read_whole_records(folder / "batch_metrics.jsonl", notes, has_metrics))
    records = read_whole_records(folder / "evaluations.jsonl", notes, has_step)
    evaluations = evaluation_tables(records, metrics)
    lines = read_whole_records(folder / "episodes.jsonl", notes)
    episodes = find_episodes(folder / "episodes", lines)
    missing = {
        "No run.json: name, status and machine are not known.": facts,
        "No config.yaml.": config,
        "No metrics yet (batch_metrics.jsonl).": len(metrics),
        "No evaluations yet (evaluations.jsonl).": evaluations,
        "No sampled episodes yet (episodes.jsonl, episodes/).": episodes,
    }
    absent = [sentence for sentence, there in missing.items() if not there]
    return RunData(folder, facts, config, metrics, evaluations, records, episodes, absent + notes)


def flat(config: Any, prefix: str = "") -> dict[str, str]:
    """A nested config by dotted keys; lists stay whole.

    >>> flat({"seed": 3, "ppo": {"clip": 0.2, "rates": [1, 2]}, "note": None})
    {'seed': '3', 'ppo.clip': '0.2', 'ppo.rates': '[1, 2]', 'note': 'null'}
    """
    if isinstance(config, Mapping) and config:
        pairs = [
            flat(value, f"{prefix}.{name}" if prefix else str(name)).items() for name, value in config.items()
        ]
        return {name: value for part in pairs for name, value in part}
    if not prefix:
        return {}
    return {prefix: config if isinstance(config, str) else json.dumps(config, default=str)}


def _is_there(folder: Path, name: str) -> bool:
    stem, suffix = name.split(".")
    return (folder / name).is_file() or any(folder.glob(f"{stem}.[0-9]*.{suffix}*"))


def _read_config(folder: Path, notes: list[str]) -> dict[str, str]:
    """The newest snapshot: a run that went on with other settings has `config.2.yaml` beside the first."""
    found = {int(match[1] or 1): path for path in folder.iterdir() if (match := _CONFIG.fullmatch(path.name))}
    if not found:
        return {}
    newest = found[max(found)]
    if len(found) > 1:
        notes.append(f"The run went on with another config; {newest.name} is shown, of {len(found)}.")

    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError  # type: ignore[import-untyped, unused-ignore]

    try:
        return flat(OmegaConf.to_container(OmegaConf.load(newest), resolve=True))
    except (YAMLError, OmegaConfBaseException, UnicodeDecodeError, OSError) as error:
        notes.append(f"{newest.name} could not be read: {' '.join(str(error).split())[:200]}.")
        return {}
