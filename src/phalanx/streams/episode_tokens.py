"""How episodes of an environment become tokens: what a tokenizer of episodes offers, and rows of tokens.

The tokenizers are in `arc_tokens` and `proof_tokens`; playing the episodes is in `environment_stream`.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float64, Int32, PyTree


class TokenRows(NamedTuple):
    """For each step: the tokens of what was seen, then those of what was done, all end to end."""

    tokens: Int32[np.ndarray, " tokens"]
    seen: Int32[np.ndarray, " steps"]
    """How many tokens tell what was seen: they are read."""
    done: Int32[np.ndarray, " steps"]
    """How many tell what was done: they are learned."""


@runtime_checkable
class EpisodeTokenizer(Protocol):
    """Turns steps into tokens and back. It must be hashable: a frozen dataclass.

    Arrays are NumPy's but in `view`, which JAX traces.
    """

    @property
    def vocab_size(self) -> int:
        """Tokens lie below this."""
        ...

    def view(self, states: PyTree) -> PyTree:
        """What is to be told of a batch of states; traced by JAX."""
        ...

    def encode(self, seen: PyTree, actions: PyTree) -> TokenRows:
        """The tokens of a batch of views and actions."""
        ...

    def decode(self, tokens: Int32[np.ndarray, " tokens"]) -> tuple[Any, Any]:
        """What was seen and done, of one step's tokens."""
        ...

    def success(self, infos: PyTree) -> Bool[np.ndarray, " episodes"]:
        """Whether episodes succeeded, from the infos of their last steps."""
        ...

    def difficulty(self, seen: PyTree) -> Float64[np.ndarray, " episodes"]:
        """0 to 1, from the first views of episodes; NaN where it is not known."""
        ...


class Part(NamedTuple):
    """Some tokens of each step, with gaps: those that do not count are left out when rows are made."""

    tokens: Int32[np.ndarray, "steps width"]
    counts: Bool[np.ndarray, "steps width"]


def full(tokens: Int32[np.ndarray, "steps width"]) -> Part:
    """Tokens that all count."""
    return Part(tokens, np.ones(tokens.shape, bool))


def mark(token: int, steps: int) -> Part:
    """The same token for every step."""
    return full(np.full((steps, 1), token, np.int32))


def join(seen: list[Part], done: list[Part]) -> TokenRows:
    """Rows from the parts that tell what was seen and those that tell what was done."""
    every = [*seen, *done]
    tokens = np.concatenate([part.tokens for part in every], axis=1)
    counts = np.concatenate([part.counts for part in every], axis=1)
    lengths = [sum(part.counts.sum(axis=1) for part in parts) for parts in (seen, done)]
    return TokenRows(tokens[counts], *(np.asarray(length, np.int32) for length in lengths))
