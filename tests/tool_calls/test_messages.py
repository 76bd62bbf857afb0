"""Calls in the fields of messages: OpenAI's chat and responses, Anthropic's, LangChain's."""

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from agentkv import ToolCall, parse_tool_calls
from tests.scripted_apis import ScriptedReply, ScriptedServer

STRUCTURED = {
    "id": "call-1",
    "type": "function",
    "function": {"name": "bash", "arguments": json.dumps({"command": "ls -la"})},
}


def commands(message: object) -> list[str | None]:
    return [call.command for call in parse_tool_calls(message)]


def chat_call(name: object, arguments: object) -> dict[str, Any]:
    return {"tool_calls": [{"id": "1", "function": {"name": name, "arguments": arguments}}]}


BASH = "```bash\nls\n```"
TALK = "```bash\nrm x\n```"
THINKING = [
    {"type": "thinking", "thinking": TALK},
    {"type": "thinking", "thinking": [{"type": "text", "text": TALK}]},
    {"type": "redacted_thinking", "data": TALK},
    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": TALK}]},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": TALK}]},
]
ITEM = {"type": "function_call", "name": "bash", "arguments": '{"command": "ls"}'}
TEXT, OUTPUT_TEXT = {"type": "text", "text": BASH}, {"type": "output_text", "text": BASH}
THOUGHT_IN_PARTS = [f"<think>\n{TALK}", f"</think>\n{BASH}"]
RUN_BY_PROVIDER = [
    {"type": "web_search_call", "action": {"command": ["ls"]}},
    {"type": "mcp_call", "name": "bash", "arguments": '{"command": "ls"}'},
    {"type": "server_tool_use", "name": "bash", "input": {"command": "ls"}},
]
NOTHING: list[object] = [None, "", b"", {}, [], (), 3, {"content": None}, object]
MESSAGES: dict[str, tuple[object, list[str]]] = {
    "structured calls make text talk": ({"content": TALK, "tool_calls": [STRUCTURED]}, ["ls -la"]),
    "broken ones as well": (chat_call("bash", "{broken") | {"content": TALK}, []),
    "function_call of older messages": (
        {"content": None, "function_call": {"name": "bash", "arguments": '{"cmd": "ls"}'}},
        ["ls"],
    ),
    # an Anthropic message has the type that items of OpenAI's responses have
    "type message": ({"type": "message", "role": "assistant", "content": [TEXT]}, ["ls"]),
    "type message, output_text": ({"type": "message", "content": [OUTPUT_TEXT]}, ["ls"]),
    "a thought over two blocks": (
        {"content": [{"type": "text", "text": part} for part in THOUGHT_IN_PARTS]},
        ["ls"],
    ),
    "thinking": ({"content": THINKING, "reasoning_content": TALK, "reasoning": TALK}, []),
    "thinking and text": ({"content": BASH, "reasoning_content": TALK, "reasoning": TALK}, ["ls"]),
    "an output item": (ITEM, ["ls"]),
    "a list of output items": ([ITEM], ["ls"]),
    "a list of tool_use": (
        [{"type": "tool_use", "name": "bash", "input": {"command": "ls"}}],
        ["ls"],
    ),
    "a list of text blocks": ([TEXT], ["ls"]),
    "text of a response": ({"output": [{"type": "message", "content": [OUTPUT_TEXT]}]}, ["ls"]),
    "tools that the provider ran": ({"output": RUN_BY_PROVIDER}, []),
    # a message with fields of its own is no wrapper of another
    "content and a response": ({"content": BASH, "response": {"content": TALK}}, ["ls"]),
    "calls and a message": (
        {"content": "", "message": {"content": TALK}, "tool_calls": [STRUCTURED]},
        ["ls -la"],
    ),
    "a message that is a text": ({"message": TALK}, []),
    "bytes": (b"```bash\necho \xff\n```", ["echo \ufffd"]),
    **{f"nothing: {empty!r}": (empty, []) for empty in NOTHING},
    "no choices": ({"choices": []}, []),
    "an empty choice": ({"choices": [None]}, []),
}


@pytest.mark.parametrize(("message", "expected"), MESSAGES.values(), ids=MESSAGES)
def test_messages_of_every_shape_are_read(message: object, expected: list[str]) -> None:
    """A message's calls are read from its own fields, else from its text without thinking."""
    assert commands(message) == expected


TAKEN: list[tuple[object, str | None]] = [
    *(('{"command": "ls"}', "ls"), ('{"cmd": "ls"}', "ls"), ('{"code": "ls"}', "ls")),
    *(({"script": "\nls\n"}, "ls"), ('{"commands": "ls"}', "ls")),
    ('{"command": ["grep", "-r", "a b"]}', "grep -r 'a b'"),
    ('{"command": ["bash", "-lc", "ls | wc"]}', "bash -lc 'ls | wc'"),
    *(('{"argv": ["ls", "-l"]}', "ls -l"), ('{"command": null, "cmd": "ls"}', "ls")),
    *(('{"command": "  ls  "}', "  ls  "), ('{"command": "cd a\\n\\nls\\n"}', "cd a\n\nls")),
    *(('{"command": "ls", "timeout": 5}', "ls"), ('{"commands": ["cd x", "ls"]}', "cd x\nls")),
    ('{"command": "ls", "args": ["-la", "a b"]}', "ls -la 'a b'"),
    *(('{"cmd": ["ls"], "args": ["-la"]}', "ls -la"), ('{"command": "ls", "args": []}', "ls")),
    *(('{"command": "ls", "args": {"a": 1}}', "ls"), ('{"script": "a $1", "args": ["a"]}', "a $1")),
    *(('{"command": "", "args": ["-la"]}', None), ('{"command": ""}', None)),
    *(('{"command": " \\n"}', None), ('{"command": []}', None)),
    *(('{"command": ["ls", 1]}', None), ('{"command": 7}', None)),
    *(('{"path": "main.py"}', None), ("{}", None), ("", None), (None, None)),
    # JSON in JSON, and Python's quotes
    *((json.dumps(json.dumps({"command": "ls"})), "ls"), ("{'command': 'ls'}", "ls")),
    (json.dumps(json.dumps(json.dumps({"command": "ls"}))), "ls"),
    (json.dumps("{'command': 'ls', 'wait': True}"), "ls"),
]
BROKEN = [*("{broken", '{"command": "ls', "[1]", '"ls"', "7", "null", 7, ["ls"], "[" * 10_000)]
BASH_NAMES = """
bash Bash shell sh zsh terminal execute_bash run_bash run_command run_shell_command execute_command
exec_command exec run local_shell container.exec functions.bash functions.bash:0 bash_20250124
mcp__box__run_command runShellCommand developer__shell run_terminal_cmd
"""
LS_COMMAND = '{"command": "ls"}'


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        *(("bash", arguments, [command]) for arguments, command in TAKEN),
        *(("bash", arguments, []) for arguments in BROKEN),
        *((name, LS_COMMAND, ["ls"]) for name in BASH_NAMES.split()),
        *((name, LS_COMMAND, []) for name in (None, "", 7, [], {})),
    ],
)
def test_the_command_is_taken_from_the_arguments(
    name: object, arguments: object, expected: list[str | None]
) -> None:
    """A tool runs bash if its name says so in any spelling; its command is a text argument or
    shell-joined words. A call without a name or an object is dropped, and the next one is kept."""
    message = chat_call(name, arguments)
    message["tool_calls"] += [STRUCTURED]
    assert commands(message) == [*expected, "ls -la"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("str_replace_editor", {"command": "view", "path": "a.py"}),
        ("write_file", {"path": "a.sh", "code": "ls"}),
        ("python", {"code": "import os"}),
        ("execute_sql", {"command": "select 1"}),
        ("SlashCommand", {"command": "/review"}),
        ("bash.read_file", {"command": "ls"}),
    ],
)
def test_other_tools_run_no_command(name: str, arguments: dict[str, str]) -> None:
    """A tool whose name does not say bash has no command, even with an argument called command."""
    expected = ToolCall(name, None, arguments, "1", "structured")
    assert parse_tool_calls(chat_call(name, json.dumps(arguments))) == [expected]


@pytest.mark.parametrize(
    "name",
    [
        *("bash<|channel|>commentary", "<|constrain|>bash", "bash <|end|>", "[TOOL_CALLS]bash"),
        "bash<\uff5ctool\u2581sep\uff5c>",
    ],
)
def test_control_tokens_are_no_part_of_a_name(name: str) -> None:
    """A token that a server left before or behind a tool's name is dropped."""
    assert [call.name for call in parse_tool_calls(chat_call(name, "{}"))] == ["bash"]


USE = {"type": "tool_use", "id": "c", "name": "bash", "input": {"command": "ls"}}
LANGCHAIN = {"name": "bash", "args": {"command": "ls"}, "id": "c", "type": "tool_call"}
LS = ToolCall("bash", "ls", {"command": "ls"}, "c")


def items(*calls: dict[str, Any]) -> dict[str, Any]:
    """A response of OpenAI's with these calls next to a text."""
    text = {"type": "message", "content": [{"type": "output_text", "text": TALK}]}
    return {"output": [text, *({**call, "call_id": "c"} for call in calls)]}


CALLS: dict[str, tuple[object, list[ToolCall]]] = {
    "parallel calls in order": (
        {"tool_calls": [STRUCTURED | {"id": str(index)} for index in range(5)]},
        [ToolCall("bash", "ls -la", {"command": "ls -la"}, str(index)) for index in range(5)],
    ),
    "a custom tool of chat that runs bash": (
        {"tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "bash", "input": "ls"}}]},
        [LS],
    ),
    "another custom tool of chat": (
        {"tool_calls": [{"id": "c", "custom": {"name": "apply_patch", "input": "***"}}]},
        [ToolCall("apply_patch", None, {"input": "***"}, "c")],
    ),
    "Anthropic's, as objects and dicts": (
        SimpleNamespace(content=[SimpleNamespace(**TEXT), SimpleNamespace(**USE), USE]),
        [LS, LS],
    ),
    "LangChain's, as objects": (SimpleNamespace(content="", tool_calls=[LANGCHAIN]), [LS]),
    "LangChain's, as dicts": ({"tool_calls": [LANGCHAIN]}, [LS]),
    "LangChain's generation": (
        SimpleNamespace(message=SimpleNamespace(content="", tool_calls=[LANGCHAIN]), text=""),
        [LS],
    ),
    "function_call": (items(ITEM), [LS]),
    "custom_tool_call": (items({"type": "custom_tool_call", "name": "bash", "input": "ls"}), [LS]),
    "local_shell_call": (
        items({"type": "local_shell_call", "action": {"type": "exec", "command": ["ls", "a b"]}}),
        [ToolCall("local_shell", "ls 'a b'", {"command": ["ls", "a b"]}, "c")],
    ),
    "shell_call": (
        items({"type": "shell_call", "action": {"commands": ["ls", "pwd"]}}),
        [ToolCall("shell", "ls\npwd", {"commands": ["ls", "pwd"]}, "c")],
    ),
}


@pytest.mark.parametrize(("message", "expected"), CALLS.values(), ids=CALLS)
def test_calls_keep_their_names_arguments_and_ids(
    message: object, expected: list[ToolCall]
) -> None:
    """Every API's calls come back in order, with name, arguments, command and id."""
    assert parse_tool_calls(message) == expected


def test_replies_of_the_sdk_are_read() -> None:
    """Chats, completions and responses are read, whole, raw, by choice and at a stream's end."""
    replies: list[str | ScriptedReply] = [ScriptedReply("", tool_calls=[STRUCTURED]), *[BASH] * 6]
    with (
        ScriptedServer(replies) as server,
        openai.OpenAI(base_url=server.base_url, api_key="key") as client,
    ):
        chat, responses = client.chat.completions, client.responses
        assert commands(chat.create(model="m", messages=[])) == ["ls -la"]
        completion = client.completions.create(model="m", prompt="p")
        *_, completed = responses.create(model="m", input="p", stream=True)
        assert completed.type == "response.completed"
        reply = chat.create(model="m", messages=[])
        for message in (
            *(reply, reply.choices[0], reply.choices[0].model_dump()),
            *(completion, completion.choices[0], completed, completed.model_dump()),
            chat.with_raw_response.create(model="m", messages=[]),
            responses.create(model="m", input="p"),
            responses.with_raw_response.create(model="m", input="p"),
        ):
            assert commands(message) == ["ls"]


@pytest.mark.asyncio
async def test_a_raw_reply_of_an_async_client_is_read() -> None:
    """An async client's raw response is read; one not yet read gives no call and no warning."""
    with ScriptedServer([BASH] * 2) as server:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="key") as client:
            create = client.chat.completions.with_raw_response.create
            assert commands(await create(model="m", messages=[])) == ["ls"]
            streaming = client.chat.completions.with_streaming_response
            async with streaming.create(model="m", messages=[]) as unread:
                assert commands(unread) == []


class Unfriendly:
    """Raises on the access of any attribute."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)


class Unreadable:
    """Raises when asked for its truth, its text or its equality."""

    def refuse(self, *_: object) -> Any:
        raise ValueError("the truth value of an array is ambiguous")

    __bool__ = __str__ = __eq__ = refuse
    __hash__ = None  # type: ignore[assignment]


def with_each_part_replaced(message: Any, odd: object) -> Iterator[object]:
    """Copies of a message, in each of which another of its parts, small or large, is odd."""
    yield odd
    if isinstance(message, dict):
        for key, part in message.items():
            yield from ({**message, key: other} for other in with_each_part_replaced(part, odd))
    elif isinstance(message, list):
        for index, part in enumerate(message):
            for other in with_each_part_replaced(part, odd):
                yield [*message[:index], other, *message[index + 1 :]]


@pytest.mark.parametrize("kind", [Unfriendly, Unreadable])
def test_objects_that_raise_are_no_error(kind: type) -> None:
    """An object that raises on access, in any place of a message, raises nothing and is no text."""
    wrapped = {"choices": [{"message": {"content": [TEXT]}, "text": "", "finish_reason": "stop"}]}
    for message in (
        *(wrapped, {"response": {"message": wrapped}}, {"http_response": {"text": ""}}),
        *(message for message, _ in (*MESSAGES.values(), *CALLS.values())),
    ):
        for odd in with_each_part_replaced(message, kind()):
            assert all(isinstance(command, str | None) for command in commands(odd))
    for value in (kind(), [kind()], ["ls", kind()]):
        assert commands(chat_call("bash", {"command": value})) in ([None], [])


def test_calls_next_to_objects_without_a_truth_value_are_read() -> None:
    """A call is read among objects whose truth value raises, as an array's does."""
    odd = Unreadable()
    message = {"tool_calls": [{"function": odd}, {"custom": odd}, STRUCTURED, {"type": odd}]}
    assert commands(message) == ["ls -la"]
    assert commands({"content": [{"type": odd}, {"type": "text", "text": "```sh\nls\n```"}]}) == [
        "ls"
    ]
