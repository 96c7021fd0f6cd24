"""Figures and foreign text for people: shares in per cent, counts, and strangers' text made safe to show.

How a page, a picture or a terminal lays them out is up to each of them.
"""


def format_percent(share: float, digits: int = 1) -> str:
    """A share from 0 to 1 in per cent; only what is whole reads 100%.

    >>> percent(0.034), percent(0.9999), percent(1.0), percent(0.5, 0)
    ('3.4%', '99.9%', '100%', '50%')
    """
    if share >= 1:
        return f"{100 * share:.0f}%"
    return f"{min(100 * share, 100 - 10.0**-digits):.{digits}f}%"


def format_count(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "step"), counted(3000, "step")
    ('1 step', '3,000 steps')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_signed(value: float) -> str:
    """A reward with its sign.

    >>> signed(-0.01), signed(10.0), signed(0.0)
    ('−0.01', '+10', '0')
    """
    digits = f"{abs(value):.3f}".rstrip("0").rstrip(".")
    return "0" if digits == "0" else f"{'+' if value > 0 else '−'}{digits}"


def escape_untrusted(text: object, *, lines: bool = False) -> str:
    """Strangers' text with nothing in it that a terminal would obey, or that hides: that is spelled out.

    Escape sequences (colors, titles, links, the clipboard), other control characters and marks that turn the
    direction of writing become `\\x1b` and the like. With `lines`, line breaks and tabs stay.

    >>> sanitized("7\\x1b]52;c;aGk=\\x07 \\u202eevil"), sanitized("a\\nb", lines=True)
    ('7\\\\x1b]52;c;aGk=\\\\x07 \\\\u202eevil', 'a\\nb')
    """
    kept = "\n\t" if lines else ""
    return "".join(
        letter if letter.isprintable() or letter in kept else " " if letter == "\xa0" else _spelled(letter)
        for letter in str(text)
    )


def _spelled(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
