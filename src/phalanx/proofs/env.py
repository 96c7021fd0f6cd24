"""The proof environment, in which an agent proves queries from facts and rules."""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32, PyTree, UInt32

from phalanx.config import Config
from phalanx.core.backends import resolve_backend
from phalanx.core.environment import Environment, Key, Keys
from phalanx.core.evaluation import EvaluationConfig, EvaluationResult
from phalanx.core.spaces import Box, Composite, Discrete, Space
from phalanx.core.vector import host_rows, map_where, parse_each, select_rows
from phalanx.kg.kge.embedding import KGE, load_kge
from phalanx.kg.knowledge_base import GENERATED, KnowledgeBase, OnLeak
from phalanx.kg.proof_depths import NO_PROOF, compute_proof_depths
from phalanx.kg.time_limit import TimeLimit, print_to_stderr
from phalanx.proofs import backends, text
from phalanx.proofs.config import FamilyTreeConfig, ProofConfig, ProofEvaluationConfig, QueryConfig
from phalanx.proofs.embedding_action import KGEAction
from phalanx.proofs.link_prediction import LinkPredictionConfig, evaluate_with_config
from phalanx.proofs.network import ProofNetwork, ProofNetworkConfig
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
from phalanx.registry import config_from

if TYPE_CHECKING:
    from phalanx.proofs.expert import ShortestProofExpert


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


@dataclasses.dataclass(frozen=True)
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

    Use `ProofEnvironment.from_config` to create an environment from settings,
    `ProofEnvironment.from_knowledge_base` to create it from a knowledge base, and `ProofEnvironment.create`
    to create it from arrays.
    """

    config_type: ClassVar[type[Config]] = ProofConfig
    network_config: ClassVar[type[Config]] = ProofNetworkConfig
    evaluation_config: ClassVar[type[EvaluationConfig]] = ProofEvaluationConfig
    eval_config: ClassVar[type[Config]] = LinkPredictionConfig

    config: ProofConfig
    program: Program
    queries: PositiveQueries
    """Positives, selected by `config.queries`. Each episode starts from a positive or a corruption of one."""
    known: NegativeSamplingData
    """Known triples of all splits, which are never sampled as negatives."""
    vocabulary: ProofVocabulary | None = dataclasses.field(default=None, compare=False, repr=False)
    """Names of predicates and constants, for text and rendering. Ignored in comparisons."""
    kge_action: KGEAction | None = None
    """Action that closes a ground goal based on its embedding score instead of a proof. None if there is no
    embedding."""
    knowledge_base: KnowledgeBase | None = dataclasses.field(default=None, compare=False, repr=False)
    """Facts, rules and queries of all splits, for evaluations. Ignored in comparisons."""

    @classmethod
    def from_config(  # type: ignore[override]
        cls, config: ProofConfig, *, knowledge_base: KnowledgeBase | None = None
    ) -> "ProofEnvironment":
        """Create an environment, or a `DepthCurriculumEnvironment` if the config has a curriculum.

        Args:
            config: Settings for the environment and its knowledge base.
            knowledge_base: Knowledge base to use instead of `config.dataset`.
        """
        from phalanx.proofs.depth_curriculum import DepthCurriculumEnvironment

        knowledge_base = knowledge_base or load_knowledge_base(config)
        kind = DepthCurriculumEnvironment if config.curriculum else ProofEnvironment
        return kind.from_knowledge_base(knowledge_base, config, config.split)

    @classmethod
    def default_network(cls, settings: ProofConfig, config: ProofNetworkConfig, key: Key) -> ProofNetwork:
        """Create a policy network for the predicates and constants of the knowledge base.

        Args:
            settings: Settings of the environment, which determine the knowledge base.
            config: Settings of the network.
            key: PRNG key for the initial parameters.
        """
        vocabulary = ProofVocabulary(load_knowledge_base(settings), settings.max_goals)
        return ProofNetwork(config, vocabulary, key=key)

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
        config = config_from(ProofConfig, config, settings={**settings, "split": split})
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
    def max_episode_steps(self) -> int:
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

    def reset(self, key: Key) -> tuple[ProofState, ProofObservation]:
        return self._start(self._sample_query(_random_bits(key)))

    def batch_reset(self, keys: Keys) -> tuple[ProofState, ProofObservation]:
        return self._start(jax.vmap(self._sample_query)(jax.vmap(_random_bits)(keys)))

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

    def batch_reset_where(
        self, mask: Bool[Array, " batch"], keys: Keys, states: ProofState, observations: ProofObservation
    ) -> tuple[ProofState, ProofObservation]:
        blank = jnp.zeros((*mask.shape, NUM_RANDOM_BITS), jnp.uint32)
        bits = map_where(_random_bits, mask, keys, blank, shared=())
        queries = select_rows(mask, jax.vmap(self._sample_query)(bits), states.query)
        state = self._start_where(mask, queries, states)
        return state, observe(state)

    def step(self, state: ProofState, action: Int32[Array, "*batch"]) -> StepResult:
        program, config, query = self.program, self.config, state.query
        is_running = state.status == 0
        is_valid = is_running & (action >= 0) & (action < state.num_actions)
        index = jnp.clip(action, 0, config.max_actions - 1)[..., None, None, None]
        chosen = jnp.take_along_axis(state.successors, index, axis=-3)[..., 0, :, :]
        gave_up = is_valid & (chosen[..., 0, 0] == program.end_index)
        false_goals = jnp.zeros_like(chosen).at[..., 0, 0].set(program.false_index)
        chosen = jnp.where(gave_up[..., None, None], false_goals, chosen)
        log_score = state.log_score
        if self.kge_action is not None:
            chosen, gained = self.kge_action.close(program, chosen)
            gained = jnp.where(is_valid, gained, 0.0)
            log_score = gained if log_score is None else log_score + gained
        goals = jnp.where(is_valid[..., None, None], chosen, state.goals)

        request = ExpandRequest(is_valid, query.atom, query.label)
        node = self._expand(request, state.node._replace(goals=goals), clear_visited=False)
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
        if self.kge_action is not None and config.kge_reward == "log":
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

    def batch_step(self, states: ProofState, actions: Int32[Array, " batch"]) -> StepResult:
        return self.step(states, actions)

    def observe(self, state: ProofState) -> ProofObservation:
        return observe(state)

    def is_done(self, state: ProofState) -> Bool[Array, "*batch"]:
        return state.episode_done

    def sample_action(self, key: Key, state: ProofState) -> Int32[Array, ""]:
        """Sample a legal action in a single state, uniformly at random."""
        bits = jax.random.bits(key, (), jnp.uint32)
        return (bits % jnp.maximum(state.num_actions, 1).astype(jnp.uint32)).astype(jnp.int32)

    def invalid_action(self, key: Key, state: ProofState) -> Int32[Array, ""]:
        """Sample an action that is invalid in a single state, because it is masked or out of range."""
        max_actions = self.config.max_actions
        bits = jax.random.bits(key, (), jnp.uint32)
        excess = (bits % (max_actions + 2 - state.num_actions).astype(jnp.uint32)).astype(jnp.int32)
        action = state.num_actions + excess
        return jnp.where(action > max_actions, -1, action)

    def comparable_state(self, state: ProofState) -> PyTree:
        zero = jnp.zeros_like(state.status)
        return dataclasses.replace(state, step_count=zero, status=zero)

    def legal_actions(self, state: ProofState) -> Bool[Array, "*batch actions"]:
        return state.action_mask

    def episode_metrics(self, info: Any) -> dict[str, Array]:
        """Return `success_mask`, which is True if a true query was proved or a false query was not proved.

        If there is an embedding, a proof counts only if the product of the probabilities of the goals that
        the embedding closed is more than one half.
        """
        proved = jnp.asarray(info.proved)
        if info.log_score is not None:
            proved = proved & (jnp.asarray(info.log_score) > jnp.log(0.5))
        return {"success_mask": proved == jnp.asarray(info.label)}

    def evaluate(self, network: Any, settings: Any, final: bool) -> Sequence[EvaluationResult]:
        """Evaluate a policy with greedy episodes (during training) or by link prediction (in `phalanx eval`).

        Args:
            network: The policy network.
            settings: Determines the kind of evaluation: `LinkPredictionConfig` for link prediction, or
                `ProofEvaluationConfig` for greedy episodes.
            final: Ignored.
        """
        if isinstance(settings, LinkPredictionConfig):
            data = self._require_knowledge_base(), self._require_vocabulary()
            return (evaluate_with_config(settings, self.config, *data, policy=network, kge_action=self.kge),)
        from phalanx.proofs.evaluation import evaluate_prover, sample_held_out_queries

        environment = self.held_out(settings)
        queries = sample_held_out_queries(environment, settings.max_positives)
        return (evaluate_prover(environment, network, queries),)

    def held_out(self, settings: Any) -> "ProofEnvironment":
        """Return an environment with all queries of `settings.split`, regardless of their depth.

        The result is cached for each split.
        """
        split = settings.split
        if split not in self._held_out:
            environment = ProofEnvironment.from_knowledge_base(
                self._require_knowledge_base(),
                admit_all_depths(self.config),
                split,
                vocabulary=self.vocabulary,
                kge=self.kge,
            )
            # Facts and known triples are the same in all splits.
            self._held_out[split] = dataclasses.replace(environment, program=self.program, known=self.known)
        return self._held_out[split]

    # Cached because computing the depths of a split can take up to `depth_computation_seconds`.
    @functools.cached_property
    def _held_out(self) -> dict[str, "ProofEnvironment"]:
        return {}

    def fingerprint(self) -> str:
        """Return a digest of the embedding and of the knowledge base's names, facts, rules and queries."""
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

    def metadata(self) -> dict[str, Any]:
        """Return the name and sizes of the knowledge base, and the number of training queries."""
        if self.knowledge_base is None:
            return {"training_queries": [len(self.queries)]}
        sizes = self.knowledge_base.sizes()
        return {"dataset": sizes.pop("name"), **sizes, "training_queries": [len(self.queries)]}

    @property
    def render_modes(self) -> tuple[str, ...]:
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

    def task_name(self, state: ProofState) -> str:
        """Return the query of a single state as text, prefixed with `not` if the query is false.

        Returns an empty string if the environment has no vocabulary.
        """
        return "" if self.vocabulary is None else text.query_name(state, self.vocabulary)

    def render_episodes(self, episodes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Convert recorded episodes for rendering by replacing their states with `ProofFrame`s."""
        from phalanx.proofs.rendering import render_episodes

        return render_episodes(episodes, self._require_vocabulary())

    def expert(self) -> "ShortestProofExpert":
        from phalanx.proofs.expert import ShortestProofExpert

        return ShortestProofExpert(self)

    @property
    def has_text(self) -> bool:
        return self.vocabulary is not None

    def observation_text(self, state: ProofState) -> str:
        return text.observation_text(state, self._require_vocabulary(), self.config.max_episode_steps)

    def parse_action(self, answer: str, state: ProofState) -> Int32[Array, ""]:
        return jnp.int32(text.parse_action(answer, state, self._require_vocabulary()))

    def observation_texts(self, states: ProofState, prompt_format: str = "full") -> list[str]:
        return [self.observation_text(row) for row in host_rows(states, np.asarray)]

    def parse_actions(
        self, texts: Sequence[str], states: ProofState
    ) -> tuple[Int32[Array, " batch"] | None, list[str]]:
        rows = zip(texts, host_rows(states, np.asarray), strict=True)
        vocabulary = self._require_vocabulary()
        found, errors = parse_each(text.parse_action, ((answer, row, vocabulary) for answer, row in rows))
        return None if found is None else jnp.asarray(found, jnp.int32), errors

    def action_text(self, action: Int32[Array, ""] | np.integer, state: ProofState) -> str:
        return text.list_choices(state, self._require_vocabulary())[int(action)]

    def _require_vocabulary(self) -> ProofVocabulary:
        if self.vocabulary is None:
            raise ValueError(
                "this environment has no names and therefore no text; create it with "
                "ProofEnvironment.from_knowledge_base, or with ProofEnvironment.create(..., vocabulary=...)"
            )
        return self.vocabulary

    def _require_knowledge_base(self) -> KnowledgeBase:
        if self.knowledge_base is None:
            raise ValueError(
                "this environment has no knowledge base and therefore no evaluation; create it with "
                "ProofEnvironment.from_config or ProofEnvironment.from_knowledge_base"
            )
        return self.knowledge_base

    def _sample_query(self, bits: UInt32[Array, " bits"]) -> SampledQuery:
        return sample_query(self.config.queries, self.queries, self.known, bits)

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
