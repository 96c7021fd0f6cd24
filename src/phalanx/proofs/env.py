"""The proof environment, in which an agent proves queries from facts and rules."""

import dataclasses
import functools
import hashlib
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32, UInt32

from phalanx.config import load_config
from phalanx.core.backends import resolve_backend
from phalanx.core.environment import Environment, Key, array_field, host_field
from phalanx.core.spaces import Box, Composite, Discrete, Space
from phalanx.core.vector import map_where, select_rows
from phalanx.kg.kge.embedding import KGE, load_kge
from phalanx.kg.knowledge_base import GENERATED, KnowledgeBase, OnLeak
from phalanx.kg.proof_depths import NO_PROOF, compute_proof_depths
from phalanx.kg.time_limit import TimeLimit, print_to_stderr
from phalanx.proofs import backends, text
from phalanx.proofs.config import FamilyTreeConfig, ProofConfig, QueryConfig
from phalanx.proofs.embedding_action import KGEAction
from phalanx.proofs.program import Program
from phalanx.proofs.queries import (
    NUM_RANDOM_BITS,
    NegativeSamplingData,
    PositiveQueries,
    SampledQuery,
    sample_query,
)
from phalanx.proofs.reward import episode_reward
from phalanx.proofs.state import (
    TERMINATED,
    TRUNCATED,
    ExpandRequest,
    ProofObservation,
    ProofState,
    SearchNode,
    observe,
)
from phalanx.proofs.vocabulary import ProofVocabulary


class ProofInfo(eqx.Module):
    """Info that `ProofEnvironment.step` returns in addition to the observation, reward and done flag."""

    terminated: Bool[Array, "*batch"]
    """True if the episode ended because the query was proved, the proof failed or the agent gave up."""
    truncated: Bool[Array, "*batch"]
    """True if the episode reached the maximum number of steps without terminating."""
    proved: Bool[Array, "*batch"]
    """True if the episode ended with a proof of the query."""
    gave_up: Bool[Array, "*batch"]
    """True if the end action was taken in this step."""
    label: Bool[Array, "*batch"]
    """True if the query is true, and False if it is a corruption of a true query."""
    depth: Int32[Array, "*batch"]
    """Proof depth of the query, or -1 if it is not known or the query is a negative."""
    step_count: Int32[Array, "*batch"]
    """Number of steps taken in this episode."""
    action: Int32[Array, "*batch"]
    """The executed action, or -1 if the action was invalid or the episode had already ended."""
    overflow: Bool[Array, "*batch"]
    """True if successors of the current state were cut off because there were more than `max_actions`."""
    num_too_long: Int32[Array, "*batch"]
    """Number of successors that were removed because they had more than `max_goals` goals. Successors of
    skipped states (see `num_skipped`) are counted as well."""
    num_skipped: Int32[Array, "*batch"]
    """Number of states that the last valid step skipped because they had a single successor."""
    log_score: Float32[Array, "*batch"] | None = None
    """Sum of the log-probabilities of the goals that the KGE action removed in this episode. None if the
    environment has no embedding."""


StepResult = tuple[ProofState, ProofObservation, Float32[Array, "*batch"], Bool[Array, "*batch"], ProofInfo]


class ProofEnvironment(Environment[ProofState, ProofObservation, Array]):
    """Proof search over a knowledge graph.

    A state is a list of goals (atoms to prove). Initially, the query is the only goal. Each step resolves the
    first goal with a fact or a rule. If no goal is left, the query is proved.

    - Observation: `goals` (int32 [max_goals, 3]) contains the remaining goals, `successors` (int32
      [max_actions, max_goals, 3]) contains the goals after each action, and `action_mask` (bool
      [max_actions]) marks the legal actions. A goal is encoded as its predicate and two arguments, or three
      if a predicate of the knowledge base has three. The other fields are for bookkeeping.
    - Action: the index of a successor. The first `state.num_actions` actions are legal.
    - Reward: a reward at the end of an episode (see `ProofRewardConfig`), and a penalty for invalid actions.
    - Termination: an episode terminates in state `True` (proved) or `False` (failed or gave up). It is
      truncated after `max_episode_steps`. The only successor of a final state is the state itself.
    - Embedding: if an embedding is configured, a state whose first goal is ground (has no variables) has an
      additional successor. In this successor, the goal's predicate is replaced by a `_kge` predicate, and
      choosing it removes the goal without proving it. The goal's probability under the embedding affects
      the reward; see `ProofConfig.kge_reward`.

    Use `phalanx.make("proofs")` to create an environment from settings,
    `ProofEnvironment.from_knowledge_base` to create it from a knowledge base, and `ProofEnvironment.create`
    to create it from arrays.
    """

    config: ProofConfig
    program: Program
    queries: PositiveQueries
    """Positives, selected by `config.queries`. Each episode starts from a positive or a corruption of one."""
    known: NegativeSamplingData
    """Known triples of all splits, which are never sampled as negatives."""
    vocabulary: ProofVocabulary | None = host_field(default=None, repr=False)
    """Names of predicates and constants, for text and rendering."""
    kge_action: KGEAction | None = None
    """Action that closes a ground goal based on its embedding score instead of a proof. None if there is no
    embedding."""
    knowledge_base: KnowledgeBase | None = host_field(default=None, repr=False)
    """Facts, rules and queries of all splits, for evaluations."""
    cumulative_weights: Float32[Array, " queries"] | None = array_field(default=None)
    """Cumulative sampling probabilities of the queries in the current stage of a curriculum. None if there is
    no curriculum."""

    @classmethod
    def create(
        cls,
        config: ProofConfig,
        program: Program,
        queries: Int32[np.ndarray, "queries atom"],
        *,
        depths: Int32[np.ndarray, " queries"] | None = None,
        known: Int32[np.ndarray, "triples atom"] | None = None,
        vocabulary: ProofVocabulary | None = None,
        kge: KGE | None = None,
    ) -> "ProofEnvironment":
        """Create an environment from arrays of atoms that are encoded by a `ProofVocabulary`.

        Args:
            config: Settings of the environment. The backend `auto` is replaced as described in
                `resolve_backend`.
            program: Facts and rules.
            queries: True queries.
            depths: Proof depths of the queries, or -1 if a depth is not known. None means that no depth is
                known.
            known: Known triples of all splits, which are never sampled as negatives. Facts and queries are
                always included.
            vocabulary: Names of predicates and constants, for text and rendering. It also determines the
                domains of the constants: in a negative, a constant is replaced with another constant of the
                same domain. None means that there are no names, and that all constants are in one domain.
            kge: An embedding that can close ground goals without a proof. None means no embedding.
        """
        all_known = np.concatenate([program.facts, queries, queries[:0] if known is None else known])
        domains, arities = None, None
        if vocabulary is not None:
            domains, arities = vocabulary.constant_domains, vocabulary.predicate_arities
        sizes = program.num_predicates, program.num_constants
        return cls(
            config.model_copy(update={"backend": resolve_backend(config.backend)}),
            program,
            PositiveQueries.create(queries, depths).select(config.queries),
            NegativeSamplingData.create(all_known, *sizes, domains, arities),
            vocabulary,
            KGEAction.create(kge, config, program),
        )

    @classmethod
    def from_knowledge_base(
        cls,
        knowledge_base: KnowledgeBase,
        config: ProofConfig | None = None,
        split: str = "train",
        *,
        vocabulary: ProofVocabulary | None = None,
        kge: KGE | None = None,
        **settings: Any,
    ) -> "ProofEnvironment":
        """Create an environment for the queries of a split of a knowledge base.

        Args:
            knowledge_base: Facts, rules and queries. The atoms in `KnowledgeBase.known`, which include all
                splits, are never sampled as negatives.
            config: Settings of the environment. The curriculum, dataset and split are ignored. If None, the
                defaults are used.
            split: `train`, `valid` or `test`.
            vocabulary: Encodes the atoms of states. If None, it is created from the knowledge base and
                `max_goals`.
            kge: An embedding that can close ground goals without a proof. Defaults to the embedding of
                `config.kge`, if there is one.
            settings: Fields of `ProofConfig` that override `config`.
        """
        config = load_config(ProofConfig, config, settings={**settings, "split": split, "curriculum": ()})
        vocabulary = vocabulary or ProofVocabulary(knowledge_base, config.max_goals)
        if vocabulary.max_goals < config.max_goals:
            raise ValueError(
                f"the vocabulary has variables for {vocabulary.max_goals} goals, but max_goals is "
                f"{config.max_goals}; create it with max_goals={config.max_goals}"
            )
        atoms = knowledge_base.queries(split)
        if not atoms:
            raise ValueError(f"{knowledge_base.name} has no {split} queries")
        if config.compute_depths_up_to is None:
            given = knowledge_base.depths(split) or {}
            depths = np.array([given.get(atom, NO_PROOF) for atom in atoms], np.int32)
        else:
            found = compute_proof_depths(
                knowledge_base.triples(split),
                knowledge_base.triples("train"),
                knowledge_base.encoded_rules,
                config.compute_depths_up_to,
                TimeLimit(config.depth_computation_seconds, print_to_stderr),
            )
            depths = np.maximum(found, NO_PROOF)
        if kge is None and config.kge is not None:
            kge = load_kge(config.kge, vocabulary.kg)
        created = cls.create(
            config,
            Program.from_knowledge_base(knowledge_base, vocabulary),
            vocabulary.encode(atoms),
            depths=depths,
            known=vocabulary.encode(tuple(knowledge_base.known)),
            vocabulary=vocabulary,
            kge=kge,
        )
        return dataclasses.replace(created, knowledge_base=knowledge_base)

    def with_queries(self, queries: QueryConfig) -> "ProofEnvironment":
        """Return a copy of this environment with different query settings.

        The new settings select from this environment's queries, so they cannot add queries.
        """
        config = self.config.model_copy(update={"queries": queries})
        return dataclasses.replace(self, config=config, queries=self.queries.select(queries))

    @property
    def kge(self) -> KGE | None:
        """Embedding that can remove ground goals without a proof, or None if there is none."""
        return None if self.kge_action is None else self.kge_action.kge

    @property
    def max_episode_steps(self) -> int:  # type: ignore[override]
        return self.config.max_episode_steps

    @property
    def observation_space(self) -> Space:
        program, goals, actions = self.program, self.config.max_goals, self.config.max_actions
        num_kge = 0 if self.kge_action is None else program.num_predicates
        largest = max(program.end_index + num_kge, program.num_constants + program.arity * goals)
        max_depth = max(int(self.queries.depths.max()), 0)
        terms = 1 + program.arity
        fields: dict[str, Space] = {
            "goals": Box(0, largest, (goals, terms), np.int32),
            "successors": Box(0, largest, (actions, goals, terms), np.int32),
            "action_mask": Box(0, 1, (actions,), np.bool_),
            "label": Box(0, 1, (), np.bool_),
            "depth": Box(-1, max_depth, (), np.int32),
            "step_count": Box(0, self.config.max_episode_steps, (), np.int32),
        }
        return Composite.of(ProofObservation, fields)

    @property
    def action_space(self) -> Space:
        return Discrete(self.config.max_actions)

    def initial_state(self, key: Key) -> ProofState:
        return self._start(self._sample_query(_random_bits(key)))[0]

    def transition(self, state: ProofState, action: Int32[Array, "*batch"]) -> tuple[ProofState, Any, Any]:
        state, _, reward, _, _ = self.step(state, action)
        return state, reward, state.terminated

    def kernel(self) -> "ProofKernel":
        return ProofKernel(self)

    def reset_to(
        self,
        query: Int32[Array, "*batch atom"],
        label: Bool[Array, "*batch"],
        depth: Int32[Array, "*batch"] | None = None,
    ) -> tuple[ProofState, ProofObservation]:
        """Start episodes with given queries instead of sampled ones.

        Args:
            query: Encoded atoms. They can contain variables, numbered C + 1, C + 2, ... in order of first
                occurrence, where C is the number of constants.
            label: True for true queries, which are not used as facts in their own proofs.
            depth: Proof depth of each query. None means that depths are not known.
        """
        depth = jnp.full(label.shape, -1, jnp.int32) if depth is None else depth
        return self._start(SampledQuery(query, label, depth))

    def observe(self, state: ProofState) -> ProofObservation:
        return observe(state)

    def sample_action(self, key: Key, state: ProofState) -> Int32[Array, ""]:
        """Sample a legal action in a single state, uniformly at random."""
        bits = jax.random.bits(key, (), jnp.uint32)
        return (bits % jnp.maximum(state.num_actions, 1).astype(jnp.uint32)).astype(jnp.int32)

    def legal_actions(self, state: ProofState) -> Bool[Array, "*batch actions"]:
        return state.action_mask

    def metrics(self, state: ProofState) -> dict[str, Any]:
        """Return `success`, which is True if a true query was proved or a false query was not proved.

        If there is an embedding, a proof counts only if the product of the probabilities of the goals that
        the embedding closed is more than one half.
        """
        proved = state.goals[..., 0, 0] == self.program.true_index
        if state.log_score is not None:
            proved = proved & (state.log_score > jnp.log(0.5))
        return {"success": proved == state.query.label}

    @property
    def fingerprint(self) -> str:
        """Digest of the embedding and of the knowledge base's names, facts, rules and queries."""
        digest = hashlib.sha256()
        if self.vocabulary is not None:
            names = (*self.vocabulary.predicates, "", *self.vocabulary.constants)
            digest.update("\n".join(names).encode())
        for part in (self.program, self.known, self.queries, self.kge_action):
            digest.update(b"" if part is None else part.fingerprint.encode())
        if self.knowledge_base is not None:
            for split in ("valid", "test"):
                digest.update(self.knowledge_base.triples(split).tobytes())
        return digest.hexdigest()[:16]

    @property
    def render_modes(self) -> tuple[str, ...]:  # type: ignore[override]
        return () if self.vocabulary is None else ("svg", "ansi")

    def render(self, state: ProofState, mode: str = "svg") -> str | None:
        """Render a single state. `svg` draws its goals, and `ansi` lists its goals and successors as text.

        Returns None if the environment has no vocabulary.
        """
        if mode not in ("svg", "ansi"):
            raise ValueError(f"mode must be svg or ansi, got {mode!r}")
        if self.vocabulary is None:
            return None
        if mode == "ansi":
            return text.render_ansi(state, self.vocabulary)
        from phalanx.proofs.rendering import draw_state

        return str(draw_state(state, self.vocabulary).as_svg())

    def require_vocabulary(self) -> ProofVocabulary:
        """Return the vocabulary. Raises `ValueError` if there is none."""
        if self.vocabulary is None:
            raise ValueError(
                "this environment has no names and therefore no text; create it with "
                "ProofEnvironment.from_knowledge_base, or with ProofEnvironment.create(..., vocabulary=...)"
            )
        return self.vocabulary

    def require_knowledge_base(self) -> KnowledgeBase:
        """Return the knowledge base. Raises `ValueError` if there is none."""
        if self.knowledge_base is None:
            raise ValueError(
                "this environment has no knowledge base and therefore no evaluation; create it with "
                'phalanx.make("proofs") or ProofEnvironment.from_knowledge_base'
            )
        return self.knowledge_base

    def _sample_query(self, bits: UInt32[Array, " bits"]) -> SampledQuery:
        return sample_query(self.config.queries, self.queries, self.known, bits, self.cumulative_weights)

    def _start(self, query: SampledQuery) -> tuple[ProofState, ProofObservation]:
        batch = query.label.shape
        zero = jnp.zeros(batch, jnp.int32)
        score = None if self.kge_action is None else jnp.zeros(batch, jnp.float32)
        blank = ProofState(SearchNode.empty(self.config, self.program, batch), query, zero, zero, score)
        state = self._start_where(jnp.ones(batch, bool), query, blank)
        return state, observe(state)

    def _start_where(
        self, mask: Bool[Array, "*batch"], query: SampledQuery, states: ProofState
    ) -> ProofState:
        """Start new episodes where `mask` is True. Elsewhere, `query` must contain the current queries."""
        first = jnp.zeros_like(states.goals).at[..., 0, :].set(query.atom)
        goals = jnp.where(mask[..., None, None], first, states.goals)
        request = ExpandRequest(mask, query.atom, query.label)
        node = self._expand(request, states.node._replace(goals=goals), clear_visited=True)
        step_count, status, score = jax.tree.map(
            lambda leaf: jnp.where(mask, jnp.zeros_like(leaf), leaf),
            (states.step_count, states.status, states.log_score),
        )
        return dataclasses.replace(
            states, node=node, query=query, step_count=step_count, status=status, log_score=score
        )

    def _expand(self, request: ExpandRequest, node: SearchNode, *, clear_visited: bool) -> SearchNode:
        expand = backends.expand if self.kge_action is None else self.kge_action.expand
        return expand(self.config, self.program, request, node, clear_visited=clear_visited)


@dataclasses.dataclass(frozen=True)
class ProofKernel:
    """Resets and steps batches of proof environments with the native or XLA backend."""

    environment: ProofEnvironment

    def reset(self, keys: Any) -> tuple[ProofState, ProofObservation]:
        environment = self.environment

        def sample(key: Key) -> SampledQuery:
            return environment._sample_query(_random_bits(key))

        is_batch = jax.random.key_data(keys).ndim > 1
        return environment._start(jax.vmap(sample)(keys) if is_batch else sample(keys))

    def reset_where(
        self, mask: Bool[Array, " batch"], keys: Any, states: ProofState, observations: ProofObservation
    ) -> tuple[ProofState, ProofObservation]:
        blank = jnp.zeros((*mask.shape, NUM_RANDOM_BITS), jnp.uint32)
        bits = map_where(_random_bits, mask, keys, blank, shared=())
        queries = select_rows(mask, jax.vmap(self.environment._sample_query)(bits), states.query)
        state = self.environment._start_where(mask, queries, states)
        return state, observe(state)

    def step(self, state: ProofState, action: Int32[Array, "*batch"]) -> StepResult:
        environment = self.environment
        program, config, query = environment.program, environment.config, state.query
        is_running = state.status == 0
        is_valid = is_running & (action >= 0) & (action < state.num_actions)
        index = jnp.clip(action, 0, config.max_actions - 1)[..., None, None, None]
        chosen = jnp.take_along_axis(state.successors, index, axis=-3)[..., 0, :, :]
        gave_up = is_valid & (chosen[..., 0, 0] == program.end_index)
        false_goals = jnp.zeros_like(chosen).at[..., 0, 0].set(program.false_index)
        chosen = jnp.where(gave_up[..., None, None], false_goals, chosen)
        log_score = state.log_score
        if environment.kge_action is not None:
            chosen, gained = environment.kge_action.close(program, chosen)
            gained = jnp.where(is_valid, gained, 0.0)
            log_score = gained if log_score is None else log_score + gained
        goals = jnp.where(is_valid[..., None, None], chosen, state.goals)

        request = ExpandRequest(is_valid, query.atom, query.label)
        node = environment._expand(request, state.node._replace(goals=goals), clear_visited=False)
        end = node.goals[..., 0, 0]
        proved = end == program.true_index
        step_count = state.step_count + is_running
        terminated = proved | (end == program.false_index)
        truncated = ~terminated & (step_count >= config.max_episode_steps)
        status = jnp.where(terminated, TERMINATED, jnp.where(truncated, TRUNCATED, 0)).astype(jnp.int32)
        done = status != 0

        reward = jnp.where(
            is_running & done, episode_reward(config, query.label, proved, gave_up, log_score), jnp.float32(0)
        )
        if environment.kge_action is not None and config.kge_reward == "log":
            reward += gained
        reward += jnp.where(is_running & ~is_valid, jnp.float32(config.reward.invalid_action_penalty), 0)
        new = dataclasses.replace(state, node=node, step_count=step_count, status=status, log_score=log_score)
        info = ProofInfo(
            terminated=terminated,
            truncated=truncated,
            proved=proved,
            gave_up=gave_up,
            label=query.label,
            depth=query.depth,
            step_count=step_count,
            action=jnp.where(is_valid, action, -1).astype(jnp.int32),
            overflow=node.overflow,
            num_too_long=node.num_too_long,
            num_skipped=node.num_skipped,
            log_score=log_score,
        )
        return new, observe(new), reward, done, info


def _random_bits(key: Key) -> UInt32[Array, " bits"]:
    return jax.random.bits(key, (NUM_RANDOM_BITS,), jnp.uint32)


def admit_all_depths(config: ProofConfig) -> ProofConfig:
    """Return a copy of the settings in which queries are not selected or weighted by depth."""
    depths = {"min_depth": None, "max_depth": None, "depth_weights": ()}
    return config.model_copy(update={"queries": config.queries.model_copy(update=depths)})


def load_knowledge_base(config: ProofConfig) -> KnowledgeBase:
    """Load or generate the knowledge base that a config specifies."""
    if config.dataset == GENERATED:
        return _generate(config.generated, config.on_leak)
    return KnowledgeBase.load(config.dataset, on_leak=config.on_leak)


@functools.cache
def _generate(config: FamilyTreeConfig, on_leak: OnLeak) -> KnowledgeBase:
    return KnowledgeBase.generate(on_leak=on_leak, **config.model_dump())
