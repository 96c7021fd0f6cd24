"""Episodes of environments that have words, as a language model plays them; ARC in few characters, too.

How states become words is the environments' own business.
"""

import random
from collections.abc import Iterator, Sequence

from phalanx.core.environment import Environment
from phalanx.lm.episodes.source import EpisodeId, EpisodeSource
from phalanx.lm.tasks import NEW_SPLITS, PromptTokenizer, ReadablePromptTokenizer, Split
from phalanx.registry import make
from phalanx.text.env import TextVectorEnvironment
from phalanx.text.wrapper import TextVectorWrapper
from phalanx.training.lm.sources import make_environment


class EnvironmentSource(EpisodeSource):
    """Episodes of one environment that has words.

    `arc` and `proofs` are what `phalanx train lm` learns from; others are registered ids, with overrides of
    their configs. Of ARC a task's first grid decides on the split, of the others what an episode asks first.
    `compact` tells ARC without rules.
    """

    def __init__(
        self, name: str, prompter: PromptTokenizer, *, compact: bool = True, overrides: Sequence[str] = ()
    ) -> None:
        if name in ("arc", "proofs"):
            if overrides:
                raise ValueError(f"{name!r} has no settings here; an id such as arc-v2 has")
            self.environment: Environment = make_environment(name)
        else:
            self.environment = make(name, **({"overrides": list(overrides)} if overrides else {}))
        self.tasks, self.prompter = (name,), ReadablePromptTokenizer(prompter)
        self.fingerprint = " ".join([f"{name}@{self.environment.version}", str(compact), *overrides])
        self._batch = TextVectorWrapper(
            self.environment, task=name, prompt_format="compact" if compact else "full"
        )

    def first_seed(self, run_seed: int) -> int:
        return self._batch.first_seed(run_seed)

    def seeds(self, task: str, split: Split, first: int = 0) -> Iterator[int]:
        return self._batch.seeds(task, NEW_SPLITS[split], first)

    def begin(self, episodes: Sequence[EpisodeId]) -> TextVectorEnvironment:
        self._batch.start(episodes)
        return self._batch

    def random_actions(self, batch: TextVectorEnvironment, draws: random.Random) -> list[str]:
        """A random legal action of each episode, in words."""
        return batch.sample_actions(range(len(batch)), draws)
