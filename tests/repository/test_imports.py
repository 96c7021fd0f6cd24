"""Packages and modules that must work without JAX do not import it."""

import subprocess
import sys

import pytest

from tests.repository.source import modules

pytestmark = pytest.mark.slow

WITHOUT_JAX = ("io", "text", "data", "logging", "kg", "puzzles")
"""Packages none of whose modules import JAX on import, except those in `phalanx.kg.kge`."""
MODULES_WITHOUT_JAX = (
    "phalanx",
    *(f"phalanx.{name}" for name in ("config", "formatting", "import_path", "native", "registry")),
    *(f"phalanx.{name}" for name in ("compilation_cache", "statistics", "svg", "system_info")),
    *(f"phalanx.integrations.{name}" for name in ("trl", "verifiers", "skyrl", "openenv")),
    *(f"phalanx.integrations.{name}" for name in ("torch_data", "hf_datasets", "hf_trainer")),
    "phalanx.arc",
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


def test_packages_and_modules_do_not_import_jax() -> None:
    """Import them in one new process, because starting one for each package would take longer."""
    prefixes = tuple(f"phalanx.{package}." for package in WITHOUT_JAX)
    names = [name for name in modules() if f"{name}.".startswith(prefixes) and "phalanx.kg.kge" not in name]
    assert all(any(f"{name}." == prefix for name in names) for prefix in prefixes)
    command = [sys.executable, "-c", IMPORT.format(names=[*names, *MODULES_WITHOUT_JAX])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
