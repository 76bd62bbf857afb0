"""The public fake itself: its answers, and its record of requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from openai import OpenAI

from agentkv.protocol import Tags
from tests.scripted_apis import ScriptedReply, ScriptedServer

CHAT: dict[str, Any] = {"model": "m", "messages": []}


def test_replies_are_played_in_turn_and_requests_recorded(client: OpenAI) -> None:
    """The last reply comes again; method, path, headers in lower case and body are kept."""
    with ScriptedServer(["one", ScriptedReply("two")]) as server:
        talker = client.with_options(base_url=server.base_url)
        replies = [
            talker.chat.completions.create(**CHAT, temperature=0.5, extra_headers={"X-Note": "n"})
            for _ in range(3)
        ]
    assert [reply.choices[0].message.content for reply in replies] == ["one", "two", "two"]
    request = server.requests[0]
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.headers["x-note"] == "n"
    assert request.body == {**CHAT, "temperature": 0.5}


def test_errors_are_what_a_server_answers(server: ScriptedServer) -> None:
    """Unknown routes, jobs and fields, broken JSON, a missing key and ordered failures."""
    url, release = f"{server.base_url}/chat/completions", "/agentkv/jobs/a/release"
    assert httpx.get(f"{server.root_url}/nothing").status_code == 404
    assert httpx.post(url, content=b"{broken").status_code == 400
    assert httpx.post(server.base_url + release).status_code == 404
    server.fail_next(429)
    tagged = {**CHAT, "job_id": "a"}
    assert [httpx.post(url, json=tagged).status_code for _ in range(2)] == [429, 200]
    assert httpx.post(server.base_url + release).json() == {"job_id": "a"}
    with ScriptedServer(api_key="secret") as locked, ScriptedServer(has_plugin=False) as stock:
        assert httpx.get(f"{locked.base_url}/agentkv/info").status_code == 401
        assert httpx.get(f"{stock.base_url}/agentkv/info").status_code == 404
    with ScriptedServer(is_strict=True) as strict:
        refused = httpx.post(f"{strict.base_url}/chat/completions", json=tagged)
    assert (refused.status_code, "unknown field: job_id" in refused.text) == (400, True)


def test_waiting_in_vain_says_what_did_arrive(server: ScriptedServer) -> None:
    """wait_for fails with an assertion that lists the requests that did arrive."""
    httpx.get(f"{server.base_url}/agentkv/info")
    with pytest.raises(AssertionError, match=r"0\.01 s; arrived: \['/v1/agentkv/info'\]"):
        server.wait_for(lambda server: server.released, timeout_s=0.01)


@pytest.mark.parametrize("stream", [False, True])
def test_scripted_tool_calls_arrive_however_they_are_asked_for(stream: bool) -> None:
    """Chat completions and responses carry the tool calls, whole or streamed."""
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    with (
        ScriptedServer([ScriptedReply("hm", tool_calls=[call])]) as server,
        OpenAI(base_url=server.base_url, api_key="key") as client,
    ):
        if stream:
            with client.chat.completions.stream(**CHAT) as chunks:
                calls = chunks.get_final_completion().choices[0].message.tool_calls
            with client.responses.stream(model="m", input="hi") as events:
                output = events.get_final_response().output
        else:
            calls = client.chat.completions.create(**CHAT).choices[0].message.tool_calls
            output = client.responses.create(model="m", input="hi").output
    assert [call.function.name for call in calls] == ["bash"]
    assert [(item.name, item.call_id) for item in output[1:]] == [("bash", "c")]


MESSAGES: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": []}


@pytest.mark.parametrize("stream", [False, True])
def test_the_anthropic_sdk_reads_scripted_messages(stream: bool) -> None:
    """Text, tool calls and usage arrive through /v1/messages, whole or streamed."""
    anthropic = pytest.importorskip("anthropic")
    function = {"name": "Bash", "arguments": '{"command": "ls -l", "description": "List"}'}
    reply = ScriptedReply("let me see", tool_calls=[{"id": "c", "function": function}])
    with (
        ScriptedServer([reply, "done"], is_strict=True) as server,
        anthropic.Anthropic(base_url=server.root_url, api_key="key") as client,
    ):
        for expected in ("tool_use", "end_turn"):
            if stream:
                with client.messages.stream(**MESSAGES) as events:
                    message = events.get_final_message()
            else:
                message = client.messages.create(**MESSAGES)
            assert message.stop_reason == expected
            if expected == "tool_use":
                text, call = message.content
                assert text.text == "let me see"
                assert (call.id, call.name) == ("c", "Bash")
                assert call.input == {"command": "ls -l", "description": "List"}
            usage = message.usage
            assert (usage.input_tokens, usage.cache_read_input_tokens) == (20, 80)
            assert usage.output_tokens == 5
        assert [turn.path for turn in server.turns] == ["/v1/messages"] * 2


def test_errors_of_messages_have_anthropics_shape() -> None:
    """A strict server, a wrong key and ordered failures answer as Anthropic's API does."""
    with (
        ScriptedServer(is_strict=True, api_key="key") as server,
        httpx.Client(base_url=server.base_url) as client,
    ):

        def kind_of(status: int, **request: Any) -> str:
            reply = client.post("/messages?beta=true", **request)
            body = reply.json()
            assert (reply.status_code, body["type"]) == (status, "error")
            assert body["error"]["message"]
            return str(body["error"]["type"])

        assert kind_of(401, json=MESSAGES) == "authentication_error"
        client.headers["Authorization"] = "Bearer key"
        assert kind_of(400, json={**MESSAGES, "job_id": "j"}) == "invalid_request_error"
        assert kind_of(400, content=b"{broken") == "invalid_request_error"
        server.fail_next(529, 503)
        assert kind_of(529, json=MESSAGES) == "overloaded_error"
        assert kind_of(503, json=MESSAGES) == "api_error"
        assert client.post("/messages", json=MESSAGES).status_code == 200


def test_tags_are_recorded_from_body_and_headers() -> None:
    """A request's tags are those of its body, then of its headers; its job can be released."""
    headers = Tags("from header", turn=3, last_tool_s=0.5).as_headers()
    with ScriptedServer() as server:
        url = f"{server.base_url}/messages"
        httpx.post(url, json=MESSAGES, headers=headers)
        httpx.post(url, json={**MESSAGES, "job_id": "from body"}, headers=headers)
        tags = {"turn": 3, "last_tool_s": 0.5}
        assert [turn.tags for turn in server.turns] == [
            {"job_id": "from header", **tags},
            {"job_id": "from body", **tags},
        ]
        release = f"{server.base_url}/agentkv/jobs/from%20header/release"
        assert httpx.post(release).json() == {"job_id": "from header"}
        assert server.released == ["from header"]


def test_a_function_may_choose_the_reply() -> None:
    """It is given each request's body, and None is answered with 400; a named model is listed."""

    def reply(body: Mapping[str, Any]) -> ScriptedReply | None:
        text = body["messages"][-1]["content"]
        return ScriptedReply(text.upper()) if text else None

    with ScriptedServer(reply, model="m") as server:
        answers = [
            httpx.post(
                f"{server.base_url}/chat/completions",
                json={"messages": [{"role": "user", "content": text}]},
            )
            for text in ("hi", "")
        ]
        models = httpx.get(f"{server.base_url}/models").json()["data"]
    assert answers[0].json()["choices"][0]["message"]["content"] == "HI"
    assert answers[1].status_code == 400
    assert [model["id"] for model in models] == ["m"]
