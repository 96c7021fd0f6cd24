"""Tokenizers for bytes and characters, and Hugging Face tokenizers from a file, a folder or the Hub."""

import abc
import contextlib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Integer

from phalanx.extras import require_extra
from phalanx.io.untrusted import read_json

BYTES, CHARACTERS = "bytes", "characters"
"""Names of the built-in tokenizers."""
_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class Tokenizer(abc.ABC):
    """Converts text to token ids and back."""

    vocab_size: int
    """Number of different token ids."""
    tokenizer_hash: str
    """16-character hash. Tokenizers with the same hash give the same tokens for any text."""
    pad_token_id: int | None = None
    """Padding token, or None if the tokenizer has none."""
    eos_token_id: int | None = None
    """End-of-text token, or None if the tokenizer has none."""
    bos_token_id: int | None = None
    """Beginning-of-text token, or None if the tokenizer has none."""

    @abc.abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without truncation or padding."""

    @abc.abstractmethod
    def decode(self, ids: Sequence[int] | Integer[np.ndarray, " tokens"]) -> str:
        """Convert token ids to text, without special tokens."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of one text."""
        return self.encode_batch([text])[0]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Return the token ids of each text, and the character range (start, end) of each token."""
        raise TypeError(f"{type(self).__name__} does not return character offsets")

    def count_batch(self, texts: Sequence[str], *, add_eos: bool = False) -> list[int]:
        """Return the number of tokens in each text.

        With `add_eos`, texts that do not end with the end-of-text token have one token more.
        """
        encoded = self.encode_batch(texts)
        return [len(ids) + (add_eos and ids[-1:] != [self.eos_token_id]) for ids in encoded]


class ByteTokenizer(Tokenizer):
    """Tokenizer that maps each UTF-8 byte to its value plus 2.

    Token 0 is padding, and token 1 is the end of a text.

    >>> ByteTokenizer().encode("Hi")
    [74, 107]
    """

    vocab_size = 258
    pad_token_id = 0
    eos_token_id = 1
    _NUM_SPECIAL = 2
    _HASHED_NAME = "phalanx-bytes-1 offset=2"

    def __init__(self, *, add_special_tokens: bool = False) -> None:
        """Create a tokenizer. `add_special_tokens` appends the end-of-text token to every text."""
        self._add_eos = add_special_tokens
        self.tokenizer_hash = short_hash(f"{self._HASHED_NAME} eos={add_special_tokens}".encode())

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text."""
        tail = [self.eos_token_id] if self._add_eos else []
        return [[byte + self._NUM_SPECIAL for byte in text.encode()] + tail for text in texts]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Return token ids and character ranges. All bytes of a character have the range of the character."""
        results = []
        for text, ids in zip(texts, self.encode_batch(texts), strict=True):
            sizes = [len(character.encode()) for character in text]
            offsets = [(index, index + 1) for index, size in enumerate(sizes) for _ in range(size)]
            if self._add_eos:
                offsets.append((len(text), len(text)))
            results.append((ids, offsets))
        return results

    def count_batch(self, texts: Sequence[str], *, add_eos: bool = False) -> list[int]:
        """Return the number of tokens in each text without creating the tokens."""
        return [len(text.encode()) + (self._add_eos or add_eos) for text in texts]

    def decode(self, ids: Sequence[int] | Integer[np.ndarray, " tokens"]) -> str:
        """Convert token ids to text. Invalid UTF-8 becomes the replacement character."""
        return bytes(self._check(ids)).decode(errors="replace")

    def _check(self, ids: Sequence[int] | Integer[np.ndarray, " tokens"]) -> list[int]:
        """Validate token ids, and convert them to byte values or character indices.

        Special tokens are removed.
        """
        tokens = np.asarray(ids, np.int64).tolist()
        for index, token in enumerate(tokens):
            if not 0 <= token < self.vocab_size:
                raise ValueError(f"token {index} must be between 0 and {self.vocab_size - 1}, got {token}")
        return [token - self._NUM_SPECIAL for token in tokens if token >= self._NUM_SPECIAL]


class CharTokenizer(ByteTokenizer):
    """Tokenizer for printable ASCII characters and the line feed.

    Token 0 is padding, and token 1 is the end-of-text token.

    >>> CharTokenizer().encode("A1"), CharTokenizer().vocab_size
    ([36, 20], 98)
    """

    _CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
    _IDS: ClassVar = {ord(character): index + 2 for index, character in enumerate(_CHARACTERS)}

    vocab_size = len(_CHARACTERS) + 2
    _HASHED_NAME = "phalanx-characters-1"

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text. Raises `ValueError` if a character has no token."""
        tail = [self.eos_token_id] if self._add_eos else []
        try:
            return [[self._IDS[ord(character)] for character in text] + tail for text in texts]
        except KeyError as error:
            raise ValueError(
                f"there is no token for the character {chr(error.args[0])!r}; use the tokenizer 'bytes'"
            ) from error

    def decode(self, ids: Sequence[int] | Integer[np.ndarray, " tokens"]) -> str:
        """Convert token ids to text."""
        return "".join(self._CHARACTERS[index] for index in self._check(ids))


class HFTokenizer(Tokenizer):
    """Tokenizer from a `tokenizer.json` file of the Hugging Face `tokenizers` library.

    Special tokens come from the `tokenizer_config.json` in the same folder. If there is no such file, the
    tokenizer has no special tokens.
    """

    def __init__(self, path: str | os.PathLike[str], *, add_special_tokens: bool = False) -> None:
        """Load a tokenizer.

        Args:
            path: Path of a `tokenizer.json`.
            add_special_tokens: Add the special tokens that the tokenizer's post-processor defines.
        """
        library = _require_tokenizers(f"reading {os.fspath(path)}")
        data = Path(path).read_bytes()
        try:
            description = dict(json.loads(data))
            self._tokenizer = library.Tokenizer.from_buffer(data)
        # The library has no exception class of its own.
        except Exception as error:
            raise ValueError(f"{path}: not a valid tokenizer.json: {error}") from error
        # Lengths must be those of the complete text, so the file's truncation and padding settings are
        # ignored.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        description.update(truncation=None, padding=None)
        self._add_special_tokens = add_special_tokens
        special_tokens = parse_special_tokens(load_tokenizer_config(path))
        self.pad_token_id, self.eos_token_id, self.bos_token_id = (
            self._tokenizer.token_to_id(special_tokens[name]) if name in special_tokens else None
            for name in ("pad_token", "eos_token", "bos_token")
        )
        self.vocab_size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        canonical = json.dumps([description, add_special_tokens], sort_keys=True)
        self.tokenizer_hash = short_hash(canonical.encode())

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text. The texts are tokenized in parallel."""
        return [encoding.ids for encoding in self._encode(texts)]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Return token ids and character ranges. Special tokens that were added have an empty range."""
        return [(encoding.ids, encoding.offsets) for encoding in self._encode(texts)]

    def decode(self, ids: Sequence[int] | Integer[np.ndarray, " tokens"]) -> str:
        """Convert token ids to text, without special tokens."""
        return str(self._tokenizer.decode(np.asarray(ids, np.int64).tolist(), skip_special_tokens=True))

    def _encode(self, texts: Sequence[str]) -> Any:
        return self._tokenizer.encode_batch(list(texts), add_special_tokens=self._add_special_tokens)


def load_tokenizer(name: str | os.PathLike[str] = BYTES, *, add_special_tokens: bool = False) -> Tokenizer:
    """Load a tokenizer.

    Args:
        name: `bytes`, `characters`, the path of a `tokenizer.json` or of the folder that contains it, or the
            name of a tokenizer on the Hugging Face Hub.
        add_special_tokens: Add the special tokens that the tokenizer itself defines. For `bytes` and
            `characters`, this is the end-of-text token.
    """
    if name in (BYTES, CHARACTERS):
        kind = ByteTokenizer if name == BYTES else CharTokenizer
        return kind(add_special_tokens=add_special_tokens)
    path = Path(name)
    if path.is_dir():
        if not (path / "tokenizer.json").is_file():
            raise ValueError(f"the folder {path} has no tokenizer.json")
        path /= "tokenizer.json"
    elif not path.is_file():
        if path.suffix == ".json":
            raise FileNotFoundError(f"there is no tokenizer file {path}")
        # A name on the Hub is NAME or OWNER/NAME.
        if not isinstance(name, str) or name.startswith((".", "/", "~")) or name.endswith("/"):
            raise FileNotFoundError(f"there is no tokenizer folder {os.fspath(name)}")
        path = fetch_from_hub(name, "tokenizer.json")
        # The config, if there is one, is downloaded to the same folder.
        find_tokenizer_file(name, "tokenizer_config.json")
    return HFTokenizer(path, add_special_tokens=add_special_tokens)


def load_tokenizer_config(tokenizer: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the contents of a tokenizer's `tokenizer_config.json`.

    Return an empty dictionary if there is none.
    """
    config = find_tokenizer_file(tokenizer, "tokenizer_config.json")
    value = {} if config is None else read_json(config)
    if not isinstance(value, dict):
        raise ValueError(f"{config}: expected a JSON object, got {type(value).__name__}")
    return value


def find_tokenizer_file(tokenizer: str | os.PathLike[str], name: str) -> Path | None:
    """Return the path of one of a tokenizer's files, after downloading it if necessary.

    Return None if there is no such file.
    """
    path = Path(tokenizer)
    if path.exists():
        file = (path if path.is_dir() else path.parent) / name
        return file if file.is_file() else None
    if os.fspath(tokenizer) not in (BYTES, CHARACTERS):
        with contextlib.suppress(ValueError):
            return fetch_from_hub(os.fspath(tokenizer), name)
    return None


def parse_special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of each special token in a tokenizer config, by name (such as `eos_token`)."""
    tokens = {name: config[name] for name in _SPECIAL_TOKENS if config.get(name)}
    return {
        name: str(token["content"] if isinstance(token, Mapping) else token) for name, token in tokens.items()
    }


def fetch_from_hub(name: str, file: str) -> Path:
    """Return the local path of a file in a Hugging Face repository.

    The file is downloaded unless it is in the local cache.
    """
    _require_tokenizers(f"downloading tokenizer {name!r}")
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(huggingface_hub.hf_hub_download(name, file))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"cannot download tokenizer {name!r} from Hugging Face ({reason}); check the name and the "
            f"network, or use {BYTES!r} or the path of a tokenizer.json"
        ) from error


def _require_tokenizers(purpose: str) -> Any:
    with require_extra(purpose, "hf", "tokenizers"):
        import tokenizers
    return tokenizers


def short_hash(data: bytes) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()[:16]
