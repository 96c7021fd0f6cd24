"""Conversations, prompts, texts and preference pairs as tokens with a loss mask."""

import json
from pathlib import Path

import pytest
import tokenizers

from phalanx.data import (
    ByteTokenizer,
    ChatTemplate,
    TokenizeConfig,
    TokenizeStats,
    load_chat_template,
    load_tokenizer,
    tokenize_rows,
)

GENERATION = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>\n{% endgeneration %}"
    "{% else %}{{ message.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TALK = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "two and two"},
    {"role": "assistant", "content": "four"},
    {"role": "user", "content": "and one"},
    {"role": "assistant", "content": "five, of course"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A byte-level BPE of a few merges, with ChatML's special tokens and a template."""
    folder = tmp_path_factory.mktemp("tokenizer")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=special,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([message["content"] for message in TALK] * 3, trainer)
    made.save(str(folder / "tokenizer.json"))
    config = {"chat_template": GENERATION, "eos_token": "</s>", "bos_token": {"content": "<s>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def learned(sample, tokenizer) -> str:
    """The text of the tokens that carry loss, special ones by name."""
    inner = tokenizer._tokenizer
    kept = [t for t, m in zip(sample.input_ids, sample.loss_mask, strict=True) if m]
    return inner.decode([int(t) for t in kept], skip_special_tokens=False)


def one(row, tokenizer, chat=None, **settings):
    (sample,) = tokenize_rows([row], tokenizer, TokenizeConfig(**settings), chat=chat)
    return sample


def test_the_assistants_turns_are_learned_as_transformers_marks_them(folder: Path):
    transformers = pytest.importorskip("transformers")
    tokenizer, chat = load_tokenizer(folder), load_chat_template(folder)
    sample = one({"messages": TALK}, tokenizer, chat)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    theirs.chat_template = GENERATION
    expected = theirs.apply_chat_template(
        TALK, return_dict=True, return_assistant_tokens_mask=True, tokenize=True
    )
    assert sample.input_ids.tolist() == expected["input_ids"]
    assert sample.loss_mask.tolist() == expected["assistant_masks"]


def test_what_is_learned_is_a_choice(folder: Path):
    tokenizer, chat = load_tokenizer(folder), load_chat_template(folder)
    row = {"messages": TALK}
    turns = ["four<|im_end|>\n", "five, of course<|im_end|>\n"]
    assert learned(one(row, tokenizer, chat), tokenizer) == "".join(turns)
    assert learned(one(row, tokenizer, chat, loss="last_turn"), tokenizer) == turns[1]
    assert all(one(row, tokenizer, chat, loss="all").loss_mask)
    shared = {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}
    assert learned(one(shared, tokenizer, chat), tokenizer) == "ho<|im_end|>\n"


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "two and", "completion": " two"},
        {"prompt": "two and", "response": " two"},
        {"question": "two and", "answer": " two"},
        {"instruction": "two", "input": "and", "output": " two"},
    ],
)
def test_of_a_prompt_the_completion_is_learned_and_it_ends(folder: Path, row):
    tokenizer = load_tokenizer(folder)
    assert learned(one(row, tokenizer), tokenizer) == " two</s>"
    sample = one(row, tokenizer, add_eos=False, add_bos=True)
    assert learned(sample, tokenizer) == " two" and sample.input_ids[0] == tokenizer.bos_token_id
    assert sample.loss_mask[0] == 0


def test_prompts_and_preferences_may_be_messages(folder: Path):
    tokenizer, chat = load_tokenizer(folder), load_chat_template(folder)
    row = {"prompt": TALK[:4], "completion": TALK[4:]}
    assert learned(one(row, tokenizer, chat), tokenizer) == "five, of course<|im_end|>\n"
    bad = [{"role": "assistant", "content": "six"}]
    for pair in (
        {"id": "p", "prompt": TALK[:4], "chosen": TALK[4:], "rejected": bad},
        {"id": "p", "chosen": TALK, "rejected": TALK[:4] + bad},
        {"id": "p", "prompt": TALK[:4], "chosen": TALK, "rejected": TALK[:4] + bad},
    ):
        chosen, rejected = tokenize_rows([pair], tokenizer, chat=chat)
        assert (chosen.sample_id, rejected.sample_id) == ("p/chosen", "p/rejected")
        assert learned(chosen, tokenizer) == "five, of course<|im_end|>\n"
        assert learned(rejected, tokenizer) == "six<|im_end|>\n"
    texts = list(tokenize_rows([{"prompt": "a", "chosen": " b", "rejected": " c"}], tokenizer))
    assert [learned(sample, tokenizer) for sample in texts] == [" b</s>", " c</s>"]


def test_tokens_bring_their_labels():
    row = {"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}
    assert one(row, ByteTokenizer()).loss_mask.tolist() == [0, 1, 1]
    with pytest.raises(ValueError, match=r"row 0: labels\[1\] must be its token or -100, got 9"):
        one({"input_ids": [5, 6], "labels": [5, 9]}, ByteTokenizer())


@pytest.mark.parametrize(("truncation", "expected"), [("right", "abcd"), ("left", "cdef"), ("skip", None)])
def test_long_samples_are_cut_by_choice(truncation: str, expected: str | None):
    counts = TokenizeStats()
    config = TokenizeConfig(max_length=4, truncation=truncation, add_eos=False)
    rows = [{"id": "x", "text": "abcdef"}, {"id": "y", "text": "mn"}]
    found = {
        sample.sample_id: ByteTokenizer().decode(sample.input_ids.tolist())
        for sample in tokenize_rows(rows, ByteTokenizer(), config, stats=counts)
    }
    assert found == ({"y": "mn"} if expected is None else {"x": expected, "y": "mn"})
    assert (counts.truncated, counts.skipped) == ((0, ["x"]) if expected is None else (1, []))


def test_the_oldest_turns_can_be_left_out(folder: Path):
    tokenizer, chat = load_tokenizer(folder), load_chat_template(folder)
    counts = TokenizeStats()
    short = one({"messages": [TALK[0], *TALK[3:]]}, tokenizer, chat)
    config = TokenizeConfig(max_length=short.length, truncation="drop_turns")
    (sample,) = tokenize_rows([{"messages": TALK}], tokenizer, config, chat=chat, stats=counts)
    assert sample.input_ids.tolist() == short.input_ids.tolist() and counts.truncated == 1
    tiny = TokenizeConfig(max_length=4, truncation="drop_turns")
    assert list(tokenize_rows([{"messages": TALK}], tokenizer, tiny, chat=chat, stats=counts)) == []
    assert counts.skipped == ["0"]


def test_a_sample_with_nothing_left_to_learn_is_left_out():
    counts = TokenizeStats()
    config = TokenizeConfig(max_length=3, truncation="right")
    row = {"prompt": "abcdef", "completion": "g"}
    assert list(tokenize_rows([row], ByteTokenizer(), config, stats=counts)) == []
    assert counts.skipped == ["0"]


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
            {"loss": "last_turn"},
            "row 0: a text has no turns for loss='last_turn'; use loss='all'",
        ),
        ({"body": "abc"}, {}, "row 0: the row needs a text in 'text'; it has body"),
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
        ({"messages": TALK}, {}, "conversations need a chat template"),
        ({"messages": "hello"}, {}, "expected a list of messages"),
        ({"messages": [{"role": "user"}]}, {}, "message 0 must have role and content"),
        (
            {"messages": [{"role": "u", "content": [{"type": "image"}]}]},
            {},
            "row 0: message 0 has content that is not text, which is not supported",
        ),
        ({"prompt": "a", "completion": TALK}, {}, "must both be texts, or both lists of messages"),
    ],
)
def test_what_is_wrong_with_a_row_is_said(row, settings, message: str):
    with pytest.raises(ValueError, match=message):
        one(row, ByteTokenizer(), **settings)


def test_templates_that_cannot_serve_say_so(tmp_path: Path):
    with pytest.raises(ValueError, match="the tokenizer bytes has no chat template"):
        load_chat_template("bytes")
    with pytest.raises(FileNotFoundError, match="there is no chat template nowhere"):
        load_chat_template("bytes", "nowhere.jinja")
    with pytest.raises(ValueError, match="not valid Jinja"):
        ChatTemplate("{% for %}").render(TALK)
    refusing = ChatTemplate("{{ raise_exception('no system turns') }}")
    with pytest.raises(ValueError, match="rejects these messages: no system turns"):
        refusing.render(TALK)
    forgetful = ChatTemplate("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(ValueError, match="loss='last_turn'"):
        forgetful.render_with_spans(TALK, [2])
    path = tmp_path / "own.jinja"
    path.write_text("{% for m in messages %}{{ m.content }};{% endfor %}")
    text, spans = load_chat_template("bytes", path).render_with_spans(TALK, [2, 4])
    assert [text[a:b] for a, b in spans] == ["four;", "five, of course;"]


def test_rows_come_from_files_lists_and_datasets(tmp_path: Path):
    datasets = pytest.importorskip("datasets")
    rows = [{"prompt": "ab", "completion": text} for text in ("x", "yz", "é")]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:2]))
    made = datasets.Dataset.from_list(rows)
    made.select([2]).to_parquet(tmp_path / "b.parquet")
    sources = [
        rows,
        [tmp_path / "a.jsonl", tmp_path / "b.parquet"],
        tmp_path,
        made,
        made.to_iterable_dataset(),
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
        list(tokenize_rows(datasets.DatasetDict(train=made), ByteTokenizer()))


def test_the_end_of_a_byte_text_is_nowhere_in_it():
    ((ids, spans),) = ByteTokenizer(add_special_tokens=True).encode_with_offsets(["é!"])
    assert spans == [(0, 1), (0, 1), (1, 2), (2, 2)] and len(ids) == 4
