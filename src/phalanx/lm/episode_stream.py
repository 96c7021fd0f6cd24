"""Episodes of Phalanx's own environments as token samples: many are played at once, then told step by step.

How a step becomes tokens is in `tokenizers`; agents that learn are in `phalanx.training`.
"""

import time
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int64, PyTree

from phalanx.core.environment import Environment, EnvironmentConfigLike, Keys, as_environment
from phalanx.core.episodes import AgentFunction
from phalanx.core.vector import batch_reset
from phalanx.data.episode_tokens import EpisodeOutcomes, EpisodeTokenizer, StepTokens, create_episode_samples
from phalanx.data.samples import Sample
from phalanx.data.stream_base import IteratedStream, StreamState
from phalanx.lm.episode_tokens import known_episodes


class _Play(NamedTuple):
    """What happened, time first: each leaf is `[steps, batch, ...]`."""

    seen: PyTree
    actions: PyTree
    rewards: Any
    runs: Any
    """Whether the episode was still running when the action was chosen."""
    done: Any
    infos: PyTree


class EnvironmentStream(IteratedStream):
    """Plays an environment and streams what happened as token samples. A `SampleStream`.

    Tokens of what was seen are read (loss mask 0), those of what was done are learned (1). With `per="step"`
    every step is a sample; with `per="episode"` a whole episode is. A sample knows its episode, its place in
    it, the step's reward (the episode's, for a whole one), its difficulty and whether it succeeded.

    `agent` is a function as `run_episode_batch` takes it: `agent(states, agent_states, key)` gives
    `(actions, new_agent_states)` for a whole batch; None plays random legal actions. The same arguments give
    the same samples; random episodes do not depend on `batch_size` either.
    """

    def __init__(
        self,
        env: Environment | EnvironmentConfigLike,
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
        filter_failures: bool = False,
    ) -> None:
        """`episodes` None streams without end; `max_steps` None is what the environment allows."""
        super().__init__()
        if batch_size < 1 or (episodes is not None and episodes < 1):
            raise ValueError(f"batch_size and episodes must be at least 1, got {batch_size} and {episodes}")
        self.environment = as_environment(env)
        known, name = known_episodes(self.environment), type(self.environment).__name__
        tokenizer = tokenizer or (known and known.tokenizer)
        if tokenizer is None:
            raise TypeError(f"how {name} becomes tokens is not known; pass a tokenizer (EpisodeTokenizer)")
        self.tokenizer: EpisodeTokenizer = tokenizer
        max_steps = known.max_steps if known and max_steps is None else max_steps
        if max_steps is None:
            raise TypeError("how long an episode may be is not known; pass max_steps")
        if max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {max_steps}")
        self.max_steps = max_steps
        self.agent, self._agent_state = agent, agent_state
        self.episodes, self.batch_size, self.seed, self.per = episodes, batch_size, seed, per
        self.dataset_id = dataset_id or (known.name if known else name)
        self.filter_failures = filter_failures

    def _samples(self) -> Iterator[Sample]:
        self._state = StreamState.STREAMING
        first = 0
        while self.episodes is None or first < self.episodes:
            begun = time.perf_counter()
            wanted = self.batch_size if self.episodes is None else min(self.batch_size, self.episodes - first)
            samples = self._batch(first, wanted)
            self._metrics.total_time_seconds += time.perf_counter() - begun
            for sample in samples:
                if self.filter_failures and not (sample.info and sample.info.success):
                    self._metrics.record_filtered()
                    continue
                self._metrics.record_sample(sample)
                yield sample
            first += wanted
        self._state = StreamState.EXHAUSTED

    def _batch(self, first: int, wanted: int) -> list[Sample]:
        """The samples of `wanted` episodes from number `first` on."""
        # Always a full batch, so that the last one needs no compilation of its own.
        numbers = jnp.arange(first, first + self.batch_size, dtype=jnp.uint32)
        key = jax.random.key(self.seed)
        keys = _keys(key, numbers)
        # Outside of the program that plays, so that the agent's states know their tasks.
        states, _ = batch_reset(keys, self.environment)
        # The agent's own randomness: apart from the episodes', and another one in each batch.
        agent_key = jax.random.fold_in(jax.random.fold_in(key, 2**32 - 1), numbers[0])
        play = _play(
            self.environment,
            self.tokenizer,
            self.agent,
            (states, self._agent_state),
            keys,
            agent_key,
            self.max_steps,
        )
        # Episode by episode, in NumPy, with the steps after an episode's end left out.
        host = jax.tree.map(lambda leaf: np.asarray(leaf).swapaxes(0, 1)[:wanted], play)
        steps = host.runs.sum(axis=1)
        rows = self.tokenizer.encode(*jax.tree.map(lambda leaf: leaf[host.runs], (host.seen, host.actions)))
        last = steps - 1
        ends = jax.tree.map(lambda leaf: leaf[np.arange(wanted), last], (host.infos, host.done))
        outcomes = EpisodeOutcomes(
            success=np.asarray(self.tokenizer.success(ends[0]), bool),
            difficulty=self.tokenizer.difficulty(jax.tree.map(lambda leaf: leaf[:, 0], host.seen)),
            terminated=np.asarray(ends[1], bool) & ~np.asarray(ends[0].truncated, bool),
        )
        for success in outcomes.success.tolist():
            self._metrics.record_episode(success)
        return self._tell(first, steps.astype(np.int64), rows, host.rewards[host.runs], outcomes)

    def _tell(
        self,
        first: int,
        steps: Int64[np.ndarray, " episodes"],
        rows: StepTokens,
        rewards: Any,
        outcomes: EpisodeOutcomes,
    ) -> list[Sample]:
        ids = [f"{self.dataset_id}_{self.seed}_{first + index}" for index in range(len(steps))]
        return create_episode_samples(
            ids, steps, rows, rewards, outcomes, dataset_id=self.dataset_id, per=self.per
        )


@jax.jit
def _keys(key: Any, numbers: Array) -> Keys:
    """A key of its own number for each episode."""
    return jax.vmap(lambda number: jax.random.fold_in(key, number))(numbers)


@eqx.filter_jit
def _play(
    environment: Environment,
    tokenizer: EpisodeTokenizer,
    agent: AgentFunction | None,
    start: tuple[PyTree, PyTree],
    keys: Keys,
    agent_key: Any,
    max_steps: int,
) -> _Play:
    """Whole episodes from their first states and the agent's."""

    def step(carry: tuple[PyTree, PyTree], time: Array) -> tuple[tuple[PyTree, PyTree], _Play]:
        states, agent_state = carry
        runs = ~environment.is_done(states)
        if agent is None:
            step_keys = jax.vmap(lambda k: jax.random.fold_in(k, time + 1))(keys)
            actions = jax.vmap(environment.sample_action)(step_keys, states)
        else:
            actions, agent_state = agent(states, agent_state, jax.random.fold_in(agent_key, time))
        seen = tokenizer.view(states)
        states, _, rewards, done, infos = environment.batch_step(states, actions)
        return (states, agent_state), _Play(seen, actions, rewards, runs, done, infos)

    return jax.lax.scan(step, start, jnp.arange(max_steps))[1]
