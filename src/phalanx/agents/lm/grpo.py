"""Learning from reward: a language model plays in groups, and what was better than its group is learned.

What a gradient step is, is in `grpo_update`; playing is in `playing`.
"""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from pydantic import Field

from phalanx.agents.lm.config import LMEvaluationConfig, OptimizerConfig
from phalanx.agents.lm.generation import SamplingConfig
from phalanx.agents.lm.grpo_update import (
    Answer,
    GRPOConfig,
    GRPOLearner,
    GRPOTrainer,
    group_advantages,
    turn_advantages,
    with_reference,
)
from phalanx.agents.lm.model import LanguageModel, LanguageModelConfig
from phalanx.agents.lm.playing import Conversation, Player, play
from phalanx.agents.lm.puzzle_scores import evaluation_records, sampled_conversations
from phalanx.agents.lm.tasks import Prompter, TextTask, puzzles_of, read_tasks, split_of
from phalanx.core.config import Config
from phalanx.core.environment import Key
from phalanx.core.text_environment import TextBatch
from phalanx.logs import LoggingConfig
from phalanx.puzzles.kind import Puzzle
from phalanx.runs.algorithm import Algorithm, CheckpointConfig, Report, RunConfig, Start, Update

_SEEDS, _OWN = 2**40, 2**61
"""Seeds of a run's puzzles; far from those of the demonstrations of the same run's seed."""


class CurriculumConfig(Config):
    """Which puzzles are played: most those that are solved sometimes."""

    memory: float = Field(default=0.9, ge=0, lt=1)
    """How much of a task's solved rate an update leaves as it was."""
    floor: float = Field(default=0.1, gt=0, le=1)
    """The least weight of a task, where 1 is that of one that is solved half of the time."""


class GRPOTrainingConfig(RunConfig):
    """Everything that shapes a training from reward."""

    presets = "train/grpo"

    seed: int = Field(default=0, ge=0)
    """Of the model, the puzzles and what is drawn."""
    num_updates: int = Field(default=100, ge=1)
    """Updates in all; each plays anew."""
    environment: str = "lights_out::multi"
    """Puzzles by name, as `sudoku,sokoban:easy:multi`; `puzzles` are all kinds."""
    difficulty: str = "easy"
    """How hard they are, where their names do not say."""
    turns: Literal["single", "multi"] = "single"
    """Whether a puzzle is answered as a whole or move by move, where its name does not say."""
    compact: bool = True
    """Whether puzzles are asked in few characters and without rules."""
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


class GRPOTraining(Algorithm[GRPOLearner]):
    """A language model that learns from the rewards of text environments."""

    kind = "grpo"
    config_type = GRPOTrainingConfig
    unit = "written_tokens"
    headline = ("reward_mean", "success_rate")

    def __init__(self, config: GRPOTrainingConfig) -> None:
        super().__init__(config, num_updates=config.num_updates, seed=config.seed)
        self._tasks = read_tasks(config.environment, config.difficulty, config.turns)
        self._prompter = Prompter(config.tokenizer)
        if self._prompter.tokenizer.vocab_size > config.model.vocab_size:
            raise ValueError(
                f"the tokenizer has {self._prompter.tokenizer.vocab_size} tokens, the model knows "
                f"{config.model.vocab_size}; set model.vocab_size"
            )
        optimizer = config.optimizer.model_copy(update={"num_updates": config.num_updates})
        self._trainer = GRPOTrainer(config.model, optimizer, config.grpo, config.sampling.temperature)
        self._rates = dict.fromkeys(self._tasks, 0.5)
        """How often each task is solved, as far as it is known."""
        self._seeds = dict.fromkeys(self._tasks, _OWN + _SEEDS * config.seed)
        """Where the puzzles of each task go on."""

    def compile(self) -> tuple[Start, Update]:
        """What is compiled is compiled by itself: writing, and a gradient step."""
        return self.start, self.update

    def start(self, key: Key) -> GRPOLearner:
        return self._trainer.start(key)

    def with_weights(self, learner: GRPOLearner, weights: PyTree) -> GRPOLearner:
        """The model that it begins with is also what it is compared with."""
        return with_reference(super().with_weights(learner, weights))

    def policy(self, learner: GRPOLearner) -> LanguageModel:
        """The model."""
        return self._trainer.model(learner.arrays)

    def update(self, learner: GRPOLearner) -> tuple[GRPOLearner, Report]:
        """Play groups, and learn from what was better or worse than its group."""
        settings, number, began = self.config.grpo, int(learner.update), time.process_time()
        chosen = self._chosen(number)
        key = jax.random.fold_in(jax.random.key(self.config.seed), number)
        told = self._played(learner, chosen, key)
        rewards = np.array([[one.total_reward for one in group] for group in told])
        solved = np.array([[one.solved for one in group] for group in told])
        advantages = group_advantages(rewards, settings.scale)
        conversations = [one for group in told for one in group]
        by_turn = [[own] * len(one.turns) for one, own in zip(conversations, advantages.flat, strict=True)]
        if settings.credit == "turn":
            prompts = [[turn.prompt for turn in one.turns] for one in conversations]
            paid = [[turn.reward for turn in one.turns] for one in conversations]
            by_turn = turn_advantages(prompts, paid, settings.discount, settings.scale)
        answers = [
            Answer(turn.read, turn.written, turn.log_probs, float(advantage), turn.allowed)
            for one, own in zip(conversations, by_turn, strict=True)
            for turn, advantage in zip(one.turns, own, strict=True)
            # A puzzle of the training may lead through a board that is another puzzle's, held out.
            if not turn.board or split_of(turn.board) == "training"
        ]
        learner, metrics = self._trainer.update(learner, answers)
        self._remember([task for task, _ in chosen], solved)
        turns = [turn for one in conversations for turn in one.turns]
        metrics |= {
            "informative_groups": float(np.mean(np.any(advantages != 0, axis=1))),
            "processor_seconds": time.process_time() - began,
            "legal_rate": float(np.mean([not turn.refused for turn in turns])),
            "answer_tokens": float(np.mean([len(turn.written) for turn in turns])),
            **{f"solved_{task.kind}_{task.difficulty}": rate for task, rate in self._rates.items()},
        }
        episodes = {
            "episode_returns": jnp.asarray(rewards.reshape(-1), jnp.float32),
            "episode_lengths": jnp.asarray([len(one.turns) for one in conversations], jnp.int32),
            "success_mask": jnp.asarray(solved.reshape(-1)),
        }
        counts = {"written_tokens": sum(len(turn.written) for turn in turns), "episodes": len(conversations)}
        return learner, Report(metrics, episodes, counts)

    def _chosen(self, number: int) -> list[tuple[TextTask, Puzzle]]:
        """A puzzle for each group, most of tasks that are solved sometimes."""
        draws = np.random.default_rng([self.config.seed, number])
        rates = np.array([self._rates[task] for task in self._tasks])
        weights = np.maximum(4 * rates * (1 - rates), self.config.curriculum.floor)
        counts = draws.multinomial(self.config.grpo.groups, weights / weights.sum())
        chosen = []
        for task, count in zip(self._tasks, counts.tolist(), strict=True):
            for puzzle in itertools.islice(self._puzzles(task), count):
                chosen.append((task, puzzle))
                self._seeds[task] = puzzle.seed + 1
        return chosen

    def _puzzles(self, task: TextTask) -> Iterator[Puzzle]:
        return puzzles_of(task, "training", first_seed=self._seeds[task], compact=self.config.compact)

    def _played(
        self, learner: GRPOLearner, chosen: Sequence[tuple[TextTask, Puzzle]], key: Key
    ) -> list[list[Conversation]]:
        size, environments = self.config.grpo.group_size, []
        for task, puzzle in chosen:
            for _ in range(size):
                environments.append(task.environment(compact=self.config.compact))
                environments[-1].begin(puzzle)
        told = play(self._player(learner), TextBatch(environments), key)
        return [told[at : at + size] for at in range(0, len(told), size)]

    def _remember(self, tasks: Sequence[TextTask], solved: np.ndarray) -> None:
        memory = self.config.curriculum.memory
        for task in dict.fromkeys(tasks):
            now = float(np.mean([own for other, own in zip(tasks, solved, strict=True) if other == task]))
            self._rates[task] = memory * self._rates[task] + (1 - memory) * now

    def _player(self, learner: GRPOLearner) -> Player:
        config = self.config
        return Player(
            self.policy(learner), self._prompter, config.sampling, config.max_new_tokens, config.legal_only
        )

    def evaluate(self, learner: GRPOLearner, update: int, last: bool) -> list[dict[str, Any]]:
        """Puzzles that it does not learn from, played greedily."""
        settings = self.config.evaluation
        return evaluation_records(self._player(learner), self._tasks, settings.puzzles, self.config.compact)

    def sample_episodes(self, learner: GRPOLearner, key: Key, update: int) -> list[dict[str, Any]]:
        """A puzzle of each task, and what the model said."""
        return sampled_conversations(self._player(learner), self._tasks, self.config.compact, update)

    def data_fingerprint(self) -> str:
        return " ".join(f"{task.name}@{task.environment().kind.version}" for task in self._tasks)

    def save(self, folder: Path, update: int, kept: Sequence[int]) -> dict[str, Any]:
        """What it knows of the tasks, and where their puzzles go on."""
        return {
            "rates": {task.name: rate for task, rate in self._rates.items()},
            "seeds": {task.name: seed for task, seed in self._seeds.items()},
        }

    def restore(self, folder: Path, saved: Mapping[str, Any]) -> None:
        self._rates = {task: float(saved["rates"][task.name]) for task in self._tasks}
        self._seeds = {task: int(saved["seeds"][task.name]) for task in self._tasks}
