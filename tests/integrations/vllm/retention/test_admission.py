"""Jobs that are not let in yet, on vLLM's real scheduler: who waits for them, and who does not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.integrations.vllm.retention.inference import GRACE_S
from agentkv.integrations.vllm.retention.waiting import (
    DISCOUNT_PRIOR,
    IdleKVDiscount,
    StarvationGuard,
)
from tests.integrations.vllm.harness import Engine
from tests.stepped_engine import prompt_of

BIG = prompt_of(16 * 40, salt=51)


def busy_engine(**options: Any) -> Engine:
    """A long answer of one job runs; another as big as BIG is not expected to fit next to it."""
    given = {"num_blocks": 129, "max_num_batched_tokens": 2048, **options}
    if "prefill_reload_s" not in given:
        given["prefill_reload_s"] = [0.0, 0.005, 0.0]
    engine = Engine(policy="agentkv", **given)
    engine.add(prompt_of(16 * 50, salt=50), max_tokens=900, job_id="busy")
    engine.step()
    return engine


def new_jobs(engine: Engine, num: int, *, num_shared: int, max_tokens: int = 60) -> list[str]:
    """New jobs of 41 blocks, of which the first `num_shared` are the same for all; one arrives per
    step."""
    found = []
    for number in range(num):
        own = prompt_of(16 * (41 - num_shared), salt=number)
        prompt = BIG[: 16 * num_shared] + own
        job_id = f"new-{number}"
        found.append(engine.add(prompt, max_tokens=max_tokens, job_id=job_id, expected_turns=1))
        engine.step()
    return found


@pytest.mark.parametrize(("num_shared", "num_admitted"), [(40, 3), (0, 2)])
def test_a_prompt_that_jobs_share_takes_memory_once(num_shared: int, num_admitted: int) -> None:
    """Three jobs of 41 blocks that are expected to grow by ten each are admitted to 120 blocks
    together if 40 of the 41 are the same, and only two of them if none are."""
    engine = Engine(num_blocks=121, max_num_batched_tokens=2048, policy="agentkv")
    jobs = new_jobs(engine, 3, num_shared=num_shared)
    assert engine.running() == jobs[:num_admitted]


@pytest.mark.parametrize("are_siblings", [True, False])
def test_a_group_is_let_in_together(are_siblings: bool) -> None:
    """A group of one prompt counts its prompt once from the start, also while its first job runs;
    of jobs with prompts of their own two do not fit."""
    engine = Engine(num_blocks=76, max_num_batched_tokens=2048, policy="agentkv")
    for number in range(4):
        prompt = prompt_of(16 * 30 + 1, salt=0 if are_siblings else number)
        engine.add(prompt, max_tokens=60, job_id=f"uid_{number}", expected_turns=1)
        engine.step()
    engine.step()
    assert len(engine.running()) == (4 if are_siblings else 1)


def test_a_shared_prompt_counts_once_for_jobs_that_wait_for_their_tools() -> None:
    """Once their turns have ended, all of them know what they share, the first one included; the
    last one that is left counts in full again."""
    engine = Engine(
        num_blocks=300,
        max_num_batched_tokens=2048,
        policy="agentkv",
        prefill_reload_s=[0.0, 0.001, 0.0],
    )
    new_jobs(engine, 3, num_shared=40, max_tokens=8)
    engine.run()
    jobs = engine.retention.jobs
    prefixes = [jobs.get(f"new-{number}").prefix for number in range(3)]
    assert [prefix.num_blocks for prefix in prefixes] == [40, 40, 40]
    assert len(set(prefixes)) == 1
    for number in range(2):
        engine.retention.release(f"new-{number}")
    prompt = BIG + prompt_of(16, salt=2)
    engine.turn([*prompt, *prompt_of(30, salt=9)], job_id="new-2")
    assert jobs.get("new-2").prefix is None


def test_to_try_again_does_not_pass_the_gate() -> None:
    """A client that gives up and sends its first turn once more opens the job all the same."""
    engine = busy_engine()
    for _ in range(2):
        request_id = engine.add(BIG, job_id="big")
        engine.step()
        assert engine.waiting() == [request_id]
        engine.abort(request_id)


def test_nor_do_siblings_of_the_turn_that_waits() -> None:
    """Children of n > 1; once one of them is let in, all are."""
    engine = busy_engine()
    siblings = [engine.add(BIG, job_id="big", max_tokens=9) for _ in range(2)]
    engine.step()
    assert set(engine.waiting()) == set(siblings)
    for running in engine.running():
        engine.abort(running)
    engine.steps(3)
    assert set(siblings) <= set(engine.running())


@pytest.mark.parametrize("prefill_reload_s", [[0.0, 0.0, 0.0], [0.0, 0.005, 0.0]])
def test_small_requests_pass_whatever_computing_costs(prefill_reload_s: list[float]) -> None:
    """Where it costs nothing, shortages are over at once, and come again with each step."""
    engine = busy_engine(prefill_reload_s=prefill_reload_s)
    held = engine.add(BIG, job_id="big")
    engine.steps(3)
    small = [engine.add(prompt_of(20, salt=salt), max_tokens=2) for salt in range(60, 65)]
    engine.steps(6)
    assert engine.waiting() == [held]
    assert not set(small) & set(engine.scheduler.requests)


def test_an_overdue_one_keeps_later_jobs_out_and_nobody_else() -> None:
    """A job that came later would fit, and waits; a request without a job does not."""
    engine = busy_engine(patience_s=5.0)
    held = engine.add(BIG, job_id="big")
    engine.step()
    engine.clock.now_s += 6.0
    engine.step()
    later = engine.add(prompt_of(20, salt=7), job_id="later", expected_turns=1)
    plain = engine.add(prompt_of(20, salt=8), max_tokens=50)
    engine.steps(3)
    assert plain in engine.running()
    assert engine.waiting() == [held, later]


@pytest.mark.parametrize(
    "lets_all_in",
    [{"without": ["admission"]}, {"admission": False}, {"policy": "continuum"}],
    ids=["without admission", "left to the trainer", "continuum"],
)
def test_where_all_are_let_in_an_overdue_one_keeps_nobody_out(lets_all_in: dict[str, Any]) -> None:
    """It waits because there is no room for it; who came later is not held back by that."""
    engine = Engine(num_blocks=129, patience_s=5.0, **{"policy": "agentkv", **lets_all_in})
    engine.add(prompt_of(16 * 120, salt=50), max_tokens=100, job_id="busy")
    while not engine.running():
        engine.step()
    engine.add(BIG, job_id="big")
    before = engine.add(prompt_of(20, salt=6), job_id="before")
    engine.step()
    engine.clock.now_s += 6.0
    engine.step()
    after = engine.add(prompt_of(20, salt=7), job_id="after")
    engine.step()
    turns = engine.retention.jobs.turns
    assert [turns[request_id].held_back for request_id in (before, after)] == [None, None]
    assert not engine.totals.get("holds_total")


def test_requests_without_a_job_pass_it_only_so_often() -> None:
    """They count as passes: then it is due, and goes before them."""
    engine = busy_engine(patience_s=5.0)
    held = engine.add(BIG, job_id="big")
    for number in range(200):
        engine.add(prompt_of(20, salt=100 + number), max_tokens=2)
        engine.step()
        if engine.retention.admission.guard.is_starved(held):
            break
    else:
        pytest.fail("200 later requests went before it")


def test_a_job_whose_prefix_is_loaded_is_past_the_gate() -> None:
    """It has its blocks; asked again, it would count them as taken, and all others would wait."""
    engine = busy_engine(offload_bytes=10_000_000)
    for running in engine.running():
        engine.abort(running)
    for job_id in list(engine.pinned):
        engine.retention.release(job_id)
    prefix = prompt_of(16 * 30, salt=5)
    engine.turn(prefix + prompt_of(16, salt=6))
    for salt in range(20, 24):
        engine.turn(prompt_of(16 * 100, salt=salt))
    engine.add(prompt_of(16 * 70, salt=50), max_tokens=300)
    engine.step()
    new = engine.add(prefix + prompt_of(40, salt=7), max_tokens=60, job_id="new")
    plain = engine.add(prompt_of(16, salt=8), max_tokens=60)
    engine.steps(5)
    assert engine.num_blocks_loaded >= 30
    assert {new, plain} <= set(engine.running())


def test_a_pin_ends_in_time_though_a_sibling_of_its_turn_runs() -> None:
    """Only a turn that waits keeps it for longer: it is about to take over."""
    engine = Engine(policy="agentkv", num_blocks=129, max_ttl_s=1.0)
    engine.add(prompt_of(40, salt=2), max_tokens=1000, job_id="a")
    engine.step()
    short = engine.add(prompt_of(16 * 40, salt=3), job_id="a")
    while short in engine.scheduler.requests:
        engine.step()
    assert engine.pinned
    engine.clock.now_s += 1.1
    engine.step()
    assert engine.pinned == {}
    assert engine.pin_ends == {"expired": 1}


def test_a_pin_ends_in_time_though_a_turn_that_waited_for_it_was_aborted() -> None:
    """Beside another that runs: its deadline went by while the aborted one waited."""
    engine = Engine(policy="agentkv", num_blocks=400, max_ttl_s=1.0, max_num_seqs=2)
    engine.add(prompt_of(40, salt=2), max_tokens=1500, job_id="a")
    engine.step()
    short = engine.add(prompt_of(16 * 40, salt=3), job_id="a")
    while short in engine.scheduler.requests:
        engine.step()
    engine.add(prompt_of(40, salt=5), max_tokens=1500)
    engine.step()
    waiting = engine.add([*prompt_of(16 * 40, salt=3), 1, 2, 3], job_id="a")
    engine.step()
    engine.clock.now_s += 1.1
    engine.step()
    assert engine.pinned == {"a": 40}
    engine.abort(waiting)
    engine.step()
    assert (engine.pinned, engine.pin_ends) == ({}, {"expired": 1})


@pytest.mark.parametrize("jobs", [["big", "big"], ["big", "other"]])
def test_only_a_job_that_has_run_lets_its_sub_agents_in(jobs: list[str]) -> None:
    """Jobs that name themselves or each other as parent wait like all others."""
    engine = busy_engine()
    waiting = []
    for job_id, parent in zip(jobs, reversed(jobs), strict=True):
        waiting.append(engine.add(BIG, job_id=job_id, parent_job_id=parent))
        engine.step()
    engine.step()
    assert set(engine.waiting()) == set(waiting)


GOES_ON, ASKS_AN_AGENT, RUNS_TESTS = "Let me see.", "```bash\ntask\n```", "```bash\npytest\n```"


def silent_parent(engine: Engine, reply: str, num_turns: int, **tags: Any) -> None:
    """A job whose turns follow each other after a second, and that is silent after `reply`."""
    history = prompt_of(64, salt=70)
    for _ in range(num_turns):
        history = [*engine.turn(history, job_id="parent", reply=GOES_ON, **tags), 7]
        engine.wait(1.0)
    engine.turn(history, job_id="parent", reply=reply, **tags)


@pytest.mark.parametrize(
    ("reply", "num_turns", "wait_s", "is_let_in"),
    [
        (ASKS_AN_AGENT, 0, 0.0, True),
        (RUNS_TESTS, 0, 5.0, False),
        (GOES_ON, 9, 5.0, False),
    ],
    ids=["agent tool", "other tool", "long silence"],
)
def test_a_new_job_takes_the_place_of_a_silent_one_that_waits_for_it(
    reply: str, num_turns: int, wait_s: float, *, is_let_in: bool
) -> None:
    """No request names a parent: the one that has asked for an agent is it. One that is silent for
    longer than usual may be over."""
    engine = Engine(
        policy="agentkv",
        num_blocks=136,
        max_num_batched_tokens=2048,
        prefill_reload_s=[0.0, 0.005, 0.0],
    )
    silent_parent(engine, reply, num_turns)
    engine.add(prompt_of(16 * 50, salt=50), max_tokens=900, job_id="busy")
    engine.step()
    child = engine.add(BIG, job_id="child")
    engine.step()
    engine.clock.now_s += wait_s
    engine.steps(2)
    jobs = engine.retention.jobs
    assert (child in engine.running()) is is_let_in
    assert (jobs.get("child").order == jobs.get("parent").order) is is_let_in


@pytest.mark.parametrize(
    ("comes_back", "num_jobs", "is_held"),
    [(True, 9, True), (False, 9, False), (False, 7, True)],
    ids=["after a second", "never", "too few jobs seen"],
)
def test_a_hold_follows_from_the_silences_of_its_client(
    num_jobs: int, *, comes_back: bool, is_held: bool
) -> None:
    """Where no call can be read in replies, jobs that never went on say that the next will not."""
    engine = Engine(policy="agentkv", num_blocks=400, prefill_reload_s=[0.0, 0.001, 0.0])
    for salt in range(num_jobs):
        history = engine.turn(prompt_of(64, salt=salt), job_id=f"job-{salt}", reply=GOES_ON)
        if comes_back:
            engine.wait(1.0)
            engine.turn([*history, 7], job_id=f"job-{salt}", is_last_step=True)
    engine.wait(GRACE_S + 1.0)
    engine.turn(prompt_of(64, salt=90), job_id="next", reply=GOES_ON)
    engine.wait(0.0)
    assert ("next" in engine.pinned) is is_held


@pytest.mark.parametrize(("silent_s", "is_let_in"), [(0.5, False), (1.5, True)])
def test_a_job_that_is_silent_for_longer_than_usual_keeps_nobody_waiting(
    silent_s: float, *, is_let_in: bool
) -> None:
    """Jobs of its client went on after a second: later than that it may be over."""
    engine = Engine(policy="agentkv", num_blocks=136, prefill_reload_s=[0.0, 0.005, 0.0])
    for salt in range(9):
        history = engine.turn(prompt_of(64, salt=salt), job_id=f"job-{salt}", reply=GOES_ON)
        engine.wait(1.0)
        engine.turn([*history, 7], job_id=f"job-{salt}", is_last_step=True)
    engine.turn(prompt_of(16 * 60, salt=80), job_id="silent", reply=GOES_ON)
    engine.add(prompt_of(64, salt=50), max_tokens=900, job_id="busy")
    engine.step()
    engine.clock.now_s += silent_s
    new = engine.add(prompt_of(16 * 80, salt=81), job_id="new")
    engine.steps(2)
    assert (new in engine.running()) is is_let_in
    assert ("silent" in engine.pinned) is not is_let_in


def test_a_parent_is_held_for_as_long_again_when_its_sub_agent_goes_on() -> None:
    """It comes back once that is over, which each turn of the sub-agent brings nearer."""
    engine = Engine(policy="agentkv", num_blocks=400, prefill_reload_s=[0.0, 0.001, 0.0])
    engine.turn(prompt_of(64, salt=1), job_id="parent", reply=GOES_ON)
    pin = engine.retention.pins.get("parent")
    engine.turn(prompt_of(64, salt=8), job_id="sub", parent_job_id="parent")
    hold_s = pin.expires_s - engine.clock()
    for salt in range(3):
        engine.wait(0.9 * hold_s)
        engine.turn(prompt_of(64, salt=9 + salt), job_id=f"sub-{salt}", parent_job_id="parent")
        assert pin.expires_s == pytest.approx(engine.clock() + hold_s, rel=0.2)
    engine.wait(1.5 * hold_s)
    assert engine.pin_ends["expired"] >= 1
    assert "parent" not in engine.pinned


def test_with_several_groups_of_blocks_a_pin_yields_whole() -> None:
    """Its last blocks are those of one group, for all tokens: without them the rest is nothing."""
    engine = Engine(
        policy="agentkv", num_blocks=41, window_tokens=64, prefill_reload_s=[0.0, 0.05, 0.0]
    )
    for salt, name in enumerate("ab"):
        engine.turn(prompt_of(160, salt=salt), job_id=name)
    before = engine.pinned
    assert set(before) == {"a", "b"}
    engine.add(prompt_of(16 * (engine.num_free // 2 + 1), salt=9), max_tokens=2)
    engine.step()
    assert engine.pinned == {"a": before["a"]}


@pytest.mark.parametrize(("window_tokens", "is_let_in"), [(None, True), (128, True), (4096, False)])
def test_the_gate_counts_the_blocks_of_all_groups(
    window_tokens: int | None, is_let_in: bool
) -> None:
    """A job that fits next to another, unless layers with a long window have as much again."""
    engine = Engine(policy="agentkv", num_blocks=240, window_tokens=window_tokens)
    engine.turn(prompt_of(16 * 60, salt=1), job_id="before", is_last_step=True)
    engine.add(prompt_of(16 * 60, salt=2), max_tokens=300, job_id="busy", expected_turns=1)
    engine.step()
    engine.step()
    new = engine.add(prompt_of(16 * 40, salt=3), job_id="new", expected_turns=1)
    engine.step()
    assert (new in engine.running()) is is_let_in
    if not is_let_in:
        events = engine.scheduler.watchers.log.as_dict()["jobs"]["new"]
        assert "expected at the peak" in events[-1]["reason"]


def test_who_is_due_is_preempted_last_whatever_the_priorities() -> None:
    """Also a request without a job, among jobs that the client puts first."""
    engine = Engine(policy="agentkv", num_blocks=65, without=["admission"])
    due = engine.add(prompt_of(16 * 14, salt=1), max_tokens=300)
    guard = engine.retention.admission.guard
    for _ in range(1000):
        guard.overtaken_by(10**6, 10)
    assert guard.is_starved(due)
    engine.step()
    for salt in range(10, 14):
        engine.add(prompt_of(16 * 9, salt=salt), max_tokens=300, job_id=f"job-{salt}", priority=-5)
    for _ in range(250):
        engine.step()
        assert due in engine.running()
    assert engine.totals["preemptions_total"] > 0


MOST = 3
LATER = 100


@pytest.fixture
def newcomers() -> StarvationGuard:
    found = StarvationGuard()
    for order, name in enumerate("abc"):
        found.add(name, order)
    return found


def passes(newcomers: StarvationGuard, num: int) -> list[str | None]:
    return [newcomers.overtaken_by(LATER, MOST) for _ in range(num)]


def test_the_first_in_line_is_due_after_so_many_passes(newcomers: StarvationGuard) -> None:
    """It is reported once, and stays starved until it ends."""
    assert passes(newcomers, 8) == [None, None, None, "a", None, None, None, None]
    newcomers.admitted("a")
    assert newcomers.is_starved("a")
    newcomers.ended("a")
    assert not newcomers.is_starved("a")


@pytest.mark.parametrize(
    ("happens", "name", "due"),
    [("admitted", "a", [None, None, None, "b"]), ("admitted", "b", ["a"]), ("ended", "a", ["b"])],
)
def test_who_is_let_in_or_gone_is_not_due(
    newcomers: StarvationGuard, happens: str, name: str, due: list[str | None]
) -> None:
    """When the first is let in the count begins again with the next; when it is gone, the next was
    passed over as often; another that is let in does not put the first off."""
    passes(newcomers, MOST)
    getattr(newcomers, happens)(name)
    assert passes(newcomers, len(due)) == due


def test_who_is_first_does_not_pass_itself(newcomers: StarvationGuard) -> None:
    """Nor does who came before it; who came later does, in line or not."""
    orders = [newcomers.arrival_of("a"), newcomers.arrival_of("a"), -1]
    assert orders[0] == 0
    for order in orders:
        assert newcomers.overtaken_by(order, 0) is None
    assert newcomers.overtaken_by(newcomers.arrival_of("b"), 0) == "a"


def test_turns_that_came_before_do_not_count(newcomers: StarvationGuard) -> None:
    """They were first in line themselves."""
    newcomers.admitted("a")
    assert [newcomers.overtaken_by(0, MOST) for _ in range(9)] == [None] * 9


def test_nobody_in_line_is_not_passed_over() -> None:
    """What went before the first came does not count for it."""
    newcomers = StarvationGuard()
    assert passes(newcomers, 9) == [None] * 9
    newcomers.add("a", 0)
    assert passes(newcomers, 4) == [None, None, None, "a"]
    newcomers.ended("a")
    assert passes(newcomers, 9) == [None] * 9


MEMORY_S = 100.0
PRIOR_S = DISCOUNT_PRIOR * MEMORY_S


def ask(balance: IdleKVDiscount, now_s: float, *, idle_share: float, held: bool = True) -> float:
    balance.asked(now_s, is_held_back=held, idle_share=idle_share, memory_s=MEMORY_S)
    return balance.idle_kv_weight


def held_back(
    balance: IdleKVDiscount, *, until_s: float, idle_share: float, from_s: int = 0
) -> float:
    """A job asks ten times a second and is not let in; the weight at the end."""
    for tenth in range(from_s * 10, round(until_s * 10) + 1):
        weight = ask(balance, tenth / 10, idle_share=idle_share)
    return weight


def test_before_anything_is_seen_idle_kv_counts_in_full() -> None:
    """Also with the first job that is held back, however much is idle."""
    balance = IdleKVDiscount()
    assert balance.idle_kv_weight == 1.0
    assert ask(balance, 50.0, idle_share=1.0) == 1.0


def test_it_counts_less_while_a_job_waits_beside_it() -> None:
    """Half of the pool for 10 s is 5 s of all of it, less what is forgotten of that by then."""
    balance = IdleKVDiscount()
    assert held_back(balance, until_s=10, idle_share=0.5) == pytest.approx(
        PRIOR_S / (PRIOR_S + 5.0), abs=0.02
    )


def test_what_is_held_while_nobody_waits_costs_nothing() -> None:
    """Neither with jobs that are let in nor once the one that waited has gone."""
    balance = IdleKVDiscount()
    for second in range(50):
        assert ask(balance, second, idle_share=0.9, held=False) == 1.0
    ask(balance, 50.0, idle_share=0.9)
    balance.left()
    assert ask(balance, 80.0, idle_share=0.9) == 1.0


def test_what_it_takes_to_come_back_makes_it_count_again() -> None:
    """As much of that as of holding weighs it in full, and more no more than that."""
    balance = IdleKVDiscount()
    low = held_back(balance, until_s=20, idle_share=0.5)
    balance.restored(20.0, 4.0)
    assert low < balance.idle_kv_weight < 1.0
    balance.restored(20.0, 60.0)
    assert balance.idle_kv_weight == 1.0


def test_the_past_is_forgotten() -> None:
    """After ten times the memory it is as at the beginning."""
    balance = IdleKVDiscount()
    assert held_back(balance, until_s=20, idle_share=0.9) < 0.2
    balance.left()
    assert ask(balance, 20 + 10 * MEMORY_S, idle_share=0.9) == pytest.approx(1.0, abs=0.01)


@given(
    st.lists(
        st.tuples(
            st.floats(0, 1e6),
            st.booleans(),
            st.floats(0, 1),
            st.floats(0, 1e5),
            st.none() | st.floats(0, 1e4),
        ),
        max_size=40,
    )
)
def test_it_is_a_share_whatever_happens(
    happenings: list[tuple[float, bool, float, float, float | None]],
) -> None:
    """From 0 to 1, for any order of events and any gap between them."""
    balance, now_s = IdleKVDiscount(), 0.0
    for elapsed_s, is_held_back, idle_share, memory_s, back_s in happenings:
        now_s += elapsed_s
        balance.asked(now_s, is_held_back=is_held_back, idle_share=idle_share, memory_s=memory_s)
        if back_s is not None:
            balance.restored(now_s, back_s)
        assert 0.0 <= balance.idle_kv_weight <= 1.0
