"""What one who wants to keep others out may do, on vLLM's real scheduler, and what it gains."""

from typing import Any

import pytest

from agentkv.integrations.vllm.retention.admission import MAX_IDLE_WAITS
from agentkv.integrations.vllm.retention.tool_signals import NEXT_TURN_TTL_S
from agentkv.protocol import JobKey
from tests.integrations.vllm.harness import Engine, of
from tests.stepped_engine import prompt_of

NEW = prompt_of(16 * 40, salt=51)
ATTACKER, VICTIM, STRANGER = "a" * 16, "b" * 16, "c" * 16
AGENT = prompt_of(80, salt=500)
REPLY = "Paris."


def converse(
    engine: Engine,
    client: str,
    conversations: range,
    *,
    num_turns: int = 1,
    pause_s: float = 0.1,
    num_tokens: int = 12,
    start: list[int] | None = AGENT,
) -> None:
    """Turn by turn of all conversations, each with its own prompt behind `start`; None: each with
    a start of its own. No request names a job."""
    histories = {number: start or prompt_of(80, salt=number) for number in conversations}
    for turn in range(num_turns):
        for number, history in histories.items():
            prompt = [*history, *prompt_of(40, salt=number + turn)]
            tags = of(client, reply=REPLY, max_tokens=num_tokens)
            histories[number] = engine.turn(prompt, **tags)
        engine.wait(pause_s)


@pytest.mark.parametrize(
    ("num_taught", "attacks"),
    [
        (4, [{"conversations": range(80)}, {"conversations": range(64), "num_turns": 2}]),
        (3, [{"conversations": range(4200), "start": None, "num_tokens": 1}]),
        (3, [{"conversations": range(7, 8)}] * 140),
    ],
    ids=["one-shots and slow chats that start alike", "4,200 one-shots", "140 equal prompts"],
)
def test_no_client_takes_the_inferred_jobs_of_another(
    num_taught: int, attacks: list[dict[str, Any]]
) -> None:
    """What the victim's requests have taught holds for its next one, and an open turn stays
    open."""
    engine = Engine(num_blocks=2049, max_jobs=10_000)
    converse(engine, VICTIM, range(num_taught), num_turns=2)
    converse(engine, VICTIM, range(7, 8))
    for attack in attacks:
        converse(engine, ATTACKER, pause_s=70.0 / len(attacks), **attack)
    converse(engine, VICTIM, range(20, 21))
    first = [*AGENT, *prompt_of(40, salt=7), *engine.vocabulary.encode(REPLY, 12)]
    engine.turn([*first, *prompt_of(40, salt=8)], **of(VICTIM))
    jobs = engine.retention.jobs.of(VICTIM).values()
    assert sorted(job.num_turns for job in jobs) == ([1, 2] if num_taught == 4 else [2])


def test_no_client_decides_about_a_new_one() -> None:
    """120 conversations of an agent of two clients make no jobs of a stranger's plain requests."""
    engine = Engine(num_blocks=2049)
    for client in (ATTACKER, VICTIM):
        converse(engine, client, range(60), num_turns=2)
    converse(engine, STRANGER, range(100, 110))
    assert len(engine.retention.jobs.of(STRANGER)) == 0


def test_a_tool_that_never_started_prolongs_no_pin() -> None:
    """`finished` alone holds a pin for no longer than it would have lasted."""
    engine = Engine(policy="agentkv", prefill_reload_s=[0.0, 0.01, 0.0])
    engine.turn(prompt_of(100), job_id="idle")
    ttl_s = engine.retention.pins.get("idle").ttl_s
    for _ in range(round(ttl_s) + 2):
        engine.tool("idle", "finished")
        engine.wait(1.0)
    assert engine.pinned == {}


def test_the_next_turn_has_its_own_grace() -> None:
    """After each turn the first tool that finishes holds the pin for a moment, and no other one."""
    engine = Engine(policy="agentkv", prefill_reload_s=[0.0, 0.01, 0.0])
    history = prompt_of(100)
    for _ in range(2):
        history = engine.turn([*history, *prompt_of(20)], job_id="a")
        engine.tool("a", "started")
        engine.wait(0.5)
        engine.tool("a", "finished")
        engine.tool("a", "finished")
        pin = engine.retention.pins.get("a")
        assert pin.expires_s == pytest.approx(engine.clock.now_s + NEXT_TURN_TTL_S)
        engine.wait(1.0)
        engine.tool("a", "finished")
        assert pin.expires_s == pytest.approx(engine.clock.now_s - 1.0 + NEXT_TURN_TTL_S)


@pytest.mark.parametrize(
    ("victim", "kind"),
    [("b" * 16, 2), ("a" * 16, 2), ("a" * 16, 1)],
    ids=["another client", "the same client", "the same agent"],
)
def test_long_jobs_that_are_gone_hold_no_short_ones_up(victim: str, kind: int) -> None:
    """After 12 jobs of 128 growing turns a nearly empty pool takes 8 small jobs at once, of another
    client, of another agent of their client, or of their own agent."""
    engine = Engine(policy="agentkv", num_blocks=257, max_num_batched_tokens=4096)
    for number in range(12):
        history = prompt_of(64, salt=1)
        for _ in range(128):
            history = [*history, *prompt_of(10, salt=number)]
            engine.turn(history, max_tokens=1, job_id=f"long-{number}", **of("a" * 16))
        engine.retention.release(JobKey("a" * 16, f"long-{number}"))
    for number in range(8):
        engine.add(
            [*prompt_of(64, salt=kind), *prompt_of(23, salt=20 + number)],
            max_tokens=24,
            **of(victim, job_id=f"short-{number}"),
        )
        engine.step()
    assert len(engine.running()) == 8


@pytest.mark.parametrize("comes_back", [False, True], ids=["a burst", "one by one, and gone"])
def test_new_jobs_that_do_not_fit_cost_others_one_step(comes_back: bool) -> None:
    """However many a client sends, at once or one after the other, the next turn of a client that
    was served more waits for one of them alone."""
    engine = Engine(policy="agentkv", num_blocks=101, max_num_batched_tokens=4096)
    victim, attacker = "b" * 16, "a" * 16
    engine.add(prompt_of(16 * 60, salt=2), max_tokens=3000, **of("c" * 16, job_id="o"))
    engine.steps(2)

    def send(number: int) -> str:
        prompt = prompt_of(16 * 50 - 8 * number, salt=10 + number)
        return engine.add(prompt, **of(attacker, job_id=f"a{number}"))

    send(0)
    for num_tokens in (40, 60):
        turn = engine.add(prompt_of(num_tokens, salt=1), max_tokens=2, **of(victim, job_id="v"))
        while turn in engine.scheduler.requests:
            engine.step()
    burst = [send(number) for number in range(1, 3 if comes_back else 20)]
    turn = engine.add(prompt_of(80, salt=1), **of(victim, job_id="v"))
    for num_steps in range(1, 20):
        engine.step()
        if turn in engine.running():
            break
        if comes_back:
            engine.abort(burst.pop())
            burst.append(send(30 + num_steps))
    assert num_steps <= 2


@pytest.mark.parametrize("are_left", [True, False], ids=["aborted", "finished"])
def test_a_storm_of_aborts_gains_no_more_than_a_share(are_left: bool) -> None:
    """What an attacker left midway yields to another client's new job like what it finished."""
    engine = Engine(policy="agentkv", num_blocks=129, prefill_reload_s=[0.0, 10.0, 0.0])
    attacker, victim = "a" * 16, "b" * 16
    history = engine.turn(prompt_of(16 * 20, salt=90), **of(victim, job_id="v"))
    for number in range(12):
        tags = of(attacker, job_id=f"a{number}")
        left = engine.add(prompt_of(16 * 12, salt=number), max_tokens=4, **tags)
        engine.steps(3)
        engine.abort(left) if are_left else engine.run()
    assert sum(engine.pinned.values()) > 100
    turn = engine.add([*history, *prompt_of(16 * 20, salt=91)], **of(victim, job_id="v"))
    new = engine.add(prompt_of(16 * 20, salt=92), **of(victim, job_id="w"))
    engine.steps(3)
    assert {turn, new} <= set(engine.running())
    assert engine.retention.pins.num_blocks_of(attacker) <= 128 // 2 + 12  # to a whole pin


def idle_pool(**settings: Any) -> tuple[Engine, str]:
    """Nine idle jobs hold nearly all memory for long, one request runs, and a new job waits."""
    given = {
        "num_blocks": 129,
        "prefill_reload_s": [0.0, 10.0, 0.0],
        "max_num_batched_tokens": 4096,
    }
    engine = Engine(policy="agentkv", **{**given, **settings})
    for salt in range(9):
        engine.turn(
            prompt_of(16 * 12, salt=salt), job_id=f"idle-{salt}", reply="```bash\ndate\n```"
        )
    engine.add(prompt_of(32, salt=70), max_tokens=2000)
    engine.step()
    assert len(engine.pinned) == 9
    return engine, engine.add(NEW, job_id="new", expected_turns=1)


def wait_for(engine: Engine, request_id: str, *, most_s: float) -> float:
    """Seconds until a waiting request runs."""
    began_s = engine.clock.now_s
    while request_id not in engine.running():
        engine.step(step_s=0.1)
        assert engine.clock.now_s - began_s < most_s, f"waits for more than {most_s} s"
    return engine.clock.now_s - began_s


def test_idle_kv_keeps_a_new_job_out_for_a_bounded_time() -> None:
    """Also if idle KV is worth much, a new job waits for it twice the patience at most."""
    engine, new = idle_pool(patience_s=3.0)
    waited_s = wait_for(engine, new, most_s=3.0 * MAX_IDLE_WAITS + 0.5)
    assert waited_s > 3.0
    assert set(engine.pin_ends) == {"pressure"}


def test_idle_kv_that_costs_more_than_it_saves_keeps_no_overdue_job_out() -> None:
    """A new job that has waited out its patience takes idle KV that counts for little."""
    engine, new = idle_pool(patience_s=20.0, prefill_reload_s=[0.0, 2e-4, 0.0])
    for pin in engine.retention.pins:
        pin.expires_s = 1e9
    waited_s = wait_for(engine, new, most_s=40.0)
    assert 20.0 < waited_s < 21.0
    assert engine.retention.admission.idle_kv_weight < 0.3


@pytest.mark.parametrize("is_chain", [False, True])
def test_a_parent_lends_its_place_to_few_sub_agents_at_a_time(is_chain: bool) -> None:
    """Further ones that hold KV are new jobs, also where each is the parent of the next."""
    engine = Engine(policy="agentkv", num_blocks=257, max_num_batched_tokens=4096)
    engine.turn(prompt_of(64, salt=9), job_id="parent")
    for salt in range(8):
        engine.add(
            prompt_of(64, salt=20 + salt),
            max_tokens=900,
            job_id=f"sub-{salt}",
            parent_job_id=f"sub-{salt - 1}" if is_chain and salt else "parent",
        )
        engine.step()
    jobs = engine.retention.jobs
    parent_order = jobs.get("parent").order
    borrowed = [salt for salt in range(8) if jobs.get(f"sub-{salt}").order == parent_order]
    assert borrowed == [0, 1, 2, 3]


def test_sub_agents_one_after_the_other_all_have_their_parents_place() -> None:
    """A sub-agent that holds no KV any more makes room for the next, released or not."""
    engine = Engine(policy="agentkv", num_blocks=257, max_num_batched_tokens=4096)
    engine.turn(prompt_of(64, salt=9), job_id="parent")
    jobs = engine.retention.jobs
    for salt in range(12):
        engine.turn(prompt_of(64, salt=20 + salt), job_id=f"sub-{salt}", parent_job_id="parent")
        assert jobs.get(f"sub-{salt}").order == jobs.get("parent").order
        engine.wait(60.0)


@pytest.mark.parametrize("num_turns", [1, 2], ids=["pinned", "of two turns"])
def test_a_flood_of_jobs_of_one_turn_pushes_out_no_other(num_turns: int) -> None:
    """Beyond `max_jobs` those with one turn and no pin are forgotten first."""
    engine = Engine(
        policy="agentkv", num_blocks=257, max_jobs=20, prefill_reload_s=[0.0, 0.01, 0.0]
    )
    history: list[int] = []
    for salt in range(num_turns):
        history = engine.turn([*history, *prompt_of(64, salt=salt)], job_id="old")
    if num_turns == 1:
        pin = engine.retention.pins.get("old")
        pin.expires_s = 1e9
        engine.retention.pins.reschedule(pin)
    for salt in range(60):
        engine.turn(prompt_of(20, salt=100 + salt), max_tokens=1, job_id=f"flood-{salt}")
        engine.wait(10.0)
    assert engine.retention.jobs.get("old") is not None
    assert len(engine.retention.jobs) <= 21
