"""What a client does to another one's share of the pool, on vLLM's real scheduler: 128 blocks."""

from typing import Any

import pytest

from agentkv.protocol import JobKey
from tests.integrations.vllm.harness import Engine, of
from tests.stepped_engine import prompt_of

GREEDY, OTHER = "a" * 16, "b" * 16
POLICIES = ["agentkv", "continuum", "context_serve"]


def engine_of(policy: str = "agentkv", **settings: Any) -> Engine:
    """An engine under whose policy idle KV is worth holding for long."""
    given = {
        "num_blocks": 129,
        "prefill_reload_s": [0.0, 10.0, 0.0],
        "max_num_batched_tokens": 4096,
    }
    given |= {"ttl": "fixed", "fixed_ttl_s": 200.0, "rules": "released"}
    return Engine(policy=policy, **{**given, **settings})


def fill(engine: Engine, *, num_jobs: int = 9, **running: Any) -> None:
    """Idle jobs of the greedy client, of 12 blocks each, and one request of its own that runs."""
    for salt in range(num_jobs):
        engine.turn(prompt_of(16 * 12, salt=salt), **of(GREEDY, job_id=f"idle-{salt}"))
    engine.add(prompt_of(32, salt=70), max_tokens=2000, **of(GREEDY, **running))
    engine.step()
    assert len(engine.pinned) == num_jobs


def idle_blocks(engine: Engine, client: str) -> int:
    prefix = JobKey(client, "")
    return sum(blocks for job_id, blocks in engine.pinned.items() if job_id.startswith(prefix))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("tags", [{"job_id": "new"}, {}], ids=["a new job", "no job"])
def test_idle_kv_above_the_share_yields_at_once(policy: str, tags: dict[str, Any]) -> None:
    """A request of another client gets its blocks in the next step, and no more pins end for it."""
    engine = engine_of(policy)
    fill(engine)
    new = engine.add(prompt_of(16 * 40, salt=51), **of(OTHER))
    engine.step()
    assert new in engine.running()
    assert 64 <= idle_blocks(engine, GREEDY) < 108
    engine.run(max_steps=3000)
    assert engine.lost_blocks() == []


def test_one_client_waits_for_its_own_idle_kv() -> None:
    """With one client the policy alone decides: the same request waits."""
    engine = engine_of()
    fill(engine)
    new = engine.add(prompt_of(16 * 40, salt=51), **of(GREEDY, job_id="new"))
    engine.step()
    assert engine.waiting() == [new]
    assert idle_blocks(engine, GREEDY) == 108


def test_signals_and_hints_keep_no_idle_kv_from_another_client() -> None:
    """Tool signals, sub-agents, expected turns and priorities hold none from another client."""
    engine = engine_of()
    tags = {"priority": -1000, "expected_turns": 1000}
    for salt in range(9):
        parent = {"parent_job_id": "idle-0"} if salt else {}
        job = of(GREEDY, job_id=f"idle-{salt}", **tags, **parent)
        engine.turn(prompt_of(16 * 12, salt=salt), **job)
    for state in ("started", "finished"):
        for salt in range(9):
            engine.tool(JobKey(GREEDY, f"idle-{salt}"), state)
    engine.add(prompt_of(32, salt=70), max_tokens=2000, **of(GREEDY, **tags))
    new = engine.add(prompt_of(16 * 40, salt=51), **of(OTHER, job_id="new"))
    engine.step()
    assert new in engine.running()


def test_pins_shared_with_a_tiny_running_request_count_in_full() -> None:
    """Idle KV that was also held by a running request when it was pinned is its client's all the
    same."""
    engine = engine_of()
    for salt in range(9):
        prompt = prompt_of(16 * 12, salt=salt)
        tiny = engine.add(prompt, max_tokens=50, **of(GREEDY))
        engine.step()
        turn = engine.add(
            prompt, max_tokens=4, **of(GREEDY, job_id=f"idle-{salt}", expected_turns=1)
        )
        while turn in engine.scheduler.requests:
            engine.step()
        engine.abort(tiny)
    assert all(pin.num_exclusive_blocks < 2 for pin in engine.retention.pins)
    engine.add(prompt_of(32, salt=70), max_tokens=2000, **of(GREEDY))
    new = engine.add(prompt_of(16 * 40, salt=51), **of(OTHER))
    engine.step()
    engine.step()
    assert new in engine.running()


def test_a_client_above_its_share_stands_behind_others() -> None:
    """Its turns of old jobs with the best priority wait behind a later one of another client."""
    engine = engine_of(max_num_seqs=2)
    fill(engine)
    engine.add(prompt_of(32, salt=71), max_tokens=2000, **of(GREEDY))
    engine.step()
    for salt in range(5):
        engine.add(
            [*prompt_of(16 * 12, salt=salt), 1, 2],
            priority=-1000,
            **of(GREEDY, job_id=f"idle-{salt}"),
        )
    new = engine.add(prompt_of(16 * 8, salt=51), **of(OTHER, job_id="new"))
    engine.step()  # from now on requests are left waiting
    engine.step()
    assert engine.waiting()[0] == new


def test_a_client_within_its_share_keeps_its_pins() -> None:
    """A running request takes blocks from pins of the client that is above its share first."""
    engine = engine_of()
    fill(engine, num_jobs=8)
    engine.add(prompt_of(16 * 12, salt=52), **of(OTHER, job_id="mine"))
    engine.steps(600)
    assert engine.pinned[JobKey(OTHER, "mine")] == 12
    assert idle_blocks(engine, GREEDY) < 96


def test_a_client_above_its_share_is_preempted_first() -> None:
    """A turn of a newer job stays though an older job of another client grows."""
    engine = engine_of()
    engine.turn(prompt_of(16, salt=3), **of(GREEDY, job_id="old"))
    for salt in range(5):
        engine.add(
            prompt_of(16 * 19, salt=20 + salt),
            max_tokens=400,
            **of(GREEDY, job_id="old" if salt == 0 else f"other-{salt}", parent_job_id="old"),
        )
        engine.step()
    new = engine.add(prompt_of(16 * 10, salt=51), max_tokens=300, **of(OTHER, job_id="new"))
    engine.step()
    for _ in range(250):
        engine.step()
        assert new in engine.running()
    assert engine.totals["preemptions_total"] > 0


def test_a_request_waits_for_pins_within_their_share_for_the_patience_at_most() -> None:
    """A context larger than a share gets what idle KV within its share has, after `patience_s`."""
    engine = engine_of(patience_s=5.0)
    fill(engine, num_jobs=5)
    new = engine.add(prompt_of(16 * 80, salt=51), **of(OTHER))
    began_s = engine.clock.now_s
    while new not in engine.running():
        assert idle_blocks(engine, GREEDY) == 60
        engine.step(step_s=0.1)
        assert engine.clock.now_s - began_s < 5.5
    assert engine.clock.now_s - began_s > 5.0


@pytest.mark.parametrize(
    ("settings", "num_blocks", "left"),
    [
        ({"client_share": 0.25}, 100, (20, 32)),
        ({"client_share": 0.9}, 25, (108, 108)),
    ],
    ids=["a quarter", "nine tenths"],
)
def test_a_client_keeps_its_share_while_others_want_memory(
    settings: dict[str, Any], num_blocks: int, left: tuple[int, int]
) -> None:
    """It is `client_share`; the rest goes to the others."""
    engine = engine_of(**settings)
    fill(engine)
    new = engine.add(prompt_of(16 * num_blocks, salt=51), **of(OTHER))
    engine.step()
    assert left[0] <= idle_blocks(engine, GREEDY) <= left[1]
    assert (new in engine.running()) or left == (108, 108)


def test_a_flood_of_jobs_pushes_out_none_of_another_client() -> None:
    """Beyond `max_jobs` a job of the client that has most is forgotten."""
    engine = Engine(num_blocks=129, max_jobs=20)
    engine.turn(prompt_of(20, salt=1), **of(OTHER, job_id="mine"))
    for salt in range(60):
        engine.turn(prompt_of(20, salt=100 + salt), max_tokens=1, **of(GREEDY, job_id=f"{salt}"))
        engine.wait(1.0)
    assert engine.retention.jobs.get(JobKey(OTHER, "mine")) is not None
    assert len(engine.retention.jobs) <= 21
