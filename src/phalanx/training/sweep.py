"""Sweeps: which settings the trials have, written down once so that a sweep can go on, and what they came to.

Trials that depend on others are in `suggestions`, where they run in `workers`; the command shows them.
"""

import itertools
import json
import math
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from phalanx.io.atomic import atomic_write
from phalanx.io.untrusted import read_json

PLAN = "sweep.json"
METRICS = {"success_rate": "max", "mrr_100": "max", "token_accuracy": "max", "loss": "min"}
"""What trials are ranked by unless it is said, the first that evaluations have, and the better end of it."""
_DRAWN = re.compile(r"(uniform|loguniform|integers)\(([^,()]+),([^,()]+)\)")
_KINDS: dict[str, Callable[[random.Random, float, float], str]] = {
    "uniform": lambda chance, low, high: f"{chance.uniform(low, high):.6g}",
    "loguniform": lambda chance, low, high: f"{math.exp(chance.uniform(math.log(low), math.log(high))):.6g}",
    "integers": lambda chance, low, high: str(chance.randint(int(low), int(high))),
}


def choices(value: str) -> list[str]:
    """The values that a setting is swept over: parted by commas, but for those within brackets and quotes.

    >>> choices("1e-3,3e-4"), choices("[gravity,denoise],[gravity]"), choices("7")
    (['1e-3', '3e-4'], ['[gravity,denoise]', '[gravity]'], ['7'])
    """
    parts, depth, quoted = [""], 0, ""
    for letter in value:
        if letter in "'\"" and quoted in ("", letter):
            quoted = "" if quoted else letter
        elif not quoted:
            depth += (letter in "[{(") - (letter in "]})")
        if letter == "," and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def grid(settings: Sequence[str]) -> list[list[str]]:
    """Every combination of the values that settings are swept over, the last setting changing fastest.

    >>> grid(["a=1,2", "b=x"])
    [['a=1', 'b=x'], ['a=2', 'b=x']]
    """
    named = [parted(setting) for setting in settings]
    for name, value in named:
        if _DRAWN.fullmatch(value):
            raise ValueError(f"{name}={value} is drawn: say how many times with --random or --optuna")
    return [
        [f"{name}={value}" for (name, _), value in zip(named, values, strict=True)]
        for values in itertools.product(*(choices(value) for _, value in named))
    ]


def drawn(settings: Sequence[str], count: int, seed: int = 0) -> list[list[str]]:
    """So many draws: of listed values one, or a number of `uniform`, `loguniform` or `integers(low,high)`."""
    chance, named = random.Random(seed), [parted(setting) for setting in settings]
    return [[f"{name}={_draw(chance, name, value)}" for name, value in named] for _ in range(count)]


def _draw(chance: random.Random, name: str, value: str) -> str:
    found = span(name, value)
    if found is None:
        return chance.choice(choices(value))
    kind, low, high = found
    return _KINDS[kind](chance, low, high)


def span(name: str, value: str) -> tuple[str, float, float] | None:
    """Kind and ends of a value like `uniform(0,1)`; None for listed values."""
    match = _DRAWN.fullmatch(value)
    if match is None:
        return None
    try:
        low, high = float(match[2]), float(match[3])
    except ValueError:
        raise ValueError(f"{name}={value}: the ends must be numbers") from None
    if not low < high or (match[1] == "loguniform" and low <= 0):
        raise ValueError(f"{name}={value}: the ends must rise, and those of loguniform be positive")
    return match[1], low, high


def parted(setting: str) -> tuple[str, str]:
    """Name and value of a setting.

    >>> parted("ppo.learning_rate=1e-3,3e-4")
    ('ppo.learning_rate', '1e-3,3e-4')
    """
    name, equals, value = setting.partition("=")
    if not equals or not name or not value:
        raise ValueError(f"a sweep takes settings as ppo.learning_rate=1e-3,3e-4, got {setting!r}")
    return name, value


def plan(folder: Path, command: Sequence[str], trials: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Write down a sweep's trials, or find that they are those of the sweep that is there."""
    named: list[dict[str, Any]] = [
        {"name": f"trial_{number:03d}", "settings": list(settings)} for number, settings in enumerate(trials)
    ]
    made = {"command": list(command), "trials": named}
    path = folder / PLAN
    if path.is_file():
        if read_json(path) != made:
            raise ValueError(f"{folder} is another sweep: give the same settings again, or another --out")
        return named
    check_free(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, "w") as file:
        json.dump(made, file, indent=2)
        file.write("\n")
    return named


def check_free(folder: Path) -> None:
    """Refuse a folder that holds something else."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} exists already and is no sweep; give another --out")


def chosen_metric(records: Sequence[dict[str, Any]], metric: str | None) -> str:
    """The metric that trials are ranked by: the one that is asked for, or the first of `METRICS`."""
    chosen = metric or next((name for name in METRICS if any(name in record for record in records)), None)
    if chosen is None or not any(chosen in record for record in records):
        there = sorted({name for record in records for name, value in record.items() if type(value) is float})
        raise ValueError(
            f"no evaluation has {chosen or 'a known metric'}; --metric may be {', '.join(there)}"
        )
    return chosen


def last_value(records: Sequence[dict[str, Any]], metric: str) -> float:
    """The metric at the last evaluation; sampled attempts come after the greedy ones, which count."""
    own = [record for record in records if metric in record]
    return float(next(record for record in own if record["step"] == own[-1]["step"])[metric])
