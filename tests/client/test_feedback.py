"""The background sender: order, retries within a bound, drops with one warning, no waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from agentkv.client.feedback import MAX_ATTEMPTS, Delivery, FeedbackSender, flush, submit
from agentkv.client.transport import NoAnswerError, StatusError


class Outbox:
    """Counts attempts and fails as told."""

    def __init__(self, *errors: Exception) -> None:
        self.num_attempts = 0
        self._errors = list(errors)

    def __call__(self) -> None:
        self.num_attempts += 1
        if self._errors:
            raise self._errors.pop(0)


def delivery(send: Callable[[], object], server: str = "http://a") -> Delivery:
    return Delivery(server, "a thing", send)


def sent(sender: FeedbackSender, *outboxes: Outbox) -> list[int]:
    for outbox in outboxes:
        sender.submit(delivery(outbox))
    assert sender.flush(timeout_s=20)
    return [outbox.num_attempts for outbox in outboxes]


def no_answers(count: int) -> list[Exception]:
    return [NoAnswerError("down") for _ in range(count)]


def test_deliveries_go_out_in_order() -> None:
    """A start comes before its end, and the release last."""
    sender = FeedbackSender()
    order: list[int] = []
    for number in range(50):
        sender.submit(delivery(lambda number=number: order.append(number)))  # type: ignore[misc]
    assert sender.flush(timeout_s=20)
    assert order == list(range(50))


def test_a_passing_failure_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """No answer, or an answer that asks for patience."""
    assert sent(FeedbackSender(), Outbox(NoAnswerError("down"), StatusError("busy", 503))) == [3]
    assert caplog.records == []


def test_a_lasting_failure_is_dropped_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A server found silent gets one attempt per delivery until it speaks again."""
    sender = FeedbackSender()
    assert sent(sender, Outbox(*no_answers(9)), Outbox(*no_answers(9))) == [MAX_ATTEMPTS, 1]
    assert sent(sender, Outbox(), Outbox(*no_answers(1))) == [1, 2]
    assert len(caplog.records) == 1
    assert "dropped a thing for http://a (down)" in caplog.text


def test_a_job_the_server_does_not_know_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    """It has been freed already: that is what was wanted."""
    assert sent(FeedbackSender(), Outbox(StatusError("unknown job", 404))) == [1]
    assert caplog.records == []


def test_a_refusal_is_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """It would be refused again."""
    assert sent(FeedbackSender(), Outbox(StatusError("forbidden", 403))) == [1]
    assert "forbidden" in caplog.text


def test_the_sender_outlives_any_error(caplog: pytest.LogCaptureFixture) -> None:
    """One bad delivery does not silence the rest."""
    assert sent(FeedbackSender(), Outbox(ZeroDivisionError("oops")), Outbox()) == [1, 1]
    assert "oops" in caplog.text


def test_a_full_queue_drops_and_does_not_wait(caplog: pytest.LogCaptureFixture) -> None:
    """The agent goes on at once; one warning says that feedback is lost."""
    sender = FeedbackSender(max_queued=2)
    may_go_on, is_busy = threading.Event(), threading.Event()

    def block() -> None:
        is_busy.set()
        assert may_go_on.wait(20)

    sender.submit(delivery(block))
    assert is_busy.wait(20)
    outboxes = [Outbox() for _ in range(5)]
    for outbox in outboxes:
        sender.submit(delivery(outbox))
    assert not sender.flush(timeout_s=0.01)
    may_go_on.set()
    assert sender.flush(timeout_s=20)
    assert [outbox.num_attempts for outbox in outboxes] == [1, 1, 0, 0, 0]
    assert len(caplog.records) == 1


def test_without_a_free_thread_deliveries_wait_for_one(
    no_free_thread: Callable[[], AbstractContextManager[None]], caplog: pytest.LogCaptureFixture
) -> None:
    """One warning, nothing raised, nothing lost: the next delivery tries again."""
    sender = FeedbackSender()
    outboxes = [Outbox() for _ in range(3)]
    with no_free_thread():
        sender.submit(delivery(outboxes[0]))
        sender.submit(delivery(outboxes[1]))
        assert not sender.flush(timeout_s=20)
    assert sent(sender, outboxes[2]) == [1]
    assert [outbox.num_attempts for outbox in outboxes] == [1, 1, 1]
    (record,) = caplog.records
    assert "no free thread to send a thing to http://a" in record.getMessage()


def test_a_flush_finds_a_thread_for_what_waits(
    no_free_thread: Callable[[], AbstractContextManager[None]],
) -> None:
    """There may be no further delivery that tries."""
    sender, outbox = FeedbackSender(), Outbox()
    with no_free_thread():
        sender.submit(delivery(outbox))
    assert sender.flush(timeout_s=20)
    assert outbox.num_attempts == 1


def test_a_server_that_hangs_keeps_no_other_waiting() -> None:
    """Each has a queue and a thread of its own."""
    may_go_on, has_arrived = threading.Event(), threading.Event()
    submit(Delivery("http://hangs", "a thing", lambda: may_go_on.wait(20)))
    submit(Delivery("http://well", "a thing", has_arrived.set))
    assert has_arrived.wait(20)
    assert not flush(0.01)
    may_go_on.set()
    assert flush(20)
