"""A language model that learns while puzzles are being solved: expert samples, replay buffer, batch plans.

One thread solves puzzles and fills the buffer. The main thread plans packed batches over the newest samples
and trains on them. Without arguments, the puzzles are generated here and solved by a solver; with the host
and port of a puzzle server, they are its own and solved with its hints.

python examples/lm/online_language_model.py                   (half a minute of CPU time)
python examples/lm/online_language_model.py 127.0.0.1 8023    (see docs/guides/streaming.md)
"""

import argparse
import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterator

import jax

from phalanx.data import (
    BatchingConfig,
    CharTokenizer,
    PackingConfig,
    ReplayBuffer,
    ReplayBufferConfig,
    ReplayPlanner,
    ReplayPlannerConfig,
    Sample,
    collate,
)
from phalanx.lm import LanguageModelConfig, generate, generate_expert_samples
from phalanx.puzzles.server_client import PuzzleServerEnvConfig, PuzzleServerVectorEnvironment
from phalanx.text import TextVectorEnvironment, make_text_vector_env
from phalanx.training import SFT, OptimizerConfig, SFTConfig, SFTData

TEXT = CharTokenizer()
WINDOW_SIZE = 128
TOKEN_BUDGET = 1024


def environment(arguments: argparse.Namespace) -> Callable[[], TextVectorEnvironment]:
    """Return a function that creates the puzzles."""
    if arguments.host is None:
        return functools.partial(make_text_vector_env, "lights_out:easy:multi", prompt_format="compact")
    address = f"{arguments.host}:{arguments.port}"
    config = PuzzleServerEnvConfig(address=address, games=("lights",), num_connections=4)
    return functools.partial(PuzzleServerVectorEnvironment.from_config, config)


def fill(planner: ReplayPlanner, samples: Iterator[Sample], stop: threading.Event) -> None:
    """Add samples to the buffer, at most two windows ahead of the training."""
    for sample in samples:
        planner.buffer.add(sample)
        while planner.buffer.count_since(planner.state.stop) >= 2 * WINDOW_SIZE and not stop.is_set():
            time.sleep(0.01)
        if stop.is_set():
            return


def answers(model: object, samples: list[Sample]) -> list[tuple[str, str]]:
    """Return what the model generates for each prompt, and the expert's answer."""
    pairs = []
    for sample in samples:
        first = int(sample.loss_mask.argmax())
        generated = generate(model, sample.input_ids[:first].tolist(), sample.length - first)
        pairs.append((TEXT.decode(generated), TEXT.decode(sample.input_ids[first:])))
    return pairs


def main(arguments: argparse.Namespace) -> None:
    max_length = 128 if arguments.host is None else 512
    samples = generate_expert_samples(environment(arguments), TEXT)
    # The first samples are not trained on.
    unseen = list(itertools.islice(samples, 16))
    batching = BatchingConfig.predictable(
        token_budget=max(TOKEN_BUDGET, max_length),
        bucket_edges=(max_length // 2,),
        max_sample_length=max_length,
    )
    buffer = ReplayBuffer(ReplayBufferConfig(max_size=1_000))
    window = ReplayPlannerConfig(
        window_size=WINDOW_SIZE, overlap=0, min_new_samples=WINDOW_SIZE, at_end="wait"
    )
    planner = ReplayPlanner(buffer, window, batching, PackingConfig(max_length=max_length))
    config = SFTConfig(
        num_updates=arguments.updates,
        model=LanguageModelConfig(
            vocab_size=TEXT.vocab_size, d_model=64, num_layers=2, num_heads=4, d_ff=128
        ),
        optimizer=OptimizerConfig(learning_rate=0.006, warmup_steps=10, weight_decay=0.01, b2=0.98),
    )
    sft = SFT(config, SFTData())
    state = sft.init(jax.random.key(0))

    stop = threading.Event()
    thread = threading.Thread(target=fill, args=(planner, samples, stop), daemon=True)
    thread.start()
    update, num_tokens = 0, 0
    while update < arguments.updates:
        plan = planner.next_plan()
        for spec in plan.get_epoch(0)[: arguments.updates - update]:
            batch = collate(spec, planner.samples, num_rows=batching.token_budget // max_length)
            state, metrics = sft.train_step(state, [batch])
            update, num_tokens = update + 1, num_tokens + batch.real_tokens
            if update == 1 or update % max(1, arguments.updates // 8) == 0:
                loss = float(metrics["loss"])
                print(f"update {update:3}  {'#' * round(8 * loss):46} loss {loss:.2f}, {num_tokens:,} tokens")
    stop.set()
    thread.join()

    print(f"{buffer.total_added} samples, {buffer.size} in the buffer")
    pairs = answers(sft.policy(state).model, unseen)
    print(f"unseen prompt and answer:\n{TEXT.decode(unseen[0].input_ids)}\nthe model's answer: {pairs[0][0]}")
    # The form of a move is learned first; which cell takes longer than this run.
    num_formed = sum(generated.split()[:1] == expert.split()[:1] for generated, expert in pairs)
    num_equal = sum(generated == expert for generated, expert in pairs)
    print(f"of {len(pairs)} unseen moves, {num_formed} are well formed and {num_equal} are the expert's")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("host", nargs="?")
    parser.add_argument("port", nargs="?", type=int, default=8023)
    parser.add_argument("--updates", type=int, default=160)
    main(parser.parse_args())
