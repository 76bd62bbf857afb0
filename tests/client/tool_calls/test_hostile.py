"""Hostile replies cost no more than long ones: time grows with length, whatever the text is."""

from __future__ import annotations

import time

import pytest

from agentkv import parse_tool_calls
from agentkv.evals.hostile_replies import UNITS, hostile_replies

NUM_CHARS, MAX_S = 40_000, 0.2
"""More than ten times what evals/parse_cost.py allows, since tests share their machine: a search
that looks at the same text again and again takes seconds."""


def processor_s(text: str) -> float:
    start_s = time.process_time()
    parse_tool_calls(text)
    return time.process_time() - start_s


@pytest.mark.parametrize("unit", UNITS, ids=repr)
def test_hostile_replies_take_no_longer_than_others(unit: str) -> None:
    """40 kB of any piece of any format."""
    for name, text in hostile_replies((unit,), NUM_CHARS):
        assert any(processor_s(text) < MAX_S for _ in range(3)), name


@pytest.mark.parametrize("bracket", ["[", "{", '{"a":', '[{"a":', '{"name":', '[{"name":'])
def test_deep_nesting_is_broken_json(bracket: str) -> None:
    """It neither exhausts the stack nor hides what is before it."""
    reply = f"```bash\nls\n```\n<tool_call>{bracket * 100_000}"
    assert [call.command for call in parse_tool_calls(reply)] == ["ls"]
    arguments = bracket * 100_000
    call = {"id": "1", "function": {"name": "bash", "arguments": arguments}}
    assert parse_tool_calls({"tool_calls": [call]}) == []


def test_a_thousand_calls_are_found() -> None:
    """The bounds on noise are far above what a reply holds."""
    reply = "".join(f"```bash\necho {index}\n```\n" for index in range(1000))
    assert [call.command for call in parse_tool_calls(reply)] == [
        f"echo {index}" for index in range(1000)
    ]
