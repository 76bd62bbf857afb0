"""From text to seconds."""

import re

from timetext.units import SECONDS_OF

_PART = re.compile(r"(\d+)([dhms])")


def seconds_of(text: str) -> int:
    """The seconds in `1d2h3m4s`; each unit may be left out. Raises ValueError for other text."""
    parts = _PART.findall(text)
    if not parts:
        raise ValueError(f"{text!r} is no duration, such as 1h30m")
    return sum(int(number) * SECONDS_OF[unit] for number, unit in parts)
