"""Conformance suite for built-in and user environments.

`check_environment` runs all checks. Each check is also a function that can be called on its own, for example
with `pytest.mark.parametrize("check", CHECKS)`. A check raises `ConformanceError` if the environment does not
behave as `Environment` requires. Otherwise, it returns False if the environment lacks the capability that is
checked, `InconclusiveCheck` if the check is about terminal states and no episode terminated, and True in all
other cases.
"""

import dataclasses
from collections.abc import Callable

import jax

from phalanx.core.environment import Environment, Key, check_info
from phalanx.core.testing import capability_checks, transition_checks
from phalanx.core.testing.recorded_rollouts import (
    ConformanceError as ConformanceError,
    InconclusiveCheck as InconclusiveCheck,
)

CHECKS: tuple[Callable[..., bool | InconclusiveCheck], ...] = tuple(
    check
    for module in (transition_checks, capability_checks)
    for name, check in vars(module).items()
    if name.startswith("check_")
)
"""All checks, in the order in which they run."""


@dataclasses.dataclass(frozen=True)
class ConformanceReport:
    """Result of `check_environment` for an environment that fails no check. Print it to see all results."""

    environment: str
    """Name of the environment's class."""
    passed: tuple[str, ...]
    """Names of the passed checks."""
    not_applicable: tuple[str, ...]
    """Names of the checks that do not apply because the environment lacks the capability that they test, such
    as rendering."""
    not_checked: tuple[str, ...] = ()
    """Names of the checks that could not be completed. These are the terminal-state checks, if no episode
    terminated in the recorded steps."""
    notes: tuple[str, ...] = ()
    """Sentences that explain why the checks in `not_checked` could not be performed."""

    def __str__(self) -> str:
        lines = [f"{self.environment} passes {len(self.passed)} checks"]
        if self.not_applicable:
            lines.append(f"not applicable: {', '.join(self.not_applicable)}")
        if self.not_checked:
            lines.append(f"not checked: {', '.join(self.not_checked)}")
        return "\n".join([*lines, *self.notes])


def check_environment(
    environment: Environment, *, seed: int = 0, batch_size: int = 4, num_steps: int = 200
) -> ConformanceReport:
    """Run all checks on an environment with random actions.

    Args:
        environment: The environment.
        seed: Seed for the episodes and actions.
        batch_size: Number of environments that run at the same time.
        num_steps: Number of steps per environment. At least one episode must end in these steps, by
            termination or truncation. If no episode terminates, for example because the goal is hard to reach
            with random actions, the terminal-state checks are reported as `not_checked`.

    Returns:
        A report that lists the checks that passed, the checks that do not apply, and the checks that could
        not be completed because no episode terminated.

    Raises:
        ConformanceError: If any check fails. The message lists the failures of all checks.
    """
    _check_info(environment)
    outcomes: dict[str, bool | InconclusiveCheck] = {}
    failures: list[str] = []
    for check in CHECKS:
        name = check.__name__
        try:
            outcomes[name] = check(environment, seed, batch_size=batch_size, num_steps=num_steps)
        except ConformanceError as error:
            failures += [f"{name}: {failure}" for failure in error.failures]
        except Exception as error:
            error.add_note(f"while {name} was running on {environment!r}")
            raise
    if failures:
        num_failed = len(CHECKS) - len(outcomes)
        title = f"{type(environment).__name__} fails {num_failed} of {len(CHECKS)} conformance checks"
        raise ConformanceError(title, failures)
    not_checked = {
        name: found.reason for name, found in outcomes.items() if isinstance(found, InconclusiveCheck)
    }
    return ConformanceReport(
        environment=type(environment).__name__,
        passed=tuple(name for name, outcome in outcomes.items() if outcome),
        not_applicable=tuple(name for name, outcome in outcomes.items() if outcome is False),
        not_checked=tuple(not_checked),
        notes=tuple(dict.fromkeys(not_checked.values())),
    )


def _check_info(environment: Environment) -> None:
    """Raise `ConformanceError` if `step` returns an info without the flags that most checks need."""

    def first_info(key: Key) -> object:
        state, _ = environment.reset(key)
        return environment.step(state, environment.sample_action(key, state))[-1]

    try:
        info = jax.eval_shape(first_info, jax.random.PRNGKey(0))
    except Exception as error:
        error.add_note(f"while the first step was traced on {environment!r}")
        raise
    try:
        check_info(info)
    except ValueError as error:
        title = f"{type(environment).__name__} fails the conformance checks"
        raise ConformanceError(title, [str(error)]) from error
