"""Byte tokenizers, tokenizers from files and from Hugging Face, and their hashes."""

import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from phalanx.data import ByteTokenizer, HFTokenizer, load_tokenizer


def word_tokenizer(folder: Path, **changes: object) -> Path:
    """Write a `tokenizer.json` with a vocabulary of five tokens that splits at whitespace."""
    vocabulary = {"<pad>": 0, "</s>": 1, "<unk>": 2, "hello": 3, "world": 4}
    description = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    folder.mkdir(exist_ok=True)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(description | changes))
    return path


def test_byte_tokenizer_offsets_bytes_by_two_special_tokens() -> None:
    tokenizer = ByteTokenizer()
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.vocab_size) == (0, 1, 258)
    assert tokenizer.encode("A\x00ü") == [67, 2, 197, 190]
    assert tokenizer.encode("") == []


def test_byte_tokenizer_can_add_eos() -> None:
    assert ByteTokenizer(add_special_tokens=True).encode_batch(["A", ""]) == [[67, 1], [1]]
    assert ByteTokenizer(add_special_tokens=True).count_batch(["A", ""]) == [2, 1]


@given(st.text(), st.booleans())
def test_byte_tokenizer_decodes_its_tokens(text: str, add_eos: bool) -> None:
    tokenizer = ByteTokenizer(add_special_tokens=add_eos)
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert tokenizer.count_batch([text]) == [len(tokens)]


def test_token_out_of_range_is_reported() -> None:
    with pytest.raises(ValueError, match="token 1 must be between 0 and 257, got 258"):
        ByteTokenizer().decode([5, 258])


def test_byte_tokenizer_is_the_default() -> None:
    assert isinstance(load_tokenizer(), ByteTokenizer)
    assert isinstance(load_tokenizer("bytes"), ByteTokenizer)


def test_hashes_are_stable_and_distinct() -> None:
    assert ByteTokenizer().tokenizer_hash == ByteTokenizer().tokenizer_hash
    assert len(ByteTokenizer().tokenizer_hash) == 16
    assert ByteTokenizer().tokenizer_hash != ByteTokenizer(add_special_tokens=True).tokenizer_hash


def test_tokenizer_can_be_loaded_from_a_file_or_its_folder(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    path = word_tokenizer(tmp_path / "words")
    for name in (path, str(path), path.parent):
        tokenizer = load_tokenizer(name)
        assert tokenizer.encode("hello world moon") == [3, 4, 2]
        assert tokenizer.decode([3, 4]) == "hello world"
        assert (tokenizer.vocab_size, tokenizer.pad_token_id, tokenizer.eos_token_id) == (5, None, None)
        assert tokenizer.tokenizer_hash == HFTokenizer(path).tokenizer_hash


def test_local_folder_takes_precedence_over_a_model_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers")
    word_tokenizer(tmp_path / "gpt2")
    monkeypatch.chdir(tmp_path)
    assert load_tokenizer("gpt2").encode("world") == [4]


def test_truncation_settings_of_the_file_are_ignored(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    truncating = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    path = word_tokenizer(tmp_path / "truncating", truncation=truncating)
    default = word_tokenizer(tmp_path / "default")
    assert load_tokenizer(path).encode("hello world") == [3, 4]
    assert load_tokenizer(path).tokenizer_hash == load_tokenizer(default).tokenizer_hash


def test_hash_depends_on_the_normalizer(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    default = word_tokenizer(tmp_path / "default")
    lower = word_tokenizer(tmp_path / "lower", normalizer={"type": "Lowercase"})
    assert load_tokenizer(default).tokenizer_hash != load_tokenizer(lower).tokenizer_hash


def test_invalid_tokenizer_file_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    for content in ("{", "[1]", '{"model": {"type": "Nonsense"}}'):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"tokenizer\.json: not a (valid )?tokenizer\.json"):
            load_tokenizer(path)


def test_missing_tokenizer_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no tokenizer file"):
        load_tokenizer(tmp_path / "missing.json")
    for folder in ("./tinyy", "../tinyy", "tinyy/", str(tmp_path / "tinyy")):
        with pytest.raises(FileNotFoundError, match="there is no tokenizer folder"):
            load_tokenizer(folder)
    with pytest.raises(ValueError, match=r"has no tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_model_name_is_downloaded_from_hugging_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    source = word_tokenizer(tmp_path / "source")
    calls = []
    monkeypatch.setattr(hub, "hf_hub_download", lambda *arguments: calls.append(arguments) or str(source))
    assert load_tokenizer("someone/words").encode("hello") == [3]
    assert calls[0] == ("someone/words", "tokenizer.json")


def test_failed_download_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def fail(*_: str) -> str:
        raise OSError("no network")

    monkeypatch.setattr(hub, "hf_hub_download", fail)
    with pytest.raises(
        ValueError, match=r"cannot download tokenizer 'gpt2' from Hugging Face \(no network\)"
    ):
        load_tokenizer("gpt2")


@pytest.mark.parametrize("eos", ["<|im_end|>", {"content": "world"}, None])
def test_special_tokens_are_read_from_the_tokenizer_config(tmp_path: Path, eos: object) -> None:
    """The vocabulary has `</s>`, but only the special tokens of the configuration are used."""
    pytest.importorskip("tokenizers")
    vocabulary = {"<pad>": 0, "</s>": 1, "<unk>": 2, "hello": 3, "world": 4, "<|im_end|>": 5}
    path = word_tokenizer(
        tmp_path / "words", model={"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    )
    (path.parent / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos, "pad_token": "<pad>"}))
    tokenizer = load_tokenizer(path)
    name = eos["content"] if isinstance(eos, dict) else eos
    assert tokenizer.eos_token_id == vocabulary.get(name) and tokenizer.pad_token_id == 0
    assert tokenizer.bos_token_id is None
