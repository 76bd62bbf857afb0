"""The bookkeeping of a job: numbers, retries, tools and tokens, on a clock moved by hand."""

from __future__ import annotations

from typing import Any

import pytest

from agentkv.client.ledger import ToolTime, TurnLedger


class Books:
    """A ledger with its clock; a turn takes 1 s by default."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.ledger = TurnLedger("job", clock=lambda: self.now_s)

    def turn(self, seconds: float = 1.0) -> int:
        turn = self.ledger.begin()
        self.now_s += seconds
        self.ledger.finish(turn)
        return turn.number


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.fixture
def ledger(books: Books) -> TurnLedger:
    return books.ledger


def test_the_next_request_takes_over_from_a_failed_turn(ledger: TurnLedger) -> None:
    """It carries the number, the tool and the last step, so that the server sees a retry."""
    ledger.finish_tool("pytest", 7.0)
    ledger.mark_last_step()
    ledger.fail(ledger.begin())
    turn = ledger.begin()
    assert (turn.number, turn.is_last_step) == (1, True)
    assert turn.last_tool == ToolTime("pytest", 7.0)


def test_the_number_of_a_failed_turn_is_for_its_retry_alone(ledger: TurnLedger) -> None:
    """Whether another turn begins before or after it fails; it counts no more for the limit."""
    ledger.limit_turns(3)
    first = ledger.begin("one")
    ledger.fail(first)
    second, third = ledger.begin("two"), ledger.begin("three")
    ledger.fail(second)
    retries = [ledger.begin(request) for request in ("one", "two", "one")]
    assert [turn.number for turn in (first, second, third, *retries)] == [1, 2, 3, 1, 2, 4]
    assert [turn.is_last_step for turn in (third, *retries)] == [False, False, True, False]


def test_the_longest_tool_is_carried_by_the_next_turn_alone(ledger: TurnLedger) -> None:
    """Of several tools the longest decides how long the pin had to last; it is sent once."""
    for text, duration_s in (("ls", 0.1), ("make", 9.0), ("cat x", 0.2)):
        ledger.finish_tool(text, duration_s)
    assert ledger.begin().last_tool == ToolTime("make", 9.0)
    assert ledger.begin().last_tool is None
    assert ledger.summary().tool_s == pytest.approx(9.3)
    assert ledger.summary().tool_calls == 3


def test_a_last_step_is_one_turn(ledger: TurnLedger) -> None:
    """mark_last_step() is for the next turn, limit_turns(n) for turn number n."""
    ledger.limit_turns(3)
    ledger.mark_last_step()
    assert [ledger.begin().is_last_step for _ in range(4)] == [True, False, True, False]


def answer(*, diverged: int = 0, expected: int = 0) -> dict[str, Any]:
    """What a server says of a job when it is released."""
    return {
        "tokens": {
            **{"prompt_tokens": 2000, "hit_tokens": 800, "output_tokens": 50},
            **{"later_prompt_tokens": 1000, "later_hit_tokens": 750},
            **{"expected_tokens": expected, "recomputed_tokens": {"diverged": diverged}},
        },
    }


def test_the_summary_adds_up_and_prints(books: Books, ledger: TurnLedger) -> None:
    """Turns and times are the client's, tokens those of all servers; or a line says why not."""
    books.turn(seconds=1.5)
    books.turn()
    answers: list[object] = [None, 7, [], {}, {"tokens": 1}, {"tokens": {}}]
    for said in answers:
        ledger.note_answer("http://a", said)
    assert ledger.summary().hit_rate is None
    assert str(ledger.summary("not known: gone")).splitlines() == [
        "job        job",
        "turns      2",
        "LLM time   2.50 s",
        "tool time  0.00 s (0 calls)",
        "tokens     not known: gone",
    ]
    for server in ("http://a", "http://b", "http://a"):
        ledger.note_answer(server, answer())
    assert ledger.summary().hit_rate == 0.75
    assert str(ledger.summary("not known: gone")).splitlines()[4:] == [
        "prompt tokens  4,000",
        "cached tokens  1,600",
        "output tokens  100",
        "later turns    75% of their prompts came from the cache",
    ]


def test_prompts_that_diverge_are_hinted_at_once_a_job(
    ledger: TurnLedger, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning, and only if more than half of what was expected, and not little, was lost."""
    for diverged, expected in ((100, 150), (1000, 2000), (1001, 2000), (5000, 6000)):
        ledger.note_answer("http://a", answer(diverged=diverged, expected=expected))
    (record,) = caplog.records
    assert "1001 of the 2000 tokens" in record.getMessage()
    assert "agentkv explain" in record.getMessage()
