"""The background sender: order, retries within a bound, drops, no waiting."""

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


SKIPPED = "an earlier call had no answer"


@pytest.mark.parametrize(
    ("errors", "num_calls", "reason", "reason_after"),
    [
        ([NoAnswerError("down"), StatusError("busy", 503)], 3, None, None),
        ([StatusError("forbidden", 403)], 1, "forbidden", None),
        ([NoAnswerError("slow", is_late=True)], 1, "slow", SKIPPED),
        ([ZeroDivisionError("oops")], 1, "oops", None),
        ([NoAnswerError("down")] * 9, MAX_ATTEMPTS, "down", SKIPPED),
    ],
    ids=["passing", "refused", "slow", "any other", "lasting"],
)
def test_a_failure_is_retried_if_it_may_pass_soon(
    errors: list[Exception], num_calls: int, reason: str | None, reason_after: str | None
) -> None:
    """Silence and 503 are retried; what remains is dropped. A silent server gets nothing for a
    while, another one gets its own."""
    sender, first, after, other = Sender(), Inbox(*errors), Inbox(), Inbox()
    post(sender, first, after)
    post(sender, other, server="b")
    assert sender.flush(timeout_s=20)
    assert first.num_calls == num_calls
    dropped_for = [inbox.dropped_for for inbox in (first, after, other)]
    assert dropped_for == [[each] if each else [] for each in (reason, reason_after, None)]
    assert [after.num_calls, other.num_calls] == [reason_after is None, 1]


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
