"""From seconds to text."""

from timetext.units import SECONDS_OF


def text_of(seconds: int) -> str:
    """The shortest text of a number of seconds: 5400 is `1h30m`."""
    parts = []
    left = seconds
    for unit, length in SECONDS_OF.items():
        number, left = divmod(left, length)
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts)
