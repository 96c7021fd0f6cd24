"""The parts that must work without JAX do not import it."""

import subprocess
import sys

import pytest

from tests.repository.source import modules

pytestmark = pytest.mark.slow

WITHOUT_JAX = ("io", "text", "data", "logging", "kg", "puzzles")
"""Packages that do not import JAX when they are imported."""
MODULES_WITHOUT_JAX = (
    *(f"phalanx.{name}" for name in ("config", "registry", "svg", "statistics", "formatting", "system_info")),
    *(f"phalanx.integrations.{name}" for name in ("trl", "verifiers", "skyrl", "openenv")),
    "phalanx",
    "phalanx.arc",
    "phalanx.arc.browser.report_panel",
    "phalanx.cli.app",
    "phalanx.training",
)
IMPORT = """
import importlib, sys
for name in {names!r}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "phalanx":
            raise
    if "jax" in sys.modules:
        sys.exit(name + " imports jax")
"""


def packages_without_jax() -> list[str]:
    return [name for name in modules() if name.split(".")[1:2] and name.split(".")[1] in WITHOUT_JAX]


@pytest.mark.parametrize("package", WITHOUT_JAX)
def test_packages_do_not_import_jax(package: str) -> None:
    prefix = f"phalanx.{package}"
    names = [
        name
        for name in packages_without_jax()
        if (name == prefix or name.startswith(f"{prefix}.")) and not name.startswith("phalanx.kg.kge")
    ]
    done = subprocess.run(
        [sys.executable, "-c", IMPORT.format(names=names)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_modules_do_not_import_jax() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT.format(names=MODULES_WITHOUT_JAX)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
