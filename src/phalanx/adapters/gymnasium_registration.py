"""The ids by which `gymnasium.make` and `gymnasium.make_vec` know Phalanx environments.

Cheap to import: what the ids stand for is loaded when one of them is made.
"""

_MAKING = "phalanx.adapters.gymnasium_making"


def register_environments() -> None:
    """Register `phalanx/Arc-v0` and `phalanx/Proof-v0`, unless they are; importing the adapter does it."""
    from gymnasium.envs.registration import register, registry

    for name, entry in (("Arc", "arc"), ("Proof", "proof")):
        if f"phalanx/{name}-v0" not in registry:
            register(
                f"phalanx/{name}-v0",
                entry_point=f"{_MAKING}:{entry}_env",
                vector_entry_point=f"{_MAKING}:{entry}_vector_env",
            )
