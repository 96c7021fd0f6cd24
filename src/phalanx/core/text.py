"""Figures and foreign text for people: shares in per cent, counts, and strangers' text made safe to show.

How a page, a picture or a terminal lays them out is up to each of them.
"""


def percent(share: float, digits: int = 1) -> str:
    """A share from 0 to 1 in per cent; only what is whole reads 100%.

    >>> percent(0.034), percent(0.9999), percent(1.0), percent(0.5, 0)
    ('3.4%', '99.9%', '100%', '50%')
    """
    if share >= 1:
        return f"{100 * share:.0f}%"
    return f"{min(100 * share, 100 - 10.0**-digits):.{digits}f}%"


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "step"), counted(3000, "step")
    ('1 step', '3,000 steps')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def signed(value: float) -> str:
    """A reward with its sign.

    >>> signed(-0.01), signed(10.0), signed(0.0)
    ('−0.01', '+10', '0')
    """
    digits = f"{abs(value):.3f}".rstrip("0").rstrip(".")
    return "0" if digits == "0" else f"{'+' if value > 0 else '−'}{digits}"
