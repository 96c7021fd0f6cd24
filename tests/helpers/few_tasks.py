"""The built-in ARC environment with few tasks, where it matters little how many there are."""

import pytest

from phalanx.training import arc_training


def few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the default training on ARC have 120 tasks, which takes a second less than thousands to make."""
    load = arc_training.load_arc_training
    monkeypatch.setattr(arc_training, "load_arc_training", lambda: load(None, ["arc.dataset.num_tasks=120"]))
