"""What an agent waits for in a tool call: its command, as far as the other arguments let it block.

A flag sends the command to the background; an argument or the tool's own default limits the wait.
The names of arguments and the tools of known agents are in `tools.toml`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple, Protocol, cast

from agentkv.commands.programs import tables_in

_TABLES = tables_in("tools.toml")
_STEMS, _VALUES = (
    {kind: frozenset(names.split()) for kind, names in _TABLES[table].items()}
    for table in ("arguments", "values")
)
_UNITS = {name: float(size) for size, names in _TABLES["units"].items() for name in names.split()}
"""Seconds by the name of a unit."""
_LOOK = "tail -f output"
"""Stands for a look at a process that runs: it takes as long as its limit lets it."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_AMOUNT = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?) ?([a-z]{0,12})")
_FLAGS = {"true": True, "false": False}
_MAX_ARGUMENTS, _MAX_NAME_CHARS = 32, 64
_NAMESPACE_END = re.compile(r"[.:/]|__")


class Call(Protocol):
    """A tool call, as `agentkv.parse_tool_calls` gives it."""

    @property
    def name(self) -> str: ...
    @property
    def command(self) -> str | None: ...
    @property
    def arguments(self) -> Mapping[str, object]: ...


class Awaited(NamedTuple):
    """What an agent waits for."""

    text: str
    """Bash text that takes as long as the call would without a limit."""
    limit_s: float | None = None
    """Seconds after which the call comes back at the latest; 0: its command is not waited for."""
    asks_person: bool = False
    """True if a person is asked, so that the call's time says nothing of the command's."""


def awaited(call: str | Call | Awaited) -> Awaited:
    """Read a call's arguments, 32 at most; its name stands for the command of a tool without one.

    Never raises, for any arguments; a command, as anything else, is taken as it is.
    """
    if isinstance(call, Awaited):
        return call
    if isinstance(call, str) or not hasattr(call, "arguments"):
        return Awaited(cast(str, call))
    arguments, last_name = call.arguments, _NAMESPACE_END.split(call.name)[-1]
    if last_name in _VALUES["asking"]:
        return Awaited("", None, True)
    tool_unit_s, default_s, max_s = _tool_of(call, last_name)
    # Terminal-bench's Terminus waits `duration` behind its keystrokes, done or not
    waits_only = "keystrokes" in arguments and "is_blocking" not in arguments
    action = arguments.get("action")
    waits_only |= (action if isinstance(action, str) else call.name) in _VALUES["waiting"]
    timeouts_s, waits_s, is_background, blocks = [], [], False, None
    names_process = has_input = asks_person = False
    for stem, unit_s, value in _named(arguments):
        flag = _FLAGS.get(value.lower(), value) if isinstance(value, str) else value
        names_process |= stem in _STEMS["process"]
        has_input |= stem in _STEMS["input"] and bool(value)
        if stem in _STEMS["escalation"]:
            asks_person |= bool(flag) and value not in _VALUES["sandboxed"]
        elif isinstance(flag, bool):
            is_background |= flag and stem in _STEMS["background"]
            blocks = flag if stem in _STEMS["foreground"] else blocks
        elif isinstance(value, str) and stem in _STEMS["mode"]:
            is_background |= value.lower() in _VALUES["background"]
        elif (seconds := _seconds(value, unit_s or tool_unit_s)) is None:
            continue
        elif waits_only and stem in _STEMS["fixed"]:
            return Awaited(f"sleep {min(seconds, max_s):g}")
        elif stem in _STEMS["timeout"] and seconds:
            timeouts_s.append(seconds)
        elif stem in _STEMS["wait"]:
            waits_s.append(seconds)
    if waits_only and default_s and not names_process:
        return Awaited(f"sleep {default_s:g}")
    waits_s = [] if blocks else waits_s  # they are for calls that do not block
    if is_background or 0.0 in waits_s or (blocks is False and not waits_s):
        return Awaited(call.command or call.name, 0.0, asks_person)
    limit_s = min((*timeouts_s, *waits_s), default=default_s)
    is_look = not call.command and names_process and not has_input and (limit_s or blocks)
    text = _LOOK if is_look else call.command or call.name
    return Awaited(text, limit_s and min(limit_s, max_s), asks_person)


def _named(arguments: Mapping[str, object]) -> Iterator[tuple[str, float | None, object]]:
    """Yield the name of each argument without its unit, that unit's seconds, and the value."""
    for name, value in islice(arguments.items(), _MAX_ARGUMENTS):
        words = [word.lower() for word in _WORD.findall(str(name)[:_MAX_NAME_CHARS])]
        unit_s = next((_UNITS[word] for word in words if word in _UNITS), None)
        stem = "".join(word for word in words if word not in _UNITS)
        yield stem or "".join(words), unit_s, value


def _seconds(value: object, unit_s: float | None) -> float | None:
    """Return the seconds of a number, or of a text such as `5000` or `30s`; else None.

    Without a unit 5000 is milliseconds, and 1800 seconds: half an hour.
    """
    if isinstance(value, int | float) and 0 <= value < 1e9:
        value = f"{value:.6f}"
    amount = _AMOUNT.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    if amount is None or (amount[2] and amount[2] not in _UNITS):
        return None
    number = float(amount[1])
    if amount[2]:
        unit_s = _UNITS[amount[2]]
    elif unit_s is None:
        is_ms = number >= 10_000 or (number >= 1000 and (number % 1000 == 0 or number % 60 != 0))
        unit_s = 1e-3 if is_ms else 1.0
    return number * unit_s


def _tool_of(call: Call, last_name: str) -> tuple[float | None, float | None, float]:
    """Return the seconds of the tool's unit, of its usual and of its highest limit."""
    for row in _TABLES["tool"]:
        names = row["names"].split()
        is_named = not names or call.name in names or last_name in names
        if is_named and row.get("with") in (None, *call.arguments):
            unit_s = _UNITS.get(row.get("unit"))
            return unit_s, row.get("default_s"), row.get("max_s", math.inf)
    return None, None, math.inf
