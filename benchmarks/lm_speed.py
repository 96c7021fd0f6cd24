"""How fast the language model trains and writes, beside PyTorch and Hugging Face, in turns in one run.

    python benchmarks/lm_speed.py --parts training,generation --seconds 5

One JSON line for each measurement: tokens by the clock and by processor time, and the load of the machine.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from torch import nn

from phalanx.core.backends import resolve_backend
from phalanx.data import PackingConfig, TokenBatch, pack_tokens
from phalanx.lm import LanguageModel, LanguageModelConfig, SamplingConfig, export_huggingface, generate_batch
from phalanx.training import SFT, SFTConfig, SFTData

ROWS, WIDTH = 4, 1056
ENGINE = resolve_backend("auto")
CONFIG = LanguageModelConfig()


class Block(nn.Module):
    """As `phalanx.lm.model.TransformerBlock`, with PyTorch's own attention."""

    def __init__(self) -> None:
        super().__init__()
        width, hidden = CONFIG.d_model, CONFIG.d_ff
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.down = nn.Linear(width, 2 * hidden), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: Any) -> torch.Tensor:
        rows, tokens, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(rows, tokens, 3, CONFIG.num_heads, -1).permute(2, 0, 3, 1, 4)
        queries, keys = (rotated(part, cos, sin) for part in parts[:2])
        attended = nn.functional.scaled_dot_product_attention(
            queries, keys, parts[2], attn_mask=mask, is_causal=mask is None
        )
        x = x + self.out(attended.transpose(1, 2).reshape(rows, tokens, width))
        gate, through = self.gate(self.norms[1](x)).chunk(2, dim=-1)
        return x + self.down(nn.functional.silu(gate) * through)


class TorchModel(nn.Module):
    """As `phalanx.lm.LanguageModel`."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CONFIG.vocab_size, CONFIG.d_model)
        self.blocks = nn.ModuleList(Block() for _ in range(CONFIG.num_layers))
        self.norm, self.head = (
            nn.RMSNorm(CONFIG.d_model, eps=1e-6),
            nn.Linear(CONFIG.d_model, CONFIG.vocab_size, bias=False),
        )

    def forward(self, tokens: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: Any) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cos, sin, mask)
        return self.head(self.norm(x))


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def rows_of(segments: int) -> TokenBatch:
    """Return rows of random tokens, each with this number of segments."""
    tokens = np.random.default_rng(0).integers(0, CONFIG.vocab_size, ROWS * WIDTH)
    offsets = np.arange(ROWS * segments + 1) * (WIDTH // segments)
    return pack_tokens(tokens, offsets, PackingConfig(max_length=WIDTH, mode="next_fit"))


def ours(segments: int) -> Callable[[], int]:
    """A step of Phalanx."""
    sft, batch = SFT(SFTConfig(model=CONFIG), SFTData()), rows_of(segments)
    state = sft.init(jax.random.key(0))

    def step() -> int:
        nonlocal state
        state, metrics = sft.train_step(state, [batch])
        jax.block_until_ready((state, metrics))
        return ROWS * WIDTH

    return step


def theirs(segments: int, compiled: bool) -> Callable[[], int]:
    """A step of PyTorch on the same rows; rows of several segments have a mask, one segment is causal."""
    batch = rows_of(segments)
    model: Any = TorchModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    half = CONFIG.head_dim // 2
    speeds = CONFIG.rope_theta ** -(torch.arange(half) / half)
    angles = torch.tensor(batch.position_ids[0])[:, None] * speeds
    cos, sin, tokens = angles.cos(), angles.sin(), torch.tensor(batch.input_ids).long()
    mask = None
    if segments > 1:
        own = torch.tensor(batch.segment_ids[0])
        mask = ((own[:, None] == own[None]) & torch.ones(WIDTH, WIDTH, dtype=torch.bool).tril())[None, None]
    run = torch.compile(model) if compiled else model

    def step() -> int:
        logits = run(tokens, cos, sin, mask)[:, :-1]
        loss = nn.functional.cross_entropy(logits.reshape(-1, CONFIG.vocab_size), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return ROWS * WIDTH

    return step


def writers(batch: int, prompt: int, new: int) -> dict[str, Callable[[], int]]:
    """Greedy generation of both on the same weights."""
    from transformers import AutoModelForCausalLM

    model = LanguageModel(CONFIG, key=jax.random.key(0))
    prompts = np.random.default_rng(1).integers(2, CONFIG.vocab_size, (batch, prompt))
    with tempfile.TemporaryDirectory() as folder:
        export_huggingface(model, folder, eos_token_id=None)
        llama: Any = AutoModelForCausalLM.from_pretrained(folder)
    given, seen = torch.tensor(prompts), torch.ones((batch, prompt), dtype=torch.long)
    listed = prompts.tolist()

    def phalanx() -> int:
        said = generate_batch(model, listed, new, sampling=SamplingConfig(temperature=0.0))
        return sum(map(len, said.completion_ids))

    def huggingface() -> int:
        with torch.no_grad():
            said = llama.generate(
                given, attention_mask=seen, max_new_tokens=new, do_sample=False, pad_token_id=0
            )
        return int(said[:, prompt:].numel())

    return {"phalanx": phalanx, "huggingface": huggingface}


def answers(seconds: float) -> None:
    """Seconds of a call as GRPO makes them: 128 prompts of 48 tokens, 32 new ones each."""
    model, rng = LanguageModel(CONFIG, key=jax.random.key(0)), np.random.default_rng(1)
    prompts = rng.integers(2, CONFIG.vocab_size, (128, 48)).tolist()
    texts = [[*text, 2] for text in rng.integers(3, CONFIG.vocab_size, (32, 30)).tolist()]
    draws: dict[str, Any] = {"sampling": SamplingConfig(), "key": jax.random.key(0)}
    kinds: dict[str, tuple[list[list[int]], dict[str, Any]]] = {
        "different": (prompts, draws),
        "every prompt 8 times": ([prompt for prompt in prompts[:16] for _ in range(8)], draws),
        "top_p 0.9": (prompts, {**draws, "sampling": SamplingConfig(top_p=0.9)}),
        "choices": (prompts, {**draws, "stop_token_id": 2, "choices": [texts] * 128}),
    }
    for kind, (given, options) in kinds.items():
        generate_batch(model, given, 32, **options)
        best, began = float("inf"), time.perf_counter()
        while time.perf_counter() - began < seconds / 4:
            clock = time.perf_counter()
            generate_batch(model, given, 32, **options)
            best = min(best, time.perf_counter() - clock)
        about = {"load": os.getloadavg()[0], "engine": ENGINE}
        print(json.dumps({"part": "answers", "kind": kind, "seconds": round(best, 4), **about}), flush=True)


def measure(what: dict[str, Any], runners: dict[str, Callable[[], int]], seconds: float, rounds: int) -> None:
    """Each in turn, several times; the best round by the clock counts."""
    for run in runners.values():
        run()
    best: dict[str, tuple[float, float]] = {}
    for _ in range(rounds):
        for name, run in runners.items():
            clock, processor, tokens = time.perf_counter(), time.process_time(), 0
            while time.perf_counter() - clock < seconds / rounds:
                tokens += run()
            found = tokens / (time.perf_counter() - clock), tokens / (time.process_time() - processor)
            best[name] = max(best.get(name, (0.0, 0.0)), found)
    peer = max(rate for name, (rate, _) in best.items() if name != "phalanx")
    for name, (rate, by_processor) in best.items():
        told = {"tokens_per_second": round(rate), "tokens_per_processor_second": round(by_processor)}
        about = {"times_the_best_peer": round(rate / peer, 2), "load": os.getloadavg()[0], "engine": ENGINE}
        print(json.dumps({**what, "who": name, **told, **about}), flush=True)


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default="training,generation")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each runner")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--segments", default="1,4")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if "training" in arguments.parts:
        for segments in map(int, arguments.segments.split(",")):
            runners = {"phalanx": ours(segments), "torch": theirs(segments, compiled=False)}
            if not arguments.no_compile:
                runners["torch compiled"] = theirs(segments, compiled=True)
            about = {"part": "training", "rows": ROWS, "width": WIDTH, "segments": segments}
            measure(about, runners, arguments.seconds, arguments.rounds)
    if "answers" in arguments.parts:
        answers(arguments.seconds)
    if "generation" in arguments.parts:
        about = {"part": "generation", "batch": 64, "prompt": 64, "new": arguments.new_tokens}
        measure(about, writers(64, 64, arguments.new_tokens), arguments.seconds, arguments.rounds)


if __name__ == "__main__":
    main()
