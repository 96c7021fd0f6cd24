"""Proof environment steps per second: random legal actions with auto-reset in one compiled `scan`.

The queries are the training triples and the same number of corrupted triples. No other library is measured.
The closest alternative, the batched environment of DeepProofLog, is not available as a package.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32, UInt32

from benchmarks.datasets import load_knowledge_graph
from benchmarks.suite import Suite, Workload
from phalanx.core import AutoReset, AutoResetState
from phalanx.kg import KnowledgeBase
from phalanx.proofs import Program, ProofConfig, ProofEnvironment
from phalanx.proofs.vocabulary import ProofVocabulary

suite = Suite("proof_env", unit="steps/s", packages=("jax", "jaxlib"))

MAX_GOALS = 6
MAX_ACTIONS = {"generated": 64, "kg/family": 130, "kg/wn18rr": 262, "kg/countries_s3": 20}
"""Maximum number of legal actions in a state of each dataset."""


@dataclasses.dataclass
class RandomRolloutRunner:
    """Environments with compiled random rollouts. Each call of `run` continues from the previous state.

    Args:
        dataset: `generated`, or the folder of a dataset.
        backend: `native` or `xla`.
        num_envs: Number of environments.
        num_steps: Steps of each environment per call.
    """

    dataset: str
    backend: str = "native"
    num_envs: int = 256
    num_steps: int = 64

    def __post_init__(self) -> None:
        if self.dataset == "generated":
            data = KnowledgeBase.load("generated", on_leak="allow")
        else:
            data = load_knowledge_graph(self.dataset)
        vocabulary = ProofVocabulary(data, MAX_GOALS)
        program = Program.from_knowledge_base(data, vocabulary)
        config = ProofConfig(
            max_goals=MAX_GOALS,
            max_actions=MAX_ACTIONS[self.dataset],
            backend=self.backend,
            end_proof_action=True,
        )
        environment = ProofEnvironment.create(
            config, program, vocabulary.encode(data.facts), known=vocabulary.encode(tuple(data.known))
        )
        self.num_facts, self.num_rules = len(program.facts), len(program.heads)
        layer = AutoReset(environment, "same_step")
        state, _ = jax.jit(layer.reset)(jax.random.split(jax.random.PRNGKey(0), self.num_envs))
        self._carry: list[Any] = [state, jnp.uint32(0)]
        self._compiled = _rollout.lower(layer, self.num_steps, *self._carry).compile()
        self.num_proved = 0

    def run(self) -> None:
        """Step all environments `num_steps` times."""
        *self._carry, proved = self._compiled(*self._carry)
        self.num_proved += int(proved)


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def _rollout(
    layer: AutoReset, num_steps: int, state: AutoResetState, seed: UInt32[Array, ""]
) -> tuple[AutoResetState, UInt32[Array, ""], Int32[Array, ""]]:
    def body(carry: tuple[Any, ...], counter: UInt32[Array, ""]) -> tuple[tuple[Any, ...], None]:
        state, proved = carry
        actions = _random_actions(seed, counter, state.states.num_actions)
        state, _, _, done, result = layer.step(state, actions)
        return (state, proved + (done & result.info.proved).sum(dtype=jnp.int32)), None

    counters = jnp.arange(num_steps, dtype=jnp.uint32)
    (state, proved), _ = jax.lax.scan(body, (state, jnp.int32(0)), counters)
    return state, seed + jnp.uint32(1), proved


def _random_actions(
    seed: UInt32[Array, ""], counter: UInt32[Array, ""], num_actions: Int32[Array, " batch"]
) -> Int32[Array, " batch"]:
    """Return a random legal action for each environment, at little cost."""
    words = jax.random.bits(jnp.stack([seed, counter]), num_actions.shape, jnp.uint32)
    return (words % num_actions.astype(jnp.uint32)).astype(jnp.int32)


def _prepare(**settings: Any) -> Workload:
    rollout = RandomRolloutRunner(**settings)
    facts = {"num_facts": rollout.num_facts, "num_rules": rollout.num_rules}
    return Workload(rollout.run, rollout.num_envs * rollout.num_steps, facts)


for _dataset in MAX_ACTIONS:
    _name = _dataset.removeprefix("kg/")
    for _backend, _num_steps in (("native", 64), ("xla", 16)):
        suite.case(
            f"{_backend}-{_name}",
            group=_name,
            smoke={"dataset": "generated", "num_envs": 4, "num_steps": 2},
            dataset=_dataset,
            backend=_backend,
            num_steps=_num_steps,
        )(_prepare)
