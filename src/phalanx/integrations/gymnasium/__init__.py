"""Adapters for Gymnasium: `GymnasiumVectorEnv` for a batch and `GymnasiumEnv` for a single environment.

Importing this package registers all Phalanx environments with Gymnasium, under ids such as `phalanx/arc-v2`.
"""

from phalanx.extras import require_extra

with require_extra(__name__, "gym", "gymnasium", "jax"):
    import gymnasium as _gymnasium  # noqa: F401
    import jax as _jax  # noqa: F401

from phalanx.integrations.gymnasium.env import GymnasiumEnv, GymnasiumVectorEnv, register_environments

__all__ = ["GymnasiumEnv", "GymnasiumVectorEnv", "register_environments"]

register_environments()
