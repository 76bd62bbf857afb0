"""The `context_serve` policy, branch by branch: 63 usable blocks of 16 tokens, 10 ms a step."""

import json
import re
from functools import partial
from typing import Any

import msgspec
import pytest

from agentkv.integrations.vllm.api import engine_side as engine_call
from tests.integrations.vllm.harness import Engine
from tests.integrations.vllm.step_table import Row, check
from tests.stepped_engine import prompt_of

FAST, SLOW, UNKNOWN = "ls -la", "pip install torch", "frobnicate --all"
NO_PINS = {"fixed_ttl_s": 0.0}
"""Continuum alone would not pin at all."""

TABLES: dict[str, tuple[dict[str, Any], list[Row]]] = {
    "FAST pins beyond Continuum's TTL": (
        NO_PINS,
        [(0, ("says", "a", FAST), {"a": 6}, 57), (0.5, ("wait",), {"a": 6}, 57)],
    ),
    "FAST ends with the predicted TTL": (
        {},
        [(0, ("says", "a", FAST), {"a": 6}, 57), (30, ("wait",), {}, 63)],
    ),
    "SLOW frees at t = 0": ({}, [(0, ("says", "a", SLOW), {}, 63)]),
    "UNCERTAIN takes Continuum's TTL": (
        {},
        [
            (0, ("says", "a", UNKNOWN), {"a": 6}, 57),
            (1.99, ("wait",), {"a": 6}, 57),
            (0.02, ("wait",), {}, 63),
        ],
    ),
    "UNCERTAIN is not pinned where Continuum does not pin": (
        NO_PINS,
        [(0, ("says", "a", UNKNOWN), {}, 63)],
    ),
    "a reply without a tool call takes Continuum's TTL": (
        {},
        [
            (0, ("says", "a", None), {"a": 6}, 57),
            (1.99, ("wait",), {"a": 6}, 57),
            (0.02, ("wait",), {}, 63),
        ],
    ),
    "of several commands the slow one counts": (
        {},
        [(0, ("says", "a", f"{FAST}\n```\nand\n```bash\n{SLOW}"), {}, 63)],
    ),
    "what the client started counts more than what was read: SLOW": (
        {},
        [
            (0, ("says", "a", FAST), {"a": 6}, 57),
            (0.1, ("tool", "a", "started", SLOW), {}, 63),
        ],
    ),
    "what the client started counts more than what was read: FAST": (
        {},
        [
            (0, ("says", "a", UNKNOWN), {"a": 6}, 57),
            (1.9, ("tool", "a", "started", FAST), {"a": 6}, 57),
            (0.5, ("wait",), {"a": 6}, 57),
        ],
    ),
    "a pin that was freed does not come back": (
        {},
        [
            (0, ("says", "a", SLOW), {}, 63),
            (0, ("tool", "a", "started", FAST), {}, 63),
            (0, ("tool", "a", "finished", FAST, 0.1), {}, 63),
        ],
    ),
    "a finished tool keeps the pin for the next turn": (
        {},
        [
            (0, ("says", "a", UNKNOWN), {"a": 6}, 57),
            (1.9, ("tool", "a", "started", UNKNOWN), {"a": 6}, 57),
            (0, ("tool", "a", "finished", UNKNOWN, 1.8), {"a": 6}, 57),
            (4.9, ("wait",), {"a": 6}, 57),
            (0.2, ("wait",), {}, 63),
        ],
    ),
    "a finished tool is no promise while another one runs": (
        {},
        [
            (0, ("says", "a", UNKNOWN), {"a": 6}, 57),
            (0, ("tool", "a", "started", UNKNOWN), {"a": 6}, 57),
            (0, ("tool", "a", "started", "defrobnicate"), {"a": 6}, 57),
            (0, ("tool", "a", "finished", UNKNOWN, 0.1), {"a": 6}, 57),
            (2.1, ("wait",), {}, 63),
        ],
    ),
}


serve = partial(Engine, policy="context_serve")
"""Makes engines under the policy."""


def ask(engine: Engine, op: str, *args: Any) -> Any:
    """What a route of the server would answer."""
    return json.loads(json.dumps(engine_call.call(engine.scheduler, op, list(args))))


def says(engine: Engine, job: str, command: str, *, salt: int = 0, **tags: Any) -> None:
    reply = f"```bash\n{command}\n```"
    engine.turn(prompt_of(100, salt=salt + ord(job)), reply=reply, job_id=job, **tags)


@pytest.mark.parametrize("name", TABLES)
def test_dispatch(name: str) -> None:
    """Each table of TABLES holds on vLLM's real scheduler."""
    settings, rows = TABLES[name]
    check(serve(**settings), rows)


def test_each_pin_counts_once_by_its_first_prediction() -> None:
    """A later signal reprices without a second count; none is for those that ended without one."""
    engine = serve()
    for job, command in (("a", FAST), ("b", SLOW), ("c", UNKNOWN), ("d", "")):
        says(engine, job, command)
    ask(engine, "tool", "c", {"state": "started", "command": SLOW})
    says(engine, "e", "")
    ask(engine, "tool", "e", {"state": "started", "command": FAST})
    engine.wait(60.0)
    counted = ask(engine, "stats")["pins_total"]
    assert counted == {"fast": 2, "slow": 1, "uncertain": 1, "none": 1}
    assert engine.pin_ends == {"expired": 3, "slow": 2}


@pytest.mark.parametrize(
    ("signal", "tags", "source"),
    [
        ({"command": UNKNOWN}, {}, "client"),
        ({"tool": "bash"}, {}, "client"),
        (None, {"last_tool_s": 60.0, "last_tool": UNKNOWN}, "piggyback"),
        (None, {}, "gap"),
    ],
    ids=["command", "tool without its command", "tag of the next turn", "gap"],
)
def test_a_made_up_tool_is_slow_after_ten_slow_runs(
    signal: dict[str, str] | None, tags: dict[str, Any], source: str
) -> None:
    """Uncertain at first; what the client measures makes it SLOW, for every job. Without a client
    that reports, the command that was read and the gap to the next turn will do."""
    engine = serve()
    for number in range(10):
        says(engine, "a", UNKNOWN)
        assert number or ask(engine, "job", "a")["predicted_speed"] == "uncertain"
        if signal is not None:
            ask(engine, "tool", "a", {"state": "finished", "duration_s": 60.0 + number, **signal})
        engine.wait(60.0)
        says(engine, "a", UNKNOWN, salt=50, **tags)
        engine.retention.release("a")
    assert ask(engine, "stats")["tool_observations_total"] == {source: 10}
    says(engine, "b", UNKNOWN)
    assert ask(engine, "job", "b")["predicted_speed"] == "slow"
    assert "b" not in engine.pinned


def test_a_gap_after_a_reply_without_a_call_teaches_nothing() -> None:
    """That is the user's time, not a tool's."""
    engine = serve()
    engine.turn(prompt_of(100), reply="Which of them?", job_id="a")
    engine.wait(60.0)
    engine.turn(prompt_of(100, salt=1), reply="I see.", job_id="a")
    assert engine.retention.predictor.predictor.num_observed == 0


def test_a_decision_is_explained() -> None:
    """The job and its record show command, speed, quantiles, source, TTL and the reasons."""
    engine = serve()
    says(engine, "a", FAST)
    job = ask(engine, "job", "a")
    assert (job["command"], job["predicted_speed"], job["last_tool"]) == ("ls", "fast", "ls")
    assert 0 < job["predicted_p50_s"] < job["predicted_p90_s"]
    assert job["prediction_source"]
    assert job["prediction_explanation"]
    assert job["ttl_s"] > 0
    assert re.fullmatch(
        r"pins \d+ blocks for up to .* while `ls` runs, usually .*", job["ttl_reason"]
    )
    events = {event["event"]: event for event in engine.events["a"]}
    assert list(events)[-3:] == ["finish", "pinned", "decision"]
    decision = events["decision"]
    assert (decision["command"], decision["speed"], decision["told_by"]) == ("ls", "fast", "reply")
    assert decision["source"] == job["prediction_source"]
    assert decision["ttl_s"] == pytest.approx(job["ttl_s"], abs=1e-6)


def test_continuum_predicts_nothing() -> None:
    """It reads no reply, and its jobs have no predicted speed."""
    engine = Engine(policy="continuum")
    says(engine, "a", SLOW)
    ask(engine, "tool", "a", {"state": "started", "command": SLOW})
    job = ask(engine, "job", "a")
    assert (job["predicted_speed"], job["prediction_source"]) == (None, None)
    assert engine.pinned == {"a": 6}
    assert "decision" not in [event["event"] for event in engine.events["a"]]


@pytest.mark.parametrize("turn", [1, 3, 1_000_000])
@pytest.mark.parametrize("state", ["started", "finished"])
def test_a_signal_of_another_turn_is_ignored_and_counted(state: str, turn: int) -> None:
    """One that comes late, or of a turn that never was, moves no pin and teaches nothing."""
    engine = serve()
    says(engine, "a", FAST, turn=2)
    event = {"state": state, "command": SLOW, "duration_s": 99.0, "turn": turn}
    assert ask(engine, "tool", "a", event)["is_ignored"] is True
    assert engine.pinned == {"a": 6}
    stats = ask(engine, "stats")
    assert stats["tool_signals_ignored_total"] == 1
    assert "tool_observations_total" not in stats
    assert ask(engine, "tool", "a", {"state": "started", "command": SLOW, "turn": 2})
    assert engine.pinned == {}


@pytest.mark.parametrize(
    ("command", "duration_s"),
    [("", 0), ("\n", 1e-9), ("x" * 2**20, 31_536_000), ("\x00\ufffd", 1), ("((((" * 9999, 1)],
    ids=["empty", "line end", "long", "control", "nested"],
)
def test_odd_commands_and_durations_are_survived(command: str, duration_s: float) -> None:
    """Nothing a client may send reaches the engine's loop as an exception."""
    engine = serve()
    says(engine, "a", "true")
    for state in ("started", "finished"):
        event = {"state": state, "tool": "t", "command": command, "duration_s": duration_s}
        assert ask(engine, "tool", "a", event)["is_ignored"] is False
    says(engine, "a", command[:4000])
    assert len(ask(engine, "job", "a")["command"] or "") <= 512


def test_a_lone_surrogate_does_not_get_into_answers() -> None:
    """Tokens of invalid text may decode to one, and JSON may spell one in plain ASCII; the engine's
    output thread would die of it."""
    engine = serve(show_commands=True)
    call = '{"name": "bash", "arguments": {"command": "echo \\ud83d; sleep 900"}}'
    engine.turn(prompt_of(100), reply=f"<tool_call>\n{call}\n</tool_call>", job_id="a")
    engine.turn(prompt_of(100, salt=1), reply="```bash\necho \ud800\n```", job_id="b")
    for op, args in (("jobs", [None, ["a"]]), ("job", ["a"]), ("events", [None, {}])):
        answer = engine_call.call(engine.scheduler, op, args)
        assert "echo ?; sleep 900" in msgspec.msgpack.encode(answer).decode(errors="replace")
    assert engine.pinned["b"] == 6


def test_an_answer_that_cannot_be_sent_is_an_error() -> None:
    """Wherever its text comes from."""
    engine = serve()
    engine.turn(prompt_of(100), job_id="a")
    engine.retention.jobs.get("a").tool = "\ud83d"
    assert "surrogates not allowed" in ask(engine, "jobs", None, ["a"])["error"]


def test_a_token_that_stops_a_reply_does_not_hide_its_last_fence() -> None:
    """It follows the closing fence on the same line."""
    engine = serve()
    reply = f"```bash\n{SLOW}\n```"
    engine.turn(prompt_of(100), reply=reply, ending="<|im_end|>", job_id="a")
    assert (ask(engine, "job", "a")["predicted_speed"], engine.pinned) == ("slow", {})
