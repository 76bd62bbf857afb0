"""Each named workload has the shape that its sources state."""

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentkv.evals.workload.plans import JobPlan, with_children
from agentkv.evals.workload.workloads import WORKLOADS, make_workload


def jobs_of(name: str, num_jobs: int = 400, **options: Any) -> tuple[JobPlan, ...]:
    load: dict[str, Any] = {} if "concurrency" in options else {"jps": 1.0}
    return make_workload(name, seed=0, num_jobs=num_jobs, **load, **options).jobs


def test_longtail_is_swebench_with_long_tailed_tools() -> None:
    """The jobs of `longtail` are those of `swebench` with other tools, unless told which."""
    assert jobs_of("longtail") == jobs_of("swebench", tools="longtail")
    assert jobs_of("longtail", tools="recorded") == jobs_of("swebench")


def test_coding_jobs_share_a_prompt_of_20_000_tokens() -> None:
    """All coding jobs begin with the same 20,000 tokens; turns and tools are as published."""
    jobs = jobs_of("coding", 2000)
    [(prefix,)] = {job.prefixes for job in jobs}
    assert prefix.num_tokens == 20_000
    assert min(job.prompt_tokens(0) for job in jobs) > 20_000
    num_turns = [len(job.turns) for job in jobs]
    assert np.quantile(num_turns, (0.5, 0.9)) == pytest.approx((29, 56), rel=0.07)
    assert max(num_turns) == 99
    times_s = np.array([turn.tool_s for job in jobs for turn in job.turns[:-1]])
    assert (times_s < 1.0).mean() == pytest.approx(0.8646, abs=0.01)
    assert (times_s < 10.0).mean() == pytest.approx(0.9512, abs=0.01)
    assert times_s.max() == 120.0


def test_sub_agents_of_a_turn_share_their_prompt_and_brief() -> None:
    """All sub-agents share 2,000 tokens, those of a turn their brief too, and leads 5,000."""
    jobs = jobs_of("deep-research")
    assert {(prefix.name, prefix.num_tokens) for job in jobs for prefix in job.prefixes} == {
        ("deep-research lead", 5_000)
    }
    briefs = []
    for children in (turn.children for job in jobs for turn in job.turns if turn.children):
        [(prompt, brief)] = {child.prefixes for child in children}
        assert (prompt.name, prompt.num_tokens) == ("deep-research worker", 2_000)
        assert all(child.prompt_tokens(0) > brief.num_tokens > 2_000 for child in children)
        briefs.append(brief.name)
    assert len(set(briefs)) == len(briefs)


def test_half_of_mixed_are_conversations_with_think_times() -> None:
    """Conversations pause 28.6 +- 15.6 s, send no tags and run no tool; the others are agents."""
    jobs = jobs_of("mixed", 4000)
    chats = [job for job in jobs if job.role == "chat"]
    assert len(chats) / len(jobs) == pytest.approx(0.5, abs=0.03)
    assert not any(job.is_tagged for job in chats)
    turns = [turn for job in chats for turn in job.turns]
    assert not any(turn.command or turn.tool_s for turn in turns)
    pauses_s = [turn.pause_s for job in chats for turn in job.turns[:-1]]
    assert (np.mean(pauses_s), np.std(pauses_s)) == pytest.approx((28.6, 15.6), rel=0.05)
    assert np.mean([turn.output_tokens for turn in turns]) == pytest.approx(338, rel=0.06)
    assert np.mean([len(job.turns) for job in chats]) == pytest.approx(4.45, rel=0.05)
    agents = [job for job in jobs if job.role == "agent"]
    assert all(turn.command for job in agents for turn in job.turns[:-1])


def test_rollouts_are_groups_of_eight_samples_of_one_prompt() -> None:
    """Eight samples share their whole first prompt, with nobody else, and then differ."""
    groups = defaultdict(list)
    for job in jobs_of("rollouts", 80, concurrency=16):
        (prefix,) = job.prefixes
        assert prefix.num_tokens == job.prompt_tokens(0)
        groups[prefix.name].append(job)
    assert [len(samples) for samples in groups.values()] == [8] * 10
    assert all(len({job.turns for job in samples}) == 8 for samples in groups.values())


def test_a_chosen_tool_source_spares_people_and_fan_outs() -> None:
    """--tools replaces tools of agents and sub-agents, and neither think times nor fan-outs."""
    made, redrawn = jobs_of("mixed"), jobs_of("mixed", tools="longtail")
    for before, after in zip(made, redrawn, strict=True):
        assert (before == after) == (before.role == "chat")
    made, redrawn = jobs_of("deep-research", 20), jobs_of("deep-research", 20, tools="longtail")
    for before, after in zip(made, redrawn, strict=True):
        assert [turn.command for turn in before.turns] == [turn.command for turn in after.turns]
    workers = [job for job in with_children(redrawn) if job.role == "sub-agent"]
    assert max(turn.tool_s for job in workers for turn in job.turns) > 20.0


def test_smaller_jobs_have_smaller_children_and_prefixes() -> None:
    """--turns, --max-context-tokens and --token-scale hold for children and prefixes, too."""
    for job in with_children(jobs_of("deep-research", 20, max_turns=3)):
        assert len(job.turns) <= 3
    for job in with_children(jobs_of("deep-research", 20, token_scale=0.1)):
        assert all(prefix.num_tokens < job.prompt_tokens(0) for prefix in job.prefixes)
        assert job.prefixes[0].num_tokens in (200, 500)
    for job in with_children(jobs_of("deep-research", 20, max_context_tokens=9000)):
        assert job.context_tokens <= 9000


def test_the_reference_page_has_a_row_for_each_workload() -> None:
    """docs/reference/workloads.md names each workload in its table, and no other."""
    page = Path(__file__).parents[3] / "docs/reference/workloads.md"
    table = page.read_text().partition("```")[0]
    assert tuple(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)) == WORKLOADS
