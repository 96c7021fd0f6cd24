"""A curriculum by depth: one proof environment after another, each with queries of its own.

Which queries a stage draws is in `phalanx.proofs.queries`; a training's stages are set in `proof_training`.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32, PyTree

from phalanx.core.environment import Environment, Key, Keys
from phalanx.core.spaces import Space
from phalanx.proofs.environment import ProofEnv, ProofInfo
from phalanx.proofs.state import ProofObservation, ProofState


class CurriculumState(eqx.Module):
    """A proof's state, and how many steps the environment has taken in all its episodes."""

    proof: ProofState
    clock: Int32[Array, "*batch"]


StepResult = tuple[
    CurriculumState, ProofObservation, Float32[Array, "*batch"], Bool[Array, "*batch"], ProofInfo
]


@dataclasses.dataclass(frozen=True)
class CurriculumEnv(Environment[CurriculumState, ProofObservation, Array]):
    """Proof environments that differ in their queries alone: new episodes are those of the current stage.

    An environment counts its own steps, so that a training that goes on after an interruption is in the same
    stage. A first episode is always one of the first stage.
    """

    stages: tuple[ProofEnv, ...]
    starts: tuple[int, ...]
    """The number of steps from which on each stage counts; the first is 0."""

    def __post_init__(self) -> None:
        if len(self.stages) != len(self.starts) or self.starts[:1] != (0,):
            raise ValueError(f"{len(self.stages)} stages need as many starts, from 0 on, got {self.starts}")
        if any(a >= b for a, b in zip(self.starts, self.starts[1:], strict=False)):
            raise ValueError(f"stages must begin one after the other, got {self.starts}")

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
            wanted = mask & (stage == number)
            proofs, observations = jax.lax.cond(
                jnp.any(wanted),
                lambda *now, environment=environment, wanted=wanted: environment.batch_reset_where(
                    wanted, keys, *now
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

    def content(self, state: CurriculumState) -> PyTree:
        return self.stages[0].content(state.proof)
