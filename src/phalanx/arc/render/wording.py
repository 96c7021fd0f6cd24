"""Numbers in the words of captions, the same in drawings and in the terminal.

Names of operations are in `phalanx.arc.operations`.
"""

Number = float | int


def percent(value: Number) -> str:
    """A share in per cent, never rounded up to a full 100.

    >>> percent(0.9996), percent(1.0)
    ('99.9%', '100%')
    """
    return "100%" if value == 1 else f"{min(value * 100, 99.9):.1f}%"


def signed(value: Number) -> str:
    """A reward with its sign.

    >>> signed(-0.01), signed(10.0), signed(0.0)
    ('−0.01', '+10', '0')
    """
    digits = f"{abs(value):.3f}".rstrip("0").rstrip(".")
    return "0" if digits == "0" else f"{'+' if value > 0 else '−'}{digits}"


def count(number: int, noun: str) -> str:
    """A number of things.

    >>> count(1, "step"), count(3, "step")
    ('1 step', '3 steps')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def left_out(steps: int) -> str:
    """What stands in place of steps that are not shown.

    >>> left_out(27)
    '… 27 steps left out …'
    """
    return f"… {count(steps, 'step')} left out …"


def shown(frames: int, most: int) -> tuple[int, int]:
    """Which frames of a long episode are shown: those before the first number and those from the second on.

    >>> shown(10, 24), shown(100, 24)
    ((10, 10), (12, 88))
    """
    if frames < 1:
        raise ValueError("an episode to draw has at least one frame")
    if most < 2:
        raise ValueError(f"max_frames must be at least 2 (the beginning and the end), got {most}")
    return (frames, frames) if frames <= most else (most - most // 2, frames - most // 2)
