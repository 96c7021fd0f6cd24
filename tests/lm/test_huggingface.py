"""Export to and import from Hugging Face: equal logits, unchanged models, and rejected models."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from phalanx.lm import LanguageModel, LanguageModelConfig, export_huggingface, import_huggingface

pytestmark = pytest.mark.slow

CONFIG = LanguageModelConfig(vocab_size=23, d_model=16, num_layers=2, num_heads=2, d_ff=24, rope_theta=500.0)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    initial = jax.jit(lambda key: LanguageModel(CONFIG, key=key))(jax.random.key(5))
    # Biases are initialized to zero; noise shows whether each is exported to the right array.
    noise = np.random.default_rng(5)
    return jax.tree.map(
        lambda leaf: jax.device_put(leaf + 0.1 * noise.standard_normal(leaf.shape, np.float32)),
        jax.device_get(initial),
    )


def test_llama_export_has_the_same_logits_and_imports_unchanged(model: LanguageModel, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    export_huggingface(model, tmp_path / "hf")
    llama = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert type(llama).__name__ == "LlamaForCausalLM"
    tokens = np.random.default_rng(0).integers(0, 23, (2, 40))
    with torch.no_grad():
        theirs = llama(torch.tensor(tokens)).logits.numpy()
    rows = tokens.astype(np.int32)
    positions = np.broadcast_to(np.arange(40, dtype=np.int32), rows.shape)
    ours = jax.jit(lambda *inputs: model(*inputs))(rows, np.ones_like(rows), positions)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    llama.save_pretrained(tmp_path / "again")
    for folder in ("hf", "again"):
        imported = import_huggingface(tmp_path / folder)
        assert imported.config == CONFIG
        jax.tree.map(np.testing.assert_array_equal, imported, model)


def test_unsupported_models_are_rejected(model: LanguageModel, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no config\.json"):
        import_huggingface(tmp_path)
    export_huggingface(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_key_value_heads": 1}))
    with pytest.raises(ValueError, match="num_key_value_heads is 1, but only 2 is supported"):
        import_huggingface(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 24}))
    with pytest.raises(ValueError, match=r"embed_tokens\.weight has shape \(23, 16\)"):
        import_huggingface(tmp_path)
