"""Changed networks and source files are noticed when a run is resumed or evaluated."""

import copy
import functools
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from phalanx import load_policy
from phalanx.core.spec import EnvSpec
from phalanx.training import PPO, PPOConfig, SFTConfig, TrainResult, load_algorithm, load_metadata, train
from phalanx.training.code_identity import identify_code, source_digests
from tests.helpers.cli import phalanx as phalanx
from tests.helpers.descent import Descent, DescentConfig
from tests.helpers.short_walk import ShortWalk, Sight, WalkNetwork
from tests.helpers.small_training import small_config

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SMALL = ("num_envs=2", "num_steps=4", "num_updates=1", "num_minibatches=1", "evaluation.num_episodes=0")


WALK = EnvSpec(ShortWalk, network=lambda environment, config, key: WalkNetwork(key))


class Reversed(WalkNetwork):
    """A network with the same parameters as `WalkNetwork` that computes something else."""

    def __call__(self, sight: Sight) -> Any:
        distribution, value = super().__call__(sight)
        return distribution, -value


def config() -> PPOConfig:
    return PPOConfig.load(env=f"{__name__}:WALK", overrides=SMALL)


@pytest.fixture(scope="module")
def reversed_run(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    return train(PPO(config(), network=Reversed), tmp_path_factory.mktemp("network") / "run")


def test_policy_of_a_passed_network_is_loaded_with_this_network_only(reversed_run: TrainResult) -> None:
    run = reversed_run.run_dir
    for network in (None, WalkNetwork):
        with pytest.raises(ValueError, match=r"trained with the network \w+:Reversed .* not with \w+:Walk"):
            load_policy(run, network)
    policy = load_policy(run, network=Reversed)
    assert isinstance(policy.network, Reversed)
    np.testing.assert_array_equal(policy.network.value.weight, reversed_run.state.params.value.weight)
    # The same network from another function.
    assert load_policy(run, network=lambda key: Reversed(key)).step == 1


def test_commands_refuse_a_run_of_a_passed_network_with_one_line(
    reversed_run: TrainResult, phalanx: Callable[..., Any]
) -> None:
    run = reversed_run.run_dir
    for command in (["eval", run], ["eval", run, "--untrained"], ["render", run]):
        done = phalanx(*command)
        assert done.code == 2
        assert "load it in Python with load_policy(RUN, network=...)" in done.err
        assert done.err.count("\n") == 1


def test_run_is_resumed_with_the_same_network_only(reversed_run: TrainResult) -> None:
    run = reversed_run.run_dir
    with pytest.raises(ValueError, match="resume it with the network that was passed to its algorithm"):
        train(PPO(config()), run, resume=True)
    assert train(PPO(config(), network=Reversed), run, resume=True).update == 1


def test_network_is_rejected_for_an_algorithm_without_one(tmp_path: Path) -> None:
    run = train(Descent(DescentConfig()), tmp_path / "run").run_dir
    with pytest.raises(ValueError, match="trained with descent, which accepts no network"):
        load_policy(run, network=WalkNetwork)


class Layer(eqx.Module):
    weight: Array
    activation: Any
    names: Any = ()


class Scale:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, value: Array) -> Array:
        return self.factor * value


def scaled(factor: float) -> Callable[[Array], Array]:
    def scale(value: Array) -> Array:
        return factor * value

    return scale


def structure(activation: Any, names: Any = ()) -> str:
    return identify_code([], Layer(None, activation, names))["network"]["structure"]


ACTIVATIONS = {
    "relu": lambda: jax.nn.relu,
    "tanh": lambda: jnp.tanh,
    "partial": lambda: functools.partial(jax.nn.leaky_relu, negative_slope=0.1),
    "another partial": lambda: functools.partial(jax.nn.leaky_relu, negative_slope=0.2),
    "compiled partial": lambda: jax.jit(functools.partial(jax.nn.leaky_relu, negative_slope=0.3)),
    "closure": lambda: scaled(1.0),
    "another closure": lambda: scaled(2.0),
    "object": lambda: Scale(1.0),
    "another object": lambda: Scale(2.0),
    "method": lambda: Scale(1.0).__call__,
    "another method": lambda: Scale(2.0).__call__,
    "lambda": lambda: lambda value: value,
    "another lambda": lambda: lambda value: value + value,
    "module": lambda: eqx.nn.Lambda(jax.nn.relu),
    "array": lambda: np.zeros(2),
    "another array": lambda: np.ones(2),
    "dictionary": lambda: {"a": 1, "b": 2},
    "another dictionary": lambda: {"a": 1, "b": 3},
}


def test_structure_distinguishes_static_fields() -> None:
    digests = {name: structure(create()) for name, create in ACTIVATIONS.items()}
    assert len(set(digests.values())) == len(ACTIVATIONS)
    assert digests == {name: structure(create()) for name, create in ACTIVATIONS.items()}
    assert structure(jax.jit(jax.nn.relu)) == digests["relu"]
    assert structure({"b": 2, "a": 1}) == digests["dictionary"]


def test_structure_does_not_depend_on_the_backend() -> None:
    algorithm = PPO(small_config("network.kind=color_equivariant"))
    native = algorithm.network_structure
    xla = copy.copy(native)
    object.__setattr__(native, "backend", "native")
    object.__setattr__(xla, "backend", "xla")
    assert identify_code([], native) == identify_code([], xla)


def test_structure_of_a_recursive_function_is_finite() -> None:
    def halve(value: float) -> float:
        return halve(value / 2) if value > 1 else value

    assert structure(halve) == structure(halve)


def test_structure_is_the_same_in_another_process() -> None:
    code = (
        "from tests.training.test_code_identity import ACTIVATIONS, structure\n"
        "print(*(structure(create(), {'ab', 'cd', 'ef'}) for create in ACTIVATIONS.values()))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)}
    printed = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert printed.stdout.split() == [
        structure(create(), {"ab", "cd", "ef"}) for create in ACTIVATIONS.values()
    ]


ALGORITHM = """
from phalanx.training import EvaluationConfig
from tests.helpers.descent import Descent
from {name}_rate import RATE

class Measured(Descent):
    name = "measured"

    @classmethod
    def evaluation_type(cls, config, env=None):
        return EvaluationConfig
"""


@pytest.fixture
def algorithm_file(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    # Every test imports files with other names, because Python imports a module only once.
    name = re.sub(r"\W", "_", f"measured_{request.node.name}")
    (tmp_path / f"{name}_rate.py").write_text("RATE = 1\n")
    (tmp_path / "unused.py").write_text("")
    file = tmp_path / f"{name}.py"
    file.write_text(ALGORITHM.format(name=name))
    return file


def measured(file: Path, num_seeds: int = 1) -> Any:
    return load_algorithm(str(file))(DescentConfig(num_updates=2, num_seeds=num_seeds))


@pytest.mark.parametrize("suffix", ["", "_rate"], ids=["file", "import"])
@pytest.mark.parametrize("num_seeds", [1, 2])
def test_run_whose_source_has_changed_is_not_resumed(
    algorithm_file: Path, tmp_path: Path, suffix: str, num_seeds: int
) -> None:
    run = train(measured(algorithm_file, num_seeds), tmp_path / "run").run_dir
    changed = algorithm_file.with_stem(algorithm_file.stem + suffix)
    text = changed.read_text()
    changed.write_text(text + "\nSIGN = -1\n")
    for option in ("resume", "auto_resume", "extend"):
        with pytest.raises(ValueError, match=f"{changed.name} has changed; restore the file, or start a new"):
            train(measured(algorithm_file, num_seeds), run, **{option: True})
    changed.write_text(text)
    assert train(measured(algorithm_file, num_seeds), run, resume=True).update == 2


def test_evaluation_warns_once_if_the_source_has_changed(
    algorithm_file: Path, tmp_path: Path, phalanx: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    run = train(measured(algorithm_file, num_seeds=2), tmp_path / "run").run_dir
    caplog.set_level(logging.WARNING, "phalanx")
    assert phalanx("eval", run).code == 0
    load_policy(run)
    assert caplog.messages == []
    algorithm_file.write_text(algorithm_file.read_text() + "\nSIGN = -1\n")
    warning = f"{run}/seed_0 was trained with other code, so results can differ: {algorithm_file} has changed"
    assert phalanx("eval", run).code == 0
    assert caplog.messages == [warning]
    load_policy(run)
    assert caplog.messages == [warning, warning]


def test_project_can_be_moved(algorithm_file: Path, tmp_path: Path) -> None:
    run = train(measured(algorithm_file), tmp_path / "run").run_dir
    (moved := tmp_path / "moved").mkdir()
    for file in tmp_path.glob("measured_*.py"):
        (moved / file.name).write_text(file.read_text())
    assert train(measured(moved / algorithm_file.name), run, resume=True).update == 2


def test_sources_are_the_files_of_classes_base_classes_and_imports_from_their_folders(
    algorithm_file: Path, tmp_path: Path
) -> None:
    algorithm = load_algorithm(str(algorithm_file))
    helper = Path(__file__).parents[1] / "helpers" / "descent.py"
    imported = algorithm_file.with_stem(f"{algorithm_file.stem}_rate")
    assert list(source_digests([algorithm])) == sorted(map(str, (helper, algorithm_file, imported)))
    assert source_digests([PPO, Path, eqx.nn.Linear, functools.partial(jax.nn.relu)]) == {}


def test_sources_include_relative_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package := tmp_path / "relative_package").mkdir()
    (package / "__init__.py").write_text("")
    (package / "first.py").write_text("from .second import NUMBER\nclass First: pass\n")
    (package / "second.py").write_text("from relative_package import third\nNUMBER = third.NUMBER\n")
    (package / "third.py").write_text("NUMBER = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    from relative_package.first import First  # type: ignore[import-not-found]

    assert [Path(file).name for file in source_digests([First])] == ["first.py", "second.py", "third.py"]


def test_class_without_a_file_can_be_trained_and_resumed(tmp_path: Path) -> None:
    names: dict[str, Any] = {"Descent": Descent, "__name__": "__main__"}
    exec("class Cell(Descent):\n    name = 'cell'\n", names)
    run = train(names["Cell"](DescentConfig(num_updates=2)), tmp_path / "run").run_dir
    (source,) = load_metadata(run)["code"]["sources"]
    assert Path(source).name == "descent.py"
    assert train(names["Cell"](DescentConfig(num_updates=2)), run, resume=True).update == 2


def test_sources_include_text_environments(tmp_path: Path) -> None:
    file = tmp_path / "counting_env.py"
    file.write_text("from phalanx.text import TextEnvironment\nclass Counting(TextEnvironment): pass\n")
    environments = SFTConfig.load(env=f"{file}:Counting").environment_types
    assert list(source_digests(environments)) == [str(file)]
