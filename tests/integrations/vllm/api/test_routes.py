"""The /v1/agentkv routes: what they ask the engine, and what they answer when it goes wrong."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from agentkv.events import ToolStarted
from agentkv.integrations.vllm.api import routes
from agentkv.integrations.vllm.clients import ADMIN_KEY_VARIABLE, CLIENTS_VARIABLE, Clients
from agentkv.integrations.vllm.retention.tool_signals import MAX_COMMAND_CHARS
from agentkv.protocol import KEPT_COMMAND_CHARS, JobKey
from tests.integrations.vllm.api.fake_engine import (
    Answers,
    FakeEngineCore,
    Server,
    SteppedCore,
    client_of,
)
from tests.integrations.vllm.harness import Engine

pytestmark = pytest.mark.asyncio

AWKWARD_ID = "a/b c?d#é%2F/tool"

TOKENS = {"tokens": {"prompt_tokens": 7}}
INFO = {"policy": "continuum", "block_size": 128, "num_blocks": 100}


def engine_of(*job_ids: str) -> dict[str, Any]:
    """One engine's table of answers, with these jobs of each client alive."""

    def known(key: str) -> str | None:
        job_id = JobKey.read(key).own_id
        return job_id if job_id in job_ids else None

    return {
        "info": lambda: INFO,
        "stats": lambda: {"pinned_jobs": len(job_ids), "kv_cache_usage": 0.5},
        "jobs": lambda *_: [{"job_id": job_id} for job_id in job_ids],
        "job_keys": lambda *_: [*job_ids],
        "events": lambda *_: {
            "engine": str(id(job_ids)),
            "events": [(job_id, {"event": "finish"}) for job_id in job_ids],
            "next": None,
        },
        "job": lambda key, *_: known(key) and {"job_id": known(key), **TOKENS},
        "tool": lambda key, event: known(key) and {"job_id": known(key), **TOKENS},
        "release": lambda key: known(key) and {"job_id": known(key), "freed_blocks": 3, **TOKENS},
    }


def error_of(reply: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = reply.json()["error"]
    assert error["code"] == reply.status_code
    return error


async def test_the_worst_jobs_of_all_engines_are_explained() -> None:
    """Of several engines' jobs those come first that computed the most; an unknown job is 404."""

    def engine_with(*lost: int) -> Answers:
        jobs = [
            {"job_id": f"lost{tokens}", "tokens": {"recomputed_tokens": {"ttl": tokens}}}
            for tokens in lost
        ]
        by_id = {job["job_id"]: job for job in jobs}
        return {
            "keys_to_explain": lambda client, job_id, most: [] if job_id == "none" else [*by_id],
            "explain": lambda client, keys: [by_id[key] for key in keys if key in by_id],
        }

    ask = Server(engine_with(5, 1), engine_with(7, 3))
    found = (await ask("GET", "/explain?worst=3")).json()["jobs"]
    assert [(job["job_id"], job["engine"]) for job in found] == [
        *(("lost7", 1), ("lost5", 0), ("lost3", 1))
    ]
    assert (await ask("GET", "/explain?job=lost5")).status_code == 200
    assert (await ask("GET", "/explain?job=none")).status_code == 404
    asked = [values[1:] for operation, values in ask.core.asked if operation != "explain"]
    assert asked == [[None, 3], ["lost5", 1], ["none", 1]]


async def test_a_tool_event_reaches_the_engine() -> None:
    """All its fields do, with no more of a command than the engine reads."""
    ask = Server(engine_of("j"))
    event = {"state": "finished", "tool": "t", "duration_s": 0.5, "turn": 2, "limit_s": 60.0}
    event["command"] = "make" + " x" * 10_000
    assert (await ask("POST", "/jobs/j/tool", event)).json() == {"job_id": "j", **TOKENS}
    ((operation, (key, taken)),) = ask.core.asked
    assert (operation, JobKey.read(key).own_id) == ("tool", "j")
    assert taken == {**event, "command": event["command"][:KEPT_COMMAND_CHARS]}


async def test_the_admin_key_alone_reads_who_the_clients_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By their names, if they have any; the numbers of several engines are added up."""
    monkeypatch.setenv(ADMIN_KEY_VARIABLE, "root")
    monkeypatch.setenv(CLIENTS_VARIABLE, '{"alice": "one"}')
    alice = Clients(None, {"client_header": "n"})
    name = alice.of({"type": "http", "headers": [(b"n", b"alice")]})
    entry = {"client": name, "requests": 1, "service": 10}
    engine = {"clients": lambda: [entry]}
    ask = Server(engine, engine, keys=["one", "root"])
    assert (await ask("GET", "/clients", key="one")).status_code == 404
    assert (await ask("POST", "/clients", key="root")).status_code == 405
    seen = (await ask("GET", "/clients", key="root")).json()
    assert seen == {"clients": [{**entry, "client": "alice", "requests": 2, "service": 20}]}


@pytest.mark.parametrize(
    "job_id", ["a\nb", "a\n", "\n", "\x00\x1f", "a\r\nb/tool", "team/a", AWKWARD_ID]
)
async def test_a_job_id_may_hold_any_character(job_id: str) -> None:
    """A job whose id holds line ends, slashes, spaces, `?`, `#`, `%` and a final `/tool` can be
    read, signalled and released, and a plain slash needs no escape."""
    ask = Server(engine_of(job_id))
    path = f"/jobs/{quote(job_id, safe='/' if job_id == 'team/a' else '')}"
    assert (await ask("GET", path)).json()["job_id"] == job_id
    assert (await ask("POST", f"{path}/tool", {"state": "started"})).json()["job_id"] == job_id
    assert (await ask("POST", f"{path}/release")).json()["freed_blocks"] == 3


TOOL = "/jobs/j/tool"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "named"),
    [
        *(
            (method, path, None, 405, "GET, HEAD")
            for method, path in (*(("POST", "/info"), ("DELETE", "/jobs/j"), ("POST", "/jobs/j")),)
        ),
        *(("GET", TOOL, None, 405, "POST"), ("PUT", "/jobs/j/release", None, 405, "POST")),
        *(("POST", TOOL, body, 400, "body") for body in (b"", b"{", b"\xff", b"[" * 100_000, [])),
        *(("POST", TOOL, body, 400, "state") for body in ({}, {"state": "paused"})),
        ("POST", TOOL, {"state": "started", "command": "x" * (1024 * 1024 + 1)}, 400, "command"),
        ("POST", TOOL, b'{"state": "finished", "duration_s": NaN}', 400, "duration_s"),
        ("POST", TOOL, b'{"state": "finished", "duration_s": 1e999}', 400, "duration_s"),
        ("POST", "/jobs/j/release", b"{", 400, "body"),
        ("POST", "/finish_session", None, 400, "session_id"),
        ("GET", "/jobs/" + "x" * 257, None, 400, "job_id"),
        *(("GET", f"/explain?worst={wrong}", None, 400, "worst") for wrong in ("1000", "0", "x")),
    ],
)
async def test_wrong_input_is_refused(
    method: str, path: str, body: object, status: int, named: str
) -> None:
    """In a short answer that names the wrong field or the allowed methods; no engine is asked."""
    ask = Server(engine_of("j"))
    reply = await ask(method, path, body)
    assert (reply.status_code, len(reply.content) < 600) == (status, True)
    error = error_of(reply)
    if status == 405:
        assert reply.headers["allow"] == named
    else:
        assert error["param"] == named
        assert error["message"].startswith(f"{named}: ")
    assert ask.core.asked == []


class DeadCore:
    async def call_utility_all_async(self, method: str, *args: object) -> list[object]:
        raise RuntimeError("EngineCore encountered an issue")


class SilentCore:
    async def call_utility_all_async(self, method: str, *args: object) -> list[object]:
        await asyncio.Event().wait()
        return []


@pytest.mark.parametrize(
    ("core", "status", "problem"),
    [
        (DeadCore(), 503, "EngineCore encountered an issue"),
        (SilentCore(), 503, "no answer"),
        (FakeEngineCore([{"info": lambda: {"error": "boom"}}]), 500, "boom"),
    ],
    ids=["dead", "silent", "failed operation"],
)
async def test_an_engine_that_does_not_answer_is_an_error(
    core: Any, status: int, problem: str
) -> None:
    """A dead engine's has the message of vLLM's client; one stuck in a step is not waited for
    without end; an error answered by the engine is not data."""
    reply = await Server(core=core, timeout_s=0.01)("GET", "/info")
    assert reply.status_code == status
    assert problem in error_of(reply)["message"]


async def test_the_first_engine_answers_where_vllm_cannot_ask_all() -> None:
    """With vLLM up to 0.31, which can call one engine only, the first engine answers."""

    class OldCore:
        async def call_utility_async(self, method: str, operation: str, args: list[Any]) -> Any:
            return INFO

    assert (await Server(core=OldCore())("GET", "/info")).json()["num_engines"] == 1


async def test_several_engines_give_one_answer() -> None:
    """A job is found on, and released from, the engine that has it."""
    ask = Server(engine_of("a"), engine_of("a", "b"))
    assert (await ask("GET", "/info")).json()["num_blocks"] == 200
    assert (await ask("GET", "/stats")).json() == {"pinned_jobs": 3, "kv_cache_usage": 0.5}
    assert (await ask("GET", "/jobs/b")).json()["engine"] == 1
    assert (await ask("POST", "/jobs/b/release")).json()["freed_blocks"] == 3
    assert (await ask("POST", "/jobs/c/release")).status_code == 404
    assert [job["engine"] for job in (await ask("GET", "/jobs")).json()["jobs"]] == [0, 1, 1]
    events = (await ask("GET", "/timestamps")).json()["jobs"]["a"]
    assert [event["engine"] for event in events] == [0, 1]


async def test_a_client_has_one_question_at_a_time_in_the_engine() -> None:
    """However many different questions it asks at once; those of another client, and signals, do
    not wait for them."""
    busy: Counter[str] = Counter()
    most: Counter[str] = Counter()

    class Counting(FakeEngineCore):
        async def call_utility_all_async(self, method: str, *args: Any) -> list[Any]:
            client = JobKey.read(args[1][0]).client
            busy[client] += 1
            most[client] = max(most[client], busy[client])
            most["all"] = max(most["all"], busy.total())
            await asyncio.sleep(0)
            busy[client] -= 1
            return await super().call_utility_all_async(method, *args)

    server = Server(core=Counting([engine_of("a")]), keys=["alice", "bob"])
    paths = [f"/jobs/job-{number}" for number in range(20)]
    keys = ("alice", "bob")
    await asyncio.gather(*(server("GET", path, key=key) for path in paths for key in keys))
    assert most.pop("all") == 2
    assert [*most.values()] == [1, 1]
    tools = (server("POST", f"{path}/tool", {"state": "started"}, key="bob") for path in paths)
    await asyncio.gather(*tools)
    assert max(most.values()) > 2


NUM_EVENTS = {"long": 180, "short": 3, "other": 40}


async def test_a_long_log_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer has the whole log, of the longest commands, or one job's, and no answer of the
    engine is longer than 160 kB; beyond MAX_TIMESTAMPS_BYTES it ends, and says so."""
    engine = Engine(policy="agentkv")
    client, log = client_of("one"), engine.scheduler.watchers.log
    for job_id, num_events in NUM_EVENTS.items():
        for _ in range(num_events):
            event = ToolStarted(JobKey(client, job_id), "", "\u00e9" * MAX_COMMAND_CHARS, None)
            log.on_event(event)
    most_bytes = 0

    class Measured(SteppedCore):
        async def call_utility_all_async(self, method: str, *args: Any) -> list[Any]:
            nonlocal most_bytes
            answers = await super().call_utility_all_async(method, *args)
            most_bytes = max(most_bytes, len(json.dumps(answers)))
            return answers

    ask = Server(core=Measured(engine), keys=["one"])
    assert (await ask("GET", "/timestamps", key="one")).json() == log.as_dict()
    assert most_bytes < 160_000
    jobs = (await ask("GET", "/timestamps", key="one", job="short")).json()["jobs"]
    assert [*map(len, jobs.values())] == [NUM_EVENTS["short"]]
    assert (await ask("GET", "/timestamps", key="one", job="nobody")).json() == {"jobs": {}}
    monkeypatch.setattr(routes, "MAX_TIMESTAMPS_BYTES", 1000)
    cut = (await ask("GET", "/timestamps", key="one")).json()
    assert (len(cut["jobs"]["long"]), cut["truncated"]) == (50, True)
