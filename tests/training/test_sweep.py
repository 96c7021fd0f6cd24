"""Search spaces, samplers and resumed sweeps."""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from phalanx.extras import MissingExtraError
from phalanx.training.sweep import Sweep, SweepTrial, grid, last_metrics, parse_space, split_values

COMMAND = ["train", "ppo", "--env", "arc"]
SPACE = ["x=uniform(-4,4)", "rate=loguniform(1e-4,1)", "depth=integers(1,3)", "kind=a,b"]


class FinishedProcess:
    """A process that has already ended."""

    def __init__(self, code: int) -> None:
        self._code = code

    def poll(self) -> int:
        return self._code

    wait = poll

    def terminate(self) -> None:
        pass


class FakeLauncher:
    """A launcher that does not train, but writes `height`, a parabola with its maximum at x = 2."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.started: list[Sequence[str]] = []
        self._stop_after = stop_after

    def start(self, arguments: Sequence[str], log: Path) -> FinishedProcess:
        if len(self.started) == self._stop_after:
            raise KeyboardInterrupt
        self.started.append(arguments)
        settings = dict(setting.split("=") for setting in arguments if "=" in setting)
        run = Path(arguments[arguments.index("--out") + 1])
        run.mkdir(exist_ok=True)
        x = float(settings["x"])
        record = {"step": 1, "metrics": {"height": -((x - 2) ** 2), "loss": x}}
        (run / "batch_metrics.jsonl").write_text(json.dumps(record) + "\n")
        return FinishedProcess(0)


def run(sweep: Sweep, launcher: FakeLauncher) -> list[list[str]]:
    assert sweep.run(launcher.start, 1, lambda trial, code: None) is None
    return [trial.settings for trial in sweep.trials()]


def tpe(folder: Path, num_trials: int = 40) -> Sweep:
    return Sweep(folder, COMMAND, SPACE, sampler="tpe", num_trials=num_trials, seed=3, metric="height")


def test_values_are_split_at_commas_outside_brackets_and_quotes() -> None:
    assert split_values("a,[b,c],'d,e',{f: 1, g: 2}") == ["a", "[b,c]", "'d,e'", "{f: 1, g: 2}"]


def test_grid_has_all_combinations() -> None:
    assert grid(parse_space(["a=1,2", "b=x,y"])) == [
        {"a": "1", "b": "x"},
        {"a": "1", "b": "y"},
        {"a": "2", "b": "x"},
        {"a": "2", "b": "y"},
    ]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("a", "a sweep takes settings such as"),
        ("a=uniform(2,1)", "the lower bound must come first"),
        ("a=loguniform(0,1)", "the bounds of loguniform must be positive"),
        ("a=uniform(x,1)", "the bounds must be numbers"),
        ("a=integers(1,2.5)", "the bounds must be integers"),
    ],
)
def test_invalid_search_space_is_rejected(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_space([setting])


def test_sampler_must_match_the_space_and_the_number_of_trials(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a is a range, and a grid needs lists of values"):
        Sweep(tmp_path, COMMAND, ["a=uniform(0,1)"])
    with pytest.raises(ValueError, match="--trials is for --sampler random and tpe"):
        Sweep(tmp_path, COMMAND, ["a=1,2"], num_trials=2)
    with pytest.raises(ValueError, match="--sampler tpe needs --trials"):
        Sweep(tmp_path, COMMAND, ["a=1,2"], sampler="tpe")


def test_random_samples_are_in_their_ranges_and_depend_on_the_seed(tmp_path: Path) -> None:
    def sample(name: str, seed: int) -> list[list[str]]:
        sweep = Sweep(
            tmp_path / name, COMMAND, SPACE, sampler="random", num_trials=40, seed=seed, metric="loss"
        )
        return run(sweep, FakeLauncher())

    settings = sample("first", 1)
    assert settings == sample("again", 1) != sample("other", 2)
    values = [dict(one.split("=") for one in trial) for trial in settings]
    assert all(-4 <= float(one["x"]) <= 4 and 1e-4 <= float(one["rate"]) <= 1 for one in values)
    assert {one["depth"] for one in values} == {"1", "2", "3"}
    assert {one["kind"] for one in values} == {"a", "b"}
    assert 10 < sum(float(one["rate"]) < 1e-2 for one in values) < 30


def test_tpe_learns_from_earlier_trials_and_a_resumed_sweep_makes_the_same_suggestions(
    tmp_path: Path,
) -> None:
    expected = run(tpe(tmp_path / "uninterrupted"), FakeLauncher())
    distances = [abs(float(settings[0].partition("=")[2]) - 2) for settings in expected]
    assert sum(distances[-15:]) < sum(distances[:15]) / 2
    for stop_after in (7, 13):
        with pytest.raises(KeyboardInterrupt):
            run(tpe(tmp_path / "resumed"), FakeLauncher(stop_after))
    assert run(tpe(tmp_path / "resumed"), FakeLauncher()) == expected


def test_number_of_trials_can_be_increased(tmp_path: Path) -> None:
    first = run(tpe(tmp_path / "sweep", 2), FakeLauncher())
    launcher = FakeLauncher()
    assert run(tpe(tmp_path / "sweep", 3), launcher)[:2] == first
    (arguments,) = launcher.started
    assert arguments[arguments.index("--out") + 1] == str(tmp_path / "sweep" / "trial_002")


def test_folder_with_another_sweep_or_other_files_is_rejected(tmp_path: Path) -> None:
    run(Sweep(tmp_path / "sweep", COMMAND, ["x=1,2"], metric="height"), FakeLauncher())
    with pytest.raises(ValueError, match="is another sweep"):
        run(Sweep(tmp_path / "sweep", COMMAND, ["x=1,3"], metric="height"), FakeLauncher())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("")
    with pytest.raises(ValueError, match="already exists and is not a sweep"):
        run(Sweep(tmp_path / "other", COMMAND, ["x=1"], metric="height"), FakeLauncher())


def test_objective_of_tpe_can_be_corrected_only_before_the_first_value(tmp_path: Path) -> None:
    def sweep(metric: str) -> Sweep:
        return Sweep(tmp_path / "sweep", COMMAND, SPACE, sampler="tpe", num_trials=2, metric=metric)

    with pytest.raises(ValueError, match="have no metric hight; choose one with --metric: height, loss"):
        run(sweep("hight"), FakeLauncher())
    assert len(run(sweep("height"), FakeLauncher())) == 2
    with pytest.raises(ValueError, match="TPE has learned from height"):
        run(sweep("loss"), FakeLauncher())


def test_trials_are_ranked_by_any_metric(tmp_path: Path) -> None:
    run(Sweep(tmp_path / "sweep", COMMAND, ["x=1,2,4"], metric="height"), FakeLauncher())

    def ranked(metric: str, goal: str | None = None) -> list[str]:
        sweep = Sweep(tmp_path / "sweep", COMMAND, ["x=1,2,4"], metric=metric, goal=goal)  # type: ignore[arg-type]
        return [str(trial.params["x"]) for trial, _ in sweep.rank()]

    assert ranked("height") == ["2", "1", "4"]
    assert ranked("loss") == ["1", "2", "4"]
    assert ranked("loss", "max") == ["4", "2", "1"]
    with pytest.raises(ValueError, match="have no metric reward; choose one with --metric: height, loss"):
        ranked("reward")


def test_trial_without_a_value_is_ranked_last(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "sweep", COMMAND, ["x=nan,1"], metric="height")
    run(sweep, FakeLauncher())
    ranking = sweep.rank()
    assert [trial.name for trial, _ in ranking] == ["trial_001", "trial_000"]
    assert math.isnan(ranking[1][1])


def test_metrics_are_those_of_the_last_evaluation_averaged_over_seeds(tmp_path: Path) -> None:
    for seed, rate in enumerate((0.25, 0.75)):
        folder = tmp_path / f"seed_{seed}"
        folder.mkdir()
        training = {"step": 9, "metrics": {"success_rate": 0.1, "loss": 2.0 * seed}}
        (folder / "batch_metrics.jsonl").write_text(json.dumps(training) + "\n")
        evaluations = [
            {"step": 0, "mode": "greedy", "success_rate": 0.0},
            {"step": 9, "mode": "greedy", "success_rate": rate, "timestamp": 1.0},
            {"step": 9, "mode": "sampled", "success_rate": 1.0},
        ]
        (folder / "evaluations.jsonl").write_text("".join(json.dumps(one) + "\n" for one in evaluations))
    assert last_metrics(tmp_path) == {"success_rate": 0.5, "loss": 1.0}


def test_all_settings_are_validated_before_the_first_trial(tmp_path: Path) -> None:
    def load(settings: list[str]) -> None:
        seen.append(settings)

    seen: list[list[str]] = []
    Sweep(tmp_path, COMMAND, ["a=1,2", "b=x,y"]).validate(load)
    assert seen == [["a=1", "b=x"], ["a=1", "b=y"], ["a=2", "b=x"], ["a=2", "b=y"]]
    seen.clear()
    Sweep(tmp_path, COMMAND, ["a=uniform(0,1)", "b=x,y"], sampler="tpe", num_trials=9).validate(load)
    assert seen == [["a=0.0", "b=x"], ["a=1.0", "b=x"], ["a=0.0", "b=x"], ["a=0.0", "b=y"]]


def test_failed_trial_is_started_again(tmp_path: Path) -> None:
    class FailingLauncher(FakeLauncher):
        def start(self, arguments: Sequence[str], log: Path) -> FinishedProcess:
            process = super().start(arguments, log)
            return FinishedProcess(1) if "x=2" in arguments else process

    ended: list[tuple[SweepTrial, int]] = []
    for launcher in (FailingLauncher(), FakeLauncher()):
        sweep = Sweep(tmp_path / "sweep", COMMAND, ["x=1,2"], metric="height")
        sweep.run(launcher.start, 2, lambda trial, code: ended.append((trial, code)))
    assert [(trial.name, code) for trial, code in ended] == [
        ("trial_000", 0),
        ("trial_001", 1),
        ("trial_001", 0),
    ]


def test_error_without_optuna_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'phalanx\[sweep\]'"):
        Sweep(tmp_path / "sweep", COMMAND, ["a=1"])
