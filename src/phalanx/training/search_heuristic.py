"""Training a guide for best-first search as a run: its config, its knowledge base, rounds, and loading it.

The network and what a round does are in `guide`, the search itself in `best_first`.
"""

import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from pydantic import Field

from phalanx.config import Config
from phalanx.core.environment import Key
from phalanx.core.evaluation import EvaluationConfig, EvaluationRecord, EvaluationResult
from phalanx.io.atomic import atomic_write
from phalanx.io.checksum import read_verified
from phalanx.kg.atoms import Atom, Rule
from phalanx.kg.formats import read_rules
from phalanx.kg.knowledge_base import GENERATED, KnowledgeBase
from phalanx.kg.vocabulary import check_name
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.program import Program
from phalanx.proofs.search.beam import SearchResult
from phalanx.proofs.search.best_first import Heuristic, best_first_search
from phalanx.proofs.search.goal_features import GoalFeatureExtractor
from phalanx.proofs.search.heuristic_training import (
    FoundProof,
    HeuristicConfig,
    HeuristicTrainer,
    untrained_heuristic,
)
from phalanx.proofs.search.heuristics import (
    ConfidenceHeuristic,
    HeuristicNetwork,
    LearnedHeuristic,
    UniformHeuristic,
)
from phalanx.proofs.vocabulary import ProofVocabulary
from phalanx.training.algorithm import Algorithm, TrainResult, TrainState, UpdateResult
from phalanx.training.checkpoints import CheckpointRef
from phalanx.training.config import CheckpointConfig, RunConfig
from phalanx.training.run_dir import read_config
from phalanx.training.trained_policy import restore_state

_EXAMPLES = "examples-{update}.npz"


class HeuristicEvaluationConfig(EvaluationConfig):
    """How a guide is measured, beside what has learned nothing."""

    every: int = Field(default=1, ge=0)
    """Rounds between evaluations; 0 for none but the first and the last."""
    queries: int = Field(default=64, ge=1)
    """Validation queries that are searched at most."""
    expansions: int = Field(default=100, ge=1)
    """Nodes of a query that are expanded at most."""


class HeuristicTrainingConfig(RunConfig):
    """Everything that shapes the training of a guide."""

    dataset: str = GENERATED
    """The folder of a knowledge base; `generated` for the built-in one."""
    rules: str | None = None
    """A file of rules to prove by, as `phalanx mine --out` writes it; null for the knowledge base's own."""
    predicates: tuple[str, ...] = ()
    """Queries of these predicates alone are searched; without any, of all that some rule has in its head."""
    guide: HeuristicConfig = HeuristicConfig()
    """The network, its rounds, and the searches that it learns from."""
    environment: ProofConfig = ProofConfig(max_actions=256, max_goals=6)
    """How goals are expanded."""
    evaluation: HeuristicEvaluationConfig = HeuristicEvaluationConfig()
    """How it is measured."""
    checkpoint: CheckpointConfig = CheckpointConfig(every=1, keep=1)
    """When it is saved, in rounds."""


class HeuristicData(NamedTuple):
    """A knowledge base as searches see it."""

    handler: KnowledgeBase
    names: ProofVocabulary
    program: Program
    features: GoalFeatureExtractor
    certain: bool
    """Whether all rules have the weight 1."""

    @classmethod
    def read(cls, dataset: str, rules: str | None = None, atoms: int = 6) -> "HeuristicData":
        """From a folder, and rules of the folder or of another file."""
        handler = KnowledgeBase.load(dataset, on_leak="drop")
        given: Sequence[Rule] = handler.rules if rules is None else read_rules(Path(rules))
        if not given:
            raise ValueError(
                f"{handler.name} has no rules to prove by: `phalanx kg mine {dataset} --out rules.txt` finds "
                "some, and rules=rules.txt names them"
            )
        index = ProofVocabulary(handler, atoms)
        weights = np.array([rule.weight for rule in given], np.float32)
        if weights.min() < 0 or weights.max() > 1:
            raise ValueError(f"rules need weights from 0 to 1, got {weights.min():g} to {weights.max():g}")
        program = Program.create(
            index.encode(handler.facts),
            index.encode_rules(given),
            index.num_predicates,
            index.num_constants,
        )
        return cls(handler, index, program, GoalFeatureExtractor(program, weights), bool(weights.min() == 1))

    def first(self, seed: int) -> Heuristic:
        """What the first round is guided by: the rules' weights, or nothing where all weigh alike."""
        return UniformHeuristic(seed) if self.certain else ConfidenceHeuristic(self.features.confidence)


class HeuristicState(TrainState):
    """The network and the step. The proofs found so far are stored in a file of their own."""


class HeuristicTraining(Algorithm[HeuristicState]):
    """A guide for best-first search: it learns from the searches that it has guided itself.

    Training queries are the facts, none of which proves itself. The validation queries, or else some facts
    that are kept from training, measure it: proofs found over nodes expanded.
    """

    name = "guide"
    config_type = HeuristicTrainingConfig
    unit = "queries"
    num_updates_setting = "guide.rounds"
    headline = ("proved", "proofs_per_expansion")

    def __init__(self, config: HeuristicTrainingConfig, data: HeuristicData | None = None) -> None:
        super().__init__(config)
        atoms = config.environment.max_goals
        self.data = HeuristicData.read(config.dataset, config.rules, atoms) if data is None else data
        train, self.valid = self._queries()
        self.trainer = HeuristicTrainer(
            config.guide,
            config.environment,
            self.data.program,
            self.data.features,
            train,
            first=self.data.first(config.guide.seed),
        )

    def _queries(self) -> tuple[np.ndarray, np.ndarray]:
        """Queries to learn from and to measure by, all of predicates that some rule has in its head."""
        index, handler = self.data.names, self.data.handler
        heads = np.unique(self.data.program.heads[:, 0])
        if wanted := self.config.predicates:
            for name in wanted:
                check_name(name, index.predicates, "predicate", Atom(name))
            heads = np.array([index.predicate_indices[name] for name in wanted])

        def asked(atoms: Sequence[Atom]) -> np.ndarray:
            rows = index.encode(atoms)
            return rows[np.isin(rows[:, 0], heads)]

        train, valid = asked(handler.facts), asked(handler.valid)
        order = np.random.default_rng(self.seed)
        if not len(valid):
            train = train[order.permutation(len(train))]
            held = max(1, len(train) // 10)
            train, valid = train[held:], train[:held]
        if not len(train):
            raise ValueError(f"{handler.name} has no fact of a predicate that a rule has in its head")
        return train, valid[np.sort(order.permutation(len(valid))[: self.config.evaluation.queries])]

    @property
    def seed(self) -> int:
        return self.config.guide.seed

    def init(self, key: Key, params: HeuristicNetwork | None = None) -> HeuristicState:
        """The seed in the config decides, not the key."""
        if params is None:
            params = untrained_heuristic(self.config.guide, self.data.program, self.data.features).network
        return HeuristicState(params, (), jnp.int32(0))

    def update(self, state: HeuristicState) -> tuple[HeuristicState, UpdateResult]:
        """One round."""
        network, tried = self.trainer.round(state.params, int(state.step))
        metrics = {
            "proved": float(tried.proved.mean()),
            "proofs_per_expansion": tried.proofs_per_expansion(),
            "examples": float(len(self.trainer.taught)),
        }
        counts = {"queries": len(tried.proved), "expansions": int(tried.expansions.sum())}
        return HeuristicState(network, (), state.step + 1), UpdateResult(metrics, counts=counts)

    def policy(self, state: HeuristicState) -> HeuristicNetwork:
        return state.params

    def evaluate(self, state: HeuristicState, settings: Config, final: bool) -> list[EvaluationResult]:
        """Proofs per expansion on validation queries; before the first round beside other searches."""
        guides: dict[str, Heuristic] = {"guide": self.guide_of(state.params)}
        if int(state.step) == 0:
            confident = ConfidenceHeuristic(self.data.features.confidence)
            guides |= {"uniform": UniformHeuristic(self.seed), "confidence": confident}
        return [
            EvaluationRecord({"split": "valid", "mode": mode, **self._figures(guide)})
            for mode, guide in guides.items()
        ]

    def _figures(self, guide: Heuristic) -> dict[str, Any]:
        search = self.config.guide.search.model_copy(
            update={"max_expansions": self.config.evaluation.expansions}
        )
        tried = self.search(guide, self.valid, search.max_expansions, search.max_depth)
        return {
            "queries": len(self.valid),
            "proved": int(tried.proved.sum()),
            "expanded": int(tried.expansions.sum()),
            "proofs_per_expansion": tried.proofs_per_expansion(),
        }

    def search(self, guide: Heuristic, queries: np.ndarray, expansions: int, max_depth: int) -> SearchResult:
        """A search of this training's knowledge base."""
        search = self.config.guide.search.model_copy(
            update={"max_expansions": expansions, "max_depth": max_depth}
        )
        return best_first_search(self.config.environment, self.data.program, guide, queries, search)

    def guide_of(self, network: HeuristicNetwork) -> LearnedHeuristic:
        """A network as a guide of this training's knowledge base."""
        return LearnedHeuristic(network, self.data.features, self.config.guide.value_weight)

    def metadata(self, state: HeuristicState) -> dict[str, Any]:
        program = self.data.program
        return {"num_facts": len(program.facts), "num_rules": len(program.heads)}

    def data_fingerprint(self) -> str:
        names = "\n".join((*self.data.names.predicates, "", *self.data.names.constants))
        digest = hashlib.sha256(names.encode() + self.data.program.fingerprint.encode())
        return digest.hexdigest()[:16]

    def save_host_state(self, folder: Path, update: int, kept: Sequence[int]) -> dict[str, Any]:
        """The proofs found so far, in a file of their own."""
        taught = self.trainer.taught
        packed = io.BytesIO()
        np.savez(
            packed,
            queries=np.array([one.query for one in taught], np.int32),
            steps=np.array([len(one.way) for one in taught], np.int64),
            states=np.array([len(one.lost) for one in taught], np.int64),
            goals=np.concatenate([part for one in taught for part in (one.way, one.lost)] or [np.zeros(0)]),
        )
        with atomic_write(folder / _EXAMPLES.format(update=update), checksum=True) as file:
            file.write(packed.getvalue())
        for path in folder.glob(_EXAMPLES.format(update="*")):
            if path.name not in {_EXAMPLES.format(update=number) for number in (*kept, update)}:
                path.unlink()
        return {"examples": _EXAMPLES.format(update=update)}

    def restore_host_state(self, folder: Path, saved: Mapping[str, Any]) -> None:
        data = read_verified(folder / saved["examples"], "train the guide again")
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            queries, steps, states, goals = (arrays[n] for n in ("queries", "steps", "states", "goals"))
        taught, at = [], 0
        for query, long, many in zip(queries, steps.tolist(), states.tolist(), strict=True):
            taught.append(FoundProof(query, goals[at : at + long], goals[at + long : at + long + many]))
            at += long + many
        self.trainer.learn(taught)

    def summarize(self, result: TrainResult) -> list[str]:
        first = {one["mode"]: one for one in reversed(result.evaluations)}
        last = next((one for one in reversed(result.evaluations) if one["mode"] == "guide"), None)
        if last is None:
            return []
        named = {"guide": "untrained"}
        beside = ", ".join(
            f"{named.get(mode, mode)} {one['proofs_per_expansion']:.3f} ({one['proved']} proved)"
            for mode, one in sorted(first.items())
            if one is not last
        )
        return [
            f"Validation: {last['proved']} of {last['queries']} queries proved, "
            f"{last['proofs_per_expansion']:.3f} proofs for each node expanded"
            + (f"; before the first round {beside}" if beside else "")
        ]


def load_heuristic(run: str | Path) -> tuple[HeuristicTraining, LearnedHeuristic]:
    """A run of `phalanx train guide`: its knowledge base, read again, and the guide that it has learned."""
    training = HeuristicTraining(read_config(Path(run), HeuristicTrainingConfig))
    return training, training.guide_of(training.policy(restore_state(training, CheckpointRef(Path(run)))))
