"""Where a language model's tokens come from, by its config: a plan, a puzzle server, an environment, a file.

How they become batches is in `batches`.
"""

import asyncio
import hashlib
import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.data.replay_planner import ReplayPlannerConfig
from phalanx.data.samples import Sample
from phalanx.lm.expert_samples import generate_expert_samples
from phalanx.lm.tasks import PromptTokenizer, Split, TextTask, is_puzzles, read_shares, read_tasks
from phalanx.training.lm.batches import BatchSource, PlannedBatches, StreamedBatches
from phalanx.training.lm.config import LMDataConfig, LMTrainingConfig

_QUEUE = 256
"""Samples that a server may be ahead of the training."""


def open_source(config: LMTrainingConfig) -> BatchSource:
    """The batches that a config describes; files are read and checked here."""
    data = config.data
    if data.source == "plan":
        planned, vocabulary = _plan(data)
        _check_vocabulary(vocabulary, config)
        return planned
    samples, vocabulary, name = _samples(config)
    _check_vocabulary(vocabulary, config)
    source = StreamedBatches(
        samples,
        name,
        window=ReplayPlannerConfig(window_size=data.window_size, overlap=data.overlap),
        batching=data.batching(config.seed),
        packing=data.packing(),
        buffer_size=data.buffer_size,
        held_out=data.held_out,
    )
    source.begin()
    return source


def _check_vocabulary(vocabulary: int, config: LMTrainingConfig) -> None:
    # Not left to the model: in a compiled gather an id that it does not know gives NaN, and no error.
    if vocabulary > config.model.vocab_size:
        raise ValueError(
            f"the samples have tokens up to {vocabulary - 1}, the model knows {config.model.vocab_size}; "
            f"set model.vocab_size={vocabulary}"
        )


def _plan(data: LMDataConfig) -> tuple[PlannedBatches, int]:
    """The batches of a plan, and how many tokens there are."""
    from phalanx.data.batch_files import BatchReader
    from phalanx.data.plans.plan_files import load_batch_plan
    from phalanx.data.tokenization import TokenizeConfig, tokenize_dataset
    from phalanx.data.tokenizers import load_tokenizer

    folder = Path(data.path)
    if not data.dataset:
        if not (folder / "manifest.json").is_file():
            raise ValueError(
                f"{folder} holds no batch files, so its plan's samples must come from somewhere: "
                f"give --dataset, or write them with `phalanx data batch generate`"
            )
        return PlannedBatches.of_files(folder), 1 + BatchReader(folder).largest_token()
    plan = load_batch_plan(folder)
    tokenizer = load_tokenizer(data.tokenizer)
    if plan.meta.tokenizer_hash and plan.meta.tokenizer_hash != tokenizer.tokenizer_hash:
        raise ValueError(
            f"{folder} was made with tokenizer {plan.meta.tokenizer_hash}, but {data.tokenizer!r} is "
            f"{tokenizer.tokenizer_hash}; give the one that the lengths were counted with"
        )
    samples = tokenize_dataset(data.dataset, tokenizer, TokenizeConfig(add_eos=False))
    return PlannedBatches.of_plan(plan, samples), 1 + int(samples.tokens.max(initial=0))


Samples = Callable[[int], Iterator[Sample]]


def _samples(config: LMTrainingConfig) -> tuple[Samples, int, str]:
    """The stream's samples from a number on, how many tokens there are, and a name for what it streams."""
    data = config.data
    match data.source:
        case "arcade":
            return _arcade(config)
        case "env":
            return _environment(config)
    found = tuple(sample for sample in _read_file(data) if sample.length <= data.max_length)
    if not found:
        raise ValueError(f"{data.path} has no sample of at most {data.max_length} tokens")
    vocabulary = 1 + max(int(sample.input_ids.max()) for sample in found)

    def from_file(first: int) -> Iterator[Sample]:
        # The held-out samples come first and are never read again.
        rest = found[data.held_out :] if data.repeat else ()
        return itertools.islice(itertools.chain(found, itertools.cycle(rest)), first, None)

    if data.repeat and len(found) <= data.held_out:
        raise ValueError(f"{data.path} has {len(found)} samples, and {data.held_out} are to be held out")
    digest = f"{len(found)}-{hash_of(found)}"
    return from_file, vocabulary, f"samples {digest}"


def _read_file(data: LMDataConfig) -> list[Sample]:
    from phalanx.data.samples import read_samples
    from phalanx.data.tokenization import TokenizeConfig, tokenize_rows
    from phalanx.data.tokenizers import load_tokenizer

    path = Path(data.path)
    if path.suffix == ".npz":
        return read_samples(path)
    if path.suffix == ".jsonl":
        with path.open(encoding="utf-8") as file:
            first = file.readline()
        if '"sample_id"' in first and '"loss_mask"' in first:
            return read_samples(path)
    return list(tokenize_rows(path, load_tokenizer(data.tokenizer), TokenizeConfig(add_eos=False)))


def hash_of(samples: tuple[Sample, ...]) -> str:
    """A digest of samples' tokens, in order."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(np.asarray(sample.input_ids, np.int32).tobytes())
        digest.update(np.asarray(sample.loss_mask, np.uint8).tobytes())
    return digest.hexdigest()[:16]


def _environment(config: LMTrainingConfig) -> tuple[Samples, int, str]:
    data = config.data
    if is_puzzles(data.environment):
        return _puzzles(config)
    if data.environment not in ("arc", "proofs"):
        read_tasks(data.environment, data.difficulty, data.turns)
    if data.play == "solver":
        return _solved(config)
    from phalanx.lm.episode_stream import EnvironmentStream

    environment = make_environment(data.environment)

    def play(first: int) -> Iterator[Sample]:
        stream = EnvironmentStream(environment, seed=config.seed)
        fitting = (sample for sample in stream if sample.length <= data.max_length)
        return itertools.islice(fitting, first, None)

    tokenizer = EnvironmentStream(environment).tokenizer
    return play, tokenizer.vocab_size, f"env {data.environment} {config.seed}"


def _solved(config: LMTrainingConfig) -> tuple[Samples, int, str]:
    """Plans of ARC tasks, or proofs of queries."""
    data, prompter = config.data, PromptTokenizer(config.data.tokenizer)
    environment = make_environment(data.environment)

    def played(split: Split) -> Iterator[Sample]:
        found: Iterator[Sample]
        if data.environment == "arc":
            from phalanx.lm.arc_demonstrations import arc_samples

            found = arc_samples(environment, prompter, seed=config.seed, split=split, compact=data.compact)
        else:
            from phalanx.lm.episodes.proof_demonstrations import proof_samples

            found = proof_samples(environment, prompter, seed=config.seed, split=split)
        return (sample for sample in found if sample.length <= data.max_length)

    name = f"{data.environment} solved {data.tokenizer} {data.compact} {config.seed}"
    return _behind_held_out(played, data.held_out), prompter.tokenizer.vocab_size, name


def _behind_held_out(played: Callable[[Split], Iterator[Sample]], held_out: int) -> Samples:
    """What is measured on comes first, and from what nobody learns from."""

    def play(first: int) -> Iterator[Sample]:
        measured = itertools.islice(played("valid"), held_out)
        return itertools.islice(itertools.chain(measured, played("training")), first, None)

    return play


def _puzzles(config: LMTrainingConfig) -> tuple[Samples, int, str]:
    data, prompter = config.data, PromptTokenizer(config.data.tokenizer)
    tasks = tasks_of(data)
    shares = read_shares(data.shares, tasks)

    def played(split: Split) -> Iterator[Sample]:
        found = generate_expert_samples(
            tasks,
            prompter,
            seed=config.seed,
            split=split,
            compact=data.compact,
            wander=data.wander,
            demonstrated=data.play == "solver",
            shares=shares,
        )
        return (sample for sample in found if sample.length <= data.max_length)

    names = ",".join(task.name for task in tasks)
    settings = f"{data.tokenizer} {data.play} {data.compact} {data.wander} {data.shares}"
    name = f"puzzles {names} {settings} {config.seed}"
    return _behind_held_out(played, data.held_out), prompter.tokenizer.vocab_size, name


def tasks_of(data: LMDataConfig) -> tuple[TextTask, ...]:
    """The puzzles that a config learns; none where it learns something else."""
    if data.source != "env" or not is_puzzles(data.environment):
        return ()
    return read_tasks(data.environment, data.difficulty, data.turns)


def played_name(data: LMDataConfig) -> str:
    """What a config learns to answer in words, by its whole name; empty where that cannot be played.

    Random play of an environment is learned as tokens of its own, and not in words.
    """
    if data.source == "env" and data.play == "solver" and not is_puzzles(data.environment):
        return data.environment
    return ",".join(task.name for task in tasks_of(data))


def make_environment(name: str) -> Any:
    """An environment with its built-in tasks."""
    if name == "arc":
        from phalanx.arc.env import ArcEnvironment
        from phalanx.training.arc_training import load_arc_training

        return ArcEnvironment.create(load_arc_training().arc)
    from phalanx.training.proof_training import ProofSetting, load_proof_training

    return ProofSetting.create(load_proof_training()).stages[0]


def _arcade(config: LMTrainingConfig) -> tuple[Samples, int, str]:
    from phalanx.data.tokenizers import load_tokenizer
    from phalanx.puzzles.server.client import PuzzleClientConfig
    from phalanx.puzzles.server.episodes import CollectConfig, PuzzleSampleStream
    from phalanx.puzzles.server.pool import ConnectionPoolConfig
    from phalanx.puzzles.server.protocol import PuzzleDifficulty

    data = config.data
    host, _, port = data.address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"{data.address!r} is no HOST:PORT, as localhost:8023")
    settings = CollectConfig(
        client=PuzzleClientConfig(host=host, port=int(port), max_retries=12, retry_seed=config.seed),
        games=data.games,
        difficulties=(PuzzleDifficulty(data.difficulty),),
        seed=config.seed,
        max_length=data.max_length,
        pool=ConnectionPoolConfig(connections=data.connections, ordered=True),
    )
    tokenizer = load_tokenizer(data.tokenizer)

    def play(first: int) -> Iterator[Sample]:
        stream = PuzzleSampleStream(settings, tokenizer)
        return itertools.islice(blocking(stream), first, None)

    return play, tokenizer.vocab_size, f"arcade {','.join(data.games)} {data.difficulty} {config.seed}"


def blocking(samples: Any) -> Iterator[Sample]:
    """An asynchronous stream as a plain iterator: it runs in a thread of its own, a little ahead."""
    ahead: queue.Queue[Any] = queue.Queue(_QUEUE)
    stopped = threading.Event()

    async def pump() -> None:
        async with samples:
            async for sample in samples:
                while not stopped.is_set():
                    try:
                        ahead.put(sample, timeout=0.0)
                        break
                    except queue.Full:
                        await asyncio.sleep(0.005)
                if stopped.is_set():
                    return

    def run() -> None:
        outcome: BaseException | None = None
        try:
            asyncio.run(pump())
        except Exception as error:
            outcome = error
        finally:
            # The reader may be gone, or go, while the queue is full.
            while not stopped.is_set():
                try:
                    ahead.put(outcome, timeout=0.1)
                    break
                except queue.Full:
                    continue

    thread = threading.Thread(target=run, name="phalanx-stream", daemon=True)
    thread.start()
    try:
        while True:
            item = ahead.get()
            if isinstance(item, Sample):
                yield item
            elif item is None:
                return
            else:
                raise item
    finally:
        stopped.set()
