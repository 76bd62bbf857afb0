"""A ContextPilot index loses the entries of a job when the job's KV is gone, and no others."""

from collections.abc import Mapping
from typing import Any

import pytest

from agentkv.integrations.contextpilot import evict_all
from agentkv.listeners import KVFree
from tests.http_front import Answer, HttpFront

FREES = [
    KVFree(1, "a", ("chatcmpl-req-1", "chatcmpl-req-2"), "last_step"),
    KVFree(2, "b", ("cmpl-req-3",), "aborted"),
]


@pytest.mark.parametrize(("statuses", "num_posts"), [((200,), 2), ((503,), 2), ((500, 200), 3)])
def test_the_index_server_is_asked_to_evict_by_its_own_ids(
    statuses: tuple[int, ...], num_posts: int
) -> None:
    """A request to /evict names the requests of a free as clients named them, and comes again after
    an error; 503 is the answer before the first /reorder, when there is nothing to drop."""
    posts: list[tuple[str, Any]] = []

    def take(method: str, path: str, headers: Mapping[str, str], body: Any) -> Answer:
        posts.append((path, body))
        return Answer(statuses[min(len(posts), len(statuses)) - 1], {})

    front = HttpFront(take)
    front.start()
    evict_all(FREES, front.url)
    front.stop()
    evictions = [("/evict", {"request_ids": ids}) for ids in (["req-1", "req-2"], ["req-3"])]
    assert posts == [evictions[0]] * (num_posts - 1) + [evictions[1]]


def test_a_dead_index_server_costs_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """What it did not take is named, and the next free is tried."""
    evict_all(FREES, "http://127.0.0.1:1", retries=0)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" stays")[0] for line in lines] == ["job a", "job b"]
