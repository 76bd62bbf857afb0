"""The background sender: order, retries within a bound, drops, no waiting."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import pytest

from agentkv.client.delivery import MAX_ATTEMPTS, MAX_QUEUED, Delivery, Sender
from agentkv.errors import NoAnswerError, StatusError


class Inbox:
    """A server that counts the calls it gets, and fails the first of them with these errors."""

    def __init__(self, *errors: Exception, action: Callable[[], object] = lambda: None) -> None:
        self.num_calls = 0
        self.dropped_for: list[str] = []
        self._errors = list(errors)
        self._action = action

    def call(self) -> None:
        self.num_calls += 1
        self._action()
        if self._errors:
            raise self._errors.pop(0)

    def drop(self, reason: object) -> None:
        self.dropped_for.append(str(reason))


def post(sender: Sender, *inboxes: Inbox, server: str = "a") -> None:
    for inbox in inboxes:
        sender.submit(Delivery(server, inbox.call, inbox.drop))


def no_answers(count: int) -> list[Exception]:
    return [NoAnswerError("down") for _ in range(count)]


@pytest.mark.parametrize(
    ("errors", "num_calls", "reason"),
    [
        ([NoAnswerError("down"), StatusError("busy", 503)], 3, None),
        ([StatusError("forbidden", 403)], 1, "forbidden"),
        ([NoAnswerError("slow", is_late=True)], 1, "slow"),
        ([ZeroDivisionError("oops")], 1, "oops"),
        (no_answers(9), MAX_ATTEMPTS, "down"),
    ],
    ids=["passing", "refused", "slow", "any other", "lasting"],
)
def test_a_failure_is_retried_if_it_may_pass_soon(
    errors: list[Exception], num_calls: int, reason: str | None
) -> None:
    """Silence and 503 are retried; what remains is dropped, and the next server's goes on."""
    sender, first, second = Sender(), Inbox(*errors), Inbox()
    post(sender, first)
    post(sender, second, server="b")
    assert sender.flush(timeout_s=20)
    assert [inbox.num_calls for inbox in (first, second)] == [num_calls, 1]
    assert first.dropped_for == ([reason] if reason else [])
    assert second.dropped_for == []


def test_a_silent_server_delays_no_other() -> None:
    """After one time-out it gets nothing for a while; one that is down is tried once a delivery."""
    sender = Sender()
    slow, after, other = Inbox(NoAnswerError("slow", is_late=True)), Inbox(), Inbox()
    down = [Inbox(*no_answers(9)) for _ in range(2)]
    post(sender, slow, after)
    post(sender, other, server="b")
    post(sender, *down, server="c")
    assert sender.flush(timeout_s=20)
    assert [inbox.num_calls for inbox in (slow, after, other)] == [1, 0, 1]
    assert after.dropped_for == ["an earlier call was not answered in time"]
    assert [inbox.num_calls for inbox in down] == [MAX_ATTEMPTS, 1]


def test_a_full_queue_drops_its_oldest_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest goes out in order, nobody waits; gevent's `queue.Queue`, which no flush can wait
    for, is not in use."""
    monkeypatch.setattr(queue, "Queue", None)
    may_go_on, is_busy = threading.Event(), threading.Event()

    def wait() -> None:
        is_busy.set()
        may_go_on.wait(20)

    sender, order = Sender(), list[int]()
    post(sender, Inbox(action=wait))
    assert is_busy.wait(20)
    inboxes = [
        Inbox(action=lambda number=number: order.append(number))  # type: ignore[misc]
        for number in range(MAX_QUEUED + 2)
    ]
    post(sender, *inboxes)
    assert not sender.flush(timeout_s=0.01)
    may_go_on.set()
    assert sender.flush(timeout_s=20)
    assert order == list(range(2, MAX_QUEUED + 2))
    assert [len(inbox.dropped_for) for inbox in inboxes[:3]] == [1, 1, 0]
