"""The ASGI middleware in front of an application laid out as vLLM's."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.types import Message, Receive, Scope, Send
from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware

from agentkv.integrations.vllm.api.engine_client import served_client
from agentkv.integrations.vllm.api.middleware import AgentKVMiddleware
from agentkv.integrations.vllm.clients import CLIENTS_VARIABLE
from agentkv.integrations.vllm.server_policy import FRONT_END_KEY
from agentkv.protocol import (
    CLIENT_FIELD,
    Tags,
    bounded_id,
)
from tests.integrations.vllm.api.fake_engine import (
    TAGGED_PATHS,
    UNTAGGED_PATHS,
    FakeEngineCore,
    make_app,
)

pytestmark = pytest.mark.asyncio

JOB_ID_NAME = "django-11451"
OURS = {"agentkv_wire_version": 1}


def counting_engine() -> FakeEngineCore:
    return FakeEngineCore([{"bad_tags": lambda number: None}])


def client_of(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server")


async def post(
    app: FastAPI,
    body: object,
    *,
    path: str = "/v1/chat/completions",
    headers: dict[str, str] | None = None,
) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    all_headers = {"content-type": "application/json", **(headers or {})}
    async with client_of(app) as client:
        return await client.post(path, content=content, headers=all_headers)


async def seen(app: FastAPI, body: object, **request: Any) -> Any:
    """The body that the application behind the middleware read."""
    reply = await post(app, body, **request)
    assert reply.status_code == 200, reply.text
    answer = reply.json()
    assert answer["length"] == str(len(answer["text"]))
    return json.loads(answer["text"])


@pytest.mark.parametrize("root_path", ["", "/llm"])
@pytest.mark.parametrize("path", TAGGED_PATHS)
async def test_tags_are_folded_on_every_generating_route(path: str, root_path: str) -> None:
    """job_id reaches vllm_xargs on all four routes, with the content length put right, also behind
    the prefix of a proxy."""
    request = {"stream": True, "job_id": JOB_ID_NAME}
    assert await seen(make_app(root_path=root_path), request, path=root_path + path) == {
        **request,
        "vllm_xargs": {"job_id": JOB_ID_NAME},
    }


async def test_tokens_in_tokens_out_takes_tags_in_headers() -> None:
    """They reach the sampling parameters of that route, whose own come first; the session header
    alone, which vLLM reads itself there, leaves the bytes as they are."""
    request = {"token_ids": [1, 2], "sampling_params": {"n": 1, "extra_args": {"turn": 3}}}
    tags = Tags(job_id=JOB_ID_NAME, turn=2, is_last_step=True)
    path = "/inference/v1/generate"
    extra_args = {"turn": 3, "job_id": JOB_ID_NAME, "is_last_step": 1}
    assert await seen(make_app(), request, path=path, headers=tags.as_headers()) == {
        "token_ids": [1, 2],
        "sampling_params": {"n": 1, "extra_args": extra_args},
    }
    native = {"X-Session-ID": "uid_0"}
    assert await seen(make_app(), request, path=path, headers=native) == request


async def test_other_routes_are_left_alone() -> None:
    """count_tokens keeps its body, even with a field that would be rejected elsewhere."""
    request = {"job_id": 5}
    path = "/v1/messages/count_tokens"
    assert await seen(make_app(), request, path=path) == request


@pytest.mark.parametrize("policy", [None, "fcfs", "priority"])
async def test_other_policies_see_their_bytes(policy: str | None) -> None:
    """Under a stock policy nothing is folded, checked, or served, and no client is named."""
    app = make_app(policy=policy)
    request = {"job_id": 5, "extra_body": {"turn": "x"}}
    headers = {"x-claude-code-session-id": "s"}
    assert await seen(app, request, headers=headers) == request
    assert app.state.engine_client.engine_core.added[-1].sampling_params.extra_args is None
    async with client_of(app) as client:
        ours, stock = await client.get("/v1/agentkv/info"), await client.get("/v1/nothing")
    assert (ours.status_code, ours.content) == (404, stock.content)


async def test_the_front_end_knows_clients_under_stock_policies() -> None:
    """Only where it is on, so that each finds its own prompts alone."""
    heard = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        heard.append(served_client.get())

    def request(mib: int, address: str) -> Scope:
        state = make_app(policy=None).state
        state.vllm_config.additional_config = {"agentkv": {FRONT_END_KEY: mib}}
        state_app = SimpleNamespace(state=state, user_middleware=[])
        asked = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
        return {**asked, "app": state_app, "client": (address, 1)}

    for mib in (0, 8):
        middleware = AgentKVMiddleware(app)
        for address in ("10.0.0.1", "10.0.0.2", "10.0.0.1"):
            await middleware(request(mib, address), None, None)  # type: ignore[arg-type]
    off, on = heard[:3], heard[3:]
    assert off == [None] * 3
    assert on[0] == on[2] != on[1]


@pytest.mark.parametrize(
    ("headers", "xargs"),
    [
        ({"Thread-Id": "codex", "x-parent-session-id": ""}, {"job_id": "codex"}),
        ({"X-Chat": "c", "X-Session-ID": "s"}, {"job_id": "c"}),
        ({"X-Room": "r", "X-Chat": "c"}, {"job_id": "r"}),
        ({"X-Room": "", "X-Chat": "c"}, {"job_id": "c"}),
        ({"X-AgentKV-Job": "ours", "X-Chat": "c"}, {"job_id": "ours"}),
        ({"X-Session-ID": "s"}, None),
        (
            Tags("työ", True, "up", 2, 9, "ls %\n", 0.5).as_headers(),
            {
                **{"job_id": "työ", "is_last_step": 1, "parent_job_id": "up", "turn": 2},
                **{"expected_turns": 9, "last_tool": "ls %\n", "last_tool_s": 0.5},
            },
        ),
    ],
)
async def test_headers_are_tags(headers: dict[str, str], xargs: dict[str, Any] | None) -> None:
    """Our headers, those of sessions and the first one of `session_headers` become tags; an empty
    one counts as absent. X-Session-ID alone, which vLLM reads itself, changes no body."""
    app = make_app(settings={"session_headers": ["X-Room", "X-Chat"]})
    assert (await seen(app, {"model": "m"}, headers=headers)).get("vllm_xargs") == xargs


@pytest.mark.parametrize("path", TAGGED_PATHS)
async def test_a_wrong_field_gets_a_400_that_names_it(path: str) -> None:
    """A wrong field gets a 400 with field, value and allowed range, in the route's shape."""
    core = counting_engine()
    reply = await post(make_app(core=core), {**OURS, "job_id": "j", "turn": "seven"}, path=path)
    assert reply.status_code == 400
    answer = reply.json()
    for part in ("turn", "'seven'", "1 to 1000000"):
        assert part in answer["error"]["message"]
    if path == "/v1/messages":
        assert (answer["type"], answer["error"]["type"]) == ("error", "invalid_request_error")
    else:
        assert answer["error"]["param"] == "turn"
        assert answer["error"]["code"] == 400
    await core.was_asked.wait()
    assert core.asked == [("bad_tags", [1])]


@pytest.mark.parametrize("path", TAGGED_PATHS)
async def test_what_strangers_send_breaks_no_call(path: str) -> None:
    """Fields that happen to be called as ours, and ids of any length, are passed over or hashed;
    what was passed over is counted."""
    core = counting_engine()
    app, token = make_app(core=core), "eyJ" + "s" * 600
    body = {"turn": {"of": "a game"}, "is_last_step": "no", "expected_turns": 3}
    found = await seen(app, body, path=path, headers={"X-Session-ID": token, "thread-id": token})
    assert found == {**body, "vllm_xargs": {"job_id": bounded_id(token), "expected_turns": 3}}
    await core.was_asked.wait()
    assert core.asked == [("bad_tags", [1])]


DEEP = "[" * 3000 + "]" * 3000


@pytest.mark.parametrize(
    "field",
    [
        *(f'"{name}": {DEEP}' for name in ("job_id", "nvext", "agentic_context", "agent_hint")),
        *(f'"vllm_xargs": {{"turn": 1, "x": {"[" * n + "]" * n}}}' for n in range(900, 1000, 3)),
        f'"agentic_context": {json.dumps(DEEP)}',
        f'"agentic_context": {json.dumps(json.dumps({"program_id": "p" * 17_000}))}',
        *(f'"nvext": {wrong}' for wrong in ("1", '"{"', "[{}]", '{"agent_hints": [1]}', "{}")),
        '"agent_hint": {"session_id": {}, "cache_control": {"ttl": "9" }, "expected_resume": 0}',
        '"session_params": {"session_id": "\\ud800"}, "client_metadata": {"thread_id": true}',
    ],
    ids=lambda field: field[:40],
)
async def test_hostile_fields_break_no_call(field: str) -> None:
    """Any value of a field that is read, of any depth and length, arrives."""
    answer = await post(make_app(), b"{" + field.encode() + b"}")
    assert answer.status_code == 200
    assert answer.json()["text"].startswith("{" + field[:30])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("X-AgentKV-Parent", "s" * 257),
        ("X-AgentKV-Turn", "seven"),
        ("X-AgentKV-Job", "%FF"),
    ],
)
async def test_a_wrong_header_gets_a_400_that_names_it(name: str, text: str) -> None:
    """Our headers are held to the limits of the fields, for every body."""
    for body in ({}, {"job_id": "j", "turn": 1}):
        reply = await post(make_app(core=counting_engine()), body, headers={name: text})
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == name
        assert f"{name}: got " in reply.json()["error"]["message"]


async def test_a_bad_tag_is_answered_when_the_engine_is_dead() -> None:
    """Counting the rejection may fail; the answer does not wait for it."""

    class DeadCore(FakeEngineCore):
        async def call_utility_all_async(self, method: str, *args: object) -> list[object]:
            raise RuntimeError("EngineCore encountered an issue")

    assert (await post(make_app(core=DeadCore([])), {**OURS, "turn": 0})).status_code == 400


async def test_without_the_key_nothing_is_read_or_shown() -> None:
    """An unauthenticated request gets vLLM's own 401, not our 400."""
    app = make_app(core=counting_engine())
    # inside of ours: vLLM adds user middleware last, and so outermost
    app.user_middleware.append(Middleware(AuthenticationMiddleware, tokens=["one", "two"]))
    wrong = {**OURS, "turn": 0}
    assert (await post(app, wrong)).status_code == 401
    assert (await post(app, wrong, headers={"authorization": "Bearer x"})).status_code == 401
    with_key = {"authorization": "Bearer two"}
    assert (await post(app, wrong, headers=with_key)).status_code == 400
    assert "vllm_xargs" in await seen(app, {"job_id": "j"}, headers=with_key)
    async with client_of(app) as client:
        assert (await client.get("/v1/agentkv/info")).status_code == 401


async def client_seen(app: FastAPI, body: object = None, **request: Any) -> str:
    """The name of the client that reaches the engine with a request."""
    reply = await post(app, {} if body is None else body, **request)
    assert reply.status_code == 200, reply.text
    client: str = app.state.engine_client.engine_core.added[-1].sampling_params.extra_args[
        CLIENT_FIELD
    ]
    assert re.fullmatch("[0-9a-f]{16}", client)
    return client


async def test_a_client_is_its_key_under_a_name_that_does_not_tell_it() -> None:
    """Each of a server's keys is one client, on every route, and the name holds none of the key."""
    app = make_app()
    app.user_middleware.append(Middleware(AuthenticationMiddleware, tokens=["one", "two"]))
    one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
    names = {
        await client_seen(app, path=path, headers=one) for path in (*TAGGED_PATHS, *UNTAGGED_PATHS)
    }
    assert len(names) == 1
    assert "one" not in names.pop()
    assert await client_seen(app, headers=one) != await client_seen(app, headers=two)


async def test_keys_of_one_name_are_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """AGENTKV_CLIENTS names keys; a request cannot be named by header there."""
    monkeypatch.setenv(CLIENTS_VARIABLE, json.dumps({"alice": ["one", "two"], "bob": "three"}))
    app = make_app()
    keys = ["one", "two", "three", "four"]
    app.user_middleware.append(Middleware(AuthenticationMiddleware, tokens=keys))
    headers = [{"authorization": f"Bearer {key}", "x-tenant": "alice"} for key in keys]
    one, two, three, four = [await client_seen(app, headers=each) for each in headers]
    assert one == two
    assert len({one, three, four}) == 3


async def test_a_proxy_names_clients_by_the_header_that_is_set() -> None:
    """With `client_header`, on a server without keys; without the header the address counts."""
    settings = {"client_header": "X-Tenant"}
    app = make_app({"jobs": lambda *_: [], "job_keys": lambda *_: []}, settings=settings)
    alice, bob = {"X-Tenant": "alice"}, {"x-tenant": "bob"}
    assert await client_seen(app, headers=alice) != await client_seen(app, headers=bob)
    assert await client_seen(app) == await client_seen(make_app(), headers=alice)
    async with client_of(app) as client:
        for headers, asked in ((alice, True), ({}, False)):
            await client.get("/v1/agentkv/jobs", headers=headers)
            _, values = app.state.engine_client.engine_core.asked[-1]
            assert (values[0] is not None) == asked  # of one's own, or of all jobs


@pytest.mark.parametrize("is_on", [False, True])
async def test_with_client_caches_no_client_shares_a_prefix(is_on: bool) -> None:
    """Its name is then part of the salt of all that it sends."""
    app = make_app(settings={"client_caches": is_on})
    app.user_middleware.append(Middleware(AuthenticationMiddleware, tokens=["one", "two"]))
    salts = []
    for key in ("one", "two", "one"):
        client = await client_seen(app, headers={"authorization": f"Bearer {key}"})
        salts.append(app.state.engine_client.engine_core.added[-1].cache_salt)
        assert salts[-1] == (f"{client} " if is_on else None)
    assert len({*salts}) == (2 if is_on else 1)


async def test_the_path_that_is_open_without_a_key_has_clients_by_address() -> None:
    """vLLM serves /invocations without a key: nobody passes there for the owner of one."""
    app = make_app()
    app.user_middleware.append(Middleware(AuthenticationMiddleware, tokens=["one"]))
    with_key = {"authorization": "Bearer one"}
    forged = {"vllm_xargs": {CLIENT_FIELD: await client_seen(app, headers=with_key)}}
    without_key = await client_seen(app, forged, path="/invocations")
    assert without_key == await client_seen(make_app())
    assert without_key != await client_seen(app, path="/invocations", headers=with_key)


ANOTHER = {"vllm_xargs": {CLIENT_FIELD: "another", "mine": 1}}


@pytest.mark.parametrize("path", [*TAGGED_PATHS, *UNTAGGED_PATHS])
@pytest.mark.parametrize("body", [ANOTHER, {"job_id": "j", **ANOTHER}], ids=["untagged", "tagged"])
async def test_no_client_takes_the_name_of_another(body: object, path: str) -> None:
    """What a request says of its client is overwritten on its way to the engine, on every route."""
    assert await client_seen(make_app(), body, path=path) == await client_seen(make_app())


@pytest.mark.parametrize(
    "body",
    [
        *(b'{"a": 1,}', b"[{}", b'{"a": {}', b'{"a": "}', b"}", b"\xff}", b" { } ", b'{"a": 1}'),
        *('{"prompt": "\u00e9"}'.encode(encoding) for encoding in ("utf-16", "utf-8-sig")),
        b'{"vllm_xargs": {"mine": 1}, "a": "\xed\xa0\x80"}',
    ],
)
async def test_a_body_without_tags_keeps_its_bytes(body: bytes) -> None:
    """Of a request without tags, well-formed or not, vLLM reads what the client wrote."""
    app = make_app()
    answer = (await post(app, body, headers={"X-Session-ID": "s"})).json()
    assert answer["text"].encode("latin-1") == body
    added = app.state.engine_client.engine_core.added[-1]
    assert re.fullmatch("[0-9a-f]{16}", added.sampling_params.extra_args[CLIENT_FIELD])


async def test_the_engine_gets_tags_that_were_checked() -> None:
    """Of a stranger's fields with our names it gets those that can be used, in any form."""
    app = make_app()
    await client_seen(app, {"vllm_xargs": {"job_id": "j" * 300, "turn": "many", "mine": 1}})
    fields = app.state.engine_client.engine_core.added[-1].sampling_params.extra_args
    assert fields.keys() == {"job_id", "mine", CLIENT_FIELD}
    assert len(fields["job_id"]) == 64


class Connection:
    """An ASGI connection with a script of messages from the client."""

    def __init__(self, *messages: Message) -> None:
        self.pending = list(messages)

    async def receive(self) -> Message:
        return self.pending.pop(0) if self.pending else {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        raise AssertionError(f"nothing is answered here: {message}")


async def received(*messages: Message) -> list[Message]:
    """What the application gets to read, up to the disconnect, for these messages."""
    got: list[Message] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        while not got or got[-1]["type"] != "http.disconnect":
            got.append(await receive())

    connection = Connection(*messages)
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "headers": [],
        "app": make_app(),
    }
    await AgentKVMiddleware(application)(scope, connection.receive, connection.send)
    return got


async def test_a_key_cut_in_two_by_the_network_is_found() -> None:
    """A body that arrives in several pieces is folded as one."""
    got = await received(
        {"type": "http.request", "body": b'{"jo', "more_body": True},
        {"type": "http.request", "body": b"", "more_body": True},
        {"type": "http.request", "body": b'b_id": "j"}'},
    )
    assert json.loads(got[0]["body"])["vllm_xargs"]["job_id"] == "j"
    assert [message["type"] for message in got] == ["http.request", "http.disconnect"]


async def test_a_client_that_leaves_in_mid_body_is_not_served() -> None:
    """The application hears nothing of it."""
    part: Message = {"type": "http.request", "body": b'{"job_id', "more_body": True}
    assert await received(part) == []


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
async def test_other_connections_pass_through(kind: str) -> None:
    """Lifespan and websocket scopes reach the application as they are."""
    passed: list[Scope] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        passed.append(scope)

    scope = {"type": kind, "path": "/v1/realtime", "headers": [], "app": make_app()}
    connection = Connection()
    await AgentKVMiddleware(application)(scope, connection.receive, connection.send)
    assert passed == [scope]
