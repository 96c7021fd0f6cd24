"""Curriculum over proof depths. The queries change in stages, after given numbers of environment steps."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32, PyTree

from phalanx.config import Config
from phalanx.core.environment import Environment, Key, Keys
from phalanx.core.evaluation import EvaluationConfig, EvaluationResult
from phalanx.core.expert import ExpertLabels
from phalanx.core.spaces import Space
from phalanx.data.episode_tokens import EpisodeTokenizer
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.env import ProofEnvironment, ProofInfo, admit_all_depths
from phalanx.proofs.expert import ShortestProofExpert
from phalanx.proofs.network import ProofNetwork, ProofNetworkConfig
from phalanx.proofs.state import ProofObservation, ProofState


class CurriculumState(eqx.Module):
    """State of the curriculum environment."""

    proof: ProofState
    """State of the proof environment."""
    clock: Int32[Array, "*batch"]
    """Number of steps that this environment has taken in all of its episodes."""


class DepthCurriculumExpert(ShortestProofExpert):
    """`ShortestProofExpert` for the states of a curriculum environment."""

    def label(self, states: Any, memory: Any) -> ExpertLabels:
        return super().label(states.proof, memory)


StepResult = tuple[
    CurriculumState, ProofObservation, Float32[Array, "*batch"], Bool[Array, "*batch"], ProofInfo
]


@dataclasses.dataclass(frozen=True)
class DepthCurriculumWrapper(Environment[CurriculumState, ProofObservation, Array]):
    """Proof environment with a curriculum: new episodes sample their queries from the current stage.

    Each environment of a batch counts its own steps in its state, so that a resumed run continues in the same
    stage. The first episode always belongs to the first stage. `ProofEnvironment.from_config` creates this
    wrapper if the config has a curriculum.
    """

    stages: tuple[ProofEnvironment, ...]
    """Environments of the stages, which differ only in their queries."""
    starts: tuple[int, ...]
    """Number of steps after which each stage begins. The first is 0, and they increase."""

    version: ClassVar[int] = ProofEnvironment.version
    config_type: ClassVar[type[Config]] = ProofEnvironment.config_type
    network_config: ClassVar[type[Config]] = ProofEnvironment.network_config
    evaluation_config: ClassVar[type[EvaluationConfig]] = ProofEnvironment.evaluation_config
    eval_config: ClassVar[type[Config]] = ProofEnvironment.eval_config

    def __post_init__(self) -> None:
        if len(self.stages) != len(self.starts) or self.starts[:1] != (0,):
            raise ValueError(
                f"each of the {len(self.stages)} stages needs a start, and the first must be 0; "
                f"got {self.starts}"
            )
        if any(a >= b for a, b in zip(self.starts, self.starts[1:], strict=False)):
            raise ValueError(f"the starts of stages must increase, got {self.starts}")

    @classmethod
    def from_config(  # type: ignore[override]
        cls, config: ProofConfig, *, knowledge_base: KnowledgeBase | None = None
    ) -> Any:
        """Create a wrapper, or a `ProofEnvironment` if the config has no curriculum.

        Args:
            config: The settings.
            knowledge_base: Knowledge base to use instead of `config.dataset`.
        """
        return ProofEnvironment.from_config(config, knowledge_base=knowledge_base)

    @classmethod
    def from_knowledge_base(
        cls, knowledge_base: KnowledgeBase, config: ProofConfig
    ) -> "DepthCurriculumWrapper":
        """Create an environment with the stages of `config.curriculum`.

        The first stage uses `config.queries`, unless a stage of the curriculum starts at step 0.
        """
        everything = ProofEnvironment.from_knowledge_base(
            knowledge_base, admit_all_depths(config), config.split
        )
        stages = {0: config.queries}
        stages |= {stage.from_step: stage.apply(config.queries) for stage in config.curriculum}
        return cls(tuple(map(everything.with_queries, stages.values())), tuple(stages))

    @classmethod
    def default_network(cls, settings: ProofConfig, config: ProofNetworkConfig, key: Key) -> ProofNetwork:
        return ProofEnvironment.default_network(settings, config, key)

    @property
    def config(self) -> ProofConfig:
        """The settings of the first stage."""
        return self.stages[0].config

    @property
    def max_episode_steps(self) -> int:
        return self.stages[0].max_episode_steps

    def at_step(self, step: int) -> ProofEnvironment:
        """Return the environment of the stage that is current after a number of steps."""
        return self.stages[int(np.searchsorted(self.starts, step, side="right")) - 1]

    @property
    def observation_space(self) -> Space:
        return self.stages[0].observation_space

    @property
    def action_space(self) -> Space:
        return self.stages[0].action_space

    def reset(self, key: Key) -> tuple[CurriculumState, ProofObservation]:
        state, observation = self.stages[0].reset(key)
        return CurriculumState(state, jnp.int32(0)), observation

    def batch_reset(self, keys: Keys) -> tuple[CurriculumState, ProofObservation]:
        states, observations = self.stages[0].batch_reset(keys)
        return CurriculumState(states, jnp.zeros(keys.shape[0], jnp.int32)), observations

    def batch_reset_where(
        self,
        mask: Bool[Array, " batch"],
        keys: Keys,
        states: CurriculumState,
        observations: ProofObservation,
    ) -> tuple[CurriculumState, ProofObservation]:
        stage = jnp.sum(states.clock[:, None] >= jnp.asarray(self.starts), axis=1) - 1
        proofs = states.proof
        for number, environment in enumerate(self.stages):
            rows = mask & (stage == number)
            proofs, observations = jax.lax.cond(
                jnp.any(rows),
                lambda *now, environment=environment, rows=rows: environment.batch_reset_where(
                    rows, keys, *now
                ),
                lambda *now: now,
                proofs,
                observations,
            )
        return CurriculumState(proofs, states.clock), observations

    def step(self, state: CurriculumState, action: Int32[Array, "*batch"]) -> StepResult:
        proof, observation, reward, done, info = self.stages[0].step(state.proof, action)
        return CurriculumState(proof, state.clock + 1), observation, reward, done, info

    def batch_step(self, states: CurriculumState, actions: Int32[Array, " batch"]) -> StepResult:
        return self.step(states, actions)

    def observe(self, state: CurriculumState) -> ProofObservation:
        return self.stages[0].observe(state.proof)

    def is_done(self, state: CurriculumState) -> Bool[Array, "*batch"]:
        return self.stages[0].is_done(state.proof)

    def sample_action(self, key: Key, state: CurriculumState) -> Int32[Array, ""]:
        return self.stages[0].sample_action(key, state.proof)

    def invalid_action(self, key: Key, state: CurriculumState) -> Int32[Array, ""]:
        return self.stages[0].invalid_action(key, state.proof)

    def comparable_state(self, state: CurriculumState) -> PyTree:
        return self.stages[0].comparable_state(state.proof)

    def legal_actions(self, state: CurriculumState) -> Bool[Array, "*batch actions"]:
        return self.stages[0].legal_actions(state.proof)

    def episode_metrics(self, info: Any) -> dict[str, Array]:
        return self.stages[0].episode_metrics(info)

    def evaluate(self, network: Any, settings: Any, final: bool) -> Sequence[EvaluationResult]:
        return self.stages[0].evaluate(network, settings, final)

    def held_out(self, settings: Any) -> ProofEnvironment:
        return self.stages[0].held_out(settings)

    def fingerprint(self) -> str:
        return "-".join(stage.fingerprint() for stage in self.stages)

    def metadata(self) -> dict[str, Any]:
        counts = [len(stage.queries) for stage in self.stages]
        return self.stages[0].metadata() | {"training_queries": counts}

    @property
    def render_modes(self) -> tuple[str, ...]:
        return self.stages[0].render_modes

    def render(self, state: CurriculumState, mode: str = "svg") -> str | None:
        return self.stages[0].render(state.proof, mode)

    def task_name(self, state: CurriculumState) -> str:
        return self.stages[0].task_name(state.proof)

    def expert(self) -> "DepthCurriculumExpert":
        return DepthCurriculumExpert(self.stages[0])

    def tokenizer(self) -> EpisodeTokenizer:
        return self.stages[0].tokenizer()

    @property
    def has_text(self) -> bool:
        return self.stages[0].has_text

    def observation_text(self, state: CurriculumState) -> str:
        return self.stages[0].observation_text(state.proof)

    def observation_texts(self, states: CurriculumState, prompt_format: str = "full") -> list[str]:
        return self.stages[0].observation_texts(states.proof, prompt_format)

    def parse_action(self, text: str, state: CurriculumState) -> Int32[Array, ""]:
        return self.stages[0].parse_action(text, state.proof)

    def parse_actions(
        self, texts: Sequence[str], states: CurriculumState
    ) -> tuple[Int32[Array, " batch"] | None, list[str]]:
        return self.stages[0].parse_actions(texts, states.proof)

    def action_text(self, action: Int32[Array, ""], state: CurriculumState) -> str:
        return self.stages[0].action_text(action, state.proof)
