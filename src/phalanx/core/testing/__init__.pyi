# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .transition_checks import (
    CHECKS as CHECKS,
    ConformanceError as ConformanceError,
    ConformanceReport as ConformanceReport,
    check_environment as check_environment,
)
