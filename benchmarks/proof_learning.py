"""How fast provers train and rank, beside the figures of another prover: a record a figure.

How fast the environment steps is measured in `proofs`, which also makes the records and has the command line.
"""

import pathlib
import statistics
from collections.abc import Iterator
from typing import Any

import jax
from measuring.timing import seconds_of
from timed_training import TimedTraining, count_parameters

from phalanx.proofs.env import load_knowledge_base
from phalanx.proofs.link_prediction import LinkPredictionConfig, ProofLinkPrediction
from phalanx.proofs.vocabulary import ProofVocabulary
from phalanx.training.policy_algorithm import default_network
from phalanx.training.ppo import PPO, PPOConfig
from proofs import record_of

_PRESETS = {"countries_s3": "countries", "family": "family"}
_PPO_PEERS = {"countries_s3": {"eager": 178.0, "compiled": 211.0}, "family": {"eager": 33.0}}
"""Steps a second of the peer's PPO with a network of the same size."""
_PPO_TIMES = 10.0
_RANKING_PEER = {"countries_s3": {"eager": 14.0}}
"""Candidates a second."""
_RANKING_TIMES = 100.0
_QUICK = ("num_envs=8", "num_steps=8", "num_minibatches=2", "update_epochs=1")
_CANDIDATES = 1_200


def run(folder: pathlib.Path, repeats: int, quick: bool = False) -> Iterator[dict[str, Any]]:
    """PPO end to end and ranking, for what is at hand of the knowledge bases with known figures."""
    for dataset, preset in _PRESETS.items():
        path = folder / dataset
        if (path / "train.txt").is_file():
            config = PPOConfig.load(
                f"proofs_{preset}",
                (f"env.dataset={path}", *(_QUICK if quick else ())),
            )
            yield measure_ppo(dataset, config, repeats, judged=not quick)
            if dataset in _RANKING_PEER:
                yield measure_ranking(dataset, config, repeats, judged=not quick)


def measure_ppo(dataset: str, config: PPOConfig, repeats: int, *, judged: bool = True) -> dict[str, Any]:
    """Environment steps a second of whole updates: rollout, advantages, gradient steps."""
    experiment = PPO(config)
    training = TimedTraining(experiment)
    rates = [training.steps_per_update / seconds_of(training.update) for _ in range(repeats)]
    facts = {
        "batch": config.num_envs,
        "num_steps": config.num_steps,
        "epochs": config.update_epochs,
        "minibatches": config.num_minibatches,
        "padding_states": config.env.max_actions,
        "network": f"{config.network.embedding_dim} wide, {config.network.num_layers} layers",
        "num_parameters": count_parameters(training.state.params),
        "compile_seconds": round(training.compile_seconds, 2),
    }
    return _told("ppo", dataset, "steps/s", rates, facts, _PPO_PEERS, _PPO_TIMES if judged else None)


def measure_ranking(dataset: str, config: PPOConfig, repeats: int, *, judged: bool = True) -> dict[str, Any]:
    """Candidates a second of a policy's search, every one of them searched."""
    settings: Any = config.environment_settings
    data = load_knowledge_base(settings)
    index = ProofVocabulary(data, settings.max_goals)
    # Without the screen by forward chaining, which would answer for most of them.
    ranking = ProofLinkPrediction(data, index, settings, LinkPredictionConfig(skip_unprovable=False))
    score = ranking.policy_scorer(default_network(config)(jax.random.key(0)))
    triples = ranking.candidates(ranking.queries("test", None)).triples
    triples = triples[[number % len(triples) for number in range(_CANDIDATES)]]
    score(triples)
    rates = [len(triples) / seconds_of(lambda: score(triples)) for _ in range(repeats)]
    search = ranking.config.beam
    facts = {
        "candidates": len(triples),
        "beam_width": search.beam_width,
        "max_depth": search.max_depth,
        "network": f"{config.network.embedding_dim} wide, {config.network.num_layers} layers",
    }
    times = _RANKING_TIMES if judged else None
    return _told("ranking", dataset, "candidates/s", rates, facts, _RANKING_PEER, times)


def _told(
    figure: str,
    dataset: str,
    unit: str,
    rates: list[float],
    facts: dict[str, Any],
    known: dict[str, dict[str, float]],
    times: float | None,
) -> dict[str, Any]:
    """The record of some repeats, held to so many times the peer's figures; None for no target."""
    peers = known.get(dataset, {})
    targets = {} if times is None else {f"times_{name}": {"at_least": times} for name in peers}
    facts = {**facts, "repeats": len(rates), "worst": round(min(rates))}
    return record_of(
        figure, dataset, statistics.median(rates), unit, peers=peers, facts=facts, targets=targets
    )
