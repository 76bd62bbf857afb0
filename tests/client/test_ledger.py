"""The bookkeeping of a job: numbers, retries, tools and tokens, on a clock moved by hand."""

from __future__ import annotations

from typing import Any

import pytest

from agentkv.client.job import Job


class Books:
    """A job with its clock; a turn takes 1 s by default."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.job: Job[None] = Job("job", clock=lambda: self.now_s)

    def turn(self, seconds: float = 1.0) -> int:
        turn = self.job.begin_turn()
        self.now_s += seconds
        turn.end()
        return turn.number


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.fixture
def job(books: Books) -> Job[None]:
    return books.job


def test_the_next_request_takes_over_from_a_failed_turn(job: Job[None]) -> None:
    """It carries the number, the tool and the last step, so that the server sees a retry."""
    job.end_tool("pytest", 7.0)
    job.last_step()
    job.begin_turn().end("failed")
    turn = job.begin_turn()
    assert (turn.number, turn.is_last_step) == (1, True)
    assert turn.last_tool == (7.0, "pytest")


def test_the_number_of_a_failed_turn_is_for_its_retry_alone(job: Job[None]) -> None:
    """Whether another turn begins before or after it fails; it counts no more for the limit."""
    job.limit_turns(3)
    first = job.begin_turn("one")
    first.end(500)
    second, third = job.begin_turn("two"), job.begin_turn("three")
    second.end(500)
    retries = [job.begin_turn(request) for request in ("one", "two", "one")]
    assert [turn.number for turn in (first, second, third, *retries)] == [1, 2, 3, 1, 2, 4]
    assert [turn.is_last_step for turn in (third, *retries)] == [False, False, True, False]


def test_the_longest_tool_is_carried_by_the_next_turn_alone(job: Job[None]) -> None:
    """Of several tools the longest decides how long the pin had to last; it is sent once."""
    for text, duration_s in (("ls", 0.1), ("make", 9.0), ("cat x", 0.2)):
        job.end_tool(text, duration_s)
    assert job.begin_turn().last_tool == (9.0, "make")
    assert job.begin_turn().last_tool is None
    assert job.summary().tool_s == pytest.approx(9.3)
    assert job.summary().tool_calls == 3


def test_a_last_step_is_one_turn(job: Job[None]) -> None:
    """mark_last_step() is for the next turn, limit_turns(n) for turn number n."""
    job.limit_turns(3)
    job.last_step()
    assert [job.begin_turn().is_last_step for _ in range(4)] == [True, False, True, False]


def answer(*, diverged: int = 0, expected: int = 0) -> dict[str, Any]:
    """What a server says of a job when it is released."""
    return {
        "tokens": {
            **{"prompt_tokens": 2000, "hit_tokens": 800, "output_tokens": 50},
            **{"later_prompt_tokens": 1000, "later_hit_tokens": 750},
            **{"expected_tokens": expected, "recomputed_tokens": {"diverged": diverged}},
        },
    }


def test_the_summary_adds_up_and_prints(books: Books, job: Job[None]) -> None:
    """Turns and times are the client's, tokens those of all servers; or a line says why not."""
    books.turn(seconds=1.5)
    books.turn()
    answers: list[object] = [None, 7, [], {}, {"tokens": 1}, {"tokens": {}}]
    for said in answers:
        job.note_answer("http://a", said)
    job.no_tokens = "gone"
    assert job.summary().hit_rate is None
    assert str(job.summary()).splitlines() == [
        "job        job",
        "turns      2",
        "LLM time   2.50 s",
        "tool time  0.00 s (0 calls)",
        "tokens     not known: gone",
    ]
    for server in ("http://a", "http://b", "http://a"):
        job.note_answer(server, answer())
    assert job.summary().hit_rate == 0.75
    assert str(job.summary()).splitlines()[4:] == [
        "prompt tokens  4,000",
        "cached tokens  1,600",
        "output tokens  100",
        "later turns    75% of their prompts came from the cache",
    ]


def test_prompts_that_diverge_are_hinted_at_once_a_job(
    job: Job[None], caplog: pytest.LogCaptureFixture
) -> None:
    """One warning, and only if more than half of what was expected, and not little, was lost."""
    for diverged, expected in ((100, 150), (1000, 2000), (1001, 2000), (5000, 6000)):
        job.note_answer("http://a", answer(diverged=diverged, expected=expected))
    (record,) = caplog.records
    assert "1001 of the 2000 tokens" in record.getMessage()
    assert "agentkv explain" in record.getMessage()
