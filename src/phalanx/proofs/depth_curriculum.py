"""Curriculum over proof depths, in which the depths of the sampled queries change from stage to stage."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, PyTree

from phalanx.core.environment import Keys
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.env import ProofEnvironment, StepResult, admit_all_depths
from phalanx.proofs.queries import SampledQuery
from phalanx.proofs.state import ProofObservation, ProofState


class CurriculumProofState(ProofState):
    """A `ProofState` with a step counter that is not reset between episodes."""

    clock: Int32[Array, "*batch"] = dataclasses.field(kw_only=True)
    """Number of steps that this environment has taken in all of its episodes."""


@dataclasses.dataclass(frozen=True)
class DepthCurriculumEnvironment(ProofEnvironment):
    """Proof environment with a curriculum. New episodes sample their queries from the current stage.

    The current stage depends on the number of steps so far, which each environment of a batch counts
    separately. The counter starts at 0, so the first episode always belongs to the first stage. It is part of
    the state, so a resumed run continues in the same stage. `ProofEnvironment.from_config` creates a
    `DepthCurriculumEnvironment` if the config has a curriculum.
    """

    stages: tuple[ProofEnvironment, ...] = ()
    """One environment per stage. The environments differ only in their queries. The queries of this
    environment itself are those of the first stage."""
    starts: tuple[int, ...] = ()
    """Number of steps after which each stage begins, in ascending order. The first stage begins at 0."""

    @classmethod
    def from_knowledge_base(  # type: ignore[override]
        cls, knowledge_base: KnowledgeBase, config: ProofConfig, split: str = "train"
    ) -> "DepthCurriculumEnvironment":
        """Create an environment with the stages of `config.curriculum`.

        The first stage uses `config.queries`, unless a stage of the curriculum starts at step 0.
        """
        everything = ProofEnvironment.from_knowledge_base(knowledge_base, admit_all_depths(config), split)
        queries = {0: config.queries}
        queries |= {stage.start_step_per_env: stage.apply(config.queries) for stage in config.curriculum}
        stages = tuple(map(everything.with_queries, queries.values()))
        first = {field.name: getattr(stages[0], field.name) for field in dataclasses.fields(stages[0])}
        return cls(**first, stages=stages, starts=tuple(queries))

    def at_step(self, step: int) -> ProofEnvironment:
        """Return the environment of the stage that applies after `step` steps."""
        return self.stages[int(np.searchsorted(self.starts, step, side="right")) - 1]

    def batch_reset_where(
        self, mask: Bool[Array, " batch"], keys: Keys, states: Any, observations: ProofObservation
    ) -> tuple[CurriculumProofState, ProofObservation]:
        stage = jnp.sum(states.clock[:, None] >= jnp.asarray(self.starts), axis=1) - 1
        for number, environment in enumerate(self.stages):
            rows = mask & (stage == number)
            states, observations = jax.lax.cond(
                jnp.any(rows),
                functools.partial(environment.batch_reset_where, rows, keys),
                lambda *now: now,
                states,
                observations,
            )
        return states, observations

    def step(self, state: Any, action: Int32[Array, "*batch"]) -> StepResult:
        after: Any
        after, observation, reward, done, info = super().step(state, action)
        return dataclasses.replace(after, clock=state.clock + 1), observation, reward, done, info

    def comparable_state(self, state: Any) -> PyTree:
        return dataclasses.replace(super().comparable_state(state), clock=jnp.zeros_like(state.clock))

    def _start(self, query: SampledQuery) -> tuple[CurriculumProofState, ProofObservation]:
        state, observation = super()._start(query)
        return CurriculumProofState(**vars(state), clock=jnp.zeros_like(state.status)), observation

    def fingerprint(self) -> str:
        return "-".join(stage.fingerprint() for stage in self.stages)

    def metadata(self) -> dict[str, Any]:
        counts = [len(stage.queries) for stage in self.stages]
        return super().metadata() | {"training_queries": counts}
