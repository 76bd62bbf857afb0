"""The requests of a job's turns, and what is read from replies."""

from dataclasses import replace
from typing import Any

from agentkv.evals.player.job import Conversation
from agentkv.evals.workload.plans import JobPlan, Prefix, TurnPlan

JOB = JobPlan("j", 0.0, (TurnPlan(20, 3, "ls", 0.1), TurnPlan(10, 2, "", 0.0)))
TOKENS = list(range(1000))


def token_event(*tokens: int) -> dict[str, Any]:
    return {"token_ids": list(tokens)}


def first_turn(run_id: str, job: JobPlan, *output: int) -> tuple[list[int], str, str]:
    """The prompt and the salt of a job's first request, and the digest of its output."""
    conversation = Conversation(job, "m", TOKENS, 0, run_id)
    extra = conversation.request(0)["extra_body"]
    conversation.read(token_event(*output))
    conversation.end_turn(0)
    return extra["prompt"], extra["cache_salt"], conversation.output_digest()


def test_a_replay_has_exact_lengths_and_repeats_all_that_came_before() -> None:
    """The second prompt is the first, the tokens generated, and the planned number of new ones."""
    conversation = Conversation(JOB, "m", TOKENS, 0, "run")
    first = conversation.request(0)
    assert conversation.read(token_event(7, 8))
    assert conversation.read(token_event(9))
    assert not conversation.read({"finish_reason": "length"})
    assert conversation.end_turn(0) == "ls"
    # the body's extra fields replace its own
    extra, second = first["extra_body"], conversation.request(1)["extra_body"]["prompt"]
    assert first["max_tokens"] == extra["min_tokens"] == 3
    assert (extra["ignore_eos"], first["temperature"]) == (True, 0.0)
    assert len(extra["prompt"]) == 20
    assert second[:23] == [*extra["prompt"], 7, 8, 9]
    assert len(second) == JOB.prompt_tokens(1) == 33


def test_runs_and_jobs_do_not_share_a_cache() -> None:
    """Each run and job has its own salt; text, and the digest of equal outputs, are the same."""
    prompts, salts, digests = zip(
        first_turn("one", JOB, 1, 2, 3),
        first_turn("two", JOB, 1, 2, 3),
        first_turn("one", JobPlan("k", 0.0, JOB.turns), 1, 2, 4),
        strict=True,
    )
    assert prompts[0] == prompts[1] != prompts[2]
    assert digests[0] == digests[1] != digests[2]
    assert len(set(salts)) == 3


def test_jobs_with_a_common_prefix_share_it_and_the_salt() -> None:
    """Prompts are equal for the length of the prefix, nested ones too, and differ behind it."""
    nested = (Prefix("tools", 8), Prefix("group", 12))
    jobs = [replace(JOB, job_id=name, prefixes=nested) for name in "ab"]
    jobs.append(replace(JOB, job_id="c", prefixes=(nested[0], Prefix("other group", 12))))
    prompts, salts, _ = zip(*(first_turn("run", job, 1, 2, 3) for job in jobs), strict=True)
    assert {len(prompt) for prompt in prompts} == {20}
    assert prompts[0][:12] == prompts[1][:12]
    assert prompts[0][:8] == prompts[2][:8]
    assert len({prompt[12] for prompt in prompts[:2]}) == 2
    assert prompts[0][8] != prompts[2][8]
    assert len(set(salts)) == 1
    assert first_turn("another run", jobs[0], 1, 2, 3)[1] != salts[0]
