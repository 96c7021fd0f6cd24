"""PPO on several devices, of one machine or of many: the environments are spread, the network is not.

Each device plays its share and computes its gradients, which are averaged; the numbers are those of one
device with the same environments, but for the rounding of sums in another order. Processes that train
together find one another in `phalanx.runs.processes`.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P
from jaxtyping import PyTree

from phalanx.agents.ppo.rollouts import Episodes
from phalanx.agents.ppo.update import PPO, Learner
from phalanx.core.environment import Key
from phalanx.runs.algorithm import Report, Update

AXIS = "environments"


@dataclasses.dataclass(frozen=True)
class DataParallel:
    """A PPO laid out over devices: its start and its update as compiled functions of the whole batch."""

    ppo: PPO
    mesh: Mesh | None
    num_seeds: int = 1
    """How many seeds are trained at once; one has no axis of seeds."""

    @classmethod
    def create(cls, ppo: PPO, num_seeds: int = 1, devices: Sequence[Any] | None = None) -> "DataParallel":
        """Over all devices of all processes, or those given; one device needs no mesh."""
        devices = jax.devices() if devices is None else devices
        if len(devices) == 1:
            return cls(ppo, None, num_seeds)
        groups = ppo.config.num_shuffle_groups
        if groups % len(devices):
            raise ValueError(
                f"{len(devices)} devices must divide the {groups} groups of environments "
                "(ppo.shuffle_groups, lowered to divide ppo.num_envs); change one of these settings"
            )
        return cls(dataclasses.replace(ppo, axis=AXIS), Mesh(np.asarray(devices), (AXIS,)), num_seeds)

    def start(self, make_network: Callable[[Key], PyTree], key: Key) -> Learner:
        """Before the first update: a network and environments from a key, or from a key for each seed."""
        env_ids = jnp.arange(self.ppo.config.num_envs, dtype=jnp.int32)

        def one(key: Key, env_ids: jax.Array) -> Learner:
            network_key, learner_key = jax.random.split(key)
            return self.ppo.start(make_network(network_key), learner_key, env_ids)

        function = one
        if self.num_seeds > 1:
            key = jax.random.split(key, self.num_seeds)
            function = jax.vmap(one, (0, None))
        if self.mesh is None:
            return jax.jit(function)(key, env_ids)
        spread = jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=(P(), P(AXIS)),
            out_specs=self._specs(jax.eval_shape(function, key, env_ids)),
            check_vma=False,
        )
        # As constants, which every process can place on its own devices.
        words, kind = np.asarray(jax.random.key_data(key)), jax.random.key_impl(key)
        count = self.ppo.config.num_envs
        return jax.jit(
            lambda: spread(
                jax.random.wrap_key_data(jnp.asarray(words), impl=kind), jnp.arange(count, dtype=jnp.int32)
            )
        )()

    def update(self, learner: Learner) -> tuple[Learner, Report]:
        """The whole update as one compiled call that takes the learner's memory over."""
        return _compiled_update(self, jax.tree.structure(learner))(learner)

    def _gathered(self, episodes: Episodes) -> Episodes:
        """All devices' episodes on every device: they are few numbers, and any process may log them."""
        if self.mesh is None:
            return episodes
        return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, AXIS, axis=1, tiled=True), episodes)

    def _specs(self, learner: Learner) -> Learner:
        """Environments are spread over the devices; every device has the whole network."""
        spread = P(AXIS) if self.num_seeds == 1 else P(None, AXIS)
        everywhere = jax.tree.map(lambda _: P(), learner)
        return dataclasses.replace(everywhere, rollouts=jax.tree.map(lambda _: spread, learner.rollouts))


@functools.lru_cache(maxsize=8)
def _compiled_update(parallel: DataParallel, structure: Any) -> Update:
    """Kept for equal trainings: a run that goes on in the same process need not compile again."""

    def one(learner: Learner) -> tuple[Learner, Report]:
        learner, report = parallel.ppo.update(learner)
        return learner, report._replace(episodes=parallel._gathered(dict(report.episodes)))

    function = one if parallel.num_seeds == 1 else jax.vmap(one)
    if parallel.mesh is None:
        return jax.jit(function, donate_argnums=0)
    specs = parallel._specs(jax.tree.unflatten(structure, [0] * structure.num_leaves))
    spread = jax.shard_map(
        function, mesh=parallel.mesh, in_specs=(specs,), out_specs=(specs, P()), check_vma=False
    )
    return jax.jit(spread, donate_argnums=0)
