"""Adapters for Gymnasium: `GymnasiumVectorEnv` for a batch and `GymnasiumEnv` for a single environment.

Importing this package registers every environment of `phalanx.make`, such as `phalanx/arc-v2`.
"""

try:
    import gymnasium as _library  # noqa: F401
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "gymnasium":
        raise
    raise ModuleNotFoundError(
        f'phalanx.integrations.gymnasium needs {error.name}: pip install "phalanx[gym]"', name=error.name
    ) from error

from phalanx.integrations.gymnasium.env import GymnasiumEnv, GymnasiumVectorEnv, register_environments

__all__ = ["GymnasiumEnv", "GymnasiumVectorEnv", "register_environments"]

register_environments()
