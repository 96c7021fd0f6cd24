"""The `PolicyNetwork` protocol, and functions that apply a network to a batch or select an action."""

from typing import Any, Protocol, runtime_checkable

import jax
from jaxtyping import Array, Float, PyTree

from phalanx.nn.distributions import Distribution, Key


@runtime_checkable
class PolicyNetwork(Protocol):
    """Maps one observation to a distribution over actions and the estimated value of the state.

    A network is called on a single observation; use `jax.vmap` for batches. The network (usually an
    `equinox.Module`) and the distribution are pytrees.
    """

    def __call__(self, observation: PyTree) -> tuple[Distribution, Float[Array, ""]]: ...


def apply_batch(network: PolicyNetwork, observations: PyTree) -> tuple[Any, Float[Array, " batch"]]:
    """Call a network on a batch of observations. Returns the batched distribution and the values.

    If the network has a `batch` method, this method is called instead of `jax.vmap(network)`. Losses should
    use this function, because computing gradients is faster with a `batch` method than with `vmap`.
    """
    batch = getattr(network, "batch", None)
    return jax.vmap(network)(observations) if batch is None else batch(observations)


def select_action(network: PolicyNetwork, observation: PyTree, key: Key | None) -> Any:
    """Select an action for one observation.

    Args:
        network: Policy network.
        observation: Observation of one environment, without a batch axis.
        key: Key for sampling. If None, the mode of the distribution is returned.
    """
    distribution, _ = network(observation)
    return distribution.mode() if key is None else distribution.sample(key)
