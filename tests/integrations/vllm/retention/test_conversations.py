"""Which of the requests under one id are the job's turns, on vLLM's real scheduler."""

from typing import Any

import pytest

from agentkv.integrations.vllm.api import engine_side
from tests.integrations.vllm.harness import Engine
from tests.stepped_engine import prompt_of

CALL = "So:\n```bash\nls\n```"
SYSTEM = prompt_of(16 * 6, salt=70)


def an_engine(**settings: Any) -> Engine:
    return Engine(num_blocks=400, prefill_reload_s=[0.0, 1.0, 0.0], **settings)


def explained(engine: Engine, job_id: str) -> dict[str, Any]:
    (job,) = engine_side.explain(engine.scheduler, None, [job_id])
    return job


@pytest.mark.parametrize("is_first", [True, False])
def test_a_title_asked_for_with_the_first_turn_is_no_turn(is_first: bool) -> None:
    """It comes before the job's first turn or while that runs, and takes nothing of its place."""
    engine = an_engine()
    task, title = prompt_of(16 * 20, salt=1), prompt_of(16 * 5, salt=2)
    requests = [title, task] if is_first else [task, title]
    for prompt in requests:
        engine.add(prompt, job_id="s", max_tokens=4)
    engine.run()
    assert engine.pinned == {"s": 20}
    assert engine.retention.jobs.get("s").num_diverged == 0


def test_conversations_under_one_id_are_told_apart_by_their_prompts() -> None:
    """Once a prompt goes on from one that the job has left, each conversation holds its own KV."""
    engine = an_engine()
    histories = [SYSTEM + prompt_of(16 * 4, salt=salt) for salt in range(3)]
    for _ in range(4):
        for index, history in enumerate(histories):
            histories[index] = engine.turn(history, job_id="app", reply=CALL) + prompt_of(20)
    assert len(engine.pinned) == 3
    assert engine.totals["shared_ids_total"] == 1
    assert explained(engine, "app")["is_id_shared"]


@pytest.mark.parametrize(
    ("edit", "pinned"),
    [
        # a counter at the start: nothing can hit, so nothing is pinned
        (lambda history, turn: prompt_of(4, salt=turn) + history[4:], []),
        (lambda history, turn: history[: len(history) // 2] + prompt_of(30, salt=turn), ["j"]),
        (
            lambda history, turn: history if turn % 2 else history[:-30] + prompt_of(9, salt=turn),
            ["j"],
        ),
    ],
    ids=["start", "compacted", "tail"],
)
def test_one_conversation_that_changes_is_not_taken_for_several(
    edit: Any, pinned: list[str]
) -> None:
    """Edits, compactions and turns sent again leave an id one job."""
    engine = an_engine()
    history = SYSTEM + prompt_of(16 * 8, salt=1)
    for turn in range(6):
        prompt = edit(history, turn)
        history = engine.turn(prompt, job_id="j", reply=CALL) + prompt_of(20, salt=turn)
    assert list(engine.pinned) == pinned
    assert not explained(engine, "j")["is_id_shared"]


def test_a_cap_of_the_caller_bounds_every_ttl() -> None:
    """`max_ttl_s` holds for the pin of that turn, however it is priced; 0 pins nothing."""
    engine = an_engine(policy="agentkv")
    history = engine.turn(prompt_of(16 * 20), job_id="j", max_ttl_s=1.5)
    assert engine.pinned == {"j": 20}
    engine.tool("j", "started", "make -j8 all")
    engine.wait(1.6)
    assert engine.pinned == {}
    history = engine.turn([*history, 1], job_id="j", max_ttl_s=0)
    assert engine.pinned == {}
    engine.turn([*history, 2], job_id="j")
    assert engine.pinned == {"j": 20}


def test_a_minimal_last_request_ends_the_job() -> None:
    """Dynamo's clients end a session by a request of a few tokens: the pin goes, and the job."""
    engine = an_engine()
    engine.turn(prompt_of(16 * 20), job_id="d")
    assert engine.pinned == {"d": 20}
    engine.turn(prompt_of(3, salt=9), job_id="d", is_last_step=True, max_tokens=1)
    assert engine.pinned == {}
    assert engine.retention.jobs.get("d") is None
