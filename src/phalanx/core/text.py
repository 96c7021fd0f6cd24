"""Numbers as people read them, the same in tables, charts and reports.

What is written, and where, is decided by those who write it.
"""


def percent(share: float, digits: int = 1) -> str:
    """A share as a percentage; only a whole one reads 100.

    >>> percent(0.034), percent(0.9999), percent(1.0), percent(0.99996, 2)
    ('3.4%', '99.9%', '100%', '99.99%')
    """
    if share >= 1:
        return f"{100 * share:.0f}%"
    return f"{min(100 * share, 100 - 10.0**-digits):.{digits}f}%"
