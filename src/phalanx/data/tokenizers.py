"""Tokenizers: bytes, which need no download; a local `tokenizer.json`; one fetched by name from Hugging Face.

Each has a hash that caches and plans carry, so that lengths of one are never used with another. Reading
datasets is in `sources`.
"""

import abc
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

BYTES, CHARACTERS = "bytes", "characters"
"""The names of the built-in tokenizers."""


class Tokenizer(abc.ABC):
    """Text to token ids and back."""

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int:
        """Ids are 0 to this, without it."""

    @property
    @abc.abstractmethod
    def pad_token_id(self) -> int | None:
        """The id that fills rows up; None if the vocabulary has none."""

    @property
    @abc.abstractmethod
    def eos_token_id(self) -> int | None:
        """The id that ends a text; None if the vocabulary has none."""

    @property
    def bos_token_id(self) -> int | None:
        """The id that begins a text; None if the vocabulary has none."""
        return None

    @property
    @abc.abstractmethod
    def tokenizer_hash(self) -> str:
        """16 characters that change whenever the tokens of some text could."""

    @abc.abstractmethod
    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text, neither cut nor padded."""

    @abc.abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of these tokens; special tokens have none."""

    def encode(self, text: str) -> list[int]:
        """The tokens of one text."""
        return self.encode_many([text])[0]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Tokens of each text, and from which to which character of it each token reaches."""
        raise TypeError(f"{type(self).__name__} does not tell where in a text its tokens are")

    def count_many(self, texts: Sequence[str]) -> list[int]:
        """How many tokens each text has."""
        return [len(ids) for ids in self.encode_many(texts)]


class ByteTokenizer(Tokenizer):
    """The bytes of a text's UTF-8 form, moved up by two to make room for padding (0) and end of text (1).

    >>> ByteTokenizer().encode("Hi")
    [74, 107]
    """

    _OFFSET = 2

    def __init__(self, *, add_eos: bool = False) -> None:
        self._add_eos = add_eos

    @property
    def vocab_size(self) -> int:
        """256 bytes and two special ids."""
        return 256 + self._OFFSET

    @property
    def pad_token_id(self) -> int:
        """0, which is also what batch files pad with unless told otherwise."""
        return 0

    @property
    def eos_token_id(self) -> int:
        """1."""
        return 1

    @property
    def tokenizer_hash(self) -> str:
        """Fixed for this version of the scheme."""
        return _short_hash(f"phalanx-bytes-1 offset={self._OFFSET} eos={self._add_eos}".encode())

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """The bytes of each text, and the end of text if asked for."""
        tail = [self.eos_token_id] if self._add_eos else []
        return [[byte + self._OFFSET for byte in text.encode()] + tail for text in texts]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """A character's bytes all reach over that character."""
        sizes = [[len(letter.encode()) for letter in text] for text in texts]
        places = [
            [(place, place + 1) for place, size in enumerate(text) for _ in range(size)] for text in sizes
        ]
        tail = [(len(text), len(text)) for text in texts] if self._add_eos else []
        found = zip(self.encode_many(texts), places, strict=True)
        return [(ids, [*spans, *tail[n : n + 1]]) for n, (ids, spans) in enumerate(found)]

    def count_many(self, texts: Sequence[str]) -> list[int]:
        """Counted without making the tokens."""
        return [len(text.encode()) + self._add_eos for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """The text; bytes that are no UTF-8 become the replacement character."""
        self._check(ids)
        return bytes(token - self._OFFSET for token in ids if token >= self._OFFSET).decode(errors="replace")

    def _check(self, ids: Sequence[int]) -> None:
        for place, token in enumerate(ids):
            if not 0 <= token < self.vocab_size:
                raise ValueError(f"token {place} is {token}; ids are 0 to {self.vocab_size - 1}")


class CharTokenizer(ByteTokenizer):
    """The characters that a keyboard has, for small models that read only those; padding is 0, the end 1.

    >>> CharacterTokenizer().encode("A1"), CharacterTokenizer().vocab_size
    ([36, 20], 98)
    """

    _CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
    _IDS: ClassVar = {ord(character): place + 2 for place, character in enumerate(_CHARACTERS)}

    @property
    def vocab_size(self) -> int:
        """95 characters, the end of a line, and two special ids."""
        return len(self._CHARACTERS) + self._OFFSET

    @property
    def tokenizer_hash(self) -> str:
        """Fixed for this version of the scheme."""
        return _short_hash(f"phalanx-characters-1 eos={self._add_eos}".encode())

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """An id for each character; a `ValueError` names one that there is not."""
        tail = [self.eos_token_id] if self._add_eos else []
        try:
            return [[self._IDS[ord(character)] for character in text] + tail for text in texts]
        except KeyError as error:
            raise ValueError(
                f"there is no token for the character {chr(error.args[0])!r}; use the tokenizer `bytes`"
            ) from error

    def decode(self, ids: Sequence[int]) -> str:
        """The text of these characters."""
        self._check(ids)
        return "".join(self._CHARACTERS[token - self._OFFSET] for token in ids if token >= self._OFFSET)


class HFTokenizer(Tokenizer):
    """A `tokenizer.json`, as the Hugging Face `tokenizers` library writes it."""

    def __init__(self, path: str | os.PathLike[str], *, add_special_tokens: bool = False) -> None:
        library = _require_tokenizers(f"read {os.fspath(path)}")
        try:
            text = Path(path).read_text(encoding="utf-8")
            description = dict(json.loads(text))
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{path}: not a tokenizer.json: {error}") from error
        try:
            self._tokenizer = library.Tokenizer.from_str(text)
        # The library has no exception of its own: whatever it cannot use it refuses with this one.
        except Exception as error:
            raise ValueError(f"{path}: not a tokenizer.json that can be used: {error}") from error
        # A length must be the text's own: what the file says about cutting and padding is not wanted here.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        description.update(truncation=None, padding=None)
        self._add_special_tokens = add_special_tokens
        canonical = json.dumps([description, add_special_tokens], sort_keys=True)
        self._hash = _short_hash(canonical.encode())

    @property
    def vocab_size(self) -> int:
        """Added tokens count."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @property
    def pad_token_id(self) -> int | None:
        """The first of the usual names that the vocabulary has."""
        return self._first_of("<pad>", "[PAD]", "<|pad|>", "<|padding|>")

    @property
    def eos_token_id(self) -> int | None:
        """The first of the usual names that the vocabulary has."""
        return self._first_of("</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "[SEP]")

    @property
    def bos_token_id(self) -> int | None:
        """The first of the usual names that the vocabulary has; in GPT-2's it is also the one that ends."""
        return self._first_of(
            "<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "[CLS]", "<|endoftext|>"
        )

    @property
    def tokenizer_hash(self) -> str:
        """Of the file's content, less what it says about cutting and padding; its name does not matter."""
        return self._hash

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text, in parallel."""
        batch = self._tokenizer.encode_batch(list(texts), add_special_tokens=self._add_special_tokens)
        return [encoding.ids for encoding in batch]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """As the library tells them; a special token that is not in the text reaches over nothing."""
        batch = self._tokenizer.encode_batch(list(texts), add_special_tokens=self._add_special_tokens)
        return [(encoding.ids, encoding.offsets) for encoding in batch]

    def decode(self, ids: Sequence[int]) -> str:
        """The text, without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def _first_of(self, *names: str) -> int | None:
        found = (self._tokenizer.token_to_id(name) for name in names)
        return next((token for token in found if token is not None), None)


class BoundedTokenizer(Tokenizer):
    """Another tokenizer's tokens with the begin of text before each text, its end after it, or both.

    A token that the other one has put there already is not put there twice. BPE tokenizers rarely put an end
    of text (those of GPT-2 and Llama do not), and a model that never sees one never stops.
    """

    def __init__(self, inner: Tokenizer, *, add_bos: bool = False, add_eos: bool = False) -> None:
        self._inner, self._add_bos, self._add_eos = inner, add_bos, add_eos
        for wanted, name, token in (
            (add_bos, "begin", inner.bos_token_id),
            (add_eos, "end", inner.eos_token_id),
        ):
            if wanted and token is None:
                raise ValueError(f"the vocabulary has no token for the {name} of a text")

    @property
    def vocab_size(self) -> int:
        """The other's."""
        return self._inner.vocab_size

    @property
    def pad_token_id(self) -> int | None:
        """The other's."""
        return self._inner.pad_token_id

    @property
    def eos_token_id(self) -> int | None:
        """The other's."""
        return self._inner.eos_token_id

    @property
    def bos_token_id(self) -> int | None:
        """The other's."""
        return self._inner.bos_token_id

    @property
    def tokenizer_hash(self) -> str:
        """Of the other's hash and of what is added."""
        return _short_hash(f"{self._inner.tokenizer_hash} bos={self._add_bos} eos={self._add_eos}".encode())

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """The other's tokens of each text, and what is added."""
        return [self._bounded(ids) for ids in self._inner.encode_many(texts)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text; special tokens have none."""
        return self._inner.decode(ids)

    def _bounded(self, ids: list[int]) -> list[int]:
        bos, eos = self._inner.bos_token_id, self._inner.eos_token_id
        if self._add_bos and bos is not None and ids[:1] != [bos]:
            ids = [bos, *ids]
        if self._add_eos and eos is not None and ids[-1:] != [eos]:
            ids = [*ids, eos]
        return ids


def load_tokenizer(
    name: str | os.PathLike[str] = BYTES,
    *,
    add_special_tokens: bool = False,
    add_bos: bool = False,
    add_eos: bool = False,
) -> Tokenizer:
    """The tokenizer of this name: `bytes`, `characters`, a `tokenizer.json` or its folder, one of a hub.

    `add_special_tokens` adds what the tokenizer itself puts around a text (for `bytes`: the end of text).
    `add_bos` and `add_eos` put the begin and the end of text there whatever it does.
    """
    if name in (BYTES, CHARACTERS) and not add_bos:
        kind = ByteTokenizer if name == BYTES else CharTokenizer
        return kind(add_eos=add_special_tokens or add_eos)
    found = _load(name, add_special_tokens)
    return BoundedTokenizer(found, add_bos=add_bos, add_eos=add_eos) if add_bos or add_eos else found


def _load(name: str | os.PathLike[str], add_special_tokens: bool) -> Tokenizer:
    if name in (BYTES, CHARACTERS):
        return (ByteTokenizer if name == BYTES else CharTokenizer)(add_eos=add_special_tokens)
    path = Path(name)
    if path.is_dir():
        if not (path / "tokenizer.json").is_file():
            raise ValueError(f"the folder {path} holds no tokenizer.json")
        path /= "tokenizer.json"
    elif not path.is_file():
        if not isinstance(name, str) or path.suffix == ".json" or path.is_absolute():
            raise FileNotFoundError(f"there is no tokenizer file {path}")
        path = fetch(name, "tokenizer.json")
    return HFTokenizer(path, add_special_tokens=add_special_tokens)


def fetch(name: str, file: str) -> Path:
    """A file of a Hugging Face name, from its cache or the network."""
    _require_tokenizers(f"fetch tokenizer {name!r}")
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(huggingface_hub.hf_hub_download(name, file))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"cannot get tokenizer {name!r} from Hugging Face ({reason}); check the name and the network, or "
            f"use {BYTES!r} or the path of a tokenizer.json"
        ) from error


def _require_tokenizers(purpose: str) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(f"to {purpose}, install tokenizers: pip install 'phalanx[hf]'") from error
    return tokenizers


def _short_hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
