"""Conformance suite for built-in and user environments."""

from phalanx.core.testing.transition_checks import (
    CHECKS as CHECKS,
    ConformanceError as ConformanceError,
    ConformanceReport as ConformanceReport,
    check_environment as check_environment,
)
