"""PPO by several processes or devices: groups of environments are shared out, the network is everywhere.

Each group's gradients are computed in the same shapes wherever it is and added up in the order of the groups,
so that weights are the same to the last bit.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxtyping import Array, Float, Int32, PyTree

from phalanx.core.environment import Key
from phalanx.training.algorithm import UpdateResult
from phalanx.training.ppo.update import PPO, AdvantageStats, PPORollout, PPOState, Progress
from phalanx.training.processes import Processes, joined
from phalanx.training.rollout import Episodes

AXIS = "environments"


@dataclasses.dataclass(frozen=True)
class DataParallel:
    """A PPO laid out over the devices of this process, which may be one of several."""

    ppo: PPO
    mesh: Mesh | None
    """The devices that share this process's groups; None for a single one."""
    num_seeds: int = 1
    """How many seeds are trained at once; one has no axis of seeds."""
    processes: Processes = dataclasses.field(default_factory=joined)
    """This one and those it trains with."""

    @classmethod
    def create(cls, ppo: PPO, num_seeds: int = 1, devices: Sequence[Any] | None = None) -> "DataParallel":
        """Over all devices of all processes, or those given of this one."""
        devices = jax.devices() if devices is None else devices
        groups, ranks = ppo.config.num_shuffle_groups, joined().count
        if groups % (len(devices) * ranks):
            what = f"{ranks} processes" if len(devices) == 1 else f"{len(devices) * ranks} devices"
            raise ValueError(
                f"{what} must divide the {groups} groups of environments "
                "(ppo.shuffle_groups, lowered to divide ppo.num_envs); change one of these settings"
            )
        mesh = None if len(devices) == 1 else Mesh(np.asarray(devices), (AXIS,))
        return cls(ppo, mesh, num_seeds)

    @property
    def env_ids(self) -> Int32[Array, " batch"]:
        """The environments of this process."""
        share, rank = self.ppo.config.num_envs // self.processes.count, self.processes.rank
        return jnp.arange(rank * share, (rank + 1) * share, dtype=jnp.int32)

    def start(self, make_network: Callable[[Key], PyTree], key: Key) -> PPOState:
        """Before the first update: a network and environments from a key, or from a key for each seed."""

        def keys(key: Key) -> Array:
            return jax.random.split(key)

        def network(key: Array) -> PyTree:
            return eqx.filter(make_network(key), eqx.is_array)

        def learner(arrays: PyTree, key: Key, env_ids: Array) -> PPOState:
            return self.ppo.start(arrays, key, env_ids)

        if self.num_seeds > 1:
            key = jax.random.split(key, self.num_seeds)
            keys, network, learner = jax.vmap(keys), jax.vmap(network), jax.vmap(learner, (0, 0, None))
        both = keys(key)
        # The network by itself: the same program, and the same numbers, however many environments there are.
        begun = jax.jit(learner)(jax.jit(network)(both[..., 0]), both[..., 1], self.env_ids)
        return self._placed(begun)

    def update(self, learner: PPOState) -> tuple[PPOState, UpdateResult]:
        """An update in compiled parts; the learner's memory is taken over.

        Between the parts processes tell one another what their groups have found: once after playing, with
        the episodes, and one vector for each group at every gradient step.
        """
        config = self.ppo.config
        parts = _compiled(self.ppo, self.mesh, self.num_seeds, jax.tree.structure(learner))
        played = parts.play(learner)
        told, episodes = self._told(played)
        statistics = parts.statistics(told, learner.key)
        progress = parts.begin(learner)
        for number in range(config.gradient_steps):
            if config.target_kl is not None and bool(np.all(progress.stopped)):
                break
            vectors = parts.gradients(progress.network, played, statistics, jnp.int32(number))
            progress = parts.apply(progress, self._of_all(vectors), learner.update)
        metrics = parts.metrics(progress, statistics, learner.update)
        counts = {"environment_steps": np.full(self._seeds, config.steps_per_update, np.int32)}
        report = UpdateResult(metrics, episodes, counts)
        return parts.end(learner.key, learner.update, progress, played.rollouts), report

    def whole(self, learner: PPOState) -> PPOState:
        """With the environments of all processes; all of them must ask at the same time."""
        if self.processes.count == 1:
            return learner
        return dataclasses.replace(learner, rollouts=jax.tree.map(self._gathered, learner.rollouts))

    def share(self, whole: PPOState) -> PPOState:
        """With the environments of this process alone."""
        if self.processes.count == 1:
            return whole
        size, rank = self.ppo.config.num_envs // self.processes.count, self.processes.rank

        def part(leaf: Array) -> Array:
            return jax.lax.slice_in_dim(leaf, rank * size, (rank + 1) * size, axis=len(self._seeds))

        return self._placed(dataclasses.replace(whole, rollouts=jax.tree.map(part, whole.rollouts)))

    @property
    def _seeds(self) -> tuple[int, ...]:
        """The axis of the seeds, where there is one."""
        return () if self.num_seeds == 1 else (self.num_seeds,)

    def _told(self, played: PPORollout) -> tuple[Array, Episodes]:
        """What all groups tell after playing, and the episodes of all processes, [time, batch].

        Episodes are few numbers, and any process may log them.
        """
        if self.processes.count == 1:
            return self._everywhere(played.told), played.episodes
        group, batch = len(self._seeds), len(self._seeds) + 1
        arrays = [np.asarray(leaf) for leaf in (played.told, *played.episodes.values())]
        told, *episodes = self.processes.gather_all(arrays, [group] + [batch] * len(played.episodes))
        named = dict(zip(played.episodes, map(_copied, episodes), strict=True))
        return self._everywhere(_copied(told)), named

    def _of_all(self, rows: Float[Array, "..."]) -> Array:
        """The rows of all groups, in their order, on every device."""
        if self.processes.count > 1:
            rows = _copied(self.processes.gather(np.asarray(rows), len(self._seeds)))
        return self._everywhere(rows)

    def _everywhere(self, rows: Array) -> Array:
        return rows if self.mesh is None else jax.device_put(rows, NamedSharding(self.mesh, P()))

    def _gathered(self, leaf: Array) -> Array:
        """One array of the environments of all processes; keys go as their words."""
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return _copied(self.processes.gather(np.asarray(leaf), len(self._seeds)))
        words = self.processes.gather(np.asarray(jax.random.key_data(leaf)), len(self._seeds))
        return jax.random.wrap_key_data(_copied(words), impl=jax.random.key_impl(leaf))

    def _placed(self, learner: PPOState) -> PPOState:
        """Environments spread over this process's devices, and the network on each of them."""
        if self.mesh is None:
            return learner
        mesh = self.mesh
        return jax.tree.map(
            lambda leaf, spec: jax.device_put(leaf, NamedSharding(mesh, spec)),
            learner,
            _specs(learner, self._seeds),
        )


def _specs(learner: PPOState, seeds: tuple[int, ...]) -> PPOState:
    """Environments are spread over the devices; each has the whole network."""
    everywhere = jax.tree.map(lambda _: P(), learner)
    spread = _spread(0, seeds)
    return dataclasses.replace(everywhere, rollouts=jax.tree.map(lambda _: spread, learner.rollouts))


def _spread(axis: int, seeds: tuple[int, ...]) -> P:
    """Over the devices along an axis, not counting that of the seeds."""
    return P(*[None] * (axis + len(seeds)), AXIS)


@dataclasses.dataclass(frozen=True)
class _Parts:
    """The functions of an update, compiled."""

    play: Callable[[PPOState], PPORollout]
    statistics: Callable[[Array, Key], AdvantageStats]
    begin: Callable[[PPOState], Progress]
    gradients: Callable[[PyTree, PPORollout, AdvantageStats, Array], Array]
    apply: Callable[[Progress, Array, Array], Progress]
    metrics: Callable[[Progress, AdvantageStats, Array], dict[str, Array]]
    end: Callable[[Key, Array, Progress, Any], PPOState]


@functools.lru_cache(maxsize=8)
def _compiled(ppo: PPO, mesh: Mesh | None, num_seeds: int, structure: Any) -> _Parts:
    """Kept for equal trainings: a run that goes on in the same process need not compile again."""
    seeds = () if num_seeds == 1 else (num_seeds,)

    def over_seeds(function: Callable[..., Any], axes: tuple[Any, ...]) -> Callable[..., Any]:
        return function if num_seeds == 1 else jax.vmap(function, axes)

    play = over_seeds(ppo.play, (0,))
    gradients = over_seeds(ppo.gradients, (0, 0, 0, None))
    if mesh is not None:
        learner = jax.tree.unflatten(structure, [0] * structure.num_leaves)
        first, second = _spread(0, seeds), _spread(1, seeds)
        played = PPORollout(first, first, first, second, second, P())  # type: ignore[arg-type]
        play = jax.shard_map(
            play, mesh=mesh, in_specs=(_specs(learner, seeds),), out_specs=played, check_vma=False
        )
        gradients = jax.shard_map(
            gradients, mesh=mesh, in_specs=(P(), played, P(), P()), out_specs=first, check_vma=False
        )
    return _Parts(
        jax.jit(play),
        jax.jit(over_seeds(ppo.statistics, (0, 0))),
        jax.jit(over_seeds(ppo.begin, (0,))),
        jax.jit(gradients),
        jax.jit(over_seeds(ppo.apply, (0, 0, 0)), donate_argnums=0),
        jax.jit(over_seeds(ppo.metrics, (0, 0, 0))),
        jax.jit(over_seeds(ppo.end, (0, 0, 0, 0))),
    )


def _copied(told: np.ndarray) -> Array:
    """On the device, in memory of its own: an update takes the memory of what it is given over."""
    return jax.device_put(told, may_alias=False)
