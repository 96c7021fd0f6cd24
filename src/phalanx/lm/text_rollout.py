"""Rollouts of policies in text environments, recorded as conversations."""

import dataclasses
from collections.abc import Sequence

import jax

from phalanx.core.environment import Key
from phalanx.lm.text_policy import TextPolicy, Turn
from phalanx.text.env import TaskSeed, TextVectorEnvironment
from phalanx.text.splits import Split, split_of


@dataclasses.dataclass
class Conversation:
    """The prompts and answers of one episode, and its result."""

    turns: list[Turn] = dataclasses.field(default_factory=list)
    solved: bool = False
    """True if the episode was solved."""

    @property
    def total_reward(self) -> float:
        """Sum of the rewards of all turns."""
        return sum(turn.reward for turn in self.turns)

    @property
    def num_valid(self) -> int:
        """Number of answers that were valid actions."""
        return sum(not turn.error for turn in self.turns)


def rollout(
    policy: TextPolicy,
    env: TextVectorEnvironment,
    episodes: Sequence[TaskSeed],
    key: Key | None = None,
    batch_size: int = 2**30,
) -> list[Conversation]:
    """Run episodes until they end, and return one conversation per episode.

    Args:
        policy: Policy that answers the prompts. In each step, it answers the prompts of all unfinished
            episodes in the batch.
        env: The environment.
        episodes: Episodes to run. The same episode can occur several times.
        key: PRNG key, required for policies that sample with JAX. The key of batch 0 is `key` itself, and
            the key of batch `n` is `jax.random.fold_in(key, n)`. In step `i` of a batch, the policy gets
            `jax.random.fold_in(batch_key, i)`.
        batch_size: Maximum number of episodes that run at the same time. Values above `env.max_size` are
            reduced to `env.max_size`.
    """
    conversations: list[Conversation] = []
    batch_size = min(batch_size, env.max_size)
    for index, first in enumerate(range(0, len(episodes), batch_size)):
        env.start(episodes[first : first + batch_size])
        batch_key = jax.random.fold_in(key, index) if key is not None and index else key
        conversations += _rollout_batch(policy, env, batch_key)
    return conversations


def _rollout_batch(policy: TextPolicy, env: TextVectorEnvironment, key: Key | None) -> list[Conversation]:
    conversations = [Conversation() for _ in range(len(env))]
    unfinished, step = list(range(len(env))), 0
    while unfinished:
        step_key = None if key is None else jax.random.fold_in(key, step)
        turns = dict(zip(unfinished, policy.act(env, unfinished, step_key), strict=True))
        result = env.step([turns[row].answer if row in turns else "" for row in range(len(env))])
        for row in unfinished:
            info = result.infos[row]
            turn = turns[row]._replace(error=info.error, reward=float(result.rewards[row]))
            conversations[row].turns.append(turn)
            conversations[row].solved = info.solved
        unfinished = [row for row in unfinished if not result.dones[row]]
        step += 1
    return conversations


def is_usable_state(state_key: str, split: Split) -> bool:
    """Return whether a state that was reached in an episode of `split` may be used in samples of that split.

    An episode can reach a state that is the initial state of an episode in another split. To keep validation
    and test episodes out of the training data, a state may be used only if it belongs to `split` or to the
    train split. States without a key (an empty string) may always be used.
    """
    return not state_key or split_of(state_key) in (split, "train")
