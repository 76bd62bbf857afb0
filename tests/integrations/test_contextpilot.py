"""A ContextPilot index loses the entries of a job when the job's KV is gone, and no others."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentkv.errors import InputError
from agentkv.integrations.contextpilot import ContextPilotListener, index_ids
from agentkv.listeners import KVFree, KVListener, UndeliveredError, make_listener
from agentkv.testing.http_front import Answer, HttpFront

EXAMPLE = Path(__file__).parents[2] / "examples" / "contextpilot" / "run.py"
needs_package = pytest.mark.skipif(
    importlib.util.find_spec("contextpilot") is None,
    reason="needs `pip install --no-deps contextpilot==0.5.0`",
)
FREES = [
    KVFree(1, "a", ("chatcmpl-req-1", "chatcmpl-req-2"), "last_step"),
    KVFree(2, "b", ("cmpl-req-3", "chatcmpl-req-1"), "aborted"),
]


def post_to(status: int) -> tuple[list[tuple[str, Any]], KVListener, HttpFront]:
    posts: list[tuple[str, Any]] = []

    def take(method: str, path: str, headers: Mapping[str, str], body: Any) -> Answer:
        posts.append((path, body))
        return Answer(status, {})

    front = HttpFront(take)
    front.start()
    return posts, make_listener("contextpilot", {"url": front.url}), front


def test_the_index_server_is_asked_to_evict_by_its_own_ids() -> None:
    """One request to /evict names the requests of all frees, as clients named them."""
    posts, listener, front = post_to(200)
    listener.on_frees(FREES)
    front.stop()
    assert posts == [("/evict", {"request_ids": ["req-1", "req-2", "req-3"]})]


def test_an_index_that_was_not_built_yet_has_nothing_to_drop() -> None:
    """Before the first /reorder the server answers 503, which is no failure to deliver."""
    _, listener, front = post_to(503)
    listener.on_frees(FREES)
    front.stop()


def test_a_server_that_fails_is_tried_again() -> None:
    """Any other error is reported as undelivered, so that the frees are kept for a retry."""
    _, listener, front = post_to(500)
    with pytest.raises(UndeliveredError, match="status 500"):
        listener.on_frees(FREES)
    front.stop()


def test_something_else_than_an_index_is_refused() -> None:
    """The message says which method is missing."""
    with pytest.raises(InputError, match="remove_requests"):
        ContextPilotListener(index=object())  # type: ignore[arg-type]


@needs_package
def test_the_package_s_own_index_drops_the_entries_of_ended_jobs_alone() -> None:
    """ContextPilot's index keeps a job's requests until a free names them."""
    import contextpilot

    index = contextpilot.ContextPilot()
    built = index.build_and_schedule(contexts=[[1, 2, 3], [1, 2, 4], [7, 8, 9]])
    first, second, third = built["request_ids"]
    free = KVFree(1, "a", (f"chatcmpl-{first}", f"chatcmpl-{third}"), "released")
    ContextPilotListener(index=index).on_frees([free])
    assert set(index.get_all_request_ids()) == {second}
    assert index_ids([free]) == [first, third]


@pytest.mark.server
@pytest.mark.long
@needs_package
def test_its_index_server_keeps_entries_while_a_job_is_pinned_or_offloaded(
    tiny_model_dir: Path,
) -> None:
    """The example, which ends with status 1 unless entries go with a job's end and not before."""
    command = [sys.executable, EXAMPLE, "--model", tiny_model_dir]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    (offloaded,) = (line for line in lines if line.startswith("the pins are over"))
    assert offloaded.endswith("entries: is released, goes on")
    assert lines[-1].endswith("entries: none")
