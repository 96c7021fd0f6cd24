"""Language models of SFT and GRPO runs."""

import dataclasses
from pathlib import Path

import jax

from phalanx.lm.model import LanguageModel, LanguageModelConfig
from phalanx.lm.prompt_tokenizer import PromptTokenizer
from phalanx.text.env import PromptFormat
from phalanx.training.checkpoints import CheckpointRef, Which
from phalanx.training.grpo import GRPO, GRPOConfig
from phalanx.training.loading import restore_policy
from phalanx.training.run_dir import read_config, read_metadata
from phalanx.training.sft import SFT, SFTConfig, SFTData, trained_env
from phalanx.training.text_env import TrainingEnvConfig


@dataclasses.dataclass(frozen=True)
class TrainedLM:
    """The language model of a run, and the environment that it was trained on."""

    model: LanguageModel
    tokenizer: PromptTokenizer
    prompt_format: PromptFormat
    env: TrainingEnvConfig | None
    """None if the model was not trained on a text environment."""

    def untrained(self, seed: int = 0) -> "TrainedLM":
        """Return a new model with the same architecture."""
        return dataclasses.replace(self, model=LanguageModel(self.model.config, key=jax.random.key(seed)))


def load_trained_lm(run: str | Path, which: Which = "newest") -> TrainedLM:
    """Load the language model of a run. The training data is not opened."""
    config = _read_config(Path(run))
    algorithm = SFT(config, SFTData()) if isinstance(config, SFTConfig) else GRPO(config)
    return TrainedLM(
        restore_policy(algorithm, run, which),
        PromptTokenizer(config.tokenizer),
        config.prompt_format,
        trained_env(config) if isinstance(config, SFTConfig) else config.env,
    )


def load_language_model(
    run: str | Path, which: Which = "newest"
) -> tuple[SFTConfig | GRPOConfig, LanguageModel]:
    """Return a run's config and its model."""
    return _read_config(Path(run)), load_trained_lm(run, which).model


def inherited_settings(ref: str) -> list[str]:
    """Return the overrides that a training with `--init-from` takes over: model, tokenizer, prompts and
    env."""
    config = _read_config(CheckpointRef.parse(ref).run)
    env = trained_env(config) if isinstance(config, SFTConfig) else config.env
    settings = [f"model.{name}={getattr(config.model, name)}" for name in LanguageModelConfig.model_fields]
    settings += [f"tokenizer={config.tokenizer}", f"prompt_format={config.prompt_format}"]
    if env is not None and not env.is_puzzle_server:
        settings += [f"env.id='{env.id}'", f"env.difficulty={env.difficulty}", f"env.turns={env.turns}"]
        settings += [f"env.overrides=[{','.join(map(repr, env.overrides))}]"]
    return settings


def _read_config(run: Path) -> SFTConfig | GRPOConfig:
    kind = read_metadata(run).get("algorithm")
    if kind == "sft":
        return read_config(run, SFTConfig)
    if kind == "grpo":
        return read_config(run, GRPOConfig)
    raise ValueError(f"{run} is a run of {kind!r}; a language model needs a run of `sft` or `grpo`")
