"""The operation `live` on vLLM's real scheduler: what an engine says of itself at one moment."""

from typing import Any

import msgspec
import pytest

from agentkv.events import ToolStarted
from agentkv.integrations.vllm.api import engine_side
from agentkv.integrations.vllm.api.snapshot import HISTORY_S, MAX_EVENTS, MAX_JOBS
from agentkv.policies.jobs import Job
from agentkv.protocol import JobKey
from tests.integrations.vllm.harness import Engine, of
from tests.stepped_engine import prompt_of

PINS = {"prefill_reload_s": [0.0, 0.01, 0.0]}
"""Pins are worth much, so pins last for seconds."""


def live(engine: Engine, viewer: str | None = None, **seen_s: float) -> dict[str, Any]:
    """The snapshot for a client, or for one that sees all, with the jobs that it names."""
    answer: dict[str, Any] = engine_side.call(engine.scheduler, "live", [viewer, seen_s])
    assert "error" not in answer
    return {**answer, "jobs": engine_side.call(engine.scheduler, "jobs", [viewer, answer["keys"]])}


def job(engine: Engine, job_id: str) -> dict[str, Any]:
    (found,) = [each for each in live(engine)["jobs"] if each["job_id"] == job_id]
    return dict(found)


def test_a_job_is_seen_in_each_of_its_states() -> None:
    """A job waits, runs, is pinned, then while its tool runs, and has lost its KV, each with the
    seconds that it has been so."""
    engine = Engine(policy="agentkv", **PINS)
    engine.add(prompt_of(100), job_id="a", turn=1, expected_turns=3)
    assert (job(engine, "a")["state"], job(engine, "a")["why"]) == ("waiting", "in line")
    engine.step()
    running = job(engine, "a")
    assert (running["state"], running["turns"], running["expected_turns"]) == ("running", 1, 3)
    assert (running["context_tokens"], running["blocks"]) == (100, 7)
    engine.run()
    assert job(engine, "a")["state"] == "pinned"
    engine.tool("a", "started", "ls -la")
    engine.clock.now_s += 0.5
    in_tool = job(engine, "a")
    assert (in_tool["state"], in_tool["for_s"], in_tool["last_tool"]) == ("tool", 0.5, "ls")
    assert in_tool["command"] == "ls"
    assert 0 < in_tool["predicted_p50_s"] <= in_tool["predicted_p90_s"]
    assert in_tool["ttl_left_s"] > 0
    engine.end_pin("a")
    evicted = job(engine, "a")
    assert (evicted["state"], evicted["why"], evicted["blocks"]) == ("evicted", "pressure", 0)


def test_the_pool_is_divided_without_rest() -> None:
    """Blocks that run, are pinned, cached or free add up to the pool's; those of a pin that ends
    are cached from then on."""
    engine = Engine(policy="agentkv", **PINS)
    assert live(engine)["pool"] == {
        **{"blocks": 63, "block_tokens": 16, "running": 0, "pinned": 0, "cached": 0, "free": 63}
    }
    engine.turn(prompt_of(100), job_id="a")
    assert live(engine)["pool"]["pinned"] == 6
    engine.add(prompt_of(100, salt=1), job_id="b", max_tokens=40)
    engine.step()
    pool = live(engine)["pool"]
    assert (pool["running"], pool["pinned"], pool["cached"]) == (7, 6, 0)
    engine.end_pin("a")
    pool = live(engine)["pool"]
    assert (pool["pinned"], pool["cached"]) == (0, 6)
    parts = [pool[name] for name in ("running", "pinned", "cached", "free")]
    assert sum(parts) == pool["blocks"]


def test_the_totals_are_those_of_stats() -> None:
    """A snapshot has what /stats answers at that moment, and which server it is as /info has it."""
    engine = Engine(policy="agentkv", **PINS)
    engine.turn(prompt_of(100), job_id="a")
    assert live(engine)["stats"] == engine_side.call(engine.scheduler, "stats", [])
    info = engine_side.call(engine.scheduler, "info", [])
    server = {name: live(engine)[name] for name in ("model", "host", "version", "vllm_version")}
    assert server == {name: info[name] for name in server}


def test_a_client_sees_its_own_jobs_and_only_blocks_of_others() -> None:
    """In a client's view no id, command or event of another client stands; what others pin is a
    number of blocks."""
    engine = Engine(policy="agentkv", **PINS)
    for index, client in enumerate(("alice", "bob")):
        engine.turn(prompt_of(100, salt=index), **of(client, job_id=f"job-of-{client}"))
        engine.tool(JobKey(client, f"job-of-{client}"), "started", f"make {client}")
    alice, everybody = live(engine, "alice"), live(engine)
    assert [each["job_id"] for each in alice["jobs"]] == ["job-of-alice"]
    assert {each["job_id"] for each in alice["events"]} == {"job-of-alice"}
    assert b"bob" not in msgspec.json.encode(alice)
    assert (alice["num_jobs"], alice["pinned_by_others"]) == (1, 6)
    assert {each["job_id"] for each in everybody["jobs"]} == {"job-of-alice", "job-of-bob"}
    assert (everybody["num_jobs"], everybody["pinned_by_others"]) == (2, 0)


@pytest.mark.parametrize("policy", ["continuum", "agentkv"])
def test_memory_is_short_only_for_a_while_after_a_turn_did_not_fit(policy: str) -> None:
    """Neither an idle server nor one with memory for all is said to be short of it, also where the
    policy's rules hold without pressure; after a shortage a server is, for at most a minute."""
    engine = Engine(policy=policy, num_blocks=31, **PINS)

    def is_short() -> bool:
        return bool(live(engine)["stats"]["is_under_pressure"])

    engine.turn(prompt_of(300), job_id="first")
    assert not is_short()
    engine.turn(prompt_of(300, salt=1), job_id="second")
    assert is_short()
    engine.wait(61.0)
    assert not is_short()


def test_events_come_once_and_a_new_viewer_gets_the_last_two_minutes() -> None:
    """Events up to the time that is named are left out; without one, those before HISTORY_S. The
    end of a job comes with its tokens."""
    engine = Engine(policy="agentkv", **PINS)
    engine.turn(prompt_of(100), job_id="old")
    engine.wait(30.0)  # its pin ends
    engine.wait(HISTORY_S + 1)
    engine.turn(prompt_of(100, salt=1), job_id="new")
    first = live(engine)
    assert {event["job_id"] for event in first["events"]} == {"new"}
    seen_s = {"0": first["at_s"]}
    assert live(engine, **seen_s)["events"] == []
    engine.clock.now_s += 0.1
    engine.tool("old", "started")
    engine.retention.release("new")
    started, *_, closed = live(engine, **seen_s)["events"]
    assert (started["event"], closed["event"]) == ("tool_started", "closed")
    assert closed["tokens"]["prompt_tokens"] == 100


def test_a_snapshot_is_bounded() -> None:
    """However many jobs and events there are, a snapshot has MAX_JOBS and MAX_EVENTS of them at
    most and fits into 500 kB."""
    engine = Engine(policy="agentkv", record_events=50_000)
    log = engine.scheduler.watchers.log
    for index in range(2 * MAX_JOBS):
        engine.add(prompt_of(20), job_id="j" * 250 + str(index))
        for _ in range(4):
            key = JobKey("", "j" * 250 + str(index))
            log.on_event(ToolStarted(key, "", "\u00e9" * 512, None))
    answer = engine_side.call(engine.scheduler, "live", [None, {}])
    assert (len(answer["keys"]), answer["num_jobs"]) == (MAX_JOBS, 2 * MAX_JOBS)
    assert len(answer["events"]) == MAX_EVENTS
    assert len(msgspec.msgpack.encode(answer)) < 500_000


def test_jobs_with_a_request_come_first() -> None:
    """A job that waits is shown before jobs that were active later."""
    engine = Engine(policy="agentkv", max_num_seqs=1)
    engine.add(prompt_of(20), job_id="waits", max_tokens=200)
    for index in range(MAX_JOBS):
        job = Job(f"idle-{index}", index)
        engine.retention.jobs.put(job.job_id, job)
    jobs = live(engine)["jobs"]
    assert (jobs[0]["job_id"], len(jobs)) == ("waits", MAX_JOBS)
