"""What turns were expected to find in the cache, what they found, and why not all of it."""

from __future__ import annotations

from typing import Any

import pytest

from agentkv.integrations.vllm.api import engine_side
from agentkv.integrations.vllm.watch import why
from agentkv.integrations.vllm.watch.job_view import job_views
from agentkv.protocol import JobKey
from tests.integrations.vllm.harness import Engine
from tests.stepped_engine import BLOCK_TOKENS, prompt_of

POOL = 64
PINNED = {"policy": "continuum", "ttl": "fixed", "fixed_ttl_s": 100.0, "rules": "released"}
"""Everything is pinned, and nothing is given up before the TTL is over unless nothing else runs."""


def history(engine: Engine) -> Any:
    return engine.scheduler.watchers.misses


def turns_of(engine: Engine, job_id: str, viewer: str | None = None) -> list[dict[str, Any]]:
    return engine_side.turns_of(engine.scheduler, JobKey.read(job_id), viewer)


def last_turn(engine: Engine, job_id: str) -> dict[str, Any]:
    return turns_of(engine, job_id)[-1]


def fill(engine: Engine, num_tokens: int, *, salt: int = 99, **tags: Any) -> None:
    """Run a request of its own that allocates this many tokens' blocks and frees them."""
    engine.turn(prompt_of(num_tokens, salt=salt), max_tokens=1, **tags)


def test_a_job_has_one_hit_rate() -> None:
    """Of later turns' prompt tokens the share found is one number in each answer of the engine, in
    the fold over the event log, and in the counters; side requests count nowhere."""
    engine = Engine(num_blocks=POOL, **PINNED)
    context = engine.turn(prompt_of(200), job_id="a")
    engine.turn(prompt_of(40, salt=9), job_id="a")  # a side request
    context = engine.turn(context + prompt_of(40, salt=3), job_id="a")
    engine.turn([*context[:100], 7, *context[101:]], job_id="a")

    def ask(operation: str, *args: Any) -> Any:
        return engine_side.call(engine.scheduler, operation, list(args))

    (view,) = job_views("a", engine.events["a"])
    expected = view.tokens.as_dict()
    assert (view.tokens.later_prompt_tokens, view.tokens.later_hit_tokens) == (492, 288)
    assert view.tokens.hit_rate == 288 / 492
    (listed,), (explained,) = ask("jobs", None, ["a"]), ask("explain", None, ["a"])
    released, ended = ask("release", "a"), ask("live", None, {})["events"][-1]
    for answer in (listed, explained, ask("stats"), released, ended):
        assert answer["tokens"] == expected
    totals = engine.totals
    later = [
        sum(tokens for turn, tokens in totals[f"{name}_tokens_total"].items() if turn != "1")
        for name in ("prompt", "hit")
    ]
    assert later == [492, 288]


def lose(engine: Engine, context: list[int], how: str) -> list[int]:
    """Let a job lose its cached context in one of several ways; returns its next prompt."""
    if how == "pressure":
        fill(engine, 950, job_id="taker")
    elif how == "ttl":
        engine.wait(200.0)
    elif how == "released":
        engine.retention.release("a")
    elif how == "reset":
        assert engine.scheduler.reset_prefix_cache()
    elif how == "diverged":
        context = [*context[:50], 7, *context[51:]]
    for part in range(3):
        fill(engine, 700, salt=part + 70)
    return context + prompt_of(40, salt=3)


@pytest.mark.parametrize(
    ("how", "lost_tokens", "facts"),
    [
        ("pressure", 192, {"taken_by": "taker", "ttl_s": 100.0, "ended_by": "pressure"}),
        ("ttl", 192, {"ttl_s": 100.0, "ended_by": "expired", "tool_s": pytest.approx(200, abs=1)}),
        ("released", 192, {"ended_by": "released"}),
        ("reset", 192, {}),
        ("diverged", 192 - 48, {"diverged_at": 48, "of_tokens": 192}),
    ],
)
def test_why_tokens_are_computed_again(how: str, lost_tokens: int, facts: dict[str, Any]) -> None:
    """A turn that finds less than its job had left has the reason, and the tokens count."""
    engine = Engine(num_blocks=POOL, **PINNED)
    context = engine.turn(prompt_of(200), job_id="a")
    engine.turn(lose(engine, context, how), job_id="a")
    turn = last_turn(engine, "a")
    assert turn["expected_tokens"] == 192
    miss = turn["miss"]
    assert (miss["reason"], miss["tokens"]) == (how, lost_tokens)
    assert {name: miss[name] for name in facts} == facts
    recomputed = history(engine).total.recomputed_tokens
    assert {reason: n for reason, n in recomputed.items() if n} == {how: lost_tokens}


def test_no_memory_for_it_at_all() -> None:
    """Without a pin the reason is a TTL of 0, since stock's order alone had kept the blocks."""
    engine = Engine(num_blocks=POOL, policy="continuum", ttl="fixed", fixed_ttl_s=0.0)
    context = engine.turn(prompt_of(200), job_id="a")
    engine.turn(lose(engine, context, "nothing"), job_id="a")
    miss = last_turn(engine, "a")["miss"]
    assert (miss["reason"], miss["ttl_s"], miss["tokens"]) == ("ttl", 0.0, 192)


def test_another_clients_job_is_not_named() -> None:
    """The job that took the memory is named to its own client and to a viewer of all jobs only."""
    engine = Engine(num_blocks=POOL, **PINNED)
    context = engine.turn(prompt_of(200), job_id="a", agentkv_client="1" * 16)
    fill(engine, 950, job_id="taker", agentkv_client="2" * 16)
    engine.turn(context + prompt_of(40, salt=3), job_id="a", agentkv_client="1" * 16)
    job = next(job for job in engine.retention.jobs if job.own_id == "a")
    seen = {
        viewer: turns_of(engine, job.job_id, viewer)[-1]["miss"]["taken_by"]
        for viewer in ("1" * 16, "2" * 16, None)
    }
    assert seen == {"1" * 16: "another client's job", "2" * 16: "taker", None: "taker"}


def test_a_preempted_turn_computes_again_under_pressure() -> None:
    """The tokens that a preempted turn computes a second time count as lost to pressure."""
    engine = Engine(num_blocks=16, **PINNED)
    engine.add(prompt_of(100), job_id="a", max_tokens=60)
    engine.add(prompt_of(100, salt=1), job_id="b", max_tokens=60)
    engine.run()
    totals = engine.totals
    assert totals["preemptions_total"] > 0
    assert totals["recomputed_tokens_total"]["pressure"] > 0


def test_everything_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are kept up to a number, turns up to a number a job, and block hashes up to their
    bytes."""
    monkeypatch.setattr(why, "MAX_JOBS", 4)
    monkeypatch.setattr(engine_side, "MAX_TURNS", 5)
    monkeypatch.setattr(why, "MAX_PROMPT_BYTES", 30 * 80)
    engine = Engine(num_blocks=POOL, **PINNED)
    for job in range(10):
        context = prompt_of(100, salt=job)
        for _ in range(job):
            context = engine.turn(context, job_id=f"j{job}")
    record = history(engine)
    assert [job for job in range(10) if record.knows(f"j{job}")] == [6, 7, 8, 9]
    assert [len(turns_of(engine, f"j{job}")) for job in range(2, 10)] == [2, 3, 4, 5, 5, 5, 5, 5]
    assert sum(len(left.block_hashes) for left in record._prompts.values()) <= 30
    assert not record._waiting


def test_without_hashes_a_divergence_is_found_by_checkpoints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job whose block hashes were dropped has its divergence at the checkpoint before it."""
    monkeypatch.setattr(why, "MAX_PROMPT_BYTES", 0)
    engine = Engine(num_blocks=POOL, **PINNED)
    context = engine.turn(prompt_of(400), job_id="a")
    engine.turn([*context[:200], 7, *context[201:], 5], job_id="a")
    at = last_turn(engine, "a")["miss"]["diverged_at"]
    assert at <= 200
    assert at % BLOCK_TOKENS == 0


def kinds_of(context: list[int], turns: list[list[int]]) -> dict[str, list[int]]:
    """Next prompts that differ from a context in each of the ways that its place tells."""
    first, second = len(turns[0]), len(turns[1])
    new = prompt_of(80, salt=3)
    return {
        "start": [*context[: first - 60], 7, *context[first - 59 :], *new],
        "history": [*context[: first + 80], 7, *context[first + 81 :], *new],
        "reply": [*context[: second + 5], *new],
        "compacted": [*context[:100], *new],
    }


@pytest.mark.parametrize("show_prompts", [False, True])
@pytest.mark.parametrize("kind", ["start", "history", "reply", "compacted"])
def test_the_place_of_a_divergence_tells_its_kind(kind: str, show_prompts: bool) -> None:
    """By the block that differs, or with `show_prompts` the token: in the first turn's prompt,
    later, in the last reply, or in a prompt that has become shorter."""
    engine = Engine(num_blocks=POOL, show_prompts=show_prompts, **PINNED)
    turns = [prompt_of(160)]
    context = engine.turn(turns[0], job_id="a", max_tokens=60)
    turns.append(context + prompt_of(150, salt=2))
    context = engine.turn(turns[1], job_id="a", max_tokens=60)
    prompt = kinds_of(context, turns)[kind]
    engine.turn(prompt, job_id="a")
    miss = last_turn(engine, "a")["miss"]
    place = next(i for i, (a, b) in enumerate(zip(context, prompt, strict=False)) if a != b)
    shown = place if show_prompts else place // BLOCK_TOKENS * BLOCK_TOKENS
    assert (miss["kind"], miss["diverged_at"]) == (kind, shown)
    assert ("text_was" in miss) == show_prompts


PLAIN = [f"w{number}" for number in range(240)]
EDITS: dict[str, tuple[list[str], str, str, str]] = {
    "edited": ([*PLAIN[:30], "Tuesday", *PLAIN[31:]], "w29 ", "w30 w31", "Tuesday w31"),
    "reordered": ([*PLAIN[:40], *PLAIN[140:240], *PLAIN[40:140]], "w39 ", "w40 w41", "w140 w141"),
}


@pytest.mark.parametrize("change", EDITS)
def test_the_words_that_differ_are_shown_if_they_may(change: str) -> None:
    """With `show_prompts` a miss has a few words of both prompts, and says edit or reordering."""
    engine = Engine(num_blocks=POOL, show_prompts=True, **PINNED)
    known = {each: engine.vocabulary.encode(f"{each} ", 1)[0] for each in [*PLAIN, "Tuesday"]}
    other, *texts = EDITS[change]
    plain = [known[word] for word in PLAIN]
    reply = engine.turn(plain, job_id="a")[len(plain) :]
    engine.turn([known[word] for word in other] + reply + plain[:2], job_id="a")
    miss = last_turn(engine, "a")["miss"]
    assert miss["change"] == change
    assert miss["text_before"].endswith(texts[0])
    assert miss["text_was"].startswith(texts[1])
    assert miss["text_now"].startswith(texts[2])


def test_tokens_are_kept_only_of_live_jobs_and_only_if_they_may_be_shown() -> None:
    """Without `show_prompts` no token is kept; with it those of a job go when the job ends."""
    for show_prompts, num_tokens in ((False, 0), (True, 204)):
        engine = Engine(num_blocks=POOL, show_prompts=show_prompts, **PINNED)
        engine.turn(prompt_of(200), job_id="a")
        (left,) = history(engine)._prompts.values()
        assert len(left.token_ids) == num_tokens
        engine.retention.release("a")
        assert not left.token_ids
        assert history(engine)._prompt_bytes == left.num_bytes


def test_the_worst_jobs_are_explained_first() -> None:
    """Jobs are explained by id or by what they computed again, to their client, also when over."""
    engine = Engine(num_blocks=POOL, **PINNED)
    for number, job in enumerate(("good", "bad", "worse")):
        context = engine.turn(prompt_of(200, salt=number), job_id=job, agentkv_client="1" * 16)
        context = context[: 200 - 50 * number] + prompt_of(99, salt=7)
        engine.turn(context, job_id=job, agentkv_client="1" * 16)
        for known in list(engine.retention.jobs):
            engine.retention.release(known.job_id)

    def explained(client: str | None, *asked: Any) -> list[dict[str, Any]]:
        keys = engine_side.keys_to_explain(engine.scheduler, client, *asked)
        return engine_side.explain(engine.scheduler, client, keys)

    assert [job["job_id"] for job in explained("1" * 16, None, 2)] == ["worse", "bad"]
    assert explained("2" * 16, None, 2) == explained("2" * 16, "bad", 1) == []
    (job,) = explained(None, "bad", 1)
    assert [turn["turn"] for turn in job["turns"]] == [1, 2]
    assert job["turns"][1]["miss"]["why"].startswith("diverged at token")
