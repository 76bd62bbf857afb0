"""When a job's KV is gone for good, and where it is until then, on vLLM's real scheduler."""

import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agentkv.errors import SettingsError
from agentkv.events import KVFreed
from agentkv.integrations.vllm.api.snapshot import kv_state
from agentkv.integrations.vllm.watch import kv_frees
from agentkv.integrations.vllm.watch.kv_frees import MAX_REQUESTS, reply_id
from agentkv.listeners import KVFree, follow
from agentkv.protocol import JobKey
from agentkv.watchers import Watcher
from tests.integrations.vllm.harness import Engine
from tests.soak.agents import Agents
from tests.stepped_engine import prompt_of

BLOCK_BYTES = 4096
"""Of one block in the KV tier, which vLLM rounds up to a page."""
NUM_ENGINES, NUM_EVENTS = 4, 200
"""Of the random test, for each of its cases; a step counts as an event."""
TAILS = {"policy": "agentkv", "prefill_reload_s": [0.0, 1.0, 0.0]}
"""A policy that gives up the tails of pins first, and pins them for long."""
HERE = {f"{__name__}:Heard": {"where": "here"}}


class Heard(Watcher):
    """Keeps what it hears in the list that its option names."""

    lists: ClassVar[dict[str, list[tuple[str, tuple[str, ...], str]]]] = {}

    def __init__(self, where: str) -> None:
        self.frees = self.lists.setdefault(where, [])

    def on_kv_freed(self, event: KVFreed) -> None:
        self.frees.append((event.job_id.own_id, tuple(event.request_ids), event.reason))


def events_of(engine: Engine, name: str, job_id: str = "a") -> list[dict[str, Any]]:
    jobs = engine.scheduler.watchers.log.as_dict()["jobs"]
    return [event for event in jobs.get(job_id, ()) if event["event"] == name]


def frees_of(engine: Engine, job_id: str = "a") -> list[tuple[list[str], str]]:
    """The terminal frees of a job in the record: its requests, and why."""
    found = events_of(engine, "kv_freed", job_id)
    return [(event["request_ids"], event["reason"]) for event in found]


def state(engine: Engine, job_id: str = "a") -> str:
    job = engine.retention.jobs.get(job_id)
    return "FREED" if job is None else kv_state(engine.scheduler, job)


# What may happen to a job's KV after its first turn, `r1`, has finished and is pinned


def last_step(engine: Engine, history: list[int]) -> None:
    engine.turn(history, job_id="a", is_last_step=1)


def release(engine: Engine, history: list[int]) -> None:
    engine.retention.release("a")


def release_while_a_turn_runs(engine: Engine, history: list[int]) -> None:
    engine.add(history, job_id="a")
    engine.step()
    engine.retention.release("a")
    assert frees_of(engine) == []
    engine.run()


def abort_the_running_turn(engine: Engine, history: list[int]) -> None:
    request_id = engine.add(history, job_id="a")
    engine.step()
    engine.abort(request_id)


def abort_the_waiting_turn(engine: Engine, history: list[int]) -> None:
    engine.abort(engine.add(history, job_id="a"))


def abort_the_first_turn(engine: Engine, history: list[int]) -> None:
    """Before it runs, of a job that holds nothing any more."""
    engine.end_pin("a")
    abort_the_waiting_turn(engine, history)


def lease_over(engine: Engine, history: list[int]) -> None:
    engine.wait(40.0)
    engine.turn(prompt_of(20, salt=9), job_id="other")


def too_many_jobs(engine: Engine, history: list[int]) -> None:
    for name in ("b", "c", "d", "e"):
        engine.turn(prompt_of(20, salt=ord(name)), job_id=name)


def swap_out_and_in(engine: Engine, history: list[int]) -> None:
    engine.end_pin("a")
    assert state(engine) == "OFFLOADED"
    evict(engine)
    before = engine.num_blocks_loaded
    engine.turn(history, job_id="a")
    assert engine.num_blocks_loaded > before


def evict(engine: Engine) -> None:
    """Have the device's prefix cache forget what nobody holds; the tier keeps it."""
    assert engine.pool.reset_prefix_cache()


def preempt(engine: Engine, history: list[int]) -> None:
    engine.add(history, job_id="a", max_tokens=200)
    engine.add(prompt_of(60, salt=5), job_id="a", max_tokens=250)
    engine.run(max_steps=2000)
    assert events_of(engine, "preempted")


def pressure(engine: Engine, history: list[int]) -> None:
    engine.turn(prompt_of(330, salt=5))
    assert engine.pin_ends == {"pressure": 1}


def a_tail_taken_under_pressure(engine: Engine, history: list[int]) -> None:
    engine.turn(prompt_of(330, salt=5))
    assert events_of(engine, "trimmed")
    assert state(engine) == "PINNED"


def ttl_over(engine: Engine, history: list[int]) -> None:
    engine.wait(3.0)
    assert engine.pin_ends == {"expired": 1}


def rollback(engine: Engine, history: list[int]) -> None:
    """The agent cuts its history back and goes on from there: the tail of the KV is given up."""
    engine.turn(history[:40] + prompt_of(20, salt=7), job_id="a")
    assert engine.retention.jobs.get("a").num_diverged == 1


def reset(engine: Engine, history: list[int]) -> None:
    assert engine.scheduler.reset_prefix_cache()


def abort_one_of_two_turns(engine: Engine, history: list[int]) -> None:
    engine.add(history, job_id="a")
    engine.abort(engine.add(history, job_id="a"))
    engine.run()


Happening = Callable[[Engine, list[int]], None]
TERMINAL: tuple[tuple[Happening, list[str], str], ...] = (
    (last_step, ["r1", "r2"], "last_step"),
    (release, ["r1"], "released"),
    (release_while_a_turn_runs, ["r1", "r2"], "released"),
    (abort_the_first_turn, ["r1", "r2"], "aborted"),
    (lease_over, ["r1"], "lease"),
    (too_many_jobs, ["r1"], "lease"),
)
"""What is terminal: the requests whose KV is gone, and the reason."""
DEFERRED: tuple[Happening, ...] = (
    *(preempt, pressure, a_tail_taken_under_pressure, ttl_over, rollback, reset),
    *(abort_one_of_two_turns, abort_the_running_turn, abort_the_waiting_turn, swap_out_and_in),
)
"""What gives blocks up, or moves them, while the job goes on: its end announces them."""


def named(happening: Any) -> str | None:
    return happening.__name__ if callable(happening) else None


@pytest.fixture
def heard() -> list[tuple[str, tuple[str, ...], str]]:
    Heard.lists.clear()
    return Heard.lists.setdefault("here", [])


def engine_with_a_pinned_job(*, has_tier: bool = False, **options: Any) -> tuple[Engine, list[int]]:
    engine = Engine(
        num_blocks=24,
        infer_jobs=False,
        job_lease_s=30.0,
        max_jobs=3,
        offload_bytes=100 * BLOCK_BYTES if has_tier else 0,
        watchers=HERE,
        **options,
    )
    history = engine.turn(prompt_of(90), job_id="a")
    assert state(engine) == "PINNED"
    return engine, history


@pytest.mark.parametrize("has_tier", [False, True], ids=["no tier", "tier"])
@pytest.mark.parametrize(("happening", "request_ids", "reason"), TERMINAL, ids=named)
def test_a_terminal_end_frees_once(
    happening: Happening,
    request_ids: list[str],
    reason: str,
    has_tier: bool,
    heard: list[Any],
) -> None:
    """Each end of a job calls the listener once, with all requests since the last free."""
    engine, history = engine_with_a_pinned_job(has_tier=has_tier)
    happening(engine, history)
    assert frees_of(engine) == [(request_ids, reason)]
    engine.wait(100.0)
    engine.retention.forget_idle_jobs()
    assert frees_of(engine) == [(request_ids, reason)]
    engine.scheduler.shutdown()
    assert [free for free in heard if free[0] == "a"] == [("a", tuple(request_ids), reason)]


@pytest.mark.parametrize("happening", DEFERRED, ids=named)
def test_what_is_not_terminal_waits_for_the_end_of_the_job(
    happening: Happening, heard: list[Any]
) -> None:
    """Swaps free nothing; blocks given up while the job goes on are announced with its end."""
    options = TAILS if happening is a_tail_taken_under_pressure else {}
    has_tier = happening is swap_out_and_in
    engine, history = engine_with_a_pinned_job(has_tier=has_tier, **options)
    happening(engine, history)
    assert frees_of(engine) == []
    num_requests = len(events_of(engine, "arrival"))
    engine.retention.release("a")
    expected = [f"r{number}" for number in range(1, num_requests + 1)]
    assert frees_of(engine) == [(expected, "released")]
    engine.scheduler.shutdown()
    assert heard == [("a", tuple(expected), "released")]


def test_a_job_that_goes_on_after_an_abort_ends_a_second_time() -> None:
    """The retry of an aborted turn begins a new life, whose end names the retry alone."""
    engine, history = engine_with_a_pinned_job()
    abort_the_first_turn(engine, history)
    assert state(engine) == "FREED"
    engine.turn(history, job_id="a", is_last_step=1)
    assert frees_of(engine) == [(["r1", "r2"], "aborted"), (["r3"], "last_step")]


def test_a_job_with_a_tier_has_each_state() -> None:
    """A job is pinned, swapped out and in, runs, and ends; what the tier has lost is not called
    recoverable."""
    engine, history = engine_with_a_pinned_job(has_tier=True)
    engine.end_pin("a")
    seen = [state(engine)]
    evict(engine)
    engine.add(history + prompt_of(60, salt=4), job_id="a", max_tokens=4)
    seen.append(state(engine))
    engine.step()
    seen.append(state(engine))
    engine.run()
    seen.append(state(engine))
    engine.end_pin("a")
    engine.scheduler.connector.connector_scheduler.manager.reset_cache()
    seen.append(state(engine))
    last_step(engine, history)
    expected = ["OFFLOADED", "OFFLOADED", "ACTIVE", "PINNED", "ALLOCATED", "FREED"]
    assert [*seen, state(engine)] == expected


def test_an_inferred_job_names_the_request_that_opened_it() -> None:
    """The request before the one by which the job was found is freed with it."""
    engine = Engine(num_blocks=64, cold_start_samples=2, watchers=HERE)
    for salt in (0, 1):
        prompt = prompt_of(200, salt=salt)
        request_id = engine.add(prompt, max_tokens=30, reply="```bash\nls\n```")
        request = engine.scheduler.requests[request_id]
        engine.run()
        engine.turn([*request.all_token_ids, *prompt_of(20, salt=9)], max_tokens=3)
    engine.wait(10_000.0)
    engine.retention.forget_idle_jobs()
    jobs = engine.scheduler.watchers.log.as_dict()["jobs"]
    freed = [
        event["request_ids"] for job_id in jobs for event in events_of(engine, "kv_freed", job_id)
    ]
    assert freed == [["r1", "r2"], ["r3", "r4"]]


def test_a_free_names_a_bounded_number_of_requests() -> None:
    """A job of very many requests costs bounded memory: its end names the last of them."""
    engine = Engine(num_blocks=64, infer_jobs=False, watchers=HERE)
    for number in range(MAX_REQUESTS + 5):
        engine.add(prompt_of(4), job_id="a", request_id=f"n{number}", max_tokens=1)
    engine.run(max_steps=5000)
    engine.retention.release("a")
    ((request_ids, _),) = frees_of(engine)
    assert len(request_ids) == MAX_REQUESTS
    assert request_ids[-1] == f"n{MAX_REQUESTS + 4}"


def test_everybody_who_is_connected_hears_each_free(tmp_path: Path) -> None:
    """Two readers hear frees once and in order, by a socket that is for its owner alone; one that
    is gone costs the other nothing, and the socket leaves with the server."""
    path = tmp_path / "kv.sock"
    engine = Engine(num_blocks=64, kv_socket=str(path))
    assert path.stat().st_mode & 0o777 == 0o600

    def hear(most: int) -> Future[list[KVFree]]:
        heard = pool.submit(lambda: [*islice(follow(str(path), retry_s=None), most)])
        time.sleep(0.1)  # until it is in the backlog
        return heard

    with ThreadPoolExecutor() as pool:
        gone = hear(1)
        engine.turn(prompt_of(20), job_id="before", is_last_step=1)
        assert [free.number for free in gone.result(10)] == [1]
        one, all_of_them = hear(1), hear(5)
        for number in range(4):
            engine.turn(prompt_of(20, salt=number), job_id=f"j{number}", is_last_step=1)
        engine.scheduler.shutdown()
        assert [free.job_id for free in one.result(10)] == ["j0"]
        expected = [KVFree(n + 2, f"j{n}", (f"r{n + 2}",), "last_step") for n in range(4)]
        assert all_of_them.result(10) == expected
    assert not path.exists()


def test_a_reader_that_takes_nothing_delays_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is disconnected once its buffer is full; frees that wait are bounded, and the engine's
    thread never waits for any of it."""
    monkeypatch.setattr(kv_frees, "SEND_TIMEOUT_S", 0.05)
    monkeypatch.setattr(kv_frees, "MAX_WAITING_LINES", 100)
    path = str(tmp_path / "kv.sock")
    server = kv_frees.KVSocket(path)
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.connect(path)
        event = KVFreed(JobKey("", "a"), 1, "released", ["r" * 500] * 1000)
        began_s = time.monotonic()
        for _ in range(500):
            server.on_kv_freed(event)
        assert time.monotonic() - began_s < 5.0
        assert server._lines.qsize() <= 100
        server.close()
        assert server._readers == []


@pytest.mark.parametrize("why", ["another server has", "cannot listen"])
def test_a_socket_that_cannot_be_made_stops_the_server(tmp_path: Path, why: str) -> None:
    """The message names the setting; the socket of a server that has died is taken over."""
    path = str(tmp_path / ("kv.sock" if why.startswith("another") else "no/kv.sock"))
    with socket.socket(socket.AF_UNIX) as other:
        if why.startswith("another"):
            other.bind(path)
            other.listen()
        with pytest.raises(SettingsError, match=f"'kv_socket'.*{why}"):
            Engine(kv_socket=path)
    if why.startswith("another"):
        Engine(kv_socket=path).scheduler.shutdown()


@pytest.mark.parametrize(
    ("request_id", "expected"),
    [
        ("chatcmpl-b1-0f9e8d7c", "chatcmpl-b1"),
        ("chatcmpl-req-1234567890ab-0f9e8d7c", "chatcmpl-req-1234567890ab"),
        ("3_chatcmpl-b1-0f9e8d7c", "chatcmpl-b1"),
        ("cmpl-req-17-2-0f9e8d7c", "cmpl-req-17"),
        ("resp_b1-0f9e8d7c", "resp_b1"),
        ("r12", "r12"),
    ],
)
def test_requests_go_by_the_ids_of_their_replies(request_id: str, expected: str) -> None:
    """What vLLM adds to a request's id inside the engine is taken off again."""
    assert reply_id(request_id) == expected


class Lives(Agents):
    """Random agents whose KV states and frees are compared with what the engine holds."""

    def frees(self) -> list[tuple[str, dict[str, Any]]]:
        jobs = self.engine.scheduler.watchers.log.as_dict()["jobs"]
        found = ((job_id, event) for job_id in jobs for event in jobs[job_id])
        frees = [free for free in found if free[1]["event"] == "kv_freed"]
        return sorted(frees, key=lambda free: int(free[1]["number"]))

    def freed_requests(self) -> list[str]:
        return [each for _, free in self.frees() for each in free["request_ids"]]

    def check(self) -> None:
        super().check()
        retention, freed = self.engine.retention, self.freed_requests()
        assert len(freed) == len(set(freed))
        assert not set(freed) & set(self.engine.scheduler.requests)
        (manager,) = self.engine.scheduler.kv_cache_manager.coordinator.single_type_managers
        for job in retention.jobs:
            has_blocks = any(manager.req_to_blocks.get(each) for each in job.live)
            is_pinned = retention.pins.get(job.job_id) is not None
            state = kv_state(self.engine.scheduler, job)
            assert (state == "ACTIVE") == has_blocks
            assert (state == "PINNED") == (is_pinned and not has_blocks)
            assert (state == "FREED") <= (not job.live)

    def check_empty(self) -> None:
        super().check_empty()
        self.engine.retention.forget_idle_jobs()
        assert not len(self.engine.retention.jobs)
        frees, freed = self.frees(), self.freed_requests()
        assert [free["number"] for _, free in frees] == list(range(1, len(frees) + 1))
        assert len(freed) == len(set(freed))
        assert self.of_named_jobs <= set(freed)
        self.engine.scheduler.shutdown()
        assert Heard.lists.pop("here") == [
            (job_id, tuple(free["request_ids"]), free["reason"]) for job_id, free in frees
        ]


@pytest.mark.parametrize(
    ("is_async", "has_tier"), [(False, False), (True, True)], ids=["sync", "async, tier"]
)
def test_nothing_leaks_or_sticks_and_each_request_is_freed_once(
    is_async: bool, has_tier: bool
) -> None:
    """Under any events no block is lost and all requests and pins end; no request is freed while it
    lives, and each of a named job once in the end."""
    given = {"is_async": is_async, "watchers": HERE}
    given |= {"offload_bytes": 30 * BLOCK_BYTES} if has_tier else {}
    for seed in range(NUM_ENGINES):
        Heard.lists.clear()
        lives = Lives(f"{seed}", **given)
        lives.play(NUM_EVENTS)
        lives.finish()
