"""The conditions that every measurement names: the machine, and the libraries that do the work.

How a measurement is told is in `records`.
"""

import importlib.metadata
from typing import Any

from phalanx.system_info import machine_info


def conditions(*libraries: str) -> dict[str, Any]:
    """Versions of these libraries, and the machine; JAX also says which kind of device it uses."""
    known: dict[str, Any] = {name: importlib.metadata.version(name) for name in libraries}
    if "jax" in known:
        import jax

        known = {"backend": jax.default_backend(), **known}
    return {**known, **machine_info()}
