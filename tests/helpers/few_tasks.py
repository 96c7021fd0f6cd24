"""The built-in ARC environment with few tasks, where it matters little how many there are."""

import pytest

from phalanx.training import PPOConfig, sft, text_env


def few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the default training on ARC have 120 tasks, which takes a second less than thousands to make."""

    def make(name: str) -> object:
        return PPOConfig.load(name, ["env.dataset.num_tasks=120"]).make_environment()

    for module in (text_env, sft):
        monkeypatch.setattr(module, "make_preset_environment", make)
