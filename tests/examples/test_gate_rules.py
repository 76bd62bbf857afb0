"""Rules that hold jobs back, on cases worked out from their sources; the pool has 1000 tokens."""

from __future__ import annotations

import sys
from collections import deque

import pytest

from agentkv.policies import AdmissionRequest, JobDemand, KVDemandForecast

from .rules import StillEngine, bound


def why_hold_back(policy: object, engine: StillEngine, prompt_tokens: int) -> str | None:
    """The policy's answer to a new job with this prompt, which then is gone again."""
    job = engine.add_job("newcomer")
    job.has_run = False
    turn = engine.add_turn(job, prompt_tokens=prompt_tokens)
    demand = JobDemand(prompt_tokens / engine.block_tokens, 1, 0)
    free = engine.num_free_blocks
    request = AdmissionRequest(100, free, demand, KVDemandForecast(), turn=turn)
    answer: str | None = policy.why_hold_back(request)  # type: ignore[attr-defined]
    engine.jobs.remove(job)
    return answer


WAITING = (("waits", 400), ("large", 600))


@pytest.mark.parametrize(
    ("rules", "paused"),
    # paper: 300 + 0.5 x 800 fit; code: 100 more each, 1500, fit without 200 and 400
    [("paper", set()), ("released", {"small", "middle"})],
)
def test_thunder_agent_pauses_the_smallest_idle_jobs_until_the_rest_fits(
    rules: str, paused: set[str]
) -> None:
    """300 of 1100 tokens run, 800 have idled for 1 s: the code pauses two jobs, the paper none."""
    engine = StillEngine()
    engine.add_turn(engine.add_job("running", 300), running_s=1.0)
    for job_id, tokens in (("small", 100), ("middle", 300), ("large", 400)):
        engine.add_job(job_id, tokens, idle_s=1.0)
    policy = bound("ThunderAgent", engine, rules=rules)
    policy.tick()
    assert policy.paused == paused


def test_thunder_agent_lets_no_turn_of_a_paused_job_in_until_it_fits() -> None:
    """Waiting jobs resume before idle ones, the smallest first, while the sum fits."""
    engine = StillEngine()
    running = engine.add_job("running", 500)
    turn = engine.add_turn(running, running_s=1.0)
    waits, large = (engine.add_job(name, size, idle_s=9.0) for name, size in WAITING)
    engine.add_job("idle", 100, idle_s=9.0)
    policy = bound("ThunderAgent", engine)
    policy.paused = {"waits", "idle", "large"}
    returning = [engine.add_turn(waits), engine.add_turn(large)]
    policy.tick()
    assert [policy.why_wait(each) for each in returning] == [None, "its job is paused"]
    engine.end(policy, turn, 1.0)
    engine.jobs.remove(running)
    policy.tick()
    assert policy.paused == {"idle"}


def test_thunder_agent_pauses_a_served_job_when_its_turn_ends() -> None:
    """Two running jobs of 600 tokens: one is marked, keeps running, and is paused at its end."""
    engine = StillEngine()
    turns = [engine.add_turn(engine.add_job(name, 600), running_s=1.0) for name in ("a", "b")]
    policy = bound("ThunderAgent", engine)
    policy.tick()
    assert (policy.marked, policy.paused) == ({"a"}, set())
    engine.end(policy, turns[0], 1.0)
    assert (policy.marked, policy.paused) == (set(), {"a"})


@pytest.mark.parametrize(("tokens", "is_held"), [(500, False), (600, True)])
def test_thunder_agent_admits_a_new_job_that_fits(tokens: int, is_held: bool) -> None:
    """500 tokens are in use, so 500 more fit and 600 do not."""
    engine = StillEngine(num_free_blocks=50)
    engine.add_turn(engine.add_job("running", 500), running_s=1.0)
    policy = bound("ThunderAgent", engine)
    assert (why_hold_back(policy, engine, tokens) is not None) is is_held


@pytest.mark.parametrize(
    ("use", "hit_rate", "window"),
    [
        (0.1, None, 10.0),  # idle memory: two more
        (0.3, 0.1, 8.0),  # between the bounds: as it is
        (0.9, 0.1, 4.0),  # full, and nothing is found in the cache: half
        (0.9, 0.6, 8.0),  # full, but the cache works
        (0.9, None, 8.0),  # full, and nobody has returned yet
    ],
)
def test_concur_moves_its_window(use: float, hit_rate: float | None, window: float) -> None:
    """Plus 2 under 0.2 of use; half over 0.5 if hits are under 0.2; else unchanged."""
    policy = bound("Concur", StillEngine(), first_window=8.0)
    assert policy.next_window(use, hit_rate) == window


def test_concur_measures_hits_over_the_interval() -> None:
    """Hits are those of returning turns since the last change of the window."""
    engine = StillEngine(num_free_blocks=10)
    policy = bound("Concur", engine, first_window=8.0, interval_s=30.0)
    policy.tick()
    job = engine.add_job("job", 500)
    for hit_tokens in (0, 90):
        turn = engine.add_turn(job, running_s=1.0)
        turn.common_tokens, turn.hit_tokens = 500, hit_tokens
        engine.end(policy, turn, 1.0)
    assert policy.hit_rate == pytest.approx(0.09)
    engine.now_s += 30.0
    policy.tick()
    assert (policy.window, policy.hit_rate) == (4.0, None)


def test_concur_holds_the_jobs_that_came_last() -> None:
    """With a window of 2, the third job's return waits and no new job comes in."""
    engine = StillEngine()
    turns = [engine.add_turn(engine.add_job(name, 100)) for name in ("a", "b", "c")]
    policy = bound("Concur", engine, first_window=2.0)
    assert [policy.why_wait(turn) is not None for turn in turns] == [False, False, True]
    assert why_hold_back(policy, engine, 10) is not None
    policy.window = 4.0
    assert why_hold_back(policy, engine, 10) is None


def test_progress_ttl_pauses_a_job_at_once_while_it_knows_nothing() -> None:
    """Before 100 times between turns are known the TTL is 0: the next tick pauses the job."""
    engine = StillEngine()
    job = engine.add_job("job", 900)
    policy = bound("ProgressTTL", engine)
    engine.end(policy, engine.add_turn(job, running_s=1.0), 1.0)
    policy.tick()
    assert policy.paused == {"job"}


def test_progress_ttl_waits_as_long_as_pays() -> None:
    """Tools of about 1 s are waited for where a loss costs 8 s, and not where it costs 0.5 s."""
    policy_module = sys.modules[type(bound("ProgressTTL", StillEngine())).__module__]
    gaps_s = deque([0.9, 1.0, 1.1] * 40)
    assert 1.0 < policy_module.best_ttl_s(gaps_s, 8.0) < 3.0
    assert policy_module.best_ttl_s(gaps_s, 0.5) == 0.0


@pytest.mark.parametrize(
    ("force_resume_s", "waited_s", "is_in"),
    [(1800.0, 40.0, False), (1800.0, 1801.0, True), (None, 299.0, False), (None, 301.0, True)],
)
def test_progress_ttl_forces_a_resume_after_its_limit(
    force_resume_s: float | None, waited_s: float, is_in: bool
) -> None:
    """A turn that does not fit is let in after 1,800 s, or with no rate known after 300 s."""
    engine = StillEngine()
    engine.add_turn(engine.add_job("running", 900), running_s=1.0)
    turn = engine.add_turn(engine.add_job("job", 500, idle_s=9.0), waited_s=waited_s)
    policy = bound("ProgressTTL", engine, force_resume_s=force_resume_s)
    policy.paused = {"job"}
    policy.tick()
    assert (policy.why_wait(turn) is None) is is_in


def test_progress_ttl_resumes_the_job_that_finished_last() -> None:
    """Of two that fit alone but not together, the one whose last turn ended later goes in."""
    engine = StillEngine()
    turns = [
        engine.add_turn(engine.add_job(name, 500, idle_s=idle_s))
        for name, idle_s in (("early", 60.0), ("late", 5.0))
    ]
    policy = bound("ProgressTTL", engine)
    policy.paused = {"early", "late"}
    policy.tick()
    assert [policy.why_wait(turn) is None for turn in turns] == [False, True]


def mori_jobs(engine: StillEngine, policy: object) -> None:
    """Two jobs with a cycle each: `builder` 8 s of tools to 2 of model, `talker` 1 to 4."""
    for job_id, tool_s, model_s in (("builder", 8.0, 2.0), ("talker", 1.0, 4.0)):
        engine.add_job(job_id, 600, idle_s=0.0)
        policy._cycles[job_id].append((tool_s, model_s))  # type: ignore[attr-defined]


def test_mori_sends_the_job_that_idles_most_away() -> None:
    """Of 1200 tokens 600 must leave: the job with 0.8 of idleness, not the one with 0.2."""
    engine = StillEngine()
    policy = bound("Mori", engine)
    mori_jobs(engine, policy)
    assert [policy.idleness(job) for job in engine.jobs] == pytest.approx([0.8, 0.2])
    policy.tick()
    assert policy.out == {"builder"}
    builder, talker = engine.jobs
    assert policy.why_wait(engine.add_turn(builder)) is not None
    assert policy.why_wait(engine.add_turn(talker)) is None


def test_moris_idleness_counts_the_present_call() -> None:
    """After 5 s more in a tool, 1 + 5 of 10 seconds are idle."""
    engine = StillEngine()
    policy = bound("Mori", engine)
    mori_jobs(engine, policy)
    engine.now_s += 5.0
    assert policy.idleness(engine.jobs[1]) == pytest.approx(0.6)


def test_moris_pins_yield_by_who_left_then_by_idleness() -> None:
    """A job that has left yields before one that idles more."""
    engine = StillEngine()
    policy = bound("Mori", engine)
    mori_jobs(engine, policy)
    pins = [engine.add_pin(job) for job in engine.jobs]
    assert [pin.job_id for pin in policy.pins_that_yield(pins, None)] == ["builder", "talker"]
    policy.out = {"talker"}
    assert [pin.job_id for pin in policy.pins_that_yield(pins, None)] == ["talker", "builder"]


def test_mori_brings_the_least_idle_back_among_those_whose_kv_is_held() -> None:
    """Held KV comes first, then idleness, and only while it fits."""
    engine = StillEngine()
    policy = bound("Mori", engine)
    mori_jobs(engine, policy)
    policy.out = {"builder", "talker"}
    for job in engine.jobs:
        engine.add_turn(job)
    engine.add_pin(engine.jobs[0])
    policy.tick()
    assert policy.out == {"talker"}
