"""Listeners get each free once and in order, and nothing that they do reaches the engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentkv.errors import InputError, SettingsError
from agentkv.guard import MAX_FAULTS, Fault
from agentkv.integrations.vllm.api import engine_side
from agentkv.integrations.vllm.watch import listeners
from agentkv.integrations.vllm.watch.listeners import Outbox
from agentkv.listeners import KVFree, KVListener, WebhookListener, make_listener
from agentkv.policies.names import read_settings
from tests.http_front import Answer, HttpFront
from tests.integrations.vllm.harness import Engine
from tests.stepped_engine import prompt_of

LONG_S = 30.0
"""Nothing takes that long: for waits that must not end the test."""


def frees(num: int) -> list[KVFree]:
    return [KVFree(number, f"job-{number}", (f"r{number}",), "released") for number in range(num)]


class Keeps(KVListener):
    """Keeps the job ids that it hears; raises for those in `bad`, waits while `gate` is closed."""

    def __init__(self, *, bad: Sequence[str] = ()) -> None:
        self.heard: list[str] = []
        self.bad = bad
        self.gate = threading.Event()
        self.gate.set()

    def on_kv_blocks_freed(self, job_id: str, request_ids: Sequence[str], reason: str) -> None:
        assert self.gate.wait(LONG_S)
        self.heard.append(job_id)
        if job_id in self.bad:
            raise RuntimeError("no")


class Breaks(KVListener):
    """Cannot be made."""

    def __init__(self) -> None:
        raise OSError("no such index")


def deliver(listener: KVListener, given: Sequence[KVFree], **options: Any) -> list[Fault | int]:
    """Hand over all of it, and return the faults and drops."""
    news: list[Fault | int] = []
    outbox = Outbox("test", listener, news.append, **options)
    for free in given:
        outbox.put(free)
    outbox.close()
    outbox.join(LONG_S)
    return news


def test_frees_are_heard_once_and_in_order() -> None:
    """A listener hears every free, the first one first."""
    listener = Keeps()
    assert deliver(listener, frees(500)) == []
    assert listener.heard == [free.job_id for free in frees(500)]


def test_a_listener_that_raises_hears_the_next_free() -> None:
    """An exception costs the free it was raised for, once, and is counted."""
    listener = Keeps(bad=["job-1", "job-3"])
    news = deliver(listener, frees(5))
    assert listener.heard == [free.job_id for free in frees(5)]
    assert [type(each) for each in news] == [Fault, Fault]


def test_a_listener_that_always_raises_is_switched_off() -> None:
    """After many faults it is not called any more, and what it misses is counted."""
    listener = Keeps(bad=[free.job_id for free in frees(100)])
    news = deliver(listener, frees(100))
    assert len(listener.heard) == MAX_FAULTS
    assert sum(each for each in news if isinstance(each, int)) == 100 - MAX_FAULTS


def test_a_listener_that_blocks_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frees wait for it up to a bound; those beyond are dropped at once and counted."""
    monkeypatch.setattr(listeners, "MAX_WAITING_FREES", 10)
    listener = Keeps()
    listener.gate.clear()
    news: list[Fault | int] = []
    outbox = Outbox("test", listener, news.append)
    began_s = time.monotonic()
    for free in frees(1000):
        outbox.put(free)
    assert time.monotonic() - began_s < LONG_S / 3
    assert sum(each for each in news if isinstance(each, int)) in (989, 990)
    listener.gate.set()
    outbox.close()
    outbox.join(LONG_S)
    assert listener.heard == sorted(listener.heard, key=lambda each: int(each[4:]))
    assert len(listener.heard) in (10, 11)


Post = tuple[str, Any]


@contextmanager
def receiver(answer: Callable[[int], int]) -> Iterator[tuple[str, list[Post]]]:
    """An HTTP server that answers its n-th request with the status `answer(n)`."""
    posts: list[Post] = []

    def take(method: str, path: str, headers: Mapping[str, str], body: Any) -> Answer:
        posts.append((path, body))
        return Answer(answer(len(posts)), {})

    front = HttpFront(take)
    front.start()
    try:
        yield front.url, posts
    finally:
        front.stop()


def test_a_webhook_gets_batches_in_order() -> None:
    """It gets every free once, several in one request, with all fields and its own path."""
    with receiver(lambda number: 204) as (url, posts):
        assert deliver(WebhookListener(f"{url}/kv?key=1"), frees(250)) == []
    assert {path for path, _ in posts} == {"/kv?key=1"}
    assert len(posts) < 30
    got = [free for _, body in posts for free in body["frees"]]
    assert [free["number"] for free in got] == list(range(250))
    expected = {"number": 7, "job_id": "job-7", "request_ids": ["r7"], "reason": "released"}
    expected["client"] = ""
    assert got[7] == expected


def test_a_webhook_that_fails_at_first_gets_the_same_batch_again() -> None:
    """An error or a redirect is no delivery; the same frees come again, before later ones."""
    statuses = {1: 500, 2: 302}
    with receiver(lambda number: statuses.get(number, 200)) as (url, posts):
        listener = WebhookListener(url)
        listener.max_batch = 2
        news: list[Fault | int] = []
        outbox = Outbox("test", listener, news.append, retries_s=(0.0, 0.0))
        for free in frees(4):
            outbox.put(free)
        while len(posts) < 4:
            time.sleep(0.001)
        outbox.close()
        outbox.join(LONG_S)
    numbers = [[free["number"] for free in body["frees"]] for _, body in posts]
    assert numbers[0] == numbers[1] == numbers[2]
    assert [number for batch in numbers[2:] for number in batch] == [0, 1, 2, 3]
    assert news == []


def test_a_dead_webhook_costs_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody listens at the port: each free is counted as dropped, and one line says so."""
    with receiver(lambda number: 200) as (url, _):
        pass
    listener = WebhookListener(url)
    listener.max_batch = 10
    news = deliver(listener, frees(100), retries_s=(0.0, 0.0))
    assert sum(each for each in news if isinstance(each, int)) == 100
    assert len([each for each in caplog.records if each.name == listeners.logger.name]) == 1


def test_faults_and_drops_are_counted_in_the_engine() -> None:
    """The engine's statistics have them under names of their own, and the engine serves on."""
    bad = {f"{__name__}:Keeps": {"bad": ["a"]}, "webhook": {"url": "http://127.0.0.1:1"}}
    engine = Engine(num_blocks=32, listeners=bad)
    engine.turn(prompt_of(40), job_id="a", is_last_step=1)
    engine.turn(prompt_of(40), job_id="b")
    engine.scheduler.shutdown()
    stats = engine_side.stats(engine.scheduler)
    assert (stats["listener_faults_total"], stats["listener_drops_total"]) == (1, 1)


def test_without_a_listener_nothing_waits() -> None:
    """Nobody listens by default: no thread, nothing counted."""
    before = threading.active_count()
    engine = Engine(num_blocks=32)
    engine.turn(prompt_of(40), job_id="a", is_last_step=1)
    assert threading.active_count() == before
    stats = engine_side.stats(engine.scheduler)
    assert (stats["listener_faults_total"], stats["listener_drops_total"]) == (0, 0)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"no_such": {}}, "allowed are webhook, contextpilot"),
        ({"webhook": {}}, "missing a required argument: 'url'"),
        ({"webhook": {"url": "http://x", "adress": "x"}}, "adress"),
        ({"agentkv.listeners:KVFree": {}}, "not a subclass of agentkv.listeners.KVListener"),
        (["webhook"], "'listeners'"),
    ],
)
def test_settings_name_what_is_wrong_with_a_listener(named: Any, message: str) -> None:
    """A wrong name or option stops the server before the model loads."""
    with pytest.raises(SettingsError, match=message):
        read_settings({"listeners": named}, policy="continuum")


def test_an_installed_package_offers_a_listener(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entry point's name is as good as a shipped one."""
    metadata = tmp_path / "mine-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[agentkv.listeners]\nmine = {__name__}:Keeps\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert type(make_listener("mine", {"bad": ["x"]})) is Keeps


@pytest.mark.parametrize("url", ["ftp://host/x", "host:80", "", "http://", "http://me:you@host/"])
def test_a_webhook_needs_a_plain_http_url(url: str) -> None:
    """What cannot be posted to is refused with what would be allowed."""
    with pytest.raises(InputError, match="allowed are http://HOST/PATH"):
        make_listener("webhook", {"url": url})


def test_a_listener_that_cannot_be_made_stops_the_server() -> None:
    """Its error is the message, under the name of the setting."""
    with pytest.raises(SettingsError, match=r"setting 'listeners'.*no such index"):
        Engine(num_blocks=32, listeners={f"{__name__}:Breaks": {}})


def test_the_options_of_listeners_are_shown_to_nobody() -> None:
    """A webhook's path may be a secret: `/info` has the names alone."""
    engine = Engine(num_blocks=32, listeners={"webhook": {"url": "http://127.0.0.1:1/secret"}})
    assert engine_side.info(engine.scheduler)["settings"]["listeners"] == ["webhook"]
    assert "secret" not in str(engine_side.info(engine.scheduler))
    engine.scheduler.shutdown()
