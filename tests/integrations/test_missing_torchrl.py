"""Missing PyTorch libraries are reported with the install command, and the package can still be imported."""

import importlib
import sys

import pytest


@pytest.mark.parametrize("name", ["torch", "tensordict", "torchrl"])
def test_missing_library_is_reported_with_the_install_command(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for loaded in [module for module in sys.modules if module.startswith("phalanx.integrations.torch")]:
        monkeypatch.delitem(sys.modules, loaded)
    for loaded in [module for module in sys.modules if module.partition(".")[0] == name]:
        monkeypatch.setitem(sys.modules, loaded, None)
    monkeypatch.setitem(sys.modules, name, None)
    importlib.import_module("phalanx.integrations")
    with pytest.raises(ModuleNotFoundError, match=rf"needs {name}.*: pip install 'phalanx\[torch\]'"):
        importlib.import_module("phalanx.integrations.torchrl")
