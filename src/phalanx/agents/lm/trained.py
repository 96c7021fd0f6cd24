"""Language models of runs, of whatever kind of training: the model, and how it is asked.

Going on with a run is in `phalanx.runs`.
"""

import dataclasses
from pathlib import Path

import jax

from phalanx.agents.lm.config import LMTrainingConfig
from phalanx.agents.lm.grpo import GRPOTraining, GRPOTrainingConfig
from phalanx.agents.lm.model import LanguageModel, LanguageModelConfig
from phalanx.agents.lm.sources import tasks_of
from phalanx.agents.lm.tasks import Prompter, TextTask, read_tasks
from phalanx.agents.lm.training import load_language_model
from phalanx.runs.checkpoints import Which
from phalanx.runs.folder import read_config, read_facts
from phalanx.runs.loading import load_policy
from phalanx.runs.weights import Origin


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """A model, and what it was trained to answer."""

    model: LanguageModel
    prompter: Prompter
    tasks: tuple[TextTask, ...]
    compact: bool
    max_new_tokens: int = 64

    def untrained(self, seed: int = 0) -> "TrainedModel":
        """One like it that has learned nothing."""
        fresh = LanguageModel(self.model.config, key=jax.random.key(seed))
        return dataclasses.replace(self, model=fresh)


def load_trained(run: str | Path, which: Which = "newest") -> TrainedModel:
    """The model of a run of `phalanx train lm` or `phalanx train grpo`."""
    kind = read_facts(Path(run)).get("kind")
    if kind == "lm":
        config, model = load_language_model(run, which)
        data = config.data
        return TrainedModel(model, Prompter(data.tokenizer), tasks_of(data), data.compact)
    if kind != "grpo":
        raise ValueError(f"{run} is a run of kind {kind!r}, and no language model's")
    training = GRPOTraining(read_config(run, GRPOTrainingConfig))
    settings: GRPOTrainingConfig = training.config
    tasks = read_tasks(settings.environment, settings.difficulty, settings.turns)
    return TrainedModel(
        load_policy(training, run, which),
        Prompter(settings.tokenizer),
        tasks,
        settings.compact,
        settings.max_new_tokens,
    )


def settings_of(origin: str) -> list[str]:
    """Settings of a training that begins with a run: its model, tokenizer, prompts and puzzles."""
    run = Origin.parse(origin).run
    kind = read_facts(run).get("kind")
    if kind == "grpo":
        begun = read_config(run, GRPOTrainingConfig)
        model, tokenizer, compact = begun.model, begun.tokenizer, begun.compact
        tasks = read_tasks(begun.environment, begun.difficulty, begun.turns)
    elif kind == "lm":
        data = read_config(run, LMTrainingConfig).data
        model, tokenizer, compact = read_config(run, LMTrainingConfig).model, data.tokenizer, data.compact
        tasks = tasks_of(data)
    else:
        raise ValueError(f"{run} is a run of kind {kind!r}, and no language model's")
    named = [f"environment='{','.join(task.name for task in tasks)}'"] if tasks else []
    sizes = [f"model.{name}={getattr(model, name)}" for name in LanguageModelConfig.model_fields]
    return [*sizes, f"tokenizer={tokenizer}", f"compact={str(compact).lower()}", *named]
