"""Threads, pools and tasks started inside a session are in its job; others are not."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import getcontext, localcontext
from typing import Any

import pytest

import agentkv


def current_id() -> str | None:
    job = agentkv.current_job()
    return None if job is None else job.job_id


class Looker(threading.Thread):
    """A thread with a run method of its own, which notes the job it is in."""

    seen: Any = "not run"

    def run(self) -> None:
        self.seen = current_id()


def run(thread: threading.Thread) -> Any:
    thread.start()
    thread.join()
    return getattr(thread, "seen", None)


def test_a_thread_is_in_the_job_it_was_started_in() -> None:
    """A thread takes the innermost open session along; one opened in it has that one as parent."""
    parents: list[str | None] = []

    def sub_agent() -> None:
        with agentkv.session() as job:
            parents.append(job.parent_job_id)

    with agentkv.session(job_id="a"):
        assert run(Looker()) == "a"
        with agentkv.session(job_id="b"):
            assert run(Looker()) == "b"
            run(threading.Thread(target=sub_agent))
        assert run(Looker()) == "a"
    assert run(Looker()) is None
    assert parents == ["b"]


def test_every_way_to_start_a_thread_carries_the_job_alone() -> None:
    """Targets, timers and a run method set on the object, which stays there; but not the rest of
    the context, such as the precision of decimal."""
    seen: list[tuple[str | None, int]] = []

    def look() -> None:
        seen.append((current_id(), getcontext().prec))

    with_own_run = threading.Thread()
    with_own_run.run = look  # type: ignore[method-assign]
    with agentkv.session(job_id="a"), localcontext(prec=5):
        for thread in (threading.Thread(target=look), threading.Timer(0, look), with_own_run):
            run(thread)
    assert seen == [("a", 28)] * 3
    assert vars(with_own_run)["run"] is look


@pytest.mark.parametrize("starts_inside", [False, True])
def test_a_thread_is_in_no_job_outside_of_the_session(starts_inside: bool) -> None:
    """A thread started before the session, or that outlives it, is in no job.

    Its calls would otherwise start a released job again.
    """
    may_look, has_looked = threading.Event(), threading.Event()
    seen: list[str | None] = []

    def look() -> None:
        assert may_look.wait(10)
        seen.append(current_id())
        has_looked.set()

    thread = threading.Thread(target=look)
    if not starts_inside:
        thread.start()
    with agentkv.session():
        if starts_inside:
            thread.start()
        else:
            may_look.set()
            assert has_looked.wait(10)
    may_look.set()
    thread.join()
    assert seen == [None]


def test_work_for_a_pool_is_in_the_job_that_submitted_it() -> None:
    """The job in which the pool's thread happened to start does not matter; arguments named like
    ours, results and errors pass."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        with agentkv.session(job_id="a"):
            assert pool.submit(current_id).result() == "a"
            assert list(pool.map(lambda _: current_id(), range(2))) == ["a", "a"]
            assert pool.submit(dict, fn=1, job=2).result() == {"fn": 1, "job": 2}
            with pytest.raises(ZeroDivisionError):
                pool.submit(divmod, 1, 0).result()
        assert pool.submit(current_id).result() is None
        with agentkv.session(job_id="b"):
            assert pool.submit(current_id).result() == "b"


@pytest.mark.asyncio
async def test_tasks_and_their_threads_are_in_the_job() -> None:
    """Tasks, to_thread and the loop's executor carry the job; a task made before does not."""

    async def current_id_soon() -> str | None:
        await asyncio.sleep(0)
        return current_id()

    before = asyncio.create_task(current_id_soon())
    async with agentkv.session(job_id="a"):
        loop = asyncio.get_running_loop()
        assert await asyncio.create_task(current_id_soon()) == "a"
        assert await asyncio.to_thread(current_id) == "a"
        assert await loop.run_in_executor(None, current_id) == "a"
        assert await before is None
    assert await asyncio.to_thread(current_id) is None
