"""Missing libraries of the text integrations are reported with the install command."""

import importlib
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "name", "extra"),
    [
        ("skyrl", "skyrl_gym", "skyrl"),
        ("verifiers", "verifiers", "verifiers"),
        ("openenv", "uvicorn", "serve"),
        ("openenv", "websockets", "serve"),
    ],
)
def test_missing_library_is_reported_with_the_install_command(
    module: str, name: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for loaded in [found for found in sys.modules if found.startswith(f"phalanx.integrations.{module}")]:
        monkeypatch.delitem(sys.modules, loaded)
    for loaded in [found for found in sys.modules if found.partition(".")[0] == name]:
        monkeypatch.setitem(sys.modules, loaded, None)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=rf"needs {name}.*: pip install 'phalanx\[{extra}\]'"):
        importlib.import_module(f"phalanx.integrations.{module}")
