"""The requests of a job's turns, and what is read from replies."""

from __future__ import annotations

from typing import Any

import pytest

from agentkv.evals.player.conversations import LiveConversation, ReplayConversation, Windows
from agentkv.evals.workload.plans import JobPlan, TurnPlan
from agentkv.evals.workload.sample_text import sample_text, sections

JOB = JobPlan("j", 0.0, (TurnPlan(20, 3, "ls", 0.1), TurnPlan(10, 2, "", 0.0)))
TOKENS = Windows(list(range(1000)), seed=0)


def replay(run_id: str = "run", job: JobPlan = JOB) -> ReplayConversation:
    return ReplayConversation(job, model="m", windows=TOKENS, run_id=run_id)


def prompt_of(request: dict[str, Any]) -> list[int]:
    """What the server gets: the body's extra fields replace its own."""
    prompt: list[int] = request["extra_body"]["prompt"]
    return prompt


def token_event(*tokens: int) -> dict[str, Any]:
    return {"choices": [{"token_ids": list(tokens)}]}


def test_a_replay_has_exact_lengths_and_repeats_all_that_came_before() -> None:
    """The second prompt is the first, the tokens generated, and the planned number of new ones."""
    conversation = replay()
    first = conversation.request(0)
    assert conversation.read(token_event(7, 8))
    assert conversation.read(token_event(9))
    assert not conversation.read({"choices": [], "usage": {}})
    assert conversation.end_turn(0) == "ls"
    second = conversation.request(1)
    extra = first["extra_body"]
    assert first["max_tokens"] == extra["min_tokens"] == 3
    assert (extra["ignore_eos"], first["temperature"]) == (True, 0.0)
    assert len(prompt_of(first)) == 20
    assert prompt_of(second)[:23] == [*prompt_of(first), 7, 8, 9]
    assert len(prompt_of(second)) == JOB.prompt_tokens(1) == 33


def test_runs_and_jobs_do_not_share_a_cache() -> None:
    """Each run and job has its own salt, and the text is the same in every run."""
    requests = [replay("one").request(0), replay("two").request(0)]
    assert prompt_of(requests[0]) == prompt_of(requests[1])
    assert requests[0]["extra_body"]["cache_salt"] != requests[1]["extra_body"]["cache_salt"]
    other = replay("one", JobPlan("k", 0.0, JOB.turns)).request(0)
    assert prompt_of(other) != prompt_of(requests[0])
    assert other["extra_body"]["cache_salt"] != requests[0]["extra_body"]["cache_salt"]


def test_a_digest_tells_outputs_apart() -> None:
    """Equal outputs of a turn have equal digests, and others differ."""
    digests = []
    for tokens in ((1, 2, 3), (1, 2, 3), (1, 2, 4)):
        conversation = replay()
        conversation.request(0)
        conversation.read(token_event(*tokens))
        conversation.end_turn(0)
        digests.append(conversation.output_digest())
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("reply", "commands"),
    [("```bash\ngit status\n```", ["git status", ""]), ("I do not know.", ["ls", ""])],
)
def test_a_live_chat_keeps_the_models_own_words(reply: str, commands: list[str]) -> None:
    """The reply is in the next request; its command runs, or the planned one if it has none."""
    live = LiveConversation(JOB, "m", Windows(sample_text(), seed=0), max_output_tokens=64)
    for turn, command in enumerate(commands):
        messages = live.request(turn)["messages"]
        assert not live.read({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        assert live.read({"choices": [{"delta": {"content": reply}}]})
        assert live.end_turn(turn) == command
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert messages[2]["content"] == reply


def test_the_sample_text_is_the_same_everywhere() -> None:
    """Text is ASCII in whole lines, the same each time; a window of it goes round at its end."""
    assert list(sections()) == list(sections())
    assert sample_text().isascii()
    assert all(section.endswith("\n") for section in sections())
    windows = Windows([1, 2, 3], seed=0)
    assert windows.draw("j", 0, 10) == windows.draw("j", 0, 10)
    assert windows.draw("j", 0, 10)[:6] == windows.draw("j", 0, 3) * 2
