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


TOOL_CALL = {
    "role": "assistant",
    "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}],
}
CALLS = "{% for call in message.tool_calls %}<{{ call.function.name }}>{% endfor %}"
SMALL_TEMPLATES = {
    "prints": "[{{ message['content'] | trim }}]" + CALLS,
    "tests the key": "[{% if 'content' in message %}{{ message['content'] | length }}{% endif %}]" + CALLS,
    "rejects null": "[{% if message.content is defined and message.content is not string %}"
    "{{ raise_exception('not a text') }}{% endif %}{{ message.content }}]" + CALLS,
    "tests for null": "[{% if message['content'] is none %}]" + CALLS + "{% else %}"
    "{{ message['content'] + ']' }}{% endif %}",
}


def render_tool_call(folder: Path, chat: ChatTemplate, content: dict[str, str | None]) -> str:
    """Return the text that is trained on for a conversation with a tool call."""
    result = {"role": "tool", "name": "add", "content": "4"}
    row = {"messages": [CHAT[0], TOOL_CALL | content, result, CHAT[1]]}
    tokenizer, config = load_tokenizer(folder), TokenizeConfig(format="chat", loss_tokens="all")
    (sample,) = tokenize_rows([row], tokenizer, config, chat=chat)
    return tokenizer.decode(sample.input_ids.tolist())


@pytest.mark.parametrize("content", [{}, {"content": None}], ids=["missing", "null"])
@pytest.mark.parametrize("template", SMALL_TEMPLATES)
def test_tool_call_without_content_has_no_text(folder: Path, template: str, content: dict[str, None]):
    source = "{% for message in messages %}" + SMALL_TEMPLATES[template] + "{% endfor %}"
    text = "[11][]<add>[1][4]" if template == "tests the key" else "[two and two][]<add>[4][four]"
    assert render_tool_call(folder, ChatTemplate(source, SPECIAL), content) == text


@pytest.mark.parametrize("content", [{}, {"content": None}], ids=["missing", "null"])
@pytest.mark.parametrize("family", ["llama3", "glm4moe", "gptoss", "lfm2_2_5", "qwen3_vl", "qwen2_5_vl"])
def test_tool_call_without_content_equals_one_with_empty_content(
    folder: Path, family: str, content: dict[str, None]
):
    chat = ChatTemplate((FOLDER / f"{family}.jinja").read_text(encoding="utf-8"), SPECIAL)
    assert "None" not in (text := render_tool_call(folder, chat, content))
    assert text == render_tool_call(folder, chat, {"content": ""})


@pytest.mark.parametrize("content", [{}, {"content": None}], ids=["missing", "null"])
def test_template_that_tests_for_null_renders_a_tool_call_without_content(
    folder: Path, content: dict[str, None]
):
    chat = ChatTemplate((FOLDER / "deepseekv3_training.jinja").read_text(encoding="utf-8"), SPECIAL)
    text = render_tool_call(folder, chat, content)
    assert "add" in text and "None" not in text
