"""Language models on text puzzles: supervised fine-tuning (SFT) on solvers' answers, then GRPO.

The experiment `grpo` starts from a model that was trained with SFT for a short time and solves some puzzles.
It compares GRPO with a control that spends the same CPU time on more SFT. The experiment `sft` trains on ten
kinds of puzzles for longer. All success rates are measured with greedy decoding on puzzles of the test split,
whose prompts do not occur in training.

Runs are stored in `out/benchmarks/lm_puzzles`. A run that is complete is not trained again.
"""

import contextlib
import dataclasses
import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import REPOSITORY
from benchmarks.suite import Suite
from benchmarks.timing import Measurement
from phalanx.config import load_config
from phalanx.lm import LMPolicy
from phalanx.lm.evaluation import TextEvalConfig, TextEvalResult, evaluate_language_model
from phalanx.text.names import TextEnvConfig
from phalanx.training import GRPO, SFT, Algorithm, GRPOConfig, SFTConfig, load_policy, load_run_config, train

suite = Suite("lm_puzzles", unit="%", packages=("jax", "jaxlib", "equinox", "optax"))

RUNS = REPOSITORY / "out" / "benchmarks" / "lm_puzzles"
CPU_TIME_FILE = "cpu_time.json"
"""File in a run folder that has the CPU time of training. It exists only if the run is complete."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of the experiments.

    Attributes:
        env: Kinds of puzzles that GRPO and the control train on.
        num_initial_updates: Updates of the SFT run that GRPO and the control start from.
        num_grpo_updates: Updates of GRPO.
        num_calibration_updates: Updates of SFT that are timed to choose the number of updates of the control.
        seeds: Seeds of GRPO and of the control.
        num_sft_updates: Updates of the longer SFT run.
        num_episodes: Puzzles per kind that a model is evaluated on.
        overrides: Further settings of all runs.
    """

    env: str = "binary,nonogram"
    num_initial_updates: int = 600
    num_grpo_updates: int = 600
    num_calibration_updates: int = 60
    seeds: Sequence[int] = (1, 2)
    num_sft_updates: int = 3000
    num_episodes: int = 200
    overrides: Sequence[str] = ()


_SMOKE = Sizes(
    env="binary",
    num_initial_updates=1,
    num_grpo_updates=1,
    num_calibration_updates=1,
    seeds=(1,),
    num_sft_updates=1,
    num_episodes=2,
    overrides=("model.d_model=16", "model.num_layers=1", "model.num_heads=2", "model.d_ff=16"),
)
_SMOKE_SFT = (
    "env.id=binary,sudoku",
    "data.puzzle_weights={}",
    "data.token_budget=192",
    "data.packs_per_buffer=4",
    "data.num_eval_samples=2",
    "evaluation.num_episodes=1",
)
_SMOKE_GRPO = ("num_prompts=2", "num_generations=2", "max_completion_length=4", "evaluation.num_episodes=1")

_RANDOM = {"decoding": "random legal moves, one at a time"}


@dataclasses.dataclass(frozen=True)
class Runs:
    """Trains models and evaluates them, unless this was done before.

    Args:
        folder: Folder of the runs.
        sizes: Sizes of the experiments.
        smoke: Use tiny models and few puzzles.
    """

    folder: Path
    sizes: Sizes
    smoke: bool

    def initial(self) -> Path:
        """Train the model that GRPO and the control start from."""
        return self._train("initial", self._sft(f"num_updates={self.sizes.num_initial_updates}"))

    def grpo(self, seed: int) -> Path:
        """Continue the initial model with GRPO."""
        overrides = (f"env.id={self.sizes.env}", f"num_updates={self.sizes.num_grpo_updates}", f"seed={seed}")
        smoke = _SMOKE_GRPO if self.smoke else ()
        model = ("model.vocab_size=98", "model.num_layers=4")
        config = load_config(GRPOConfig, "puzzles", (*model, *self.sizes.overrides, *overrides, *smoke))
        return self._train(f"grpo-{seed}", config, self.initial())

    def control(self, seed: int, cpu_seconds: float) -> Path:
        """Continue the initial model with SFT on the same kinds of puzzles for about the given CPU time."""
        count = self.sizes.num_calibration_updates
        short, long = (
            _cpu_seconds(self._continue_sft(f"calibration-{updates}", seed, updates))
            for updates in (count, 2 * count)
        )
        # The difference excludes the time that compiling and evaluations take.
        per_update = max((long - short) / count, 1e-3)
        overhead = max(short - count * per_update, 0.0)
        updates = max(1, round((cpu_seconds - overhead) / per_update))
        return self._continue_sft(f"more-sft-{seed}", seed, 1 if self.smoke else updates)

    def sft(self) -> Path:
        """Train on ten kinds of puzzles."""
        return self._train("sft", self._sft(f"num_updates={self.sizes.num_sft_updates}"))

    def evaluate(self, run: Path, env: str) -> list[TextEvalResult]:
        """Evaluate a run and the baselines on puzzles of the test split, one result per kind and the mean."""
        policy = load_policy(run)
        assert isinstance(policy, LMPolicy)
        settings = TextEvalConfig(
            env=TextEnvConfig(id=env), episodes_per_task=self.sizes.num_episodes, num_sampled_attempts=0
        )
        return evaluate_language_model(policy, settings)

    def _sft(self, *overrides: str) -> SFTConfig:
        # The preset logs sampled conversations, which would count as training time.
        common = ("logging.sample_frequency=0", "checkpoint.every=1000000")
        smoke = _SMOKE_SFT if self.smoke else ()
        return load_config(SFTConfig, "puzzles", (*common, *smoke, *self.sizes.overrides, *overrides))

    def _continue_sft(self, name: str, seed: int, updates: int) -> Path:
        overrides = (
            f"env.id={self.sizes.env}",
            "data.puzzle_weights={}",
            f"num_updates={updates}",
            f"seed={seed}",
        )
        # As the preset of GRPO: 50 puzzles of each kind after every sixth of the run.
        evaluation = (f"evaluation.every={max(1, updates // 6)}", "evaluation.num_episodes=50")
        config = self._sft(*overrides, *(() if self.smoke else evaluation))
        return self._train(name, config, self.initial())

    def _train(self, name: str, config: SFTConfig | GRPOConfig, init_from: Path | None = None) -> Path:
        folder = self.folder / name
        if (folder / CPU_TIME_FILE).exists():
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        start = time.process_time()
        algorithm: Algorithm = GRPO(config) if isinstance(config, GRPOConfig) else SFT(config)
        train(algorithm, folder, init_from=None if init_from is None else str(init_from))
        record = {"cpu_seconds": time.process_time() - start, "num_updates": config.num_updates}
        (folder / CPU_TIME_FILE).write_text(json.dumps(record))
        return folder


def _cpu_seconds(run: Path) -> float:
    return json.loads((run / CPU_TIME_FILE).read_text())["cpu_seconds"]


def _facts(run: Path) -> dict[str, Any]:
    """Return the training time of a run and the success rate on validation puzzles during training."""
    record = json.loads((run / CPU_TIME_FILE).read_text())
    lines = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    curve = [
        [line["step"], line["success_rate"]]
        for line in lines
        if line.get("task") == "all" and "success_rate" in line
    ]
    return {
        "cpu_seconds": round(record["cpu_seconds"], 1),
        "num_updates": record["num_updates"],
        "validation_success_rate": curve,
    }


@contextlib.contextmanager
def _open(smoke: bool) -> Iterator[Runs]:
    if not smoke:
        yield Runs(RUNS, Sizes(), False)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Runs(Path(folder), _SMOKE, True)


def _percent(result: TextEvalResult, policy: str) -> float:
    [score] = [score for score in result.scores if score.policy == policy]
    return 100 * score.success_rate


def _kind(result: TextEvalResult) -> str:
    return result.scores[0].task.partition(":")[0].replace("_", "-")


@suite.experiment("grpo")
def grpo(smoke: bool) -> Iterator[Measurement]:
    """Compare GRPO with more SFT, the model that both start from, an untrained model and random actions."""
    with _open(smoke) as runs:
        yield from _compare(runs)


def _compare(runs: Runs) -> Iterator[Measurement]:
    seeds = runs.sizes.seeds
    before = runs.initial()
    reinforced = [runs.grpo(seed) for seed in seeds]
    controls = [runs.control(seed, _cpu_seconds(run)) for seed, run in zip(seeds, reinforced, strict=True)]
    common = {"split": "test", "decoding": "greedy", "num_episodes": runs.sizes.num_episodes}
    results = {run: runs.evaluate(run, runs.sizes.env)[:-1] for run in (before, *reinforced, *controls)}
    for index, baseline in enumerate(results[before]):
        kind = _kind(baseline)

        def measurement(
            name: str, system: str, trained: Sequence[Path], index: int = index, kind: str = kind
        ) -> Measurement:
            values = [_percent(results[run][index], "model") for run in trained]
            settings = {**common, "runs": [_facts(run) for run in trained]}
            return Measurement(f"{name}-{kind}", system, "%", values, settings=settings)

        yield measurement("initial", "phalanx, SFT", [before])
        yield measurement("grpo", "phalanx, SFT then GRPO", reinforced)
        yield measurement("more-sft", "phalanx, SFT then more SFT", controls)
        untrained = [_percent(baseline, "untrained")]
        yield Measurement(f"untrained-{kind}", "phalanx, untrained", "%", untrained, settings=common)
        random = [_percent(baseline, "random")]
        yield Measurement(f"random-{kind}", "random moves", "%", random, settings={**common, **_RANDOM})


@suite.experiment("sft")
def sft(smoke: bool) -> Iterator[Measurement]:
    """Train on ten kinds of puzzles and evaluate on each of them."""
    with _open(smoke) as runs:
        yield from _all_kinds(runs)


def _all_kinds(runs: Runs) -> Iterator[Measurement]:
    run = runs.sft()
    env = load_run_config(run, SFTConfig).env.id
    common = {"split": "test", "num_episodes": runs.sizes.num_episodes}
    for result in runs.evaluate(run, env):
        name = _kind(result)
        greedy = {**common, "decoding": "greedy"}
        settings = {**greedy, **(_facts(run) if name == "all" else {})}
        yield Measurement(f"sft-{name}", "phalanx, SFT", "%", [_percent(result, "model")], settings=settings)
        random = [_percent(result, "random")]
        yield Measurement(f"sft-{name}-random", "random moves", "%", random, settings={**common, **_RANDOM})
