"""ARC environment steps per second: random actions with auto-reset in one compiled `scan`.

All libraries step the same task with the same kind of random actions, and return an observation in each step.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int8, Int32, UInt32

from benchmarks.peers import ARCLE, JAXARC, JAXARC_TWO_DEVICES
from benchmarks.suite import Suite, Workload
from benchmarks.workers.arc_task import checkerboard_task
from benchmarks.workers.random_actions import random_fields
from phalanx.arc import (
    Action,
    ActionConfig,
    ArcConfig,
    ArcEnvironment,
    ArcTask,
    BboxAction,
    DatasetConfig,
    EpisodeConfig,
    MaskAction,
    PointAction,
)
from phalanx.core import AutoReset, AutoResetState

suite = Suite("arc_env", unit="steps/s", packages=("jax", "jaxlib"))

_ACTIONS: dict[str, type[Action]] = {"point": PointAction, "bbox": BboxAction, "mask": MaskAction}


@dataclasses.dataclass
class RandomRolloutRunner:
    """Environments with compiled random rollouts. Each call of `run` continues from the previous state.

    Args:
        backend: `native` or `xla`.
        num_envs: Number of environments.
        size: Height and width of the canvas.
        selection_format: `point`, `bbox` or `mask`.
        num_steps: Steps of each environment per call.
    """

    backend: str = "native"
    num_envs: int = 1024
    size: int = 30
    selection_format: str = "bbox"
    num_steps: int = 64

    def __post_init__(self) -> None:
        config = ArcConfig(
            episode=EpisodeConfig(max_episode_steps=100),
            dataset=DatasetConfig(max_grid_height=self.size, max_grid_width=self.size),
            action=ActionConfig(selection_format=self.selection_format),
            backend=self.backend,
        )
        task = ArcTask.from_dict(checkerboard_task(self.size), "checkerboard")
        layer = AutoReset(ArcEnvironment.create(config, task), "same_step")
        state, observations = jax.jit(layer.reset)(jax.random.split(jax.random.PRNGKey(0), self.num_envs))
        self._carry: list[Any] = [state, observations, jnp.uint32(0)]
        static = (layer, (self.size, self.size), self.selection_format, self.num_steps)
        self._compiled = _rollout.lower(*static, *self._carry).compile()
        self.checksum = 0.0

    def run(self) -> None:
        """Step all environments `num_steps` times."""
        *self._carry, checksum = self._compiled(*self._carry)
        self.checksum += float(checksum)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3), donate_argnums=(4, 5))
def _rollout(
    layer: AutoReset,
    grid: tuple[int, int],
    selection_format: str,
    num_steps: int,
    state: AutoResetState,
    observations: Int8[Array, "batch rows columns"],
    seed: UInt32[Array, ""],
) -> tuple[AutoResetState, Int8[Array, "batch rows columns"], UInt32[Array, ""], Float32[Array, ""]]:
    def body(carry: tuple[Any, ...], counter: UInt32[Array, ""]) -> tuple[tuple[Any, ...], None]:
        state, observations, checksum = carry
        fields = random_fields(seed, counter, _middle_cells(observations), grid, selection_format)
        state, observations, rewards, _, _ = layer.step(state, _ACTIONS[selection_format](**fields))
        return (state, observations, checksum + rewards), None

    start = (state, observations, jnp.zeros(len(observations), jnp.float32))
    counters = jnp.arange(num_steps, dtype=jnp.uint32)
    (state, observations, checksum), _ = jax.lax.scan(body, start, counters)
    return state, observations, seed + jnp.uint32(1), checksum.sum()


def _middle_cells(observations: Int8[Array, "batch rows columns"]) -> Int32[Array, " batch"]:
    _, rows, columns = observations.shape
    return observations[:, rows // 2, columns // 2].astype(jnp.int32)


def _prepare(**settings: Any) -> Workload:
    rollout = RandomRolloutRunner(**settings)
    return Workload(rollout.run, rollout.num_envs * rollout.num_steps)


_JAXARC_MODES: dict[str, tuple[str, dict[str, Any]]] = {
    "vmap": ("`vmap`", {"vectorize": "vmap"}),
    "vmap-optimistic": ("`vmap`, optimistic resets", {"vectorize": "vmap-optimistic"}),
    "vmap-cached": ("`vmap`, cached resets", {"vectorize": "vmap-cached"}),
    "vmap-cached-2-devices": (
        "`vmap`, cached resets, two devices",
        {"vectorize": "vmap-cached", "num_devices": 2},
    ),
    "map": ("`lax.map`", {"vectorize": "map"}),
    "map-2-devices": ("`lax.map`, two devices", {"vectorize": "map", "num_devices": 2}),
    "map-cached": ("`lax.map`, cached resets", {"vectorize": "map-cached"}),
    "map-cached-2-devices": (
        "`lax.map`, cached resets, two devices",
        {"vectorize": "map-cached", "num_devices": 2},
    ),
}
_SMOKE = {"num_envs": 4, "num_steps": 2, "size": 5}
for _size, _num_envs in ((30, 1), (30, 64), (30, 1024), (5, 1024)):
    _group = f"{_size}x{_size}-{_num_envs}"
    _native = {"size": _size, "num_envs": _num_envs, "num_steps": max(16, min(4096, 65_536 // _num_envs))}
    suite.case(f"native-{_group}", group=_group, smoke=_SMOKE, backend="native", **_native)(_prepare)
    _xla = {**_native, "num_steps": max(16, min(4096, 16_384 // _num_envs))}
    suite.case(f"xla-{_group}", group=_group, smoke=_SMOKE, backend="xla", **_xla)(_prepare)
    _common = {"grid": [_size, _size], "num_envs": _num_envs}
    for _mode, (_label, _settings) in _JAXARC_MODES.items():
        if _num_envs == 1 and (_mode == "vmap-optimistic" or "num_devices" in _settings):
            continue  # These need several environments.
        suite.peer_case(
            f"jaxarc-{_mode}-{_group}",
            JAXARC_TWO_DEVICES if "num_devices" in _settings else JAXARC,
            "jaxarc_env",
            group=_group,
            system=f"JaxARC 1.0.3, {_label}",
            num_steps=_xla["num_steps"],
            **_settings,
            **_common,
        )
    suite.peer_case(
        f"arcle-{_group}",
        ARCLE,
        "arcle_env",
        group=_group,
        system="ARCLE 0.2.6",
        num_steps=max(1, 1024 // _num_envs),
        **_common,
    )
suite.case("native-30x30-16384", smoke=_SMOKE, backend="native", num_envs=16_384, num_steps=16)(_prepare)
for _format in ("point", "mask"):
    suite.case(f"native-30x30-1024-{_format}", smoke=_SMOKE, backend="native", selection_format=_format)(
        _prepare
    )
