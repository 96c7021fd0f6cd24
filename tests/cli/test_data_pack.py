"""`phalanx data pack` with lengths and with tokens."""

import json
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of 3, 4, 1 and 6 bytes, and their lengths."""
    monkeypatch.chdir(tmp_path)
    texts = {"a": "xyz", "b": "pqrs", "c": "m", "d": "uvwxyz"}
    rows = [{"id": name, "text": text} for name, text in texts.items()]
    Path("train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [{"sample_id": n, "tokenizer_hash": "b", "length": len(t)} for n, t in texts.items()]
    Path("lengths.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def pack(phalanx, *arguments: object):
    return phalanx("data", "pack", *arguments)


def test_packs_depend_only_on_lengths(phalanx):
    result = pack(phalanx, "--lengths", "lengths.jsonl", "--max-length", 7, "--output", "packs.jsonl")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == [
        "output         packs.jsonl",
        "num_rows       2",
        "num_samples    4",
        "total_tokens   14",
        "packing_ratio  2.0000",
        "efficiency     1.0000",
    ]
    assert [json.loads(line) for line in Path("packs.jsonl").read_text().splitlines()] == [
        {"pack": 0, "samples": ["c", "d"], "starts": [0, 0], "lengths": [1, 6]},
        {"pack": 1, "samples": ["a", "b"], "starts": [0, 0], "lengths": [3, 4]},
    ]


def test_packed_dataset_has_tokens_segments_and_positions(phalanx):
    options = ["--max-length", 8, "--output", "packs.npz", "--no-add-eos", "--separator", 1, "--json"]
    figures = json.loads(pack(phalanx, "--dataset", "train.jsonl", *options).out)
    assert (figures["num_rows"], figures["separator_tokens"], figures["padding_tokens"]) == (2, 2, 0)
    with np.load("packs.npz") as packs:
        row = packs["segment_samples"].tolist().index("b") // 2
        # "xyz", a separator, "pqrs": bytes are moved up by two.
        assert packs["input_ids"][row].tolist() == [122, 123, 124, 1, 114, 115, 116, 117]
        assert packs["segment_ids"][row].tolist() == [1, 1, 1, 1, 2, 2, 2, 2]
        assert packs["position_ids"][row].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
        assert packs["loss_mask"][row].tolist() == [1] * 8


def test_add_eos_appends_a_token_that_counts_in_the_loss(phalanx):
    options = ["--max-length", 8, "--output", "packs.npz", "--add-eos"]
    assert pack(phalanx, "--dataset", "train.jsonl", *options).code == 0
    with np.load("packs.npz") as packs:
        ends = packs["input_ids"] == 1
        assert ends.sum() == 4 and packs["loss_mask"][ends].all()
        assert sorted(packs["segment_lengths"].tolist()) == [2, 4, 5, 7]
    refused = pack(phalanx, "--dataset", "train.jsonl", *options[:4], "--add-bos")
    assert refused.code == 2 and "the tokenizer has no beginning-of-text token" in refused.err


@pytest.mark.parametrize("mode", ["best_fit_decreasing", "subset_sum", "best_fit", "first_fit", "next_fit"])
def test_each_packing_mode_packs_each_sample_once(phalanx, mode: str):
    options = ["--lengths", "lengths.jsonl", "--max-length", 6, "--mode", mode, "--output", "packs.npz"]
    assert pack(phalanx, *options).code == 0
    with np.load("packs.npz") as packs:
        assert sorted(packs["segment_samples"].tolist()) == ["a", "b", "c", "d"]
        sums = np.add.reduceat(packs["segment_lengths"], packs["pack_offsets"][:-1])
        assert sums.max() <= 6


def test_overlong_sample_is_reported_by_id(phalanx):
    result = pack(phalanx, "--lengths", "lengths.jsonl", "--max-length", 5, "--output", "packs.jsonl")
    assert (result.code, result.out) == (2, "")
    assert "sample 3 ('d') has 6 tokens, more than max_length 5" in result.err
    assert not Path("packs.jsonl").exists()


def test_skipped_overlong_samples_are_listed(phalanx):
    options = ["--lengths", "lengths.jsonl", "--max-length", 5, "--overlong", "skip", "--output", "p.jsonl"]
    assert pack(phalanx, *options).out.splitlines()[-1] == "skipped: 1 samples longer than 5: d"
    assert json.loads(pack(phalanx, *options, "--json").out)["skipped"] == ["d"]


def test_overlong_samples_can_be_split(phalanx):
    options = ["--lengths", "lengths.jsonl", "--max-length", 5, "--overlong", "split", "--output", "p.jsonl"]
    figures = json.loads(pack(phalanx, *options, "--json").out)
    assert (figures["num_samples"], figures["total_tokens"]) == (5, 14)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "p.npz"], "pass files to pack, or --lengths"),
        (
            ["--lengths", "lengths.jsonl", "--dataset", "train.jsonl", "--output", "p.npz"],
            "pass files to pack",
        ),
        (
            ["--dataset", "train.jsonl", "--output", "p.jsonl"],
            "--output must be a folder or a .npz file, got p.jsonl",
        ),
        (["--lengths", "none.jsonl", "--output", "p.npz"], "there is no length cache none.jsonl"),
        (["--lengths", "lengths.jsonl", "--output", "no/p.npz"], "the folder"),
    ],
)
def test_invalid_input_exits_with_one_line_and_code_2(phalanx, arguments: list[str], message: str):
    result = pack(phalanx, *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1


CHAT = [
    {"messages": [{"role": "user", "content": "x" * n}, {"role": "assistant", "content": "yes"}]}
    for n in (1, 9, 4)
]


def test_chat_data_is_packed_into_batch_files(phalanx):
    from phalanx.data import BatchReader, load_batch_plan

    Path("chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in CHAT))
    common = ("--tokenizer", "bytes", "--chat-template", "chatml")
    result = pack(
        phalanx,
        "chat.jsonl",
        *common,
        "--format",
        "chat",
        "--max-length",
        160,
        "--out",
        "packed",
        "--packs-per-batch",
        2,
    )
    assert (result.code, result.err) == (0, "")
    assert "samples      3" in result.out and "loss_tokens  42 per epoch" in result.out
    reader = BatchReader("packed")
    assert reader.verify_fingerprint(load_batch_plan("packed").fingerprint)
    batches = list(reader.iter_epoch(0))
    assert sorted(name for batch in batches for name in batch.spec.sample_ids) == ["0", "1", "2"]
    assert sum(int(batch["loss_mask"].sum()) for batch in batches) == 3 * len("yes<|im_end|>\n")
    assert {batch["input_ids"].shape[1] for batch in batches} == {160}
    for mistake, message in (
        (
            ("chat.jsonl", *common, "--max-length", 40, "--out", "x"),
            "more than max_length 40; choose a truncation",
        ),
        (("chat.jsonl", "--format", "chat", "--out", "x"), "has no chat template"),
        (("chat.jsonl", *common, "--out", "x.jsonl"), "--output must be a folder or a .npz file"),
    ):
        result = pack(phalanx, *mistake)
        assert result.code == 2 and message in result.err


def test_tokenization_settings_are_flags(phalanx):
    Path("p.jsonl").write_text('{"prompt": "abc", "completion": "de"}\n{"prompt": "a", "completion": "b"}\n')
    flags = (
        "--loss-tokens",
        "all",
        "--truncation",
        "skip",
        "--max-length",
        4,
        "--no-add-eos",
        "--epochs",
        2,
        "--seed",
        7,
    )
    result = pack(phalanx, "p.jsonl", "--out", "packed", "--json", *flags)
    assert result.code == 0
    found = json.loads(result.out)
    assert (found["skipped"], found["samples"], found["loss_tokens"], found["batches"]) == (["0"], 1, 2, 2)


def test_old_name_of_an_option_is_rejected_with_the_new_name(phalanx):
    result = pack(phalanx, "train.jsonl", "--loss", "all", "--out", "packed")
    assert result.code == 2 and "--loss-tokens" in result.err and not Path("packed").exists()


def test_conversations_without_assistant_turn_are_skipped_and_counted(phalanx):
    pytest.importorskip("transformers")
    question = {"role": "user", "content": "2 + 2?"}
    answer = {"role": "assistant", "content": "4"}
    chats = [[question], [question, answer]]
    Path("chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    options = ["chats.jsonl", "--chat-template", "chatml", "--max-length", 128]
    found = json.loads(pack(phalanx, *options, "--out", "packed", "--json").out)
    assert (found["samples"], found["skipped"]) == (1, ["0"])
    result = pack(phalanx, *options, "--out", "packed.npz")
    expected = "skipped: 1 samples without tokens that count toward the loss: 0"
    assert result.out.splitlines()[-1] == expected
    Path("chats.jsonl").write_text(json.dumps({"messages": [question]}) + "\n")
    result = pack(phalanx, *options, "--out", "nothing")
    assert result.code == 2 and "all 1 samples were skipped" in result.err


def test_several_files_are_packed_together_with_workers(phalanx):
    Path("more.jsonl").write_text('{"id": "e", "text": "ab"}\n')
    options = ["--max-length", 16, "--out", "packed", "--workers", 2, "--json"]
    assert json.loads(pack(phalanx, "train.jsonl", "more.jsonl", *options).out)["samples"] == 5
    refused = pack(phalanx, "--lengths", "lengths.jsonl", "--output", "packs.jsonl", "--workers", 2)
    assert refused.code == 2 and refused.err.startswith("phalanx: --workers cannot be used with --lengths")
