"""Functions that load the compiled C++ extension or report why it is unavailable."""

import functools
import os
from types import ModuleType
from typing import Literal

Backend = Literal["auto", "native", "xla"]
"""Implementation of an operation: `native` is C++ code for the CPU, and `xla` runs on any device.

`auto` uses `native` on CPUs if the compiled extension is available, and `xla` otherwise.
"""

_SWITCH = "PHALANX_NATIVE"


@functools.cache
def _load() -> ModuleType | str:
    """Return the extension module, or a string with the reason why it cannot be loaded."""
    try:
        import phalanx._native as _native
    except ModuleNotFoundError:
        return "the compiled extension is not installed; `pip install -v` with a C++ compiler builds it"
    except ImportError as error:
        return f"the compiled extension cannot be loaded: {error}"
    return _native


def native_unavailable_reason() -> str:
    """Return why the native backend is unavailable, or an empty string if it is available."""
    if os.environ.get(_SWITCH, "1") == "0":
        return f"disabled by {_SWITCH}=0"
    loaded = _load()
    return loaded if isinstance(loaded, str) else ""


def is_native_available() -> bool:
    """Return whether the native backend is installed and not disabled."""
    return not native_unavailable_reason()


def native_module() -> ModuleType | None:
    """Return the compiled extension, or None if the native backend is unavailable."""
    loaded = _load()
    return None if native_unavailable_reason() or isinstance(loaded, str) else loaded


def require_native(feature: str) -> ModuleType:
    """Return the compiled extension for a feature that has no other implementation.

    `PHALANX_NATIVE=0` does not disable such features. It only disables the native backend of operations that
    also have an XLA implementation.

    Args:
        feature: Name of the feature, for the error message.

    Raises:
        RuntimeError: If the extension cannot be loaded. The message says how to install it.
    """
    loaded = _load()
    if isinstance(loaded, str):
        raise RuntimeError(f"{feature} needs the compiled extension: {loaded}")
    return loaded


def instruction_set() -> str:
    """Return the instruction set that the C++ kernels use on this CPU.

    The result is an empty string if the extension cannot be loaded.
    """
    loaded = _load()
    return "" if isinstance(loaded, str) else str(loaded.instruction_set())
