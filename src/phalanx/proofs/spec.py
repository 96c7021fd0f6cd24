"""`SPEC`: how the proof environment is made, trained and evaluated."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from phalanx.core.evaluation import EvaluationConfig, EvaluationEpisodes, EvaluationResult
from phalanx.core.spec import EnvSpec, Evaluation
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.nn.distributions import Key
from phalanx.nn.policy_network import PolicyNetwork
from phalanx.proofs import text
from phalanx.proofs.config import ProofConfig, ProofEvaluationConfig
from phalanx.proofs.env import ProofEnvironment, admit_all_depths, load_knowledge_base
from phalanx.proofs.evaluation import evaluate_prover, query_groups, sample_held_out_queries
from phalanx.proofs.expert import ShortestProofExpert
from phalanx.proofs.link_prediction import LinkPredictionConfig, evaluate_with_config
from phalanx.proofs.network import ProofNetwork, ProofNetworkConfig
from phalanx.proofs.queries import SampledQuery
from phalanx.proofs.rendering import render_episodes
from phalanx.proofs.state import ProofState
from phalanx.proofs.vocabulary import ProofVocabulary


def make_proofs(config: ProofConfig, *, knowledge_base: KnowledgeBase | None = None) -> ProofEnvironment:
    """Create a proof environment.

    Args:
        config: Settings of the environment and its knowledge base.
        knowledge_base: Knowledge base to use instead of `config.dataset`.
    """
    knowledge_base = knowledge_base or load_knowledge_base(config)
    # A curriculum selects by sampling weights, so the environment has the queries of all stages.
    queries = admit_all_depths(config) if config.curriculum else config
    environment = ProofEnvironment.from_knowledge_base(knowledge_base, queries, config.split)
    if not config.curriculum:
        return environment
    config = config.model_copy(update={"backend": environment.config.backend})
    first, *_ = curriculum_stages(config).values()
    weights = jnp.asarray(environment.queries.cumulative_weights(first))
    return dataclasses.replace(environment, config=config, cumulative_weights=weights)


def curriculum_stages(config: ProofConfig) -> dict[int, Any]:
    """Return the query settings of each stage by the update in which it starts. The first starts at 0."""
    stages = {0: config.queries}
    stages |= {stage.start_update: stage.apply(config.queries) for stage in config.curriculum}
    return stages


@dataclasses.dataclass(frozen=True)
class ProofTasks:
    """Training queries, with the stages of the curriculum if there is one, and held-out queries."""

    environment: ProofEnvironment
    seed: int
    keeps_episodes = True

    @property
    def fingerprint(self) -> str:
        return self.environment.fingerprint

    @property
    def metadata(self) -> dict[str, Any]:
        """Name and sizes of the knowledge base, and the number of training queries in each stage."""
        counts = [len(self.environment.queries)]
        if self.environment.config.curriculum:
            cumulative: list[Any] = [env.cumulative_weights for env in self._stages.values()]
            counts = [int(np.count_nonzero(np.diff(stage, prepend=0))) for stage in cumulative]
        knowledge_base = self.environment.knowledge_base
        if knowledge_base is None:
            return {"training_queries": counts}
        sizes = knowledge_base.sizes()
        return {"dataset": sizes.pop("name"), **sizes, "training_queries": counts}

    def training(self, update: int) -> ProofEnvironment:
        if not self.environment.config.curriculum:
            return self.environment
        start = max(start for start in self._stages if start <= update)
        return self._stages[start]

    def held_out(self, settings: EvaluationConfig) -> ProofEnvironment:
        """Return an environment with all queries of `settings.split`, regardless of their depth."""
        split = getattr(settings, "split", "valid")
        if split not in self._held_out:
            environment = self.environment
            created = ProofEnvironment.from_knowledge_base(
                environment.require_knowledge_base(),
                admit_all_depths(environment.config),
                split,
                vocabulary=environment.vocabulary,
                kge=environment.kge,
            )
            # Facts and known triples are the same in all splits.
            self._held_out[split] = dataclasses.replace(
                created, program=environment.program, known=environment.known
            )
        return self._held_out[split]

    @functools.cached_property
    def _stages(self) -> dict[int, ProofEnvironment]:
        queries = self.environment.queries
        return {
            start: dataclasses.replace(
                self.environment, cumulative_weights=jnp.asarray(queries.cumulative_weights(stage))
            )
            for start, stage in curriculum_stages(self.environment.config).items()
        }

    # Cached because computing the depths of a split can take up to `depth_computation_seconds`.
    @functools.cached_property
    def _held_out(self) -> dict[str, ProofEnvironment]:
        return {}


def evaluate_greedy(
    tasks: ProofTasks, network: PolicyNetwork, settings: ProofEvaluationConfig, final: bool
) -> Sequence[EvaluationResult]:
    """Evaluate the greedy policy on held-out queries."""
    environment = tasks.held_out(settings)
    queries = sample_held_out_queries(environment, settings.max_positives)
    return (evaluate_prover(environment, network, queries),)


def evaluation_episodes(tasks: ProofTasks, settings: ProofEvaluationConfig) -> EvaluationEpisodes:
    """Return the episodes of an evaluation, with the groups of its result."""
    environment = tasks.held_out(settings)
    queries = jax.device_get(sample_held_out_queries(environment, settings.max_positives))
    return EvaluationEpisodes(environment, _reset_to_queries, queries, query_groups(queries))


def _reset_to_queries(environment: ProofEnvironment, queries: SampledQuery) -> Any:
    return environment.reset_to(*queries)


def evaluate_link_prediction(
    tasks: ProofTasks, network: Any, settings: LinkPredictionConfig, final: bool
) -> Sequence[EvaluationResult]:
    """Evaluate a policy by link prediction."""
    environment = tasks.environment
    data = environment.require_knowledge_base(), environment.require_vocabulary()
    return (
        evaluate_with_config(settings, environment.config, *data, policy=network, kge_action=environment.kge),
    )


def create_network(settings: ProofConfig, config: ProofNetworkConfig, key: Key) -> ProofNetwork:
    """Create a policy network for the predicates and constants of the knowledge base."""
    vocabulary = ProofVocabulary(load_knowledge_base(settings), settings.max_goals)
    return ProofNetwork(config, vocabulary, key=key)


def task_name(environment: ProofEnvironment, state: ProofState) -> str:
    """Return the query of a state as text, prefixed with `not` if the query is false.

    The name is empty if the environment has no vocabulary.
    """
    return "" if environment.vocabulary is None else text.query_name(state, environment.vocabulary)


SPEC = EnvSpec(
    make=make_proofs,
    config=ProofConfig,
    network=create_network,
    network_config=ProofNetworkConfig,
    evaluation=Evaluation(ProofEvaluationConfig, evaluate_greedy, evaluation_episodes),
    eval_command=Evaluation(LinkPredictionConfig, evaluate_link_prediction),
    tasks=ProofTasks,
    expert=ShortestProofExpert,
    text=text.ProofText,
    task_name=task_name,
    episode_view=lambda environment, records: render_episodes(records, environment.require_vocabulary()),
)
