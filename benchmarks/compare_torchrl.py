"""`BatchedVecEnv` beside TorchRL's `ParallelEnv` of single environments: proofs, steps a second, interleaved.

Both run the same `ProofEnvironment` and are stepped by TorchRL's loop (`step_and_maybe_reset`) with random
legal actions, copies into tensordicts included. JSON lines as they are measured, then a table of rates and
ratios.
"""

import argparse
import functools
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import stepping
import torch
from measuring.options import positive, sizes
from tensordict import TensorDictBase
from torchrl.envs import EnvBase, ParallelEnv

from phalanx.compat.deepprooflog.batched_env import BatchedVecEnv
from phalanx.integrations.torchrl import num_envs
from phalanx.kg import DataHandler, IndexManager
from phalanx.kg.knowledge_base import GENERATED

BATCHED, PARALLEL = "BatchedVecEnv", "ParallelEnv"


class TorchRLContender(stepping.Contender):
    """An environment of TorchRL's."""

    def __init__(self, kind: str, env: EnvBase, started: float) -> None:
        self.kind, self.env, self.environments = kind, env, num_envs(env)
        env.set_seed(0)
        self._data = env.reset()
        super().__init__(started)

    def step(self) -> None:
        """By TorchRL's own loop."""
        _, self._data = self.env.step_and_maybe_reset(_with_legal_action(self._data))


def _with_legal_action(data: TensorDictBase) -> TensorDictBase:
    mask = data.get("action_mask")
    drawn = torch.multinomial(mask.reshape(-1, mask.shape[-1]).float(), 1)
    return data.set("action", drawn.reshape(mask.shape[:-1]))


def make_environment(data: str, padding_states: int, batch_size: int) -> BatchedVecEnv:
    """Training on the data's training queries; workers make theirs by this too."""
    torch.set_num_threads(1)
    data_handler = DataHandler() if data == GENERATED else DataHandler(path=data, on_leak="drop")
    return BatchedVecEnv(
        index_manager=IndexManager(data_handler),
        data_handler=data_handler,
        queries=data_handler.train_queries,
        batch_size=batch_size,
        padding_states=padding_states,
    )


def parse_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = stepping.stepping_options(__doc__)
    parser.add_argument("--data", default=GENERATED, help="a folder of a knowledge base, or 'generated'")
    parser.add_argument("--padding-states", type=positive, default=130)
    parser.add_argument("--batch-sizes", type=sizes, default=(64, 256))
    parser.add_argument("--workers", type=sizes, default=(2, 4))
    arguments = parser.parse_args(given)
    if arguments.data != GENERATED and not Path(arguments.data).is_dir():
        parser.error(f"--data {arguments.data} is not a folder")
    return arguments


def compare(arguments: argparse.Namespace) -> Iterator[TorchRLContender]:
    """Every contender, measured in turns; workers of one number at a time, so that memory suffices."""
    make = functools.partial(make_environment, arguments.data, arguments.padding_states)
    batched = []
    for size in arguments.batch_sizes:
        begin = time.perf_counter()
        batched.append(TorchRLContender(BATCHED, make(size), begin))
    for workers in arguments.workers:
        begin = time.perf_counter()
        # JAX's threads do not survive a fork.
        env = ParallelEnv(workers, functools.partial(make, 1), mp_start_method="spawn")
        parallel = TorchRLContender(PARALLEL, env, begin)
        try:
            for _, contender in itertools.product(range(arguments.repeats), [*batched, parallel]):
                contender.measure(arguments.seconds)
        finally:
            env.close()
        yield parallel
    yield from batched


def main() -> int:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    facts = {
        "data": Path(arguments.data).name,
        "padding_states": arguments.padding_states,
        "torch_threads": 1,
    }
    libraries = ("torch", "torchrl", "jax")
    return stepping.tell("compare_torchrl", compare(arguments), BATCHED, facts, libraries, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
