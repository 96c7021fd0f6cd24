"""The proof environment: how episodes begin, step, pay and end.

How goals are expanded is in `resolution`, which queries are drawn in `queries`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32, PyTree, UInt32

from phalanx.core.backends import resolve_backend
from phalanx.core.environment import Environment, Key, Keys
from phalanx.core.spaces import Box, Composite, Discrete, Space
from phalanx.core.vector import map_where, select_rows
from phalanx.kg.chaining import depths_in_time
from phalanx.kg.kge.embedding import KGE
from phalanx.kg.knowledge_base import DataHandler
from phalanx.kg.time_limit import TimeLimit, to_stderr
from phalanx.kg.vocabulary import IndexManager
from phalanx.proofs import text as words
from phalanx.proofs.backends import resolution
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.embedding_action import KGELeafScorer, closer_of
from phalanx.proofs.program import Program
from phalanx.proofs.queries import SAMPLE_WORDS, NegativeSampler, QuerySet, SampledQueries, sample_query
from phalanx.proofs.reward import episode_reward
from phalanx.proofs.state import (
    TERMINATED,
    TRUNCATED,
    ExpandRequest,
    ProofObservation,
    ProofState,
    ResolutionSettings,
    SearchNode,
    empty_nodes,
    observation_of,
)


class ProofInfo(eqx.Module):
    """What a step tells besides state, observation, reward and done."""

    terminated: Bool[Array, "*batch"]
    """Whether the episode ended at True or False."""
    truncated: Bool[Array, "*batch"]
    """Whether it ran out of steps."""
    proved: Bool[Array, "*batch"]
    """Whether it ended at True."""
    given_up: Bool[Array, "*batch"]
    """Whether this step took the end action."""
    label: Bool[Array, "*batch"]
    """Whether the query is a true triple."""
    depth: Int32[Array, "*batch"]
    """The query's depth; -1 where it is not known, and for negatives."""
    step_count: Int32[Array, "*batch"]
    """Steps taken in this episode."""
    operation_type: Int32[Array, "*batch"]
    """The action that was carried out; -1 where it was invalid or the episode over."""
    overflow: Bool[Array, "*batch"]
    """Whether successors of the state were cut because there were more than `padding_states`."""
    too_long: Int32[Array, "*batch"]
    """Candidates of the state that were removed because they had more than `padding_atoms` goals."""
    skipped: Int32[Array, "*batch"]
    """States without a choice that the last valid step passed."""
    log_score: Float32[Array, "*batch"] | None = None
    """The sum of the logarithms of the probabilities of goals that an embedding closed; None without one."""


StepResult = tuple[ProofState, ProofObservation, Float32[Array, "*batch"], Bool[Array, "*batch"], ProofInfo]


@dataclasses.dataclass(frozen=True)
class ProofEnvironment(Environment[ProofState, ProofObservation, Array]):
    """Proof search over a knowledge graph: an agent reduces a query to nothing, one goal at a time.

    - Observation: the goals `sub_index` int32 [1, atoms, 3], what each action leads to,
      `derived_sub_indices` int32 [states, atoms, 3], `action_mask`, and numbers for bookkeeping; 4 in the
      place of 3 where a predicate has three arguments.
    - Action: the number of a successor; the first `state.count` are legal.
    - Reward: at the end of an episode, by `config.reward`; and a penalty for invalid actions.
    - Termination: True (proved) or False (failed or given up); truncation at `max_depth` steps. Such a state
      offers itself as its only successor.
    - With an embedding (`kge`), a state whose first goal is ground has one more successor: itself with that
      goal's `_kge` twin. Taking it drops the goal, and the probability counts; see `config.kge_reward`.

    Create it with `ProofEnvironment.from_data`, or from arrays with `ProofEnvironment.create`, which selects
    the backend and checks that queries and program fit.
    """

    config: ProofConfig
    program: Program
    queries: QuerySet
    """The queries that the config admits."""
    known: NegativeSampler
    names: IndexManager | None = dataclasses.field(default=None, compare=False, repr=False)
    """What the numbers are called, for words and pictures; equal environments may differ in it."""
    closer: KGELeafScorer | None = None
    """The embedding that may close goals, if there is one."""

    @classmethod
    def create(
        cls,
        config: ProofConfig,
        program: Program,
        queries: Int32[np.ndarray, "queries atom"],
        *,
        depths: Int32[np.ndarray, " queries"] | None = None,
        known: Int32[np.ndarray, "triples atom"] | None = None,
        domains: Int32[np.ndarray, " constants_and_one"] | None = None,
        names: IndexManager | None = None,
        kge: KGE | None = None,
    ) -> "ProofEnvironment":
        """The environment over some positive queries.

        Negatives are never facts, queries, or among the `known` triples (pass those of all splits), and stay
        within a constant's domain where `domains` numbers them. `kge` may close goals.
        """
        engine = resolve_backend(config.engine)
        all_known = np.concatenate([program.facts, queries, *(() if known is None else (known,))])
        arities = None if names is None else names.predicate_arities
        return cls(
            config.model_copy(update={"engine": engine}),
            program,
            QuerySet.create(queries, depths).selected(config.queries),
            NegativeSampler.create(
                all_known, program.num_predicates, program.num_constants, domains, arities
            ),
            names,
            closer_of(config, program, kge),
        )

    @classmethod
    def from_data(
        cls,
        config: ProofConfig,
        data_handler: DataHandler,
        split: str = "train",
        index_manager: IndexManager | None = None,
        *,
        depth_limit: int | None = None,
        budget: TimeLimit | None = None,
        kge: KGE | None = None,
    ) -> "ProofEnvironment":
        """The environment over the queries of a split, with negatives that no split has.

        Depths are those that the knowledge base gives, -1 where it gives none; with a `depth_limit` they are
        computed: the exact length of the shortest proof, -1 where none is found up to the limit or within the
        budget's time. The latter are said on stderr.
        """
        index = index_manager or IndexManager(data_handler, config.padding_atoms)
        if index.padding_atoms < config.padding_atoms:
            raise ValueError(
                f"the index manager has variables for {index.padding_atoms} atoms in a state, padding_atoms "
                f"is {config.padding_atoms}; make it with padding_atoms={config.padding_atoms}"
            )
        atoms = data_handler.queries(split)
        if not atoms:
            raise ValueError(f"{data_handler.dataset} has no {split} queries")
        queries, given = index.encode_atoms(atoms), data_handler.depths(split)
        if depth_limit is None:
            depths = np.array([(given or {}).get(atom, -1) for atom in atoms], np.int32)
        else:
            facts, rules = index.encode_atoms(data_handler.facts), index.encode_rules(data_handler.rules)
            budget = TimeLimit(say=to_stderr) if budget is None else budget
            depths, _ = depths_in_time(queries, facts, rules, depth_limit, budget)
        return cls.create(
            config,
            Program.of_data(data_handler, index),
            queries,
            depths=depths,
            known=index.encode_atoms(tuple(data_handler.known)),
            domains=index.constant_domains,
            names=index,
            kge=kge,
        )

    @property
    def observation_space(self) -> Space:
        atoms, states, terms = self.config.padding_atoms, self.config.padding_states, 1 + self.program.arity
        twins = 0 if self.closer is None else self.program.num_predicates
        largest = max(self.program.end_index + twins, self.program.num_constants + self.program.arity * atoms)
        deepest = max(int(self.queries.depths.max()), 0)
        fields: dict[str, Space] = {
            "sub_index": Box(0, largest, (1, atoms, terms), np.int32),
            "derived_sub_indices": Box(0, largest, (states, atoms, terms), np.int32),
            "action_mask": Box(0, 1, (states,), np.bool_),
            "label": Box(0, 1, (), np.bool_),
            "depth": Box(-1, deepest, (), np.int32),
            "step_count": Box(0, self.config.max_depth, (), np.int32),
        }
        return Composite.of(ProofObservation, fields)

    @property
    def action_space(self) -> Space:
        return Discrete(self.config.padding_states)

    def reset(self, key: Key) -> tuple[ProofState, ProofObservation]:
        return self._begin(self._query(_words(key)))

    def batch_reset(self, keys: Keys) -> tuple[ProofState, ProofObservation]:
        return self._begin(jax.vmap(self._query)(jax.vmap(_words)(keys)))

    def reset_to(
        self,
        query: Int32[Array, "*batch atom"],
        label: Bool[Array, "*batch"],
        depth: Int32[Array, "*batch"] | None = None,
    ) -> tuple[ProofState, ProofObservation]:
        """Start from given queries; one that is labeled positive may not prove itself.

        A query may have variables, C + 1, C + 2, ... in order of appearance.
        """
        depth = jnp.full(label.shape, -1, jnp.int32) if depth is None else depth
        return self._begin(SampledQueries(query, label, depth))

    def batch_reset_where(
        self, mask: Bool[Array, " batch"], keys: Keys, states: ProofState, observations: ProofObservation
    ) -> tuple[ProofState, ProofObservation]:
        blank = jnp.zeros((*mask.shape, SAMPLE_WORDS), jnp.uint32)
        words = map_where(_words, mask, keys, blank, shared=())
        old = SampledQueries(states.query, states.label, states.depth)
        drawn = select_rows(mask, jax.vmap(self._query)(words), old)
        state = self._started(mask, drawn, states)
        return state, observation_of(state)

    def step(self, state: ProofState, action: Int32[Array, "*batch"]) -> StepResult:
        program, config = self.program, self.config
        running = state.status == 0
        acts = running & (action >= 0) & (action < state.count)
        place = jnp.clip(action, 0, config.padding_states - 1)[..., None, None, None]
        chosen = jnp.take_along_axis(state.successors, place, axis=-3)[..., 0, :, :]
        given_up = acts & (chosen[..., 0, 0] == program.end_index)
        chosen = jnp.where(given_up[..., None, None], _mark(program, config.padding_atoms), chosen)
        log_score = state.log_score
        if self.closer is not None:
            chosen, gained = self.closer.close(program, chosen)
            gained = jnp.where(acts, gained, 0.0)
            log_score = gained if log_score is None else log_score + gained
        goals = jnp.where(acts[..., None, None], chosen, state.goals)

        node = self._expand(
            ExpandRequest(acts, state.query, state.label), state.node._replace(goals=goals), restart=False
        )
        end = node.goals[..., 0, 0]
        proved = end == program.true_index
        step_count = state.step_count + running
        terminated = proved | (end == program.false_index)
        truncated = ~terminated & (step_count >= config.max_depth)
        status = jnp.where(terminated, TERMINATED, jnp.where(truncated, TRUNCATED, 0)).astype(jnp.int32)
        done = status != 0

        reward = jnp.where(
            running & done, episode_reward(config, state.label, proved, given_up, log_score), jnp.float32(0)
        )
        if self.closer is not None and config.kge_reward == "log":
            reward += gained
        reward += jnp.where(running & ~acts, jnp.float32(config.reward.invalid_action_penalty), 0)
        drawn = SampledQueries(state.query, state.label, state.depth)
        new = ProofState(*node, *drawn, step_count, status, log_score)
        info = ProofInfo(
            terminated=terminated,
            truncated=truncated,
            proved=proved,
            given_up=given_up,
            label=state.label,
            depth=state.depth,
            step_count=step_count,
            operation_type=jnp.where(acts, action, -1).astype(jnp.int32),
            overflow=node.overflow,
            too_long=node.too_long,
            skipped=node.skipped,
            log_score=log_score,
        )
        return new, observation_of(new), reward, done, info

    def batch_step(self, states: ProofState, actions: Int32[Array, " batch"]) -> StepResult:
        return self.step(states, actions)

    def observe(self, state: ProofState) -> ProofObservation:
        return observation_of(state)

    def is_done(self, state: ProofState) -> Bool[Array, "*batch"]:
        return state.episode_done

    def sample_action(self, key: Key, state: ProofState) -> Int32[Array, ""]:
        """A random successor."""
        word = jax.random.bits(key, (), jnp.uint32)
        return (word % jnp.maximum(state.count, 1).astype(jnp.uint32)).astype(jnp.int32)

    def invalid_action(self, key: Key, state: ProofState) -> Int32[Array, ""]:
        """A masked-out action, or one below or above all of them."""
        states = self.config.padding_states
        word = jax.random.bits(key, (), jnp.uint32)
        beyond = (word % (states + 2 - state.count).astype(jnp.uint32)).astype(jnp.int32)
        action = state.count + beyond
        return jnp.where(action > states, -1, action)

    def comparable_state(self, state: ProofState) -> PyTree:
        zero = jnp.zeros_like(state.status)
        return dataclasses.replace(state, step_count=zero, status=zero)

    def legal_actions(self, state: ProofState) -> Bool[Array, "*batch states"]:
        return state.action_mask

    def episode_metrics(self, info: Any) -> dict[str, Array]:
        """Success is a right answer: a true query proved, a false one not.

        A proof with goals that an embedding closed counts where it is more likely to hold than not.
        """
        proved = jnp.asarray(info.proved)
        if info.log_score is not None:
            proved = proved & (jnp.asarray(info.log_score) > jnp.log(0.5))
        return {"success_mask": proved == jnp.asarray(info.label)}

    @property
    def render_modes(self) -> tuple[str, ...]:
        return () if self.names is None else ("svg", "ansi")

    def render(self, state: ProofState, mode: str = "svg") -> str | None:
        """The goals; with `ansi` also what each action leads to. None where the environment has no names."""
        if self.names is None:
            return None
        if mode == "svg":
            from phalanx.proofs.rendering import draw_state

            drawn: str = draw_state(state, self.names).as_svg()
            return drawn
        if mode == "ansi":
            return words.render_ansi(state, self.names)
        raise ValueError(f"proofs are drawn as svg or ansi, not as {mode!r}")

    def task_name(self, state: ProofState) -> str:
        """The query, with `not` before one that is false; empty where the environment has no names."""
        return "" if self.names is None else words.query_name(state, self.names)

    @property
    def has_text(self) -> bool:
        return self.names is not None

    def observation_text(self, state: ProofState) -> str:
        return words.observation_text(state, self._names(), self.config.max_depth)

    def parse_action(self, text: str, state: ProofState) -> Int32[Array, ""]:
        return jnp.int32(words.parse_action(text, state, self._names()))

    def observation_texts(self, states: ProofState, prompt_format: str = "full") -> list[str]:
        return words.observation_texts(states, self._names(), self.config.max_depth)

    def parse_actions(
        self, texts: Sequence[str], states: ProofState
    ) -> tuple[Int32[Array, " batch"] | None, list[str]]:
        found, reasons = words.parse_actions(texts, states, self._names())
        return None if found is None else jnp.asarray(found, jnp.int32), reasons

    def action_text(self, action: Int32[Array, ""], state: ProofState) -> str:
        return words.choices_of(state, self._names())[int(action)]

    def _names(self) -> IndexManager:
        if self.names is None:
            raise ValueError(
                "this environment was made of numbers and has no words; make it with ProofEnv.from_data, or "
                "with ProofEnv.create(..., names=IndexManager(...))"
            )
        return self.names

    def _query(self, words: UInt32[Array, " words"]) -> SampledQueries:
        return sample_query(self.config.queries, self.queries, self.known, words)

    def _begin(self, drawn: SampledQueries) -> tuple[ProofState, ProofObservation]:
        batch = drawn.label.shape
        zero = jnp.zeros(batch, jnp.int32)
        score = None if self.closer is None else jnp.zeros(batch, jnp.float32)
        blank = ProofState(*empty_nodes(self.config, self.program, batch), *drawn, zero, zero, score)
        state = self._started(jnp.ones(batch, bool), drawn, blank)
        return state, observation_of(state)

    def _started(self, mask: Bool[Array, "*batch"], drawn: SampledQueries, states: ProofState) -> ProofState:
        """New episodes where asked for."""
        first = jnp.zeros_like(states.goals).at[..., 0, :].set(drawn.query)
        goals = jnp.where(mask[..., None, None], first, states.goals)
        asked = ExpandRequest(mask, drawn.query, drawn.label)
        node = self._expand(asked, states.node._replace(goals=goals), restart=True)
        step_count, status = (jnp.where(mask, 0, clock) for clock in (states.step_count, states.status))
        score = None if states.log_score is None else jnp.where(mask, 0.0, states.log_score)
        return ProofState(*node, *drawn, step_count, status, score)

    def _expand(self, asked: ExpandRequest, node: SearchNode, *, restart: bool) -> SearchNode:
        expand = resolution.expand if self.closer is None else self.closer.expand
        return expand(ResolutionSettings.of(self.config, self.program), asked, node, restart=restart)


def _words(key: Key) -> UInt32[Array, " words"]:
    """The random words that choose a query."""
    return jax.random.bits(key, (SAMPLE_WORDS,), jnp.uint32)


def _mark(program: Program, atoms: int) -> Int32[Array, "atoms atom"]:
    return jnp.zeros((atoms, 1 + program.arity), jnp.int32).at[0, 0].set(program.false_index)
