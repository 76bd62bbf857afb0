"""The rules of the `agentkv` policy, without vLLM: what each decides, and why."""

from typing import Any

import pytest

from agentkv.errors import SettingsError
from agentkv.integrations.vllm.retention.waiting import AgingQueue
from agentkv.policies.agentkv import AgentKVPolicy
from agentkv.policies.base import AdmissionRequest, AllocationRequest, Pressure
from agentkv.policies.costs import RestoreCost
from agentkv.policies.forecast import (
    MAX_CLIENTS,
    MAX_KINDS,
    MAX_TURNS,
    PRIOR_TOKENS,
    PRIOR_TURNS,
    WINDOW,
    JobDemand,
    JobGrowth,
    KVDemandForecast,
)
from agentkv.policies.jobs import Job, Turn
from agentkv.policies.names import read_settings
from agentkv.policies.pins import Pin
from agentkv.policies.settings import MAX_PRIORITY
from agentkv.protocol import JobKey

POOL_TOKENS = 16_000


def policy(**settings: Any) -> AgentKVPolicy:
    return AgentKVPolicy(read_settings(settings, policy="agentkv"), POOL_TOKENS)


def pressed(**settings: Any) -> AgentKVPolicy:
    made = policy(**settings)
    made.pressure.rise(0.0, 1e9)
    return made


def turn_of(job_order: int, order: int, *, priority: int = 0) -> Turn:
    job = Job(f"job-{job_order}", job_order, priority=priority)
    return Turn(f"request-{order}", job, order, 0.0, 100)


def pin_of(job_order: int, num_blocks: int) -> Pin[int]:
    return Pin(f"job-{job_order}", job_order, range(num_blocks), 0, 0.0, 9.0, num_blocks)


def rank(made: AgentKVPolicy, turn: Turn) -> tuple[int, int, int]:
    return made.rank(turn, is_preempted=False, is_pinned=False)


def test_holding_is_worth_what_loading_takes_of_what_is_loaded() -> None:
    """What is loaded costs the seconds of loading, the rest what recomputing it costs the pool."""
    made = policy()
    assert made.price_s(RestoreCost(POOL_TOKENS // 10, 0.3)) == pytest.approx(3.0)
    rebuild = RestoreCost(POOL_TOKENS // 10, 0.3, 0.2, 0.9)
    assert made.price_s(rebuild) == pytest.approx(0.9 * 0.2 + 0.1 * 3.0)
    slow = RestoreCost(POOL_TOKENS // 10, 0.3, 5.0, 1.0)
    assert made.price_s(slow) == pytest.approx(5.0)
    assert made.pressure_s(rebuild) == made.pressure_s(RestoreCost(POOL_TOKENS // 10, 0.3))


def test_client_priority_comes_before_arrival() -> None:
    """As in vLLM, the lower number goes first."""
    made = pressed()
    assert rank(made, turn_of(5, 6, priority=-1)) < rank(made, turn_of(1, 2))


def test_an_overdue_first_turn_is_no_longer_put_behind_by_priority() -> None:
    """After the patience it counts as of the best priority seen, and so by arrival."""
    made = pressed()
    urgent, patient = turn_of(5, 6, priority=-9), turn_of(1, 2, priority=3)
    urgent.is_first = patient.is_first = True
    assert rank(made, urgent) < rank(made, patient)
    patient.has_aged_out = True
    assert rank(made, patient) < rank(made, urgent)


def test_of_jobs_held_back_one_that_has_aged_out_counts_as_of_the_best_priority() -> None:
    """Among jobs that are held back the order is by priority, unless one has aged out."""
    made = pressed()
    held, other = turn_of(3, 3), turn_of(1, 1, priority=-9)
    for turn in (held, other):
        turn.is_first, turn.held_back = True, "why"
    assert rank(made, other) < rank(made, held)
    held.has_aged_out, other.job.order = True, 9
    assert rank(made, held) < rank(made, other)


def test_an_overdue_turn_goes_first_but_for_a_newcomer_that_is_due() -> None:
    """Only a turn that goes on with its job does, not one that opens a job."""
    made, late, earlier = pressed(), turn_of(5, 5), turn_of(1, 1, priority=-MAX_PRIORITY)
    late.has_aged_out = True
    assert rank(made, late) < rank(made, earlier)
    assert made.starved_rank < min(rank(made, late), made.victim_rank(late))
    late.is_first = True
    assert rank(made, late) > rank(made, earlier)


OPENS, OVERDUE = {"is_first": True}, {"has_aged_out": True}
FIRST_RESPONSE = {"favour": "first-response"}


@pytest.mark.parametrize(
    ("turn", "request_", "taken", "settings"),
    [
        # a waiting turn takes from later jobs, and nothing if that would not be enough
        ({}, {"missing_blocks": 3}, [9], {}),
        ({}, {"missing_blocks": 5}, [], {}),
        (None, {"missing_blocks": 1}, [], {}),
        # a running one from all, so does one that is overdue, and any if nothing runs
        *((turn, {"has_blocks": True, "missing_blocks": 500}, [9, 2], {}) for turn in (None, {})),
        *((turn, {"num_running": 0, "missing_blocks": 500}, [9, 2], {}) for turn in (None, {})),
        *((turn, {"missing_blocks": 8}, [9, 2], {}) for turn in (OVERDUE, {**OPENS, **OVERDUE})),
        # a newcomer that is due from all, with a job or without one
        *((turn, {"missing_blocks": 8, "is_starved": True}, [9, 2], {}) for turn in (None, OPENS)),
        *((turn, {"missing_blocks": 9, "is_starved": True}, [], {}) for turn in (None, OPENS)),
        # with the first response favoured a new job from all, overdue or not, if it is enough
        (OPENS, {"missing_blocks": 8}, [9, 2], FIRST_RESPONSE),
        (OPENS, {"missing_blocks": 9}, [], FIRST_RESPONSE),
        ({**OPENS, **OVERDUE}, {"missing_blocks": 9}, [], FIRST_RESPONSE),
        ({}, {"missing_blocks": 8}, [], FIRST_RESPONSE),
    ],
)
def test_a_turn_takes_idle_kv_of(
    turn: dict[str, bool] | None,
    request_: dict[str, Any],
    taken: list[int],
    settings: dict[str, Any],
) -> None:
    """Of the pins of jobs 9 and 2, of four blocks each, a turn of job 5 takes these."""
    made = None if turn is None else turn_of(5, 5)
    for name, value in (turn or {}).items():
        setattr(made, name, value)
    demand = AllocationRequest(made, **{"has_blocks": False, "num_running": 3, **request_})
    pins = pressed(**settings).pins_that_yield((pin_of(9, 4), pin_of(2, 4)), demand)
    assert [pin.job_order for pin in pins] == taken


@pytest.mark.parametrize(
    ("own_blocks", "exclusive", "common_blocks", "is_enough"),
    [
        *((None, 4, 0, True), (None, 2, 0, False)),  # a system prompt that jobs share
        *((9, 4, 8, False), (9, 4, 2, True)),  # the part of its own pin that its prompt begins with
    ],
)
def test_blocks_that_others_or_the_turn_itself_use_are_no_memory_to_be_had(
    own_blocks: int | None, exclusive: int, common_blocks: int, is_enough: bool
) -> None:
    """Freeing them would make no room for the six blocks that are missing."""
    pins = [pin_of(9, 4), pin_of(8, 4) if own_blocks is None else pin_of(5, own_blocks)]
    pins[0].num_exclusive_blocks = exclusive
    if own_blocks is None:
        pins[1].num_exclusive_blocks = exclusive
    demand = AllocationRequest(turn_of(5, 5), False, 3, 6, common_blocks=common_blocks)
    assert list(pressed().pins_that_yield(pins, demand)) == (pins if is_enough else [])


def test_a_doubtful_pin_yields_first_and_to_all() -> None:
    """The longest silent comes before the others; the rest yields by arrival as ever."""
    pins = [pin_of(9, 4), pin_of(2, 4), pin_of(3, 4)]
    pins[1].doubtful_s, pins[2].doubtful_s, pins[2].pinned_s = 6.0, 5.0, -1.0
    for now_s, order in ((4.0, [9]), (5.0, [3, 9]), (6.0, [3, 2, 9])):
        demand = AllocationRequest(turn_of(5, 5), False, 3, 4, now_s=now_s)
        assert [pin.job_order for pin in pressed().pins_that_yield(pins, demand)] == order


def test_the_newest_job_is_preempted_first() -> None:
    """And of jobs with priorities the least urgent one."""
    made = pressed()
    assert made.victim_rank(turn_of(9, 1)) > made.victim_rank(turn_of(2, 8))
    assert made.victim_rank(turn_of(2, 8, priority=1)) > made.victim_rank(turn_of(9, 1))


@pytest.mark.parametrize(
    ("settings", "there", "num_blocks", "weight", "reason"),
    [
        ({}, (60, 10, 2), 100, 1.0, "110 blocks expected at the peak, the pool has 100"),
        ({}, (60, 10, 2), 110, 1.0, None),
        # a fifth of the pool is left free
        (
            *({"headroom": 0.2}, (60, 10, 2), 130, 1.0),
            "110 blocks expected at the peak, the pool has 130, 20% of them headroom",
        ),
        ({"headroom": 0.2}, (60, 10, 2), 138, 1.0, None),
        # three turns ahead 98 blocks are expected, over all turns 140
        (
            *({"goal": "batch"}, (70, 10, 4), 97, 1.0),
            "98 blocks expected at the peak, the pool has 97, 3 turns ahead",
        ),
        ({"goal": "batch"}, (70, 10, 4), 98, 1.0, None),
        ({}, (70, 10, 4), 139, 1.0, "140 blocks expected at the peak, the pool has 139"),
        # of 80 blocks that an idle job will have 56 count
        (
            *({}, (60, 10, 2, True), 80, 0.7),
            "86 blocks expected at the peak, the pool has 80; idle KV counts by 70%",
        ),
        ({}, (60, 10, 2, True), 100, 0.7, None),
    ],
)
def test_a_new_job_waits_while_the_peak_would_not_fit(
    settings: dict[str, Any],
    there: tuple[Any, ...],
    num_blocks: int,
    weight: float,
    reason: str | None,
) -> None:
    """The reason says how many blocks all jobs are expected to need, and how many the pool has."""
    forecast = KVDemandForecast()
    forecast.put("there", JobDemand(*there))
    request = AdmissionRequest(num_blocks, 40, JobDemand(10, 20, 2), forecast, weight)
    assert pressed(**settings).why_hold_back(request) == reason


def test_the_goal_batch_changes_defaults_and_not_what_is_given() -> None:
    """Nobody goes first because he has waited, unless a setting says so."""
    assert policy(goal="batch").settings.patience_s == 86_400
    given = policy(goal="batch", patience_s=5.0, horizon_turns=0).settings
    assert (given.patience_s, given.horizon_turns) == (5.0, 0)


def test_with_the_first_response_favoured_first_turns_go_first_by_arrival() -> None:
    """Then the fewest tokens to compute; a prompt in the cache is none, who was preempted waits for
    nobody."""
    made = pressed(favour="first-response")
    short, held = turn_of(5, 6), turn_of(1, 2)
    held.num_prompt_tokens, held.common_tokens = 5000, 4950
    assert rank(made, short) < rank(made, held)
    assert made.rank(held, is_preempted=False, is_pinned=True) < rank(made, short)
    preempted = made.rank(held, is_preempted=True, is_pinned=False)
    assert preempted < made.rank(held, is_preempted=False, is_pinned=True)
    small, large = turn_of(7, 8), turn_of(8, 9)
    small.is_first = large.is_first = True
    small.num_prompt_tokens, large.num_prompt_tokens = 10, 9000
    by_arrival = sorted((small, large), key=lambda turn: turn.order)
    ranks = [rank(made, turn) for turn in by_arrival]
    assert ranks == sorted(ranks)
    large.order, small.order = 8, 9
    assert rank(made, large) < rank(made, small) < rank(made, short)
    assert not made.has_admission_control
    assert made.settings.patience_s == 60
    assert policy(favour="first-response", patience_s=20.0).settings.patience_s == 20


def test_a_batch_has_no_first_response_to_favour() -> None:
    """Both would set who waits; the message says which to leave out."""
    with pytest.raises(SettingsError, match="leave out one of the two"):
        policy(goal="batch", favour="first-response")


def test_a_new_job_waits_while_its_prompt_does_not_fit() -> None:
    """Nobody arrived after it, so that there is nobody it could take blocks from."""
    room = AdmissionRequest(100, 9, JobDemand(10, 1, 0), KVDemandForecast())
    assert pressed().why_hold_back(room) == "needs 10 blocks, 9 are free"


def test_pressure_is_on_from_a_shortage_until_none_came_for_a_while() -> None:
    """Each shortage extends it; `rise` and `fall` report only changes."""
    pressure = Pressure()
    assert not pressure.is_on
    assert pressure.rise(10.0, 5.0)
    assert not pressure.rise(12.0, 5.0)
    assert not pressure.fall(16.0)
    assert not pressure.fall(16.9)
    assert pressure.fall(17.0)
    assert not pressure.is_on
    assert not pressure.fall(18.0)


def test_pressure_outlives_the_step_in_which_memory_ran_short() -> None:
    """Even where holding is worth nothing, so that it is to last for no time at all."""
    pressure = Pressure()
    for step_s in (1.0, 2.0, 3.0):
        pressure.rise(step_s, 0.0)
        assert not pressure.fall(step_s + 0.5)
        assert pressure.is_on
    assert pressure.fall(4.0)


def test_growth_starts_from_what_is_published_and_ends_with_what_was_seen() -> None:
    """A new job is expected to take as many turns as others had, on average."""
    growth, job = JobGrowth(), Job("a", 0, first_prompt_tokens=400)
    job.num_turns = 1
    assert growth.turns_left(job) == PRIOR_TURNS - 1
    assert growth.tokens_per_turn(job) == 100
    job.first_prompt_tokens = 40_000
    assert growth.tokens_per_turn(job) == PRIOR_TOKENS
    teach(growth, [31] * 600, 1000)
    assert growth.turns_left(job) == 30
    assert growth.tokens_per_turn(job) == pytest.approx(1000, rel=0.05)


def test_jobs_that_begin_together_are_not_expected_to_stay_small() -> None:
    """A first turn adds its reply alone, later ones a tool's output, too."""
    growth, job = JobGrowth(), newcomer("")
    for _ in range(40):
        growth.turn_ended(newcomer(""), 30)
    assert growth.tokens_per_turn(job) == PRIOR_TOKENS
    job.num_turns = 2
    for _ in range(40):
        growth.turn_ended(job, 1100)
    assert growth.tokens_per_turn(job) > 900


def teach(
    growth: JobGrowth, lengths: list[int], added_tokens: int, client: str = "", kind: object = None
) -> None:
    """Play jobs of that many turns to their ends."""
    for num_turns in lengths:
        job = Job(JobKey(client, "taught"), 0, num_turns=num_turns, kind=kind)
        for _ in range(min(num_turns, MAX_TURNS)):
            growth.turn_ended(job, added_tokens)
        growth.job_ended(job)


def newcomer(client: str, kind: object = None) -> Job:
    return Job(JobKey(client, "new"), 0, num_turns=1, kind=kind, first_prompt_tokens=2000)


def expected_tokens(growth: JobGrowth, job: Job) -> float:
    return growth.turns_left(job) * growth.tokens_per_turn(job)


@pytest.mark.parametrize("before", [0, 500], ids=["a fresh server", "500 jobs of others"])
def test_what_one_client_teaches_holds_no_other_up(before: int) -> None:
    """128 jobs of 128 turns that add 900 tokens each: a job of a client that is known, or is new,
    is not expected to take more than it was before."""
    growth, known, new = JobGrowth(), newcomer("b", "chat"), newcomer("c", "chat")
    teach(growth, [5] * before, 150, "b", "chat")
    expected = [expected_tokens(growth, job) for job in (known, new)]
    teach(growth, [MAX_TURNS] * 128, 900, "a")
    assert [expected_tokens(growth, job) for job in (known, new)] == expected
    assert growth.mean_turns("b", "chat") == pytest.approx(5 if before else PRIOR_TURNS, rel=0.05)


def test_a_new_client_starts_from_what_most_clients_did() -> None:
    """Each client counts there by its first jobs alone."""
    growth = JobGrowth()
    for client in "bdefg":
        teach(growth, [40] * 10, 900, client)
    assert growth.mean_turns("new") == 40
    assert growth.tokens_per_turn(newcomer("new")) == 900


def test_jobs_of_another_kind_are_expected_to_go_on_as_new_kinds_did() -> None:
    """Long jobs of one agent say little of another agent of the same client, and nothing once a few
    jobs of that one have ended."""
    growth = JobGrowth()
    teach(growth, [MAX_TURNS] * 100, 900, "a", "long")
    assert growth.mean_turns("a", "long") > MAX_TURNS - 2
    assert growth.mean_turns("a", "short") == PRIOR_TURNS
    teach(growth, [3] * 5, 50, "a", "short")
    assert growth.turns_left(newcomer("a", "short")) < PRIOR_TURNS / 2
    assert growth.mean_turns("a", "long") > MAX_TURNS - 2


def test_only_the_kinds_and_clients_of_late_are_remembered() -> None:
    """However many there are."""
    growth = JobGrowth()
    for number in range(200):
        teach(growth, [2], 10, f"{number}")
        teach(growth, [2], 10, "one", f"{number}")
    assert len(growth._clients) == MAX_CLIENTS
    assert len(growth._clients["one"]) == MAX_KINDS + 1


def test_a_job_longer_than_all_others_is_expected_to_go_on_as_far_again_beyond_them() -> None:
    """And at least for one turn."""
    growth, job = JobGrowth(), Job("a", 0)
    job.num_turns = PRIOR_TURNS
    assert growth.turns_left(job) == 1
    job.num_turns = PRIOR_TURNS + 7
    assert growth.turns_left(job) == 7


def test_expected_turns_are_believed_until_they_are_passed() -> None:
    """The client knows its own limit."""
    growth, job = JobGrowth(), Job("a", 0, expected_turns=20)
    job.num_turns = 18
    assert growth.turns_left(job) == 2
    job.num_turns = 25
    assert growth.turns_left(job) == 25 - PRIOR_TURNS


def test_more_turns_than_jobs_have_are_not_believed() -> None:
    """A step limit is no expectation, and a claim keeps nobody out."""
    growth, job = JobGrowth(), Job("a", 0, expected_turns=10**9)
    assert growth.turns_left(job) == PRIOR_TURNS
    teach(growth, [10**9] * 99, 0)
    assert growth.mean_turns("") == (PRIOR_TURNS + 99 * MAX_TURNS) / 100
    assert growth.turns_left(job) == growth.mean_turns("")


def test_a_job_has_the_mean_turns_of_the_last_ones() -> None:
    """Those before no longer count."""
    growth = JobGrowth()
    teach(growth, [100, *[4] * WINDOW, *[6] * (WINDOW // 2)], 0)
    assert growth.mean_turns("") == 5.0


def test_patience_tells_each_waiting_turn_once() -> None:
    """A turn that was admitted in time, or is gone, is not overdue."""
    patience = AgingQueue(60.0)
    turns = [turn_of(number, number) for number in range(4)]
    for turn in turns:
        turn.job.live[turn.request_id] = turn
        patience.add(turn)
    turns[0].admitted_s = 3.0
    turns[1].job.live.clear()
    assert patience.pop_aged_out(60.0) is None
    assert [patience.pop_aged_out(61.0) for _ in range(3)] == [turns[2], turns[3], None]
