"""Replies read in a thread of their own, while the engine goes on; what the predictor keeps."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentkv.commands.blocking import Awaited
from agentkv.integrations.vllm.retention.background import MAX_WAITING_TASKS, BackgroundWorker
from agentkv.integrations.vllm.retention.predictor import (
    MAX_REPLY_CHARS,
    MAX_TAKEN,
    DurationService,
    Reply,
    ToolCommand,
)
from agentkv.policies.settings import Settings
from tests.integrations.vllm.harness import Engine
from tests.stepped_engine import prompt_of

SLOW = "So:\n```bash\npip install torch\n```"
LIMIT_S = 60.0


@pytest.fixture
def attached() -> tuple[Engine, queue.SimpleQueue[Any]]:
    """An engine that reads replies in a thread, and what wakes it."""
    engine = Engine(policy="context_serve")
    return engine, engine.attach()


def woken(engine: Engine, wakes: queue.SimpleQueue[Any]) -> None:
    """The reply is read, and the idle engine looks at its scheduler."""
    engine.vocabulary.is_open.set()
    wakes.get(timeout=LIMIT_S)
    engine.wait(0.0)


def pins_total(engine: Engine) -> dict[str, int]:
    return dict(engine.totals.get("pins_total", {}))


def test_a_slow_reply_frees_as_soon_as_it_is_read(
    attached: tuple[Engine, queue.SimpleQueue[Any]],
) -> None:
    """Until then the turn is pinned; the thread wakes the idle engine, which then decides."""
    engine, wakes = attached
    engine.vocabulary.is_open.clear()
    engine.turn(prompt_of(100), reply=SLOW, job_id="a")
    assert engine.pinned == {"a": 6}
    woken(engine, wakes)
    assert engine.pinned == {}
    assert pins_total(engine) == {"slow": 1}


def test_an_undecided_pin_yields_to_pressure(
    attached: tuple[Engine, queue.SimpleQueue[Any]],
) -> None:
    """Like any other; what is read later finds nothing to decide."""
    engine, wakes = attached
    engine.vocabulary.is_open.clear()
    engine.turn(prompt_of(100), reply=SLOW, job_id="a")
    engine.turn(prompt_of(16 * 60, salt=3))
    assert engine.pin_ends == {"pressure": 1}
    woken(engine, wakes)
    assert engine.num_free == 63
    assert pins_total(engine) == {"none": 1}


def test_a_pin_whose_reply_is_never_read_expires(
    attached: tuple[Engine, queue.SimpleQueue[Any]],
) -> None:
    """It has Continuum's TTL meanwhile."""
    engine, _ = attached
    engine.vocabulary.is_open.clear()
    engine.turn(prompt_of(100), reply=SLOW, job_id="a")
    engine.wait(2.01)
    assert (engine.pinned, pins_total(engine)) == ({}, {"none": 1})
    engine.vocabulary.is_open.set()


STALE: dict[str, tuple[Callable[[Engine], object], dict[str, int]]] = {
    "next turn": (lambda engine: engine.turn(prompt_of(120), job_id="a"), {"a": 7}),
    "started": (lambda engine: engine.tool("a", "started"), {"a": 6}),
    "finished": (lambda engine: engine.tool("a", "finished"), {"a": 6}),
    "last step": (lambda engine: engine.turn(prompt_of(120), job_id="a", is_last_step=1), {}),
    "release": (lambda engine: engine.retention.release("a"), {}),
}


@pytest.mark.parametrize("event", STALE)
def test_a_stale_reply_is_dropped(
    event: str, attached: tuple[Engine, queue.SimpleQueue[Any]]
) -> None:
    """The next turn is here, the client has told, the job is over: the reading decides nothing."""
    engine, wakes = attached
    engine.vocabulary.is_open.clear()
    engine.turn(prompt_of(100), reply=SLOW, job_id="a")
    happen, pinned = STALE[event]
    happen(engine)
    engine.vocabulary.is_open.set()
    wakes.get(timeout=LIMIT_S)
    engine.scheduler.has_requests()
    assert engine.pinned == pinned
    assert not engine.retention.decisions.awaiting or event == "next turn"
    assert "slow" not in pins_total(engine)


def test_side_work_is_done_in_order_in_one_other_thread() -> None:
    """Once started; before, in the caller."""
    side_work, done = BackgroundWorker(), queue.SimpleQueue[int]()
    threads: list[str] = []

    def task() -> None:
        threads.append(threading.current_thread().name)
        done.put(len(threads))

    side_work.do(task)
    side_work.start()
    for _ in range(3):
        side_work.do(task)
    assert [done.get(timeout=LIMIT_S) for _ in range(4)] == [1, 2, 3, 4]
    assert threads == [threading.current_thread().name, *["agentkv-background"] * 3]


class HeldWorker(BackgroundWorker):
    """A worker whose thread waits before it does anything else."""

    def __init__(self) -> None:
        self._num_done = threading.Semaphore(0)
        self._may_go_on, is_held = threading.Event(), threading.Event()
        super().__init__(self._do)
        self.start()
        self.do(lambda: is_held.set() or self._may_go_on.wait(LIMIT_S))
        assert is_held.wait(LIMIT_S)

    def _do(self, task: Callable[[], None]) -> None:
        task()
        self._num_done.release()

    def go_on(self, num_tasks: int = 0) -> None:
        """Let it do that many tasks."""
        self._may_go_on.set()
        for _ in range(1 + num_tasks):
            assert self._num_done.acquire(timeout=LIMIT_S)


@pytest.fixture
def worker() -> HeldWorker:
    return HeldWorker()


def test_clients_take_turns_however_many_tasks_one_has(worker: HeldWorker) -> None:
    """A client's task waits for one of each other client, and for its own that came before it."""
    done: list[str] = []
    for number in range(500):
        worker.do(partial(done.append, f"mallory {number}"), "mallory")
    for client in ("alice", "bob"):
        for number in range(3):
            worker.do(partial(done.append, f"{client} {number}"), client)
    worker.go_on(506)
    turns = [f"{client} {number}" for number in range(3) for client in ("mallory", "alice", "bob")]
    assert done == turns + [f"mallory {number}" for number in range(3, 500)]


def test_of_too_many_tasks_the_client_with_most_loses_its_newest(worker: HeldWorker) -> None:
    """The others find room, each as long as it has fewer tasks than that."""
    done: Counter[str] = Counter()
    dropped: list[str] = []

    def give(client: str, number: int) -> None:
        name = f"{client} {number}"
        worker.do(lambda: done.update([client]), client, or_else=lambda: dropped.append(name))

    for number in range(MAX_WAITING_TASKS + 9):
        give("mallory", number)
    too_many = range(MAX_WAITING_TASKS, MAX_WAITING_TASKS + 9)
    assert dropped == [f"mallory {number}" for number in too_many]
    dropped.clear()
    for number in range(MAX_WAITING_TASKS):
        give("alice", number)
    num_each = MAX_WAITING_TASKS // 2
    assert [name.split()[0] for name in dropped] == ["mallory"] * num_each + ["alice"] * num_each
    for number in range(MAX_WAITING_TASKS):
        give(f"bot-{number}", 0)
    worker.go_on(MAX_WAITING_TASKS)
    assert done.total() == MAX_WAITING_TASKS
    assert set(done.values()) == {1}
    assert {"mallory", "alice", "bot-0"} <= set(done)


def test_questions_that_pile_up_are_refused(worker: HeldWorker) -> None:
    """A reply that is not read counts as one without a call; nothing grows without bound."""
    for _ in range(MAX_WAITING_TASKS):
        worker.do(lambda: None, "alice")
    service = DurationService(Settings(policy="context_serve"), worker, time.monotonic)
    service.ask("r", "reply", lambda: ToolCommand.of([("ls", Awaited("ls"))]), "alice")
    (answer,) = service.take()
    assert (answer.key, answer.command) == ("r", None)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("```bash\ncd /x\n```\nthen\n```bash\npytest -q\n```", "cd /x\npytest -q"),
        ("```bash\n\n```", None),
        ("<think>```bash\nls\n```", None),
        ("```bash\nls", None),
    ],
)
def test_the_commands_of_a_reply_go_one_a_line(text: str, command: str | None) -> None:
    """A thought is no call, nor is a call cut short."""
    found = Reply([1], lambda ids: text).tool_command()
    assert (found and found.command) == command


def test_only_the_end_of_a_long_reply_is_parsed() -> None:
    """However many characters its tokens have."""
    text = Reply([1], lambda ids: "x" * 10 * MAX_REPLY_CHARS + "end").text()
    assert len(text) == MAX_REPLY_CHARS
    assert text.endswith("end")


def test_what_was_learned_survives_a_restart(tmp_path: Path) -> None:
    """Saved at most once a `predictor_save_s`, loaded at the next start."""
    path = tmp_path / "made" / "predictor.json"
    settings = {
        "policy": "context_serve",
        "predictor_state": str(path),
        "predictor_save_s": 10.0,
    }
    engine = Engine(**settings)
    engine.turn(prompt_of(100), job_id="a")
    for _ in range(10):
        engine.tool("a", "finished", "frobnicate --all", duration_s=60.0)
    engine.wait(9.0)
    assert not path.exists()
    engine.wait(2.0)
    assert path.exists()
    again = Engine(**settings)
    assert again.retention.predictor.predictor.num_observed == 10
    again.turn(prompt_of(100), reply="```bash\nfrobnicate --all\n```", job_id="a")
    assert again.pinned == {}


def test_an_idle_engine_is_woken_to_save(tmp_path: Path) -> None:
    """The last things learned before it gets quiet are kept too."""
    path = tmp_path / "predictor.json"
    engine = Engine(policy="context_serve", predictor_state=str(path), predictor_save_s=10.0)
    engine.turn(prompt_of(100), job_id="a")
    engine.tool("a", "started")
    engine.tool("a", "finished", duration_s=0.1)
    assert engine.retention.next_due_s == pytest.approx(1005.0, abs=0.1)
    engine.wait(6.0)
    assert engine.retention.next_due_s == pytest.approx(1010.0)


def service_at(path: Path) -> DurationService:
    """Predicts at once, and saves with every look at the clock."""
    settings = Settings(predictor="default", predictor_state=str(path), predictor_save_s=1.0)
    return DurationService(settings, BackgroundWorker(), iter(range(0, 1000, 2)).__next__)


@pytest.mark.parametrize("text", ["{", '{"format": 1, "kind": "context_serve", "state": {}}'])
def test_a_state_that_cannot_be_used_is_kept_before_it_is_overwritten(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A corrupt state, or one of another predictor, is a warning and a fresh start, and stays next
    to the new one."""
    path = tmp_path / "p.json"
    path.write_text(text)
    service = service_at(path)
    assert service.predictor is not None
    assert service.predictor.num_observed == 0
    assert [str(path) in record.getMessage() for record in caplog.records].count(True) == 1
    assert path.read_text() == text
    for _ in range(2):
        service.observe(Awaited("ls"), 0.1)
        service.save_if_due()
    assert '"default"' in path.read_text()
    kept = tmp_path / "p.json.kept"
    assert kept.read_text() == text
    assert sorted(tmp_path.iterdir()) == [path, kept]


def test_a_state_that_cannot_be_saved_is_one_error_until_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten saves that fail alike log one error, and a later one succeeds."""
    folder = tmp_path / "file"
    folder.write_text("")  # not even root can write below it
    path = folder / "p.json"
    service = service_at(path)
    for _ in range(10):
        service.observe(Awaited("ls"), 0.1)
        service.save_if_due()
    assert caplog.text.count("is not kept") == 1
    folder.unlink()
    service.observe(Awaited("ls"), 0.1)
    service.save_if_due()
    assert path.is_file()


def test_answers_come_a_few_at_a_time() -> None:
    """The main thread is woken for the rest, so that none of its steps has them all."""
    wakes: list[None] = []
    worker = BackgroundWorker(wake=lambda: wakes.append(None))
    service = DurationService(Settings(), worker, time.monotonic)
    for number in range(2 * MAX_TAKEN):
        service.ask(number, "client", lambda: ToolCommand.of([("ls", Awaited("ls"))]))
    wakes.clear()
    assert [answer.key for answer in service.take()] == list(range(MAX_TAKEN))
    assert wakes == [None]
    assert [answer.key for answer in service.take()] == list(range(MAX_TAKEN, 2 * MAX_TAKEN))
    assert wakes == [None]


def test_a_flood_of_signals_does_not_delay_answers(worker: HeldWorker) -> None:
    """What nobody awaits any more is not predicted, and other clients do not wait for it."""
    service = DurationService(Settings(), worker, time.monotonic)

    def read() -> ToolCommand | None:
        return ToolCommand.of([("make", Awaited("make"))])

    for number in range(300):
        service.observe(Awaited("make"), 1.0, "mallory")
        service.ask(number, "client", read, "mallory", is_awaited=lambda key: key == 299)
    service.ask("bob's", "client", read, "bob")
    worker.go_on(601)
    answers = [answer for _ in range(301) for answer in service.take()]
    assert [answer.key for answer in answers if answer.command is not None] == ["bob's", 299]


def test_each_engine_has_a_file_of_its_own() -> None:
    """Data-parallel engines would overwrite each other's."""
    settings = Settings(policy="context_serve", predictor_state="out/predictor.json")
    paths = [settings.of_engine(number).predictor_state for number in range(3)]
    assert paths == ["out/predictor.json", "out/predictor-1.json", "out/predictor-2.json"]
