"""Training on proofs: its config, a curriculum by depth, and how environment, network and scores fit.

What every training with PPO has is in `ppo.training`; which queries a stage draws, in
`phalanx.proofs.queries`.
"""

import dataclasses
import functools
import hashlib
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32, PyTree
from pydantic import Field, model_validator

from phalanx.config import Config
from phalanx.core.environment import Environment, Key, Keys
from phalanx.core.evaluation import EvaluationConfig
from phalanx.core.spaces import Space
from phalanx.kg.kge.embedding import KGE, load_kge
from phalanx.kg.knowledge_base import GENERATED, KnowledgeBase, OnLeak
from phalanx.kg.time_limit import TimeLimit, print_to_stderr
from phalanx.proofs.config import ProofConfig, QueryConfig
from phalanx.proofs.env import ProofEnvironment, ProofInfo
from phalanx.proofs.evaluation import evaluate_prover, held_out_queries
from phalanx.proofs.network import ProofNetwork, ProofNetworkConfig, create_proof_network
from phalanx.proofs.state import ProofObservation, ProofState
from phalanx.proofs.vocabulary import ProofVocabulary
from phalanx.training.checkpoints import Which
from phalanx.training.distributed import DeviceMesh
from phalanx.training.loading import initial_policy, restore_policy
from phalanx.training.ppo import PPO, PPOConfig, PPOState, PPOTrainingConfig
from phalanx.training.run_dir import read_config


class CurriculumState(eqx.Module):
    """A proof's state, and how many steps the environment has taken in all its episodes."""

    proof: ProofState
    clock: Int32[Array, "*batch"]


StepResult = tuple[
    CurriculumState, ProofObservation, Float32[Array, "*batch"], Bool[Array, "*batch"], ProofInfo
]


@dataclasses.dataclass(frozen=True)
class DepthCurriculumWrapper(Environment[CurriculumState, ProofObservation, Array]):
    """Proof environments that differ in their queries alone: new episodes are those of the current stage.

    An environment counts its own steps, so that a training that goes on after an interruption is in the same
    stage. A first episode is always one of the first stage.
    """

    stages: tuple[ProofEnvironment, ...]
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

    def comparable_state(self, state: CurriculumState) -> PyTree:
        return self.stages[0].comparable_state(state.proof)

    def episode_metrics(self, info: Any) -> dict[str, Array]:
        return self.stages[0].episode_metrics(info)


class FamilyConfig(Config):
    """The generated knowledge base."""

    num_families: int = Field(default=8, ge=1)
    """Founding couples."""
    generations: int = Field(default=4, ge=2)
    """Generations, founders included."""
    seed: int = Field(default=0, ge=0)
    """What it is generated from."""


class CurriculumStage(Config):
    """Which positives are drawn from an update on; these stand in for those of `proofs.queries`."""

    update: int = Field(ge=0)
    """The update, counted from 0, with which the stage begins."""
    min_depth: int | None = None
    """Leave out positives of a smaller depth; -1 is the depth of what cannot be proved."""
    max_depth: int | None = None
    """Leave out positives of a greater depth."""
    depth_weights: tuple[tuple[int, float], ...] = ()
    """(depth, weight) pairs: draw the depth first, by weight; empty draws all queries alike."""

    def applied(self, queries: QueryConfig) -> QueryConfig:
        """A query config with this stage's depths."""
        depths = {name: getattr(self, name) for name in ("min_depth", "max_depth", "depth_weights")}
        return QueryConfig(**{**queries.model_dump(), **depths})


class ProofEvaluationConfig(EvaluationConfig):
    """On which queries a policy is measured, and when."""

    split: Literal["valid", "test", "train"] = "valid"
    """The queries to measure on, all depths of them; training draws from the split `train`."""
    num_queries: int | None = Field(default=500, ge=1)
    """How many of them at most, and as many corruptions; none for all."""


class ProofTrainingConfig(PPOTrainingConfig):
    """Everything that shapes a training on proofs."""

    preset_group = "train/proofs"

    dataset: str = GENERATED
    """The folder of a knowledge base, or `generated`."""
    on_leak: OnLeak = "drop"
    """What to do with facts that are queries of another split: `drop`, `warn`, `error` or `allow`."""
    generated: FamilyConfig = FamilyConfig()
    """The generated knowledge base, where it is the dataset."""
    depth_limit: int | None = Field(default=4, ge=1)
    """Depths of queries are computed, exactly, up to this; deeper ones count as -1. None computes nothing and
    takes the depths that the files give."""
    depth_seconds: float | None = Field(default=60.0, ge=0)
    """Time for computing depths; what is not settled then counts as -1. None takes all the time it needs."""
    proofs: ProofConfig = ProofConfig()
    """The environment and its queries."""
    curriculum: tuple[CurriculumStage, ...] = ()
    """Stages by depth; before the first, the queries are those of `proofs.queries`."""
    kge: str | None = None
    """An embedding that may close goals, a run of `phalanx train kge`; none for proofs alone."""
    network: ProofNetworkConfig = ProofNetworkConfig()
    """What acts."""
    ppo: PPOConfig = PPOConfig(num_envs=128, num_steps=128, chunk=None)
    """How it learns."""
    evaluation: ProofEvaluationConfig = ProofEvaluationConfig()
    """How it is measured."""

    @model_validator(mode="after")
    def _consistent(self) -> "ProofTrainingConfig":
        if self.dataset != GENERATED and self.generated != FamilyConfig():
            raise ValueError(
                f"generated shapes the generated knowledge base, and dataset is {self.dataset}: leave it out"
            )
        updates = [stage.update for stage in self.curriculum]
        if updates != sorted(set(updates)):
            raise ValueError(f"curriculum stages must begin one after the other, got updates {updates}")
        return self


load_proof_training = ProofTrainingConfig.load
"""A config: the preset `default` unless another is named, then overrides."""


def read_data(config: ProofTrainingConfig) -> tuple[KnowledgeBase, ProofVocabulary]:
    """The knowledge base that a config names, and the numbers of everything in it."""
    if config.dataset == GENERATED:
        data = KnowledgeBase.generate(on_leak=config.on_leak, **config.generated.model_dump())
    else:
        data = KnowledgeBase.load(config.dataset, on_leak=config.on_leak)
    return data, ProofVocabulary(data, config.proofs.max_goals)


def read_embedding(folder: str | Path | None, index: ProofVocabulary) -> KGE | None:
    """The embedding of a run of `phalanx train kge`, or of its model's folder; None of none."""
    return None if folder is None else load_kge(folder, index.kg)


@dataclasses.dataclass(frozen=True)
class ProofSetting:
    """What a config's training happens in."""

    data: KnowledgeBase
    index: ProofVocabulary
    stages: tuple[ProofEnvironment, ...]
    """The training environments, one for each stage of the curriculum."""
    starts: tuple[int, ...]
    """The update with which each begins."""
    held_out: ProofEnvironment
    """The queries that a policy is measured on, whatever their depth."""

    @classmethod
    def create(cls, config: ProofTrainingConfig) -> "ProofSetting":
        """Read, number and index everything."""
        data, index = read_data(config)
        settings = config.proofs
        open_to_all = settings.queries.model_copy(
            update={"min_depth": None, "max_depth": None, "depth_weights": ()}
        )
        everything = settings.model_copy(update={"queries": open_to_all})
        depths: dict[str, Any] = {
            "depth_limit": config.depth_limit, "time_limit": TimeLimit(config.depth_seconds, print_to_stderr),
            "kge": read_embedding(config.kge, index),
        }  # fmt: skip
        training = ProofEnvironment.from_knowledge_base(data, everything, "train", vocabulary=index, **depths)
        split = config.evaluation.split
        held_out = training
        if split != "train":
            held_out = ProofEnvironment.from_knowledge_base(
                data, everything, split, vocabulary=index, **depths
            )
            # The same facts and known triples; one of each is enough.
            held_out = dataclasses.replace(held_out, program=training.program, known=training.known)
        stages = {0: settings.queries}
        stages |= {stage.update: stage.applied(settings.queries) for stage in config.curriculum}

        def stage_of(queries: QueryConfig) -> ProofEnvironment:
            own = training.config.model_copy(update={"queries": queries})
            return dataclasses.replace(training, config=own, queries=training.queries.select(queries))

        return cls(
            data, index, tuple(stage_of(queries) for queries in stages.values()), tuple(stages), held_out
        )

    def environment(self, num_steps: int) -> Environment:
        """What is trained on, where an update takes so many steps of each environment."""
        if len(self.stages) == 1:
            return self.stages[0]
        return DepthCurriculumWrapper(self.stages, tuple(update * num_steps for update in self.starts))

    def stage_at(self, update: int) -> ProofEnvironment:
        """The environment of the stage that an update is in."""
        return self.stages[int(np.searchsorted(self.starts, update, side="right")) - 1]

    @property
    def fingerprint(self) -> str:
        """A digest of names, facts, rules and queries."""
        names = (*self.index.predicates, "", *self.index.constants)
        parts = [self.held_out.queries, *(stage.queries for stage in self.stages)]
        closers = [] if self.held_out.kge_scorer is None else [self.held_out.kge_scorer]
        whole = (self.held_out.program, self.held_out.known, *parts, *closers)
        digests = [part.fingerprint for part in whole]
        return hashlib.sha256("\n".join((*names, *digests)).encode()).hexdigest()[:16]

    def facts(self) -> dict[str, Any]:
        """For `run.json`: sizes, and how many of the measured queries have a proof at all."""
        data, depths = self.data, self.held_out.queries.depths
        return {
            "dataset": data.name,
            "entities": len(data.entities),
            "predicates": len(data.predicates),
            "rules": len(data.rules),
            "facts": len(data.facts),
            "training_queries": [len(stage.queries) for stage in self.stages],
            "held_out_queries": len(depths),
            "held_out_provable_share": float(np.mean(depths >= 0)),
        }


class ProofTraining(PPO):
    """PPO on the queries of a knowledge base; the data are read and checked here."""

    name = "proofs"
    config_type = ProofTrainingConfig
    score_name = "Right on held-out queries"

    def __init__(self, config: ProofTrainingConfig, *, mesh: DeviceMesh | None = None) -> None:
        self.setting = ProofSetting.create(config)
        super().__init__(
            config,
            self.setting.environment(config.ppo.num_steps),
            functools.partial(create_proof_network, config.network, self.setting.index),
            max_episode_steps=config.proofs.max_episode_steps,
            mesh=mesh,
        )
        self._measured = held_out_queries(self.setting.held_out, config.evaluation.num_queries)

    def evaluate(self, state: PPOState, update: int, final: bool) -> list[dict[str, Any]]:
        scores = evaluate_prover(self.setting.held_out, self.policy(state), self._measured)
        return [scores.as_record("held-out")]

    def sample_episodes(self, state: PPOState, key: Key, update: int) -> list[dict[str, Any]]:
        """Of the stage that the update is in; the states draw themselves."""
        from phalanx.proofs.rendering import render_episodes

        episodes = self.record_episodes(self.setting.stage_at(update), state, key, update)
        return render_episodes(episodes, self.setting.index)

    def metadata(self, state: PPOState) -> dict[str, Any]:
        return self.setting.facts()

    def data_fingerprint(self) -> str:
        return self.setting.fingerprint


def load_proof_policy(run: Path, which: Which = "newest") -> tuple[ProofTrainingConfig, ProofNetwork]:
    """A run's config and the network of its newest checkpoint, or another."""
    config = read_config(run, ProofTrainingConfig)
    training = ProofTraining(config, mesh=DeviceMesh(jax.devices()[:1]))
    return config, restore_policy(training, run, which)


def untrained_policy(config: ProofTrainingConfig) -> ProofNetwork:
    """The network that a training with this config starts from."""
    return initial_policy(ProofTraining(config, mesh=DeviceMesh(jax.devices()[:1])))
