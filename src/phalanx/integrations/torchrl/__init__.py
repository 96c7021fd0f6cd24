"""Phalanx environments for TorchRL: `BatchedVecEnv` is a batch of any of them, `BatchedVecEnv` one of proofs.

Both step a whole batch in one call, within one process.
"""

try:
    import tensordict as _tensordict  # noqa: F401
    import torch as _torch  # noqa: F401
    import torchrl.envs as _torchrl  # noqa: F401
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in ("torch", "tensordict", "torchrl"):
        raise
    raise ModuleNotFoundError(
        f'phalanx.integrations.torchrl needs {error.name}: pip install "phalanx[torch]"', name=error.name
    ) from error

from phalanx.integrations.torchrl.environment import BatchedVecEnv, episode_keys, num_envs

__all__ = ["BatchedVecEnv", "episode_keys", "num_envs"]
