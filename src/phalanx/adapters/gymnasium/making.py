"""The ids by which `gymnasium.make` and `gymnasium.make_vec` know Phalanx's environments, and what they make.

Which environments there are, and what their settings mean, is told by `phalanx.make`.
"""

from typing import Any

from gymnasium.envs.registration import register, registry

from phalanx.adapters.gymnasium.environments import PhalanxEnv, PhalanxVectorEnv
from phalanx.core.registry import make, registered_environments


def register_environments() -> None:
    """Register `phalanx/<id>` for every id of `phalanx.make` that Gymnasium does not know yet.

    Importing the adapter does it; call it again after a `phalanx.register` of your own.
    """
    for found in registered_environments():
        if f"phalanx/{found.id}" not in registry:
            register(
                f"phalanx/{found.id}",
                entry_point=f"{__name__}:make_single",
                vector_entry_point=f"{__name__}:make_vector",
                kwargs={"phalanx_id": found.id},
            )


def make_single(
    phalanx_id: str, *, flat: bool = False, render_mode: str | None = None, **settings: Any
) -> PhalanxEnv:
    """`gymnasium.make("phalanx/arc-v2", ...)`; settings are those of `phalanx.make`."""
    return PhalanxEnv(make(phalanx_id, **settings), flat=flat, render_mode=render_mode)


def make_vector(
    phalanx_id: str,
    num_envs: Any,
    *,
    autoreset_mode: Any = "NextStep",
    flat: bool = False,
    render_mode: str | None = None,
    **settings: Any,
) -> PhalanxVectorEnv:
    """`gymnasium.make_vec("phalanx/arc-v2", ...)`; settings are those of `phalanx.make`."""
    environment = make(phalanx_id, **settings)
    return PhalanxVectorEnv(
        environment, num_envs, autoreset_mode=autoreset_mode, flat=flat, render_mode=render_mode
    )
