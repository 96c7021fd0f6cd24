"""Environment steps per second of PPO training: rollouts, advantages and gradient steps.

`preset` is `phalanx train ppo --env arc` without changes. The other cases train on 30x30 grids, with a small
and with a large network. They are compared with JaxARC's environment, trained with the same network, the same
PPO update and the same settings, in three modes: with `vmap`, with `vmap` and Stoa's optimistic resets, and
with `lax.map`. With the large network, most of the time is spent in the network, so the
environment matters less.
"""

from typing import Any

from benchmarks.peers import JAXARC_PPO
from benchmarks.suite import Suite, Workload
from benchmarks.workers.arc_ppo import SMOKE_OVERRIDES, PPOUpdates, load_config
from benchmarks.workers.arc_task import checkerboard_task
from phalanx.arc import ArcEnvironment, ArcTask
from phalanx.training.ppo import PPOConfig

suite = Suite("ppo", unit="steps/s", packages=("jax", "jaxlib", "equinox", "optax"))


def _workload(updates: PPOUpdates) -> Workload:
    config = updates.ppo.config
    info = {
        "num_parameters": updates.num_parameters,
        "num_envs": config.num_envs,
        "num_steps": config.num_steps,
        "update_epochs": config.update_epochs,
        "num_minibatches": config.num_minibatches,
        "learning_rate": config.optimizer.learning_rate,
    }
    return Workload(updates.run, config.steps_per_update, info)


@suite.case("preset", smoke={"overrides": SMOKE_OVERRIDES})
def _preset(overrides: tuple[str, ...] = ()) -> Workload:
    config = PPOConfig.load("arc", list(overrides))
    return _workload(PPOUpdates(config, config.env.make()))


def _prepare(**settings: Any) -> Workload:
    config = load_config(**settings)
    task = ArcTask.from_dict(checkerboard_task(settings["size"]), "checkerboard")
    return _workload(PPOUpdates(config, ArcEnvironment.create(config.env.settings, task)))


for _network, _num_envs, _num_steps in (("small", 256, 16), ("large", 64, 16)):
    _common = {"network": _network, "size": 30, "num_envs": _num_envs, "num_steps": _num_steps}
    suite.case(
        f"phalanx-{_network}",
        group=_network,
        smoke={"network": "small", "size": 6, "num_envs": 8, "num_steps": 8},
        **_common,
    )(_prepare)
    for _vectorize in ("vmap", "vmap-optimistic", "map"):
        suite.peer_case(
            f"jaxarc-{_vectorize}-{_network}",
            JAXARC_PPO,
            "jaxarc_ppo",
            group=_network,
            system=f"JaxARC 1.0.3, {_vectorize}",
            vectorize=_vectorize,
            **_common,
        )
