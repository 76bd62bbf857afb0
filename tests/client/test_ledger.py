"""The bookkeeping of a job: numbers, retries, tools and gaps, on a clock moved by hand."""

from __future__ import annotations

import pytest

from agentkv.client.ledger import ToolTime, TurnLedger
from agentkv.client.replies import Usage


class Books:
    """A ledger with its clock; a turn takes 1 s by default."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.ledger = TurnLedger("job", clock=lambda: self.now_s)

    def turn(self, seconds: float = 1.0) -> int:
        turn = self.ledger.begin()
        self.now_s += seconds
        self.ledger.finish(turn, Usage(100, 80, 5), ended_at_s=self.now_s)
        return turn.number

    def tool(self, text: str, seconds: float) -> None:
        self.ledger.begin_tool()
        self.now_s += seconds
        self.ledger.finish_tool(text, seconds)


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.fixture
def ledger(books: Books) -> TurnLedger:
    return books.ledger


def test_the_next_request_takes_over_from_a_failed_turn(books: Books, ledger: TurnLedger) -> None:
    """It carries the number, the tool and the last step, so that the server sees a retry."""
    books.tool("pytest", 7.0)
    ledger.mark_last_step()
    ledger.fail(ledger.begin())
    turn = ledger.begin()
    assert (turn.number, turn.is_last_step) == (1, True)
    assert turn.last_tool == ToolTime("pytest", 7.0)


def test_a_failed_turn_that_is_not_the_newest_leaves_a_hole(ledger: TurnLedger) -> None:
    """Each request has a number of its own, which must not be sent twice."""
    first, second = ledger.begin(), ledger.begin()
    ledger.fail(first)
    assert [first.number, second.number, ledger.begin().number] == [1, 2, 3]


def test_the_longest_tool_is_carried_by_the_next_turn_alone(
    books: Books, ledger: TurnLedger
) -> None:
    """Of several tools the longest decides how long the pin had to last; it is sent once."""
    for text, duration_s in (("ls", 0.1), ("make", 9.0), ("cat x", 0.2)):
        books.tool(text, duration_s)
    assert ledger.begin().last_tool == ToolTime("make", 9.0)
    assert ledger.begin().last_tool is None
    assert ledger.summary().tool_s == pytest.approx(9.3)
    assert ledger.summary().tool_calls == 3


def test_the_time_between_turns_is_a_gap(books: Books, ledger: TurnLedger) -> None:
    """A gap lasts from the end of a reply to the next request."""
    books.turn()
    books.now_s += 4.0
    books.turn()
    assert ledger.summary().gap_s == pytest.approx(4.0)
    assert ledger.summary().llm_s == pytest.approx(2.0)


def test_a_measured_gap_is_no_gap(books: Books, ledger: TurnLedger) -> None:
    """Tool time counts once, as measured, also if the next turn begins before the tool ends."""
    books.turn()
    ledger.begin_tool()
    books.now_s += 4.0
    books.turn()
    ledger.finish_tool("make", 5.0)
    books.now_s += 3.0
    books.turn()
    assert ledger.summary().gap_s == 0.0
    assert ledger.summary().tool_s == pytest.approx(5.0)


def test_overlapping_turns_have_no_gap_between_them(books: Books, ledger: TurnLedger) -> None:
    """Only a job with no turn in progress waits for its tools, and each wait counts once."""
    long_turn = ledger.begin()
    books.turn()
    books.now_s += 5.0
    books.turn()
    ledger.finish(long_turn, None, ended_at_s=books.now_s)
    assert ledger.summary().gap_s == 0.0
    books.now_s += 4.0
    ledger.begin()
    books.now_s += 1.0
    ledger.begin()
    assert ledger.summary().gap_s == pytest.approx(4.0)


def test_a_last_step_is_one_turn(ledger: TurnLedger) -> None:
    """mark_last_step() is for the next turn, limit_turns(n) for turn number n."""
    ledger.limit_turns(3)
    ledger.mark_last_step()
    assert [ledger.begin().is_last_step for _ in range(4)] == [True, False, True, False]


def test_the_summary_adds_up_and_prints(books: Books, ledger: TurnLedger) -> None:
    """The totals print as a table, which says how many turns did not report their tokens."""
    assert ledger.summary().prompt_tokens is None
    assert "prompt tokens  not reported" in str(ledger.summary())
    books.turn(seconds=1.5)
    books.turn()
    ledger.finish(ledger.begin(), None, ended_at_s=books.now_s)
    summary = ledger.summary()
    assert (summary.turns, summary.turns_without_usage) == (3, 1)
    assert (summary.prompt_tokens, summary.cached_tokens, summary.output_tokens) == (200, 160, 10)
    assert str(summary).splitlines() == [
        "job            job",
        "turns          3",
        "prompt tokens  200 (1 turn not reported)",
        "cached tokens  160 (80% of prompt)",
        "output tokens  10 (1 turn not reported)",
        "LLM time       2.50 s",
        "tool time      0.00 s (0 calls)",
        "gap time       0.00 s (between turns, no tool measured)",
    ]


def savings(*, gained_tokens: int, diverged: int, expected: int) -> dict[str, object]:
    """What a server says it has saved for a job."""
    return {
        "expected_tokens": expected,
        "compared_tokens": 2 * expected,
        "compared_hit_tokens": expected,
        "stock_hit_tokens": expected - gained_tokens,
        "gained_engine_s": gained_tokens / 500,
        "recomputed_tokens": {"diverged": diverged, "ttl": 0},
    }


def test_what_servers_saved_is_in_the_summary(ledger: TurnLedger) -> None:
    """The last word of each server adds up; an answer of another form changes nothing."""
    for said in (None, 7, {}, {"compared_tokens": "many"}, {"recomputed_tokens": []}):
        ledger.note_savings("http://a", said)
    assert ledger.summary().savings is None
    ledger.note_savings("http://a", savings(gained_tokens=100, diverged=0, expected=200))
    ledger.note_savings("http://a", savings(gained_tokens=1500, diverged=0, expected=2000))
    ledger.note_savings("http://b", savings(gained_tokens=500, diverged=0, expected=600))
    assert str(ledger.summary()).splitlines()[-1] == (
        "later turns    50% of prompt tokens came from the cache; stock: about 12%, "
        "4.00 s of engine time"
    )


def test_prompts_that_diverge_are_hinted_at_once_a_job(
    ledger: TurnLedger, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning, and only if more than half of what was expected, and not little, was lost."""
    for diverged, expected in ((100, 150), (1000, 2000), (1001, 2000), (5000, 6000)):
        ledger.note_savings(
            "http://a", savings(gained_tokens=0, diverged=diverged, expected=expected)
        )
    (record,) = caplog.records
    assert "1001 of the 2000 tokens" in record.getMessage()
    assert "agentkv explain" in record.getMessage()
