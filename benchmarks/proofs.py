"""How fast proof environments step, beside another prover: random legal actions in one compiled `scan`.

With `--data` training and ranking are measured too, as `proof_learning` has it.
"""

import dataclasses
import functools
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32, UInt32
from measuring.conditions import conditions
from measuring.memory import peak_bytes, reset_peak
from measuring.options import options, positive
from measuring.records import VERDICT, Column, Targets, held_to, machine_line, tell
from measuring.timing import at_least_one, calls_lasting, seconds_of, timed

from phalanx.core import AutoReset, AutoResetState
from phalanx.kg import KnowledgeBase
from phalanx.kg.knowledge_base import GENERATED
from phalanx.native import is_native_available, native_unavailable_reason
from phalanx.proofs import Program, ProofConfig, ProofEnvironment
from phalanx.proofs.vocabulary import ProofVocabulary

PEER = "DeepProofLog, measured on 2 cores, shared reference"
COMPILE_SECONDS = 15.0
"""The longest that compiling may take."""
TIMES = {"eager": 100, "compiled": 50}
"""How many times faster than the peer's ways the native engine is to be."""

_ATOMS = 6
_SECONDS_A_REPEAT = 0.5
_STEPS_A_CALL = {"native": 64, "xla": 16}


@dataclasses.dataclass(frozen=True)
class Workload:
    """A knowledge base, the width of its states, and the peer's steps a second on it, where known."""

    dataset: str
    padding_states: int
    peers: tuple[tuple[str, float], ...] = ()
    """The peer's way (`eager`, `compiled`) and its figure."""


WORKLOADS = (
    Workload("family", 130, (("eager", 62.0), ("compiled", 175.0))),
    Workload("wn18rr", 262, (("eager", 22.0), ("compiled", 52.0))),
    Workload("countries_s3", 20, (("eager", 249.0), ("compiled", 515.0))),
)
"""Where the knowledge bases are at hand; the peer's figures on countries are the best of those reported."""
BUILT_IN = (Workload(GENERATED, 64),)


@dataclasses.dataclass(frozen=True)
class ProofBenchmark:
    """What is measured, and how often."""

    folder: pathlib.Path | None = None
    """Where the knowledge bases are; without it the generated one is measured."""
    engines: tuple[str, ...] = ("native", "xla")
    batch: int = 256
    """Environments stepped together."""
    repeats: int = 5
    steps: int | None = None
    """Steps of each environment in one compiled call; by the engine if None."""
    seconds: float = _SECONDS_A_REPEAT
    """How long a repeat is, about."""
    seed: int = 0

    def __post_init__(self) -> None:
        at_least_one(batch=self.batch, repeats=self.repeats, steps=self.steps)
        if not self.workloads:
            there = ", ".join(workload.dataset for workload in WORKLOADS)
            raise FileNotFoundError(
                f"{self.folder} holds none of {there}; leave it out for the generated one"
            )

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """What is at hand of the knowledge bases with known figures; else the generated one."""
        if self.folder is None:
            return BUILT_IN
        return tuple(w for w in WORKLOADS if (self.folder / w.dataset / "train.txt").is_file())

    def run(self) -> Iterator[dict[str, Any]]:
        """Every figure, as soon as it is measured."""
        for workload in self.workloads:
            data, load_seconds = timed(functools.partial(self._read, workload))
            for engine in self.engines:
                yield self.measure(workload, engine, data, load_seconds)

    def _read(self, workload: Workload) -> KnowledgeBase:
        path = workload.dataset if self.folder is None else self.folder / workload.dataset
        return KnowledgeBase.load(path, on_leak="allow")

    def measure(
        self, workload: Workload, engine: str, data: KnowledgeBase, load_seconds: float
    ) -> dict[str, Any]:
        """Environment steps a second: median and worst of the repeats."""
        reset_peak()
        environment, index_seconds = timed(lambda: benchmark_environment(workload, engine, data))
        steps = self.steps or _STEPS_A_CALL[engine]
        rollout = Rollout.prepare(environment, self.batch, steps, self.seed)
        calls = calls_lasting(self.seconds, rollout.run)
        rates = [rollout.steps_per_run * calls / seconds_of(rollout.run, calls) for _ in range(self.repeats)]
        facts = {
            "engine": engine,
            "batch": self.batch,
            "padding_states": workload.padding_states,
            "padding_atoms": _ATOMS,
            "end_action": environment.config.end_proof_action,
            "entities": len(data.entities),
            "facts": len(environment.program.facts),
            "rules": len(environment.program.heads),
            "steps_per_call": steps,
            "calls_per_repeat": calls,
            "repeats": self.repeats,
            "worst": round(min(rates)),
            "choices_mean": round(rollout.mean_choices, 2),
            "proved_rate": round(rollout.proved / max(rollout.episodes, 1), 4),
            "load_seconds": round(load_seconds, 3),
            "index_seconds": round(index_seconds, 3),
            "compile_seconds": round(rollout.compile_seconds, 2),
            "compile_cpu_seconds": round(rollout.compile_cpu_seconds, 2),
            "peak_rss_mb": round(peak_bytes() / 1e6),
        }
        targets = {"compile_seconds": {"at_most": COMPILE_SECONDS}}
        if engine == "native":
            targets |= {f"times_{name}": {"at_least": TIMES[name]} for name, _ in workload.peers}
        return record_of(
            "environment",
            workload.dataset,
            statistics.median(rates),
            "steps/s",
            peers=dict(workload.peers),
            facts=facts,
            targets=targets,
        )


def record_of(
    figure: str,
    dataset: str,
    value: float,
    unit: str,
    *,
    peers: dict[str, float] | None = None,
    facts: dict[str, Any] | None = None,
    targets: Targets | None = None,
) -> dict[str, Any]:
    """A JSON line of this benchmark: a figure, the peer's and how many times as much it is, conditions.

    `targets` are by field; `times_NAME` is the ratio to the peer's figure NAME.
    """
    record: dict[str, Any] = {
        "benchmark": "proofs",
        "figure": figure,
        "dataset": dataset,
        "value": round(value) if value >= 100 else round(value, 3),
        "unit": unit,
        **(facts or {}),
    }
    if peers:
        record |= {"peer": PEER, "peers": peers}
        record |= {f"times_{name}": round(value / peer, 1) for name, peer in peers.items()}
    return {**held_to(record, targets or {}), **conditions("jax")}


def benchmark_environment(workload: Workload, engine: str, data: KnowledgeBase) -> ProofEnvironment:
    """Training queries and as many negatives, the end action, and everything else as it comes."""
    index = ProofVocabulary(data, _ATOMS)
    program = Program.from_knowledge_base(data, index)
    config = ProofConfig(
        max_goals=_ATOMS, max_actions=workload.padding_states, backend=engine, end_proof_action=True
    )
    queries = index.encode(data.facts)
    environment = ProofEnvironment.create(config, program, queries, known=index.encode(tuple(data.known)))
    # Built here, so that compiling is not charged with it.
    _ = program.native if engine == "native" else program.arrays
    return environment


@dataclasses.dataclass
class Rollout:
    """A batch compiled and started; each `run` goes on where the last one stopped."""

    compile_seconds: float
    """Tracing and compiling the reset and the scan."""
    compile_cpu_seconds: float
    """What the processors worked for it: more than the time itself where they are idle, less where not."""
    steps: int
    batch: int
    _compiled: Any
    _carry: Any
    choices: float = 0.0
    episodes: int = 0
    proved: int = 0
    runs: int = 0

    @classmethod
    def prepare(cls, environment: ProofEnvironment, batch: int, steps: int, seed: int = 0) -> "Rollout":
        """Compile, and run once to warm up."""
        keys = jax.random.split(jax.random.PRNGKey(seed), batch)
        layer = AutoReset(environment, "same_step")
        start, worked = time.perf_counter(), time.process_time()
        state, _ = jax.block_until_ready(jax.jit(layer.reset)(keys))
        compiled = _rollout.lower(layer, steps, state, jnp.uint32(seed)).compile()
        seconds, cpu = time.perf_counter() - start, time.process_time() - worked
        rollout = cls(seconds, cpu, steps, batch, compiled, (state, seed))
        rollout.run()
        return rollout

    def run(self) -> None:
        """One compiled call, waited for."""
        state, seed = self._carry
        state, (choices, episodes, proved) = self._compiled(state, jnp.uint32(seed))
        self.choices += float(choices)
        self.episodes += int(episodes)
        self.proved += int(proved)
        self.runs += 1
        self._carry = (state, seed + 1)

    @property
    def steps_per_run(self) -> int:
        """Environment steps of one `run`."""
        return self.steps * self.batch

    @property
    def mean_choices(self) -> float:
        """Legal actions of a state on average, the end action included."""
        return self.choices / (self.runs * self.steps_per_run)


Totals = tuple[Float32[Array, ""], Int32[Array, ""], Int32[Array, ""]]
"""Legal actions, episodes that ended, and episodes that ended with a proof."""


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def _rollout(
    layer: AutoReset, steps: int, state: AutoResetState, seed: UInt32[Array, ""]
) -> tuple[AutoResetState, Totals]:
    """Steps of the whole batch under random legal actions, and what they met."""

    def body(carry: tuple[AutoResetState, Totals], counter: UInt32[Array, ""]) -> tuple[Any, None]:
        state, (choices, episodes, proved) = carry
        count = state.states.num_actions
        state, _, _, done, result = layer.step(state, _draw(seed, counter, count))
        info: Any = result.info
        totals = (
            choices + count.sum().astype(jnp.float32),
            episodes + done.sum(dtype=jnp.int32),
            proved + (done & info.proved).sum(dtype=jnp.int32),
        )
        return (state, totals), None

    zero: Totals = (jnp.float32(0), jnp.int32(0), jnp.int32(0))
    (state, totals), _ = jax.lax.scan(body, (state, zero), jnp.arange(steps, dtype=jnp.uint32))
    return state, totals


def _draw(
    seed: UInt32[Array, ""], counter: UInt32[Array, ""], count: Int32[Array, " batch"]
) -> Int32[Array, " batch"]:
    """A legal action each, from a hash: the drawing is not what is measured."""
    word = jnp.arange(count.shape[0], dtype=jnp.uint32) * jnp.uint32(0x9E3779B1)
    word ^= counter * jnp.uint32(0x85EBCA6B) + seed * jnp.uint32(0xC2B2AE35)
    for factor in (0x7FEB352D, 0x846CA68B):
        word = (word ^ (word >> 16)) * jnp.uint32(factor)
    word ^= word >> 15
    return (word % count.astype(jnp.uint32)).astype(jnp.int32)


def engines_at_hand() -> tuple[str, ...]:
    """Both, or XLA's alone where the extension cannot be used."""
    return ("native", "xla") if is_native_available() else ("xla",)


def figures(benchmark: ProofBenchmark, quick: bool = False) -> Iterator[dict[str, Any]]:
    """Every figure of the table, in its order; those of training and ranking where there is a folder."""
    yield from benchmark.run()
    if benchmark.folder is not None:
        import proof_learning

        yield from proof_learning.run(benchmark.folder, benchmark.repeats, quick)


_COLUMNS = (
    Column("figure", lambda r: " ".join(str(r[name]) for name in ("figure", "engine") if name in r)),
    Column("knowledge base", lambda r: r["dataset"]),
    Column("median", lambda r: f"{r['value']:,} {r['unit']}", number=True),
    Column("worst", lambda r: f"{r['worst']:,}" if "worst" in r else "", number=True),
    Column("peer", lambda r: "\n".join(f"{n} {v:,g}" for n, v in r.get("peers", {}).items()), number=True),
    Column("times", lambda r: "\n".join(f"{r[f'times_{n}']:,g}" for n in r.get("peers", {})), number=True),
    Column(
        "compile s", lambda r: f"{r['compile_seconds']:.1f}" if "compile_seconds" in r else "", number=True
    ),
    Column("peak MB", lambda r: f"{r['peak_rss_mb']:,}" if "peak_rss_mb" in r else "", number=True),
    VERDICT,
)


def _footer(records: list[dict[str, Any]]) -> list[str]:
    peers = dict.fromkeys(record["peer"] for record in records if "peer" in record)
    return [*(f"Peer: {peer}." for peer in peers), machine_line(records[-1], "jax")]


def main(given: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for."""
    parser = options(__doc__)
    parser.add_argument(
        "--data",
        "-d",
        type=pathlib.Path,
        default=os.environ.get("PHALANX_KG"),
        help="the folder of family, wn18rr and countries_s3 [PHALANX_KG, or generated data]",
    )
    parser.add_argument("--engine", choices=["native", "xla", "both"], default="both")
    parser.add_argument("--environments", type=positive, default=256, help="stepped together [256]")
    parser.add_argument("--quick", action="store_true", help="one short repeat: a smoke test, not a figure")
    asked = parser.parse_args(given)
    if asked.engine == "native" and not is_native_available():
        parser.error(f"the native engine cannot be used: {native_unavailable_reason()}")
    try:
        benchmark = ProofBenchmark(
            folder=asked.data,
            engines=engines_at_hand() if asked.engine == "both" else (asked.engine,),
            batch=asked.environments,
            repeats=1 if asked.quick else asked.repeats,
            seconds=0.05 if asked.quick else _SECONDS_A_REPEAT,
        )
    except FileNotFoundError as error:
        parser.error(str(error))
    tell(figures(benchmark, asked.quick), asked.json, "Proofs", _COLUMNS, _footer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
