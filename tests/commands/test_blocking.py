"""What an agent waits for in a tool call, by the arguments next to its command."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentkv
from agentkv.commands.blocking import Awaited, awaited
from agentkv.tool_calls import ToolCall


def call(name: str, **arguments: Any) -> ToolCall:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return agentkv.parse_tool_calls({"tool_calls": [{"id": "1", "function": function}]})[0]


RUN = "make all"
# a tool, its arguments next to a command, and the limit that follows from them
LIMITS = """
Bash {"run_in_background": true, "timeout": 9000} -> 0
run_shell_command {"is_background": "true"} -> 0
bash {"sessionId": "a", "async": true} -> 0
run_terminal_command {"process_type": "BACKGROUND"} -> 0
run_command {"Blocking": false} -> 0
launch-process {"wait": false, "max_wait_seconds": 9} -> 0
Shell {"block_until_ms": 0} -> 0
execute_bash {"is_input": "true", "timeout": 9} -> 0
Bash {"run_in_background": false, "timeout": 9000} -> 9
run_command {"Blocking": true, "WaitMsBeforeAsync": 500} -> null
run_command {"Blocking": false, "WaitMsBeforeAsync": 1500} -> 1.5
exec {"yieldMs": 3000, "timeout": 1800} -> 3
Bash {"timeout": 700000} -> 600
Bash {"timeout": 900} -> 0.9
Shell {} -> 60
terminal {"timeout": 12000} -> 12000
bash {"timeout": 300, "sessionId": "a"} -> 300
mcp__box__exec_command {"yield_time_ms": 750} -> 0.75
sh {"timeout_secs": "7"} -> 7
sh {"timeoutMs": 7} -> 0.007
sh {"timeout": "2 min"} -> 120
sh {"timeout": 45000} -> 45
sh {"timeout": 0} -> null
sh {"timeout": -1, "limit": 5} -> null
"""


@pytest.mark.parametrize("row", LIMITS.strip().splitlines())
def test_arguments_limit_a_call(row: str) -> None:
    """Flags, waits and time-outs give the seconds after which the call comes back, 0 at once."""
    name, text = row.split(maxsplit=1)
    arguments, limit_s = map(json.loads, text.split("->"))
    where = ["command", "CommandLine", "cmd"][len(text) % 3]
    assert awaited(call(name, **{where: RUN}, **arguments)) == Awaited(RUN, limit_s)


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("bash_command", {"keystrokes": "make\n", "duration": 25.0}, "sleep 25"),
        ("bash_command", {"keystrokes": "make\n", "duration": 500}, "sleep 60"),
        ("bash_command", {"keystrokes": "make\n"}, "sleep 1"),
        ("pc", {"action": "wait", "duration": 2}, "sleep 2"),
        # a look at a process that runs waits for more of its output, unless something is typed
        ("TaskOutput", {"task_id": "x", "block": True}, "tail -f output"),
        ("write_stdin", {"session_id": 3, "chars": "", "yield_time_ms": 9000}, "tail -f output"),
        ("write_stdin", {"session_id": 3, "chars": "y", "yield_time_ms": 9000}, "write_stdin"),
        ("read_file", {"path": "x"}, "read_file"),
    ],
)
def test_a_call_that_only_waits_or_looks_is_one_that_lasts(
    name: str, arguments: Any, text: str
) -> None:
    """Terminus waits a time behind its keystrokes, a look as long as it may; another tool without a
    command gives its name."""
    assert awaited(call(name, **arguments)).text == text


@pytest.mark.parametrize(
    ("name", "arguments", "asks"),
    [
        ("request_user_input", {"questions": ["Which?"]}, True),
        ("AskUserQuestion", {"questions": []}, True),
        ("mcp__chat__ask_user", {"text": "Which?"}, True),
        ("shell", {"command": "git push", "with_escalated_permissions": True}, True),
        ("shell", {"command": "git push", "justification": "May I?"}, True),
        ("exec_command", {"cmd": "ls", "sandbox_permissions": "require_escalated"}, True),
        ("exec_command", {"cmd": "ls", "sandbox_permissions": "use_default"}, False),
        ("shell", {"command": "git push", "with_escalated_permissions": False}, False),
        ("ask_weather", {"city": "Bonn"}, False),
    ],
)
def test_a_call_that_a_person_is_asked_for_is_known(name: str, arguments: Any, asks: bool) -> None:
    """Tools that ask a person, and calls with escalated permissions, differ from others."""
    assert awaited(call(name, **arguments)).asks_person is asks


VALUES = st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=3)


@given(st.dictionaries(st.text(max_size=9), VALUES, max_size=8))
def test_any_arguments_are_read(arguments: dict[str, Any]) -> None:
    """No argument raises, and a limit is never negative."""
    names = ("timeout", "duration", "wait_ms", "background", "mode", "keystrokes")
    arguments |= dict(zip(names, arguments.values(), strict=False))
    assert (awaited(ToolCall("bash", "ls", arguments)).limit_s or 0) >= 0
