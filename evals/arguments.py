"""Types of the commands' arguments, for argparse: a wrong value is named, with what is allowed."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def whole_number(least: int) -> Callable[[str], int]:
    """A whole number from `least` on."""

    def parse(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"{text}: must be {least} or more")
        return number

    # argparse names the type by this where the text is no number at all
    parse.__name__ = "whole number"
    return parse


def positive(text: str) -> float:
    """A finite number above 0."""
    number = float(text)
    if not 0.0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: must be a number above 0")
    return number


def seconds(text: str) -> float:
    """A finite number of seconds above 0."""
    number = float(text)
    if not 0.0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: must be a number of seconds above 0")
    return number


def share(text: str) -> float:
    """A share of a whole: above 0, at most 1."""
    number = float(text)
    if not 0.0 < number <= 1.0:
        raise argparse.ArgumentTypeError(f"{text}: must be above 0 and at most 1")
    return number
