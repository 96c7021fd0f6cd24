"""Conformance suite for built-in and user environments.

`check_environment` runs all checks. Each check is also a function that can be called on its own, for example
with `pytest.mark.parametrize("check", CHECKS)`. A check raises `ConformanceError` if the environment does not
behave as `Environment` requires. Otherwise, it returns False if the environment lacks the capability that is
checked, `InconclusiveCheck` if the check is about terminal states and no episode terminated, and True in all
other cases.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from phalanx.core.environment import Environment, Key, mask_size
from phalanx.core.spaces import masked_size
from phalanx.core.spec import EnvSpec
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
    """Sentences that explain why the checks in `not_checked` could not be performed, and that point out a
    missing mask of legal actions."""

    def __str__(self) -> str:
        lines = [f"{self.environment} passes {len(self.passed)} checks"]
        if self.not_applicable:
            lines.append(f"not applicable: {', '.join(self.not_applicable)}")
        if self.not_checked:
            lines.append(f"not checked: {', '.join(self.not_checked)}")
        return "\n".join([*lines, *self.notes])


def check_environment(
    environment: Environment,
    *,
    spec: EnvSpec | None = None,
    invalid_action: Callable[[Key, Any], Any] | None = None,
    comparable_state: Callable[[Any], Any] | None = None,
    seed: int = 0,
    batch_size: int = 4,
    num_steps: int = 200,
) -> ConformanceReport:
    """Run all checks on an environment with random actions.

    Args:
        environment: The environment.
        spec: Spec of the environment. Its text, its expert and its task names are checked as well.
        invalid_action: Function `invalid_action(key, state)` that returns an action that must not change the
            state. If None, a choice that is masked out or out of range is taken, if the actions have one.
        comparable_state: Function that returns the part of a state that invalid actions must not change. If
            None, all fields of the state except `step_count`, `terminated` and `truncated` are compared.
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
    _trace_first_step(environment)
    options = {"spec": spec, "invalid_action": invalid_action, "comparable_state": comparable_state}
    outcomes: dict[str, bool | InconclusiveCheck] = {}
    failures: list[str] = []
    for check in CHECKS:
        name = check.__name__
        try:
            outcomes[name] = check(environment, seed, batch_size=batch_size, num_steps=num_steps, **options)
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
    notes = list(dict.fromkeys(not_checked.values()))
    if masked_size(environment.action_space) is not None and mask_size(environment) is None:
        notes.append(
            "no mask of legal actions was found: the observation has no field action_mask, and legal_actions "
            "returns None, so every choice is always legal"
        )
    return ConformanceReport(
        environment=type(environment).__name__,
        passed=tuple(name for name, outcome in outcomes.items() if outcome),
        not_applicable=tuple(name for name, outcome in outcomes.items() if outcome is False),
        not_checked=tuple(not_checked),
        notes=tuple(notes),
    )


def _trace_first_step(environment: Environment) -> None:
    """Trace one step. Raise `ConformanceError` if states lack the fields that the checks need."""

    missing: list[str] = []

    def first_state(key: Key) -> Any:
        state, _ = environment.reset(key)
        state = environment.step(state, environment.sample_action(key, state))[0]
        # Inside the trace, because the fields may be properties that compute with arrays.
        missing.extend(name for name in ("step_count", "terminated", "truncated") if not hasattr(state, name))
        return state

    try:
        state = jax.eval_shape(first_state, jax.random.PRNGKey(0))
    except Exception as error:
        error.add_note(f"while the first step was traced on {environment!r}")
        raise
    if missing:
        title = f"{type(environment).__name__} fails the conformance checks"
        raise ConformanceError(
            title,
            [f"{type(state).__name__} has no {' and no '.join(missing)}: derive it from EpisodeState"],
        )
