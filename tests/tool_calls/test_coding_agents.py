"""The shell tool of each coding agent is read, in every shape in which a reply names it."""

import json
from typing import Any

import pytest

from agentkv import parse_tool_calls

WORDS = ["bash", "-lc", "ls -l | wc"]
JOINED = "bash -lc 'ls -l | wc'"
SHELL_TOOLS: list[tuple[str, str, dict[str, Any], str]] = [
    ("Claude Code", "Bash", {"command": "ls -l", "description": "List", "timeout": 9}, "ls -l"),
    ("Codex", "exec_command", {"cmd": "ls -l", "workdir": "/", "yield_time_ms": 9}, "ls -l"),
    ("Codex, a list", "exec_command", {"cmd": WORDS}, JOINED),
    ("Codex before 0.100", "shell", {"command": WORDS, "workdir": "/"}, JOINED),
    ("Codex before 0.100, a text", "shell_command", {"command": "ls -l"}, "ls -l"),
    ("gpt-oss", "container.exec", {"cmd": WORDS}, JOINED),
    ("OpenCode, Kilo, pi", "bash", {"command": "ls -l", "workdir": "/"}, "ls -l"),
    (
        "Qwen Code, Gemini CLI",
        "run_shell_command",
        {"is_background": False, "command": "ls -l", "directory": "/"},
        "ls -l",
    ),
    ("Cline", "run_commands", {"commands": ["ls -l", "wc a"]}, "ls -l\nwc a"),
    ("Cline before 3", "execute_command", {"requires_approval": True, "command": "ls"}, "ls"),
    ("Continue", "Bash", {"command": "ls -l", "timeout": 9}, "ls -l"),
    ("gptme", "shell", {"command": "ls -l", "background": False}, "ls -l"),
    ("OpenHands", "terminal", {"command": "ls -l", "is_input": False}, "ls -l"),
    ("OpenHands before 1", "execute_bash", {"command": "ls -l", "is_input": "false"}, "ls -l"),
    ("goose", "developer__shell", {"command": "ls -l"}, "ls -l"),
    ("Cursor", "run_terminal_cmd", {"command": "ls -l", "is_background": False}, "ls -l"),
]


@pytest.mark.parametrize(
    ("name", "arguments", "command"),
    [tool[1:] for tool in SHELL_TOOLS],
    ids=[tool[0] for tool in SHELL_TOOLS],
)
def test_the_shell_tool_of_an_agent_is_read(
    name: str, arguments: dict[str, Any], command: str
) -> None:
    """As a field of a message in each API, and as JSON or XML in the text that a model writes."""
    as_json = json.dumps(arguments)
    values = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in arguments.items()
    }
    parameters = "".join(
        f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in values.items()
    )
    replies: list[object] = [
        {"tool_calls": [{"id": "1", "function": {"name": name, "arguments": as_json}}]},
        {"output": [{"type": "function_call", "name": name, "arguments": as_json}]},
        {"content": [{"type": "tool_use", "id": "1", "name": name, "input": arguments}]},
        f'<tool_call>\n{{"name": "{name}", "arguments": {as_json}}}\n</tool_call>',
        f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>",
    ]
    for reply in replies:
        assert [call.command for call in parse_tool_calls(reply)] == [command], reply


@pytest.mark.parametrize(
    ("reply", "commands"),
    [
        ("Let me look.\n\n<command>\nls -la src\n</command>", ["ls -la src"]),
        ("<command>make all</command>\n", ["make all"]),
        ("Fill in the <command>ls</command> of the page.", []),
        ("<execute_command>\n<command>make</command>\n</execute_command>", ["make"]),
    ],
)
def test_swe_agents_command_is_read(reply: str, commands: list[str]) -> None:
    """SWE-agent's `<command>` on a line of its own runs; one within a sentence is talk."""
    assert [call.command for call in parse_tool_calls(reply)] == commands
