"""What the benchmark of the parser reads, and what it reports."""

from __future__ import annotations

import pytest

from agentkv import parse_tool_calls
from agentkv.evals.hostile_replies import NUM_CHARS, hostile_replies
from agentkv.evals.parse_cost import main, measure
from agentkv.evals.typical_replies import typical_replies

REPLIES = typical_replies()


@pytest.mark.parametrize("name", REPLIES)
def test_typical_replies_hold_two_calls_of_their_format(name: str) -> None:
    """In about 4 kB; one reply holds none."""
    assert 3_800 <= len(REPLIES[name]) <= 4_200
    sources = [call.source for call in parse_tool_calls(REPLIES[name])]
    assert sources == ([] if name == "no call" else [name] * 2)


def test_hostile_replies_are_long() -> None:
    """Each about 200 kB, many of them."""
    lengths = [len(text) for _, text in hostile_replies()]
    assert len(lengths) > 1_000
    assert min(lengths) > 0.6 * NUM_CHARS
    assert max(lengths) <= 1.1 * NUM_CHARS


def test_a_row_tells_median_and_p99() -> None:
    """In microseconds, over as many readings as asked for."""
    row = measure("fenced", REPLIES["fenced"], 5)
    assert (row["n"], row["num_calls"]) == (5, 2)
    assert 0 < row["median_us"] <= row["p99_us"]


@pytest.mark.parametrize("argv", [["--num", "1"], ["--num", "x"]])
def test_bad_usage_is_exit_status_2(argv: list[str]) -> None:
    """As argparse has it."""
    with pytest.raises(SystemExit, match="2"):
        main(argv)
