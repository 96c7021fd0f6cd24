"""One work of `against_commit.py` in one checkout, by that checkout's own benchmarks.

Where a checkout keeps a name differs from commit to commit; every place that is known is tried. It is started
such that the checkout's `src` and `benchmarks` are found before all else.
"""

import argparse
import importlib
import importlib.util
import pathlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import protocol


class Prepared(NamedTuple):
    """A work ready to be timed: a call, and how many steps, samples or tokens it gets done."""

    call: Callable[[], Any]
    amount: int


def found(name: str, *modules: str, needed: bool = True) -> Any:
    """What goes by this name in the first of these modules that has it; None where it is not needed."""
    for module in modules:
        try:
            here = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not module.startswith(error.name):
                raise
            continue
        if hasattr(here, name):
            return getattr(here, name)
    if needed:
        sys.exit(f"this checkout has no {name} in {' or '.join(modules)}; say in {__file__} where it is now")
    return None


def arc(quick: bool) -> Prepared:
    """Random box actions on 30x30 grids."""
    modules = ("arc", "phalanx.arc.benchmark")
    workload = found("Workload", *modules)(engine="native", batch=16 if quick else 1024)
    rollout = found("Rollout", *modules).prepare(workload)
    return Prepared(rollout.run, rollout.steps_per_run)


def proofs(quick: bool) -> Prepared:
    """Random legal actions on the generated families."""
    modules = ("proofs", "phalanx.proofs.benchmark")
    batch, steps = (16, 4) if quick else (256, 64)
    handler = found("DataHandler", "phalanx.kg", "phalanx.proofs", needed=False)
    data = handler("generated") if handler else found("KnowledgeBase", "phalanx.kg").generate()
    (workload,) = found("BUILT_IN", *modules)
    environment = found("benchmark_environment", *modules)(workload, "native", data)
    rollout = found("Rollout", *modules).prepare(environment, batch, steps)
    return Prepared(rollout.run, batch * steps)


TOKENS = ("tokens", "phalanx.tokens.benchmark")
DATA = ("phalanx.data", "phalanx.tokens")


def plan(quick: bool) -> Prepared:
    """A plan of one epoch from an array of lengths."""
    samples = 1_000 if quick else 1_000_000
    lengths = found("draw_lengths", "token_facts", *TOKENS)("lognormal", samples)
    table = found("LengthTable", *DATA).from_arrays(None, lengths)
    mode = found("BatchingMode", *DATA).THROUGHPUT
    config, build_plan = found("batching_config", *TOKENS)(mode), found("build_plan", *TOKENS)
    return Prepared(lambda: build_plan(table, config), samples)


def pack(quick: bool) -> Prepared:
    """Packs of 2,048 tokens, all at once."""
    import numpy as np

    lengths = found("draw_lengths", "token_facts", *TOKENS)("lognormal", 1_000 if quick else 100_000)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    tokens = np.arange(offsets[-1], dtype=np.int32) % np.int32(50_000)
    config = found("PackingConfig", *DATA)(max_length=2048)
    pack_tokens = found("pack_tokens", *DATA)
    return Prepared(lambda: pack_tokens(tokens, offsets, config), len(tokens))


def ppo(quick: bool) -> Prepared:
    """Complete updates of PPO on ARC, with the settings of the preset."""
    config = found("PPOConfig", "phalanx.training.ppo", "phalanx.agents.ppo", "phalanx.agents")
    is_flat = "num_minibatches" in config.model_fields
    settings: tuple[str, ...] = ("num_envs=256",) if is_flat else ("ppo.num_envs=256",)
    if quick:
        settings = ("num_envs=8", "num_steps=4", "num_minibatches=2", "env.dataset.num_tasks=20")
        if not is_flat:
            settings = ("ppo.num_envs=8", "ppo.num_steps=4", "ppo.minibatches=2", "arc.dataset.num_tasks=20")
        settings += (
            "network.kind=conv",
            "network.hidden_dim=8",
            "network.num_layers=1",
            "evaluation.num_tasks=5",
        )
    training = found("timed_arc_training", "training")("arc" if is_flat else "default", settings)
    return Prepared(training.update, training.steps_per_update)


WORKS: dict[str, Callable[[bool], Prepared]] = {
    work.__name__: work for work in (arc, proofs, plan, pack, ppo)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", required=True, choices=list(WORKS))
    parser.add_argument("--checkout", required=True, type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long a repeat lasts")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()

    import phalanx

    source = pathlib.Path(phalanx.__file__).resolve()
    if not source.is_relative_to(arguments.checkout.resolve()):
        sys.exit(f"{arguments.checkout} was asked for, but Python finds Phalanx in {source.parent}")
    if importlib.util.find_spec("phalanx._native") is None:
        sys.exit(f"{arguments.checkout} has no native engine: build it, or copy _native*.so to src/phalanx")
    prepared = WORKS[arguments.work](arguments.quick)
    protocol.serve(prepared.call, prepared.amount, arguments.seconds, source=str(source.parent))


if __name__ == "__main__":
    main()
