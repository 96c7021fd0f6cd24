"""Which trials a sweep has, and that they stay the same when it goes on."""

import json
import sys
from pathlib import Path

import pytest

from phalanx.training.suggestions import SuggestedTrials
from phalanx.training.sweep import choices, drawn, grid, plan

pytestmark = pytest.mark.slow


def test_commas_part_values_but_not_within_brackets_and_quotes() -> None:
    assert choices("a,[b,c],'d,e',{f: 1, g: 2}") == ["a", "[b,c]", "'d,e'", "{f: 1, g: 2}"]


def test_a_grid_is_every_combination() -> None:
    assert grid(["a=1,2", "b=x,y"]) == [["a=1", "b=x"], ["a=1", "b=y"], ["a=2", "b=x"], ["a=2", "b=y"]]
    assert grid(["a=1"]) == [["a=1"]]


def test_draws_are_within_their_ends_and_the_same_for_the_same_seed() -> None:
    settings = ["a=uniform(-1,1)", "b=loguniform(1e-4,1e-2)", "c=integers(2,4)", "d=x,y"]
    found = drawn(settings, 40, seed=1)
    assert found == drawn(settings, 40, seed=1) != drawn(settings, 40, seed=2)
    values = [dict(one.split("=") for one in trial) for trial in found]
    assert all(-1 <= float(one["a"]) <= 1 and 1e-4 <= float(one["b"]) <= 1e-2 for one in values)
    assert {one["c"] for one in values} == {"2", "3", "4"}
    assert {one["d"] for one in values} == {"x", "y"}
    # As many below the middle of the exponents as above.
    assert 10 < sum(float(one["b"]) < 1e-3 for one in values) < 30


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["a"], "a sweep takes settings as"),
        (["a=uniform(2,1)"], "the ends must rise"),
        (["a=loguniform(0,1)"], "those of loguniform be positive"),
        (["a=uniform(x,1)"], "the ends must be numbers"),
    ],
)
def test_a_mistake_is_told_in_words(settings: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        drawn(settings, 1)


def test_what_is_drawn_needs_a_number_of_draws() -> None:
    with pytest.raises(ValueError, match="say how many times with --random or --optuna"):
        grid(["a=uniform(0,1)"])


def test_a_sweep_goes_on_only_as_it_was_planned(tmp_path: Path) -> None:
    trials = plan(tmp_path / "sweep", ["train", "arc"], grid(["a=1,2"]))
    assert trials == [{"name": "trial_000", "settings": ["a=1"]}, {"name": "trial_001", "settings": ["a=2"]}]
    assert json.loads((tmp_path / "sweep" / "sweep.json").read_text())["trials"] == trials
    assert plan(tmp_path / "sweep", ["train", "arc"], grid(["a=1,2"])) == trials
    with pytest.raises(ValueError, match="is another sweep"):
        plan(tmp_path / "sweep", ["train", "arc"], grid(["a=1,3"]))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("")
    with pytest.raises(ValueError, match="is no sweep"):
        plan(tmp_path / "other", ["train", "arc"], grid(["a=1"]))


SPACE = ["x=uniform(-4,4)", "rate=loguniform(1e-4,1)", "depth=integers(1,3)", "kind=a,b"]


def climbed(folder: Path, count: int, stops: tuple[int, ...] = ()) -> list[list[str]]:
    """So many suggestions for a hill at x = 2; opened anew at the given numbers, as after a stop."""
    pytest.importorskip("optuna")
    sweep, values = SuggestedTrials(folder, ["train", "arc"], SPACE, count, seed=3), {}
    for number in range(count):
        if number in stops:
            sweep = SuggestedTrials(folder, ["train", "arc"], SPACE, count, seed=3)
        trial = sweep.suggest(values, "max")
        read = dict(one.split("=") for one in trial["settings"])
        assert -4 <= float(read["x"]) <= 4 and 1e-4 <= float(read["rate"]) <= 1
        assert read["depth"] in "123" and read["kind"] in "ab"
        values[trial["name"]] = -((float(read["x"]) - 2) ** 2)
    return [trial["settings"] for trial in sweep.trials]


def test_suggestions_learn_from_the_trials_before_them_and_are_the_same_after_a_stop(tmp_path: Path) -> None:
    whole = climbed(tmp_path / "whole", 40)
    found = [abs(float(settings[0].partition("=")[2]) - 2) for settings in whole]
    assert sum(found[-15:]) < sum(found[:15]) / 2
    assert climbed(tmp_path / "stopped", 40, stops=(7, 20)) == whole
    with pytest.raises(ValueError, match="is another sweep"):
        SuggestedTrials(tmp_path / "whole", ["train", "arc"], SPACE, 41, seed=3)


def test_without_optuna_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ValueError, match=r'pip install "phalanx\[sweep\]"'):
        SuggestedTrials(tmp_path / "sweep", ["train", "arc"], SPACE, 2, seed=0)
