"""Chat templates give the tokens and masks of `apply_chat_template`, for all templates that TRL ships."""

import json
from pathlib import Path

import pytest

from phalanx.data import ChatTemplate, TokenizeConfig, load_tokenizer, tokenize_rows

transformers = pytest.importorskip("transformers")
trl = pytest.importorskip("trl")
tokenizers = pytest.importorskip("tokenizers")

FOLDER = Path(trl.__file__).parent / "chat_templates"
TEMPLATES = sorted(FOLDER.glob("*.jinja"))
CHAT = [
    {"role": "user", "content": "two and two"},
    {"role": "assistant", "content": "four"},
    {"role": "user", "content": "and one"},
    {"role": "assistant", "content": "five, of course"},
]
STRUCTURED_CONTENT = {"llava_next", "llava_next_training"}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=[*SPECIAL.values(), "<|im_start|>", "<|im_end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([message["content"] for message in CHAT] * 3, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(SPECIAL))
    return folder


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_tokens_and_masks_equal_those_of_transformers(folder: Path, path: Path):
    source = path.read_text(encoding="utf-8")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **SPECIAL)
    has_mask = "generation" in source and "endgeneration" in source
    # Templates of multimodal models need contents as lists of parts.
    parts = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in CHAT]
    messages = parts if path.stem in STRUCTURED_CONTENT else CHAT
    expected = theirs.apply_chat_template(
        messages, chat_template=source, return_dict=True, return_assistant_tokens_mask=has_mask
    )
    config = TokenizeConfig(format="chat", loss_tokens="auto" if has_mask else "all")
    chat = ChatTemplate(source, SPECIAL)
    (sample,) = tokenize_rows([{"messages": messages}], load_tokenizer(folder), config, chat=chat)
    assert sample.input_ids.tolist() == expected["input_ids"]
    if has_mask:
        assert sample.loss_mask.tolist() == expected["assistant_masks"]


def test_at_least_70_templates_are_compared():
    assert len(TEMPLATES) >= 70
