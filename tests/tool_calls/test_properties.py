"""What holds for every reply: nothing raises, and what was written comes back as it was."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv import ToolCall, parse_tool_calls
from agentkv.tool_calls.messages import body_of, structured_calls, texts
from tests.tool_calls.adversarial_replies import UNITS
from tests.tool_calls.corpus import read_corpus

PIECES = st.sampled_from([*UNITS, *(case.reply for case in read_corpus())])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
# Fences alone do not tell the end of a block from one that a here-document holds.
EXAMPLES = [
    case.reply
    for case in read_corpus()
    if "in a here-document" in case.id and case.source != "fenced"
]
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
    """Neither does any shape of a message, and nothing but an odd object needs to be caught."""
    assert_sound(parse_tool_calls(message))
    assert_sound(structured_calls(body_of(message)) or [])
    assert all(isinstance(text, str) for text in texts(body_of(message)))


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
@given(COMMANDS.filter(lambda text: text.strip() and "<" not in text))
def test_a_command_in_an_element_comes_back_as_it_was_written(command: str) -> None:
    """Also one that writes calls of the same dialect to a file, without running them."""
    for form in (
        "<tool_call>\n<function=bash>\n<parameter=command>\n{}\n</parameter>\n</function>\n"
        "</tool_call>",
        '<invoke name="bash">\n<parameter name="command">\n{}\n</parameter>\n</invoke>',
        "<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>\n{}\n</arg_value>\n</tool_call>",
        "<bash>\n{}\n</bash>",
    ):
        written = f"cat > a.md <<'-- 8< --'\n{form.format(command)}\n-- 8< --\n{command}"
        for text in (command, written):
            (call,) = parse_tool_calls(form.format(text))
            assert call.command == stripped(text)


def test_a_call_cut_off_in_its_here_document_is_none() -> None:
    """Wherever the reply ends: no part of a command is run, nor a call that it writes to a file."""
    assert len(EXAMPLES) >= 6
    for reply in EXAMPLES:
        whole = [call.command for call in parse_tool_calls(reply)]
        for end in range(len(reply)):
            found = [call.command for call in parse_tool_calls(reply[:end])]
            assert found == whole[: len(found)]


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
