"""Language model: generated and trained tokens per second, compared with Hugging Face transformers.

Both libraries run a Llama architecture of the same size in float32 on all cores of the CPU, with random
weights. Each sequence generates the same number of tokens with greedy decoding; there is no end token.
Training uses AdamW and clips gradients; each row is one segment, so that no library needs an attention mask
for packed rows. transformers is measured as it is and with `torch.compile`; for generation, this includes a
static cache.
"""

import os
from typing import Any

import equinox as eqx
import jax
import numpy as np

from benchmarks.peers import TRL
from benchmarks.suite import Suite, Workload
from phalanx.data import PackingConfig, pack_tokens
from phalanx.lm import LanguageModel, LanguageModelConfig, SamplingConfig, generate_batch
from phalanx.training import SFT, SFTConfig, SFTData

suite = Suite("lm", unit="tokens/s", packages=("jax", "jaxlib", "equinox", "optax"))

NUM_CORES = len(os.sched_getaffinity(0))
MODELS = {
    "small": LanguageModelConfig(vocab_size=258),
    "medium": LanguageModelConfig(vocab_size=258, d_model=512, num_layers=8, num_heads=8, d_ff=1536),
}
_TINY = LanguageModelConfig(vocab_size=98, d_model=16, num_layers=1, num_heads=2, d_ff=16)


def _llama(config: LanguageModelConfig) -> dict[str, Any]:
    """Return the settings of the same architecture for `transformers.LlamaConfig`."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
    }


def _num_parameters(config: LanguageModelConfig) -> int:
    shapes = eqx.filter_eval_shape(lambda key: LanguageModel(config, key=key), jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(shapes, lambda x: hasattr(x, "size"))))


def generate(model: str, rows: int, prompt_length: int, num_new_tokens: int) -> Workload:
    """Generate tokens with greedy decoding."""
    config = MODELS.get(model, _TINY)
    network = LanguageModel(config, key=jax.random.key(0))
    prompts = np.random.default_rng(0).integers(2, config.vocab_size, (rows, prompt_length)).tolist()
    greedy = SamplingConfig(temperature=0.0)

    def run() -> None:
        output = generate_batch(network, prompts, num_new_tokens, sampling=greedy)
        if sum(map(len, output.completion_ids)) != rows * num_new_tokens:
            raise AssertionError("generation stopped early")

    return Workload(run, rows * num_new_tokens, {"num_parameters": _num_parameters(config)})


def train(model: str, rows: int, length: int) -> Workload:
    """Perform one SFT update with AdamW."""
    config = MODELS.get(model, _TINY)
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, rows * length)
    offsets = np.arange(rows + 1) * length
    batch = pack_tokens(tokens, offsets, PackingConfig(max_length=length, mode="next_fit"))
    sft = SFT(SFTConfig(model=config), SFTData())
    state = sft.init(jax.random.key(0))

    def run() -> None:
        nonlocal state
        state, metrics = sft.train_step(state, [batch])
        jax.block_until_ready((state, metrics))

    return Workload(run, rows * length, {"num_parameters": _num_parameters(config)})


for _model, _config in MODELS.items():
    for _rows in (1, 64):
        _group = f"generate-{_model}-batch-{_rows}"
        _work = {"rows": _rows, "prompt_length": 64, "num_new_tokens": 128}
        _smoke = {"model": "tiny", "rows": 2, "prompt_length": 4, "num_new_tokens": 4}
        suite.case(_group, group=_group, smoke=_smoke, model=_model, **_work)(generate)
        for _compile in (False, True):
            suite.peer_case(
                f"huggingface-{_group}{'-compiled' if _compile else ''}",
                TRL,
                "huggingface_lm",
                group=_group,
                system="transformers, torch.compile" if _compile else "transformers",
                work="generate",
                compile=_compile,
                num_threads=NUM_CORES,
                model=_llama(_config),
                **_work,
            )
    _group = f"train-{_model}"
    _work = {"rows": 4, "length": 1024}
    _smoke = {"model": "tiny", "rows": 2, "length": 16}
    suite.case(_group, group=_group, smoke=_smoke, model=_model, **_work)(train)
    for _compile in (False, True):
        suite.peer_case(
            f"huggingface-{_group}{'-compiled' if _compile else ''}",
            TRL,
            "huggingface_lm",
            group=_group,
            system="transformers, torch.compile" if _compile else "transformers",
            work="train",
            compile=_compile,
            num_threads=NUM_CORES,
            model=_llama(_config),
            **_work,
        )
