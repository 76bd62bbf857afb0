"""The background sender: order, retries within a bound, drops with one warning, no waiting."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from agentkv.client.feedback import (
    MAX_ATTEMPTS,
    MAX_HANGING,
    Delivery,
    FeedbackSender,
    flush,
    sender_to,
)
from agentkv.errors import NoAnswerError, StatusError


class Inbox:
    """A server that counts the calls it gets, and fails the first of them with these errors."""

    def __init__(self, *errors: Exception, action: Callable[[], object] = lambda: None) -> None:
        self.num_calls = 0
        self._errors = list(errors)
        self._action = action

    def __call__(self) -> None:
        self.num_calls += 1
        self._action()
        if self._errors:
            raise self._errors.pop(0)


def post(sender: FeedbackSender, *inboxes: Inbox) -> None:
    for inbox in inboxes:
        sender.submit(Delivery(inbox, "a tool of a"))


def calls(sender: FeedbackSender, *inboxes: Inbox) -> list[int]:
    post(sender, *inboxes)
    assert sender.flush(timeout_s=20)
    return [inbox.num_calls for inbox in inboxes]


def no_answers(count: int) -> list[Exception]:
    return [NoAnswerError("down") for _ in range(count)]


def test_deliveries_go_out_in_order() -> None:
    """A tool's start arrives before its end, and the release last."""
    order: list[int] = []
    inboxes = [Inbox(action=lambda number=number: order.append(number)) for number in range(50)]  # type: ignore[misc]
    calls(FeedbackSender(), *inboxes)
    assert order == list(range(50))


@pytest.mark.parametrize(
    ("errors", "num_calls", "warning"),
    [
        ([NoAnswerError("down"), StatusError("busy", 503)], 3, None),
        ([StatusError("unknown job", 404)], 1, None),
        ([StatusError("forbidden", 403)], 1, "(forbidden)"),
        ([ZeroDivisionError("oops")], 1, "(oops)"),
    ],
    ids=["passing", "job gone", "refused", "any other"],
)
def test_a_failure_is_retried_if_it_may_pass_and_reported_if_it_matters(
    errors: list[Exception], num_calls: int, warning: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Silence and 503 are retried; 404 means that the job is freed; the rest is dropped, loudly."""
    sender = FeedbackSender()
    assert calls(sender, Inbox(*errors), Inbox()) == [num_calls, 1]
    assert [warning in record.getMessage() for record in caplog.records if warning] == (
        [True] if warning else []
    )
    assert len(caplog.records) == (warning is not None)


def test_a_lasting_failure_is_dropped_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A silent server gets one attempt per delivery until it answers again."""
    sender = FeedbackSender()
    assert calls(sender, Inbox(*no_answers(9)), Inbox(*no_answers(9))) == [MAX_ATTEMPTS, 1]
    assert calls(sender, Inbox(), Inbox(*no_answers(1))) == [1, 2]
    assert len(caplog.records) == 1
    assert "dropped a tool of a (down)" in caplog.text


def test_a_full_queue_drops_tool_events_before_releases(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody waits; a release takes the place of the oldest tool event, the newest one none."""
    sender = FeedbackSender(max_queued=3)
    may_go_on, is_busy = threading.Event(), threading.Event()
    sent: list[str] = []

    def submit(path: str, action: Callable[[], object] = lambda: None) -> None:
        inbox = Inbox(action=lambda: (sent.append(path), action()))
        sender.submit(Delivery(inbox, path, is_release=path.endswith("release")))

    submit("/busy", lambda: (is_busy.set(), may_go_on.wait(20)))
    assert is_busy.wait(20)
    for path in ("/a/tool", "/a/release", "/b/tool", "/c/tool", "/b/release", "/c/release"):
        submit(path)
    submit("/d/release")
    assert not sender.flush(timeout_s=0.01)
    may_go_on.set()
    assert sender.flush(timeout_s=20)
    assert sent == ["/busy", "/a/release", "/b/release", "/c/release"]
    assert sender.num_waiting == 0
    assert len(caplog.records) == 1


@pytest.mark.parametrize("has_next", [True, False], ids=["another delivery", "a flush"])
def test_without_a_free_thread_deliveries_wait_for_one(
    has_next: bool,
    no_free_thread: Callable[[], AbstractContextManager[None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing is raised or lost: the next delivery, or a flush, starts the thread."""
    sender = FeedbackSender()
    inboxes = [Inbox() for _ in range(3)]
    with no_free_thread():
        post(sender, *inboxes[:2])
        assert not sender.flush(timeout_s=20)
    if has_next:
        post(sender, inboxes[2])
    assert sender.flush(timeout_s=20)
    assert [inbox.num_calls for inbox in inboxes] == [1, 1, int(has_next)]
    (record,) = caplog.records
    assert "no free thread for a tool of a" in record.getMessage()


def test_the_queue_of_another_library_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """gevent and eventlet replace `queue.Queue` by one that no flush can wait for."""

    class WithoutInternals:
        def __init__(self, *_: object) -> None:
            raise AssertionError("queue.Queue was used")

    monkeypatch.setattr(queue, "Queue", WithoutInternals)
    assert calls(FeedbackSender(), Inbox(), Inbox()) == [1, 1]


def test_a_delivery_that_hangs_holds_up_the_next_ones_no_longer_than_its_deadline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server that answers byte by byte keeps one delivery, not the queue behind it."""
    sender, may_end = FeedbackSender(deadline_s=0.05), threading.Event()
    hanging, after = Inbox(action=lambda: may_end.wait(60)), Inbox()
    post(sender, hanging, after)
    assert sender.flush(timeout_s=20)
    assert (hanging.num_calls, after.num_calls) == (1, 1)
    may_end.set()
    (record,) = caplog.records
    assert "no answer within 0.05 s" in record.getMessage()


def test_no_more_than_a_few_deliveries_hang_at_once() -> None:
    """Behind a server that never ends an answer, further deliveries are dropped untried."""
    sender, may_end = FeedbackSender(deadline_s=0.01), threading.Event()
    inboxes = [Inbox(action=lambda: may_end.wait(60)) for _ in range(MAX_HANGING + 3)]
    post(sender, *inboxes)
    assert sender.flush(timeout_s=20)
    assert [inbox.num_calls for inbox in inboxes] == [1] * MAX_HANGING + [0] * 3
    may_end.set()


def test_a_server_that_hangs_delays_no_other() -> None:
    """Each server has a queue and a thread of its own."""
    may_go_on, has_arrived = threading.Event(), threading.Event()
    post(sender_to("http://hangs"), Inbox(action=lambda: may_go_on.wait(20)))
    post(sender_to("http://well"), Inbox(action=has_arrived.set))
    assert has_arrived.wait(20)
    assert not flush(0.01)
    may_go_on.set()
    assert flush(20)
