"""Watchers of a user's own: which events they get, and that they can cost the engine nothing."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

import pytest

from agentkv.errors import InputError, SettingsError
from agentkv.events import Finished, JobEvent, Unpinned
from agentkv.guard import MAX_FAULTS
from agentkv.integrations.vllm.api import engine_side
from agentkv.watchers import EventStream, Watcher
from tests.integrations.vllm.harness import Engine
from tests.stepped_engine import prompt_of


class Notes(Watcher):
    """Keeps the names of its events."""

    told: ClassVar[list[str]] = []

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def on_finished(self, event: Finished) -> None:
        self.told.append(f"{self._prefix} finished {event.job_id.own_id}")

    def on_event(self, event: JobEvent) -> None:
        self.told.append(event.name)

    def close(self) -> None:
        self.told.append("close")


class Fails(Watcher):
    """Raises what ends a process, whenever a pin ends."""

    def on_unpinned(self, event: Unpinned) -> None:
        raise SystemExit("no")


def test_a_watcher_is_told_what_happens_in_order() -> None:
    """A method for one event takes it, `on_event` all others that are logged, `close` the end."""
    Notes.told.clear()
    engine = Engine(watchers={f"{__name__}:Notes": {"prefix": "has"}})
    engine.turn(prompt_of(100), job_id="a")
    engine.scheduler.shutdown()
    expected = ["arrival", "waiting_to_running", "has finished a", "pinned", "close"]
    assert Notes.told == expected


def test_a_watcher_that_fails_is_switched_off(caplog: pytest.LogCaptureFixture) -> None:
    """Its exceptions, of any kind, cost it events; the log names it, and the engine goes on."""
    caplog.set_level(logging.ERROR)
    engine = Engine(watchers={f"{__name__}:Fails": {}}, num_blocks=200)
    for number in range(MAX_FAULTS + 5):
        engine.turn(prompt_of(40, salt=number), job_id=f"j{number}")
        engine.end_pin(f"j{number}")
    assert engine.pin_ends == {"pressure": MAX_FAULTS + 5}
    first, last = (record.message for record in caplog.records if "watcher" in record.message)
    assert "Fails" in first
    assert "on_unpinned" in first
    assert "switched off" in last


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("no.such:Class", {}, "no.such"),
        (f"{__name__}:Notes", {}, "prefix"),
        (f"{__name__}:Engine", {}, "Watcher"),
    ],
)
def test_a_watcher_that_cannot_be_made_is_refused(
    name: str, options: dict[str, Any], problem: str
) -> None:
    """The server does not start, and says which watcher and why."""
    with pytest.raises(SettingsError, match=problem):
        Engine(watchers={name: options})


def test_a_method_for_no_event_is_refused() -> None:
    """A typing error in a method's name is found at the start, not by silence."""

    class Misspelt(Watcher):
        def on_finish(self, event: object) -> None: ...

    stream = EventStream(lambda watcher, fault: None)
    with pytest.raises(InputError, match=r"on_finish; there are .*on_finished"):
        stream.add(Misspelt())


def test_without_a_watcher_no_event_is_made() -> None:
    """An event that nobody wants costs nothing: its class is not even called."""
    made: list[object] = []
    stream = EventStream(lambda watcher, fault: None)
    stream.emit(lambda *fields: made.append(fields) or Finished, 1)  # type: ignore[arg-type]
    assert made == []


def test_the_log_is_off_without_readers() -> None:
    """With `record_events` 0 and no file no event is kept, and routes go on answering."""
    engine = Engine(record_events=0)
    engine.turn(prompt_of(100), job_id="a")
    assert engine.scheduler.watchers.log.as_dict() == {"jobs": {}}
    assert engine_side.call(engine.scheduler, "job", ["a"])["last_turns"] == []
