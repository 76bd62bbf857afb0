"""Threads, pools and tasks started inside a session are in its job; others are not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from decimal import getcontext, localcontext

import pytest

import agentkv


def current_id() -> str | None:
    job = agentkv.current_job()
    return None if job is None else job.job_id


class Looker(threading.Thread):
    """A thread with a run method of its own, that notes which job it is in."""

    seen: str | None = "not run"

    def run(self) -> None:
        self.seen = current_id()


def look() -> str | None:
    """Which job a thread started here is in."""
    thread = Looker()
    thread.start()
    thread.join()
    return thread.seen


def test_a_thread_is_in_the_job_it_was_started_in() -> None:
    """Also one with its own run method, and only inside."""
    assert look() is None
    with agentkv.session(job_id="a"):
        assert look() == "a"
        with agentkv.session(job_id="b"):
            assert look() == "b"
        assert look() == "a"
    assert look() is None


def test_a_thread_with_a_target_and_a_timer_inherit_too() -> None:
    """The plain ways of starting a thread."""
    seen: list[str | None] = []
    with agentkv.session(job_id="a"):
        threads = [
            threading.Thread(target=lambda: seen.append(current_id())),
            threading.Timer(0, lambda: seen.append(current_id())),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen == ["a", "a"]


def test_a_thread_started_elsewhere_is_in_no_job() -> None:
    """A session in one thread is not current in its neighbours."""
    entered, looked = threading.Event(), threading.Event()
    seen: list[str | None] = []

    def neighbour() -> None:
        assert entered.wait(10)
        seen.append(current_id())
        looked.set()

    thread = threading.Thread(target=neighbour)
    thread.start()
    with agentkv.session():
        entered.set()
        assert looked.wait(10)
    thread.join()
    assert seen == [None]


def test_a_session_entered_in_a_thread_is_nested_in_the_one_it_was_started_in() -> None:
    """A sub-agent in a thread has the agent as parent."""
    parents: list[str | None] = []

    def sub_agent() -> None:
        with agentkv.session() as job:
            parents.append(job.parent_job_id)

    with agentkv.session(job_id="agent"):
        thread = threading.Thread(target=sub_agent)
        thread.start()
        thread.join()
    assert parents == ["agent"]


def test_a_thread_that_outlives_its_session_is_in_no_job() -> None:
    """Its calls would otherwise bring a released job back."""
    is_left = threading.Event()
    seen: list[str | None] = []

    def outlive() -> None:
        assert is_left.wait(10)
        seen.append(current_id())

    with agentkv.session():
        thread = threading.Thread(target=outlive)
        thread.start()
    is_left.set()
    thread.join()
    assert seen == [None]


def test_work_for_a_pool_is_in_the_job_that_handed_it_over() -> None:
    """Not in the one in which the pool's thread happened to start."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        with agentkv.session(job_id="a"):
            assert pool.submit(current_id).result() == "a"
            assert list(pool.map(lambda _: current_id(), range(2))) == ["a", "a"]
        assert pool.submit(current_id).result() is None
        with agentkv.session(job_id="b"):
            assert pool.submit(current_id).result() == "b"


def test_a_pools_thread_does_not_keep_the_job_it_was_started_in() -> None:
    """Work from somebody outside, handed to the same pool meanwhile, is in no job."""
    is_started, seen = threading.Event(), []

    with ThreadPoolExecutor(max_workers=1) as pool:

        def outsider() -> None:
            assert is_started.wait(10)
            seen.append(pool.submit(current_id).result())

        thread = threading.Thread(target=outsider)
        thread.start()
        with agentkv.session(job_id="a"):
            assert pool.submit(current_id).result() == "a"
            is_started.set()
            thread.join()
    assert seen == [None]


def test_a_pools_arguments_results_and_errors_pass_through() -> None:
    """Work looks the same from both sides."""
    with agentkv.session(), ThreadPoolExecutor() as pool:
        assert pool.submit(dict, fn=1, job=2).result() == {"fn": 1, "job": 2}
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 1, 0).result()


def test_the_rest_of_the_context_is_not_carried_over() -> None:
    """A thread begins with decimal's default precision, as without us."""
    precisions: list[int] = []
    with agentkv.session(), localcontext(prec=5):
        thread = threading.Thread(target=lambda: precisions.append(getcontext().prec))
        thread.start()
        thread.join()
    assert precisions == [28]


def test_starting_a_thread_twice_is_the_usual_error() -> None:
    """And leaves nothing on the thread object."""
    with agentkv.session():
        thread = Looker()
        thread.start()
        thread.join()
        with pytest.raises(RuntimeError, match="once"):
            thread.start()
    assert "run" not in vars(thread)


def test_a_thread_that_could_not_start_can_be_started_again(
    no_free_thread: Callable[[], AbstractContextManager[None]],
) -> None:
    """The failed start leaves the thread object as it was."""
    with agentkv.session(job_id="a"):
        thread = Looker()
        before = dict(vars(thread))
        with no_free_thread(), pytest.raises(RuntimeError, match="can't start new thread"):
            thread.start()
        assert vars(thread) == before
        thread.start()
        thread.join()
    assert thread.seen == "a"


def test_a_run_method_put_on_a_thread_object_stays_there() -> None:
    """It runs in the job, and somebody who looks at it afterwards finds it."""
    seen: list[str | None] = []

    def run() -> None:
        seen.append(current_id())

    thread = threading.Thread()
    thread.run = run  # type: ignore[method-assign]
    with agentkv.session(job_id="a"):
        thread.start()
        thread.join()
    assert seen == ["a"]
    assert vars(thread)["run"] is run


@pytest.mark.asyncio
async def test_tasks_and_their_threads_are_in_the_job() -> None:
    """Tasks, to_thread and the loop's executor alike; a task of before is not."""

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
