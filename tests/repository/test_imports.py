"""Packages and modules that must work without JAX do not import it."""

import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.repository.source import modules

pytestmark = pytest.mark.slow

WITHOUT_JAX = ("io", "text", "data", "logging", "kg", "puzzles")
"""Packages none of whose modules import JAX on import, except those in `phalanx.kg.kge`."""
MODULES_WITHOUT_JAX = (
    "phalanx",
    *(f"phalanx.{name}" for name in ("config", "formatting", "native", "registry", "statistics", "svg")),
    "phalanx.system_info",
    *(f"phalanx.integrations.{name}" for name in ("trl", "verifiers", "skyrl", "openenv")),
    *(f"phalanx.integrations.{name}" for name in ("torch_data", "hf_datasets", "hf_trainer")),
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


def import_all(names: Sequence[str]) -> None:
    """Import modules in a new process and fail if one of them imports JAX."""
    command = [sys.executable, "-c", IMPORT.format(names=names)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", WITHOUT_JAX)
def test_packages_do_not_import_jax(package: str) -> None:
    prefix = f"phalanx.{package}."
    import_all([name for name in modules() if f"{name}.".startswith(prefix) and "phalanx.kg.kge" not in name])


def test_modules_do_not_import_jax() -> None:
    import_all(MODULES_WITHOUT_JAX)
