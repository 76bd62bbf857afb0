"""The background sender: order, retries within a bound, drops, no waiting."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import pytest

from agentkv.client.delivery import MAX_ATTEMPTS, Delivery, Sender
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


def post(sender: Sender, *inboxes: Inbox, server: str = "a", is_release: bool = False) -> None:
    for inbox in inboxes:
        sender.submit(Delivery(server, inbox.call, inbox.drop, is_release=is_release))


def calls(sender: Sender, *inboxes: Inbox) -> list[int]:
    post(sender, *inboxes)
    assert sender.flush(timeout_s=20)
    return [inbox.num_calls for inbox in inboxes]


def no_answers(count: int) -> list[Exception]:
    return [NoAnswerError("down") for _ in range(count)]


def test_deliveries_go_out_in_order() -> None:
    """A tool's start arrives before its end, and the release last."""
    order: list[int] = []
    inboxes = [Inbox(action=lambda number=number: order.append(number)) for number in range(50)]  # type: ignore[misc]
    calls(Sender(), *inboxes)
    assert order == list(range(50))


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
    """Silence and 503 are retried; what remains is dropped, and the next delivery goes on."""
    first, second = Inbox(*errors), Inbox()
    sender = Sender(silent_s=0.0)
    assert calls(sender, first, second) == [num_calls, 1]
    assert first.dropped_for == ([reason] if reason else [])
    assert second.dropped_for == []


def test_a_silent_server_delays_no_other() -> None:
    """After one time-out it gets nothing for a while; one that is down is tried once a delivery."""
    sender = Sender()
    slow, after, other = Inbox(NoAnswerError("slow", is_late=True)), Inbox(), Inbox()
    post(sender, slow, after)
    post(sender, other, server="b")
    assert sender.flush(timeout_s=20)
    assert [inbox.num_calls for inbox in (slow, after, other)] == [1, 0, 1]
    assert after.dropped_for == ["an earlier call was not answered in time"]
    down = [Inbox(*no_answers(9)) for _ in range(2)]
    post(sender, *down, server="c")
    assert sender.flush(timeout_s=20)
    assert [inbox.num_calls for inbox in down] == [MAX_ATTEMPTS, 1]


def test_a_full_queue_has_room_for_releases() -> None:
    """Nobody waits; a release takes the place of the oldest delivery, a tool event none."""
    sender = Sender(max_queued=2)
    may_go_on, is_busy = threading.Event(), threading.Event()

    def wait() -> None:
        is_busy.set()
        may_go_on.wait(20)

    busy = Inbox(action=wait)
    tools, release = [Inbox() for _ in range(3)], Inbox()
    post(sender, busy)
    assert is_busy.wait(20)
    post(sender, *tools)
    post(sender, release, is_release=True)
    assert not sender.flush(timeout_s=0.01)
    may_go_on.set()
    assert sender.flush(timeout_s=20)
    assert [inbox.num_calls for inbox in (*tools, release)] == [0, 1, 0, 1]
    assert [len(inbox.dropped_for) for inbox in tools] == [1, 0, 1]
    assert sender.num_unsent == 0


def test_the_queue_of_another_library_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """gevent and eventlet replace `queue.Queue` by one that no flush can wait for."""

    class WithoutInternals:
        def __init__(self, *_: object) -> None:
            raise AssertionError("queue.Queue was used")

    monkeypatch.setattr(queue, "Queue", WithoutInternals)
    assert calls(Sender(), Inbox(), Inbox()) == [1, 1]
