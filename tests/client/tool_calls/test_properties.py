"""What holds for every reply: nothing raises, and what was written comes back as it was."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv import ToolCall, parse_tool_calls
from agentkv.evals.hostile_replies import UNITS
from tests.client.tool_calls.corpus import read_corpus

PIECES = st.sampled_from([*UNITS, *(case.reply for case in read_corpus())])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
KEYS = st.sampled_from(
    [
        *("choices", "message", "content", "tool_calls", "function", "name", "arguments", "id"),
        *("type", "text", "output", "input", "action", "command", "commands", "custom"),
    ]
) | st.text(max_size=3)
TYPES = st.sampled_from(["tool_use", "function_call", "shell_call", "local_shell_call", "text"])
MESSAGES = st.recursive(
    SCALARS | TYPES,
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
    max_leaves=30,
)
COMMANDS = st.text(st.characters(exclude_characters="\r", codec="utf-8"), min_size=1)


def stripped(command: str) -> str:
    lines = command.split("\n")
    while not lines[0].strip():
        del lines[0]
    while not lines[-1].strip():
        del lines[-1]
    return "\n".join(lines)


def assert_sound(calls: list[ToolCall]) -> None:
    for call in calls:
        assert call.name
        assert call.command is None or call.command.strip()


@settings(deadline=None)
@given(st.text())
def test_any_text_can_be_searched(text: str) -> None:
    """No reply of a model makes the parser fail, and no command is blank."""
    assert_sound(parse_tool_calls(text))


@settings(deadline=None, max_examples=500)
@given(st.lists(PIECES | st.text(max_size=3), max_size=12))
def test_any_mixture_of_formats_can_be_searched(pieces: list[str]) -> None:
    """However openers, closers and whole replies follow each other."""
    assert_sound(parse_tool_calls("".join(pieces)))


@settings(deadline=None)
@given(MESSAGES)
def test_any_data_can_be_searched(message: object) -> None:
    """Neither does any shape of a message."""
    assert_sound(parse_tool_calls(message))


@settings(deadline=None)
@given(COMMANDS.filter(lambda text: text.strip() and "`" not in text and "<" not in text))
def test_a_command_in_a_fence_comes_back_as_it_was_written(command: str) -> None:
    """Whatever stands in the fence is the command, up to blank lines around it."""
    (call,) = parse_tool_calls(f"```bash\n{command}\n```")
    assert call.command == stripped(command)


@settings(deadline=None)
@given(COMMANDS.filter(str.strip))
def test_a_command_in_json_comes_back_as_it_was_written(command: str) -> None:
    """Whatever JSON can say: tags, fences and thoughts in it change nothing."""
    arguments = json.dumps({"command": command})
    replies = [
        f'<tool_call>\n{{"name": "bash", "arguments": {arguments}}}\n</tool_call>',
        f"[TOOL_CALLS]bash[ARGS]{arguments}",
        f"<|channel|>commentary to=functions.bash <|constrain|>json<|message|>{arguments}<|call|>",
        f'{{"name": "bash", "parameters": {arguments}}}',
    ]
    for reply in replies:
        (call,) = parse_tool_calls(reply)
        assert call.command == stripped(command)


@settings(deadline=None)
@given(st.text(st.characters(exclude_characters="<\r", codec="utf-8")))
def test_no_thought_is_a_call(thought: str) -> None:
    """Whatever a thought says, the call behind it is the only one."""
    reply = f"<think>{thought}</think>\n```bash\nls\n```"
    assert [call.command for call in parse_tool_calls(reply)] == ["ls"]


@settings(deadline=None)
@given(st.sampled_from([case.reply for case in read_corpus()]), st.data())
def test_a_reply_cut_off_anywhere_can_be_searched(reply: str, data: st.DataObject) -> None:
    """A token limit may end a reply at any character."""
    end = data.draw(st.integers(0, len(reply)))
    assert_sound(parse_tool_calls(reply[:end]))
