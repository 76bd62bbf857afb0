"""What all commands share: exit status, flags and their types, and how a wrong one is said.

A wrong flag is one line on standard error, with what was probably meant. Imports nothing heavy, so
that a client-only installation can parse, and a typo is named at once.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn

from agentkv.errors import not_among

DONE, FAILED, BAD_USAGE = 0, 1, 2
"""Exit status of every command: as asked; measured or checked, and not all is well; not begun."""


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one line, and name the flag or value that was probably meant."""

    def error(self, message: str) -> NoReturn:
        """End the process with BAD_USAGE and one line."""
        message = message.removeprefix("argument ")
        if unknown := re.match(r"unrecognized arguments: (-\S+)", message):
            flag = unknown[1].partition("=")[0]
            message = f"unknown flag: {not_among(flag, self._option_string_actions, 'others')}"
            if "others" in message:
                message = f"unknown flag: {flag}"
        elif choice := re.match(r"(.+: )invalid choice: '(.*)' \(choose from (.*)\)", message):
            known = [name.strip("'") for name in choice[3].split(", ")]
            message = choice[1] + not_among(choice[2], known)
        self.exit(BAD_USAGE, f"{self.prog}: {message} (flags: {self.prog} --help)\n")


def command_parser(command: str, about: str | None, **more: Any) -> CommandParser:
    """A parser that shows the module's docstring as it is written."""
    layout = argparse.RawDescriptionHelpFormatter
    return CommandParser(
        prog=f"agentkv {command}", description=about, formatter_class=layout, **more
    )


def add_json(parser: Any) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="print the JSON document alone")


def print_result(document: object, text: str, *, is_json: bool) -> None:
    """Print what a command found: one JSON document with `--json`, else the text for people."""
    print(json.dumps(document) if is_json else text, flush=True)


def whole_number(least: int) -> Callable[[str], int]:
    """Type of a flag: a whole number from `least` on."""

    def parse(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"got {text}, must be {least} or more")
        return number

    # argparse names the type by this where the text is no number at all
    parse.__name__ = "whole number"
    return parse


def positive(text: str, what: str = "a number") -> float:
    """Type of a flag: a finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"got {text}, must be {what} above 0")
    return number


def seconds(text: str) -> float:
    """Type of a flag: a finite number of seconds above 0."""
    return positive(text, "a number of seconds")


def share(text: str) -> float:
    """Type of a flag: above 0, at most 1."""
    number = positive(text)
    if number > 1.0:
        raise argparse.ArgumentTypeError(f"got {text}, must be above 0 and at most 1")
    return number


def url(text: str) -> str:
    """Type of a flag: the address of a server."""
    if not re.match(r"https?://[^/]", text):
        host = re.fullmatch(r"[\w.-]+(:\d+)?(/\S*)?", text)
        meant = (
            f", did you mean http://{text}?" if host else ", give one like http://127.0.0.1:8000"
        )
        raise argparse.ArgumentTypeError(f"got {text!r}{meant}")
    return text
