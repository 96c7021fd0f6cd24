"""Formats numbers and escapes untrusted text for display."""


def format_percent(fraction: float, digits: int = 1) -> str:
    """Format a fraction as a percentage. Fractions just below 1 are rounded down: 100% means exactly 1.

    Args:
        fraction: Number to format, such as a success rate.
        digits: Number of decimals.

    >>> format_percent(0.034), format_percent(0.9999), format_percent(1.0), format_percent(0.5, 0)
    ('3.4%', '99.9%', '100%', '50%')
    """
    if fraction >= 1:
        return f"{100 * fraction:.0f}%"
    return f"{min(100 * fraction, 100 - 10.0**-digits):.{digits}f}%"


def format_count(number: int, noun: str) -> str:
    """Format a number followed by a noun in the singular or plural.

    >>> format_count(1, "step"), format_count(3000, "step")
    ('1 step', '3,000 steps')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_compact(value: float) -> str:
    """Format a number. Numbers of 10,000 or more are rounded to three digits and have the suffix k, M or G.

    >>> format_compact(950), format_compact(12_345), format_compact(3_200_000), format_compact(2e9)
    ('950', '12.3 k', '3.2 M', '2 G')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g} {letter}"
    return f"{value:,.0f}"


def format_signed(value: float) -> str:
    """Format a number with its sign and at most three decimals.

    >>> format_signed(-0.01), format_signed(10.0), format_signed(0.0)
    ('−0.01', '+10', '0')
    """
    digits = f"{abs(value):.3f}".rstrip("0").rstrip(".")
    return "0" if digits == "0" else f"{'+' if value > 0 else '−'}{digits}"


def escape_untrusted(text: object, *, lines: bool = False) -> str:
    """Escape invisible characters and characters that a terminal would interpret.

    Control characters and marks that change the text direction are replaced by escapes such as `\\x1b`.
    Terminal escape sequences, which can change colors and titles, create links or access the clipboard, start
    with a control character and therefore have no effect.

    Args:
        text: Object to convert to a string and escape.
        lines: Whether to keep line breaks and tabs.

    >>> escape_untrusted("7\\x1b]52;c;aGk=\\x07 \\u202eevil"), escape_untrusted("a\\nb", lines=True)
    ('7\\\\x1b]52;c;aGk=\\\\x07 \\\\u202eevil', 'a\\nb')
    """
    allowed = "\n\t" if lines else ""
    return "".join(
        char if char.isprintable() or char in allowed else char.encode("unicode_escape").decode("ascii")
        for char in str(text).replace("\xa0", " ")
    )
