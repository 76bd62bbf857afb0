"""Tool calls found in replies: fenced bash, structured calls, and what is left alone."""

from __future__ import annotations

import json
from types import SimpleNamespace

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv import ToolCall, parse_tool_calls
from agentkv.testing import ScriptedReply, ScriptedServer

STRUCTURED = {
    "id": "call-1",
    "type": "function",
    "function": {"name": "bash", "arguments": json.dumps({"command": "ls -la"})},
}


def commands(message: object) -> list[str | None]:
    return [call.command for call in parse_tool_calls(message)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```bash\nls\n```", ["ls"]),
        ("Look:\n\n```sh\n\n  ls\n\n```\nand\n```shell\npwd\n```\n", ["  ls", "pwd"]),
        ("```Bash\necho 'a\n\nb'\n```", ["echo 'a\n\nb'"]),
        ("````bash\ncat <<E\n```\nE\n````", ["cat <<E\n```\nE"]),
        ("```python\nprint(1)\n```", []),
        ("```\nls\n```", []),
        ("```bash\n\n```", []),
        ("```bash\nrm -rf build", []),
        ("no command here", []),
        ("<think>\n```bash\nrm x\n```\n</think>\n```bash\nls\n```", ["ls"]),
    ],
)
def test_bash_fences_are_found_as_written(text: str, expected: list[str]) -> None:
    """Closed fences of bash, sh or shell, without blank lines around, outside of thoughts."""
    assert commands(text) == expected


def test_a_fenced_call_says_where_it_came_from() -> None:
    """A fence has no id; its command is also its argument."""
    assert parse_tool_calls("```bash\nls\n```") == [
        ToolCall("bash", "ls", {"command": "ls"}, call_id=None, source="fenced")
    ]


def test_structured_calls_win_over_fences() -> None:
    """Text beside a structured call is talk about it."""
    message = {"role": "assistant", "content": "```bash\npwd\n```", "tool_calls": [STRUCTURED]}
    assert parse_tool_calls(message) == [
        ToolCall("bash", "ls -la", {"command": "ls -la"}, call_id="call-1", source="structured")
    ]


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ('{"cmd": "ls"}', "ls"),
        ('{"command": ["grep", "-r", "a b"]}', "grep -r 'a b'"),
        ({"script": "\nls\n"}, "ls"),
        ('{"path": "main.py"}', None),
        (None, None),
    ],
)
def test_the_command_is_taken_from_the_arguments(arguments: object, command: str | None) -> None:
    """A list of words is shell-joined; arguments without a command give none."""
    call = {"id": "1", "function": {"name": "run", "arguments": arguments}}
    assert commands({"tool_calls": [call]}) == [command]


def test_anthropic_blocks_are_read() -> None:
    """A message whose content is blocks, as objects or dicts."""
    use = {"type": "tool_use", "id": "toolu-1", "name": "bash", "input": {"command": "ls"}}
    blocks = [SimpleNamespace(type="text", text="I look."), SimpleNamespace(**use)]
    assert [call.call_id for call in parse_tool_calls(SimpleNamespace(content=blocks))] == [
        "toolu-1"
    ]
    assert commands({"content": [{"type": "text", "text": "```bash\npwd\n```"}]}) == ["pwd"]


def test_a_response_object_with_a_function_call_is_read() -> None:
    """OpenAI's responses keep calls and text as items of their output."""
    item = {"type": "function_call", "call_id": "c", "name": "bash", "arguments": '{"cmd":"ls"}'}
    assert commands({"output": [item]}) == ["ls"]


def test_replies_of_the_sdk_are_read() -> None:
    """Chat, completions and responses, as the SDK returns them."""
    text = "Sure.\n```bash\nls\n```"
    replies: list[str | ScriptedReply] = [ScriptedReply(text, tool_calls=[STRUCTURED]), *[text] * 3]
    with (
        ScriptedServer(replies) as server,
        openai.OpenAI(base_url=server.base_url, api_key="key") as client,
    ):
        structured = client.chat.completions.create(model="m", messages=[])
        assert commands(structured) == ["ls -la"]
        assert commands(client.chat.completions.create(model="m", messages=[])) == ["ls"]
        assert commands(client.completions.create(model="m", prompt="p")) == ["ls"]
        assert commands(client.responses.create(model="m", input="p")) == ["ls"]


@pytest.mark.parametrize("nothing", [None, "", {}, [], 3, {"content": None}, {"choices": []}])
def test_what_holds_no_call_gives_none(nothing: object) -> None:
    """Empty and odd messages are no error."""
    assert parse_tool_calls(nothing) == []


@settings(deadline=None)
@given(st.text())
def test_any_text_can_be_searched(text: str) -> None:
    """No reply of a model makes the parser fail; what it finds is in the text."""
    for call in parse_tool_calls(text):
        assert call.command is not None


@settings(deadline=None)
@given(st.text(st.characters(exclude_characters="`\r", codec="utf-8"), min_size=1))
def test_a_command_comes_back_as_it_was_written(command: str) -> None:
    """Whatever stands in the fence is the command, up to blank lines around it."""
    if command.strip() and "<think>" not in command:
        lines = command.split("\n")
        while not lines[0].strip():
            del lines[0]
        while not lines[-1].strip():
            del lines[-1]
        assert commands(f"```bash\n{command}\n```") == ["\n".join(lines)]
