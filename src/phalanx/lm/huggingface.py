"""Export and import of models as Hugging Face `LlamaForCausalLM` (`config.json` and `model.safetensors`).

The functions require the `safetensors` package, but neither `transformers` nor PyTorch, and they download
nothing.
"""

import json
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from phalanx.extras import require_extra
from phalanx.io.atomic import atomic_write
from phalanx.lm.model import LanguageModel, LanguageModelConfig

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
_PROJECTIONS = {
    "qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o_proj": ("self_attn.o_proj",),
    "gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "down_proj": ("mlp.down_proj",),
}
"""Maps each projection of a `TransformerBlock` to the layers of `LlamaForCausalLM` that it combines."""
_MAX_POSITION_EMBEDDINGS = 4096
"""Value of `max_position_embeddings` in the exported config. The model itself has no maximum length."""


def export_huggingface(
    model: LanguageModel, folder: str | Path, *, eos_token_id: int | None = 1, pad_token_id: int | None = 0
) -> None:
    """Save a model so that `transformers.AutoModelForCausalLM.from_pretrained(folder)` can load it.

    Args:
        model: The language model.
        folder: Output folder, which is created if it does not exist.
        eos_token_id: End-of-text token in the exported config. None if the model has no such token.
        pad_token_id: Padding token in the exported config. None if the model has no such token.
    """
    safetensors = _import_safetensors()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = model.config
    llama_config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        # Transformers 4 reads the first key, transformers 5 the second.
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "max_position_embeddings": _MAX_POSITION_EMBEDDINGS,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": eos_token_id,
        "pad_token_id": pad_token_id,
        "dtype": "float32",
    }
    weights = {name: np.ascontiguousarray(array, np.float32) for name, array in _to_llama(model).items()}
    with atomic_write(folder / WEIGHTS_FILE, "wb") as file:
        file.write(safetensors.save(weights, metadata={"format": "pt"}))
    with atomic_write(folder / CONFIG_FILE, "w") as file:
        file.write(json.dumps(llama_config, indent=2) + "\n")


def import_huggingface(folder: str | Path) -> LanguageModel:
    """Load a `LlamaForCausalLM` that Hugging Face transformers or `export_huggingface` saved.

    Weights are converted to float32. Biases that are missing from the file are set to zero.

    Raises:
        ValueError: If a file or a weight is missing, the architecture is not supported, or a weight has the
            wrong shape.
    """
    safetensors = _import_safetensors()
    folder = Path(folder)
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} has no {name}; pass a folder that `save_pretrained` created")
    config = _load_config(folder / CONFIG_FILE)
    weights = safetensors.load((folder / WEIGHTS_FILE).read_bytes())
    if "lm_head.weight" not in weights:  # tied embeddings
        weights["lm_head.weight"] = weights.get("model.embed_tokens.weight")
    shapes = eqx.filter_eval_shape(lambda key: LanguageModel(config, key=key), jax.random.key(0))
    model: LanguageModel = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)
    # The arrays are views of the model's parameters, so writing to them fills the model.
    for name, view in _to_llama(model).items():
        array = weights.get(name)
        if array is None:
            if name.endswith(".bias"):
                continue  # most Llama models have no biases
            raise ValueError(f"{folder / WEIGHTS_FILE} has no {name}")
        if array.shape != view.shape:
            raise ValueError(
                f"{folder / WEIGHTS_FILE}: {name} has shape {array.shape}, but {CONFIG_FILE} requires "
                f"{view.shape}"
            )
        view[...] = array
    return jax.device_put(model, may_alias=False)


def _load_config(path: Path) -> LanguageModelConfig:
    llama: dict[str, Any] = json.loads(path.read_text())
    rope = llama.get("rope_parameters") or {}
    num_heads = llama.get("num_attention_heads")
    head_dim = llama["hidden_size"] // llama["num_attention_heads"]
    required = {
        "model_type": (llama.get("model_type"), "llama"),
        "hidden_act": (llama.get("hidden_act", "silu"), "silu"),
        "num_key_value_heads": (llama.get("num_key_value_heads", num_heads), num_heads),
        "head_dim": (llama.get("head_dim") or head_dim, head_dim),
        "rope_type": (rope.get("rope_type", "default"), "default"),
        "rope_scaling": (llama.get("rope_scaling"), None),
    }
    for name, (value, supported) in required.items():
        if value != supported:
            raise ValueError(f"{path}: {name} is {value!r}, but only {supported!r} is supported")
    return LanguageModelConfig(
        vocab_size=llama["vocab_size"],
        d_model=llama["hidden_size"],
        num_layers=llama["num_hidden_layers"],
        num_heads=llama["num_attention_heads"],
        d_ff=llama["intermediate_size"],
        rope_theta=rope.get("rope_theta", llama.get("rope_theta", 10_000.0)),
        norm_eps=llama.get("rms_norm_eps", 1e-6),
    )


def _to_llama(model: Any) -> dict[str, np.ndarray]:
    """Return the arrays of a model by their names in `LlamaForCausalLM`.

    As in PyTorch, weights of linear layers have shape `[outputs, inputs]`. If the parameters of the model are
    NumPy arrays, the results are views of them.
    """
    arrays = {
        "model.embed_tokens.weight": np.asarray(model.embedding),
        "model.norm.weight": np.asarray(model.norm.scale),
        "lm_head.weight": np.asarray(model.head),
    }
    blocks = jax.tree.map(np.asarray, eqx.filter(model.blocks, eqx.is_array))
    for layer in range(model.config.num_layers):
        prefix = f"model.layers.{layer}"
        arrays[f"{prefix}.input_layernorm.weight"] = blocks.attention_norm.scale[layer]
        arrays[f"{prefix}.post_attention_layernorm.weight"] = blocks.mlp_norm.scale[layer]
        for projection, names in _PROJECTIONS.items():
            dense = getattr(blocks, projection)
            weights = np.split(dense.weight[layer], len(names), axis=1)
            biases = np.split(dense.bias[layer], len(names))
            for name, weight, bias in zip(names, weights, biases, strict=True):
                arrays[f"{prefix}.{name}.weight"] = weight.T
                arrays[f"{prefix}.{name}.bias"] = bias
    return arrays


def _import_safetensors() -> Any:
    with require_extra("a Hugging Face model", "hf", "safetensors"):
        import safetensors.numpy
    return safetensors.numpy
