"""Properties of every reply: parsing never raises, and commands come back as written."""

import json

from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentkv import ToolCall, parse_tool_calls
from agentkv.tool_calls.messages import body_of, structured_calls, texts
from tests.tool_calls.adversarial_replies import UNITS
from tests.tool_calls.corpus import read_corpus

PIECES = st.sampled_from([*UNITS, *(case.reply for case in read_corpus())])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
# Fences are left out: they cannot tell the end of a block from one in a here-document.
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


@settings(max_examples=500)
@given(st.lists(PIECES | st.text(max_size=3), max_size=12))
def test_any_mixture_of_formats_can_be_searched(pieces: list[str]) -> None:
    """No sequence of openers, closers and whole replies makes the parser raise."""
    assert_sound(parse_tool_calls("".join(pieces)))


@given(MESSAGES)
def test_any_data_can_be_searched(message: object) -> None:
    """No shape of a message makes the parser raise, nor the functions under its broad except."""
    assert_sound(parse_tool_calls(message))
    assert_sound(structured_calls(body_of(message)) or [])
    assert all(isinstance(text, str) for text in texts(body_of(message)))


@given(COMMANDS.filter(lambda text: text.strip() and "`" not in text and "<" not in text))
def test_a_command_in_a_fence_comes_back_as_it_was_written(command: str) -> None:
    """The text in a bash fence is the command, without blank lines around it."""
    (call,) = parse_tool_calls(f"```bash\n{command}\n```")
    assert call.command == stripped(command)


@given(COMMANDS.filter(str.strip))
@example("[<0")  # the JSON behind it is no part of a tag
def test_a_command_in_json_comes_back_as_it_was_written(command: str) -> None:
    """A command in a JSON string is returned as written, with any tags, fences and thoughts."""
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


@given(COMMANDS.filter(lambda text: text.strip() and "<" not in text))
def test_a_command_in_an_element_comes_back_as_it_was_written(command: str) -> None:
    """A command in an element comes back, even if it writes calls of its dialect to a file."""
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
    """A reply cut off anywhere in a here-document runs no part of it, nor a call written in it."""
    assert len(EXAMPLES) >= 6
    for reply in EXAMPLES:
        whole = [call.command for call in parse_tool_calls(reply)]
        for end in range(len(reply)):
            found = [call.command for call in parse_tool_calls(reply[:end]) if call.command]
            assert found == whole[: len(found)]


@given(st.text(st.characters(exclude_characters="<\r", codec="utf-8")))
def test_no_thought_is_a_call(thought: str) -> None:
    """A call behind a thought is the only one, with any text in the thought."""
    reply = f"<think>{thought}</think>\n```bash\nls\n```"
    assert [call.command for call in parse_tool_calls(reply)] == ["ls"]


@given(st.sampled_from([case.reply for case in read_corpus()]), st.data())
def test_a_reply_cut_off_anywhere_can_be_searched(reply: str, data: st.DataObject) -> None:
    """A reply that a token limit ends at any character can be parsed."""
    end = data.draw(st.integers(0, len(reply)))
    assert_sound(parse_tool_calls(reply[:end]))
