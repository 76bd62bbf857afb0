"""What the engine learns from clients, and what it tells: operations, record, counters, timer."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentkv.errors import SettingsError
from agentkv.events import Overdue
from agentkv.integrations.vllm.api import engine_side as engine_call
from agentkv.integrations.vllm.engine.wakeup import ExpiryTimer
from agentkv.integrations.vllm.watch.counters import MAX_PENDING_OBSERVATIONS, Counters
from agentkv.integrations.vllm.watch.log import EventLog, EventWriter
from agentkv.protocol import JobKey
from tests.integrations.vllm.harness import STOCK, Engine
from tests.stepped_engine import prompt_of


def observations(engine: Engine) -> dict[str, int]:
    return dict(engine.totals.get("tool_observations_total", {}))


def test_one_duration_a_turn_the_clients_first() -> None:
    """client, then piggyback, then the gap; never two for one turn."""
    engine = Engine()
    history = engine.turn(prompt_of(40), job_id="a")
    engine_call.call(
        engine.scheduler, "tool", ["a", {"state": "finished", "command": "ls", "duration_s": 0.5}]
    )
    history = engine.turn(history + prompt_of(20), job_id="a", last_tool="ls", last_tool_s=0.5)
    assert observations(engine) == {"client": 1}
    history = engine.turn(history + prompt_of(20), job_id="a", last_tool="ls -l", last_tool_s=0.4)
    assert observations(engine) == {"client": 1, "piggyback": 1}
    engine.clock.now_s += 1.5
    engine.turn(history + prompt_of(20), job_id="a")
    assert observations(engine) == {"client": 1, "piggyback": 1, "gap": 1}
    durations = engine.retention.policy.learned.durations
    assert (len(durations.of("ls")), len(durations.over_all)) == (2, 3)


CALL = "So:\n```bash\nls\n```"


@pytest.mark.parametrize(
    "again",
    [{"max_tokens": 1}, {"max_tokens": 1, "turn": 1}, {"reply": CALL.replace("ls", "make all")}],
    ids=["ping", "ping with its turn's number", "retry"],
)
def test_the_last_request_again_teaches_nothing_of_the_tool(again: dict[str, Any]) -> None:
    """It is no turn, its reply is not read, and the tool's time is learned at the next turn."""
    engine = Engine(policy="agentkv", max_ttl_s=100.0, prefill_reload_s=[0.0, 0.02, 0.0])
    prompt = prompt_of(160)
    history = engine.turn(prompt, job_id="a", reply=CALL)
    (expires_s,) = [pin.expires_s for pin in engine.retention.pins]
    job, held = engine.retention.jobs.get("a"), dict(engine.pinned)
    for _ in range(2):
        engine.wait(1.0)
        engine.turn(prompt, job_id="a", **again)
    assert job.num_turns == 1
    assert job.decision.command == "ls"
    assert engine.pinned == held
    assert 2 < engine.retention.pins.get("a").expires_s - expires_s < 2.2
    assert observations(engine) == {}
    engine.wait(2.0)
    engine.turn(history + prompt_of(20), job_id="a")
    assert job.num_turns == 2
    assert engine.retention.policy.learned.durations.of("ls").mean_s == pytest.approx(4, abs=0.3)


BACKGROUND_CALL = json.dumps(
    {"name": "bash", "arguments": {"command": "pytest", "run_in_background": True}}
)


@pytest.mark.parametrize("is_told", [True, False])
def test_a_call_in_the_background_teaches_nothing_of_its_command(is_told: bool) -> None:
    """It is fast, whether the client says so or the reply does, also for the next turn's tag."""
    engine = Engine(policy="context_serve")
    reply = "Go." if is_told else f"<tool_call>{BACKGROUND_CALL}</tool_call>"
    history = engine.turn(prompt_of(40), job_id="a", reply=reply)
    if is_told:
        engine.tool("a", "started", "pytest", limit_s=0.0)
    assert engine.retention.jobs.get("a").decision.speed == "fast"
    if is_told:
        engine.tool("a", "finished", "pytest", duration_s=0.2, limit_s=0.0)
    engine.turn(history + prompt_of(20), job_id="a", last_tool="pytest", last_tool_s=0.2)
    assert engine.retention.predictor.predictor.num_observed == 0


def test_the_queueing_delay_counts_evicted_turns_only() -> None:
    """T is the wait of turns whose cache was gone; a hit leaves it alone."""
    engine = Engine(max_num_seqs=1)
    history = engine.turn(prompt_of(64), job_id="a")
    history = engine.turn(history + prompt_of(30), job_id="a")
    queueing = engine.retention.policy.learned.queueing
    assert queueing.mean_s == 0.0
    engine.end_pin("a")
    engine.turn(prompt_of(950, salt=51))
    engine.add(prompt_of(32, salt=50), max_tokens=50)
    engine.step()
    engine.turn(history + prompt_of(30), job_id="a")
    assert queueing.mean_s == pytest.approx(0.49, abs=0.03)


def test_operations_answer_with_plain_data() -> None:
    """Everything that leaves the engine is JSON; totals are there from the start."""
    engine = Engine()

    def ask(op: str, *args: Any) -> Any:
        return json.loads(json.dumps(engine_call.call(engine.scheduler, op, list(args))))

    totals = ("holds_total", "tool_signals_ignored_total", "preemptions_total", "bad_tags_total")
    assert [ask("stats")[name] for name in totals] == [0, 0, 0, 0]
    engine.turn(prompt_of(100), job_id="a", expected_turns=5, parent_job_id="p")
    assert ask("clients")
    assert ask("info")["num_blocks"] == 63
    assert ask("stats")["pinned_blocks"] == 6
    (job,) = ask("jobs", None, ["a"])
    shown = ask("job", "a")
    assert [turn["turn"] for turn in shown.pop("last_turns")] == [1]
    assert shown == job
    assert (job["turns"], job["expected_turns"], job["parent_job_id"]) == (1, 5, "p")
    assert 1.9 < job["ttl_left_s"] <= 2.0
    assert ask("job", "nobody") is None
    assert ask("release", "nobody") is None
    assert ask("tool", "nobody", {"state": "started"}) is None
    assert ask("tool", "a", {"state": "started", "command": "ls"})["is_pinned"] is True
    assert ask("job", "a")["last_tool"] == "ls"
    released = ask("release", "a")
    assert released.pop("tokens") == job["tokens"]
    assert released == {"job_id": "a", "freed_blocks": 6}
    ask("bad_tags", 1)
    assert ask("stats")["bad_tags_total"] == 1
    events = [event["event"] for event in engine.events["a"]]
    of_the_job = [event for event in events if event not in ("kv_state", "kv_freed")]
    assert of_the_job[:4] == ["arrival", "waiting_to_running", "finish", "pinned"]
    assert of_the_job[-2:] == ["unpinned", "closed"]


@pytest.mark.parametrize(
    ("op", "args", "message"),
    [
        ("nonsense", [], "unknown operation 'nonsense'; known: info"),
        ("tool", ["a", {"state": "begun"}], "state"),
        ("tool", ["a", {"state": "finished", "duration_s": -1}], "duration_s"),
        ("tool", ["a", {"state": "finished", "duration_s": float("nan")}], "duration_s"),
    ],
)
def test_a_wrong_operation_comes_back_as_an_error(op: str, args: list[Any], message: str) -> None:
    """No exception reaches the engine's loop."""
    engine = Engine()
    engine.turn(prompt_of(40), job_id="a")
    assert message in engine_call.call(engine.scheduler, op, args)["error"]


def test_a_stock_scheduler_refuses_operations() -> None:
    """Under fcfs the engine says whose policy it is not."""
    engine = Engine(scheduler_class=STOCK[False])
    assert "not one of agentkv's" in engine_call.call(engine.scheduler, "info", [])["error"]


def test_gauges_tell_reclaimable_kv_from_what_runs() -> None:
    """A controller that trims by memory in use sees what pins would give up, apart; jobs that share
    a prompt count it once, and vLLM's own usage counts pins as used."""
    engine = Engine()

    def shares() -> tuple[float, ...]:
        gauges = engine.scheduler.make_stats().agentkv["gauges"]
        names = ("held_kv_perc", "reclaimable_kv_perc", "running_kv_perc")
        return tuple(round(gauges[name] * 63, 6) for name in names)

    assert engine.scheduler.make_stats().kv_cache_usage == 0.0

    engine.turn(prompt_of(100), job_id="a")
    assert shares() == (6, 6, 0)
    assert engine.scheduler.make_stats().kv_cache_usage == 1 - 57 / 63
    engine.add(prompt_of(100), job_id="b", max_tokens=20)
    engine.steps(5)
    assert shares() == (6, 6, 1)
    engine.run()
    assert shares() == (7, 7, 0)
    assert len(engine.pinned) == 2
    for job_id, left in (("a", (7, 7, 0)), ("b", (0, 0, 0))):
        engine.retention.release(job_id)
        assert shares() == left


def test_stats_carry_gauges_and_each_delta_once(make_engine: Callable[..., Engine]) -> None:
    """Several API servers add up deltas: each count travels in exactly one stats object."""
    engine = make_engine()
    engine.scheduler.make_stats()
    engine.add(prompt_of(100), job_id="a")
    deltas: list[Any] = []
    while engine.scheduler.has_unfinished_requests() or engine.in_flight:
        engine.step()
        deltas.append(engine.scheduler.make_stats().agentkv)
    assert deltas[-1]["gauges"] == {
        "pinned_jobs": 1,
        "pinned_blocks": 6,
        "held_kv_perc": 6 / 63,
        "reclaimable_kv_perc": 6 / 63,
        "running_kv_perc": 0.0,
        "live_jobs": 1,
        "under_pressure": 0,
    }
    counted = [counter for delta in deltas for counter in delta["counters"]]
    of_the_prompt = [
        ["prompt_tokens_total", {"turn": "1"}, 100],
        ["hit_tokens_total", {"turn": "1"}, 0],
    ]
    # vLLM itself takes some of them: it asks for stats at the end of a step
    pinned = ["pins_total", {"speed": "none"}, 1]
    assert counted in ([], [pinned], of_the_prompt, [*of_the_prompt, pinned])
    assert engine.scheduler.make_stats().agentkv["counters"] == []


def test_a_flood_of_signals_leaves_nothing_behind() -> None:
    """10,000 `started` signals for one pin: the schedule stays as small as the pins are few."""
    engine = Engine()
    engine.turn(prompt_of(40), job_id="a")
    for index in range(10_000):
        body = {"state": "started", "command": f"tool{index % 7}"}
        engine_call.call(engine.scheduler, "tool", ["a", body])
    assert len(engine.retention.pins._deadlines) <= 66
    engine.wait(3.0)
    assert engine.pinned == {}


def test_counters_hold_no_more_than_they_must() -> None:
    """Nobody takes the deltas when stats are off: observations stay bounded."""
    counters = Counters()
    for _ in range(5 * MAX_PENDING_OBSERVATIONS):
        counters.observe("pin_ttl_seconds", 1.0)
    (values,) = counters.take_delta()["observations"].values()
    assert len(values) == MAX_PENDING_OBSERVATIONS


def test_the_record_is_bounded() -> None:
    """The oldest events go first, and with its last one a job."""
    record = EventLog(max_events=10, clock=time.monotonic)
    for index in range(24):
        record.on_event(Overdue(JobKey("", f"j{index // 8}"), index))
    jobs = record.as_dict()["jobs"]
    assert {job: [event["passed"] for event in each] for job, each in jobs.items()} == {
        "j1": [14, 15],
        "j2": [*range(16, 24)],
    }
    assert record.named("j0") == []


def test_the_record_is_written_as_it_grows(tmp_path: Path) -> None:
    """run_output_dir gets what the server is and every event, and a second run its own file."""
    for name in ("scheduler_timestamps.jsonl", "scheduler_timestamps_2.jsonl"):
        engine = Engine(run_output_dir=str(tmp_path / "out"))
        engine.turn(prompt_of(40), job_id="a")
        engine.scheduler.shutdown()
        lines = (tmp_path / "out" / name).read_text().splitlines()
        events = [json.loads(line) for line in lines]
        about, *events = events
        assert about.items() >= {"event": "server", "policy": "continuum", "block_size": 16}.items()
        assert [event["job_id"] for event in events] == ["a"] * len(events)
        names = [event["event"] for event in events]
        assert names[:2] == ["arrival", "waiting_to_running"]


def test_an_unwritable_folder_is_refused_at_start(tmp_path: Path) -> None:
    """The message names the flag and the folder."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"--run-output-dir .*file/below: cannot write"):
        Engine(run_output_dir=str(tmp_path / "file" / "below"))


def test_the_event_log_goes_on_when_a_full_disk_has_space_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The writer logs one error, and loses only what came meanwhile."""
    writer = EventWriter(tmp_path, {})
    writer.path.unlink()
    writer.path.mkdir()
    for number in range(3):
        writer.add({"number": number})
    deadline_s = time.monotonic() + 30
    while "events are lost" not in caplog.text:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    writer.path.rmdir()
    writer.add({"number": 3})
    writer.close()
    rows = [json.loads(line) for line in writer.path.read_text().splitlines()]
    assert rows[-1]["number"] == 3
    assert caplog.text.count("events are lost") == 1


@pytest.mark.parametrize("is_renamed", [True, False])
def test_the_event_log_goes_on_after_a_rotation(tmp_path: Path, is_renamed: bool) -> None:
    """A log that was renamed, or copied and emptied, begins again with what the server is."""
    writer = EventWriter(tmp_path, {"policy": "p"})
    writer.add({"number": 1})
    while not writer.path.stat().st_size:
        time.sleep(0.01)
    if is_renamed:
        writer.path.rename(tmp_path / "old")
    else:
        os.truncate(writer.path, 0)
    writer.add({"number": 2})
    writer.close()
    rows = [json.loads(line) for line in writer.path.read_text(encoding="utf-8").splitlines()]
    assert rows == [{"event": "server", "at_s": 0.0, "policy": "p"}, {"number": 2}]


def test_the_timer_wakes_at_the_earliest_deadline() -> None:
    """An earlier deadline set later wins; a later one is ignored; it wakes again when set again."""
    woken = threading.Event()
    timer = ExpiryTimer(woken.set)
    timer.set_deadline(time.monotonic() + 3600)
    timer.set_deadline(time.monotonic() + 0.02)
    timer.set_deadline(time.monotonic() + 3600)
    assert woken.wait(timeout=30)
    woken.clear()
    timer.set_deadline(time.monotonic())
    assert woken.wait(timeout=30)
