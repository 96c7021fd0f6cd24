"""The compiled kernels: whether they are here, whether they may be used, and registering them with JAX.

What the kernels compute belongs to the domains that call them. JAX is imported only to register them.
"""

import functools
import os
from types import ModuleType

_SWITCH = "PHALANX_NATIVE"


@functools.cache
def _load() -> ModuleType | str:
    """The extension module, or why there is none."""
    try:
        import phalanx._native as _native
    except ModuleNotFoundError:
        return "the compiled extension is not installed; `pip install -v` with a C++ compiler builds it"
    except ImportError as error:
        return f"the compiled extension does not load: {error}"
    return _native


@functools.cache
def _register() -> None:
    import jax

    loaded = _load()
    assert not isinstance(loaded, str)
    for name, target in loaded.targets().items():
        jax.ffi.register_ffi_target(name, target, platform="cpu")


def reason() -> str:
    """Why the native engine is not in use; empty when it is."""
    if os.environ.get(_SWITCH, "1") == "0":
        return f"switched off by {_SWITCH}=0"
    loaded = _load()
    return loaded if isinstance(loaded, str) else ""


def extension() -> ModuleType | None:
    """The compiled extension, for calls without JAX; None where the native engine is not in use."""
    loaded = _load()
    return None if reason() or isinstance(loaded, str) else loaded


def available() -> bool:
    """Whether the native kernels can be used on the CPU; if so, JAX knows them from now on."""
    if reason():
        return False
    _register()
    return True


def isa() -> str:
    """The instruction set that the kernels picked on this processor; empty without them."""
    loaded = _load()
    return "" if isinstance(loaded, str) else str(loaded.isa())


def only_cpu() -> bool:
    """Whether the CPU is the only kind of device, so that no other engine need be compiled beside."""
    import jax

    return all(device.platform == "cpu" for device in jax.devices())
