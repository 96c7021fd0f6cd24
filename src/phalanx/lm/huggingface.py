"""Language models to and from Hugging Face: a `LlamaForCausalLM` in `config.json` and `model.safetensors`.

Nothing is fetched, and neither `transformers` nor PyTorch is needed; how a model is trained is in `training`.
"""

import json
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from phalanx.io.files import atomic_write
from phalanx.lm.model import LanguageModel, LanguageModelConfig

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_CONTEXT = 4096
"""What the config says of the longest text; rotary positions know no longest."""


def export_huggingface(
    model: LanguageModel, folder: str | Path, *, end: int | None = 1, padding: int | None = 0
) -> None:
    """Write a model as `transformers.AutoModelForCausalLM.from_pretrained(folder)` reads it.

    `end` and `padding` are the tokenizer's ids of the end of a text and of padding.
    """
    safetensors = _safetensors()
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    config = model.config
    told = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": config.hidden,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.heads,
        "head_dim": config.width // config.heads,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_epsilon,
        # Older and newer names of the same number.
        "rope_theta": config.rotary_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
        "max_position_embeddings": _CONTEXT,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": padding,
        "dtype": "float32",
    }
    weights = {name: np.ascontiguousarray(array, np.float32) for name, array in _named(model).items()}
    with atomic_write(target / WEIGHTS, "wb") as file:
        file.write(safetensors.save(weights, metadata={"format": "pt"}))
    with atomic_write(target / CONFIG, "w") as file:
        file.write(json.dumps(told, indent=2) + "\n")


def import_huggingface(folder: str | Path) -> LanguageModel:
    """The model of a folder that holds a `LlamaForCausalLM`; what cannot be taken over is refused."""
    safetensors = _safetensors()
    source = Path(folder)
    for name in (CONFIG, WEIGHTS):
        if not (source / name).is_file():
            raise ValueError(f"{source} has no {name}; give a folder as `save_pretrained` writes it")
    config = _config(source / CONFIG)
    found = safetensors.load((source / WEIGHTS).read_bytes())
    like = eqx.filter_eval_shape(lambda key: LanguageModel(config, key=key), jax.random.key(0))
    wanted = _named(jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), like))
    if "lm_head.weight" not in found:
        found["lm_head.weight"] = found.get("model.embed_tokens.weight")
    arrays = {}
    for name, array in wanted.items():
        given = found.get(name)
        if given is None:
            if not name.endswith(".bias"):
                raise ValueError(f"{source / WEIGHTS} has no {name}")
            # Most models have no biases; none is one of zeros.
            given = np.zeros_like(array)
        if given.shape != array.shape:
            raise ValueError(
                f"{source / WEIGHTS}: {name} is {given.shape}, by {CONFIG} it must be {array.shape}"
            )
        arrays[name] = np.asarray(given, np.float32)
    return _filled(config, arrays)


def _config(path: Path) -> LanguageModelConfig:
    told: dict[str, Any] = json.loads(path.read_text())
    rotary = told.get("rope_parameters") or {}
    heads = told.get("num_attention_heads")
    needs = {
        "model_type": (told.get("model_type"), "llama"),
        "hidden_act": (told.get("hidden_act", "silu"), "silu"),
        "num_key_value_heads": (told.get("num_key_value_heads", heads), heads),
        "head_dim": (told.get("head_dim") or told["hidden_size"] // told["num_attention_heads"],
                     told["hidden_size"] // told["num_attention_heads"]),
        "rope_type": (rotary.get("rope_type", "default"), "default"),
        "rope_scaling": (told.get("rope_scaling"), None),
    }  # fmt: skip
    for name, (given, wanted) in needs.items():
        if given != wanted:
            raise ValueError(f"{path}: {name} is {given!r}, and only {wanted!r} can be taken over")
    return LanguageModelConfig(
        vocab_size=told["vocab_size"],
        width=told["hidden_size"],
        depth=told["num_hidden_layers"],
        heads=told["num_attention_heads"],
        hidden=told["intermediate_size"],
        rotary_base=rotary.get("rope_theta", told.get("rope_theta", 10_000.0)),
        norm_epsilon=told.get("rms_norm_eps", 1e-6),
    )


def _named(model: Any) -> dict[str, np.ndarray]:
    """A model's arrays under the names of `LlamaForCausalLM`, matrices as [outputs, inputs]."""
    width, hidden = model.config.width, model.config.hidden
    named = {
        "model.embed_tokens.weight": np.asarray(model.embedding),
        "model.norm.weight": np.asarray(model.norm.scale),
        "lm_head.weight": np.asarray(model.head),
    }
    blocks = jax.tree.map(np.asarray, eqx.filter(model.blocks, eqx.is_array))
    for layer in range(model.config.depth):
        at = f"model.layers.{layer}"
        named[f"{at}.input_layernorm.weight"] = blocks.norms[0].scale[layer]
        named[f"{at}.post_attention_layernorm.weight"] = blocks.norms[1].scale[layer]
        parts = (
            (blocks.qkv, [f"self_attn.{name}_proj" for name in "qkv"], width),
            (blocks.out, ["self_attn.o_proj"], width),
            (blocks.gate, ["mlp.gate_proj", "mlp.up_proj"], hidden),
            (blocks.down, ["mlp.down_proj"], width),
        )
        for dense, names, size in parts:
            for place, name in enumerate(names):
                rows = slice(place * size, (place + 1) * size)
                named[f"{at}.{name}.weight"] = dense.weight[layer][:, rows].T
                named[f"{at}.{name}.bias"] = dense.bias[layer][rows]
    return named


def _filled(config: LanguageModelConfig, arrays: dict[str, np.ndarray]) -> LanguageModel:
    """The model of named arrays."""
    model = eqx.filter_eval_shape(lambda key: LanguageModel(config, key=key), jax.random.key(0))

    def stacked(name: str) -> np.ndarray:
        return np.stack([arrays[f"model.layers.{layer}.{name}"] for layer in range(config.depth)])

    def dense(*names: str) -> tuple[np.ndarray, np.ndarray]:
        weights = [np.swapaxes(stacked(f"{name}.weight"), 1, 2) for name in names]
        return np.concatenate(weights, axis=2), np.concatenate(
            [stacked(f"{name}.bias") for name in names], axis=1
        )

    layers = {
        "qkv": dense(*(f"self_attn.{name}_proj" for name in "qkv")),
        "out": dense("self_attn.o_proj"),
        "gate": dense("mlp.gate_proj", "mlp.up_proj"),
        "down": dense("mlp.down_proj"),
    }

    def places(one: LanguageModel) -> list[Any]:
        blocks = one.blocks
        return [
            *(one.embedding, one.head, one.norm.scale, blocks.norms[0].scale, blocks.norms[1].scale),
            *(part for name in layers for part in (getattr(blocks, name).weight, getattr(blocks, name).bias)),
        ]

    values = [
        *(arrays[name] for name in ("model.embed_tokens.weight", "lm_head.weight", "model.norm.weight")),
        *(stacked("input_layernorm.weight"), stacked("post_attention_layernorm.weight")),
        *(part for parts in layers.values() for part in parts),
    ]
    filled: LanguageModel = eqx.tree_at(places, model, jax.device_put(values, may_alias=False))
    return filled


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ValueError("this needs safetensors: pip install 'phalanx[huggingface]'") from error
    return safetensors.numpy
