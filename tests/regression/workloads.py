"""Run small workloads and digest their results, to detect changes of numerical behavior.

Each workload is a function that returns named SHA-256 digests. A workload is either

- `integers`: its results do not depend on the machine (integers, texts, exact ratios), or
- `floats`: its results depend on rounding, so digests are only comparable on one kind of machine.

Digests do not depend on the names of fields, parameters or metrics: weights are hashed as the sorted digests
of their leaves, everything else as arrays or texts in the order that the workload lists them.

Run `python tests/regression/workloads.py [NAME ...]` to print digests as JSON. The process sets the
environment variables that influence compiled code, so results do not depend on who starts it.
`test_digests.py` and `scripts/record_digests.py` both run workloads this way.

Every function imports what it needs, so that this module can be imported without importing JAX.
"""

import argparse
import functools
import hashlib
import itertools
import json
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

# The process may have been started with this file as a script, whose folder is then on the path instead.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

SHARED_DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"

# Compile fast rather than well; use one thread, so that the number of cores has no influence on sums.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": (
        "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
        "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1 "
        "--xla_cpu_multi_thread_eigen=false"
    ),
    "PHALANX_NATIVE": "1",
}

Digests = dict[str, str]


class Workload(NamedTuple):
    """A function to run, what its results depend on, and the data that it reads."""

    run: Callable[[], Digests]
    kind: Literal["integers", "floats"]
    data: Path | None

    @property
    def missing_data(self) -> bool:
        """Return whether the data is not on this machine."""
        return self.data is not None and not self.data.exists()


WORKLOADS: dict[str, Workload] = {}
"""All workloads by name."""


def workload(kind: Literal["integers", "floats"], data: Path | None = None) -> Callable[[Any], Any]:
    """Add a function to `WORKLOADS`."""

    def add(run: Callable[[], Digests]) -> Callable[[], Digests]:
        WORKLOADS[run.__name__] = Workload(run, kind, data)
        return run

    return add


def machine_key() -> str:
    """Return a text that identifies everything that float results are known to depend on.

    These are: the CPU model and its vector extensions (XLA compiles for them), the instruction set that the
    native extension selected, and the versions of jaxlib (XLA) and NumPy (Adam of the path network). The
    number of cores has no influence: XLA uses one thread here, and native kernels add in a fixed order. The
    C++ compiler can have an influence and is not part of the key: record again after changing it.
    """
    import jaxlib

    from phalanx.native import instruction_set

    cpu = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.*)$", cpu, re.MULTILINE)
    flags = re.search(r"^flags\s*: (.*)$", cpu, re.MULTILINE)
    vector = sorted(flag for flag in flags[1].split() if re.match("avx|fma|amx", flag)) if flags else []
    extensions = hashlib.sha256(" ".join(vector).encode()).hexdigest()[:8]
    return (
        f"{model[1].strip() if model else 'unknown CPU'}, vector extensions {extensions}, "
        f"native {instruction_set()}, jaxlib {jaxlib.__version__}, numpy {np.__version__}"
    )


# Digests


def digest_arrays(*arrays: Any) -> str:
    """Hash arrays in the given order. Integers and booleans are hashed as int64, whatever their type."""
    sha = hashlib.sha256()
    for array in map(np.asarray, arrays):
        if array.dtype.kind in "biu":
            array = array.astype(np.int64)
        sha.update(f"{array.dtype} {array.shape}".encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def digest_weights(tree: Any) -> str:
    """Hash the arrays of a pytree, independent of their names and order."""
    import equinox as eqx
    import jax

    leaves = jax.tree.leaves(eqx.filter(jax.device_get(tree), eqx.is_array_like))
    return digest_text(sorted(digest_arrays(leaf) for leaf in leaves))


def digest_text(lines: Iterable[object]) -> str:
    """Hash one line of text per item."""
    return hashlib.sha256("\n".join(map(str, lines)).encode()).hexdigest()


# Data: plans, packing, collation, streaming, replay


def _lengths(count: int = 400, longest: int = 64) -> np.ndarray:
    """Draw sequence lengths, most of them short."""
    return np.random.default_rng(0).integers(1, longest + 1, (2, count)).min(axis=0).astype(np.int32)


def _token_samples(count: int = 60, longest: int = 24) -> dict[str, Any]:
    """Make token samples by id: runs of consecutive tokens below 40."""
    from phalanx.data import Sample, SampleInfo

    return {
        f"s{row}": Sample(
            f"s{row}",
            [(7 * row + step) % 38 + 1 for step in range(length)],
            (0, *(1,) * (length - 1)),
            info=SampleInfo(dataset_id="counting"),
        )
        for row, length in enumerate((_lengths(count, longest) + 1).tolist())
    }


def _batching(mode: str = "predictable", **settings: Any) -> Any:
    from phalanx.data import BatchingConfig

    return BatchingConfig(
        mode=mode, token_budget=256, bucket_edges=(16, 32), max_sample_length=64, seed=3, **settings
    )


@workload("integers")
def plans() -> Digests:
    """Digest 12 plans: batching modes x packing x (complete, or dropping the last batch and sharded)."""
    from phalanx.data import BatchPlanBuilder, LengthTable, PackingConfig, ShardingConfig

    def arrays(plan: Any) -> Iterator[Any]:
        for epoch in plan.epochs:
            yield from (epoch.batches.order, epoch.batches.offsets, epoch.batches.bucket_ids)
            yield epoch.batches.max_lens
            yield () if epoch.batches.pack_offsets is None else epoch.batches.pack_offsets

    table, found = LengthTable.from_arrays(None, _lengths()), {}
    for mode, packing in itertools.product(
        ("predictable", "throughput"), (None, "best_fit_decreasing", "subset_sum")
    ):
        for sharded in (False, True):
            config = _batching(mode, drop_last=sharded, pool_batches=4)
            packs = (
                None
                if packing is None
                else PackingConfig(mode=packing, max_length=64, pad_to_max=not sharded)
            )
            plan = BatchPlanBuilder(table, config, packing=packs).build(num_epochs=2)
            parts = [plan]
            if sharded:
                parts = [
                    plan.shard(rank, ShardingConfig(world_size=3, policy=policy))
                    for policy in ("drop", "repeat", "split")
                    for rank in range(3)
                ]
            packed = "hybrid" if packing == "subset_sum" else packing
            name = f"{mode}, packing {packed}, {'drop_last and 3 shards' if sharded else 'complete'}"
            found[name] = digest_arrays(*itertools.chain.from_iterable(map(arrays, parts)))
    return found


@workload("integers")
def packing_bins() -> Digests:
    """Digest the bin of each sample for all packing modes."""
    from phalanx.data import PackingMode, pack_lengths

    lengths = np.random.default_rng(1).integers(300, 1301, 3000)
    names = {"next_fit": "greedy", "subset_sum": "hybrid"}
    return {
        names.get(mode, str(mode)): digest_arrays(pack_lengths(lengths, 2048, mode)) for mode in PackingMode
    }


@workload("integers")
def collation() -> Digests:
    """Digest the arrays of collated batches, packed and unpacked."""
    from phalanx.data import BatchPlanBuilder, PackingConfig, collate

    samples, found = _token_samples(), {}
    lengths = {name: sample.length for name, sample in samples.items()}
    for packing in (None, PackingConfig(max_length=32, separator_token_id=39)):
        plan = BatchPlanBuilder(lengths, _batching(), packing=packing).build()
        batches = [collate(spec, samples) for spec in plan.iter_epoch(0)]
        arrays: list[Any] = [array for batch in batches for array in (batch.input_ids, batch.loss_mask)]
        if packing is not None:
            arrays += [array for batch in batches for array in (batch.segment_ids, batch.position_ids)]
        found["unpacked" if packing is None else "packed"] = digest_arrays(*arrays)
    return found


@workload("integers")
def streaming_plan() -> Digests:
    """Digest the batches of a mixture of two streams on 3 ranks, without balancing."""
    from benchmarks.simulated_source import SimulatedSource

    from phalanx.data import MixtureConfig, PackingConfig, StreamingPlan, StreamingPlanConfig

    def arrays(batch: Any) -> Iterator[Any]:
        names = [sample_id.split("/") for sample_id in batch.sample_ids]
        yield np.array([("web", "code").index(source) for source, _ in names], np.int16)
        yield np.array([int(position) for _, position in names], np.int64)
        yield from (batch.layout.lengths, batch.layout.offsets)

    found = {}
    for rank in range(3):
        sources = {
            name: SimulatedSource(seed, mean=20, longest=64) for seed, name in enumerate(("web", "code"))
        }
        config = StreamingPlanConfig(
            packing=PackingConfig(max_length=64), packs_per_batch=2, packs_per_buffer=16, seed=5
        )
        plan = StreamingPlan(sources, config, MixtureConfig(weights={"web": 3.0, "code": 1.0}))
        batches = itertools.islice(plan.batches(rank, 3), 40)
        found[f"rank {rank}"] = digest_arrays(*itertools.chain.from_iterable(map(arrays, batches)))
    return found


@workload("integers")
def replay_draws() -> Digests:
    """Digest which samples a replay buffer keeps and draws, by eviction policy and seed."""
    from phalanx.data import ReplayBuffer, ReplayBufferConfig

    found, samples = {}, list(_token_samples(200).values())
    priorities = np.random.default_rng(2).uniform(0.1, 4.0, len(samples)).tolist()
    for policy, seed in itertools.product(("fifo", "random", "priority"), (0, 1)):
        buffer = ReplayBuffer(ReplayBufferConfig(max_size=64, eviction_policy=policy, seed=seed))
        drawn = []
        for first in range(0, len(samples), 50):
            buffer.add_batch(samples[first : first + 50], priorities[first : first + 50])
            draw = buffer.draw(16)
            buffer.update_priorities(draw.handles, 1.0 + np.arange(16) / 8)
            drawn += [sample.sample_id for sample in draw.samples]
            drawn += [sample.sample_id for sample in buffer.sample_uniform(8)]
        drawn += [sample.sample_id for sample in buffer.get_all()]
        found[f"{policy}, seed {seed}"] = digest_text(drawn)
    return found


# Puzzles


@workload("integers")
def puzzle_server_episodes() -> Digests:
    """Digest the episodes, with their seeds, that a client asks a puzzle server for."""
    from phalanx.puzzles.server_client.episode_pool import episode_specs

    specs = episode_specs(("sudoku", "binary", "kenken"), ("easy", "medium"), 11, end=200)
    return {"episodes": digest_text(f"{s.index} {s.game} {s.difficulty} {s.seed}" for s in specs)}


@workload("integers")
def puzzles() -> Digests:
    """Digest puzzles of every kind and difficulty with seeds 0 to 2, their solutions and the prompts."""
    from phalanx.puzzles import PuzzleEnvironment, puzzle_kinds

    found = {}
    for kind in puzzle_kinds():
        lines: list[object] = []
        for difficulty in kind.difficulties:
            for puzzle in kind.generate_batch(range(3), difficulty):
                lines += [puzzle.size, puzzle.given, puzzle.clues, puzzle.solution]
                lines += [kind.solution_text(puzzle)]
                lines += [kind.solve(puzzle, kind.initial_state(puzzle))]
            for turns, prompt_format in itertools.product(("single", "multi"), ("full", "compact")):
                environment = PuzzleEnvironment(kind, difficulty, turns=turns, prompt_format=prompt_format)
                lines += [environment.reset(0), environment.expert_actions()]
        found[kind.name] = digest_text(lines)
    return found


# ARC

_SMALL_ARC = (
    "env.dataset.max_grid_height=4",
    "env.dataset.max_grid_width=4",
    "env.dataset.num_generated_tasks=16",
    "env.episode.max_episode_steps=5",
    "evaluation.every=0",
    "evaluation.num_generated_tasks=8",
    "evaluation.num_sampled_attempts=0",
)


def _grids(task: Any) -> list[object]:
    return [
        [pair.input.tolist(), None if pair.output is None else pair.output.tolist()] for pair in task.pairs
    ]


@workload("integers")
def arc_generated_tasks() -> Digests:
    """Digest the grids and solutions of generated tasks of all families."""
    from phalanx.arc.generators import FAMILIES, generate_tasks

    found = {}
    for family in FAMILIES:
        lines: list[object] = []
        for split in ("training", "evaluation"):
            for task in generate_tasks((family,), 4, seed=1, split=split):
                lines += _grids(task)
                steps = itertools.chain.from_iterable(task.solutions)
                lines += [(int(step.operation), step.r1, step.c1, step.r2, step.c2) for step in steps]
        found[family] = digest_text(lines)
    return found


@workload("integers")
def arc_expert_plans() -> Digests:
    """Digest the planner's actions for a task of each family, in all action formats."""
    from phalanx.arc import ArcConfig
    from phalanx.arc.config import ActionConfig, DatasetConfig
    from phalanx.arc.generators import generate_tasks
    from phalanx.arc.planner import plan_grids, solution_plan

    found, tasks = {}, generate_tasks((), 15, seed=2, max_height=8, max_width=8)
    for action_format in ("point", "bbox", "mask"):
        config = ArcConfig(
            action=ActionConfig(selection_format=action_format),
            dataset=DatasetConfig(max_grid_height=8, max_grid_width=8),
        )
        arrays = []
        for task in tasks:
            plans = [solution_plan(task, 0, config, submit=True)]
            plans += [plan_grids(pair.input, pair.output, config) for pair in task.pairs[:2]]
            arrays += [array for plan in plans for array in (plan.operations, plan.selections)]
        found[action_format] = digest_arrays(*arrays)
    return found


@workload("integers")
def arc_augmentation() -> Digests:
    """Digest tasks that were rotated, mirrored and recolored at random."""
    import jax

    from phalanx.arc.augmentation import augment_tasks
    from phalanx.arc.generators import generate_tasks

    tasks = generate_tasks((), 15, seed=3, max_height=8, max_width=8)
    return {
        "default": digest_text(map(_grids, augment_tasks(tasks, jax.random.key(0)))),
        "all colors": digest_text(map(_grids, augment_tasks(tasks, jax.random.key(1), keep_black=False))),
    }


def _random_steps(environment: Any, read_state: Callable[[Any], Any], read_info: Callable[[Any], Any]) -> Any:
    """Take 1,000 random steps in 4 environments with auto-reset; return states, rewards, dones and infos."""
    import jax

    from phalanx.core.autoreset import AutoReset

    @jax.jit
    def run(key: Any) -> Any:
        layer, (reset_key, key) = AutoReset(environment), jax.random.split(key)
        state, _ = layer.reset(jax.random.split(reset_key, 4))

        def step(state: Any, key: Any) -> Any:
            actions = jax.vmap(environment.sample_action)(jax.random.split(key, 4), state.states)
            state, _, rewards, dones, info = layer.step(state, actions)
            return state, (read_state(state.states), rewards, dones, read_info(info.info))

        return jax.lax.scan(step, state, jax.random.split(key, 1000))[1]

    return jax.device_get(run(jax.random.key(7)))


_ARC_CASES = {
    "training, boxes": ("env.action.selection_format=bbox", "env.action.allowed_operations=null"),
    "evaluation, masks": (
        "env.dataset.max_grid_width=5",
        "env.episode.mode=evaluation",
        "env.action.selection_format=mask",
        "env.action.allowed_operations=null",
    ),
    # Easy enough that random actions solve some tasks.
    "training, easy tasks": (
        "env.dataset.max_grid_height=3",
        "env.dataset.max_grid_width=3",
        "env.dataset.families=[fill_enclosed]",
        "env.episode.require_submit=false",
        "env.action.allowed_operations=[0,1,2,3,4,5,6,7,8,9]",
    ),
}


@functools.cache
def _arc_steps(engine: str, case: str) -> Any:
    """Step on one backend, with the rewards of the training presets."""
    from phalanx.training.ppo import PPOConfig

    overrides = [*_SMALL_ARC, f"env.backend={engine}", *_ARC_CASES[case]]
    environment = PPOConfig.load("arc", overrides).env.make()

    def read_state(state: Any) -> Any:
        grids = (
            state.working_grid,
            state.working_grid_mask,
            state.selected,
            state.clipboard,
            state.input_grid,
        )
        flags = (state.terminated, state.truncated, state.solved, state.solved_pairs)
        return *grids, *flags, state.step_count, state.last_operation, state.task_index, state.pair_index

    return _random_steps(environment, read_state, lambda info: (info.similarity, info.solved))


@workload("integers")
def arc_states() -> Digests:
    """Digest ARC states of 1,000 random steps on both backends."""
    found = {}
    for engine, case in itertools.product(("native", "xla"), _ARC_CASES):
        states, _, dones, (_, solved) = _arc_steps(engine, case)
        found[f"{engine}, {case}"] = digest_arrays(*states, dones, solved)
    return found


@workload("floats")
def arc_rewards() -> Digests:
    """Digest rewards and similarities of the same steps."""
    found = {}
    for engine, case in itertools.product(("native", "xla"), _ARC_CASES):
        _, rewards, _, (similarity, _) = _arc_steps(engine, case)
        found[f"{engine}, {case}: rewards"] = digest_arrays(rewards)
        found[f"{engine}, {case}: similarity"] = digest_arrays(similarity)
    return found


# Knowledge graphs and proofs


@functools.cache
def _family() -> Any:
    """Generate a knowledge base of families."""
    from phalanx.kg import KnowledgeBase

    return KnowledgeBase.generate(num_families=3, generations=4, seed=0)


@functools.cache
def _encoded_family() -> tuple[Any, Any, np.ndarray]:
    """Return the vocabulary, the program (facts and rules), and encoded test and validation queries."""
    from phalanx.proofs import Program, ProofVocabulary

    vocabulary = ProofVocabulary(_family())
    queries = vocabulary.encode((*_family().test, *_family().valid))
    return vocabulary, Program.from_knowledge_base(_family(), vocabulary), queries


def _rule_lines(rules: Any) -> Iterator[str]:
    """Write each mined rule as text, with confidence and counts."""
    for rule, counts in zip(rules, rules.counts.tolist(), strict=True):
        atoms = (f"{predicate}({','.join(arguments)})" for predicate, *arguments in (rule.head, *rule.body))
        yield f"{rule.weight!r} {counts} {' '.join(atoms)}"


@workload("integers")
def mined_rules() -> Digests:
    """Digest rules mined from the generated families, with support and confidence."""
    from phalanx.kg import mine_rules

    return {
        "standard confidence": digest_text(_rule_lines(mine_rules(_family()))),
        "pca confidence": digest_text(_rule_lines(mine_rules(_family(), confidence="pca", max_length=2))),
    }


@workload("integers", SHARED_DATA / "kg")
def mined_rules_of_shared_data() -> Digests:
    """Digest rules mined from benchmark knowledge graphs."""
    from phalanx.kg import KnowledgeBase, mine_rules

    found = {}
    for name in ("umls", "nations", "family"):
        data = KnowledgeBase.load(SHARED_DATA / "kg" / name, on_leak="drop")
        rules = mine_rules(data, max_length=2, min_support=5, min_confidence=0.1)
        found[name] = digest_text(_rule_lines(rules))
    return found


def _rank_counts(aggregations: Iterable[tuple[str, str]]) -> Digests:
    """Digest how many candidates score above and equal to each true answer; pairs of key and aggregation."""
    from phalanx.kg import RulePredictor, mine_rules
    from phalanx.kg.evaluation import count_ranks
    from phalanx.kg.rules.predictor import LEARNING_CHOICES, RuleApplier, rule_weights

    applier = RuleApplier(mine_rules(_family(), max_length=2), _family(), num_threads=1)
    known = _family().known_answers
    found = {}
    for key, aggregation in aggregations:
        weights = rule_weights(applier, aggregation, LEARNING_CHOICES[1])
        predictor = RulePredictor(applier, aggregation, weights)
        counts = count_ranks(predictor, _family().triples("test"), known)
        found[key] = digest_arrays(counts.higher, counts.tied)
    return found


@workload("integers")
def rule_ranks() -> Digests:
    """Digest rank counts of the aggregator that only compares confidences."""
    return _rank_counts([("maximum", "maxplus")])


@workload("floats")
def rule_ranks_from_scores() -> Digests:
    """Digest rank counts of the aggregators that compute scores, whose ties depend on rounding."""
    from phalanx.kg import RulePredictor, evaluate_link_prediction, mine_rules

    rules = mine_rules(_family(), max_length=2)
    predictor = RulePredictor.fit(rules, _family(), "per_relation", num_threads=1)
    result = evaluate_link_prediction(predictor, _family(), "test", ties="random")
    return {
        **_rank_counts([("noisy-or", "noisyor"), ("power", "power"), ("learned", "learned")]),
        "by-relation": digest_arrays(np.float64(result.total.mrr), np.float64(result.mrr_realistic)),
    }


@workload("integers")
def candidate_lists() -> Digests:
    """Digest the corruptions that true triples are ranked against."""
    from phalanx.kg.evaluation import make_candidates

    family, found = _family(), {}
    queries = np.concatenate([family.triples("test"), family.triples("valid")])
    for sides, count in (("both", 10), ("tail", None)):
        lists = make_candidates(
            queries,
            family.known_triples,
            family.vocabulary.num_entities,
            sides=sides,
            num_candidates=count,
            seed=4,
        )
        # Ids started at 1 when the digests were computed.
        found[f"{sides}, {count}"] = digest_arrays(
            lists.triples + np.int32(1), lists.starts, lists.query, lists.side, lists.tie_draw
        )
    return found


@workload("integers")
def proof_depths() -> Digests:
    """Digest the lengths of shortest proofs of all queries."""
    from phalanx.kg.proof_depths import compute_proof_depths

    queries = np.concatenate([_family().triples("test"), _family().triples("valid")])
    facts, rules = _family().triples("train"), _family().encoded_rules
    return {
        "held-out queries": digest_arrays(compute_proof_depths(queries, facts, rules, 6)),
        "facts": digest_arrays(compute_proof_depths(facts, facts, rules, 4)),
    }


def _proof_config(**settings: Any) -> Any:
    from phalanx.proofs import ProofConfig

    return ProofConfig(max_actions=24, max_goals=6, **settings)


@workload("integers")
def best_first_search() -> Digests:
    """Digest results of best-first search with heuristics that do not depend on rounding."""
    from phalanx.proofs.search.best_first import BestFirstConfig, best_first_search
    from phalanx.proofs.search.heuristics import BreadthFirstHeuristic, RandomHeuristic

    (_, program, queries), found = _encoded_family(), {}
    search = BestFirstConfig(max_expansions=30, max_depth=8, num_parallel_queries=32)
    for name, heuristic in (("breadth first", BreadthFirstHeuristic()), ("random order", RandomHeuristic(1))):
        result = best_first_search(_proof_config(), program, heuristic, queries, search)
        found[name] = digest_arrays(result.proved, result.expansions, result.length, result.overflow)
    return found


@workload("floats")
def beam_search() -> Digests:
    """Digest results of beam search with a uniform policy; paths that nearly tie depend on rounding."""
    from phalanx.proofs.search.beam import BeamSearchConfig, beam_search
    from tests.helpers.uniform_policy import UniformPolicy

    _, program, queries = _encoded_family()
    search = BeamSearchConfig(beam_width=4, max_depth=5)
    result = beam_search(_proof_config(), program, UniformPolicy(), queries, search, batch_size=16)
    return {
        "proofs": digest_arrays(result.proved, result.length, result.expansions, result.overflow),
        "log probabilities": digest_arrays(result.log_prob),
    }


@functools.cache
def _proof_steps(backend: str) -> Any:
    from phalanx.proofs.env import ProofEnvironment

    config = _proof_config(max_episode_steps=8, backend=backend, skip_unary_actions=True)

    def read_state(state: Any) -> Any:
        node, query = state.node, state.query
        flags = (state.status, query.label, node.overflow)
        counts = (node.num_actions, node.num_too_long, node.num_skipped, state.step_count, query.depth)
        return node.goals, node.successors, query.atom, *flags, *counts

    environment = ProofEnvironment.from_knowledge_base(_family(), config, "train")
    return _random_steps(environment, read_state, lambda info: ())


@workload("integers")
def proof_states() -> Digests:
    """Digest proof states of 1,000 random steps on both backends."""
    found = {}
    for engine in ("native", "xla"):
        states, _, dones, _ = _proof_steps(engine)
        found[engine] = digest_arrays(*states, dones)
    return found


@workload("floats")
def proof_rewards() -> Digests:
    """Digest the rewards of the same steps."""
    return {engine: digest_arrays(_proof_steps(engine)[1]) for engine in ("native", "xla")}


# Samples of experts: what language models are trained on


def _token_lines(samples: Iterable[Any], count: int) -> Iterator[str]:
    for sample in itertools.islice(samples, count):
        yield f"{sample.input_ids.tolist()} {sample.loss_mask.tolist()}"


@workload("integers")
def expert_samples() -> Digests:
    """Digest the tokens of answers of experts in ARC, proofs and puzzles, and of random moves in puzzles."""
    from phalanx.core.text_environment import JaxTextVectorEnvironment
    from phalanx.lm.expert_samples import generate_expert_samples
    from phalanx.proofs.env import ProofEnvironment
    from phalanx.puzzles import puzzle_kinds
    from phalanx.registry import find
    from phalanx.text import make_text_vector_env
    from phalanx.training.ppo import PPOConfig

    def puzzles(*turns: str) -> Any:
        tasks = [f"{kind.name}:easy:{each}" for each in turns for kind in puzzle_kinds()]
        return make_text_vector_env(",".join(tasks), prompt_format="compact")

    def as_text(environment: Any, task: str, **settings: Any) -> Any:
        spec = find(task)[1]
        create_expert = functools.partial(spec.expert, environment)
        return JaxTextVectorEnvironment(
            spec.text(environment), create_expert=create_expert, task=task, **settings
        )

    arc = PPOConfig.load("arc", _SMALL_ARC).env.make()
    proofs = ProofEnvironment.from_knowledge_base(_family(), _proof_config(max_episode_steps=8), "train")
    text_arc = functools.partial(as_text, arc, "arc")
    streams = {
        "arc, expert": generate_expert_samples(
            functools.partial(text_arc, prompt_format="compact"), "characters", seed=1
        ),
        "arc, expert, full prompts": generate_expert_samples(text_arc, "bytes", seed=1),
        "proofs, expert": generate_expert_samples(
            functools.partial(as_text, proofs, "proofs"), "bytes", seed=1
        ),
        "puzzles, expert": generate_expert_samples(
            functools.partial(puzzles, "single", "multi"), "characters", seed=1, random_move_prob=0.2
        ),
        "puzzles, random": generate_expert_samples(
            functools.partial(puzzles, "multi"), "characters", seed=1, behavior_policy="random"
        ),
    }
    return {name: digest_text(_token_lines(stream, 24)) for name, stream in streams.items()}


# Training


def _train(algorithm: Any, updates: int, metrics: tuple[str, ...] = ()) -> Digests:
    """Train as `phalanx train` does, without files; digest the weights and the values of some metrics."""
    import jax

    state = algorithm.init(jax.random.key(algorithm.config.seed))
    logged = []
    for _ in range(updates):
        state, report = algorithm.update(state)
        logged += [np.float64(report.metrics[name]) for name in metrics if name in report.metrics]
    algorithm.close()
    found = {"weights": digest_weights(state.params)}
    return found | ({"metrics": digest_arrays(*logged)} if metrics else {})


_SMALL_PPO = (
    "num_envs=8",
    "num_steps=4",
    "num_updates=6",
    "num_minibatches=2",
)


@workload("floats")
def ppo_arc() -> Digests:
    """Train PPO on ARC with two networks."""
    from phalanx.training.ppo import PPO, PPOConfig

    small = (*_SMALL_ARC, *_SMALL_PPO, "network.num_layers=1")
    equivariant = PPO(PPOConfig.load("arc", (*small, "network.hidden_dim=8")))
    convolutional = PPO(PPOConfig.load("arc_single_family", (*small, "network.hidden_dim=8")))
    return {
        "default": _train(equivariant, 3)["weights"],
        "single": _train(convolutional, 3)["weights"],
    }


@workload("floats")
def ppo_proofs() -> Digests:
    """Train PPO on proofs, with a curriculum of two stages."""
    from phalanx.training.ppo import PPO, PPOConfig

    small = (
        *_SMALL_PPO,
        "env.generated.num_families=2",
        "env.generated.generations=3",
        "env.max_actions=8",
        "env.max_goals=3",
        "env.max_episode_steps=4",
        "network.hidden_dim=4",
        "network.num_layers=1",
        "evaluation.max_positives=6",
        "env.curriculum=[{start_update: 2, max_depth: 2}]",
    )
    return _train(PPO(PPOConfig.load("proofs", small)), 3)


_SMALL_BC = (
    *_SMALL_ARC,
    "network.hidden_dim=8",
    "network.num_layers=1",
    "num_updates=4",
    "env.dataset.tasks_per_update=8",
    "num_envs=8",
    "num_steps=4",
    "minibatch_size=16",
    "logging.sample_frequency=0",
)


@workload("floats")
def bc_default() -> Digests:
    """Train behavior cloning with the preset `arc` on generated tasks."""
    from phalanx.training.bc import BC, BCConfig

    return _train(BC(BCConfig.load("arc", _SMALL_BC)), 4, ("loss",))


@workload("floats")
def bc_arc_agi_1() -> Digests:
    """Train behavior cloning with the preset `arc_agi_1` on files with generated tasks."""
    from phalanx.arc.generators import generate_tasks
    from phalanx.training.bc import BC, BCConfig

    with tempfile.TemporaryDirectory() as folder:
        for split in ("training", "evaluation"):
            (Path(folder) / split).mkdir()
            for task in generate_tasks((), 15, seed=5, split=split, max_height=6, max_width=6):
                (Path(folder) / split / f"{task.id}.json").write_text(json.dumps(task.to_dict()))
        small = (*_SMALL_BC, "env.dataset.max_grid_height=6", "env.dataset.max_grid_width=6")
        config = BCConfig.load("arc_agi_1", (*small, f"env.dataset.source={folder}"))
        return _train(BC(config), 4, ("loss",))


@workload("floats")
def demo() -> Digests:
    """Run the training of `phalanx demo`, shortened, with evaluations, checkpoints and logs."""
    from phalanx.training import train
    from phalanx.training.bc import BC, BCConfig

    small = (*_SMALL_BC, "num_updates=3", "evaluation.num_sampled_attempts=2", "evaluation.pass_at_k=[1,2]")
    algorithm = BC(BCConfig.load("arc", ("seed=1", *small)))
    with tempfile.TemporaryDirectory() as folder:
        outcome = train(algorithm, Path(folder) / "run")
        scores = [(record["success_rate"], record["similarity"]) for record in outcome.evaluations]
        return {
            "weights": digest_weights(outcome.state.params),
            "evaluations": digest_arrays(np.array(scores, np.float64)),
        }


_SMALL_MODEL = ("model.d_model=16", "model.num_layers=1", "model.num_heads=2", "model.d_ff=16")


@workload("floats")
def sft_plan() -> Digests:
    """Train a language model on the batches of a plan."""
    from phalanx.data import BatchPlanBuilder, PackingConfig
    from phalanx.training.sft import SFT, SFTConfig, SFTData

    samples = _token_samples()
    lengths = {name: sample.length for name, sample in samples.items()}
    packing = PackingConfig(max_length=64)
    plan = BatchPlanBuilder(lengths, _batching(), packing=packing).build(num_epochs=2)
    config = SFTConfig.load(None, (*_SMALL_MODEL, "model.vocab_size=40", "optimizer.warmup_steps=2"))
    return _train(SFT(config, SFTData.from_plan(plan, samples)), 4, ("loss",))


@workload("floats")
def sft_puzzles() -> Digests:
    """Train a language model on puzzles with the preset `puzzles`; digest held-out losses too."""
    import jax

    from phalanx.training.sft import SFT, SFTConfig

    small = (
        *_SMALL_MODEL,
        "env.id='sudoku,lights_out::multi'",
        "data.puzzle_weights={lights_out: 2}",
        "data.max_length=96",
        "data.token_budget=384",
        "data.packs_per_buffer=8",
        "data.num_eval_samples=8",
        "num_updates=4",
        "optimizer.warmup_steps=2",
        "evaluation.num_episodes=0",
    )
    algorithm = SFT(SFTConfig.load("puzzles", small))
    state, losses = algorithm.init(jax.random.key(algorithm.config.seed)), []
    for _ in range(4):
        state, report = algorithm.update(state)
        losses += [np.float64(report.metrics["loss"])]
        results = algorithm.evaluate(state, algorithm.config.evaluation, False)
        losses += [np.float64(result.as_record()["loss"]) for result in results]
    return {"weights": digest_weights(state.params), "losses": digest_arrays(*losses)}


@workload("floats")
def grpo_puzzles() -> Digests:
    """Train a language model by GRPO with the presets `lights_out` and `puzzles`."""
    from phalanx.training.grpo import GRPO, GRPOConfig

    small = (*_SMALL_MODEL, "num_updates=3", "num_generations=8", "microbatch_size=4", "max_length=96")
    presets = {
        "lights_out": ("num_prompts=6",),
        "puzzles": (
            "env.id='knights::multi,lights_out::multi'",
            "legal_actions_only=true",
            "num_prompts=4",
            "negative_advantage_weight=0.5",
        ),
    }
    found = {}
    for preset, overrides in presets.items():
        algorithm = GRPO(GRPOConfig.load(preset, (*small, *overrides)))
        found |= {
            f"{preset}: {name}": value for name, value in _train(algorithm, 3, ("policy_loss",)).items()
        }
    return found


@workload("floats")
def kge_family() -> Digests:
    """Train an embedding with the preset `family` on generated families; digest losses and validation MRR."""
    import jax

    from phalanx.training.kge import KGEConfig, KGETrainer

    small = (
        "dataset=generated",
        "model.embedding_dim=16",
        "num_epochs=3",
        "num_negatives_per_batch=32",
    )
    algorithm = KGETrainer(KGEConfig.load("family", small))
    state, logged = algorithm.init(jax.random.key(algorithm.config.seed)), []
    for _ in range(3):
        state, result = algorithm.update(state)
        validation = algorithm.validate(state.params)
        logged += [np.float64(x) for x in (result.metrics["loss"], validation["mrr_100"], validation["mrr"])]
    return {"weights": digest_weights(state.params), "metrics": digest_arrays(*logged)}


@workload("floats")
def search_heuristic() -> Digests:
    """Train a heuristic for best-first search on a generated genealogy."""
    import dataclasses

    from benchmarks.genealogy import generate_genealogy

    from phalanx.training.search_heuristic import SearchHeuristicConfig, SearchHeuristicTrainer

    base, queries = generate_genealogy(300, distances=(2,), num_queries=60)
    with tempfile.TemporaryDirectory() as folder:
        dataclasses.replace(base, train=(*base.train, *queries[:40]), valid=queries[40:]).save(folder)
        config = SearchHeuristicConfig(
            env=_proof_config(dataset=folder),
            predicates=("ancestor",),
            num_updates=2,
            queries_per_update=20,
            update_epochs=2,
            max_expansions=30,
            max_depth=8,
            num_parallel_queries=32,
        )
        return _train(SearchHeuristicTrainer(config), 2, ("proved_rate", "proofs_per_expansion"))


@workload("floats")
def path_network() -> Digests:
    """Train a path network on generated families."""
    from phalanx.kg import fit_path_network

    network = fit_path_network(_family(), num_layers=2, num_epochs=0.5, num_threads=1)
    return {"parameters": digest_arrays(network.parameters)}


def compute(names: Iterable[str]) -> dict[str, Any]:
    """Run workloads; return the machine key, the imported package's folder, digests, errors and seconds."""
    digests, errors, seconds = {}, {}, {}
    for name in names:
        began = time.perf_counter()
        try:
            digests[name] = WORKLOADS[name].run()
        except Exception:
            errors[name] = traceback.format_exc()
        seconds[name] = round(time.perf_counter() - began, 1)
        print(f"{name}: {seconds[name]} s", file=sys.stderr)
    import phalanx

    package = str(Path(phalanx.__file__).resolve().parent)
    return {
        "machine": machine_key(),
        "package": package,
        "digests": digests,
        "errors": errors,
        "seconds": seconds,
    }


def main() -> None:
    """Run the workloads that the command line names, or all whose data is present."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(WORKLOADS))
    parser.add_argument("--kind", choices=("integers", "floats"), help="run only workloads of this kind")
    parser.add_argument("--output", type=Path, help="write the JSON to this file instead of stdout")
    arguments = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    names = arguments.names or [name for name, found in WORKLOADS.items() if not found.missing_data]
    names = [name for name in names if arguments.kind in (None, WORKLOADS[name].kind)]
    text = json.dumps(compute(names), indent=2)
    if arguments.output:
        arguments.output.write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
