"""Models whose layers differ, on vLLM's real scheduler and pools: what can be hit is held, no more.

Blocks have 16 tokens here, and a recurrent layer's state is in the cache for the last whole block
of a prompt alone, as vLLM keeps it in its `align` mode.
"""

from typing import Any

import pytest

from tests.integrations.vllm.harness import STOCK, Engine
from tests.integrations.vllm.step_table import Row, check
from tests.stepped_engine import prompt_of

POLICIES = ("continuum", "context_serve", "agentkv")


def step_s(output: Any) -> float:
    return 0.02 + 0.002 * float(output.total_num_scheduled_tokens)


def hit_tokens_of(policy: str, num_blocks: int, **shape: object) -> int:
    """Prompt tokens found by six jobs of five turns that run `ls`, each as long as the reply."""
    stock = {"scheduler_class": STOCK[False]} if policy == "fcfs" else {"policy": policy}
    engine = Engine(num_blocks=num_blocks, max_num_batched_tokens=128, **stock, **shape)
    prompts = {f"job-{salt}": prompt_of(30, salt=salt) for salt in range(6)}
    due = {(0.1 * number, job): 1 for number, job in enumerate(prompts)}
    start_s, found, live = engine.clock.now_s, 0, {}
    while due or live:
        now_s = round(engine.clock.now_s - start_s, 3)
        for at_s, job in sorted(place for place in due if place[0] <= now_s):
            turn = due.pop((at_s, job))
            tags = {"job_id": job, "is_last_step": turn == 5} if policy != "fcfs" else {}
            reply = {"reply": "So:\n```bash\nls\n```"}
            request_id = engine.add(prompts[job], **reply, **tags)
            live[request_id] = (job, turn, engine.scheduler.requests[request_id])
        if not live:
            engine.wait(min(due)[0] - now_s)
            continue
        for request in engine.step(step_s=step_s).scheduled_new_reqs:
            found += request.num_computed_tokens
        for request_id in live.keys() - engine.scheduler.requests.keys():
            job, turn, request = live.pop(request_id)
            if turn < 5:
                prompts[job] = [
                    *request.all_token_ids,
                    *prompt_of(7, salt=100 * turn + int(job[4:])),
                ]
                due[round(engine.clock.now_s - start_s + 0.4, 3), job] = turn + 1
    assert engine.lost_blocks() == []
    return found


@pytest.mark.parametrize("num_groups", [1, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_held_is_hit(policy: str, num_groups: int) -> None:
    """No policy hits less than stock, and with room for all that can be hit each hits all of it."""
    shape = {"num_state_groups": num_groups}
    all_tokens = hit_tokens_of("fcfs", 400, **shape)
    short, roomy = (28, 48) if num_groups == 1 else (56, 80)
    assert hit_tokens_of(policy, roomy, **shape) >= 0.98 * all_tokens
    assert hit_tokens_of(policy, short, **shape) > 1.2 * hit_tokens_of("fcfs", short, **shape)


STATES: list[Row] = [
    # 100 tokens: six blocks of attention and one state of each group can be hit, of 7 and 2
    (0, ("turn", "a", 100), {"a": 8}, 31),
    # of the next turn's 204 tokens 12 blocks, and no more of the old states
    (0, ("turn", "a", 97), {"a": 14}, 25),
    # a prompt of less than a block leaves nothing that can be hit
    (0, ("turn", "b", 10), {"a": 14}, 25),
    (0, ("release", "a"), {}, 39),
]


@pytest.mark.parametrize("is_async", [False, True])
def test_blocks_behind_the_last_state_are_given_back(is_async: bool) -> None:
    """A pin holds the attention's blocks up to the state at its end, and one state a group."""
    engine = Engine(num_blocks=40, num_state_groups=2, is_async=is_async)
    assert engine.scheduler.bounds()["num_state_groups"] == 2
    check(engine, STATES)


def test_hits_fall_on_the_match_unit_where_one_is_set() -> None:
    """With `--prefix-match-unit` the state of the prompt's last unit is held: all but the reply."""
    engine = Engine(num_blocks=40, num_state_groups=1, match_tokens=4)
    history = engine.turn(prompt_of(103), job_id="a")
    assert engine.pinned == {"a": 8}  # 6.25 blocks, and the state
    engine.add([*history, *prompt_of(9, salt=2)], job_id="a")
    (request,) = engine.step().scheduled_new_reqs
    assert request.num_computed_tokens == 100


def test_the_state_of_a_prompts_end_outlives_a_long_reply() -> None:
    """vLLM frees it when the reply begins; by the turn's end others would have taken it."""
    engine = Engine(num_blocks=24, num_state_groups=1)
    engine.add(prompt_of(100), job_id="a", max_tokens=60)
    engine.steps(3)
    for salt in range(1, 8):
        engine.turn(prompt_of(100, salt=salt), max_tokens=2)
    engine.run()
    assert engine.pinned == {"a": 7}


def test_a_state_is_given_up_before_a_turn_is_preempted() -> None:
    """What is held of running turns yields to a running turn that needs a block."""
    engine = Engine(num_blocks=20, num_state_groups=1)
    engine.add(prompt_of(108, salt=1), job_id="long", max_tokens=14)
    other = engine.add(prompt_of(100, salt=2), job_id="other", max_tokens=12)
    engine.steps(4)
    assert other in engine.scheduler.prompt_ends
    engine.steps(5)
    assert other not in engine.scheduler.prompt_ends
    engine.run()
    assert engine.totals.get("preemptions_total", 0) == 0
    assert engine.lost_blocks() == []


def test_no_pin_is_taken_for_a_state_that_is_computed_in_this_step() -> None:
    """A request that hits it waits for a step, also if memory is free."""
    engine = Engine(num_blocks=60, num_state_groups=1)
    engine.turn(prompt_of(100, salt=5), job_id="held")
    for name in "ab":
        engine.add(prompt_of(100), job_id=name)
        engine.add([*prompt_of(96), *prompt_of(20, salt=7)], job_id=f"{name}-next")
    engine.run()
    assert "held" in engine.pinned


def test_what_no_state_covers_is_not_missed() -> None:
    """The tokens behind the last state are not expected in the cache: no miss, nothing evicted."""
    engine = Engine(num_blocks=40, num_state_groups=1)
    history = engine.turn(prompt_of(110), job_id="a", max_tokens=20)
    engine.turn([*history, *prompt_of(20, salt=1)], job_id="a")
    (reused,) = (each for each in engine.events["a"] if each["event"] == "reuse")
    assert (reused["expected_tokens"], reused.get("miss")) == (96, None)
    assert engine.totals.get("evicted_turns_total", 0) == 0


def test_the_gate_counts_new_jobs_of_the_same_step() -> None:
    """Two that fit alone and not together are not both let in, being asked about at once."""
    engine = Engine(policy="agentkv", num_blocks=121, max_num_batched_tokens=2048)
    engine.add(prompt_of(100), job_id="busy", max_tokens=100)
    engine.step()
    names = [engine.add(prompt_of(320, salt=salt), job_id=f"job-{salt}") for salt in (1, 2)]
    engine.step()
    assert [name in engine.running() for name in names] == [True, False]
