"""The public fake itself: its answers, and its record of requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from openai import OpenAI

from agentkv.protocol import Tags
from tests.scripted_server import ScriptedReply, ScriptedServer

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
    assert httpx.post(server.base_url + release).json()["job_id"] == "a"
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
    """Chat completions carry the tool calls, whole or streamed."""
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    with (
        ScriptedServer([ScriptedReply("hm", tool_calls=[call])]) as server,
        OpenAI(base_url=server.base_url, api_key="key") as client,
    ):
        if stream:
            with client.chat.completions.stream(**CHAT) as chunks:
                completion: Any = chunks.get_final_completion()
        else:
            completion = client.chat.completions.create(**CHAT)
    (found,) = completion.choices[0].message.tool_calls
    assert (found.id, found.function.name) == ("c", "bash")


def test_tags_are_recorded_from_body_and_headers() -> None:
    """A request's tags are those of its body, then of its headers; its job can be released."""
    headers = Tags("from header", turn=3, last_tool_s=0.5).as_headers()
    with ScriptedServer() as server:
        url = f"{server.base_url}/chat/completions"
        httpx.post(url, json=CHAT, headers=headers)
        httpx.post(url, json={**CHAT, "job_id": "from body"}, headers=headers)
        tags = {"turn": 3, "last_tool_s": 0.5}
        assert [turn.tags for turn in server.turns] == [
            {"job_id": "from header", **tags},
            {"job_id": "from body", **tags},
        ]
        release = f"{server.base_url}/agentkv/jobs/from%20header/release"
        assert httpx.post(release).json()["job_id"] == "from header"
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
