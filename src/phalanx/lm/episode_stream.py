"""Streams of token samples from the episodes of a JAX environment."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from phalanx.core.environment import Environment, Keys
from phalanx.core.episodes import AgentFunction
from phalanx.core.vector import batch_reset
from phalanx.data.episode_tokens import EpisodeOutcomes, EpisodeTokenizer, create_episode_samples
from phalanx.data.samples import Sample


class _Trajectories(NamedTuple):
    """Steps of a batch of episodes. The leaves have shape `[steps, batch, ...]`."""

    views: PyTree
    """The parts of each state that the tokenizer needs, as returned by `EpisodeTokenizer.view`."""
    actions: PyTree
    rewards: Any
    running: Any
    """True if the episode was still running when the action was chosen."""
    done: Any
    infos: PyTree


class EnvironmentStream(Iterator[Sample]):
    """Iterator over token samples from episodes of an environment.

    The loss mask is 0 for observation tokens and 1 for action tokens. `Sample.info` contains the episode id,
    the index of the step, the reward, the difficulty and whether the episode succeeded. The same arguments
    always give the same samples. If `agent` is None, the samples do not depend on `batch_size`.

    Args:
        env: The environment.
        agent: Function `agent(states, agent_states, key) -> (actions, agent_states)` for a batch, as in
            `run_episode_batch`. If None, random legal actions are taken.
        tokenizer: Tokenizer that encodes states and actions. Defaults to `env.tokenizer()`.
        episodes: Number of episodes. If None, the stream is infinite.
        batch_size: Number of episodes that run at the same time.
        max_steps: Maximum number of steps per episode. Defaults to `env.tokenizer().max_steps`. If
            `env.tokenizer()` is None, the default is `tokenizer.max_steps`.
        seed: Seed for the episodes and the agent.
        per: Whether a sample contains one `step` or a complete `episode`. The reward of a complete episode is
            the sum of the rewards of its steps.
        agent_state: State of the agent at the start of each batch of episodes. None if the agent has no
            state.
        dataset_id: Name of the dataset in the samples. Defaults to `env.tokenizer().name` or, if
            `env.tokenizer()` is None, to the name of the environment's class.
    """

    def __init__(
        self,
        env: Environment,
        agent: AgentFunction | None = None,
        *,
        tokenizer: EpisodeTokenizer | None = None,
        episodes: int | None = None,
        batch_size: int = 64,
        max_steps: int | None = None,
        seed: int = 0,
        per: Literal["step", "episode"] = "step",
        agent_state: PyTree = None,
        dataset_id: str | None = None,
    ) -> None:
        if batch_size < 1 or (episodes is not None and episodes < 1):
            raise ValueError(f"batch_size and episodes must be at least 1, got {batch_size} and {episodes}")
        self.environment = env
        default, name = self.environment.tokenizer(), type(self.environment).__name__
        tokenizer = tokenizer or default
        if tokenizer is None:
            raise TypeError(f"{name} has no tokenizer for its episodes; pass one (an EpisodeTokenizer)")
        self.tokenizer: EpisodeTokenizer = tokenizer
        max_steps = (default or tokenizer).max_steps if max_steps is None else max_steps
        if max_steps is None:
            raise TypeError(f"the maximum length of episodes of {name} is not known; pass max_steps")
        if max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {max_steps}")
        self.max_steps = max_steps
        self.agent, self._agent_state = agent, agent_state
        self.episodes, self.batch_size, self.seed, self.per = episodes, batch_size, seed, per
        self.dataset_id = dataset_id or (default.name if default else name)
        self._samples = self._generate()

    def __next__(self) -> Sample:
        return next(self._samples)

    def _generate(self) -> Iterator[Sample]:
        first = 0
        while self.episodes is None or first < self.episodes:
            count = self.batch_size if self.episodes is None else self.episodes - first
            yield from self._batch_samples(first, min(count, self.batch_size))
            first += self.batch_size

    def _batch_samples(self, first: int, count: int) -> list[Sample]:
        """Return the samples of `count` episodes, starting with episode `first`."""
        # The batch is always complete, so that no separate program is compiled for the last one.
        episode_ids = jnp.arange(first, first + self.batch_size, dtype=jnp.uint32)
        key = jax.random.key(self.seed)
        keys = _episode_keys(key, episode_ids)
        # The reset is outside the compiled rollout, so that the states given to the agent have their tasks.
        states, _ = batch_reset(keys, self.environment)
        # Independent of the episodes' keys, and different in each batch.
        agent_key = jax.random.fold_in(jax.random.fold_in(key, 2**32 - 1), episode_ids[0])
        trajectories = _rollout(
            self.environment,
            self.tokenizer,
            self.agent,
            (states, self._agent_state),
            keys,
            agent_key,
            self.max_steps,
        )
        # Arrays are copied to the host, with the episode axis first. Steps after the end of an episode are
        # dropped.
        host = jax.tree.map(lambda leaf: np.asarray(leaf).swapaxes(0, 1)[:count], trajectories)
        lengths = host.running.sum(axis=1)
        views, actions = jax.tree.map(lambda leaf: leaf[host.running], (host.views, host.actions))
        tokens = self.tokenizer.encode(views, actions)
        infos, done = jax.tree.map(lambda leaf: leaf[np.arange(count), lengths - 1], (host.infos, host.done))
        outcomes = EpisodeOutcomes(
            success=np.asarray(self.tokenizer.success(infos), bool),
            difficulty=self.tokenizer.difficulty(jax.tree.map(lambda leaf: leaf[:, 0], host.views)),
            terminated=np.asarray(done, bool) & ~np.asarray(infos.truncated, bool),
        )
        return create_episode_samples(
            [f"{self.dataset_id}_{self.seed}_{first + index}" for index in range(count)],
            lengths.astype(np.int64),
            tokens,
            host.rewards[host.running],
            outcomes,
            dataset_id=self.dataset_id,
            per=self.per,
        )


_episode_keys = jax.jit(jax.vmap(jax.random.fold_in, (None, 0)))


@eqx.filter_jit
def _rollout(
    environment: Environment,
    tokenizer: EpisodeTokenizer,
    agent: AgentFunction | None,
    initial: tuple[PyTree, PyTree],
    keys: Keys,
    agent_key: Any,
    max_steps: int,
) -> _Trajectories:
    """Run a batch of episodes for `max_steps` steps.

    Args:
        environment: The environment.
        tokenizer: Tokenizer whose `view` method extracts the parts of the states to record.
        agent: Function that chooses the actions. If None, random legal actions are taken.
        initial: Initial states of the environments, and the initial state of the agent.
        keys: Keys for random actions, one per environment. Only used if `agent` is None.
        agent_key: Key for the agent.
        max_steps: Number of steps.
    """

    def step(carry: tuple[PyTree, PyTree], index: Array) -> tuple[tuple[PyTree, PyTree], _Trajectories]:
        states, agent_state = carry
        running = ~environment.is_done(states)
        if agent is None:
            step_keys = jax.vmap(lambda key: jax.random.fold_in(key, index + 1))(keys)
            actions = jax.vmap(environment.sample_action)(step_keys, states)
        else:
            actions, agent_state = agent(states, agent_state, jax.random.fold_in(agent_key, index))
        views = tokenizer.view(states)
        states, _, rewards, done, infos = environment.batch_step(states, actions)
        return (states, agent_state), _Trajectories(views, actions, rewards, running, done, infos)

    return jax.lax.scan(step, initial, jnp.arange(max_steps))[1]
