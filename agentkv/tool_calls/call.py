"""One tool call, and the bash text among its arguments.

The readers of all dialects make calls here, from a name and arguments. Knows nothing of messages
or dialects.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

Source = Literal[
    "structured",  # a field of the message: tool_calls, tool_use, function_call, local_shell_call
    "fenced",  # a Markdown block of bash
    "tagged",  # <bash>...</bash>
    "hermes",  # <tool_call>{json}</tool_call>
    "qwen3_coder",  # <function=...><parameter=...>
    "invoke",  # <invoke name=...><parameter name=...>
    "llama",  # {"name": ..., "parameters": ...} or [name(key="...")], with or without a token
    "mistral",  # [TOOL_CALLS]
    "glm",  # <arg_key>...</arg_key><arg_value>...</arg_value>
    "kimi_k2",  # <|tool_call_begin|>functions.name:0
    "minimax_m3",  # ]<]minimax[>[<invoke name="name">
    "react",  # Action: name, Action Input: ...
    "deepseek",  # tool-call tokens spelled with full-width bars
    "terminus",  # {"commands": [{"keystrokes": "..."}]} or <commands><keystrokes>
    "gemma",  # call:name{key:<|"|>...<|"|>}
    "harmony",  # <|channel|>commentary to=functions.name
]
"""Which reader found a call."""

COMMAND_ARGUMENTS = (
    *("command", "cmd", "script", "code", "argv", "CommandLine", "command_line", "commandLine"),
    *("keystrokes", "shell_command", "bash_command"),
)
"""Arguments in which a bash-like tool takes its command, as text or as a list of words. The first
one present counts; without any, `commands` does: a text, or a list of texts to run in turn."""

_BEFORE_ARGS = ("command", "cmd")
"""Arguments next to which `args` may hold the words that follow the program's name."""

_SHELLS = frozenset({"bash", "sh", "zsh", "shell", "terminal", "powershell", "pwsh"})
_RUNS = frozenset({"run", "exec", "execute", "launch", "start"})
_COMMANDS = frozenset({"command", "commands", "cmd", "process"})
_BARE_NAMES = frozenset({"run", "exec", "execute", "command", "cmd", "console"})
_NAMESPACE = re.compile(r".*(?:[.:/]|__)(?!\d*$)|:\d+$")  # and a call's number, `functions.bash:0`
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_NAME_CHARS = 200
# Tokens of a chat template that a server left in a name: `bash<|channel|>commentary`.
_CONTROL_TOKEN = re.compile(r"<[^<>]*+>|\[[A-Z_]++\]|<")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call: `command` is the bash text as written, None for a tool that runs none.

    `arguments` are those of the call, all text where the dialect has no types; `call_id` is the id
    that the tool's result must name, if the message gives one.
    """

    name: str
    command: str | None = None
    arguments: Mapping[str, object] = field(default_factory=dict)
    call_id: str | None = None
    source: Source = "structured"


def call_of(
    name: str, arguments: Mapping[str, object], source: Source, call_id: str | None = None
) -> ToolCall:
    """Make a call, with the command that its arguments hold if the tool runs bash.

    Control tokens cut a name into parts, of which the first that is not blank counts.
    """
    parts = (part.strip() for part in _CONTROL_TOKEN.split(name))
    name = next(filter(None, parts), name)
    command = _command_in(arguments) if is_bash_like(name) else None
    return ToolCall(name, command, arguments, call_id, source)


def bash_calls(text: str, source: Source) -> list[ToolCall]:
    """Make the one call of a block of bash, or none if the block is blank."""
    command = _strip_blank_lines(text)
    return [ToolCall("bash", command, {"command": command}, None, source)] if command else []


@lru_cache(maxsize=512)
def is_bash_like(name: str) -> bool:
    """Whether a tool of this name runs bash: `bash`, `execute_bash`, `runShellCommand`, `exec`...

    Only the name decides, since other tools use the same arguments for other things: the `command`
    of `str_replace_editor` is `view`, the `code` of `write_file` a text. A namespace such as
    `functions.` or `mcp__server__` is ignored.
    """
    last = _NAMESPACE.sub("", name[-_NAME_CHARS:])
    words = [word.lower() for word in _WORD.findall(last)]
    return (
        not _SHELLS.isdisjoint(words)
        or last.lower() in _BARE_NAMES
        or (not _RUNS.isdisjoint(words) and not _COMMANDS.isdisjoint(words))
    )


def _command_in(arguments: Mapping[str, object]) -> str | None:
    """The bash text among a bash-like tool's arguments, None if there is nothing to run."""
    for name in COMMAND_ARGUMENTS:
        value = arguments.get(name)
        words = _strings(arguments.get("args")) if name in _BEFORE_ARGS else None
        if isinstance(value, str):
            text = _strip_blank_lines(value)
            return f"{text} {shlex.join(words)}" if text and words else text or None
        if program := _strings(value):
            return shlex.join([*program, *(words or ())])
    commands = arguments.get("commands")
    lines = [commands] if isinstance(commands, str) else _strings(commands) or []
    return _strip_blank_lines("\n".join(lines)) or None


def _strings(value: object) -> list[str] | None:
    """The items of a list of strings, None for any other value."""
    if not isinstance(value, list | tuple):
        return None
    strings = [item for item in value if isinstance(item, str)]
    return strings if len(strings) == len(value) else None


def _strip_blank_lines(text: str) -> str:
    """The text without blank lines at its start and end; the other lines keep their blanks."""
    start, end = len(text) - len(text.lstrip()), len(text.rstrip())
    if start > end:
        return ""
    line_end = text.find("\n", end)
    return text[text.rfind("\n", 0, start) + 1 : line_end if line_end >= 0 else None]
