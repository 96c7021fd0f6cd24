"""`phalanx data lengths`: counts, output and error messages."""

import json
from pathlib import Path

import pytest

from phalanx.data import ByteTokenizer


@pytest.fixture(autouse=True)
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four texts of 1, 2, 3 and 10 bytes. Each has one token more, which ends the text."""
    monkeypatch.chdir(tmp_path)
    rows = [{"id": name, "text": "x" * size} for name, size in (("a", 1), ("b", 2), ("c", 3), ("d", 10))]
    Path("train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def build(phalanx, *more: object):
    return phalanx("data", "lengths", "build", "--dataset", "train.jsonl", "--output", "lengths.jsonl", *more)


def test_all_samples_are_counted_and_the_tokenizer_is_shown(phalanx):
    result = build(phalanx)
    assert (result.code, result.err) == (0, "")
    assert result.out == "lengths.jsonl: 4 samples, 20 tokens (bytes)\n"
    lines = [json.loads(line) for line in Path("lengths.jsonl").read_text().splitlines()]
    assert [(line["sample_id"], line["length"]) for line in lines] == [
        ("a", 2),
        ("b", 3),
        ("c", 4),
        ("d", 11),
    ]
    assert {line["tokenizer_hash"] for line in lines} == {ByteTokenizer().tokenizer_hash}


def test_files_of_different_formats_are_counted_in_order(phalanx):
    Path("more.txt").write_text("four\n\nfives\n")
    result = phalanx("data", "lengths", "build", "train.jsonl", "more.txt", "-o", "lengths.jsonl")
    assert (result.code, result.err) == (0, "")
    assert result.out == "lengths.jsonl: 6 samples, 31 tokens (bytes)\n"
    lines = [json.loads(line) for line in Path("lengths.jsonl").read_text().splitlines()]
    assert [(line["sample_id"], line["length"]) for line in lines[3:]] == [("d", 11), ("4", 5), ("5", 6)]
    result = phalanx("data", "lengths", "build", "-o", "lengths.jsonl")
    assert result.code == 2 and result.err.startswith("phalanx: no files to read")


def test_json_contains_the_same_values(phalanx):
    assert json.loads(build(phalanx, "--json").out) == {
        "output": "lengths.jsonl",
        "samples": 4,
        "tokens": 20,
        "tokenizer": "bytes",
        "tokenizer_hash": ByteTokenizer().tokenizer_hash,
        "num_skipped": 0,
        "skipped": [],
    }


def test_second_build_only_adds_new_samples(phalanx):
    build(phalanx)
    before = Path("lengths.jsonl").read_bytes()
    assert build(phalanx).code == 0
    assert Path("lengths.jsonl").read_bytes() == before
    with Path("train.jsonl").open("a") as file:
        file.write('{"id": "e", "text": "xx"}\n')
    assert build(phalanx).out == "lengths.jsonl: 5 samples, 23 tokens (bytes)\n"
    assert Path("lengths.jsonl").read_bytes().startswith(before)


def test_suffix_selects_the_binary_format(phalanx):
    phalanx("data", "lengths", "build", "--dataset", "train.jsonl", "--output", "lengths.npz")
    result = phalanx("data", "lengths", "stats", "--cache", "lengths.npz", "--json")
    assert json.loads(result.out)["total_tokens"] == 20


def test_stats_show_sample_lengths(phalanx):
    build(phalanx)
    assert phalanx("data", "lengths", "stats", "--cache", "lengths.jsonl").out.splitlines() == [
        "cache      lengths.jsonl",
        f"tokenizer  {ByteTokenizer().tokenizer_hash}",
        "samples    4",
        "tokens     20",
        "shortest   2",
        "mean       5.0",
        "deviation  3.5",
        "longest    11",
        "p25        2",
        "p50        3",
        "p75        4",
        "p90        11",
        "p95        11",
        "p99        11",
    ]
    figures = json.loads(phalanx("data", "lengths", "stats", "--cache", "lengths.jsonl", "--json").out)
    assert (figures["min_length"], figures["p75"], figures["max_length"]) == (2, 4, 11)


def test_invalid_row_is_reported_with_file_and_line(phalanx):
    with Path("train.jsonl").open("a") as file:
        file.write('{"id": "a", "text": "again"}\n')
    result = build(phalanx)
    assert (result.code, result.out) == (2, "")
    assert result.err == "phalanx: train.jsonl:5: sample id 'a' is already used at train.jsonl:1\n"


def test_negative_length_in_a_cache_is_reported_with_its_line(phalanx):
    build(phalanx)
    text = Path("lengths.jsonl").read_text().replace('"length":4', '"length":-3')
    Path("lengths.jsonl").write_text(text)
    result = phalanx("data", "lengths", "stats", "--cache", "lengths.jsonl")
    assert (result.code, result.out) == (2, "")
    assert result.err == "phalanx: lengths.jsonl:3: length must be a positive integer, got -3\n"


def test_truncated_cache_is_reported_with_its_line(phalanx):
    build(phalanx)
    Path("lengths.jsonl").write_bytes(Path("lengths.jsonl").read_bytes()[:-10])
    result = phalanx("data", "lengths", "stats", "--cache", "lengths.jsonl")
    assert result.code == 2
    assert result.err.startswith("phalanx: lengths.jsonl:4: the last line is incomplete")


def test_missing_files_and_empty_cache_are_rejected(phalanx):
    result = phalanx("data", "lengths", "build", "--dataset", "none.jsonl", "--output", "lengths.jsonl")
    assert (result.code, result.err) == (2, "phalanx: there is no dataset none.jsonl\n")
    Path("empty.jsonl").touch()
    result = phalanx("data", "lengths", "stats", "--cache", "empty.jsonl")
    assert result.code == 2
    assert "the length cache is empty" in result.err


def test_cache_of_another_tokenizer_is_rejected(phalanx):
    Path("lengths.jsonl").write_text('{"sample_id":"a","tokenizer_hash":"other","length":7}\n')
    result = build(phalanx)
    assert result.code == 2
    assert result.err.startswith("phalanx: lengths.jsonl:1: counted with tokenizer 'other'")
    assert Path("lengths.jsonl").read_text().count("\n") == 1


CHATS = [
    [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}],
    [{"role": "user", "content": "3 + 3?"}, {"role": "assistant", "content": "It is 6."}],
]


def write_chats(tokenizer: Path) -> None:
    """Write `chats.jsonl`, and a byte-level tokenizer that has a chat template."""
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("transformers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.models.BPE({token: index for index, token in enumerate(alphabet)}, [])
    created = tokenizers.Tokenizer(model)
    created.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.mkdir()
    created.save(str(tokenizer / "tokenizer.json"))
    template = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
    (tokenizer / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    Path("chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in CHATS))


def build_chats(phalanx, *more: object):
    return phalanx("data", "lengths", "build", "chats.jsonl", "--output", "chats-lengths.jsonl", *more)


def test_conversations_are_counted_with_the_chat_template_of_the_tokenizer(phalanx):
    write_chats(Path("tiny"))
    assert build_chats(phalanx, "--tokenizer", "tiny").err == ""
    lines = [json.loads(line) for line in Path("chats-lengths.jsonl").read_text().splitlines()]
    expected = [len("[user]2 + 2?[assistant]4"), len("[user]3 + 3?[assistant]It is 6.")]
    assert [line["length"] for line in lines] == expected
    plan = ("--lengths", "chats-lengths.jsonl", "--output", "chats.plan")
    assert phalanx("data", "plan", "build", *plan).code == 0
    export = ("--plan", "chats.plan", "--dataset", "chats.jsonl", "--output", "batches")
    assert phalanx("data", "export", *export, "--tokenizer", "tiny").err == ""


def test_chat_template_can_be_set(phalanx):
    write_chats(Path("tiny"))
    result = build_chats(phalanx)
    assert result.code != 0 and "bytes has no chat template" in result.err
    assert build_chats(phalanx, "--format", "chat", "--chat-template", "chatml").err == ""
    lines = [json.loads(line) for line in Path("chats-lengths.jsonl").read_text().splitlines()]
    text = "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n"
    assert lines[0]["length"] == len(text)


def test_chat_template_does_not_change_the_hash_of_texts(phalanx):
    write_chats(Path("tiny"))
    with_template = json.loads(build(phalanx, "--tokenizer", "tiny", "--json").out)
    Path("tiny/tokenizer_config.json").unlink()
    without = json.loads(build(phalanx, "--tokenizer", "tiny", "--json").out)
    assert with_template["tokenizer_hash"] == without["tokenizer_hash"]


def test_skipped_samples_are_listed_with_the_reason(phalanx):
    rows = [{"id": f"s{n}", "prompt": "1 + 1 = ", "completion": "" if n < 4 else "2"} for n in range(6)]
    Path("train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert build(phalanx).out == (
        "lengths.jsonl: 2 samples, 20 tokens (bytes)\n"
        "skipped: 4 samples without tokens that count toward the loss: s0, s1, s2 "
        "and 1 more (--json lists all)\n"
    )
    found = json.loads(build(phalanx, "--json").out)
    assert (found["samples"], found["num_skipped"]) == (2, 4)
    assert found["skipped"] == [
        {"sample_id": f"s{n}", "reason": "without tokens that count toward the loss"} for n in range(4)
    ]
