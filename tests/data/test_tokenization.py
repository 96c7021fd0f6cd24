"""Tokenization of conversations, prompts, texts and preference pairs with a loss mask."""

import json
from pathlib import Path

import pytest
import tokenizers

from phalanx.data import (
    ByteTokenizer,
    ChatTemplate,
    TokenizeConfig,
    TokenizeStats,
    iter_lengths,
    load_chat_template,
    load_tokenizer,
    tokenize_rows,
)

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>\n{% endgeneration %}"
    "{% else %}{{ message.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "two and two"},
    {"role": "assistant", "content": "four"},
    {"role": "user", "content": "and one"},
    {"role": "assistant", "content": "five, of course"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Save a small byte-level BPE tokenizer with the special tokens of ChatML and a chat template."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=special,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([message["content"] for message in MESSAGES] * 3, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "eos_token": "</s>", "bos_token": {"content": "<s>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def loss_text(sample, tokenizer) -> str:
    """Decode the tokens in the loss, including special tokens."""
    inner = tokenizer._tokenizer
    kept = [t for t, m in zip(sample.input_ids, sample.loss_mask, strict=True) if m]
    return inner.decode([int(t) for t in kept], skip_special_tokens=False)


def tokenize_row(row, tokenizer, chat=None, **settings):
    (sample,) = tokenize_rows([row], tokenizer, TokenizeConfig(**settings), chat=chat)
    return sample


def test_assistant_mask_equals_that_of_transformers(folder: Path):
    transformers = pytest.importorskip("transformers")
    tokenizer, chat = load_tokenizer(folder), load_chat_template(folder)
    sample = tokenize_row({"messages": MESSAGES}, tokenizer, chat)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    theirs.chat_template = TEMPLATE
    expected = theirs.apply_chat_template(
        MESSAGES, return_dict=True, return_assistant_tokens_mask=True, tokenize=True
    )
    assert sample.input_ids.tolist() == expected["input_ids"]
    assert sample.loss_mask.tolist() == expected["assistant_masks"]


def test_loss_setting_selects_the_turns(folder: Path):
    tokenizer, chat = load_tokenizer(folder), load_chat_template(folder)
    row = {"messages": MESSAGES}
    turns = ["four<|im_end|>\n", "five, of course<|im_end|>\n"]
    assert loss_text(tokenize_row(row, tokenizer, chat), tokenizer) == "".join(turns)
    assert loss_text(tokenize_row(row, tokenizer, chat, loss_tokens="last_turn"), tokenizer) == turns[1]
    assert all(tokenize_row(row, tokenizer, chat, loss_tokens="all").loss_mask)
    shared = {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}
    assert loss_text(tokenize_row(shared, tokenizer, chat), tokenizer) == "ho<|im_end|>\n"


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "two and", "completion": " two"},
        {"prompt": "two and", "response": " two"},
        {"question": "two and", "answer": " two"},
        {"instruction": "two", "input": "and", "output": " two"},
    ],
)
def test_completion_and_eos_are_in_the_loss(folder: Path, row):
    tokenizer = load_tokenizer(folder)
    assert loss_text(tokenize_row(row, tokenizer), tokenizer) == " two</s>"
    sample = tokenize_row(row, tokenizer, add_eos=False, add_bos=True)
    assert loss_text(sample, tokenizer) == " two" and sample.input_ids[0] == tokenizer.bos_token_id
    assert sample.loss_mask[0] == 0


def test_prompts_and_preferences_can_be_messages(folder: Path):
    tokenizer, chat = load_tokenizer(folder), load_chat_template(folder)
    row = {"prompt": MESSAGES[:4], "completion": MESSAGES[4:]}
    assert loss_text(tokenize_row(row, tokenizer, chat), tokenizer) == "five, of course<|im_end|>\n"
    bad = [{"role": "assistant", "content": "six"}]
    for pair in (
        {"id": "p", "prompt": MESSAGES[:4], "chosen": MESSAGES[4:], "rejected": bad},
        {"id": "p", "chosen": MESSAGES, "rejected": MESSAGES[:4] + bad},
        {"id": "p", "prompt": MESSAGES[:4], "chosen": MESSAGES, "rejected": MESSAGES[:4] + bad},
    ):
        chosen, rejected = tokenize_rows([pair], tokenizer, chat=chat)
        assert (chosen.sample_id, rejected.sample_id) == ("p/chosen", "p/rejected")
        assert loss_text(chosen, tokenizer) == "five, of course<|im_end|>\n"
        assert loss_text(rejected, tokenizer) == "six<|im_end|>\n"
    texts = list(tokenize_rows([{"prompt": "a", "chosen": " b", "rejected": " c"}], tokenizer))
    assert [loss_text(sample, tokenizer) for sample in texts] == [" b</s>", " c</s>"]


def test_labels_become_the_loss_mask():
    row = {"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}
    assert tokenize_row(row, ByteTokenizer()).loss_mask.tolist() == [0, 1, 1]
    with pytest.raises(ValueError, match=r"row 0: labels\[1\] must be its token or -100, got 9"):
        tokenize_row({"input_ids": [5, 6], "labels": [5, 9]}, ByteTokenizer())


@pytest.mark.parametrize(("truncation", "expected"), [("right", "abcd"), ("left", "cdef"), ("skip", None)])
def test_truncation_setting_is_applied_to_long_samples(truncation: str, expected: str | None):
    stats = TokenizeStats()
    config = TokenizeConfig(max_length=4, truncation=truncation, add_eos=False)
    rows = [{"id": "x", "text": "abcdef"}, {"id": "y", "text": "mn"}]
    found = {
        sample.sample_id: ByteTokenizer().decode(sample.input_ids.tolist())
        for sample in tokenize_rows(rows, ByteTokenizer(), config, stats=stats)
    }
    assert found == ({"y": "mn"} if expected is None else {"x": expected, "y": "mn"})
    assert (stats.truncated, stats.skipped) == ((0, ["x"]) if expected is None else (1, []))


def test_drop_turns_removes_the_oldest_turns(folder: Path):
    tokenizer, chat = load_tokenizer(folder), load_chat_template(folder)
    stats = TokenizeStats()
    short = tokenize_row({"messages": [MESSAGES[0], *MESSAGES[3:]]}, tokenizer, chat)
    config = TokenizeConfig(max_length=short.length, truncation="drop_turns")
    (sample,) = tokenize_rows([{"messages": MESSAGES}], tokenizer, config, chat=chat, stats=stats)
    assert sample.input_ids.tolist() == short.input_ids.tolist() and stats.truncated == 1
    tiny = TokenizeConfig(max_length=4, truncation="drop_turns")
    assert list(tokenize_rows([{"messages": MESSAGES}], tokenizer, tiny, chat=chat, stats=stats)) == []
    assert stats.skipped == ["0"]


def test_sample_without_loss_tokens_is_skipped():
    stats = TokenizeStats()
    config = TokenizeConfig(max_length=3, truncation="right")
    row = {"prompt": "abcdef", "completion": "g"}
    assert list(tokenize_rows([row], ByteTokenizer(), config, stats=stats)) == []
    assert stats.skipped == ["0"]


@pytest.mark.parametrize("loss_tokens", ["auto", "assistant", "last_turn"])
def test_conversation_without_assistant_turn_is_skipped(folder: Path, loss_tokens: str):
    tokenizer, chat, stats = load_tokenizer(folder), load_chat_template(folder), TokenizeStats()
    rows = [{"messages": MESSAGES[:2]}, {"messages": MESSAGES}]
    samples = list(
        tokenize_rows(rows, tokenizer, TokenizeConfig(loss_tokens=loss_tokens), chat=chat, stats=stats)
    )
    assert [sample.sample_id for sample in samples] == ["1"]
    assert (stats.samples, stats.skipped) == (1, ["0"])


@pytest.mark.parametrize(
    ("row", "settings", "message"),
    [
        (
            {"text": "abc"},
            {"max_length": 2},
            "row 0: the sample has 4 tokens, more than max_length 2",
        ),
        (
            {"text": "abc"},
            {"loss_tokens": "last_turn"},
            "row 0: a text has no turns for loss_tokens='last_turn'; use loss_tokens='all'",
        ),
        ({"body": "abc"}, {}, "row 0: the row needs a text in 'text'; it has body. .*messages"),
        (
            {"text": "abc"},
            {"format": "chat"},
            "row 0: a chat row needs messages or conversations or conversation",
        ),
        ({"text": "abc"}, {"format": "prompt_completion"}, "the row needs prompt and completion"),
        (
            {"chosen": "a"},
            {"format": "preference"},
            "row 0: a preference row needs chosen and rejected; it has chosen",
        ),
        ({"messages": MESSAGES}, {}, "conversations need a chat template"),
        ({"messages": "hello"}, {}, "expected a list of messages"),
        ({"messages": [{"role": "user"}]}, {}, "message 0 must have role and content"),
        (
            {"messages": [{"role": "u", "content": [{"type": "image"}]}]},
            {},
            "row 0: message 0 has content that is not text, which is not supported",
        ),
        ({"prompt": "a", "completion": MESSAGES}, {}, "must both be texts, or both lists of messages"),
    ],
)
def test_invalid_row_is_reported(row, settings, message: str):
    with pytest.raises(ValueError, match=message):
        tokenize_row(row, ByteTokenizer(), **settings)


def test_invalid_loss_tokens_are_rejected():
    with pytest.raises(ValueError, match="'assistant' or 'last_turn'"):
        TokenizeConfig(loss_tokens="last")


def test_invalid_templates_are_reported(tmp_path: Path):
    with pytest.raises(ValueError, match="the tokenizer bytes has no chat template"):
        load_chat_template("bytes")
    with pytest.raises(FileNotFoundError, match="there is no chat template nowhere"):
        load_chat_template("bytes", "nowhere.jinja")
    with pytest.raises(ValueError, match="not valid Jinja"):
        ChatTemplate("{% for %}").render(MESSAGES)
    rejecting = ChatTemplate("{{ raise_exception('no system turns') }}")
    with pytest.raises(ValueError, match="rejects these messages: no system turns"):
        rejecting.render(MESSAGES)
    inconsistent = ChatTemplate("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(ValueError, match="loss_tokens='last_turn'"):
        inconsistent.render_with_spans(MESSAGES, [2])
    path = tmp_path / "own.jinja"
    path.write_text("{% for m in messages %}{{ m.content }};{% endfor %}")
    text, spans = load_chat_template("bytes", path).render_with_spans(MESSAGES, [2, 4])
    assert [text[a:b] for a, b in spans] == ["four;", "five, of course;"]


def test_rows_can_be_files_lists_or_datasets(tmp_path: Path):
    datasets = pytest.importorskip("datasets")
    rows = [{"prompt": "ab", "completion": text} for text in ("x", "yz", "é")]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:2]))
    dataset = datasets.Dataset.from_list(rows)
    dataset.select([2]).to_parquet(tmp_path / "b.parquet")
    sources = [
        rows,
        [tmp_path / "a.jsonl", tmp_path / "b.parquet"],
        tmp_path,
        dataset,
        dataset.to_iterable_dataset(),
    ]
    found = [list(tokenize_rows(source, ByteTokenizer())) for source in sources]
    assert [sample.loss_mask.tolist() for sample in found[0]] == [
        [0, 0, 1, 1],
        [0, 0, 1, 1, 1],
        [0, 0, 1, 1, 1],
    ]
    assert all(samples == found[0] for samples in found)
    (tmp_path / "lines.txt").write_text("one\n\ntwo\n")
    texts = list(tokenize_rows(tmp_path / "lines.txt", ByteTokenizer(), TokenizeConfig(add_eos=False)))
    assert [ByteTokenizer().decode(sample.input_ids.tolist()) for sample in texts] == ["one", "two"]
    with pytest.raises(TypeError, match="choose one of the splits train"):
        list(tokenize_rows(datasets.DatasetDict(train=dataset), ByteTokenizer()))


def test_eos_of_the_byte_tokenizer_has_an_empty_span():
    ((ids, spans),) = ByteTokenizer(add_special_tokens=True).encode_with_offsets(["é!"])
    assert spans == [(0, 1), (0, 1), (1, 2), (2, 2)] and len(ids) == 4


@pytest.mark.parametrize("add_eos", [None, True, False])
def test_counted_lengths_include_the_end_token_that_is_added(
    folder: Path, tmp_path: Path, add_eos: bool | None
) -> None:
    path, config = tmp_path / "texts.jsonl", TokenizeConfig(add_eos=add_eos)
    path.write_text('{"text": "two and two"}\n{"text": "four</s>"}\n')
    tokenizer = load_tokenizer(folder)
    samples = list(tokenize_rows(path, tokenizer, config))
    assert [sample.input_ids[-1] == tokenizer.eos_token_id for sample in samples] == [
        add_eos is not False,
        True,
    ]
    ((ids, lengths),) = iter_lengths(path, tokenizer, config, workers=1)
    assert (ids, lengths) == (["0", "1"], [sample.length for sample in samples])


def test_hash_starts_with_the_tokenizer_and_depends_on_the_added_tokens() -> None:
    tokenizer = ByteTokenizer()
    plain = TokenizeConfig().tokenizer_hash(tokenizer)
    assert plain == TokenizeConfig(format="prompt_completion").tokenizer_hash(tokenizer)
    assert plain == tokenizer.tokenizer_hash
    found = {TokenizeConfig(add_eos=value).tokenizer_hash(tokenizer) for value in (None, True, False)}
    assert len(found) == 3 and all(value.partition("-")[0] == plain for value in found)
