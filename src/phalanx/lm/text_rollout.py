"""Rollouts: conversations between a policy and a text environment."""

import dataclasses

import jax

from phalanx.core.environment import Key
from phalanx.lm.text_policy import TextPolicy, Turn
from phalanx.text.env import TextVectorEnvironment


@dataclasses.dataclass
class Conversation:
    """The turns of one episode."""

    turns: list[Turn] = dataclasses.field(default_factory=list)
    solved: bool = False

    @property
    def total_reward(self) -> float:
        """Sum of the rewards of all turns."""
        return sum(turn.reward for turn in self.turns)

    @property
    def num_valid(self) -> int:
        """Number of answers that were valid actions."""
        return sum(not turn.error for turn in self.turns)


def rollout(policy: TextPolicy, env: TextVectorEnvironment, key: Key | None = None) -> list[Conversation]:
    """Run episodes that have started until all of them end.

    Args:
        policy: Answers the prompts of all unfinished rows in each step.
        env: A vector environment whose episodes have started.
        key: PRNG key; step `n` uses `jax.random.fold_in(key, n)`. None for deterministic policies.
    """
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
