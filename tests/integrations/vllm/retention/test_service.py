"""Which client is next when not all are served at once, on vLLM's real scheduler."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv.integrations.vllm.api import engine_side
from agentkv.integrations.vllm.retention.shares import MAX_IDLE_COUNTERS, ServiceCounters
from agentkv.protocol import CLIENT_FIELD
from tests.integrations.vllm.harness import Engine, of
from tests.stepped_engine import prompt_of

HEAVY, LIGHT = "a" * 16, "b" * 16


def flood(engine: Engine, client: str, num_requests: int, **fields: Any) -> list[str]:
    """Requests of 32 tokens that are answered in 4, without a job unless `fields` name one."""
    salt = 1000 * ord(client[0])
    return [
        engine.add(
            prompt_of(32, salt=salt + number),
            request_id=f"{client[0]}{number}",
            **{CLIENT_FIELD: client, **fields},
        )
        for number in range(num_requests)
    ]


def served(engine: Engine, num_requests: int) -> str:
    """The clients, by their first letter, in the order in which their requests had blocks."""
    order: list[str] = []
    for _ in range(1000):
        engine.step()
        order += [name for name in engine.running() if name not in order]
        if len(order) >= num_requests:
            break
    return "".join(name[0] for name in order)[:num_requests]


@pytest.mark.parametrize("policy", ["agentkv", "continuum", "context_serve"])
@pytest.mark.parametrize("tags", [{}, {"job_id": "j"}], ids=["no job", "a job"])
def test_clients_take_turns_whatever_their_load(policy: str, tags: dict[str, Any]) -> None:
    """A client that finds a full queue waits for one request, and then gets every other one."""
    engine = Engine(policy=policy, max_num_seqs=1)
    flood(engine, HEAVY, 20)
    assert served(engine, 1) == "a"
    flood(engine, LIGHT, 4, **tags)
    assert served(engine, 10) == "abababab" + "aa"


def test_while_all_are_served_at_once_nothing_changes() -> None:
    """In a roomy engine requests of several clients run in the order in which they came."""
    engine = Engine()
    first = [
        engine.add(prompt_of(num_tokens, salt=99), max_tokens=100, **of(client))
        for client, num_tokens in ((LIGHT, 32), (HEAVY, 320))
    ]
    engine.step()
    service = engine.retention.admission.shares.service
    assert service[HEAVY] > service[LIGHT]
    names = [
        engine.add(prompt_of(32, salt=number), **of(client))
        for number, client in enumerate([HEAVY, HEAVY, LIGHT, HEAVY, LIGHT])
    ]
    engine.step()
    assert engine.running() == [*first, *names]


def test_what_was_in_the_cache_is_free() -> None:
    """A client pays for the tokens of a prompt that are computed, and twice for those generated."""
    engine = Engine()
    prompt = prompt_of(160, salt=1)
    service = engine.retention.admission.shares.service
    engine.turn(prompt, **of(HEAVY))
    assert service[HEAVY] == 160 + 2 * 4
    engine.turn([*prompt, *prompt_of(16, salt=2)], **of(HEAVY))
    assert service[HEAVY] == 168 + 16 + 2 * 4


def test_what_a_preempted_request_computes_again_is_free() -> None:
    """Losing its blocks to others costs a client nothing."""
    engine = Engine(num_blocks=13)
    for client in (HEAVY, LIGHT):
        engine.add(prompt_of(48, salt=ord(client[0])), max_tokens=80, **of(client))
    engine.run()
    retention = engine.retention
    assert engine.totals["preemptions_total"] > 0
    service = retention.admission.shares.service
    assert service[HEAVY] == service[LIGHT] == 48 + 2 * 80


def test_being_away_saves_up_nothing() -> None:
    """A client that waits again starts where the least served of those that wait is."""
    service = ServiceCounters()
    service.waits("a")
    service.add("a", 500.0)
    service.waits("b")
    assert service["b"] == 500.0
    service.add("b", 300.0)
    service.left("b")
    service.add("a", 100.0)
    service.waits("b")
    assert service["b"] == 800.0  # and keeps what it has had beyond that
    service.left("b")
    service.left("a")
    service.waits("c")
    assert service["c"] == 600.0


def test_a_trickle_saves_up_nothing() -> None:
    """A client that always has a small request in the engine, served at once, pays for the past
    when it first waits, and newcomers do not inherit its place."""
    engine = Engine(max_num_seqs=2)
    engine.add(prompt_of(32, salt=1), max_tokens=2000, **of(LIGHT))
    engine.step()
    for salt in range(5):
        engine.add(prompt_of(320, salt=2 + salt), **of(HEAVY))
        engine.steps(8)
    service = engine.retention.admission.shares.service
    had = service[HEAVY]
    flood(engine, HEAVY, 4)
    engine.step()
    flood(engine, LIGHT, 1)
    flood(engine, "c" * 16, 1)
    assert min(service[LIGHT], service["c" * 16]) >= had > 5 * 320


def test_counters_of_clients_that_are_gone_are_bounded() -> None:
    """However many clients come and go, the engine remembers about as many."""
    service = ServiceCounters()
    for number in range(10 * MAX_IDLE_COUNTERS):
        service.waits(f"{number}")
        service.add(f"{number}", 1.0)
        service.left(f"{number}")
    assert len(service.view) <= 2 * MAX_IDLE_COUNTERS + 1


def test_clients_are_described_for_people() -> None:
    """Requests, blocks held and the share of them, and service."""
    engine = Engine(num_blocks=65, max_num_seqs=1)
    assert engine_side.call(engine.scheduler, "clients", []) == []
    flood(engine, HEAVY, 3)
    flood(engine, LIGHT, 1)
    engine.step()
    heavy, light = engine_side.call(engine.scheduler, "clients", [])
    assert heavy == {
        **{"client": HEAVY, "requests": 3, "held_blocks": 2},
        **{"share_blocks": 32, "service": 32},
    }
    assert (light["requests"], light["share_blocks"], light["service"]) == (1, 32, 0)


REQUESTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 200), st.integers(1, 40), st.integers(0, 5)),
    min_size=1,
    max_size=20,
)


@settings(max_examples=40, deadline=None)
@given(requests=REQUESTS, policy=st.sampled_from(["agentkv", "continuum"]))
def test_everybody_is_served(requests: list[tuple[str, int, int, int]], policy: str) -> None:
    """Clients with and without jobs, in scarce memory: all requests end."""
    engine = Engine(policy=policy, num_blocks=24, max_num_seqs=4)
    for number, (client, num_prompt, num_output, num_steps) in enumerate(requests):
        fields = {CLIENT_FIELD: client * 16}
        if number % 3:
            fields["job_id"] = f"job-{number % 5}"
        engine.add(prompt_of(num_prompt, salt=number), max_tokens=num_output, **fields)
        engine.steps(num_steps)
    engine.run(max_steps=5000)
    assert engine.lost_blocks() == []
