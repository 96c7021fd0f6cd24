"""The original JaxARC documents run after only the import root is changed, if they are on this machine.

The names that they use without defining them are supplied here. Other tests check what the functions compute.
"""

import functools
import inspect
import re
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from phalanx.compat.jaxarc import agents, batch_processing, envs, state, types

FOLDERS = [folder / "shared" / "seeds" for folder in Path(__file__).parents]
PROGRAM = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2, 3])
def test_document_runs(number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = next((folder for folder in FOLDERS if folder.is_dir()), None)
    if folder is None:
        pytest.skip("the original documents are not on this machine")
    monkeypatch.chdir(tmp_path)
    (path,) = folder.glob(f"{number}-*.md")
    modules = (agents, batch_processing, envs, state, types)
    given = {name: value for module in modules for name, value in vars(module).items() if name[0] != "_"}
    given = {name: value for name, value in given.items() if not inspect.ismodule(value)}
    names: dict[str, Any] = {"Any": Any, "Dict": dict, "List": list, "Literal": Literal}
    names |= {"eqx": eqx, "functools": functools, "jax": jax, "jnp": jnp}
    for program in PROGRAM.findall(path.read_text(encoding="utf-8")):
        # Some functions are stubs in a document, so those of the package take precedence.
        names |= given
        code = re.sub(r"\b(from|import) jaxarc\b", r"\1 phalanx.compat.jaxarc", program)
        exec(compile(code, str(path), "exec"), names)
