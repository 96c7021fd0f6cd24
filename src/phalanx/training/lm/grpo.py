"""Learning from reward: a language model plays in groups, and what was better than its group is learned.

What a gradient step is, is in `grpo_update`; what is played, in `episodes`; playing is in `playing`.
"""

import concurrent.futures
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, PyTree
from pydantic import Field

from phalanx.core.environment import Key
from phalanx.io.atomic import atomic_write
from phalanx.io.checksum import read_verified_json, write_json
from phalanx.lm.episodes.arcade import PuzzleServerConfig, PuzzleServerSource
from phalanx.lm.episodes.opening import is_environment, local_source
from phalanx.lm.episodes.source import EpisodeId, EpisodeSource
from phalanx.lm.evaluation import evaluation_records, played_episodes, sampled_conversations
from phalanx.lm.model import LanguageModel, LanguageModelConfig
from phalanx.lm.playing import Conversation, LMPolicy, Turn, rollout
from phalanx.lm.sampling import SamplingConfig
from phalanx.lm.tasks import PromptTokenizer, read_tasks, split_of
from phalanx.logging.config import LoggingConfig
from phalanx.text.env import TextVectorEnvironment
from phalanx.training.algorithm import Algorithm, UpdateResult
from phalanx.training.config import CheckpointConfig, RunConfig
from phalanx.training.curriculum import Curriculum, CurriculumConfig
from phalanx.training.lm.config import LMEvaluationConfig, OptimizerConfig
from phalanx.training.lm.grpo_update import (
    Completion,
    GRPOConfig,
    GRPOState,
    GRPOTrainer,
    copy_params,
    group_advantages,
    turn_advantages,
)

_AHEAD = "played_ahead"
"""The folder of what was played and not yet learned from, one file for each checkpoint."""


class GRPOTrainingConfig(RunConfig):
    """Everything that shapes a training from reward."""

    preset_group = "train/grpo"

    seed: int = Field(default=0, ge=0)
    """Of the model, the puzzles and what is drawn."""
    num_updates: int = Field(default=100, ge=1)
    """Updates in all; each plays anew."""
    environment: str = "lights_out::multi"
    """Puzzles by name, as `sudoku,sokoban:easy:multi`; `puzzles` are all kinds. Or one environment with
    words: `arc`, `proofs`, or an id, as `arc-v2`."""
    overrides: tuple[str, ...] = ()
    """Settings of an environment that is named by its id, as `episode.max_episode_steps=20`."""
    arcade: PuzzleServerConfig = PuzzleServerConfig()
    """Games of a live server, which are played instead where it has an address."""
    difficulty: str = "easy"
    """How hard they are, where their names do not say."""
    turns: Literal["single", "multi"] = "single"
    """Whether a puzzle is answered as a whole or move by move, where its name does not say."""
    compact: bool = True
    """Whether puzzles and ARC are asked in few characters and without rules."""
    tokenizer: str = "characters"
    """What turns words into tokens."""
    max_new_tokens: int = Field(default=64, ge=1)
    """The longest answer."""
    legal_only: bool = False
    """Whether the model chooses among legal moves only, where a puzzle is played move by move."""
    sampling: SamplingConfig = SamplingConfig()
    """How answers are drawn."""
    model: LanguageModelConfig = LanguageModelConfig(vocab_size=98)
    """Its size; that of the run that it begins with."""
    grpo: GRPOConfig = GRPOConfig()
    """How it learns."""
    curriculum: CurriculumConfig = CurriculumConfig()
    """What it plays."""
    ahead: bool = False
    """Whether an update's puzzles are played while the one before it learns, by the model that begins it."""
    optimizer: OptimizerConfig = OptimizerConfig(
        learning_rate=3e-4, warmup=0, fall="constant", weight_decay=0.0
    )
    """How it moves; its `num_updates` is set by that of the training."""
    evaluation: LMEvaluationConfig = LMEvaluationConfig(every=20)
    """When it plays puzzles that it does not learn from."""
    checkpoint: CheckpointConfig = CheckpointConfig(every=20)
    """When it is saved."""
    logging: LoggingConfig = LoggingConfig(
        batched_logging_enabled=True, sampling_enabled=True, sample_frequency=20, log_frequency=1
    )
    """What is written of it."""

    @property
    def played(self) -> str:
        """What is played in process, by its whole name; empty where a server is played on."""
        if self.arcade.address or is_environment(self.environment):
            return "" if self.arcade.address else self.environment
        return ",".join(task.name for task in read_tasks(self.environment, self.difficulty, self.turns))

    def source(self) -> EpisodeSource:
        """What is played."""
        prompter = PromptTokenizer(self.tokenizer)
        if self.arcade.address:
            return PuzzleServerSource(self.arcade, prompter, self.difficulty)
        return local_source(self.played, prompter, compact=self.compact, overrides=self.overrides)


class RolloutBatch(NamedTuple):
    """The groups of an update: what was played, and what became of each attempt."""

    episodes: list[EpisodeId]
    told: list[list[Conversation]]

    @property
    def rewards(self) -> Float[np.ndarray, "groups attempts"]:
        return np.array([[one.total_reward for one in group] for group in self.told])

    @property
    def solved(self) -> Bool[np.ndarray, "groups attempts"]:
        return np.array([[one.solved for one in group] for group in self.told])

    def as_record(self) -> dict[str, Any]:
        """All of it, as plain values."""
        told = [[(one.turns, one.solved) for one in group] for group in self.told]
        return {"episodes": self.episodes, "told": told}

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> "RolloutBatch":
        """What `as_record` was made of."""
        told = [
            [Conversation([Turn(*turn) for turn in turns], solved) for turns, solved in group]
            for group in record["told"]
        ]
        return cls([EpisodeId(*episode) for episode in record["episodes"]], told)


class GRPOTraining(Algorithm[GRPOState]):
    """A language model that learns from the rewards of text environments.

    With `ahead` the puzzles of an update are played by the model as it was before the update before it: one
    step stale, which the ratio of probabilities corrects. Which weights wrote what is fixed all the same, and
    what was played and not yet learned from is saved with a checkpoint.
    """

    name = "grpo"
    config_type = GRPOTrainingConfig
    unit = "written_tokens"
    headline = ("reward_mean", "success_rate")

    def __init__(self, config: GRPOTrainingConfig) -> None:
        super().__init__(config)
        self._source = config.source()
        known = self._source.prompter.tokenizer.vocab_size
        if known > config.model.vocab_size:
            raise ValueError(
                f"the tokenizer has {known} tokens, the model knows "
                f"{config.model.vocab_size}; set model.vocab_size"
            )
        optimizer = config.optimizer.model_copy(update={"num_updates": config.num_updates})
        self._trainer = GRPOTrainer(config.model, optimizer, config.grpo, config.sampling.temperature)
        self._curriculum = Curriculum(self._source, config.curriculum, config.seed)
        self._ahead: RolloutBatch | None = None

    def init(self, key: Key, params: PyTree | None = None) -> GRPOState:
        """The initial model is also the reference model."""
        return self._trainer.start(key, params)

    def with_seed(self, seed: int) -> "GRPOTraining":
        return type(self)(self.config.model_copy(update={"seed": seed}))

    def policy(self, state: GRPOState) -> LanguageModel:
        """The model."""
        return self._trainer.model(state.params)

    def update(self, state: GRPOState) -> tuple[GRPOState, UpdateResult]:
        """Play groups, and learn from what was better or worse than its group."""
        settings, number, began = self.config.grpo, int(state.step), time.process_time()
        played = self._ahead or self._played(state.params, self._drawn(number), number)
        again = self._curriculum.known_again(played.episodes)
        self._curriculum.remember(played.episodes, played.solved)
        advantages = group_advantages(played.rewards, settings.scale)
        conversations = [one for group in played.told for one in group]
        by_turn = [[own] * len(one.turns) for one, own in zip(conversations, advantages.flat, strict=True)]
        if settings.credit == "turn":
            prompts = [[turn.prompt for turn in one.turns] for one in conversations]
            paid = [[turn.reward for turn in one.turns] for one in conversations]
            by_turn = turn_advantages(prompts, paid, settings.discount, settings.scale)
        answers = [
            Completion(turn.read, turn.written, turn.log_probs, float(advantage), turn.allowed)
            for one, own in zip(conversations, by_turn, strict=True)
            for turn, advantage in zip(one.turns, own, strict=True)
            # A puzzle of the training may lead through a board that is another puzzle's, held out.
            if not turn.board or split_of(turn.board) == "training"
        ]
        state, metrics = self._learned(state, answers, number)
        turns = [turn for one in conversations for turn in one.turns]
        metrics |= {
            "informative_groups": float(np.mean(np.any(advantages != 0, axis=1))),
            "processor_seconds": time.process_time() - began,
            "legal_rate": float(np.mean([not turn.refused for turn in turns])),
            "answer_tokens": float(np.mean([len(turn.written) for turn in turns])),
            "replayed": again / len(played.episodes),
            **{
                f"solved_{'_'.join(task.split(':')[:2])}": rate
                for task, rate in self._curriculum.rates.items()
            },
        }
        episodes = {
            "episode_returns": jax.device_put(played.rewards.reshape(-1).astype(np.float32)),
            "episode_lengths": jax.device_put(np.array([len(one.turns) for one in conversations], np.int32)),
            "success_mask": jax.device_put(played.solved.reshape(-1)),
        }
        counts = {"written_tokens": sum(len(turn.written) for turn in turns), "episodes": len(conversations)}
        return state, UpdateResult(metrics, episodes, counts)

    def _learned(
        self, learner: GRPOState, answers: Sequence[Completion], number: int
    ) -> tuple[GRPOState, dict[str, Any]]:
        """One step of the learner; with `ahead` the next update's puzzles are played beside it."""
        if not self.config.ahead:
            return self._trainer.update(learner, answers)
        # A step takes the memory of the arrays over, so the player has its own.
        arrays, episodes = copy_params(learner.params), self._drawn(number + 1)
        with concurrent.futures.ThreadPoolExecutor(1, "phalanx-player") as beside:
            later = beside.submit(self._played, arrays, episodes, number + 1)
            learner, metrics = self._trainer.update(learner, answers)
            self._ahead = later.result()
        return learner, metrics

    def _drawn(self, number: int) -> list[EpisodeId]:
        return self._curriculum.draw(number, self.config.grpo.groups)

    def _played(self, arrays: PyTree, episodes: list[EpisodeId], number: int) -> RolloutBatch:
        """Each of the episodes, as often as a group is large."""
        size, player = self.config.grpo.group_size, self._player(self._trainer.model(arrays))
        key = jax.random.fold_in(jax.random.key(self.config.seed), number)

        def start(batch: TextVectorEnvironment, place: int) -> list[Conversation]:
            return rollout(player, batch, jax.random.fold_in(key, place) if place else key)

        attempts = [episode for episode in episodes for _ in range(size)]
        told = played_episodes(self._source, attempts, start, len(attempts))
        return RolloutBatch(episodes, [told[at : at + size] for at in range(0, len(told), size)])

    def _player(self, model: LanguageModel) -> LMPolicy:
        config = self.config
        return LMPolicy(
            model, self._source.prompter, config.sampling, config.max_new_tokens, config.legal_only
        )

    def evaluate(self, state: GRPOState, update: int, final: bool) -> list[dict[str, Any]]:
        """Puzzles that it does not learn from, played greedily."""
        player = self._player(self.policy(state))
        return evaluation_records(player, self._source, self.config.evaluation.puzzles)

    def sample_episodes(self, state: GRPOState, key: Key, update: int) -> list[dict[str, Any]]:
        """A puzzle of each task, and what the model said."""
        return sampled_conversations(self._player(self.policy(state)), self._source, update)

    def data_fingerprint(self) -> str:
        return self._source.fingerprint

    def save_host_state(self, folder: Path, update: int, kept: Sequence[int]) -> dict[str, Any]:
        """What it knows of tasks and puzzles, and what was played ahead."""
        saved = self._curriculum.save()
        if self._ahead is None:
            return saved
        (folder / _AHEAD).mkdir(exist_ok=True)
        for path in (folder / _AHEAD).glob("*.json"):
            if path.stem.isdecimal() and int(path.stem) < min(kept, default=update):
                path.unlink()
        with atomic_write(folder / _AHEAD / f"{update}.json", "w", checksum=True) as file:
            write_json(file, self._ahead.as_record())
        return saved | {"ahead": f"{update}.json"}

    def restore_host_state(self, folder: Path, saved: Mapping[str, Any]) -> None:
        self._curriculum.restore(saved)
        if "ahead" in saved:
            self._ahead = RolloutBatch.of_record(read_verified_json(folder / _AHEAD / saved["ahead"]))

    def export(self, state: GRPOState, folder: Path) -> None:
        """Hang up, where a server was played on."""
        self._source.close()
