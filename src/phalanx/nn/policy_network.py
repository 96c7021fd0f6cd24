"""The interface between policy networks and everything that uses them."""

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Float, PyTree

from phalanx.nn.distributions import Distribution, Key


@runtime_checkable
class PolicyNetwork(Protocol):
    """Maps one observation to the distribution of the next action and the value of the state.

    A network is called on a single observation; use `jax.vmap` for batches. The network (usually an
    `equinox.Module`) and the distribution are pytrees.
    """

    def __call__(self, observation: PyTree) -> tuple[Distribution, Float[Array, ""]]: ...


def select_action(network: PolicyNetwork, observation: PyTree, key: Key | None) -> Any:
    """Select an action for one observation.

    Args:
        network: Policy network.
        observation: Observation of one environment, without a batch axis.
        key: Key for sampling. If None, the mode of the distribution is returned.
    """
    distribution, _ = network(observation)
    return distribution.mode() if key is None else distribution.sample(key)
