"""A ContextPilot index loses the entries of a job when the job's KV is gone, and no others."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from agentkv.errors import InputError
from agentkv.integrations.contextpilot import ContextPilotListener, index_ids
from agentkv.listeners import KVFree, UndeliveredError, make_listener
from tests.http_front import Answer, HttpFront

EXAMPLE = Path(__file__).parents[2] / "examples" / "contextpilot" / "run.py"
needs_package = pytest.mark.skipif(
    # next to it the examples' folder of that name, which is no package
    getattr(importlib.util.find_spec("contextpilot"), "origin", None) is None,
    reason="needs `pip install --no-deps contextpilot==0.5.0`",
)
FREES = [
    KVFree(1, "a", ("chatcmpl-req-1", "chatcmpl-req-2"), "last_step"),
    KVFree(2, "b", ("cmpl-req-3", "chatcmpl-req-1"), "aborted"),
]


@pytest.mark.parametrize("status", [200, 503, 500])
def test_the_index_server_is_asked_to_evict_by_its_own_ids(status: int) -> None:
    """One request to /evict names the requests of all frees, as clients named them.

    503 is the answer before the first /reorder, when there is nothing to drop; after any other
    error the frees count as undelivered, so that they are kept for a retry.
    """
    posts: list[tuple[str, Any]] = []

    def take(method: str, path: str, headers: Mapping[str, str], body: Any) -> Answer:
        posts.append((path, body))
        return Answer(status, {})

    front = HttpFront(take)
    front.start()
    listener = make_listener("contextpilot", {"url": front.url})
    with pytest.raises(UndeliveredError, match="500") if status == 500 else nullcontext():
        listener.on_frees(FREES)
    front.stop()
    assert posts == [("/evict", {"request_ids": ["req-1", "req-2", "req-3"]})]


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
