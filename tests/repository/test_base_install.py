"""The base install, without the extra `jax`, is simulated in a process that cannot import JAX."""

import json
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from phalanx.extras import JAX_PACKAGES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

# Wraps every finder, so that the libraries appear not to be installed to `import` and to `find_spec`.
# The other libraries are not part of a base install either, and importing them is slow. A test in
# test_imports.py checks that the integration of verifiers does not import JAX.
WITHOUT_JAX = f"""
import sys

class Finder:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {(*JAX_PACKAGES, "jaxlib", "torch", "transformers", "verifiers")!r}:
            return None
        return self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Finder(finder) for finder in sys.meta_path]
"""

IMPORT_ALL = """
import importlib, json, pkgutil

def import_all(name):
    errors = {}
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        return {name: [type(error).__name__, str(error)]}
    errors[name] = None
    for child in pkgutil.iter_modules(getattr(module, "__path__", ()), name + "."):
        if not child.name.endswith("__main__"):
            errors |= import_all(child.name)
    return errors

print(json.dumps(import_all("phalanx")))
"""


def run_without_jax(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_JAX + script, *arguments], capture_output=True, text=True, timeout=120
    )


@cache
def import_errors() -> dict[str, list[str] | None]:
    """Return the error of each module, or None if it can be imported without JAX.

    Modules of a package that cannot be imported are not listed.
    """
    process = run_without_jax(IMPORT_ALL)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def test_modules_without_jax_can_be_imported_in_a_base_install() -> None:
    [contract] = [c for c in PYPROJECT["tool"]["importlinter"]["contracts"] if c["name"] == "No JAX"]
    errors = import_errors()
    assert {"phalanx.data", "phalanx.kg", "phalanx.logging", "phalanx.puzzles"} <= set(
        contract["source_modules"]
    )
    for package in contract["source_modules"]:
        modules = [name for name in errors if f"{name}.".startswith(f"{package}.")]
        assert modules
        for name in modules:
            if name != "phalanx.kg.kge" and errors[name] is not None:
                # Without other extras, an integration fails because of its own library.
                assert name.startswith("phalanx.integrations"), (name, errors[name])
                assert "JAX" not in errors[name][1], (name, errors[name])


def test_every_other_module_names_the_extra_that_it_needs_in_one_line() -> None:
    failed = {name: error for name, error in import_errors().items() if error is not None}
    assert failed["phalanx.arc"] == ["MissingExtraError", "phalanx.arc needs JAX: pip install 'phalanx[jax]'"]
    assert {"phalanx.core", "phalanx.training", "phalanx.lm", "phalanx.proofs"} <= set(failed)
    extras = PYPROJECT["project"]["optional-dependencies"]
    for name, (kind, message) in failed.items():
        assert kind == "MissingExtraError", (name, message)
        extra = message.rpartition("pip install 'phalanx[")[2].removesuffix("]'")
        assert extra in extras and "\n" not in message, (name, message)
        if "jax" in message.partition(":")[0].lower():
            assert extra == "jax" or requires(extra, "jax"), (name, message)


def requires(extra: str, other: str) -> bool:
    included = {
        name
        for requirement in PYPROJECT["project"]["optional-dependencies"][extra]
        if requirement.startswith("phalanx[")
        for name in requirement.removeprefix("phalanx[").rstrip("]").split(",")
    }
    return other in included or any(requires(name, other) for name in included)


def test_extras_whose_code_needs_jax_install_it() -> None:
    for extra in ("arc", "cuda", "export", "gym", "render", "sb3", "stoa", "sweep", "torch"):
        assert requires(extra, "jax"), extra
    for extra in ("data", "hf", "serve", "trl", "verifiers", "wandb"):
        assert not requires(extra, "jax"), extra


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_without_jax("from phalanx.cli.app import main\nmain()\n", *arguments)


def test_commands_that_need_jax_exit_with_code_2_and_one_line() -> None:
    for arguments in (["train", "ppo"], ["demo"], ["eval", "run"], ["render", "run"], ["arc", "list"]):
        process = run_command(*arguments)
        assert process.returncode == 2, (arguments, process.stderr)
        assert process.stderr.startswith("phalanx: phalanx"), process.stderr
        assert process.stderr.endswith(" needs JAX: pip install 'phalanx[jax]'\n"), process.stderr
        assert process.stderr.count("\n") == 1, process.stderr


def test_info_reports_that_jax_is_missing() -> None:
    process = run_command("info")
    assert process.returncode == 0, process.stderr
    assert "jax      not installed: pip install 'phalanx[jax]'\n" in process.stdout
    assert json.loads(run_command("info", "--json").stdout)["devices"] == []


def test_puzzles_and_text_environments_need_no_jax() -> None:
    shown = run_command("puzzles", "show", "sudoku")
    assert shown.returncode == 0 and "This is a sudoku" in shown.stdout, shown.stderr
    assert "sokoban" in run_command("puzzles", "list").stdout
    unknown = run_command("serve", "sudko")
    assert unknown.stderr == "phalanx: unknown text environment 'sudko'; did you mean 'sudoku'?\n"
    script = """
from phalanx.text import TextEnvConfig, make_text_env, make_text_vector_env
print(make_text_vector_env("sudoku,sokoban:easy:multi").tasks)
print(TextEnvConfig(id="puzzle_server", address="host:1", games=("lights:hard",)).make().tasks)
try:
    make_text_env("arc")
except ModuleNotFoundError as error:
    print(error)
"""
    assert run_without_jax(script).stdout.splitlines() == [
        "('sudoku:easy:multi', 'sokoban:easy:multi')",
        "('lights:hard',)",
        "phalanx.arc needs JAX: pip install 'phalanx[jax]'",
    ]


def test_names_of_lazy_packages_that_need_jax_raise_the_message() -> None:
    script = """
import phalanx
for action in (lambda: phalanx.make("arc-v2"), lambda: phalanx.train, lambda: phalanx.load_policy):
    try:
        action()
    except ModuleNotFoundError as error:
        print(error)
"""
    process = run_without_jax(script)
    training = "phalanx.training needs JAX: pip install 'phalanx[jax]'"
    assert process.stdout.splitlines() == [training.replace("training", "arc"), training, training]


def test_logger_works_without_jax(tmp_path: Path) -> None:
    script = """
import sys
import numpy as np
from phalanx.logging import ExperimentLogger, FileHandler, LoggingConfig

logger = ExperimentLogger(LoggingConfig(), {"file": FileHandler(sys.argv[1])})
logger.log_batch_step({
    "update_step": 10, "loss": 0.5, "episode_returns": np.ones(4), "episode_lengths": np.full(4, 3),
    "success_mask": np.array([True, False, True, True]), "task_ids": list("abcd"),
})
logger.close()
"""
    process = run_without_jax(script, str(tmp_path))
    assert process.returncode == 0, process.stderr
    text = "".join(file.read_text() for file in tmp_path.rglob("*.jsonl"))
    assert '"success_rate": 0.75' in text or '"success_rate":0.75' in text
