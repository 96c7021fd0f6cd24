"""Conformance suite for built-in and user environments.

`check_environment` runs all checks. Each check is also a function that can be called on its own, for example
with `pytest.mark.parametrize("check", CHECKS)`. A check raises `ConformanceError` if the environment does not
behave as `Environment` requires. Otherwise, it returns True, or False if the environment lacks the capability
that is checked.
"""

import dataclasses
from collections.abc import Callable

from phalanx.core.environment import Environment
from phalanx.core.testing.capability_checks import CAPABILITY_CHECKS
from phalanx.core.testing.recorded_rollouts import ConformanceError as ConformanceError
from phalanx.core.testing.transition_checks import TRANSITION_CHECKS

CHECKS: tuple[Callable[..., bool], ...] = (*TRANSITION_CHECKS, *CAPABILITY_CHECKS)
"""All checks, in the order in which they run."""


@dataclasses.dataclass(frozen=True)
class ConformanceReport:
    """Result of `check_environment` for an environment that has passed all checks that apply to it."""

    environment: str
    """Name of the environment's class."""
    passed: tuple[str, ...]
    """Names of the passed checks."""
    not_applicable: tuple[str, ...]
    """Names of the checks that do not apply, because the environment lacks the capability, such as
    rendering."""


def check_environment(
    environment: Environment, *, seed: int = 0, batch_size: int = 4, num_steps: int = 200
) -> ConformanceReport:
    """Run all checks on an environment with random actions.

    Args:
        environment: The environment.
        seed: Seed for the episodes and actions.
        batch_size: Number of environments that run at the same time.
        num_steps: Number of steps. It must be large enough for at least one episode to end.

    Returns:
        The names of the checks that passed, and of the checks that do not apply.

    Raises:
        ConformanceError: If any check fails. The message lists the failures of all checks.
    """
    passed: list[str] = []
    not_applicable: list[str] = []
    failures: list[str] = []
    for check in CHECKS:
        name = check.__name__
        try:
            applies = check(environment, seed, batch_size=batch_size, num_steps=num_steps)
        except ConformanceError as error:
            failures += [f"{name}: {failure}" for failure in error.failures]
        except Exception as error:
            error.add_note(f"while {name} was running on {environment!r}")
            raise
        else:
            (passed if applies else not_applicable).append(name)
    if failures:
        num_failed = len(CHECKS) - len(passed) - len(not_applicable)
        title = f"{type(environment).__name__} fails {num_failed} of {len(CHECKS)} conformance checks"
        raise ConformanceError(title, failures)
    return ConformanceReport(type(environment).__name__, tuple(passed), tuple(not_applicable))
