"""`GymnasiumVectorEnv` beside Gymnasium's `SyncVectorEnv` and `AsyncVectorEnv`: steps a second, interleaved.

All run the same environment (ARC on generated tasks, or proofs) with random legal actions, observations as
NumPy arrays. JSON lines as they are measured, then a table of rates and ratios.
"""

import argparse
import functools
import itertools
import sys
import time
from collections.abc import Iterator, Sequence

import gymnasium as gym
import numpy as np
import stepping
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from measuring.options import positive, sizes

import phalanx.integrations.gymnasium

gym.register_envs(phalanx.integrations.gymnasium)

NATIVE, SYNC, ASYNC = "GymnasiumVectorEnv", "SyncVectorEnv", "AsyncVectorEnv"
IDS = {"arc": "phalanx/arc-v2", "proofs": "phalanx/proofs-v1"}


class GymnasiumContender(stepping.Contender):
    """A vector environment of Gymnasium's."""

    def __init__(self, kind: str, envs: VectorEnv, started: float) -> None:
        self.kind, self.envs, self.environments = kind, envs, envs.num_envs
        self._random = np.random.default_rng(0)
        self._seen, _ = envs.reset(seed=0)
        super().__init__(started)

    def step(self) -> None:
        """Resets are the vector environment's affair."""
        self._seen, *_ = self.envs.step(self._legal_actions())

    def _legal_actions(self) -> np.ndarray:
        mask = self._seen["action_mask"]
        legal = (self._random.random(mask.shape, np.float32) * mask).argmax(-1)
        sizes = getattr(self.envs.single_action_space, "nvec", None)
        if sizes is None:
            return legal
        cells = self._random.integers(sizes[1:], size=(self.environments, len(sizes) - 1))
        return np.concatenate([legal[:, None], cells], axis=1)


def make_one(name: str) -> gym.Env:
    """A single environment, without Gymnasium's checks of every step; workers make theirs by this too."""
    return gym.make(IDS[name], disable_env_checker=True)


def make(kind: str, name: str, count: int) -> VectorEnv:
    """A vector environment of one kind."""
    if kind == NATIVE:
        return gym.make_vec(IDS[name], num_envs=count)
    makers = [functools.partial(make_one, name)] * count
    # JAX's threads do not survive a fork.
    return SyncVectorEnv(makers) if kind == SYNC else AsyncVectorEnv(makers, context="spawn")


def parse_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = stepping.stepping_options(__doc__)
    parser.add_argument("--environment", choices=sorted(IDS), default="arc")
    parser.add_argument("--batch-sizes", type=sizes, default=(64, 1024))
    parser.add_argument("--sync", type=positive, default=64, help="environments of the SyncVectorEnv")
    parser.add_argument(
        "--workers", type=int, default=4, help="processes of the AsyncVectorEnv; 0 leaves it out"
    )
    return parser.parse_args(given)


def compare(arguments: argparse.Namespace) -> Iterator[GymnasiumContender]:
    """Every contender, measured in turns."""
    wanted = [(NATIVE, size) for size in arguments.batch_sizes] + [(SYNC, arguments.sync)]
    wanted += [(ASYNC, arguments.workers)] if arguments.workers else []
    contenders: list[GymnasiumContender] = []
    try:
        for kind, count in wanted:
            begin = time.perf_counter()
            contenders.append(GymnasiumContender(kind, make(kind, arguments.environment, count), begin))
        for _, contender in itertools.product(range(arguments.repeats), contenders):
            contender.measure(arguments.seconds)
    finally:
        for contender in contenders:
            contender.envs.close()
    yield from contenders


def main() -> int:
    arguments = parse_arguments()
    facts = {"environment": arguments.environment}
    libraries = ("gymnasium", "jax", "numpy")
    return stepping.tell("compare_gymnasium", compare(arguments), NATIVE, facts, libraries, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
