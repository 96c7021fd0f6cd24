"""`phalanx train sft` on a file, on a plan of its lengths and on its packed folder: the same tokens."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from phalanx.config import load_config
from phalanx.data import load_batch_plan
from phalanx.training.sft import SFTConfig, open_data

CHAT_TEMPLATE = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty pairs, of which s10 and s20 have no completion, and a tokenizer that has a chat template."""
    monkeypatch.chdir(tmp_path)
    rows = [
        {"id": f"s{n}", "prompt": f"{n} + {n} = ", "completion": "" if n in (10, 20) else f"{2 * n}"}
        for n in range(30)
    ]
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    alphabet = [*sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()), "</s>"]
    vocabulary = {token: index for index, token in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    Path("tiny").mkdir()
    tokenizer.save("tiny/tokenizer.json")
    special = {"eos_token": "</s>", "chat_template": CHAT_TEMPLATE}
    Path("tiny/tokenizer_config.json").write_text(json.dumps(special))


def count_sft_tokens(tokenizer: str, *settings: str) -> int:
    """Return the number of tokens in one epoch, and check that every sample ends with a trained end token."""
    more = (f"tokenizer={tokenizer}", "data.num_eval_samples=0", "data.repeat=false", "data.max_length=32")
    data = open_data(load_config(SFTConfig, None, [*settings, *more]))
    assert data.plan is not None
    end_token = {"bytes": 1, "tiny": 256}[tokenizer]
    num_tokens = num_samples = 0
    for spec in data.plan.batches():
        batch = data.get_batch(spec)
        is_end = (batch.input_ids == end_token) & (batch.loss_mask == 1) & (batch.segment_ids > 0)
        num_samples += int(is_end.sum())
        num_tokens += batch.real_tokens
    assert num_samples == 28
    return num_tokens


@pytest.mark.parametrize("tokenizer", ["bytes", "tiny"])
def test_file_plan_and_packed_folder_have_the_same_tokens(
    phalanx: Callable[..., Any], tokenizer: str
) -> None:
    build = ("data", "lengths", "build", "pairs.jsonl", "-t", tokenizer, "-o", "lengths.npz", "--json")
    counted = json.loads(phalanx(*build).out)["tokens"]
    plan = ("--lengths", "lengths.npz", "--output", "pairs.plan", "--max-sample-length", 32)
    assert phalanx("data", "plan", "build", *plan, "--bucket-edges", "16").code == 0
    pack = ("data", "pack", "pairs.jsonl", "-t", tokenizer, "-o", "packed", "--max-length", 32, "--json")
    assert json.loads(phalanx(*pack).out)["tokens"] == counted
    assert count_sft_tokens(tokenizer, "data.samples=pairs.jsonl") == counted
    assert count_sft_tokens(tokenizer, "data.plan=packed") == counted
    planned = ("data.plan=pairs.plan", "data.planned_dataset=pairs.jsonl")
    assert count_sft_tokens(tokenizer, *planned) == counted


def test_lengths_with_an_explicit_format_fit_the_file(phalanx: Callable[..., Any]) -> None:
    build = ("data", "lengths", "build", "pairs.jsonl", "-o", "lengths.npz", "--format", "prompt_completion")
    assert phalanx(*build).code == 0
    assert phalanx("data", "plan", "build", "--lengths", "lengths.npz", "--output", "pairs.plan").code == 0
    assert count_sft_tokens("bytes", "data.plan=pairs.plan", "data.planned_dataset=pairs.jsonl") > 0


def test_plan_of_lengths_without_end_tokens_is_rejected_with_the_cause(phalanx: Callable[..., Any]) -> None:
    phalanx("data", "lengths", "build", "pairs.jsonl", "-o", "lengths.npz", "--no-add-eos")
    phalanx("data", "plan", "build", "--lengths", "lengths.npz", "--output", "pairs.plan")
    with pytest.raises(
        ValueError, match=r"with tokenizer 'bytes', but with another chat template, add_bos, "
    ):
        count_sft_tokens("bytes", "data.plan=pairs.plan", "data.planned_dataset=pairs.jsonl")


@pytest.mark.parametrize("command", ["pack", "export"])
@pytest.mark.parametrize("setting", [(), ("tokenizer=characters",)])
def test_batches_of_another_tokenizer_are_rejected(
    phalanx: Callable[..., Any], command: str, setting: tuple[str, ...]
) -> None:
    options = ("--tokenizer", "tiny", "--output")
    if command == "pack":
        assert phalanx("data", "pack", "pairs.jsonl", *options, "batches", "--max-length", 32).code == 0
    else:
        phalanx("data", "lengths", "build", "pairs.jsonl", *options, "lengths.npz")
        phalanx("data", "plan", "build", "--lengths", "lengths.npz", "--output", "pairs.plan")
        export = ("--plan", "pairs.plan", "--dataset", "pairs.jsonl")
        assert phalanx("data", "export", *export, *options, "batches").code == 0
    result = phalanx("train", "sft", "data.plan=batches", *setting, "--out", "run")
    name = "characters" if setting else "bytes"
    recorded = load_batch_plan("batches").meta.tokenizer_hash.partition("-")[0]
    assert result.code == 2 and result.err.count("\n") == 1
    assert f"batches was built with tokenizer {recorded}, but {name!r} is " in result.err
    assert "tokenizer=NAME for `phalanx train`" in result.err
    assert not Path("run").exists()
