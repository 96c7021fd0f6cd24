"""The interface of what a language model plays: tasks by name, and the episodes of each by seed.

Those of puzzles, environments and servers are beside this module; which are played is in `curriculum`.
"""

import abc
from collections.abc import Iterator, Sequence

from phalanx.lm.tasks import PromptTokenizer, Split
from phalanx.text.env import EpisodeId as EpisodeId, TextVectorEnvironment


class EpisodeSource(abc.ABC):
    """Tasks by name and the episodes of each by seed, and how a model is asked about them.

    A source holds no place: whoever draws from it knows which seeds were drawn.
    """

    tasks: tuple[str, ...]
    prompter: PromptTokenizer
    fingerprint: str
    """Names what is played: equal ones give equal episodes."""

    @abc.abstractmethod
    def first_seed(self, run_seed: int) -> int:
        """Where the episodes of a run begin."""

    @abc.abstractmethod
    def seeds(self, task: str, split: Split, first: int = 0) -> Iterator[int]:
        """Seeds of a split's episodes from one on, in their order, without end."""

    @abc.abstractmethod
    def begin(self, episodes: Sequence[EpisodeId]) -> TextVectorEnvironment:
        """A batch in which these have begun; at most `most` of them. It is over when the next one begins."""

    most: int = 2**30
    """How many episodes are played at once at most."""

    def batches(self, episodes: Sequence[EpisodeId], at_once: int = 2**30) -> Iterator[TextVectorEnvironment]:
        """All of these, in batches that are played one after another."""
        size = min(at_once, self.most)
        for first in range(0, len(episodes), size):
            yield self.begin(episodes[first : first + size])

    def close(self) -> None:
        """Let go of connections."""
        return
