"""Training on several devices, of one machine or of many: the environments are spread, the network is not.

Each device plays its share and computes its gradients, which are averaged; the numbers are those of one
device with the same environments, but for the rounding of sums in another order.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P
from jaxtyping import PyTree

from phalanx.agents.ppo.rollouts import Episodes, Players
from phalanx.agents.ppo.update import PPO, Learner, Report
from phalanx.core.environment import Key

AXIS = "environments"


def connect(coordinator: str, num_processes: int, process_id: int) -> None:
    """Join the other processes of a training; must come before anything else that JAX does."""
    if not 0 <= process_id < num_processes:
        raise ValueError(f"the process id must be between 0 and {num_processes - 1}, got {process_id}")
    jax.distributed.initialize(coordinator, num_processes, process_id)


def is_first_process() -> bool:
    """Whether this process writes the run's files."""
    return jax.process_index() == 0


def wait_for_all(what: str) -> None:
    """Go on only when every process has come here."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(what)


@dataclasses.dataclass(frozen=True)
class Formation:
    """A PPO laid out over devices: its start and its update as compiled functions of the whole batch."""

    ppo: PPO
    mesh: Mesh | None
    num_seeds: int | None
    """How many seeds are trained at once; None for one, without an axis of seeds."""

    @classmethod
    def create(cls, ppo: PPO, num_seeds: int | None = None, devices: list | None = None) -> "Formation":
        """Over all devices of all processes, or those given; one device needs no mesh."""
        devices = jax.devices() if devices is None else devices
        if len(devices) == 1:
            return cls(ppo, None, num_seeds)
        if ppo.config.num_strata % len(devices):
            raise ValueError(
                f"{len(devices)} devices must divide the {ppo.config.num_strata} groups of environments "
                "(ppo.strata, lowered to divide ppo.num_envs); change ppo.strata or ppo.num_envs"
            )
        return cls(dataclasses.replace(ppo, axis=AXIS), Mesh(np.asarray(devices), (AXIS,)), num_seeds)

    def start(self, make_network: Callable[[Key], PyTree], key: Key) -> Learner:
        """Before the first update: a network and environments from a key, or from a key for each seed."""
        numbers = jnp.arange(self.ppo.config.num_envs, dtype=jnp.int32)

        def one(key: Key, numbers: jax.Array) -> Learner:
            network_key, learner_key = jax.random.split(key)
            return self.ppo.start(make_network(network_key), learner_key, numbers)

        function = one
        if self.num_seeds is not None:
            key = jax.random.split(key, self.num_seeds)
            function = jax.vmap(one, (0, None))
        if self.mesh is None:
            return jax.jit(function)(key, numbers)
        spread = jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=(P(), P(AXIS)),
            out_specs=self._specs(jax.eval_shape(function, key, numbers)),
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

    def compile_update(self, learner: Learner) -> Callable[[Learner], tuple[Learner, Report]]:
        """The whole update as one compiled call that takes the learner's memory over."""
        return _compiled_update(self, jax.tree.structure(learner))

    def _gathered(self, episodes: Episodes) -> Episodes:
        """All devices' episodes on every device: they are few numbers, and any process may log them."""
        if self.mesh is None:
            return episodes
        return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, AXIS, axis=1, tiled=True), episodes)

    def _specs(self, learner: Learner) -> Learner:
        """Environments are spread over the devices; every device has the whole network."""
        spread = P(AXIS) if self.num_seeds is None else P(None, AXIS)
        everywhere = jax.tree.map(lambda _: P(), learner)
        players: Players = jax.tree.map(lambda _: spread, learner.players)
        return dataclasses.replace(everywhere, players=players)


@functools.lru_cache(maxsize=8)
def _compiled_update(formation: Formation, structure: Any) -> Callable[[Learner], tuple[Learner, Report]]:
    """Kept for equal trainings: a run that goes on in the same process need not compile again."""

    def one(learner: Learner) -> tuple[Learner, Report]:
        learner, report = formation.ppo.update(learner)
        return learner, Report(report.metrics, formation._gathered(report.episodes))

    function = one if formation.num_seeds is None else jax.vmap(one)
    if formation.mesh is None:
        return jax.jit(function, donate_argnums=0)
    specs = formation._specs(jax.tree.unflatten(structure, [0] * structure.num_leaves))
    spread = jax.shard_map(
        function, mesh=formation.mesh, in_specs=(specs,), out_specs=(specs, P()), check_vma=False
    )
    return jax.jit(spread, donate_argnums=0)


def local(tree: PyTree) -> PyTree:
    """This process's copy of arrays that are the same on every device."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0) if isinstance(leaf, jax.Array) else leaf, tree)
