"""The replies of the parser's cost study, and its rows."""

from __future__ import annotations

import pytest

from agentkv import parse_tool_calls
from studies.cost.parse import measure, typical_replies
from tests.tool_calls.adversarial_replies import NUM_CHARS, adversarial_replies

REPLIES = typical_replies()


@pytest.mark.parametrize("name", REPLIES)
def test_typical_replies_hold_two_calls_of_their_dialect(name: str) -> None:
    """Each typical reply has about 4 kB and two calls of the dialect that it is named after."""
    assert 3_800 <= len(REPLIES[name]) <= 4_200
    sources = [call.source for call in parse_tool_calls(REPLIES[name])]
    assert sources == ([] if name == "no call" else [name] * 2)


def test_adversarial_replies_are_many_and_long() -> None:
    """More than a thousand adversarial replies have about 200 kB each."""
    lengths = [len(text) for _, text in adversarial_replies()]
    assert len(lengths) > 1_000
    assert min(lengths) > 0.6 * NUM_CHARS
    assert max(lengths) <= 1.1 * NUM_CHARS


def test_a_row_holds_median_and_p99() -> None:
    """A row has the median and the 99th percentile, in microseconds, over the readings made."""
    row = measure("fenced", REPLIES["fenced"], 5)
    assert (row["n"], row["num_calls"]) == (5, 2)
    assert 0 < row["median_us"] <= row["p99_us"]
