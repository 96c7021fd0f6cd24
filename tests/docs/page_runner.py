"""Runs the code blocks of a page in the order of the page, in one folder.

A block with a title, as in `title="my_env.py"`, is saved as a file with this name instead. Training commands
run with small settings. Runs that a page uses but does not create are created first.
"""

import contextlib
import re
import runpy
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx import registry
from phalanx.cli import app as cli
from phalanx.training import load_algorithm
from phalanx.training.checkpoints import CheckpointRef
from phalanx.training.trained_policy import load_algorithm_and_config
from tests.docs.commands import SHELL_LANGUAGES, ShellCommand, block_commands, parse_command
from tests.helpers.markdown_pages import ROOT, CodeBlock, code_blocks

NOT_RUN = {
    "make": "continuous integration runs it",
    "pip": "installs packages",
    "git": "needs a network",
    "source": "activates a virtual environment",
    "cd": "changes the folder",
    "export": "sets a variable of the shell",
}
"""Programs that are not run, with the reason."""
SMALL_SETTINGS = (
    *("num_updates=2", "num_epochs=2", "num_envs=8", "num_steps=4", "num_minibatches=2"),
    *("minibatch_size=16", "batch_size=64", "num_negatives_per_batch=4", "num_prompts=2"),
    *("num_generations=2", "microbatch_size=4", "max_length=64", "max_completion_length=16"),
    "update_epochs=1",
    *("env.dataset.max_grid_height=3", "env.dataset.max_grid_width=3", "env.dataset.num_generated_tasks=8"),
    *("env.dataset.tasks_per_update=8", "env.episode.max_episode_steps=3"),
    *("env.generated.num_families=2", "env.generated.generations=3", "env.max_actions=8", "env.max_goals=3"),
    *("network.kind=conv", "network.hidden_dim=8", "network.hidden_dim=4", "network.num_layers=1"),
    *("model.d_model=8", "model.num_heads=1", "model.num_layers=1", "model.d_ff=8", "model.embedding_dim=4"),
    *("data.token_budget=512", "data.packs_per_buffer=4", "data.num_eval_samples=2"),
    *("evaluation.num_generated_tasks=4", "evaluation.num_sampled_attempts=0", "evaluation.max_positives=4"),
    *("evaluation.num_episodes=2", "evaluation.max_queries=4", "checkpoint.every=1"),
)
"""Settings of short training runs; those that a config does not have are left out."""
SAMPLE_RUNS = {
    "kge": ("kge", "--config", "family"),
    "embedding": ("kge", "--config", "family"),
    "sft": ("sft", "--env", "lights_out"),
    "lm": ("sft", "--env", "lights_out"),
    "grpo": ("grpo", "--env", "lights_out"),
    "proofs": ("ppo", "--env", "proofs"),
    "prover": ("ppo", "--env", "proofs"),
    "ppo": ("ppo", "--env", "arc"),
    "": ("bc", "--env", "arc"),
}
"""Training commands of runs that a page does not create, by a part of the run's name."""


class PageError(AssertionError):
    """A block of a page failed."""


def create_folder(folder: Path) -> None:
    """Fill a folder with what a reader has: the repository's scripts and a dataset `train.jsonl`."""
    for name in ("examples", "benchmarks", "scripts", "tests", "docs", "Makefile", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    rows = (f'{{"id": "s{i}", "text": "{"word " * (1 + i % 40)}"}}\n' for i in range(200))
    (folder / "train.jsonl").write_text("".join(rows), encoding="utf-8")


def run_page(path: Path, folder: Path, sample_runs: Path) -> None:
    """Run the Python and shell blocks of a page in a folder.

    Args:
        path: The page.
        folder: Working folder of the blocks.
        sample_runs: Folder in which runs are kept for other pages.

    Raises:
        PageError: A block failed. The message contains the page and the line.
    """
    page = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    names: dict[str, Any] = {"__name__": "__main__"}
    with pytest.MonkeyPatch.context() as patch, _restored_imports(folder):
        patch.chdir(folder)
        patch.setenv("HOME", str(folder))
        # Scripts and notebooks can import modules from their own folder.
        patch.syspath_prepend(folder)
        for block in code_blocks(path.read_text(encoding="utf-8")):
            if block.title:
                (folder / block.title).write_text(block.text, encoding="utf-8")
            elif block.not_run:
                continue
            elif block.language == "python":
                # A block that trains creates its own run.
                if not re.search(r"\btrain\(", block.text):
                    provide_runs(block.text, folder, sample_runs)
                _run_python(block, page, names)
            elif block.language in SHELL_LANGUAGES:
                for command in block_commands(block, page):
                    provide_runs(command.text, folder, sample_runs)
                    _run_command(command)


@contextlib.contextmanager
def _restored_imports(folder: Path) -> Iterator[None]:
    """Afterward, forget the modules in a folder and the environments that were registered in between."""
    registry.registered_environments()  # discovers the environments of installed packages
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_registered", dict(registry._registered))
        try:
            yield
        finally:
            for name, module in list(sys.modules.items()):
                file = getattr(module, "__file__", None)
                if file is not None and Path(file).is_relative_to(folder):
                    del sys.modules[name]


def _run_python(block: CodeBlock, page: str, names: dict[str, Any]) -> None:
    # Empty lines, so that tracebacks contain the line numbers of the page.
    code = compile("\n" * (block.line - 1) + block.text, page, "exec")
    try:
        with warnings.catch_warnings():
            # PyTorch warns on machines without a GPU, and TRL about experimental features.
            warnings.filterwarnings("ignore", "'pin_memory' argument|.*experimental feature", UserWarning)
            exec(code, names)
    except BaseException as error:
        raise PageError(f"{page}:{block.line}: the block raised {type(error).__name__}: {error}") from error


def _run_command(command: ShellCommand) -> None:
    words = [str(Path(word).expanduser()) if word.startswith("~/") else word for word in command.words]
    if Path(words[0]).name in NOT_RUN or words[1:3] in (["-m", "pip"], ["-m", "venv"]):
        return
    with pytest.MonkeyPatch.context() as patch:
        for name, value in command.variables.items():
            patch.setenv(name, value)
        code = _exit_code(shrink(words))
    if code:
        raise PageError(f"{command.page}:{command.line}: exit code {code}: {command.text}")


def _exit_code(words: list[str]) -> int:
    """Run a command, if possible in this process, because importing JAX is slow."""
    if words[0] == "phalanx":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", words)
            with pytest.raises(SystemExit) as exit:
                cli.main()
        return int(exit.value.code or 0)
    if Path(words[0]).name in ("python", "python3") and words[1].endswith(".py"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", words[1:])
            runpy.run_path(words[1], run_name="__main__")
        return 0
    if Path(words[0]).name in ("python", "python3") and words[1:3] == ["-m", "benchmarks"]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", words[2:])
            # Otherwise, `runpy` warns if a test has imported the module before.
            patch.delitem(sys.modules, "benchmarks.__main__", raising=False)
            with pytest.raises(SystemExit) as exit:
                runpy.run_module("benchmarks", run_name="__main__")
        return int(exit.value.code or 0)
    words[0] = sys.executable if words[0] in ("python", "python3") else words[0]
    return subprocess.run(words, check=False).returncode


def shrink(words: list[str]) -> list[str]:
    """Make a training, sweep or evaluation short, with fewer trials and with small settings at the end."""
    if words[:2] not in (["phalanx", name] for name in ("train", "sweep", "eval")) or "--help" in words:
        return words
    params = parse_command(words).params
    if params.get("print_config") or params.get("list_settings"):
        return words
    if words[1] == "eval":
        return [*words, *_small_evaluation(params)]
    words = _fewer_trials(words) if words[1] == "sweep" else list(words)
    if "--extend" in words:
        words[words.index("--extend") + 1] = "4"
    config_type = load_algorithm(params["algorithm"]).config_type
    overrides = [setting for setting in params.get("overrides") or [] if "env" in setting.partition("=")[0]]
    config = config_type.load(params.get("config"), overrides, env=params.get("env"))
    return [*words, *(setting for setting in SMALL_SETTINGS if _has_setting(config, setting))]


def _fewer_trials(words: list[str]) -> list[str]:
    """Try two values of one setting and one of each other, or make one trial. Each trial is a process."""
    words = list(words)
    if "--trials" in words:
        words[words.index("--trials") + 1] = "1"
    num_values = 2
    for index, word in enumerate(words):
        if re.fullmatch(r"[\w.]+=[^()\[\]{}]+,[^()\[\]{}]+", word):
            words[index] = ",".join(word.split(",")[:num_values])
            num_values = 1
    return words


def _small_evaluation(params: dict[str, Any]) -> Iterator[str]:
    """Iterate over the settings that make an evaluation small. The number of samples stays as it is."""
    algorithm_type, config = load_algorithm_and_config(CheckpointRef.parse(params["run"]).for_seed(0).run)
    settings_type = algorithm_type.evaluation_type(config, params["env"])
    assert settings_type is not None
    for name, value in (setting.removeprefix("evaluation.").split("=") for setting in SMALL_SETTINGS):
        if name in settings_type.model_fields and name != "num_sampled_attempts":
            yield f"{name}={value}"


def _has_setting(config: Any, setting: str) -> bool:
    if setting == "network.kind=conv":
        return type(getattr(config, "network", None)).__name__ == "ArcNetworkConfig"
    *sections, name = setting.partition("=")[0].split(".")
    values = config.model_dump()
    for section in sections:
        if section == "generated" and values.get("dataset") != "generated":
            return False  # the setting would have no effect, which is an error
        values = values.get(section) or {}
    return name in values


def provide_runs(text: str, folder: Path, sample_runs: Path) -> None:
    """Create the runs that a block uses and that do not exist in the folder."""
    for name in used_runs(text):
        target = folder / "runs" / name
        if not target.exists():
            key = next(key for key in SAMPLE_RUNS if key in name)
            sample = sample_runs / (key or "bc")
            if not sample.exists():
                code = _exit_code(shrink(["phalanx", "train", *SAMPLE_RUNS[key], "--out", str(sample)]))
                assert code == 0, f"the sample run {key!r} failed"
            shutil.copytree(sample, target)


def used_runs(text: str) -> Iterator[str]:
    """Iterate over the names of runs that a block reads.

    >>> list(used_runs("phalanx train ppo --out runs/ppo --init-from runs/bc@best"))
    ['bc']
    """
    for match in re.finditer(r"(--out[ =]|out=[\"']?)?\bruns/([\w-]+)", text):
        if match[1] is None:
            yield match[2]
