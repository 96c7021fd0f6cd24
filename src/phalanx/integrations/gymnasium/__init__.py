"""Phalanx environments for Gymnasium: `PhalanxVectorEnv` steps many in one call, `PhalanxEnv` is one alone.

Importing this registers every environment of `phalanx.make`: `phalanx/arc-v2`, `phalanx/proofs-v1`, ...
"""

try:
    import gymnasium as _library  # noqa: F401
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "gymnasium":
        raise
    raise ModuleNotFoundError(
        f'phalanx.integrations.gymnasium needs {error.name}: pip install "phalanx[gym]"', name=error.name
    ) from error

from phalanx.integrations.gymnasium.env import PhalanxEnv, PhalanxVectorEnv, register_environments

__all__ = ["PhalanxEnv", "PhalanxVectorEnv", "register_environments"]

register_environments()
