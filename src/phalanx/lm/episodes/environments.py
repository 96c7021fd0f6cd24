"""Episodes of environments that have words, as a language model plays them; ARC in few characters, too.

How states become words is the environments' own business.
"""

import functools
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from phalanx.arc.env import ArcEnvironment
from phalanx.core.environment import Environment
from phalanx.lm.arc_demonstrations import compact_prompts, episode_key
from phalanx.lm.episodes.source import EpisodeId, EpisodeSource
from phalanx.lm.prompt_tokenizer import PromptTokenizer
from phalanx.lm.tasks import Split, split_of
from phalanx.registry import make
from phalanx.text.env import TextVectorEnvironment
from phalanx.text.wrapper import TextVectorWrapper, host_rows
from phalanx.training.sft_data import make_environment

_LOOKED_AT = 32
_MOST_LOOKED_AT = 1024
_SEEDS = 2**32
"""Environments take seeds below this."""


class EnvironmentBatch(TextVectorWrapper):
    """Episodes of an environment, with random actions."""

    def sample_actions(self, rows: Sequence[int], rng: random.Random) -> list[str]:
        """Sample a legal action for some rows."""
        keys = jax.random.split(jax.random.PRNGKey(rng.getrandbits(32)), len(self))
        actions = host_rows(_sampled(self.environment, keys, self.states))
        states = host_rows(self.environment.bind(self.states))
        return [self.environment.action_text(actions[row], states[row]) for row in rows]


class CompactArcBatch(EnvironmentBatch):
    """ARC with compact prompts: no rules, rows of digits."""

    def _texts_of(self, states: Any) -> list[str]:
        return compact_prompts(self.environment, states)


class EnvironmentSource(EpisodeSource):
    """Episodes of one environment that has words.

    `arc` and `proofs` are what `phalanx train sft` learns from; others are registered ids, with overrides of
    their configs. Of ARC a task's first grid decides on the split, of the others what an episode asks first.
    `compact` tells ARC without rules.
    """

    def __init__(
        self, name: str, tokenizer: PromptTokenizer, *, compact: bool = True, overrides: Sequence[str] = ()
    ) -> None:
        if name in ("arc", "proofs"):
            if overrides:
                raise ValueError(f"{name!r} has no settings here; an id such as arc-v2 has")
            self.environment: Environment = make_environment(name)
        else:
            self.environment = make(name, **({"overrides": list(overrides)} if overrides else {}))
        self.tasks, self._compact = (name,), compact
        self.tokenizer = PromptTokenizer(tokenizer.tokenizer, unknown="replace")
        self.fingerprint = " ".join([f"{name}@{self.environment.version}", str(compact), *overrides])
        self._batches: dict[int, TextVectorWrapper] = {}

    def first_seed(self, run_seed: int) -> int:
        return run_seed * 1_000_003

    def seeds(self, task: str, split: Split, first: int = 0) -> Iterator[int]:
        since = 0
        for start in itertools.count(first, _LOOKED_AT):
            numbers = [seed % _SEEDS for seed in range(start, start + _LOOKED_AT)]
            batch = self._batch(_LOOKED_AT)
            batch.reset(numbers)
            for seed, looks in zip(range(start, start + _LOOKED_AT), self._looks(batch), strict=True):
                since += 1
                if split_of(looks) == split:
                    since = 0
                    yield seed
            if since >= _MOST_LOOKED_AT:
                raise ValueError(
                    f"none of {since:,} episodes of {task} falls into the split {split!r}; "
                    "an environment of few episodes may have none there"
                )

    def begin(self, episodes: Sequence[EpisodeId]) -> TextVectorEnvironment:
        batch = self._batch(len(episodes))
        batch.reset([episode.seed % _SEEDS for episode in episodes])
        return batch

    def _batch(self, size: int) -> TextVectorWrapper:
        if size not in self._batches:
            compact = self._compact and isinstance(self.environment, ArcEnvironment)
            kind = CompactArcBatch if compact else EnvironmentBatch
            self._batches[size] = kind(self.environment, size=size)
        return self._batches[size]

    def _looks(self, batch: TextVectorWrapper) -> list[str]:
        """What decides on the splits of a batch's episodes."""
        if not isinstance(self.environment, ArcEnvironment):
            return batch.prompts
        tasks = np.asarray(batch.states.task_index).tolist()
        return [episode_key(self.environment.task_buffer[task]) for task in tasks]


@functools.partial(jax.jit, static_argnums=0)
def _sampled(environment: Environment, keys: jax.Array, states: Any) -> Any:
    return jax.vmap(environment.sample_action)(keys, states)
