"""`LMTokenizer`, which adds a separator to prompts and a stop token to completions."""

import contextlib
from collections.abc import Sequence
from typing import Literal

from phalanx.data.tokenizers import Tokenizer, load_tokenizer
from phalanx.text.env import TextVectorEnvironment

_REPLACEMENT = "?"


class LMTokenizer:
    """Encodes the prompts that a language model reads and the completions that it generates.

    The model reads the tokens of a prompt, followed by those of `prompt_suffix`. It generates the tokens of a
    completion, followed by a stop token.

    Args:
        tokenizer: Tokenizer for the text, or its name, such as `characters` or `bytes`.
        prompt_suffix: Text that separates a prompt from its completion.
        completion_end: Text whose token is the stop token. It must be encoded as a single token. Defaults to
            the tokenizer's end-of-text token.
        unknown: What to do with characters in prompts that the tokenizer cannot encode. `error` raises an
            error, and `replace` encodes a question mark instead.
    """

    def __init__(
        self,
        tokenizer: str | Tokenizer,
        prompt_suffix: str = ">",
        completion_end: str | None = None,
        unknown: Literal["error", "replace"] = "error",
    ) -> None:
        self.tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        self.prompt_suffix, self.completion_end, self.unknown = prompt_suffix, completion_end, unknown
        stop_token_id = self.tokenizer.eos_token_id
        if completion_end is not None:
            [stop_token_id] = self.tokenizer.encode(completion_end)
        if stop_token_id is None:
            raise ValueError("the tokenizer has no end-of-text token; set completion_end")
        self.stop_token_id: int = stop_token_id
        self._encodable: dict[str, bool] = {}

    @classmethod
    def for_env(cls, tokenizer: str | Tokenizer, env: TextVectorEnvironment) -> "LMTokenizer":
        """Create a tokenizer with the prompt suffix and the stop token that an environment uses.

        `env.unknown_characters` determines what happens to characters that the tokenizer cannot encode.
        """
        return cls(tokenizer, env.prompt_suffix, env.completion_end, env.unknown_characters)

    def encode_prompt(self, prompt: str) -> list[int]:
        """Append the prompt suffix to a prompt, and encode the result."""
        if self.unknown == "replace":
            prompt = "".join(c if self._is_encodable(c) else _REPLACEMENT for c in prompt)
        return self.tokenizer.encode(prompt + self.prompt_suffix)

    def encode_completion(self, completion: str) -> list[int]:
        """Encode a completion, including its stop token."""
        return [*self.tokenizer.encode(completion), self.stop_token_id]

    def decode(self, completion_ids: Sequence[int]) -> str:
        """Decode a completion, without its stop token."""
        return self.tokenizer.decode([token for token in completion_ids if token != self.stop_token_id])

    def _is_encodable(self, character: str) -> bool:
        if character not in self._encodable:
            self._encodable[character] = False
            with contextlib.suppress(ValueError):
                self._encodable[character] = bool(self.tokenizer.encode(character))
        return self._encodable[character]
