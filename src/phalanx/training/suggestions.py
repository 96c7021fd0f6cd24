"""Trials that Optuna suggests: each knows what those before it came to, and all of it is in the sweep's file.

What a setting may be swept over is read in `sweep`, beside grids and plain draws.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from phalanx.io.atomic import atomic_write
from phalanx.training.sweep import PLAN, check_free, choices, parted, span


class SuggestedTrials:
    """The trials of a sweep that Optuna's TPE suggests, one at a time.

    A suggestion depends on the seed, its number, and the values of the trials before it, and on nothing else:
    a sweep with one job that was stopped goes on with the suggestions it would have had.
    """

    def __init__(
        self, folder: Path, command: Sequence[str], settings: Sequence[str], count: int, seed: int
    ) -> None:
        self._distributions = {name: _distribution(name, value) for name, value in map(parted, settings)}
        self._path, self.count, self._seed = folder / PLAN, count, seed
        self._plan: dict[str, Any] = {
            "command": list(command),
            "optuna": {"settings": list(settings), "trials": count, "seed": seed},
        }
        self.trials: list[dict[str, Any]] = []
        """Those suggested so far."""
        if self._path.is_file():
            found = json.loads(self._path.read_text(encoding="utf-8"))
            self.trials = found.pop("trials")
            if found != self._plan:
                raise ValueError(f"{folder} is another sweep: give the same settings again, or another --out")
            return
        check_free(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._write()

    def suggest(self, values: Mapping[str, float], goal: str) -> dict[str, Any]:
        """The next trial, by what others came to; `goal` is max or min."""
        optuna = _optuna()
        number = len(self.trials)
        sampler = optuna.samplers.TPESampler(seed=self._seed + number)
        study = optuna.create_study(direction=f"{goal}imize", sampler=sampler)
        for trial in self.trials:
            if trial["name"] in values:
                read = dict(map(parted, trial["settings"]))
                params = {name: _value(one, read[name]) for name, one in self._distributions.items()}
                study.add_trial(
                    optuna.trial.create_trial(
                        params=params, distributions=self._distributions, value=values[trial["name"]]
                    )
                )
        drawn = study.ask(self._distributions).params
        settings = [
            f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in drawn.items()
        ]
        self.trials.append({"name": f"trial_{number:03d}", "settings": settings})
        self._write()
        return self.trials[-1]

    def _write(self) -> None:
        with atomic_write(self._path, "w") as file:
            json.dump(self._plan | {"trials": self.trials}, file, indent=2)
            file.write("\n")


def _optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise ValueError('--optuna needs Optuna: pip install "phalanx[sweep]"') from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _distribution(name: str, value: str) -> Any:
    distributions = _optuna().distributions
    found = span(name, value)
    if found is None:
        return distributions.CategoricalDistribution(choices(value))
    kind, low, high = found
    if kind == "integers":
        return distributions.IntDistribution(int(low), int(high))
    return distributions.FloatDistribution(low, high, log=kind == "loguniform")


def _value(distribution: Any, text: str) -> Any:
    """What a setting's text was for Optuna."""
    kind = type(distribution).__name__
    if kind == "CategoricalDistribution":
        return text
    # Six digits may round a number over its end by a hair.
    read = int(text) if kind == "IntDistribution" else float(text)
    return min(max(read, distribution.low), distribution.high)
