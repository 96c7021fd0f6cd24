"""Language models of runs, of whatever kind of training: the model, and how it is asked.

Going on with a run is in `phalanx.training`.
"""

import dataclasses
from pathlib import Path

import jax

from phalanx.lm.model import LanguageModel, LanguageModelConfig
from phalanx.lm.tasks import PromptTokenizer
from phalanx.training.checkpoints import Which
from phalanx.training.lm.config import LMTrainingConfig
from phalanx.training.lm.grpo import GRPOTraining, GRPOTrainingConfig
from phalanx.training.lm.sources import played_name
from phalanx.training.lm.training import load_language_model
from phalanx.training.loading import restore_policy
from phalanx.training.run_dir import read_config, read_metadata
from phalanx.training.warm_start import CheckpointRef


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """A model, and what it was trained to answer."""

    model: LanguageModel
    prompter: PromptTokenizer
    played: str
    """By name, as `local_source` takes it; empty where it was trained on something else."""
    compact: bool
    max_new_tokens: int = 64
    overrides: tuple[str, ...] = ()
    """Settings of the environment that was played."""

    def untrained(self, seed: int = 0) -> "TrainedModel":
        """One like it that has learned nothing."""
        fresh = LanguageModel(self.model.config, key=jax.random.key(seed))
        return dataclasses.replace(self, model=fresh)


def load_trained(run: str | Path, which: Which = "newest") -> TrainedModel:
    """The model of a run of `phalanx train lm` or `phalanx train grpo`."""
    kind = read_metadata(Path(run)).get("kind")
    if kind == "lm":
        config, model = load_language_model(run, which)
        data = config.data
        return TrainedModel(model, PromptTokenizer(data.tokenizer), played_name(data), data.compact)
    if kind != "grpo":
        raise ValueError(f"{run} is a run of kind {kind!r}, and no language model's")
    training = GRPOTraining(read_config(run, GRPOTrainingConfig))
    settings: GRPOTrainingConfig = training.config
    return TrainedModel(
        restore_policy(training, run, which),
        PromptTokenizer(settings.tokenizer),
        settings.played,
        settings.compact,
        settings.max_new_tokens,
        settings.overrides,
    )


def settings_of(origin: str) -> list[str]:
    """Settings of a training that begins with a run: its model, tokenizer, prompts and puzzles."""
    run = CheckpointRef.parse(origin).run
    kind = read_metadata(run).get("kind")
    if kind == "grpo":
        begun = read_config(run, GRPOTrainingConfig)
        model, tokenizer, compact = begun.model, begun.tokenizer, begun.compact
        played, overrides = begun.played, begun.overrides
    elif kind == "lm":
        data = read_config(run, LMTrainingConfig).data
        model, tokenizer, compact = read_config(run, LMTrainingConfig).model, data.tokenizer, data.compact
        played, overrides = played_name(data), ()
    else:
        raise ValueError(f"{run} is a run of kind {kind!r}, and no language model's")
    named = [f"environment='{played}'"] if played else []
    if overrides:
        named.append(f"overrides=[{','.join(map(repr, overrides))}]")
    sizes = [f"model.{name}={getattr(model, name)}" for name in LanguageModelConfig.model_fields]
    return [*sizes, f"tokenizer={tokenizer}", f"compact={str(compact).lower()}", *named]
