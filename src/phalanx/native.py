"""The C++ extension: loads it, or explains how to install it."""

import functools
from types import ModuleType


@functools.cache
def _load() -> ModuleType | str:
    """Return the extension module, or the reason why it cannot be loaded."""
    try:
        import phalanx._native as _native
    except ModuleNotFoundError:
        return "the C++ extension is not installed"
    except ImportError as error:
        return f"the C++ extension cannot be loaded: {error}"
    return _native


def require_native(feature: str) -> ModuleType:
    """Return the extension; raise `ImportError` with install instructions if it is missing.

    Args:
        feature: What needs the extension, for the error message.
    """
    loaded = _load()
    if isinstance(loaded, str):
        raise ImportError(
            f"{feature} needs the C++ extension: {loaded}; install a wheel, or run `pip install -v phalanx` "
            f"with a C++ compiler"
        )
    return loaded
