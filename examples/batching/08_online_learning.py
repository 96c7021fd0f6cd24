"""Train a language model on windows of a replay buffer that holds expert answers.

python examples/batching/08_online_learning.py
"""

import functools
import itertools

import jax

from phalanx.data import (
    BatchingConfig,
    PackingConfig,
    ReplayBuffer,
    ReplayBufferConfig,
    ReplayPlanner,
    ReplayPlannerConfig,
    collate,
)
from phalanx.lm import LanguageModelConfig, generate_expert_samples
from phalanx.text import make_text_vector_env
from phalanx.training import SFT, OptimizerConfig, SFTConfig, SFTData

MAX_LENGTH = 128


def main() -> None:
    make_env = functools.partial(make_text_vector_env, "lights_out:easy:multi", prompt_format="compact")
    buffer = ReplayBuffer(ReplayBufferConfig(max_size=1_000))
    buffer.add_batch(list(itertools.islice(generate_expert_samples(make_env, "characters"), 200)))
    print(f"{buffer.size} samples in the buffer")

    packing = PackingConfig(max_length=MAX_LENGTH)
    batching = BatchingConfig.predictable(
        token_budget=8 * MAX_LENGTH, bucket_edges=(MAX_LENGTH // 2,), max_sample_length=MAX_LENGTH
    )
    planner = ReplayPlanner(buffer, ReplayPlannerConfig(window_size=100, overlap=20), batching, packing)
    model = LanguageModelConfig(vocab_size=98, d_model=32, num_layers=1, num_heads=2, d_ff=64)
    optimizer = OptimizerConfig(learning_rate=0.01, warmup_steps=5, weight_decay=0.01, b2=0.98)
    sft = SFT(SFTConfig(num_updates=60, model=model, optimizer=optimizer), SFTData())
    state = sft.init(jax.random.key(0))

    losses: list[float] = []
    while len(losses) < 60:
        plan = planner.next_plan()
        for spec in plan.iter_epoch(0):
            # All batches have 8 rows, so the update is compiled once.
            state, metrics = sft.train_step(state, [collate(spec, planner.samples, num_rows=8)])
            losses.append(float(metrics["loss"]))
    print(f"loss {losses[0]:.2f} at first, {losses[-1]:.2f} after {len(losses)} updates")
    print(f"below half: {losses[-1] < losses[0] / 2}")


if __name__ == "__main__":
    main()
