"""Packed samples do not influence each other in models of `transformers`, or the model is rejected."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import AutoModelForCausalLM  # noqa: E402
from transformers.masking_utils import flash_attention_mask  # noqa: E402
from transformers.modeling_flash_attention_utils import (  # noqa: E402
    _is_packed_sequence,
    prepare_fa_kwargs_from_position_ids,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402

from phalanx.data import BatchingConfig, BatchPlan, BatchPlanBuilder, PackingConfig  # noqa: E402
from phalanx.integrations.hf_trainer import PlanTrainerMixin  # noqa: E402
from phalanx.integrations.torch_data import PlanDataset, choose_attention  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "initializer_range": 0.2,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LINEAR_ATTENTION = {
    "num_hidden_layers": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 8}
# The families of which docs/guides/trainers.md says that position ids are enough.
POSITIONS: dict[str, dict[str, Any]] = {
    "gemma": {},
    "gemma2": {},
    "gemma3_text": {},
    "gpt2": {},
    "gpt_neox": {},
    "llama": {},
    "mistral": {},
    "mixtral": {"num_local_experts": 4},
    "olmo2": {},
    "phi": {},
    "phi3": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": EXPERTS,
}
OTHERS: dict[str, dict[str, Any]] = {
    "bamba": MAMBA | {"attn_layer_indices": [1]},
    "bloom": {},
    "falcon_h1": MAMBA | {"mamba_d_ssm": 32, "mamba_n_heads": 4},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2, "chunk_size": 8},
    "mpt": {},
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "ssm_state_size": 8,
        "n_groups": 2,
        "chunk_size": 8,
    },
    "opt": {"ffn_dim": 32, "word_embed_proj_dim": 32},
    "qwen3_5_text": LINEAR_ATTENTION,
    "qwen3_next": LINEAR_ATTENTION | EXPERTS | {"shared_expert_intermediate_size": 16},
}
FAMILIES = POSITIONS | OTHERS
RECURRENT = ("bamba", "falcon_h1", "lfm2", "mamba2", "nemotron_h", "qwen3_5_text", "qwen3_next")
FORMATS = ("positions", "varlen", "mask")
LENGTH = 8


def create_model(family: str, attention: str | None = None, **settings: Any) -> Any:
    if family not in CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {family}")
    torch.manual_seed(0)
    config = CONFIG_MAPPING[family](**SIZES | FAMILIES[family] | settings)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


def create_plan(row_length: int = 2 * LENGTH) -> BatchPlan:
    """Create a plan with one batch of two rows with two samples each."""
    config = BatchingConfig.throughput(4 * LENGTH, bucket_edges=(LENGTH,), max_sample_length=2 * LENGTH)
    packing = PackingConfig(max_length=row_length)
    return BatchPlanBuilder(dict.fromkeys("abcd", LENGTH), config, packing=packing).build()


PLAN = create_plan()


def create_batch(attention: Any, first: int = 0) -> Any:
    """Create a batch in which the tokens of the first sample count from `first`, and all others from 20."""
    (spec,) = PLAN.get_epoch(0)
    samples = {name: {"input_ids": list(range(20, 20 + LENGTH))} for name in "abcd"}
    samples[spec.sample_ids[0]] = {"input_ids": list(range(first, first + LENGTH))}
    (batch,) = PlanDataset(PLAN, samples, attention=attention)
    del batch["labels"]
    return batch


@torch.no_grad()
def other_logits(model: Any, attention: Any, first: int = 0) -> Any:
    """Return the logits [3, length, vocab] of the samples after the first one."""
    logits = model(**create_batch(attention, first)).logits
    return logits.reshape(4, LENGTH, -1)[1:]


def leaks(model: Any, attention: Any) -> bool:
    """Return whether the logits of other samples change with the tokens of the first sample."""
    return not torch.allclose(other_logits(model, attention), other_logits(model, attention, 40), atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_chosen_attention_keeps_samples_apart(family: str) -> None:
    model = create_model(family)
    good = []
    for attention in FORMATS:
        try:
            if not leaks(model, attention):
                good.append(attention)
        except (TypeError, ValueError, RuntimeError):
            pass  # the model does not support the format
    for attention in FORMATS:
        if attention in good:
            assert choose_attention(model, PLAN, (attention,)) == attention
        else:
            with pytest.raises(ValueError, match="use attention=choose_attention"):
                choose_attention(model, PLAN, (attention,))
    if not good:
        with pytest.raises(ValueError, match="build the plan without packing"):
            choose_attention(model, PLAN)
        return
    chosen = choose_attention(model, PLAN)
    assert chosen == good[0] and not model.training
    with torch.no_grad():
        alone = model(input_ids=torch.arange(20, 20 + LENGTH)[None]).logits
    torch.testing.assert_close(other_logits(model, chosen), alone.expand(3, -1, -1), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("implementation", ["eager", None], ids=["eager", "default"])
@pytest.mark.parametrize("family", POSITIONS)
def test_documented_families_infer_samples_from_position_ids(family: str, implementation: str | None) -> None:
    model = create_model(family, implementation)
    assert choose_attention(model, PLAN) == "positions"
    assert not leaks(model, "positions") and not leaks(model, "varlen")


@pytest.mark.parametrize("family", RECURRENT)
def test_recurrent_and_convolutional_layers_leak(family: str) -> None:
    assert leaks(create_model(family), "positions")


def test_mask_that_would_replace_a_sliding_window_is_rejected() -> None:
    model = create_model("gpt_oss", sliding_window=LENGTH)
    with pytest.raises(ValueError, match=r"mask: replaces the sliding window of 8 tokens.*up to 16"):
        choose_attention(model, PLAN, ("mask",))
    assert choose_attention(model, create_plan(LENGTH), ("mask",)) == "mask"


def test_model_without_weights_cannot_be_tested() -> None:
    with torch.device("meta"):
        model = create_model("llama")
    with pytest.raises(ValueError, match="the weights of LlamaForCausalLM are sharded"):
        choose_attention(model, PLAN)
    with pytest.warns(UserWarning, match="attention='varlen' may mix packed samples"):
        assert choose_attention(model, PLAN, ("varlen",)) == "varlen"
    zeros = create_model("llama")
    for weight in zeros.parameters():
        torch.nn.init.zeros_(weight)
    with pytest.raises(ValueError, match="LlamaForCausalLM ignores the context of a token"):
        choose_attention(zeros, PLAN)


def test_plan_without_packing_needs_no_separation() -> None:
    plan = BatchPlanBuilder({"a": 4}, BatchingConfig.throughput(8)).build()
    model = create_model("mamba2")
    assert choose_attention(model, plan) == "positions"
    with pytest.raises(ValueError, match="varlen: leaks"):
        choose_attention(model, plan, ("varlen",))


def compute_flash_attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, position_ids: Any = None, **_: Any
) -> tuple[Any, None]:
    """Compute causal attention with the boundaries that `transformers` passes to FlashAttention."""
    assert attention_mask is None
    ends = [query.shape[2]]
    if _is_packed_sequence(position_ids, query.shape[0]):
        (boundaries, _), _ = prepare_fa_kwargs_from_position_ids(position_ids)
        ends = boundaries[1:].tolist()
    parts = []
    for start, end in zip([0, *ends], ends, strict=False):
        q, k, v = (x[:, :, start:end] for x in (query, key, value))
        parts.append(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
    return torch.cat(parts, 2).transpose(1, 2), None


def create_flash_model(family: str) -> Any:
    transformers.AttentionInterface.register("varlen_reference", compute_flash_attention)
    transformers.AttentionMaskInterface.register("varlen_reference", flash_attention_mask)
    return create_model(family, "varlen_reference")


@pytest.mark.parametrize("family", [*POSITIONS, "gpt_oss", "opt"])
def test_flash_attention_needs_varlen(family: str) -> None:
    model = create_flash_model(family)
    assert leaks(model, "positions") and not leaks(model, "varlen")
    assert choose_attention(model, PLAN) == "varlen"
    with pytest.raises(ValueError, match=r"attn_implementation='varlen_reference' .* \(positions: leaks\)"):
        choose_attention(model, PLAN, ("positions",))


class PlanTrainer(PlanTrainerMixin, transformers.Trainer):
    """A trainer that trains on the batches of a plan."""


def create_trainer(folder: Path, model: Any, attention: Any = None) -> PlanTrainer:
    samples = {name: {"input_ids": list(range(LENGTH))} for name in "abcd"}
    args = transformers.TrainingArguments(
        output_dir=str(folder), report_to="none", disable_tqdm=True, use_cpu=True, save_strategy="no"
    )
    batches = PlanDataset(PLAN, samples, all_epochs=True, attention=attention)
    return PlanTrainer(model=model, args=args, batches=batches)


@pytest.mark.parametrize("attention", FORMATS)
def test_trainer_chooses_the_attention_format_for_its_model(tmp_path: Path, attention: str) -> None:
    create = {"positions": create_model, "varlen": create_flash_model, "mask": create_model}[attention]
    trainer = create_trainer(tmp_path, create("opt" if attention == "mask" else "llama"))
    assert trainer.batches.attention == attention
    trainer.train()
    assert trainer.state.global_step == 1


def test_trainer_rejects_a_leak(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Mamba2ForCausalLM .* build the plan without packing"):
        create_trainer(tmp_path, create_model("mamba2"))
    with pytest.raises(ValueError, match=r"OPTForCausalLM .* \(positions: leaks\); use attention="):
        create_trainer(tmp_path, create_model("opt"), "positions")
